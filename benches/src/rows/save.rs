//! A whole save: 96 chunks of 64 KiB and their manifest, over loopback, beside a native client that holds all of them in
//! memory. Cold: none of the chunks is there. Warm: all of them are, as when a conversation is saved again. `save96`: chunk by chunk through
//! `kv_store_v1`; `save96-batch`: one batch and its commit.

use std::cell::RefCell;

use anyhow::{Result, ensure};
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::redis::RedisServer;

use crate::batch::{Batches, Blocks};
use crate::consumer::{Client, key, noise};
use crate::measure::{Bench, Unit, each};
use crate::peers::Saver;
use crate::peers::memkv::MemkvClient;
use crate::peers::resp::NativeClient;

pub const SIZE: usize = 64 << 10;
pub const CHUNKS: u64 = 96;

/// Saves the chunks from a number on; answers the seconds that it took.
type Way<'a> = &'a dyn Fn(u64) -> Result<f64>;

pub fn run(bench: &Bench) -> Result<()> {
    if wants(bench, "redis") {
        let server = RedisServer::start(&[]);
        let uri = format!("redis://127.0.0.1:{}/1", server.port);
        let mut native = NativeClient::connect(server.port, 2)?;
        rows(bench, "redis", &uri, &mut native, &|| drop(server.ask("FLUSHALL")))?;
    }
    if wants(bench, "memkv") {
        let server = MemkvServer::start(&[]);
        let uri = format!("memkv://127.0.0.1:{}/ours", server.port);
        let mut native = MemkvClient::connect(server.port, "native", AUTH_KEY)?;
        // It evicts by itself.
        rows(bench, "memkv", &uri, &mut native, &|| ())?;
    }
    Ok(())
}

fn wants(bench: &Bench, backend: &str) -> bool {
    ["save96", "save96-batch"]
        .iter()
        .any(|how| ["cold", "warm"].iter().any(|kind| bench.wants(&format!("{how}/{kind}/{backend}"))))
}

/// `empty`: have the server forget what it holds.
fn rows(bench: &Bench, backend: &str, uri: &str, native: &mut dyn Saver, empty: &dyn Fn()) -> Result<()> {
    let data: Vec<Vec<u8>> = (0..CHUNKS).map(|n| noise(SIZE, n + 1)).collect();
    let manifest = noise(2 << 10, 7);
    let client = Client::open(&bench.ours, uri)?;
    let has = |first: u64| {
        ensure!(client.has(&key(first)) && client.has(&key(first + CHUNKS - 1)), "a saved chunk is not there");
        Ok(())
    };
    let singly = |first: u64| {
        let seconds = each(1, |_| {
            for (n, data) in data.iter().enumerate() {
                client.put(&key(first + n as u64), data)?;
            }
            client.publish("conversation", &manifest)
        })?;
        has(first)?;
        Ok(seconds)
    };
    let batches = Batches::open(&bench.ours, uri)?;
    let keys = |first: u64| (first..first + CHUNKS).map(|n| key(n).to_vec()).collect::<Vec<_>>();
    // Made once: what is made before each save would leave nothing else in the processor's caches.
    let blocks = Blocks::new(keys(0), SIZE, |index| data.get(index).cloned().unwrap_or_default());
    let blocks = RefCell::new(blocks);
    let as_batch = |first: u64| {
        let mut blocks = blocks.borrow_mut();
        blocks.set_keys(keys(first));
        let seconds = each(1, |_| batches.save(&mut blocks, c"conversation", &manifest))?;
        has(first)?;
        Ok(seconds)
    };
    let ways: [(&str, Way<'_>); 2] = [("save96", &singly), ("save96-batch", &as_batch)];
    for (number, (how, ours)) in ways.into_iter().enumerate() {
        let mut theirs = |first: u64| {
            let chunks: Vec<(Vec<u8>, &[u8])> =
                data.iter().zip(first..).map(|(data, n)| (key(n).to_vec(), data.as_slice())).collect();
            each(1, |_| native.save("conversation", &manifest, &chunks))
        };
        let cold = format!("{how}/cold/{backend}");
        if bench.wants(&cold) {
            // Each save is of other chunks.
            let fresh = |next: &mut u64| {
                empty();
                *next += CHUNKS;
                *next
            };
            let (mut ours_next, mut their_next) = ((number as u64) << 32, (number as u64) << 32);
            let rounds = bench.rounds(|| ours(fresh(&mut ours_next)), || theirs(fresh(&mut their_next)))?;
            bench.report(&cold, &rounds, Unit::Millis, 0, Some(0.95))?;
        }
        let warm = format!("{how}/warm/{backend}");
        if bench.wants(&warm) {
            let first = (1 << 40) + ((number as u64) << 32);
            ours(first)?;
            theirs(first)?;
            let rounds = bench.rounds(|| ours(first), || theirs(first))?;
            bench.report(&warm, &rounds, Unit::Millis, 0, Some(0.95))?;
        }
    }
    Ok(())
}
