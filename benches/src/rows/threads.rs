//! Threads on one handle, beside one thread: local-fs gets. The native store's own figures, measured in the same turns, say
//! what the machine allows.

use anyhow::Result;
use kv_store_conformance::Library;

use super::fs::uri;
use crate::consumer::{Client, key, noise};
use crate::measure::{Bench, Unit, side_by_side};

const SIZE: usize = 256 << 10;
const CHUNKS: u64 = 64;
/// Gets of one thread in a round.
const GETS: u64 = 128;

pub fn run(bench: &Bench) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in [2, 4, 8] {
        if threads > cores && (bench.quick || threads > 4) {
            continue;
        }
        // More threads than cores can only be as fast.
        let goal = (threads == 2).then_some(1.7);
        row(bench, &format!("threads/{threads}"), &bench.ours, threads, goal)?;
        row(bench, &format!("threads/{threads}-native"), &bench.native, threads, None)?;
    }
    Ok(())
}

fn row(bench: &Bench, name: &str, library: &Library, threads: usize, goal: Option<f64>) -> Result<()> {
    if !bench.wants(name) {
        return Ok(());
    }
    let client = Client::open(library, &uri(&bench.folder("ours")?))?;
    for n in 0..CHUNKS {
        client.put(&key(n), &noise(SIZE, n + 1))?;
    }
    let rounds = bench.rounds(|| round(&client, threads), || round(&client, 1))?;
    bench.report(name, &rounds, Unit::MibPerSecond, SIZE, goal)
}

/// The seconds of one get, on the whole, where so many threads get at once.
fn round(client: &Client, threads: usize) -> Result<f64> {
    let seconds = side_by_side((0..threads as u64).collect(), |thread| {
        (0..GETS).try_for_each(|n| client.get(&key((n * 7 + thread * 13) % CHUNKS)).map(drop))
    })?;
    Ok(seconds / (GETS as f64 * threads as f64))
}
