//! Descriptors with any fields: the functions answer, and do not crash or write outside.
//!
//! A descriptor that is consistent in itself but claims more memory than there is can not be told
//! from a true one; so pointers lead to real buffers, and fields that only make a claim larger
//! (strides of CUSTOM, bytes_per_block, strides of scales) stay within them. Everything else is
//! any number. `kvx_validate_cache_desc` touches no buffer and gets pointers to nowhere, too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod common;

use common::*;
use kvx::ffi::*;
use proptest::prelude::*;
use std::ffi::c_void;

/// Numbers that are likely to matter, and any.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..6u32, 1 => prop::sample::select(vec![8, 15, 16, 24, 32, 64, 112, 255, 1 << 16, 1 << 31, u32::MAX]), 1 => any::<u32>()]
}

fn long() -> impl Strategy<Value = i64> {
    prop_oneof![4 => -2..10i64, 1 => prop::sample::select(vec![64, 128, i64::MIN, i64::MAX, 1 << 32, u32::MAX as i64, i64::MAX / 2]), 1 => any::<i64>()]
}

/// Overwrites some 32-bit fields of a struct, by index.
fn edit<T>(desc: &mut T, fields: &[usize], edits: &[(prop::sample::Index, u32)]) {
    for (at, value) in edits {
        let at = *at.get(fields);
        assert!(at + 4 <= size_of::<T>());
        // SAFETY: inside the struct; every 32-bit value is valid for its integers.
        unsafe { (&raw mut *desc).cast::<u8>().add(at).cast::<u32>().write(*value) };
    }
}

fn edits() -> impl Strategy<Value = Vec<(prop::sample::Index, u32)>> {
    prop::collection::vec((any::<prop::sample::Index>(), number()), 0..3)
}

const DIMS: Dims = Dims { blocks: 4, tokens: 4, heads: 2, dim: 8 };
/// Longer than anything that passes validation can reach with DIMS edited to small numbers.
const BUFFER: usize = 1 << 13;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn any_cache_descriptor_is_answered(
        dims in [number(), number(), number(), number()],
        tensor_fields in [[number(), number(), number(), number(), number()], [number(), number(), number(), number(), number()]],
        shapes in [[long(), long(), long(), long(), long()], [long(), long(), long(), long(), long()]],
        strides in [[long(), long(), long(), long(), long()], [long(), long(), long(), long(), long()]],
        data in [any::<usize>(), any::<usize>()],
        sane in any::<bool>(),
    ) {
        let side = |i: usize| {
            let f: [u32; 5] = tensor_fields[i];
            kvx_tensor_desc_t {
                size: if sane { 112 } else { f[0] }, dtype: f[1], layout: if sane { 15 } else { f[2] }, memory: f[3],
                ndim: if sane { 4 } else { f[4] },
                shape: if sane { [dims[0].into(), dims[1].into(), dims[2].into(), dims[3].into(), 0] } else { shapes[i] },
                stride: strides[i], data: data[i] as *mut c_void,
            }
        };
        let cache = kvx_cache_desc_t {
            size: 280, num_blocks: dims[0], block_size: dims[1], num_kv_heads: dims[2], head_dim: dims[3],
            k: side(0), v: side(1), pool: zeroed(),
        };
        // SAFETY: nothing but the descriptor is read.
        let status = unsafe { kvx_validate_cache_desc(&cache) };
        prop_assert!(status <= KVX_STATUS_UNSUPPORTED, "{status}");
    }

    #[test]
    fn any_write_and_gather_are_answered(
        layout in prop::sample::select(vec![1u32, 2, 3, 15]),
        (cache_edits, io_edits, write_edits, table_edits) in (edits(), edits(), edits(), edits()),
        (format, wide) in (1..4u32, any::<bool>()),
        index_bytes in prop::collection::vec(prop_oneof![3 => 0..4u8, 1 => any::<u8>()], 64),
        scale_values in prop::collection::vec(prop_oneof![any::<f32>(), Just(0.5)], 16),
        io_dtype in 1..6u32,
        (shape_edit, shape_value) in (any::<Option<prop::sample::Index>>(), long()),
    ) {
        let strides = dense(&[4, 4, 2, 8]);
        let p = pool(KVX_DTYPE_F16, layout, &DIMS, 4, strides[..4].try_into().unwrap());
        let mut pools = [(); 2].map(|()| Guarded::new(BUFFER, 0));
        let mut outs = [(); 2].map(|()| Guarded::new(BUFFER, 0));
        // Indices that repeat, so that whatever count is claimed is there.
        let repeated: Vec<u8> = index_bytes.iter().cycle().take(BUFFER).copied().collect();
        let mut entries = Guarded::from(&repeated, 0);
        let mut cache = cache(&DIMS, p, p);
        [cache.k.data, cache.v.data] = pools.each_mut().map(Guarded::ptr);
        cache.pool = kvx_pool_desc_t { size: 32, memory: 1, bytes_per_block: 128, primary: cache.k.data, secondary: cache.v.data };
        // All 32-bit fields of the cache, of K and of V.
        edit(&mut cache, &[0, 4, 8, 12, 16, 24, 28, 32, 36, 40, 136, 140, 144, 148, 152, 248, 252], &cache_edits);
        if let Some(i) = shape_edit {
            cache.k.shape[i.index(5)] = shape_value;
        }
        let [key, value] = outs.each_mut().map(Guarded::ptr);

        let mut write = write_desc(io(io_dtype, &[6], &DIMS, key, value), wide, entries.ptr());
        edit(&mut write.io, &[0, 8, 12, 16, 20, 24, 120, 124, 128, 132, 136, 232, 236, 240], &io_edits);
        write.k_scale = scale_values.as_ptr().cast();
        write.v_scale = scale_values.as_ptr().cast();
        edit(&mut write, &[0, 256, 260, 264, 272, 276, 304, 308, 312, 316], &write_edits);
        // SAFETY: all buffers are real and larger than any shape that passes.
        let status = unsafe { kvx_write_kv(&cache, &write, std::ptr::null_mut()) };
        prop_assert!(status <= KVX_STATUS_OUT_OF_RANGE, "write {status}");
        for buffer in &mut outs {
            buffer.assert_is(&[POISON; BUFFER], "a write left its sources alone");
        }

        let (ragged, offsets) = (format == 2, format == 3);
        let mut indptr = Guarded::from(&indices(&[0, 3, 5], true), 0);
        let mut gather = kvx_gather_desc_t {
            size: 352,
            io: io(io_dtype, &[if offsets { 4 } else { 2 }, 3], &DIMS, key, value),
            block_table: kvx_block_table_t {
                size: 64, format, index_dtype: index_dtype(wide && !offsets), indptr_dtype: KVX_DTYPE_S64,
                seq_count: 2, beam_width: if offsets { 2 } else { 1 }, max_blocks_per_seq: 1,
                indices: entries.ptr(), indptr: if ragged { indptr.ptr() } else { std::ptr::null_mut() },
                indices_count: if ragged { 5 } else if offsets { 8 } else { 2 },
                indptr_count: if ragged { 3 } else { 0 }, flags: offsets.into(),
            },
            seq_lens: kvx_seq_lens_t { size: 24, dtype: index_dtype(wide && !offsets), seq_count: 2, lengths: entries.ptr() },
            max_seq_len: 3,
        };
        edit(&mut gather.io, &[0, 8, 12, 16, 20, 24, 120, 124, 128, 132, 136, 232, 236, 240], &io_edits);
        edit(&mut gather, &[0, 256, 260, 264, 268, 272, 276, 280, 304, 308, 312, 320, 324, 328, 344], &table_edits);
        let before = pools.each_mut().map(|p| p.bytes().to_vec());
        // SAFETY: as above.
        let status = unsafe { kvx_gather_kv(&cache, &gather, std::ptr::null_mut()) };
        prop_assert!(status <= KVX_STATUS_OUT_OF_RANGE, "gather {status}");
        pools[0].assert_is(&before[0], "a gather left K alone");
        pools[1].assert_is(&before[1], "a gather left V alone");
        let outs = outs.each_mut().map(|o| o.bytes().to_vec());
        prop_assert!(status == KVX_STATUS_OK || outs.iter().flatten().all(|b| *b == POISON));
    }
}
