//! The cache's goals, measured: ours and its peer in turn, in one process. One JSON object a line:
//! `{"name","ours","peer","ratio","unit","better","goal"}`. `ours` and `peer` are medians in `unit`; `ratio` is the median of the
//! rounds' ratios, above 1 where ours does better; `goal` is null where there is none.
//!
//! `cargo run --release -p kv-cache --example cache_bench [FILTER [DIRECTORY]]`: the directory is for the disk tier, a temporary one by default;
//! FILTER is a part of rows' names, all by default.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used)]

use std::hint::black_box;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kv_cache::row::{NewRow, SaveReason};
use kv_cache::{Cache, Config, Fingerprint, Identity, Query, Save, Saved, TierKind};
use sha2::{Digest, Sha256};

const MIB: usize = 1 << 20;
const IDENTITY: Identity = Identity {
    fingerprint: Fingerprint { bytes: [3; 32], mode: kv_cache::FingerprintMode::Safe },
    quant: 1,
    context_hash: [4; 32],
};

const RAM_LOAD: &str = "cache/ram-load-1MiB";
const DISK_LOAD: &str = "cache/disk-load-16MiB";
const PREFIX_WALK: &str = "cache/prefix-walk-32768-by-2048";
const SAVE: &str = "cache/save-16MiB-durable";
/// Medians and slow ones, without and with saves at the same time.
const LOOKUPS: [[&str; 2]; 2] = [
    ["cache/lookup-1024-tokens-quiet-p50", "cache/lookup-1024-tokens-quiet-p99"],
    ["cache/lookup-1024-tokens-saves-run-p50", "cache/lookup-1024-tokens-saves-run-p99"],
];
const OPEN: &str = "cache/open-100000-rows";

fn main() {
    let folder = tempfile::tempdir().unwrap();
    let filter = std::env::args().nth(1).unwrap_or_default();
    let directory = std::env::args_os().nth(2).map_or_else(|| folder.path().to_owned(), PathBuf::from);
    let wanted = |name: &str| name.contains(&filter);
    if wanted(RAM_LOAD) {
        ram_load();
    }
    if wanted(DISK_LOAD) {
        disk_load(&directory.join("load"));
    }
    if wanted(PREFIX_WALK) {
        prefix_walk();
    }
    if wanted(SAVE) {
        save(&directory.join("save"));
    }
    if LOOKUPS.iter().flatten().any(|name| wanted(name)) {
        lookups_while_saves_run(&directory.join("lookups"));
    }
    if wanted(OPEN) {
        scan(&directory.join("scan"));
    }
}

/// Run both in turn, in the order ours-peer and peer-ours by rounds; microseconds.
fn compare(
    name: &str,
    goal: f64,
    rounds: usize,
    mut ours: impl FnMut() -> Duration,
    mut peer: impl FnMut() -> Duration,
) {
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..rounds + 2 {
        let (a, b) = match round % 2 {
            0 => (ours(), peer()),
            _ => {
                let b = peer();
                (ours(), b)
            }
        };
        // The first rounds warm up.
        if round >= 2 {
            times[0].push(a.as_secs_f64() * 1e6);
            times[1].push(b.as_secs_f64() * 1e6);
            times[2].push(b.as_secs_f64() / a.as_secs_f64());
        }
    }
    let [ours, peer, ratio] = times.map(median);
    print(name, ours, Some((peer, ratio)), "us", Some(goal));
}

fn print(name: &str, ours: f64, peer: Option<(f64, f64)>, unit: &str, goal: Option<f64>) {
    let line = serde_json::json!({
        "name": name, "ours": round(ours), "peer": peer.map(|(peer, _)| round(peer)), "ratio": peer.map(|(_, ratio)| round(ratio)),
        "unit": unit, "better": "lower", "goal": goal,
    });
    println!("{line}");
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn time(run: impl FnOnce()) -> Duration {
    let start = Instant::now();
    run();
    start.elapsed()
}

fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + i / 251) as u8).collect()
}

fn open(config: &str) -> Cache {
    Cache::open(Config::parse(config).unwrap()).unwrap()
}

fn disk(path: &Path) -> Cache {
    open(&format!("[disk]\npath = {path:?}\nbudget = \"2 GiB\"\n"))
}

fn ram_load() {
    let cache = open("[ram]\nbudget = \"64 MiB\"\n");
    let (payload, tokens) = (bytes(MIB), [1, 2, 3]);
    cache.save(Save::new(&IDENTITY, &tokens, &payload)).unwrap();
    let hit = cache.lookup(&Query::new(&IDENTITY, &tokens)).unwrap().unwrap();
    let (mut ours, mut theirs) = (vec![0; MIB], vec![0; MIB]);
    compare(
        RAM_LOAD,
        0.8,
        401,
        || time(|| hit.load_into(black_box(&mut ours)).unwrap()),
        || time(|| black_box(&mut theirs).copy_from_slice(black_box(&payload))),
    );
    assert_eq!(ours, payload);
}

fn disk_load(path: &Path) {
    let cache = disk(path);
    let (payload, tokens) = (bytes(16 * MIB), [1, 2, 3]);
    cache.save(Save::new(&IDENTITY, &tokens, &payload)).unwrap();
    let hit = cache.lookup(&Query::new(&IDENTITY, &tokens)).unwrap().unwrap();
    let plain = path.join("plain");
    std::fs::write(&plain, &payload).unwrap();
    let (mut ours, mut theirs) = (vec![0; 16 * MIB], vec![0; 16 * MIB]);
    compare(
        DISK_LOAD,
        0.8,
        61,
        || time(|| hit.load_into(black_box(&mut ours)).unwrap()),
        || time(|| std::fs::File::open(&plain).unwrap().read_exact_at(black_box(&mut theirs), 0).unwrap()),
    );
    assert!(ours == payload && theirs == payload);
}

fn prefix_walk() {
    let cache = open("[ram]\nbudget = \"64 MiB\"\n");
    let tokens: Vec<u32> = (0..32_768).map(|i| i * 7).collect();
    // The shortest boundary of all: the walk looks at every one.
    cache.save(Save::new(&IDENTITY, &tokens[..2048], b"state")).unwrap();
    let raw: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    let query = Query::new(&IDENTITY, &tokens);
    compare(
        PREFIX_WALK,
        0.83,
        401,
        || time(|| assert_eq!(cache.lookup(black_box(&query)).unwrap().unwrap().tokens(), 2048)),
        || time(|| _ = black_box(Sha256::digest(black_box(&raw)))),
    );
}

fn save(path: &Path) {
    let cache = disk(path);
    let payload = bytes(16 * MIB);
    let (temporary, plain) = (path.join("plain.new"), path.join("plain"));
    let mut n = 0;
    compare(
        SAVE,
        0.9,
        25,
        || {
            n += 1;
            let tokens = [n];
            let took = time(|| assert_eq!(cache.save(Save::new(&IDENTITY, &tokens, &payload)).unwrap(), Saved::Stored));
            cache.evict(&IDENTITY.key(&tokens));
            took
        },
        || {
            let took = time(|| {
                let mut file = std::fs::File::create(&temporary).unwrap();
                file.write_all(&payload).unwrap();
                file.sync_data().unwrap();
                std::fs::rename(&temporary, &plain).unwrap();
                std::fs::File::open(path).unwrap().sync_all().unwrap();
            });
            std::fs::remove_file(&plain).unwrap();
            took
        },
    );
}

/// Two threads look up 1,024 tokens while saves to memory and to disk run; the time of one lookup, hash and all.
fn lookups_while_saves_run(path: &Path) {
    let cache = open(&format!("[disk]\npath = {path:?}\nbudget = \"256 MiB\"\n[ram]\nbudget = \"64 MiB\"\n"));
    let prompt = |n: u32| -> Vec<u32> { (0..1024).map(|i| n * 10_000 + i).collect() };
    for n in 0..1000 {
        cache.save(Save::new(&IDENTITY, &prompt(n), b"state").tier(TierKind::Ram)).unwrap();
    }
    let stop = AtomicBool::new(false);
    let payload = bytes(MIB);
    let mut quiet = lookup_times(&cache, &prompt, 20_000);
    let mut busy: Vec<f64> = std::thread::scope(|scope| {
        let saver = scope.spawn(|| {
            let mut saves = 0u32;
            while !stop.load(Ordering::Relaxed) {
                let tokens = prompt(100_000 + saves);
                cache.save(Save::new(&IDENTITY, &tokens, b"state").tier(TierKind::Ram)).unwrap();
                cache.save(Save::new(&IDENTITY, &tokens, &payload)).unwrap();
                saves += 1;
            }
            saves
        });
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(|| lookup_times(&cache, &prompt, 50_000))).collect();
        let times = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(saver.join().unwrap() > 0);
        times
    });
    for ([p50, p99], times) in LOOKUPS.into_iter().zip([&mut quiet, &mut busy]) {
        times.sort_by(f64::total_cmp);
        for (name, at) in [(p50, times.len() / 2), (p99, times.len() * 99 / 100)] {
            print(name, times[at], None, "us", None);
        }
    }
}

fn lookup_times(cache: &Cache, prompt: &impl Fn(u32) -> Vec<u32>, count: u32) -> Vec<f64> {
    let prompts: Vec<Vec<u32>> = (0..64).map(|n| prompt(n * 13)).collect();
    (0..count)
        .map(|i| {
            let query = Query::new(&IDENTITY, &prompts[i as usize % prompts.len()]);
            time(|| assert!(cache.lookup(black_box(&query)).unwrap().is_some())).as_secs_f64() * 1e6
        })
        .collect()
}

/// Opening a directory of 100,000 rows of 512 tokens, whose files have holes for payloads.
fn scan(path: &Path) {
    std::fs::create_dir_all(path).unwrap();
    for n in 0..100_000u32 {
        let tokens: Vec<u32> = (0..512).map(|i| n * 1000 + i).collect();
        let row = NewRow {
            identity: IDENTITY,
            tokens: &tokens,
            reason: SaveReason::Cold,
            detail: "",
            quant_bits: 4,
            context_size: 4096,
            created: 0,
            prompt: "",
            host: "",
            payload_bytes: 16 << 20,
            descriptor: None,
        };
        let file = std::fs::File::create(path.join(format!("{}.kvc", IDENTITY.key(&tokens)))).unwrap();
        let metadata = row.encode(0);
        file.write_all_at(&metadata, 0).unwrap();
        file.set_len(metadata.len() as u64 + (16 << 20)).unwrap();
    }
    let start = Instant::now();
    let cache = open(&format!("[disk]\npath = {path:?}\nbudget = \"1000 TiB\"\n"));
    let took = start.elapsed().as_secs_f64();
    assert_eq!(cache.stats().tiers[0].rows, 100_000);
    print(OPEN, took, None, "s", None);
}
