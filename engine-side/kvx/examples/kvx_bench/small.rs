//! Small writes through the C functions, as a decode step makes them, and scattered ones. Times, and allocations counted.
//!
//! `kvx/small/write/1-token/LAYOUT`: one token for each of 32 layers, whose pools together are larger than the caches, as
//! in a decode step; beside memcpy of the token to where NHD has it. `.../warm`: again and again into a block of one layer.
//! `kvx/small/write/256-scattered/LAYOUT`: 256 tokens into slots all over a pool, beside the same into NHD.

use std::alloc::{GlobalAlloc, System};
use std::ffi::c_void;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use kvx::ffi::*;

use super::{Buffer, DIM, HEADS, Row, median, shuffled, sides, timed};

/// Counts the allocations of the process, which has one thread.
pub struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is the system allocator's, which keeps the rules.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

const BLOCK: u32 = 16;
const LAYERS: usize = 32;
/// Bytes of K, or of V, of a token of F16.
const ROW: usize = (HEADS * DIM) as usize * 2;

/// Of 1,024 tokens in each of 32 layers: 128 MiB. One block of one layer: 64 KiB.
const COLD: (usize, u32) = (LAYERS, 64);
const WARM: (usize, u32) = (1, 1);

const SCATTERED: usize = 256;

const F16: u32 = KVX_DTYPE_F16;
const LAYOUTS: [(&str, u32); 4] = [
    ("nhd", KVX_LAYOUT_BLOCK_NHD),
    ("hnd", KVX_LAYOUT_BLOCK_HND),
    ("hnd_packed8", KVX_LAYOUT_BLOCK_HND_PACKED),
    ("custom", KVX_LAYOUT_BLOCK_CUSTOM),
];

pub fn rows(filter: &str) {
    for (name, layout) in LAYOUTS {
        for (suffix, size) in [("", COLD), ("/warm", WARM)] {
            let name = format!("kvx/small/write/1-token/{name}{suffix}");
            if name.contains(filter) {
                one_token(&name, layout, size);
            }
        }
    }
    for (name, dtype) in [("hnd_packed8", F16), ("hnd_packed8-e4m3", KVX_DTYPE_F8_E4M3)] {
        let name = format!("kvx/small/write/256-scattered/{name}");
        if name.contains(filter) {
            scattered(&name, dtype);
        }
    }
}

/// The layers of an engine, all of one layout.
struct Engine {
    pools: Vec<[Buffer; 2]>,
    caches: Vec<kvx_cache_desc_t>,
    tokens: [Buffer; 2],
    write: kvx_write_desc_t,
}

static SCALE: f32 = 0.37;

impl Engine {
    fn new(layout: u32, dtype: u32, (layers, blocks): (usize, u32), tokens: usize) -> Self {
        let [b, t, h, d] = [blocks, BLOCK, HEADS, DIM].map(i64::from);
        let shape = match layout {
            KVX_LAYOUT_BLOCK_HND => vec![b, h, t, d],
            KVX_LAYOUT_BLOCK_HND_PACKED => vec![b, h, d / 8, t, 8],
            _ => vec![b, t, h, d],
        };
        let bytes = (blocks * BLOCK) as usize * if dtype == F16 { ROW } else { ROW / 2 };
        let mut pools: Vec<_> = (0..layers).map(|_| [(); 2].map(|()| Buffer::new(bytes, 1))).collect();
        let mut outside = [(); 2].map(|()| Buffer::new(tokens * ROW, 0x3c));
        let caches = pools.iter_mut().map(|both| {
            let [k, v] = both.each_mut().map(|pool| tensor(dtype, layout, &shape, pool));
            kvx_cache_desc_t {
                size: size_of::<kvx_cache_desc_t>() as u32,
                num_blocks: blocks,
                block_size: BLOCK,
                num_kv_heads: HEADS,
                head_dim: DIM,
                k,
                v,
                pool: zeroed(),
            }
        });
        let caches = caches.collect();
        let [key, value] = outside.each_mut().map(|side| tensor(F16, layout, &[tokens as i64, h, d], side));
        let io = kvx_kv_io_desc_t {
            size: size_of::<kvx_kv_io_desc_t>() as u32,
            key,
            value,
            num_tokens: tokens as u32,
            num_kv_heads: HEADS,
            head_dim: DIM,
        };
        let slots = kvx_slot_mapping_t {
            size: size_of::<kvx_slot_mapping_t>() as u32,
            dtype: KVX_DTYPE_S64,
            token_count: tokens as u32,
            invalid_slot: -1,
            slots: std::ptr::null(),
        };
        let scale = (&raw const SCALE).cast::<c_void>();
        let write = kvx_write_desc_t {
            size: size_of::<kvx_write_desc_t>() as u32,
            io,
            slots,
            k_scale: scale,
            v_scale: scale,
            k_scale_desc: zeroed(),
            v_scale_desc: zeroed(),
        };
        Engine { pools, caches, tokens: outside, write }
    }

    /// The tokens into these slots of every layer, a call for each.
    fn write(&mut self, slots: &[i64]) {
        self.write.slots.slots = slots.as_ptr().cast();
        for cache in &self.caches {
            // SAFETY: the descriptors name buffers of this engine, and as many slots as tokens.
            let status = unsafe { kvx_write_kv(black_box(cache), black_box(&self.write), std::ptr::null_mut()) };
            assert_eq!(status, KVX_STATUS_OK);
        }
    }

    /// The same bytes to where NHD has that slot.
    fn copy(&mut self, slot: usize) {
        for both in &mut self.pools {
            for (pool, token) in both.iter_mut().zip(&mut self.tokens) {
                pool.bytes()[slot * ROW..][..ROW].copy_from_slice(black_box(&token.bytes()[..ROW]));
                black_box(pool.bytes().as_mut_ptr());
            }
        }
    }
}

fn one_token(name: &str, layout: u32, size: (usize, u32)) {
    let mut engine = Engine::new(layout, F16, size, 1);
    let slots: Vec<i64> = (0..i64::from(size.1 * BLOCK)).collect();
    let calls = engine.caches.len();
    // A round of a warm call is so many of them, for the clock.
    let repeat = if calls == 1 { slots.len() } else { 1 };
    engine.write(&slots[..1]);
    let mut times = [const { Vec::new() }; 2];
    let mut allocations = 0;
    // Another block each time, so that neither side finds what the other has just written. 17 tokens further is one.
    let mut at = 0;
    for side in sides(1001) {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let time = timed(|| {
            for _ in 0..repeat {
                match side {
                    0 => engine.copy(at),
                    _ => engine.write(&slots[at..=at]),
                }
                at = (at + 17) % slots.len();
            }
        });
        if side == 1 {
            allocations += ALLOCATIONS.load(Ordering::Relaxed) - before;
        }
        times[side].push(time);
    }
    let [peer, ours] = times.map(|times| median(times).as_secs_f64() * 1e9 / (calls * repeat) as f64);
    let memcpy = 2.0 * ROW as f64 / peer;
    Row { name, ours, peer, ratio: peer / ours, unit: "ns", goal: 0.25, memcpy, allocations: Some(allocations) }
        .print();
}

fn scattered(name: &str, dtype: u32) {
    let size = (1, 256);
    let mut engines =
        [KVX_LAYOUT_BLOCK_NHD, KVX_LAYOUT_BLOCK_HND_PACKED].map(|layout| Engine::new(layout, dtype, size, SCATTERED));
    let slots: Vec<i64> = shuffled(size.1 * BLOCK).into_iter().map(i64::from).collect();
    let mut times = [const { Vec::new() }; 2];
    let mut calls = slots.chunks_exact(SCATTERED).cycle();
    let mut allocations = 0;
    for engine in &mut engines {
        engine.write(&slots[..SCATTERED]);
    }
    for side in sides(401) {
        let Some(slots) = calls.next() else { return };
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        let time = timed(|| engines[side].write(slots));
        allocations += ALLOCATIONS.load(Ordering::Relaxed) - before;
        times[side].push(time);
    }
    let [peer, ours] = times.map(|times| median(times).as_secs_f64() * 1e6);
    let copy = timed_copies(&mut engines[0]);
    Row { name, ours, peer, ratio: peer / ours, unit: "us", goal: 0.4, memcpy: copy, allocations: Some(allocations) }
        .print();
}

/// memcpy's rate for the tokens of such a call, in GB/s.
fn timed_copies(engine: &mut Engine) -> f64 {
    let times = (0..401).map(|_| {
        timed(|| {
            for (pool, tokens) in engine.pools[0].iter_mut().zip(&mut engine.tokens) {
                let tokens = tokens.bytes();
                let len = tokens.len().min(pool.bytes().len());
                pool.bytes()[..len].copy_from_slice(black_box(&tokens[..len]));
                black_box(pool.bytes().as_mut_ptr());
            }
        })
    });
    2.0 * (SCATTERED * ROW) as f64 / median(times.collect()).as_secs_f64() / 1e9
}

fn tensor(dtype: u32, layout: u32, dims: &[i64], data: &mut Buffer) -> kvx_tensor_desc_t {
    let (mut shape, mut stride, mut step) = ([0; KVX_MAX_TENSOR_DIMS], [0; KVX_MAX_TENSOR_DIMS], 1);
    for i in (0..dims.len()).rev() {
        (shape[i], stride[i]) = (dims[i], step);
        step *= dims[i];
    }
    kvx_tensor_desc_t {
        size: size_of::<kvx_tensor_desc_t>() as u32,
        dtype,
        layout,
        memory: KVX_MEMORY_HOST,
        ndim: dims.len() as u32,
        shape,
        stride,
        data: data.bytes().as_mut_ptr().cast(),
    }
}

fn zeroed<T>() -> T {
    // SAFETY: only used for descriptors, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}
