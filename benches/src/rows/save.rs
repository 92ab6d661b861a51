//! A whole save: 96 chunks of 64 KiB and their manifest, over loopback, beside a native client that holds all of them in
//! memory. Cold: none of the chunks is there. Warm: all of them are, as when a conversation is saved again.

use anyhow::{Result, ensure};
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::redis::RedisServer;

use crate::consumer::{Client, key, noise};
use crate::measure::{Bench, Unit, each};
use crate::peers::Saver;
use crate::peers::memkv::MemkvClient;
use crate::peers::resp::NativeClient;

const SIZE: usize = 64 << 10;
const CHUNKS: u64 = 96;

pub fn run(bench: &Bench) -> Result<()> {
    if bench.wants_any(&["save96/cold/redis", "save96/warm/redis"]) {
        let server = RedisServer::start(&[]);
        let client = Client::open(&bench.ours, &format!("redis://127.0.0.1:{}/1", server.port))?;
        let mut native = NativeClient::connect(server.port, 2)?;
        rows(bench, "redis", &client, &mut native, &|| drop(server.ask("FLUSHALL")))?;
    }
    if bench.wants_any(&["save96/cold/memkv", "save96/warm/memkv"]) {
        let server = MemkvServer::start(&[]);
        let client = Client::open(&bench.ours, &format!("memkv://127.0.0.1:{}/ours", server.port))?;
        let mut native = MemkvClient::connect(server.port, "native", AUTH_KEY)?;
        // It evicts by itself.
        rows(bench, "memkv", &client, &mut native, &|| ())?;
    }
    Ok(())
}

/// `empty`: have the server forget what it holds.
fn rows(bench: &Bench, backend: &str, client: &Client, native: &mut dyn Saver, empty: &dyn Fn()) -> Result<()> {
    let [cold, warm] = ["cold", "warm"].map(|kind| format!("save96/{kind}/{backend}"));
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
        let chunks: Vec<(Vec<u8>, &[u8])> =
            data.iter().zip(first..).map(|(data, n)| (key(n).to_vec(), data.as_slice())).collect();
        each(1, |_| native.save("conversation", &manifest, &chunks))
    };
    if bench.wants(&cold) {
        // Each save is of other chunks.
        let fresh = |next: &mut u64| {
            empty();
            *next += CHUNKS;
            *next
        };
        let (mut ours_next, mut their_next) = (0, 0);
        let rounds = bench.rounds(|| ours(fresh(&mut ours_next)), || theirs(fresh(&mut their_next)))?;
        bench.report(&cold, &rounds, Unit::Millis, 0, Some(0.95))?;
    }
    if bench.wants(&warm) {
        let first = 1 << 40;
        ours(first)?;
        theirs(first)?;
        let rounds = bench.rounds(|| ours(first), || theirs(first))?;
        bench.report(&warm, &rounds, Unit::Millis, 0, Some(0.95))?;
    }
    Ok(())
}
