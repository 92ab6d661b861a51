//! Batches into memory that the caller keeps: local-fs beside the native store's calls, one a block, into the same kind of
//! memory; redis beside the `redis` crate pipelining.

use std::path::Path;

use anyhow::{Result, ensure};
use kv_store_tests::redis::RedisServer;

use super::fs::{empty, uri};
use super::size_name;
use crate::batch::{Batches, Blocks, Native};
use crate::consumer::{key, noise};
use crate::measure::{Bench, Unit, each, side_by_side};

/// Blocks of a batch.
const BLOCKS: usize = 64;

pub fn run(bench: &Bench) -> Result<()> {
    for (size, get_goal) in [(64 << 10, 1.0), (1 << 20, 0.97)] {
        let name = size_name(size);
        get_many(bench, &format!("fs/get-many/{name}"), uri, size, 1, get_goal)?;
        get_many(bench, &format!("fs/get-many/{name}/2-threads"), uri, size, 2, 0.95)?;
        fs_put(bench, &format!("fs/put-many/{name}"), size)?;
    }
    get_many(bench, "fs/small/get-many", uri, 4 << 10, 1, 0.97)?;
    redis(bench, ["redis/put-many/1MiB", "redis/get-many/1MiB"])
}

pub fn blocks(size: usize, first: u64) -> Blocks {
    let keys = (0..BLOCKS as u64).map(|n| key(first + n).to_vec()).collect();
    Blocks::new(keys, size, |n| noise(size, n as u64 + 1))
}

/// Batches of a store in a directory beside the native store's calls. `uri`: that of a directory.
pub fn get_many(
    bench: &Bench,
    name: &str,
    uri: fn(&Path) -> String,
    size: usize,
    threads: u64,
    goal: f64,
) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let ours = Batches::open(&bench.ours, &uri(&bench.folder("ours")?))?;
    let peer = Native::open(&bench.native, &super::fs::uri(&bench.folder("peer")?))?;
    let mut memory: Vec<Blocks> = (0..threads).map(|thread| blocks(size, thread << 32)).collect();
    for blocks in &mut memory {
        ours.put(blocks)?;
        peer.put(blocks)?;
        blocks.block(5).fill(0);
        ours.get(blocks)?;
        ensure!(blocks.block(5) == noise(size, 6), "other bytes came back");
    }
    let memory = std::cell::RefCell::new(memory);
    let round = |get: &(dyn Fn(&mut Blocks) -> Result<()> + Sync)| on_threads(&mut memory.borrow_mut(), get);
    let rounds = bench.rounds(|| round(&|blocks| ours.get(blocks)), || round(&|blocks| peer.get(blocks)))?;
    bench.report(name, &rounds, Unit::Micros, size, Some(goal))
}

/// The seconds of one block, where each of these is worked on by a thread of its own.
fn on_threads(memory: &mut [Blocks], work: &(dyn Fn(&mut Blocks) -> Result<()> + Sync)) -> Result<f64> {
    let count = memory.iter().map(Blocks::len).sum::<usize>() as f64;
    if let [blocks] = memory {
        return Ok(each(1, |_| work(blocks))? / count);
    }
    let seconds = side_by_side(memory.iter_mut().collect(), work)?;
    Ok(seconds / count)
}

fn fs_put(bench: &Bench, name: &str, size: usize) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let folders = (bench.folder("ours")?, bench.folder("peer")?);
    let ours = Batches::open(&bench.ours, &uri(&folders.0))?;
    let peer = Native::open(&bench.native, &uri(&folders.1))?;
    let mut memory = (blocks(size, 0), blocks(size, 0));
    let mut our_round = || {
        let seconds = each(1, |_| ours.put(&mut memory.0))?;
        empty(&folders.0.join("chunks"))?;
        Ok(seconds / BLOCKS as f64)
    };
    let mut peer_round = || {
        let seconds = each(1, |_| peer.put(&mut memory.1))?;
        empty(&folders.1.join("chunks"))?;
        Ok(seconds / BLOCKS as f64)
    };
    let rounds = bench.rounds(&mut our_round, &mut peer_round)?;
    bench.report(name, &rounds, Unit::Micros, size, Some(1.0))
}

fn redis(bench: &Bench, names: [&str; 2]) -> Result<()> {
    if !bench.wants_any(&names) {
        return Ok(());
    }
    const SIZE: usize = 1 << 20;
    let server = RedisServer::start(&[]);
    let ours = Batches::open(&bench.ours, &format!("redis://127.0.0.1:{}/1", server.port))?;
    let mut peer = redis::Client::open(format!("redis://127.0.0.1:{}/2", server.port))?.get_connection()?;
    let mut memory = blocks(SIZE, 0);
    let values: Vec<Vec<u8>> = (0..BLOCKS).map(|n| noise(SIZE, n as u64 + 1)).collect();
    let keys = memory.keys().to_vec();
    let set_all = |peer: &mut redis::Connection| {
        let mut pipeline = redis::pipe();
        for (key, value) in keys.iter().zip(&values) {
            pipeline.set(key, value).ignore();
        }
        pipeline.exec(peer)
    };
    if bench.wants(names[0]) {
        let our_round = || {
            server.ask("FLUSHALL");
            Ok(each(1, |_| ours.put(&mut memory))? / BLOCKS as f64)
        };
        let peer_round = || {
            server.ask("FLUSHALL");
            Ok(each(1, |_| Ok(set_all(&mut peer)?))? / BLOCKS as f64)
        };
        let rounds = bench.rounds(our_round, peer_round)?;
        bench.report(names[0], &rounds, Unit::Micros, SIZE, Some(2.0))?;
    }
    if bench.wants(names[1]) {
        server.ask("FLUSHALL");
        ours.put(&mut memory)?;
        set_all(&mut peer)?;
        let mut into: Vec<Vec<u8>> = vec![vec![0; SIZE]; BLOCKS];
        let peer_round = || {
            let seconds = each(1, |_| {
                let mut pipeline = redis::pipe();
                keys.iter().for_each(|key| {
                    pipeline.get(key);
                });
                let found: Vec<Vec<u8>> = pipeline.query(&mut peer)?;
                // The crate hands over memory of its own; an engine's blocks are where they are.
                for (into, found) in into.iter_mut().zip(&found) {
                    into.copy_from_slice(found);
                }
                Ok(())
            })?;
            Ok(seconds / BLOCKS as f64)
        };
        let rounds = bench.rounds(|| Ok(each(1, |_| ours.get(&mut memory))? / BLOCKS as f64), peer_round)?;
        bench.report(names[1], &rounds, Unit::Micros, SIZE, Some(1.5))?;
    }
    Ok(())
}
