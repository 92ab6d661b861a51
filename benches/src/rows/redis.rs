//! redis beside the `redis` crate, over loopback, with one server for both: batches of 1 MiB, single values of 64 bytes.

use anyhow::{Result, ensure};
use kv_store_tests::redis::RedisServer;

use crate::consumer::{Client, KEY_BYTES, key, noise};
use crate::measure::{Bench, Unit, each};

const SIZE: usize = 1 << 20;
/// Chunks in a batch.
const BATCH: usize = 16;

pub fn run(bench: &Bench) -> Result<()> {
    let names = ["redis/put/1MiB", "redis/get/1MiB", "redis/small/put", "redis/small/get"];
    if !bench.wants_any(&names) {
        return Ok(());
    }
    let server = RedisServer::start(&[]);
    let client = Client::open(&bench.ours, &format!("redis://127.0.0.1:{}/1", server.port))?;
    let mut peer = redis::Client::open(format!("redis://127.0.0.1:{}/2", server.port))?.get_connection()?;
    put(bench, names[0], &server, &client, &mut peer)?;
    get(bench, names[1], &client, &mut peer)?;
    small(bench, [names[2], names[3]], &client, &mut peer)
}

/// A batch of new chunks and the manifest that makes them readable; the peer sets the same in one pipeline.
fn put(bench: &Bench, name: &str, server: &RedisServer, client: &Client, peer: &mut redis::Connection) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let data = noise(SIZE, 1);
    let mut next = 0;
    let ours = || {
        server.ask("FLUSHALL");
        let first = next;
        next += BATCH as u64;
        let seconds = each(1, |_| {
            for n in 0..BATCH as u64 {
                ensure!(client.put(&key(first + n), &data)? == 0, "the chunk was there");
            }
            client.publish("manifest", b"of a batch")
        })?;
        Ok(seconds / BATCH as f64)
    };
    let theirs = || {
        server.ask("FLUSHALL");
        let seconds = each(1, |_| {
            let mut pipeline = redis::pipe();
            for n in 0..BATCH as u64 {
                pipeline.set(&key(n), &data).ignore();
            }
            pipeline.exec(peer)?;
            redis::cmd("SET").arg("manifest").arg(b"of a batch").exec(peer)?;
            Ok(())
        })?;
        Ok(seconds / BATCH as f64)
    };
    let rounds = bench.rounds(ours, theirs)?;
    bench.report(name, &rounds, Unit::Micros, SIZE, Some(1.0))
}

/// A batch that is announced and then taken; the peer asks for all in one command.
fn get(bench: &Bench, name: &str, client: &Client, peer: &mut redis::Connection) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let data = noise(SIZE, 1);
    let keys: Vec<[u8; KEY_BYTES]> = (0..BATCH as u64).map(|n| key(1 << 40 | n)).collect();
    for key in &keys {
        client.put(key, &data)?;
        redis::cmd("SET").arg(key).arg(&data).exec(peer)?;
    }
    client.publish("manifest", b"of a batch")?;
    let ours = || {
        let seconds = each(1, |_| {
            client.prefetch(&keys)?;
            keys.iter().try_for_each(|key| {
                ensure!(client.get(key)?.bytes().len() == SIZE);
                Ok(())
            })
        })?;
        Ok(seconds / BATCH as f64)
    };
    let theirs = || {
        let seconds = each(1, |_| {
            let mut command = redis::cmd("MGET");
            keys.iter().for_each(|key| {
                command.arg(key);
            });
            let values: Vec<Vec<u8>> = command.query(peer)?;
            ensure!(values.len() == BATCH && values.iter().all(|value| value.len() == SIZE));
            Ok(())
        })?;
        Ok(seconds / BATCH as f64)
    };
    let rounds = bench.rounds(ours, theirs)?;
    bench.report(name, &rounds, Unit::Micros, SIZE, Some(1.0))
}

/// One value in one round trip: a manifest's put, a chunk's get.
fn small(bench: &Bench, [put, get]: [&str; 2], client: &Client, peer: &mut redis::Connection) -> Result<()> {
    const COUNT: usize = 100;
    let data = noise(64, 1);
    if bench.wants(put) {
        let ours = || each(COUNT, |_| client.publish("small", &data));
        let theirs = || each(COUNT, |_| Ok(redis::cmd("SET").arg("small").arg(&data).exec(peer)?));
        let rounds = bench.rounds(ours, theirs)?;
        bench.report(put, &rounds, Unit::Micros, 64, Some(0.7))?;
    }
    if bench.wants(get) {
        let key = key(1 << 41);
        client.put(&key, &data)?;
        client.publish("manifest", b"of one")?;
        redis::cmd("SET").arg(&key).arg(&data).exec(peer)?;
        let ours = || each(COUNT, |_| client.get(&key).map(drop));
        let mut ask = || {
            let value: Vec<u8> = redis::cmd("GET").arg(&key).query(peer)?;
            ensure!(value.len() == 64);
            Ok(())
        };
        let rounds = bench.rounds(ours, || each(COUNT, |_| ask()))?;
        bench.latencies(get, || client.get(&key).map(drop), &mut ask)?;
        bench.report(get, &rounds, Unit::Micros, 64, Some(0.7))?;
    }
    Ok(())
}
