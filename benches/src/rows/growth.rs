//! A store of a million chunks beside one of a thousand: what a put and a get of 4 KiB cost.
//!
//! The million are names of empty files in the layout of local-fs, so that the run takes a minute and not an hour: what
//! grows is the directories, whatever the files hold.

use std::path::Path;

use anyhow::{Result, ensure};

use super::fs::uri;
use crate::consumer::{Client, key, noise};
use crate::measure::{Bench, Unit, each};

const SIZE: usize = 4 << 10;
/// Puts and gets of a round.
const COUNT: u64 = 64;

pub fn run(bench: &Bench) -> Result<()> {
    if !bench.wants("growth/1M") {
        return Ok(());
    }
    if bench.quick && bench.filter.is_none() {
        eprintln!("   left out: growth/1M, whose files take longer to make than a quick run may");
        return Ok(());
    }
    let (large, small) = (bench.folder("million")?, bench.folder("thousand")?);
    let data = noise(SIZE, 1);
    let outcome = (|| {
        fill(&large, 1_000_000)?;
        fill(&small, 1_000)?;
        let open = |folder: &Path| Client::open(&bench.ours, &uri(folder));
        let (large, small) = (open(&large)?, open(&small)?);
        let (mut in_large, mut in_small) = (1 << 32, 1 << 32);
        let rounds = bench.rounds(|| round(&large, &data, &mut in_large), || round(&small, &data, &mut in_small))?;
        bench.report("growth/1M", &rounds, Unit::Micros, SIZE, Some(0.8))
    })();
    std::fs::remove_dir_all(&large)?;
    outcome
}

/// Put new chunks and get them.
fn round(client: &Client, data: &[u8], next: &mut u64) -> Result<f64> {
    let first = *next;
    *next += COUNT;
    let puts = each(COUNT as usize, |n| {
        ensure!(client.put(&key(first + n as u64), data)? == 0, "the chunk was there");
        Ok(())
    })?;
    let gets = each(COUNT as usize, |n| client.get(&key(first + n as u64)).map(drop))?;
    Ok(puts + gets)
}

/// Make the names of so many chunks, on as many threads as there are cores.
fn fill(store: &Path, chunks: u64) -> Result<()> {
    let directories: Vec<_> = (0..16).map(|digit| store.join(format!("chunks/{digit:x}"))).collect();
    for directory in &directories {
        std::fs::create_dir_all(directory)?;
        // A file has at most 65,000 names.
        std::fs::File::create(directory.join("first"))?;
    }
    let workers = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let work = |worker: u64| -> Result<()> {
        for number in (worker..chunks).step_by(workers as usize) {
            let hex: String = key(number).iter().map(|byte| format!("{byte:02x}")).collect();
            let directory = store.join("chunks").join(&hex[..1]);
            std::fs::hard_link(directory.join("first"), directory.join(&hex))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        running.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a panic"))))
    })
}
