//! `--times`: what one open, one put and one get take.

use std::time::{Duration, Instant};

use kv_store_wasm::Store;
use serde::{Deserialize, Serialize};

/// Chunks that are put and got, each once.
const CHUNKS: u64 = 200;
const CHUNK: usize = 64 << 10;

/// Medians, but for the open, which is the first of a process whose code is in the cache.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Times {
    pub open_us: u64,
    /// A chunk of 64 KiB, and where the store gathers chunks, its share of a manifest after each.
    pub put_us: f64,
    pub get_us: f64,
}

pub fn measure(uri: &str, salt: u64) -> Result<Times, String> {
    let wrong = |error: kv_store_wasm::Error| error.to_string();
    let begun = Instant::now();
    let store = Store::open(uri).map_err(wrong)?;
    store.get_manifest("kv-store-times").map_err(wrong)?;
    let open = begun.elapsed();
    let hash = |number: u64| [salt, number].map(u64::to_le_bytes).concat();
    let data = |number: u64| vec![(number ^ salt) as u8; CHUNK];
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    for number in 0..CHUNKS {
        let (hash, data) = (hash(number), data(number));
        let begun = Instant::now();
        store.put_chunk(&hash, &data).map_err(wrong)?;
        store.flush().map_err(wrong)?;
        puts.push(begun.elapsed());
    }
    for number in 0..CHUNKS {
        let hash = hash(number);
        let begun = Instant::now();
        let found = store.get_chunk(&hash).map_err(wrong)?;
        gets.push(begun.elapsed());
        if found.as_deref() != Some(&data(number)[..]) {
            return Err("a chunk did not come back as it was put".into());
        }
    }
    let hashes: Vec<Vec<u8>> = (0..CHUNKS).map(hash).collect();
    let _ = store.delete_many(&hashes.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let open_us = u64::try_from(open.as_micros()).unwrap_or(u64::MAX);
    Ok(Times { open_us, put_us: median(puts), get_us: median(gets) })
}

/// In microseconds.
fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times.get(times.len() / 2).map_or(0.0, |median| median.as_secs_f64() * 1e6)
}
