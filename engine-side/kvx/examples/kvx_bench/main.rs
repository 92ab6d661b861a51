//! Measures the kernels against memcpy, and against numpy doing the same by index.
//!
//! `cargo run --release -p kvx --example kvx_bench [FILTER]` prints a JSON object on a line for each
//! row whose name contains FILTER. `ours`, `peer`: GB/s, or the time of a small call; `ratio`: ours over peer, as speed;
//! `memcpy`: its rate in GB/s, which says what machine the ratio is of; `allocations`: of the calls that were timed.
//!
//! Method: a round is one call of the peer and one of the kernel, which takes turns in being first;
//! medians of all rounds are compared, on one thread. memcpy moves K and V between the very buffers that the kernel
//! uses. Where the sides differ in size, as in quantised caches, it moves half of the bytes that
//! the kernel touches (reads and writes), so that both touch the same. numpy runs in a process of
//! its own, which waits while the kernel runs: `KVX_BENCH_PYTHON` names a Python that has numpy;
//! without it those rows are left out, and a line on standard error says so.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a benchmark that fails ends")]

mod small;

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use kvx::{
    BlockTable, CacheShape, DType, Gather, KvCache, KvCacheMut, KvScales, KvTokens, KvTokensMut, Layout, Scale, Slots,
    Write,
};

#[global_allocator]
static ALLOCATOR: small::Counting = small::Counting;

const HEADS: u32 = 8;
const DIM: u32 = 128;

/// GB/s from which on a machine's memcpy is a peer of its own.
const FAST_MEMCPY: f64 = 20.0;

struct Case {
    name: &'static str,
    layout: Layout,
    cache: DType,
    goal: f64,
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let case = |name, layout, cache, goal| Case { name, layout, cache, goal };
    let cases = [
        case("nhd", Layout::Nhd, DType::F16, 0.9),
        case("hnd", Layout::Hnd, DType::F16, 0.9),
        case("hnd_packed8", Layout::HndPacked { pack: 8 }, DType::F16, 0.5),
        case("nhd-e4m3", Layout::Nhd, DType::F8E4M3, 0.4),
        case("nhd-e5m2", Layout::Nhd, DType::F8E5M2, 0.4),
        case("hnd-e4m3", Layout::Hnd, DType::F8E4M3, 0.4),
        case("hnd-e5m2", Layout::Hnd, DType::F8E5M2, 0.4),
        case("hnd_packed8-e4m3", Layout::HndPacked { pack: 8 }, DType::F8E4M3, 0.4),
        case("hnd_packed8-e5m2", Layout::HndPacked { pack: 8 }, DType::F8E5M2, 0.4),
    ];
    for case in cases {
        for mib in [16, 256] {
            for block_size in [16, 64] {
                let names = ["write", "gather"].map(|op| format!("kvx/{}/{op}/{mib}MiB/block{block_size}", case.name));
                if names.iter().any(|name| name.contains(&filter)) {
                    measure(&case, block_size, mib << 20, names.each_ref().map(|name| (&name[..], &filter[..])));
                }
            }
        }
    }
    small::rows(&filter);
    for (layout, order, op) in [
        (Layout::Nhd, "nhd", "write"),
        (Layout::Hnd, "hnd", "write"),
        (Layout::Nhd, "nhd", "gather"),
        (Layout::Hnd, "hnd", "gather"),
        (Layout::Nhd, "nhd", "take"),
    ] {
        let name = format!("kvx/numpy/{order}/{op}/16MiB/block16");
        if name.contains(&filter) {
            against_numpy(&name, layout, order, op);
        }
    }
}

/// K and V pools, tokens, and where they belong: blocks in random order.
struct Work {
    shape: CacheShape,
    layout: Layout,
    cache: DType,
    slots: Vec<i64>,
    ids: Vec<i32>,
    tokens: [Buffer; 2],
    pools: [Buffer; 2],
    scales: Option<KvScales<'static>>,
}

impl Work {
    /// `bytes` of F16 tokens, K and V together.
    fn new(layout: Layout, cache: DType, block_size: u32, bytes: usize) -> Self {
        let token = (HEADS * DIM) as usize * 2;
        let tokens = bytes / 2 / token;
        let num_blocks = tokens as u32 / block_size;
        let order = shuffled(num_blocks);
        let slots = order.iter().flat_map(|b| (0..block_size).map(move |t| i64::from(b * block_size + t)));
        let scale = Scale::per_tensor(0.37);
        Work {
            shape: CacheShape { num_blocks, block_size, num_kv_heads: HEADS, head_dim: DIM },
            layout,
            cache,
            slots: slots.collect(),
            ids: order.iter().map(|b| *b as i32).collect(),
            // 0x3c3c is about 1.06 in F16: an ordinary number, as the cost of a conversion is to be.
            tokens: [(); 2].map(|()| Buffer::new(tokens * token, 0x3c)),
            pools: [(); 2].map(|()| Buffer::new(tokens * token / 2 * cache.size(), 1)),
            scales: (cache != DType::F16).then_some(KvScales { k: scale, v: scale }),
        }
    }

    fn write(&mut self) {
        let [key, value] = self.tokens.each_mut().map(Buffer::bytes);
        let [k, v] = self.pools.each_mut().map(Buffer::bytes);
        let mut cache = KvCacheMut::new(self.shape, self.cache, [self.layout; 2], k, v).unwrap();
        let slots = Slots { slots: self.slots[..].into(), invalid_slot: -1 };
        let tokens = KvTokens { key, value, dtype: DType::F16 };
        Write { slots, scales: self.scales, threads: 1 }.run(&mut cache, &tokens).unwrap();
    }

    fn gather(&mut self) {
        let [key, value] = self.tokens.each_mut().map(Buffer::bytes);
        let [k, v] = self.pools.each_mut().map(Buffer::bytes);
        let tokens = self.slots.len() as u32;
        let cache = KvCache::new(self.shape, self.cache, [self.layout; 2], k, v).unwrap();
        Gather {
            table: BlockTable::Packed { indices: self.ids[..].into(), max_blocks_per_seq: self.shape.num_blocks },
            seq_lens: [tokens as i32][..].into(),
            max_seq_len: tokens,
            scales: self.scales,
            threads: 1,
        }
        .run(&cache, &mut KvTokensMut { key, value, dtype: DType::F16 })
        .unwrap();
    }
}

fn measure(case: &Case, block_size: u32, bytes: usize, names: [(&str, &str); 2]) {
    let mut work = Work::new(case.layout, case.cache, block_size, bytes);
    // Per side: half of what is touched.
    let plain = (work.tokens[0].len + work.pools[0].len) / 2;
    let rounds = if bytes > 64 << 20 { 15 } else { 61 };
    for (op, (name, filter)) in names.into_iter().enumerate() {
        if !name.contains(filter) {
            continue;
        }
        let mut times = [const { Vec::new() }; 2];
        for side in sides(rounds) {
            times[side].push(timed(|| match (side, op) {
                (0, _) => {
                    for (token, pool) in work.tokens.iter_mut().zip(&mut work.pools) {
                        let (token, pool) = (token.bytes(), pool.bytes());
                        if op == 0 { copy_cycling(token, pool, plain) } else { copy_cycling(pool, token, plain) }
                    }
                }
                (_, 0) => work.write(),
                _ => work.gather(),
            }));
        }
        let [peer, ours] = times.map(|times| (plain * 2) as f64 / median(times).as_secs_f64() / 1e9);
        // Where memcpy is fast, heads apart cost a gather more beside it.
        let fast = case.name == "hnd" && op == 1 && peer > FAST_MEMCPY;
        let goal = if fast { 0.8 } else { case.goal };
        Row { name, ours, peer, ratio: ours / peer, unit: "GB/s", goal, memcpy: peer, allocations: None }.print();
    }
}

/// The same with numpy, by the same slots, into memory that is there already.
fn against_numpy(name: &str, layout: Layout, order: &str, op: &str) {
    let Some(python) = std::env::var_os("KVX_BENCH_PYTHON") else {
        eprintln!("{name} is left out: KVX_BENCH_PYTHON does not name a Python that has numpy");
        return;
    };
    let mut work = Work::new(layout, DType::F16, 16, 16 << 20);
    let mut numpy = match Numpy::start(&python, &work, order, op) {
        Ok(numpy) => numpy,
        Err(error) => return eprintln!("{name} is left out: {}: {error}", python.display()),
    };
    let bytes = work.tokens[0].len * 2;
    let mut times = [const { Vec::new() }; 2];
    for side in sides(15) {
        times[side].push(match side {
            0 => match numpy.round() {
                Some(peer) => peer,
                None => return eprintln!("{name} is left out: numpy has ended"),
            },
            _ => timed(|| {
                for _ in 0..NUMPY_CALLS {
                    if op == "write" { work.write() } else { work.gather() }
                }
            }),
        });
    }
    let copies = (0..15).map(|_| {
        timed(|| {
            for (token, pool) in work.tokens.iter_mut().zip(&mut work.pools) {
                copy_cycling(token.bytes(), pool.bytes(), bytes / 2);
            }
        })
    });
    let memcpy = bytes as f64 / median(copies.collect()).as_secs_f64() / 1e9;
    let bytes = bytes * NUMPY_CALLS as usize;
    let [peer, ours] = times.map(|times| bytes as f64 / median(times).as_secs_f64() / 1e9);
    Row { name, ours, peer, ratio: ours / peer, unit: "GB/s", goal: 2.0, memcpy, allocations: None }.print();
}

/// Calls of a round beside numpy, one after another: a process that is switched to finds nothing of
/// its own in the caches, which is not what is to be measured.
const NUMPY_CALLS: u32 = 5;

/// A Python process that does a round when it is told to, and answers how long that took.
struct Numpy {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Numpy {
    fn start(python: &std::ffi::OsStr, work: &Work, order: &str, op: &str) -> std::io::Result<Self> {
        let mut process = Command::new(python)
            .args(["-c", include_str!("numpy_peer.py"), order, op])
            .args([work.shape.num_blocks, work.shape.block_size, HEADS, DIM, NUMPY_CALLS].map(|n| n.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let missing = || std::io::Error::other("no pipe");
        let mut to = process.stdin.take().ok_or_else(missing)?;
        let from = BufReader::new(process.stdout.take().ok_or_else(missing)?);
        let mut blocks = String::new();
        for id in &work.ids {
            let _ = write!(blocks, "{id} ");
        }
        writeln!(to, "{blocks}")?;
        Ok(Numpy { process, to, from })
    }

    fn round(&mut self) -> Option<Duration> {
        writeln!(self.to, "go").ok()?;
        let mut answer = String::new();
        self.from.read_line(&mut answer).ok()?;
        answer.trim().parse().ok().map(Duration::from_nanos)
    }
}

impl Drop for Numpy {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whose turn it is, in so many rounds: 0 the peer's, 1 ours.
fn sides(rounds: usize) -> impl Iterator<Item = usize> {
    (0..rounds).flat_map(|round| [round % 2, (round + 1) % 2])
}

struct Row<'a> {
    name: &'a str,
    ours: f64,
    peer: f64,
    /// As speed.
    ratio: f64,
    unit: &'a str,
    goal: f64,
    /// GB/s.
    memcpy: f64,
    allocations: Option<u64>,
}

impl Row<'_> {
    fn print(&self) {
        let Row { name, ours, peer, ratio, unit, goal, memcpy, allocations } = self;
        let better = if *unit == "GB/s" { "higher" } else { "lower" };
        let allocations = allocations.map_or_else(String::new, |count| format!(",\"allocations\":{count}"));
        println!(
            "{{\"name\":\"{name}\",\"ours\":{ours:.3},\"peer\":{peer:.3},\"ratio\":{ratio:.3},\"unit\":\"{unit}\",\
             \"better\":\"{better}\",\"goal\":{goal},\"memcpy\":{memcpy:.1}{allocations}}}"
        );
    }
}

/// Copies `len` bytes from the start of `src` to the start of `dst`, in as few pieces as the
/// shorter of them allows.
fn copy_cycling(src: &[u8], dst: &mut [u8], len: usize) {
    let piece = src.len().min(dst.len());
    let mut left = len;
    while left > 0 {
        let n = left.min(piece);
        dst[..n].copy_from_slice(&src[..n]);
        black_box(&mut *dst);
        left -= n;
    }
}

/// Memory that starts at a page, as an engine's pools and staging buffers do.
struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize, fill: u8) -> Self {
        const PAGE: usize = 4096;
        let memory = vec![fill; len + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Buffer { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// 0..n in an order that is random but the same every time.
fn shuffled(n: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for i in (1..n as usize).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        order.swap(i, (state % (i as u64 + 1)) as usize);
    }
    order
}
