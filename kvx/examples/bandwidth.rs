//! Measures the kernels against memcpy.
//!
//! Method: for each case, one round is one memcpy and one kernel call, taking turns; the medians
//! of all rounds are compared. The memcpy moves K and V between the very buffers that the kernel
//! uses. For quantised caches, where the sides differ in size, it moves half of the bytes that
//! the kernel touches (reads and writes), so that both touch the same.
//!
//! `cargo run --release -p kvx --example bandwidth [filter]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use kvx::{
    BlockTable, CacheShape, DType, Gather, KvCache, KvCacheMut, KvScales, KvTokens, KvTokensMut, Layout, Scale, Slots,
    Write,
};

const HEADS: u32 = 8;
const DIM: u32 = 128;

struct Case {
    name: &'static str,
    layout: Layout,
    cache: DType,
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let cases = [
        ("NHD f16", Layout::Nhd, DType::F16),
        ("HND f16", Layout::Hnd, DType::F16),
        ("HND_PACKED/8 f16", Layout::HndPacked { pack: 8 }, DType::F16),
        ("HND_PACKED/1 f16", Layout::HndPacked { pack: 1 }, DType::F16),
        ("NHD e4m3 of f16", Layout::Nhd, DType::F8E4M3),
        ("NHD e5m2 of f16", Layout::Nhd, DType::F8E5M2),
        ("HND e4m3 of f16", Layout::Hnd, DType::F8E4M3),
        ("HND_PACKED/16 e4m3 of f16", Layout::HndPacked { pack: 16 }, DType::F8E4M3),
    ];
    println!("{:<28} {:>5} {:>7}  {:>14}  {:>14}", "case", "block", "MiB", "write GB/s", "gather GB/s");
    for (name, layout, cache) in cases {
        let case = Case { name, layout, cache };
        for mib in [16, 256] {
            for block_size in [16, 64] {
                let label = format!("{name} {block_size} {mib}");
                if label.contains(&filter) {
                    measure(&case, block_size, mib << 20);
                }
            }
        }
    }
}

/// `bytes` of F16 tokens, K and V together, through a cache whose blocks are in random order.
fn measure(case: &Case, block_size: u32, bytes: usize) {
    let token = (HEADS * DIM) as usize * 2;
    let tokens = bytes / 2 / token;
    let num_blocks = tokens as u32 / block_size;
    let shape = CacheShape { num_blocks, block_size, num_kv_heads: HEADS, head_dim: DIM };
    let order = shuffled(num_blocks);
    let slots: Vec<i64> =
        (order.iter()).flat_map(|b| (0..block_size).map(move |t| i64::from(b * block_size + t))).collect();
    let ids: Vec<i32> = order.iter().map(|b| *b as i32).collect();

    let cache_bytes = tokens * (HEADS * DIM) as usize * case.cache.size();
    // 0x3c3c is about 1.06 in F16: an ordinary number, as the cost of a conversion is to be.
    let mut buffers = [(); 2].map(|()| Buffer::new(tokens * token, 0x3c));
    let [key, value] = buffers.each_mut().map(Buffer::bytes);
    let mut pools = [(); 2].map(|()| Buffer::new(cache_bytes, 1));
    let [k, v] = pools.each_mut().map(Buffer::bytes);
    let scales = (case.cache != DType::F16).then(|| KvScales { k: Scale::per_tensor(0.5), v: Scale::per_tensor(0.5) });
    // Per side: half of what is touched.
    let plain = (tokens * token + cache_bytes) / 2;
    let rounds = if bytes > 64 << 20 { 15 } else { 61 };

    let write = Write { slots: Slots { slots: slots[..].into(), invalid_slot: -1 }, scales, threads: 1 };
    let layouts = [case.layout; 2];
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        times[0].push(timed(|| {
            // The destination of a quantising write is too short for half of what is touched.
            copy_cycling(key, &mut *k, plain);
            copy_cycling(value, &mut *v, plain);
        }));
        times[1].push(timed(|| {
            let mut cache = KvCacheMut::new(shape, case.cache, layouts, &mut *k, &mut *v).unwrap();
            let tokens = KvTokens { key: &*key, value: &*value, dtype: DType::F16 };
            write.run(&mut cache, &tokens).unwrap();
        }));
    }
    let lens = [tokens as i32];
    let gather = Gather {
        table: BlockTable::Packed { indices: ids[..].into(), max_blocks_per_seq: num_blocks },
        seq_lens: lens[..].into(),
        max_seq_len: tokens as u32,
        scales,
        threads: 1,
    };
    for _ in 0..rounds {
        times[2].push(timed(|| {
            copy_cycling(k, &mut *key, plain);
            copy_cycling(v, &mut *value, plain);
        }));
        times[3].push(timed(|| {
            let cache = KvCache::new(shape, case.cache, layouts, &*k, &*v).unwrap();
            let mut out = KvTokensMut { key: &mut *key, value: &mut *value, dtype: DType::F16 };
            gather.run(&cache, &mut out).unwrap();
        }));
    }
    let [copy_w, write, copy_g, gather] = times.map(median);
    let rate = |t: Duration| (plain * 2) as f64 / t.as_secs_f64() / 1e9;
    println!(
        "{:<28} {:>5} {:>7}  {:>6.2} ({:>4.2}x)  {:>6.2} ({:>4.2}x)   memcpy {:.2} {:.2}",
        case.name,
        block_size,
        bytes >> 20,
        rate(write),
        copy_w.as_secs_f64() / write.as_secs_f64(),
        rate(gather),
        copy_g.as_secs_f64() / gather.as_secs_f64(),
        rate(copy_w),
        rate(copy_g),
    );
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
