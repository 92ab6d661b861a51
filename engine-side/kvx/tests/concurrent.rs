//! Large calls split over threads and stored past the caches, and calls side by side: the same
//! bytes as one small call after another.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod common;

use common::noise;
use kvx::*;

const SHAPE: CacheShape = CacheShape { num_blocks: 1024, block_size: 16, num_kv_heads: 4, head_dim: 64 };
const ROW: usize = 4 * 64 * 2;
const TOKENS: usize = 1024 * 16;
const LAYOUTS: [Layout; 5] = [
    Layout::Nhd,
    Layout::Hnd,
    Layout::HndPacked { pack: 8 },
    Layout::HndPacked { pack: 2 },
    Layout::HndPacked { pack: 32 },
];

/// Slots of all blocks out of order, with repeats: 7 of 8 tokens have a slot of their own.
fn slots() -> Vec<i64> {
    (0..TOKENS as i64)
        .map(|i| {
            let block = i / 16 * 389 % 1024;
            if i % 8 == 7 { (block + 1) % 1024 * 16 } else { block * 16 + i % 16 }
        })
        .collect()
}

/// In pieces too small for threads or streaming.
fn write_in_pieces(layout: Layout, slots: &[i64], key: &[u8], value: &[u8]) -> [Vec<u8>; 2] {
    let mut pools = [(); 2].map(|()| vec![0xEE; TOKENS * ROW]);
    let [k, v] = &mut pools;
    let mut cache = KvCacheMut::new(SHAPE, DType::F16, [layout; 2], k, v).unwrap();
    let pieces = slots.chunks(100).zip(key.chunks(100 * ROW)).zip(value.chunks(100 * ROW));
    for ((slots, key), value) in pieces {
        let slots = Slots { slots: slots.into(), invalid_slot: -1 };
        let tokens = KvTokens { key, value, dtype: DType::F16 };
        Write { slots, scales: None, threads: 1 }.run(&mut cache, &tokens).unwrap();
    }
    pools
}

/// `len` bytes of poison that start `shift` bytes past a cache line.
struct Aligned(Vec<u8>, usize, usize);

impl Aligned {
    fn new(len: usize, shift: usize) -> Self {
        let memory = vec![0xEE; len + 64 + shift];
        let start = memory.as_ptr().align_offset(64) + shift;
        Aligned(memory, start, len)
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.0[self.1..self.1 + self.2]
    }
}

/// Aligned buffers, which are stored to past the caches, and others; one thread and three.
const WAYS: [(usize, usize); 4] = [(0, 1), (0, 3), (1, 1), (2, 3)];

#[test]
fn large_writes_equal_small_ones() {
    let slots = slots();
    let [key, value] = [1, 2].map(|seed| noise(TOKENS * ROW, seed));
    for layout in LAYOUTS {
        let want = write_in_pieces(layout, &slots, &key, &value);
        for (shift, threads) in WAYS {
            let mut pools = [(); 2].map(|()| Aligned::new(TOKENS * ROW, shift));
            let [k, v] = pools.each_mut().map(Aligned::bytes);
            let mut cache = KvCacheMut::new(SHAPE, DType::F16, [layout; 2], k, v).unwrap();
            let slots = Slots { slots: slots[..].into(), invalid_slot: -1 };
            let tokens = KvTokens { key: &key, value: &value, dtype: DType::F16 };
            let write = Write { slots, scales: None, threads };
            write.run(&mut cache, &tokens).unwrap();
            let [k, v] = &mut pools;
            let same = [k.bytes() == want[0], v.bytes() == want[1]];
            assert_eq!(same, [true; 2], "{layout:?}, {threads} threads, shift {shift}");
        }
    }
}

/// Large calls that quantise have a table of the codes; small ones compute each.
#[test]
fn large_quantising_writes_equal_small_ones() {
    let slots = slots();
    // All numbers of both types, NaN and infinity among them.
    let [key, value] = [1, 2].map(|seed| noise(TOKENS * ROW, seed));
    let scales = Some(KvScales { k: Scale::per_tensor(0.37), v: Scale::per_tensor(41.0) });
    for (layout, wide, narrow) in [
        (Layout::Nhd, DType::F16, DType::F8E4M3),
        (Layout::Hnd, DType::BF16, DType::F8E5M2),
        (Layout::Hnd, DType::BF16, DType::F8E4M3),
        (Layout::HndPacked { pack: 16 }, DType::F16, DType::F8E5M2),
    ] {
        let run = |out: [&mut [u8]; 2], piece: usize, threads| {
            let [k, v] = out;
            let mut cache = KvCacheMut::new(SHAPE, narrow, [layout; 2], k, v).unwrap();
            let tokens = key.chunks(piece * ROW).zip(value.chunks(piece * ROW));
            for (slots, (key, value)) in slots.chunks(piece).zip(tokens) {
                let slots = Slots { slots: slots.into(), invalid_slot: -1 };
                let tokens = KvTokens { key, value, dtype: wide };
                Write { slots, scales, threads }.run(&mut cache, &tokens).unwrap();
            }
        };
        let mut want = [(); 2].map(|()| vec![0xEE; TOKENS * ROW / 2]);
        run(want.each_mut().map(|pool| &mut pool[..]), 100, 1);
        for (shift, threads) in WAYS {
            let mut pools = [(); 2].map(|()| Aligned::new(TOKENS * ROW / 2, shift));
            run(pools.each_mut().map(Aligned::bytes), TOKENS, threads);
            let [k, v] = &mut pools;
            let same = [k.bytes() == want[0], v.bytes() == want[1]];
            assert_eq!(same, [true; 2], "{layout:?}, {wide:?} to {narrow:?}, {threads} threads, shift {shift}");
        }
    }
}

/// Two sequences, the second cut short, gathered at once and 96 tokens at a time.
#[test]
fn large_gathers_equal_small_ones() {
    const BLOCKS: usize = 700;
    const MAX: usize = BLOCKS * 16;
    let lens = [MAX, 4_795];
    let pools = [5, 6].map(|seed| noise(TOKENS * ROW, seed));
    let table: Vec<i32> = (0..2 * BLOCKS as i32).map(|i| i * 389 % 1024).collect();
    let run = |layout, table: &[i32], lens: &[i32], max_seq_len, threads, out: [&mut [u8]; 2]| {
        let cache = KvCache::new(SHAPE, DType::F16, [layout; 2], &pools[0], &pools[1]).unwrap();
        let [key, value] = out;
        let max_blocks_per_seq = (table.len() / lens.len()) as u32;
        let gather = Gather {
            table: BlockTable::Packed { indices: table.into(), max_blocks_per_seq },
            seq_lens: lens.into(),
            max_seq_len,
            scales: None,
            threads,
        };
        let dtype = DType::F16;
        gather.run(&cache, &mut KvTokensMut { key, value, dtype }).unwrap();
    };
    for layout in LAYOUTS {
        let mut want = [(); 2].map(|()| vec![0xEE; 2 * MAX * ROW]);
        for (seq, len) in lens.into_iter().enumerate() {
            for t in (0..len).step_by(96) {
                let now = 96.min(len - t);
                let row = &table[seq * BLOCKS + t / 16..][..now.div_ceil(16)];
                let piece = want.each_mut().map(|w| &mut w[(seq * MAX + t) * ROW..][..now * ROW]);
                run(layout, row, &[now as i32], now as u32, 1, piece);
            }
        }
        for (shift, threads) in WAYS {
            let mut out = [(); 2].map(|()| Aligned::new(2 * MAX * ROW, shift));
            let lens = lens.map(|l| l as i32);
            run(layout, &table, &lens, MAX as u32, threads, out.each_mut().map(Aligned::bytes));
            let [key, value] = &mut out;
            let same = [key.bytes() == want[0], value.bytes() == want[1]];
            assert_eq!(same, [true; 2], "{layout:?}, {threads} threads, shift {shift}");
        }
    }
}

/// KVX section 7.2: calls may run at once on one cache as long as their slots differ.
#[test]
fn threads_write_their_own_slots_of_one_cache() {
    const THREADS: usize = 4;
    let layout = Layout::HndPacked { pack: 8 };
    let sources = [3, 4].map(|seed| noise(TOKENS * ROW, seed));
    let all: Vec<i64> = (0..TOKENS as i64).rev().collect();
    let want = write_in_pieces(layout, &all, &sources[0], &sources[1]);
    let mut pools = [(); 2].map(|()| vec![0u8; TOKENS * ROW]);
    let [k, v] = pools.each_mut().map(|p| p.as_mut_ptr() as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (all, sources) = (&all, &sources);
            scope.spawn(move || {
                // SAFETY: the pools outlive the scope, and each thread has its own tokens' slots.
                let mut cache =
                    unsafe { KvCacheMut::from_raw(SHAPE, DType::F16, [layout; 2], k as *mut u8, v as *mut u8) }
                        .unwrap();
                // Every fourth token: neighbours in a block belong to different threads.
                for i in (thread..TOKENS).step_by(THREADS) {
                    let [key, value] = [0, 1].map(|s| &sources[s][i * ROW..][..ROW]);
                    let slots = Slots { slots: all[i..=i].into(), invalid_slot: -1 };
                    let tokens = KvTokens { key, value, dtype: DType::F16 };
                    Write { slots, scales: None, threads: 1 }.run(&mut cache, &tokens).unwrap();
                }
            });
        }
    });
    assert!(pools == want);
}
