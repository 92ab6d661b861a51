//! The near level before redis: one conversation of 96 chunks of 64 KiB that is restored again and again, beside the same without a
//! near level. Keys are content hashes, as today's llama.cpp consumers make them.

use anyhow::{Result, ensure};
use kv_store_tests::redis::RedisServer;

use crate::consumer::{Client, content_key, noise};
use crate::measure::{Bench, Unit, each};

const SIZE: usize = 64 << 10;
const CHUNKS: u64 = 96;

pub fn run(bench: &Bench) -> Result<()> {
    let [one_by_one, announced] = ["blocks/near/redis", "blocks/near/redis/prefetched"];
    if !bench.wants_any(&[one_by_one, announced]) {
        return Ok(());
    }
    let server = RedisServer::start(&[]);
    let [near, far] = [1, 2].map(|database| format!("redis://127.0.0.1:{}/{database}", server.port));
    std::fs::write(bench.config(), "[backend.redis]\nnear.memory_bytes = 67108864\n")?;
    let near = Client::open(&bench.ours, &near);
    std::fs::write(bench.config(), "")?;
    let (near, far) = (near?, Client::open(&bench.ours, &far)?);
    let data: Vec<Vec<u8>> = (0..CHUNKS).map(|n| noise(SIZE, n + 1)).collect();
    let keys: Vec<[u8; 8]> = data.iter().map(|data| content_key(data)).collect();
    for client in [&near, &far] {
        keys.iter().zip(&data).try_for_each(|(key, data)| client.put(key, data).map(drop))?;
        client.publish("conversation", keys.as_flattened())?;
    }
    let restore = |client: &Client, announced: bool| {
        each(1, |_| {
            if announced {
                client.prefetch(&keys)?;
            }
            for (key, data) in keys.iter().zip(&data) {
                let chunk = client.get(key)?;
                ensure!(chunk.bytes().len() == data.len() && chunk.bytes().first() == data.first());
            }
            Ok(())
        })
    };
    for (client, data) in [(&near, &data), (&far, &data)] {
        for (key, data) in keys.iter().zip(data) {
            ensure!(client.get(key)?.bytes() == &data[..], "other bytes came back");
        }
    }
    if bench.wants(one_by_one) {
        let rounds = bench.rounds(|| restore(&near, false), || restore(&far, false))?;
        bench.report(one_by_one, &rounds, Unit::Micros, SIZE * CHUNKS as usize, Some(10.0))?;
    }
    if bench.wants(announced) {
        let rounds = bench.rounds(|| restore(&near, true), || restore(&far, true))?;
        bench.report(announced, &rounds, Unit::Micros, SIZE * CHUNKS as usize, None)?;
    }
    Ok(())
}
