//! A store of a million chunks beside one of a thousand: what a put and a get of 4 KiB cost. And the memory of a process
//! that puts the second half of a million, beside that of the first. And what a bound costs: a million chunks with one beside a
//! million without, and a store from which for each chunk that comes another goes, beside one that only grows.
//!
//! The million of the first are names of empty files in the layout of local-fs, so that the run takes a minute and not an hour: what
//! grows is the directories, whatever the files hold.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kv_store_tests::redis::RedisServer;

use super::fs::uri;
use crate::consumer::{Client, key, noise};
use crate::measure::{Bench, Rounds, Unit, each};

const SIZE: usize = 4 << 10;
/// Puts and gets of a round.
const COUNT: u64 = 64;

pub fn run(bench: &Bench) -> Result<()> {
    let wanted = bench.wants_any(&["growth/1M", "growth/1M/bounded", "growth/evicting", "growth/memory"]);
    if wanted && bench.quick && bench.filter.is_none() {
        eprintln!("   left out: growth/*, whose chunks take longer to make than a quick run may");
        return Ok(());
    }
    if bench.wants("growth/1M") {
        operations(bench)?;
    }
    if bench.wants("growth/1M/bounded") {
        bounded(bench)?;
    }
    if bench.wants("growth/evicting") {
        evicting(bench)?;
    }
    if bench.wants("growth/memory") {
        memory(bench)?;
    }
    Ok(())
}

fn operations(bench: &Bench) -> Result<()> {
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

fn bounded(bench: &Bench) -> Result<()> {
    let (with, without) = (bench.folder("bounded-million")?, bench.folder("million")?);
    let data = noise(SIZE, 1);
    let outcome = (|| {
        fill(&with, 1_000_000)?;
        fill(&without, 1_000_000)?;
        bound(bench, &with, 64 << 30)?;
        let bounded = Client::open(&bench.ours, &uri(&with))?;
        let plain = Client::open(&bench.ours, &uri(&without))?;
        await_count(&with)?;
        let (mut in_bounded, mut in_plain) = (1 << 32, 1 << 32);
        let rounds =
            bench.rounds(|| round(&bounded, &data, &mut in_bounded), || round(&plain, &data, &mut in_plain))?;
        bench.report("growth/1M/bounded", &rounds, Unit::Micros, SIZE, Some(0.95))
    })();
    std::fs::write(bench.config(), "")?;
    std::fs::remove_dir_all(&with)?;
    std::fs::remove_dir_all(&without)?;
    outcome
}

fn evicting(bench: &Bench) -> Result<()> {
    const CHUNK: usize = 64 << 10;
    const BOUND: u64 = 256 << 20;
    let (with, without) = (bench.folder("evicting")?, bench.folder("growing")?);
    let data = noise(CHUNK, 1);
    let outcome = (|| {
        bound(bench, &with, BOUND)?;
        let bounded = Client::open(&bench.ours, &uri(&with))?;
        let plain = Client::open(&bench.ours, &uri(&without))?;
        let fill = |client: &Client<'_>, next: &mut u64| -> Result<f64> {
            let first = *next;
            *next += COUNT;
            let puts = each(COUNT as usize, |n| client.put(&key(first + n as u64), &data).map(drop))?;
            client.publish("last", b"one of many")?;
            Ok(puts)
        };
        let (mut in_bounded, mut in_plain) = (0, 0);
        while in_bounded * CHUNK as u64 <= BOUND {
            fill(&bounded, &mut in_bounded)?;
        }
        let rounds = bench.rounds(|| fill(&bounded, &mut in_bounded), || fill(&plain, &mut in_plain))?;
        bench.report("growth/evicting", &rounds, Unit::Micros, CHUNK, Some(0.9))
    })();
    std::fs::write(bench.config(), "")?;
    std::fs::remove_dir_all(&with)?;
    std::fs::remove_dir_all(&without)?;
    outcome
}

/// Give one store of local-fs a bound, as that of a tenant; all others are of another tenant.
fn bound(bench: &Bench, store: &Path, max_bytes: u64) -> Result<()> {
    let text = format!(
        "[[tenant]]\nuri = '{}'\noptions = {{ max_bytes = '{max_bytes}', save_grace_s = '0' }}\n\
         [[tenant]]\nuri = 'local-fs://'\n",
        uri(store)
    );
    Ok(std::fs::write(bench.config(), text)?)
}

/// Wait until the host has counted what a bounded store holds.
fn await_count(store: &Path) -> Result<()> {
    let usage = store.join(".kv-usage");
    let begun = Instant::now();
    // The count, and when it was made: see core/src/directory/tally.rs.
    while std::fs::read(&usage)?.get(16..24).is_none_or(|counted| counted == [0; 8]) {
        ensure!(begun.elapsed() < Duration::from_secs(300), "{} is not counted", store.display());
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Save again and again, all of it new.
fn memory(bench: &Bench) -> Result<()> {
    const CHUNKS: u64 = 250;
    let server = RedisServer::start(&[]);
    let client = Client::open(&bench.ours, &format!("redis://127.0.0.1:{}", server.port))?;
    // The most that it came to.
    let save_all = |saves: std::ops::Range<u64>| -> Result<f64> {
        let mut most: f64 = 0.0;
        for save in saves {
            for chunk in save * CHUNKS..(save + 1) * CHUNKS {
                ensure!(client.put(&key(chunk), &chunk.to_le_bytes())? == 0, "the chunk was there");
            }
            client.publish("last", b"one of many")?;
            if save.is_multiple_of(40) {
                most = most.max(resident()?);
            }
        }
        Ok(most)
    };
    let half = 500_000 / CHUNKS;
    let (peer, ours) = (save_all(0..half)?, save_all(half..2 * half)?);
    bench.report("growth/memory", &Rounds { ours: vec![ours], peer: vec![peer] }, Unit::Mib, 0, Some(0.8))
}

/// Bytes of this process that are in memory.
fn resident() -> Result<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.strip_suffix("kB"));
    let kilobytes: f64 = field.context("the kernel does not say what is in memory")?.trim().parse()?;
    Ok(kilobytes * 1024.0)
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
            let hex = hex::encode(key(number));
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
