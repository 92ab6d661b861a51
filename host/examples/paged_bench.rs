//! Measures saves and restores of paged KV caches against the same work apart: a gather into a buffer of a chunk, its
//! hash, a put of the buffer; a get of each chunk and a write of it.
//!
//! `cargo run --release --locked --example paged_bench [FILTER]`, after `cargo xtask dist` and `guests`, prints a JSON object on a line
//! for each row whose name contains FILTER. `ours`, `peer`: GB/s of the sequence; `ratio`: ours over peer. A round is one
//! call of the peer and one of ours, which takes turns in being first, on one thread, of values that were not saved before;
//! medians are compared.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::time::{Duration, Instant};

use kv_store_wasm::Store;
use kv_store_wasm::paged::{Restore, Save};
use kvx::{BlockTable, CacheShape, DType, Gather, KvCache, KvCacheMut, KvTokens, KvTokensMut, Layout, Slots, Write};
use xxhash_rust::xxh3::xxh3_64;

const LAYERS: usize = 8;
const CHUNK_TOKENS: usize = 256;
const ROW: usize = 8 * 128 * 2;
const SIDE: usize = CHUNK_TOKENS * ROW;
const SHAPE: CacheShape = CacheShape { num_blocks: 96, block_size: 16, num_kv_heads: 8, head_dim: 128 };
const TOKENS: usize = 1024;
const BYTES: usize = TOKENS * ROW * 2 * LAYERS;
const ROUNDS: u64 = 9;

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let target = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(1).unwrap().join("target");
    // In memory where that can be had: a disk would be all that is measured.
    let memory = std::path::Path::new("/dev/shm");
    let scratch = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let config = scratch.path().join("config.toml");
    let probe = target.join("test-components/probe.wasm");
    // The probe keeps chunks in memory, as `memory` does,
    // but is not written through, as backends in the network are not.
    let text = format!(
        "[backend.local-fs]\noptions.durability = 'rename'\n[backend.buffered]\ncomponent = '{}'\n",
        probe.display()
    );
    std::fs::write(&config, text).unwrap();
    // SAFETY: the only thread.
    unsafe {
        std::env::set_var("KV_STORE_WASM_CONFIG", &config);
        std::env::set_var("KV_STORE_WASM_PATH", target.join("dist/components"));
    }
    let files = format!("local-fs://{}", scratch.path().join("store").display());
    for (kind, uri) in [("buffered", "buffered://paged"), ("memory", "memory://paged"), ("local-fs", &files)] {
        for (order, layout) in [("nhd", Layout::Nhd), ("hnd", Layout::Hnd)] {
            let names = ["save", "restore"].map(|op| format!("kvx/fused/{kind}/{order}/{op}/{}MiB", BYTES >> 20));
            let whole = format!("kvx/fused/{kind}/{order}/restore-whole/{}MiB", BYTES >> 20);
            let wanted = |name: &String| name.contains(&filter);
            if !names.iter().any(wanted) && !wanted(&whole) {
                continue;
            }
            let store = Store::open(uri)
                .unwrap_or_else(|error| panic!("{uri}: {error}; `cargo xtask dist` and `guests` build components"));
            if names.iter().any(wanted) {
                measure(&store, layout, &names);
            }
            if kind == "local-fs" && wanted(&whole) {
                measure_whole(&store, layout, &whole);
            }
        }
    }
}

/// The memory of an engine.
struct Engine {
    layout: Layout,
    pools: Vec<[Vec<u8>; 2]>,
    blocks: Vec<i32>,
    slots: Vec<i64>,
    /// Of a chunk, where the peer gathers it.
    staging: Vec<u8>,
}

impl Engine {
    fn new(layout: Layout) -> Self {
        let pool = |seed: usize| -> Vec<u8> {
            (0..SHAPE.slots() as usize * ROW).map(|i| ((i >> 3) * (seed + 3)) as u8).collect()
        };
        // 96 blocks in an order that 37 gives, which has no factor of theirs.
        let blocks: Vec<i32> = (0..TOKENS as i32 / 16).map(|i| i * 37 % 96).collect();
        let slots = (0..TOKENS as i64).map(|token| i64::from(blocks[token as usize / 16]) * 16 + token % 16).collect();
        let pools = (0..LAYERS).map(|layer| [0, 1].map(|side| pool(layer * 2 + side))).collect();
        Engine { layout, pools, blocks, slots, staging: vec![0; SIDE * 2 * LAYERS] }
    }

    fn caches(&self) -> Vec<KvCache<'_>> {
        let pools = self.pools.iter();
        pools.map(|[k, v]| KvCache::new(SHAPE, DType::F16, [self.layout; 2], k, v).unwrap()).collect()
    }

    fn caches_mut(&mut self) -> Vec<KvCacheMut<'_>> {
        let layout = self.layout;
        let pools = self.pools.iter_mut();
        pools.map(|[k, v]| KvCacheMut::new(SHAPE, DType::F16, [layout; 2], k, v).unwrap()).collect()
    }

    /// Values that no chunk has had before.
    fn change(&mut self, stamp: u64) {
        for block in &self.blocks {
            let at = *block as usize * 16 * ROW;
            self.pools[0][0][at..at + 8].copy_from_slice(&(stamp + *block as u64).to_ne_bytes());
        }
    }

    fn save(&self, store: &Store) {
        let layers = self.caches();
        let mut save = Save::new("fused", &layers, self.blocks[..].into(), TOKENS as u32);
        save.chunk_tokens = CHUNK_TOKENS as u32;
        let _ = save.run(store).unwrap();
    }

    fn save_apart(&mut self, store: &Store) {
        let mut manifest = Vec::new();
        let mut staging = std::mem::take(&mut self.staging);
        for blocks in self.blocks.chunks(CHUNK_TOKENS / 16) {
            for (cache, sides) in self.caches().iter().zip(staging.chunks_exact_mut(2 * SIDE)) {
                let (key, value) = sides.split_at_mut(SIDE);
                Gather {
                    table: BlockTable::Packed { indices: blocks.into(), max_blocks_per_seq: blocks.len() as u32 },
                    seq_lens: [CHUNK_TOKENS as i32][..].into(),
                    max_seq_len: CHUNK_TOKENS as u32,
                    scales: None,
                    threads: 1,
                }
                .run(cache, &mut KvTokensMut { key, value, dtype: DType::F16 })
                .unwrap();
            }
            let key = xxh3_64(&staging).to_le_bytes();
            store.put_chunk(&key, &staging).unwrap();
            manifest.extend(key);
        }
        store.put_manifest("apart", &manifest).unwrap();
        self.staging = staging;
    }

    fn restore(&mut self, store: &Store, max_bytes: u64) {
        let slots = std::mem::take(&mut self.slots);
        let mut restore = Restore::new("fused", Slots { slots: slots[..].into(), invalid_slot: -1 });
        restore.max_bytes = max_bytes;
        restore.run(store, &mut self.caches_mut()).unwrap();
        self.slots = slots;
    }

    fn restore_apart(&mut self, store: &Store) {
        let slots = std::mem::take(&mut self.slots);
        let manifest = store.get_manifest("apart").unwrap().unwrap();
        store.prefetch_chunks(&manifest, 8).unwrap();
        for (key, slots) in manifest.chunks_exact(8).zip(slots.chunks(CHUNK_TOKENS)) {
            let chunk = store.get_chunk(key).unwrap().unwrap();
            for (cache, sides) in self.caches_mut().iter_mut().zip(chunk.chunks_exact(2 * SIDE)) {
                let slots = Slots { slots: slots.into(), invalid_slot: -1 };
                let tokens = KvTokens { key: &sides[..SIDE], value: &sides[SIDE..], dtype: DType::F16 };
                Write { slots, scales: None, threads: 1 }.run(cache, &tokens).unwrap();
            }
        }
        self.slots = slots;
    }
}

fn measure(store: &Store, layout: Layout, names: &[String; 2]) {
    let mut engine = Engine::new(layout);
    let mut times = [const { Vec::new() }; 4];
    let unique = Instant::now();
    for side in (0..ROUNDS).flat_map(|round| [round % 2, (round + 1) % 2]) {
        // Stamps of all rounds and rows differ.
        engine.change(side << 63 | std::process::id() as u64 ^ (unique.elapsed().as_nanos() as u64) << 8);
        if side == 0 {
            times[0].push(timed(|| engine.save_apart(store)));
            times[1].push(timed(|| engine.restore_apart(store)));
        } else {
            times[2].push(timed(|| engine.save(store)));
            times[3].push(timed(|| engine.restore(store, 0)));
        }
    }
    let rates = times.map(|mut times: Vec<Duration>| {
        times.sort();
        BYTES as f64 / times[times.len() / 2].as_secs_f64() / 1e9
    });
    for (op, name) in names.iter().enumerate() {
        let (ours, peer) = (rates[op + 2], rates[op]);
        println!(
            "{{\"name\":\"{name}\",\"ours\":{ours:.3},\"peer\":{peer:.3},\"ratio\":{:.3},\"unit\":\"GB/s\",\
             \"better\":\"higher\",\"goal\":1}}",
            ours / peer
        );
    }
}

/// A restore that holds all chunks before it writes a page, as it does by default, against one that holds a chunk at a time.
fn measure_whole(store: &Store, layout: Layout, name: &str) {
    let mut engine = Engine::new(layout);
    engine.save(store);
    let mut times = [const { Vec::new() }; 2];
    for side in (0..3 * ROUNDS).flat_map(|round| [round % 2, (round + 1) % 2]) {
        let max_bytes = [0, 1][side as usize];
        times[side as usize].push(timed(|| engine.restore(store, max_bytes)));
    }
    let [ours, peer] = times.map(|mut times: Vec<Duration>| {
        times.sort();
        BYTES as f64 / times[times.len() / 2].as_secs_f64() / 1e9
    });
    println!(
        "{{\"name\":\"{name}\",\"ours\":{ours:.3},\"peer\":{peer:.3},\"ratio\":{:.3},\"unit\":\"GB/s\",\
         \"better\":\"higher\",\"goal\":1}}",
        ours / peer
    );
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}
