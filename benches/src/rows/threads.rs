//! Threads on one handle, beside one thread: local-fs gets. The native store's own figures, measured in the same turns, say
//! what the machine allows.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Result, anyhow};
use kv_store_conformance::Library;

use super::fs::uri;
use crate::consumer::{Client, key, noise};
use crate::measure::{Bench, Unit};

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
    let start = Barrier::new(threads + 1);
    let work = |thread: u64| {
        start.wait();
        (0..GETS).try_for_each(|n| client.get(&key((n * 7 + thread * 13) % CHUNKS)).map(drop))
    };
    let seconds = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads as u64).map(|thread| scope.spawn(move || work(thread))).collect();
        start.wait();
        let begun = Instant::now();
        for thread in running {
            thread.join().map_err(|_| anyhow!("a thread panicked"))??;
        }
        Ok::<_, anyhow::Error>(begun.elapsed().as_secs_f64())
    })?;
    Ok(seconds / (GETS as f64 * threads as f64))
}
