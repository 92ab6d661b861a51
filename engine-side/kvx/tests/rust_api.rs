//! What only the Rust API can be asked: buffers of known length, pools of unequal size, scales on
//! a gather.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use kvx::*;

const SHAPE: CacheShape = CacheShape { num_blocks: 3, block_size: 2, num_kv_heads: 1, head_dim: 4 };
/// Bytes of a token of F16, and of a pool.
const ROW: usize = 8;
const POOL: usize = 3 * 2 * ROW;

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("must be refused").kind()
}

#[test]
fn short_buffers_are_refused() {
    let new = |k: &[u8], v: &[u8]| KvCache::new(SHAPE, DType::F16, [Layout::Hnd; 2], k, v).map(drop);
    let (whole, short) = ([0; POOL], [0; POOL - 1]);
    assert!(new(&whole, &whole).is_ok());
    assert_eq!(kind(new(&short, &whole)), ErrorKind::InvalidArgument);
    assert_eq!(kind(new(&whole, &short)), ErrorKind::InvalidArgument);
    let (mut k, mut v) = (whole, short);
    let layouts = [Layout::Nhd; 2];
    let cache = KvCacheMut::new(SHAPE, DType::F16, layouts, &mut k, &mut v);
    assert_eq!(kind(cache), ErrorKind::InvalidArgument);
    // A custom layout reaches as far as its last element, and no further.
    let strides = [20, 8, 4, 1];
    let reach = 2 * (2 * 20 + 8 + 4);
    let custom = |len: usize| {
        let pool = vec![0; len];
        KvCache::new(SHAPE, DType::F16, [Layout::Custom { strides }; 2], &pool, &pool).map(drop)
    };
    assert!(custom(reach).is_ok());
    assert_eq!(kind(custom(reach - 1)), ErrorKind::InvalidArgument);
    // SAFETY: null is refused.
    let null = unsafe {
        let v = v.as_mut_ptr();
        KvCacheMut::from_raw(SHAPE, DType::F16, layouts, std::ptr::null_mut(), v)
    };
    assert_eq!(kind(null), ErrorKind::InvalidArgument);
}

#[test]
fn tokens_must_be_whole_and_as_many_as_slots() {
    let (mut k, mut v) = ([0; POOL], [0; POOL]);
    let mut cache = KvCacheMut::new(SHAPE, DType::F16, [Layout::Nhd; 2], &mut k, &mut v).unwrap();
    let mut write = |slots: &[i32], key: usize, value: usize| {
        let buffer = [1; 4 * ROW];
        let tokens = KvTokens { key: &buffer[..key], value: &buffer[..value], dtype: DType::F16 };
        let slots = Slots { slots: slots.into(), invalid_slot: -1 };
        Write { slots, scales: None, threads: 0 }.run(&mut cache, &tokens)
    };
    assert!(write(&[0, 1], 2 * ROW, 2 * ROW).is_ok());
    assert_eq!(kind(write(&[0, 1], 2 * ROW, 3 * ROW)), ErrorKind::InvalidArgument);
    assert_eq!(kind(write(&[0, 1], 2 * ROW - 1, 2 * ROW - 1)), ErrorKind::InvalidArgument);
    assert_eq!(kind(write(&[0], 2 * ROW, 2 * ROW)), ErrorKind::InvalidArgument);
    let error = write(&[0, 6], 2 * ROW, 2 * ROW).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert_eq!(error.to_string(), "token 1 goes to slot 6 of 6");
}

fn gather(table: BlockTable<'_>, lens: &[i32], scales: Option<KvScales<'_>>, dtype: DType) -> Result<Vec<u8>> {
    let pool: Vec<u8> = (0..POOL as u8).collect();
    let stored = if scales.is_some() { DType::F8E4M3 } else { DType::F16 };
    let cache = KvCache::new(SHAPE, stored, [Layout::Nhd; 2], &pool, &pool)?;
    let (mut key, mut value) = (vec![0xEE; lens.len() * 2 * ROW], vec![0xEE; lens.len() * 2 * ROW]);
    let mut out = KvTokensMut { key: &mut key, value: &mut value, dtype };
    Gather { table, seq_lens: lens.into(), max_seq_len: 2, scales, threads: 1 }.run(&cache, &mut out)?;
    assert_eq!(key, value);
    Ok(key)
}

#[test]
fn an_indptr_that_falls_is_refused() {
    let ragged = |indptr: &[i32]| {
        let table = BlockTable::Ragged { indices: [0i64; 5][..].into(), indptr: indptr.into() };
        gather(table, &[1, 0, 1], None, DType::F16)
    };
    assert!(ragged(&[0, 2, 4, 5]).is_ok());
    assert_eq!(kind(ragged(&[0, 4, 2, 5])), ErrorKind::InvalidArgument);
}

/// A block is in a pool if all of it is, and the pools need not be of one size, nor of the cache's.
#[test]
fn offset_pools_are_bounded_by_their_own_length() {
    let primary = [7; 5 * 16];
    let secondary = [9; 2 * 16 - 1];
    let offsets = |entry: i32| {
        let entries = [entry, entry];
        let pools = OffsetPools::new(16, &primary, Some(&secondary));
        let table = BlockTable::KvOffsets { indices: entries[..].into(), beam_width: 1, max_blocks_per_seq: 1, pools };
        gather(table, &[2], None, DType::F16)
    };
    assert_eq!(offsets(4).unwrap(), [7; 16]);
    assert_eq!(offsets(i32::MIN).unwrap(), [9; 16]);
    assert_eq!(kind(offsets(5)), ErrorKind::OutOfRange);
    assert_eq!(kind(offsets(i32::MIN | 1)), ErrorKind::OutOfRange);
    // Of exactly one block, and of one byte less.
    for (len, fits) in [(16, true), (15, false)] {
        for entry in [0, 1] {
            let entries = [entry, entry];
            let pools = OffsetPools::new(16, &primary[..len], None);
            let table =
                BlockTable::KvOffsets { indices: entries[..].into(), beam_width: 1, max_blocks_per_seq: 1, pools };
            match gather(table, &[2], None, DType::F16) {
                Ok(found) => assert!(fits && entry == 0 && found == [7; 16], "{len} bytes, entry {entry}"),
                found => assert!(!fits || entry == 1, "{len} bytes, entry {entry}: {}", kind(found) as u32),
            }
        }
    }
    let wide = BlockTable::KvOffsets {
        indices: [0i64, 0][..].into(),
        beam_width: 1,
        max_blocks_per_seq: 1,
        pools: OffsetPools::new(16, &primary, None),
    };
    assert_eq!(kind(gather(wide, &[2], None, DType::F16)), ErrorKind::InvalidArgument);
}

#[test]
fn scales_per_block_do_not_go_with_kv_offsets() {
    let pool = [0x38; 3 * 8]; // 1.0 in E4M3
    let offsets = |scale| {
        let table = BlockTable::KvOffsets {
            indices: [1, 1][..].into(),
            beam_width: 1,
            max_blocks_per_seq: 1,
            pools: OffsetPools::new(8, &pool, None),
        };
        gather(table, &[2], Some(KvScales { k: scale, v: scale }), DType::F16)
    };
    assert_eq!(kind(offsets(Scale::per_block(&[1.0; 3]))), ErrorKind::Unsupported);
    let two = [0x00, 0x40].repeat(8); // 2.0 in F16
    assert_eq!(offsets(Scale::per_head(&[2.0])).unwrap(), two);
}

#[test]
fn an_output_of_another_size_is_refused() {
    let cache_bytes = [0; POOL];
    let cache = KvCache::new(SHAPE, DType::F16, [Layout::Nhd; 2], &cache_bytes, &cache_bytes).unwrap();
    let (mut key, mut value) = ([0; 3 * ROW], [0; 3 * ROW]);
    let gather = Gather {
        table: BlockTable::Packed { indices: [0][..].into(), max_blocks_per_seq: 1 },
        seq_lens: [2][..].into(),
        max_seq_len: 2,
        scales: None,
        threads: 1,
    };
    let mut out = KvTokensMut { key: &mut key, value: &mut value, dtype: DType::F16 };
    assert_eq!(kind(gather.run(&cache, &mut out)), ErrorKind::InvalidArgument);
}

/// Tokens are lent as they lie only where a gather of them would answer the same bytes.
#[test]
fn only_dense_tokens_of_the_cache_are_lent() {
    let shape = CacheShape { num_blocks: 2, block_size: 4, num_kv_heads: 2, head_dim: 2 };
    let pool: Vec<u8> = (0..200).collect();
    let tokens = |layout, block, tokens| {
        let cache = KvCache::new(shape, DType::F16, [layout; 2], &pool, &pool).unwrap();
        cache.dense_tokens(block, tokens).map(|[k, v]| {
            assert_eq!(k, v);
            k.to_vec()
        })
    };
    let custom = |strides| Layout::Custom { strides };
    assert_eq!(tokens(Layout::Nhd, 1, 4).unwrap(), pool[32..64]);
    assert_eq!(tokens(custom([20, 4, 2, 1]), 1, 3).unwrap(), pool[40..64]);
    for layout in [custom([64, 8, 2, 1]), custom([32, 4, 16, 1]), custom([16, 4, 1, 2]), Layout::Hnd] {
        assert_eq!(tokens(layout, 0, 2), None, "{layout:?}");
    }
    assert_eq!(tokens(Layout::Nhd, 0, 5), None);
    assert_eq!(tokens(Layout::Nhd, 2, 1), None);
    assert_eq!(tokens(Layout::Nhd, 1, 0).unwrap(), []);
}

#[test]
fn prefix_sums_never_fall_not_even_by_one() {
    let pool = [0; POOL];
    let cache = KvCache::new(SHAPE, DType::F16, [Layout::Nhd; 2], &pool, &pool).unwrap();
    let gather = |indptr: [i32; 4]| {
        let table = BlockTable::Ragged { indices: [0, 0][..].into(), indptr: indptr[..].into() };
        let out = &mut KvTokensMut { key: &mut [], value: &mut [], dtype: DType::F16 };
        Gather { table, seq_lens: [0, 0, 0][..].into(), max_seq_len: 0, scales: None, threads: 1 }.run(&cache, out)
    };
    assert!(gather([0, 1, 1, 2]).is_ok());
    assert_eq!(kind(gather([0, 2, 1, 2])), ErrorKind::InvalidArgument);
}
