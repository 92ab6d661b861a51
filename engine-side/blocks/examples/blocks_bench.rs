//! The block cache's goals, measured: ours and its peer in turn, in one process. One JSON object a line:
//! `{"name","ours","peer","ratio","unit","better","goal"}`. `ours` and `peer` are medians in `unit`; `ratio` is the median of the
//! rounds' ratios, above 1 where ours does better; `goal` is null where there is none. Where the peer is a bound (`-of-2us`,
//! `-of-150`), it is that bound.
//!
//! `cargo run --release -p kv-blocks --example blocks_bench [FILTER]`: FILTER is a part of rows' names, all by default. Where
//! `KV_BLOCKS_AIBRIX` names a Python that has AIBrix, and `KV_BLOCKS_AIBRIX_MOCK` the program `bindings/python/engines/aibrix_mock.py`, the rows
//! `blocks/noop-*` have AIBrix's mock connector as their peer.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::expect_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::time::Instant;

use kv_blocks::{Cache, Config, Noop, Spec};
use xxhash_rust::xxh3::xxh3_128;

const MIB: usize = 1 << 20;
const TOKENS: usize = 16;

/// Counts what is allocated.
struct Counting;

static HEAP: AtomicUsize = AtomicUsize::new(0);

// SAFETY: as `System`, which does it all.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HEAP.fetch_add(layout.size(), Relaxed);
        // SAFETY: as this function's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HEAP.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as this function's.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A row's name, and what measures it.
type Row = (&'static str, fn(&str));

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let rows: &[Row] = &[
        ("blocks/get-16x1MiB", get),
        ("blocks/acquire-16x1MiB-of-2us", |name| acquire(name, MIB)),
        ("blocks/acquire-16x64B-of-2us", |name| acquire(name, 64)),
        ("blocks/keys-32768-by-16", keys),
        ("blocks/noop-put-1MiB", |name| noop(name, true)),
        ("blocks/noop-get-1MiB", |name| noop(name, false)),
        ("blocks/bytes-per-entry-1M-of-150", entries),
        ("blocks/2-threads-1MiB", two_threads_memcpy),
        ("blocks/2-threads-64B", |name| two_threads(name, false)),
        ("blocks/2-threads-acquire", |name| two_threads(name, true)),
    ];
    for (name, run) in rows.iter().filter(|(name, _)| name.contains(&filter)) {
        run(name);
    }
}

fn open(blocks: usize, bytes: usize, more: &str) -> Cache {
    let mut config = Config::parse(more).unwrap();
    config.l1.capacity_gb = (blocks * bytes) as f64 / f64::from(1 << 30);
    let far: Option<Arc<dyn kv_blocks::Far>> = (config.l2.backend == "noop").then(|| Arc::new(Noop) as _);
    Cache::open(config, Spec::new("model", TOKENS, bytes), far).unwrap()
}

fn prompt(seed: usize, blocks: usize) -> Vec<i32> {
    (0..blocks * TOKENS).map(|n| (seed * 1_000_003 + n) as i32).collect()
}

fn put(cache: &Cache, tokens: &[i32], block: &[u8]) {
    let blocks = vec![block; tokens.len() / TOKENS];
    assert_eq!(cache.put(&[], tokens, &blocks).unwrap(), tokens.len());
}

/// 16 blocks out of the near level into the caller's memory, beside memcpy of as much.
fn get(name: &str) {
    let cache = open(64, MIB, "");
    let tokens = prompt(1, 16);
    put(&cache, &tokens, &vec![7; MIB]);
    let from: Vec<Vec<u8>> = vec![vec![9; MIB]; 16];
    let (mut into, mut plain) = (vec![vec![0; MIB]; 16], vec![vec![0; MIB]; 16]);
    let ours = || {
        let mut rooms: Vec<&mut [u8]> = into.iter_mut().map(Vec::as_mut_slice).collect();
        seconds(|| assert_eq!(cache.get(&[], &tokens, &mut rooms).unwrap(), tokens.len()))
    };
    let peer = || {
        seconds(|| plain.iter_mut().zip(&from).for_each(|(to, from)| black_box(to).copy_from_slice(black_box(from))))
    };
    let rounds = rounds(ours, peer);
    report(name, &rounds, "MiB/s", |seconds| 16.0 / seconds, Some(0.9));
}

/// 16 blocks by view.
fn acquire(name: &str, bytes: usize) {
    const TIMES: usize = 1000;
    let cache = open(256, bytes, "");
    let tokens = prompt(1, 16);
    put(&cache, &tokens, &vec![7; bytes]);
    let ours = || {
        let many = || (0..TIMES).for_each(|_| assert_eq!(black_box(cache.acquire(&[], &tokens).unwrap()).len(), 16));
        seconds(many) / TIMES as f64
    };
    report(name, &rounds(ours, || 2e-6), "us", |seconds| seconds * 1e6, Some(1.0));
}

/// Rolling keys of a long prompt, beside as many calls of the hash over a block and its parent's key.
fn keys(name: &str) {
    const COUNT: usize = 32_768;
    let cache = open(4, 64, "");
    let tokens = prompt(1, COUNT / TOKENS);
    let mut bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    // The peer keeps nothing; this keeps the keys, in memory that is used again.
    let mut keys = Vec::new();
    let ours = || {
        keys.clear();
        seconds(|| cache.keys().append(&[], black_box(&tokens), black_box(&mut keys)))
    };
    let peer = || {
        seconds(|| {
            let mut parent = [0_u8; 16];
            let mut input = [0_u8; 16 + TOKENS * 4];
            for block in black_box(&mut bytes).chunks_exact(TOKENS * 4) {
                input[..16].copy_from_slice(&parent);
                input[16..].copy_from_slice(block);
                parent = xxh3_128(&input).to_be_bytes();
            }
            black_box(parent);
        })
    };
    report(name, &rounds(ours, peer), "us", |seconds| seconds * 1e6, Some(0.8));
}

/// The framework's own work: each block goes to a far level that keeps nothing as well.
fn noop(name: &str, puts: bool) {
    let cache = open(256, MIB, "[l2]\nbackend = 'noop'\ningestion_type = 'ALL'");
    let tokens = prompt(1, 16);
    let block = vec![7; MIB];
    let mut into = vec![vec![0; MIB]; 16];
    put(&cache, &tokens, &block);
    let mut next = 1;
    let ours = || {
        next += 1;
        // New prompts all the time, as long as they fit; each is written.
        let fresh = prompt(2 + next % 12, 16);
        if puts {
            let blocks = vec![&block[..]; 16];
            cache.delete(&[], &fresh).unwrap();
            return seconds(|| assert_eq!(cache.put(&[], &fresh, &blocks).unwrap(), fresh.len()));
        }
        let mut rooms: Vec<&mut [u8]> = into.iter_mut().map(Vec::as_mut_slice).collect();
        seconds(|| assert_eq!(cache.get(&[], &tokens, &mut rooms).unwrap(), tokens.len()))
    };
    if let Some(mut aibrix) = Aibrix::start() {
        let work = if puts { "put" } else { "get" };
        return report(name, &rounds(ours, || aibrix.round(work)), "MiB/s", |seconds| 16.0 / seconds, Some(3.0));
    }
    eprintln!("{name}: without AIBrix's mock connector beside it: KV_BLOCKS_AIBRIX names no Python that has AIBrix");
    let ours = one_sided(ours);
    println!(
        "{}",
        serde_json::json!({ "name": name, "ours": digits(16.0 / median(&ours)), "peer": null, "ratio": null, "unit": "MiB/s", "better": "higher", "goal": null })
    );
}

/// AIBrix's manager over its mock connector, in a process of its own.
struct Aibrix(Child);

impl Aibrix {
    fn start() -> Option<Self> {
        let python = std::env::var_os("KV_BLOCKS_AIBRIX")?;
        let program = std::env::var_os("KV_BLOCKS_AIBRIX_MOCK").expect("KV_BLOCKS_AIBRIX_MOCK is the program");
        let mut command = Command::new(python);
        command.arg(program).stdin(Stdio::piped()).stdout(Stdio::piped());
        Some(Aibrix(command.spawn().expect("KV_BLOCKS_AIBRIX is a program")))
    }

    /// The seconds of one round.
    fn round(&mut self, work: &str) -> f64 {
        writeln!(self.0.stdin.as_mut().unwrap(), "{work}").expect("AIBrix's program is there");
        let mut answer = String::new();
        // One line at a time: nothing is read ahead that would be lost.
        BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
        answer.trim().parse().expect("AIBrix's program answers seconds; what went wrong is on standard error")
    }
}

impl Drop for Aibrix {
    fn drop(&mut self) {
        // It ends when its input does.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// What an entry takes beyond its block: heap, and what a slot is longer than the block.
fn entries(name: &str) {
    const COUNT: usize = 1_000_000;
    const PROMPT: usize = 1000;
    let before = HEAP.load(Relaxed);
    let cache = open(COUNT + COUNT / 50, 64, "");
    let block = [7; 64];
    // More than fit, so that the ghost queue is as long as it becomes.
    for seed in 0..COUNT / PROMPT * 2 {
        put(&cache, &prompt(seed * 7, PROMPT), &block);
    }
    let used = cache.metrics().used;
    assert!(used.near_blocks as usize >= COUNT, "{used:?}");
    let heap = HEAP.load(Relaxed) - before;
    let ours = heap as f64 / used.near_blocks as f64;
    println!(
        "{}",
        serde_json::json!({ "name": name, "ours": digits(ours), "peer": 150, "ratio": digits(150.0 / ours), "unit": "B", "better": "lower", "goal": 1.0 })
    );
}

/// Seconds of so many threads that each run `work` with their number.
fn threads(count: usize, work: impl Fn(usize) + Sync) -> f64 {
    let start = Barrier::new(count + 1);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..count)
            .map(|thread| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    start.wait();
                    work(thread);
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        running.into_iter().for_each(|thread| thread.join().unwrap());
        begun.elapsed().as_secs_f64()
    })
}

/// Each thread gets and puts blocks of 1 MiB, half and half; and as much memcpy.
fn two_threads_memcpy(name: &str) {
    const TURNS: usize = 24;
    let cache = open(128, MIB, "");
    let block = vec![7; MIB];
    (0..8).for_each(|seed| put(&cache, &prompt(seed, 2), &block));
    let ours = |count: usize| {
        threads(count, |thread| {
            let mut into = vec![0_u8; 2 * MIB];
            for turn in 0..TURNS {
                let tokens = prompt(thread * 4 + turn % 4, 2);
                if turn % 2 == 0 {
                    put(&cache, &tokens, &block);
                } else {
                    let (one, other) = into.split_at_mut(MIB);
                    assert_eq!(cache.get(&[], &tokens, &mut [one, other]).unwrap(), tokens.len());
                }
            }
        }) / count as f64
    };
    let from = vec![9_u8; 2 * MIB];
    let peer = |count: usize| {
        threads(count, |_| {
            let mut into = vec![0_u8; 2 * MIB];
            (0..TURNS).for_each(|_| black_box(&mut into).copy_from_slice(black_box(&from)));
        }) / count as f64
    };
    let rounds = rounds(|| ours(1) / ours(2), || peer(1) / peer(2));
    // Gains, not times: more is better.
    let gains: Vec<f64> = rounds.iter().map(|(ours, peer)| ours / peer).collect();
    let [ours, peer] =
        [0, 1].map(|side| median(&rounds.iter().map(|round| [round.0, round.1][side]).collect::<Vec<_>>()));
    println!(
        "{}",
        serde_json::json!({ "name": name, "ours": digits(ours), "peer": digits(peer), "ratio": digits(median(&gains)), "unit": "x", "better": "higher", "goal": 0.9 })
    );
}

/// Blocks of 64 bytes, got and put half and half, or acquired: two threads beside one.
fn two_threads(name: &str, acquires: bool) {
    const TURNS: usize = 4000;
    let cache = open(16_384, 64, "");
    (0..512).for_each(|seed| put(&cache, &prompt(seed, 8), &[7; 64]));
    let prompts: Vec<Vec<i32>> = (0..512).map(|seed| prompt(seed, 8)).collect();
    let run = |count: usize| {
        threads(count, |thread| {
            let mut into = [[0_u8; 64]; 8];
            for turn in 0..TURNS {
                let tokens = &prompts[(thread * 257 + turn * 31) % 512];
                if acquires {
                    assert_eq!(black_box(cache.acquire(&[], tokens).unwrap()).len(), 8);
                } else if turn % 2 == 0 {
                    put(&cache, tokens, &[7; 64]);
                } else {
                    let mut rooms: Vec<&mut [u8]> = into.iter_mut().map(<[u8; 64]>::as_mut_slice).collect();
                    assert_eq!(cache.get(&[], tokens, &mut rooms).unwrap(), tokens.len());
                }
            }
        }) / (count * TURNS) as f64
    };
    report(name, &rounds(|| run(2), || run(1)), "us", |seconds| seconds * 1e6, Some(1.5));
}

fn seconds(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

fn one_sided(mut ours: impl FnMut() -> f64) -> Vec<f64> {
    rounds(&mut ours, || 1.0).into_iter().map(|(ours, _)| ours).collect()
}

/// Both sides in turn, the order changing.
fn rounds(mut ours: impl FnMut() -> f64, mut peer: impl FnMut() -> f64) -> Vec<(f64, f64)> {
    let begun = Instant::now();
    // What is slow the first time only is not what is measured.
    ours();
    peer();
    let mut rounds = Vec::new();
    while rounds.len() < 15 || (begun.elapsed().as_secs_f64() < 2.0 && rounds.len() < 500) {
        if rounds.len() % 2 == 0 {
            let ours = ours();
            rounds.push((ours, peer()));
        } else {
            let peer = peer();
            rounds.push((ours(), peer));
        }
    }
    rounds
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Four digits.
fn digits(value: f64) -> f64 {
    let scale = 10_f64.powi(3 - value.abs().log10().floor() as i32);
    (value * scale).round() / scale
}

/// A row of times.
fn report(name: &str, rounds: &[(f64, f64)], unit: &str, convert: impl Fn(f64) -> f64, goal: Option<f64>) {
    let ratio = median(&rounds.iter().map(|(ours, peer)| peer / ours).collect::<Vec<_>>());
    let ours = convert(median(&rounds.iter().map(|round| round.0).collect::<Vec<_>>()));
    let peer = convert(median(&rounds.iter().map(|round| round.1).collect::<Vec<_>>()));
    let better = if unit == "MiB/s" { "higher" } else { "lower" };
    println!(
        "{}",
        serde_json::json!({ "name": name, "ours": digits(ours), "peer": digits(peer), "ratio": digits(ratio), "unit": unit, "better": better, "goal": goal })
    );
}
