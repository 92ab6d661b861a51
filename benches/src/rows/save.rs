//! A whole save: 96 chunks of 64 KiB and their manifest, over loopback, beside a native client that holds all of them in
//! memory. Cold: none of the chunks is there. Warm: all of them are, as when a conversation is saved again.

use anyhow::{Result, ensure};
use kv_store_tests::redis::RedisServer;

use crate::consumer::{Client, key, noise};
use crate::measure::{Bench, Unit, each};
use crate::peers::resp::NativeClient;

const SIZE: usize = 64 << 10;
const CHUNKS: u64 = 96;

pub fn run(bench: &Bench) -> Result<()> {
    let names = ["save96/cold/redis", "save96/warm/redis"];
    if !bench.wants_any(&names) {
        return Ok(());
    }
    let server = RedisServer::start(&[]);
    let client = Client::open(&bench.ours, &format!("redis://127.0.0.1:{}/1", server.port))?;
    let mut native = NativeClient::connect(server.port, 2)?;
    let data: Vec<Vec<u8>> = (0..CHUNKS).map(|n| noise(SIZE, n + 1)).collect();
    let manifest = noise(2 << 10, 7);

    let ours = |first: u64| {
        let seconds = each(1, |_| {
            for (n, data) in data.iter().enumerate() {
                client.put(&key(first + n as u64), data)?;
            }
            client.publish("conversation", &manifest)
        })?;
        ensure!(client.has(&key(first)) && client.has(&key(first + CHUNKS - 1)), "a saved chunk is not there");
        Ok(seconds)
    };
    let mut theirs = |first: u64| {
        each(1, |_| {
            let keys: Vec<Vec<u8>> = (0..CHUNKS).map(|n| [&b"kv:c:"[..], &key(first + n)].concat()).collect();
            let there = native.exists(&keys)?;
            let all = keys.iter().zip(&data).zip(there);
            let missing: Vec<(&[u8], &[u8])> =
                all.filter(|(_, there)| !there).map(|((key, data), _)| (&key[..], &data[..])).collect();
            if !missing.is_empty() {
                native.set_all(&missing)?;
            }
            native.set(b"kv:m:conversation", &manifest)
        })
    };

    if bench.wants(names[0]) {
        let (mut ours_next, mut their_next) = (0, 0);
        let fresh = |next: &mut u64| {
            server.ask("FLUSHALL");
            *next += CHUNKS;
            *next
        };
        let rounds = bench.rounds(|| ours(fresh(&mut ours_next)), || theirs(fresh(&mut their_next)))?;
        bench.report(names[0], &rounds, Unit::Millis, 0, Some(0.95))?;
    }
    if bench.wants(names[1]) {
        let first = 1 << 40;
        ours(first)?;
        theirs(first)?;
        let rounds = bench.rounds(|| ours(first), || theirs(first))?;
        bench.report(names[1], &rounds, Unit::Millis, 0, Some(0.95))?;
    }
    Ok(())
}
