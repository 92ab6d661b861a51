//! A chunk that was prefetched is handed over: what that costs, beside a copy of its bytes.

use std::time::Instant;

use anyhow::Result;

use super::fs::uri;
use crate::consumer::{Client, key, noise};
use crate::measure::{Bench, Unit};

const SIZE: usize = 1 << 20;
const COUNT: usize = 32;

pub fn run(bench: &Bench) -> Result<()> {
    if !bench.wants("prefetch/hit") {
        return Ok(());
    }
    let client = Client::open(&bench.ours, &uri(&bench.folder("ours")?))?;
    let data = noise(SIZE, 1);
    let keys: Vec<_> = (0..COUNT as u64).map(key).collect();
    for key in &keys {
        client.put(key, &data)?;
    }
    let hits = || {
        client.prefetch(&keys)?;
        let mut kept = Vec::with_capacity(COUNT);
        let begun = Instant::now();
        for key in &keys {
            kept.push(client.get(key)?);
        }
        Ok(begun.elapsed().as_secs_f64() / COUNT as f64)
    };
    let mut copy = noise(SIZE, 2);
    let copies = || {
        let begun = Instant::now();
        for _ in 0..COUNT {
            copy.copy_from_slice(std::hint::black_box(&data));
            std::hint::black_box(&copy);
        }
        Ok(begun.elapsed().as_secs_f64() / COUNT as f64)
    };
    let rounds = bench.rounds(hits, copies)?;
    bench.report("prefetch/hit", &rounds, Unit::Micros, SIZE, Some(10.0))
}
