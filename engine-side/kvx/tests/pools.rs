//! KV_OFFSETS tables over TensorRT-LLM's pools, `[blocks, layers, 2 (K, V)]` units, by the two ways that `kvx_abi.h` has of
//! saying how many units there are.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod common;

use common::*;
use kvx::ffi::*;

const LAYERS: usize = 3;
const BLOCKS: usize = 5;
const DIMS: Dims = Dims { blocks: BLOCKS as u32, tokens: 4, heads: 2, dim: 8 };
/// Bytes of F16 in a unit.
const UNIT: usize = 4 * 2 * 8 * 2;
const SECONDARY: i32 = i32::MIN;

/// A primary pool of `BLOCKS` blocks and a secondary one of fewer, inside a unit `[heads, tokens, dim]`.
struct Engine {
    pools: [Guarded; 2],
    table: Vec<i32>,
    lens: [i32; 1],
    out: [Guarded; 2],
}

impl Engine {
    fn new(secondary_blocks: usize, blocks: &[i32]) -> Self {
        let pool = |blocks: usize, seed| Guarded::from(&noise(blocks * LAYERS * 2 * UNIT, seed), 0);
        // As TensorRT-LLM fills its table, for all layers at once.
        let entry = |block: &i32| (block & SECONDARY) | ((block & !SECONDARY) * 2 * LAYERS as i32);
        let table = (0..2).flat_map(|kv| blocks.iter().map(move |block| entry(block) + kv)).collect();
        let bytes = blocks.len() * DIMS.tokens as usize * DIMS.row() * 2;
        Engine {
            pools: [pool(BLOCKS, 1), pool(secondary_blocks, 2)],
            table,
            lens: [(blocks.len() * DIMS.tokens as usize) as i32],
            out: [Guarded::new(bytes, 0), Guarded::new(bytes, 0)],
        }
    }

    /// A gather of one layer.
    fn gather(&mut self, layer: usize, tensor: kvx_tensor_desc_t, num_blocks: u32) -> u32 {
        let [primary, secondary] = self.pools.each_mut().map(|p| p.ptr().wrapping_byte_add(layer * 2 * UNIT));
        let mut tensors = [tensor, tensor];
        tensors[0].data = primary;
        tensors[1].data = primary.wrapping_byte_add(UNIT);
        let mut cache = cache(&Dims { blocks: num_blocks, ..DIMS }, tensors[0], tensors[1]);
        cache.pool =
            kvx_pool_desc_t { size: 32, memory: KVX_MEMORY_HOST, bytes_per_block: UNIT as u32, primary, secondary };
        // K and V of a layer interleave; as units that follow each other, they are the same memory, for gathers only.
        let interleave =
            if tensor.layout == KVX_LAYOUT_BLOCK_CUSTOM { KVX_STATUS_OK } else { KVX_STATUS_INVALID_ARGUMENT };
        // SAFETY: the descriptor is there.
        assert_eq!(unsafe { kvx_validate_cache_desc(&cache) }, interleave);
        let [key, value] = self.out.each_mut().map(Guarded::ptr);
        let max_len = self.lens[0];
        let desc = kvx_gather_desc_t {
            size: 352,
            io: io(KVX_DTYPE_F16, &[1, max_len.into()], &DIMS, key, value),
            block_table: kvx_block_table_t {
                size: 64,
                format: KVX_BLOCK_TABLE_KV_OFFSETS,
                index_dtype: KVX_DTYPE_S32,
                indptr_dtype: 0,
                seq_count: 1,
                beam_width: 1,
                max_blocks_per_seq: self.table.len() as u32 / 2,
                indices: self.table.as_ptr().cast(),
                indptr: std::ptr::null(),
                indices_count: self.table.len() as u32,
                indptr_count: 0,
                flags: KVX_BLOCK_TABLE_FLAG_KVCACHEINDEX,
            },
            seq_lens: kvx_seq_lens_t {
                size: 24,
                dtype: KVX_DTYPE_S32,
                seq_count: 1,
                lengths: self.lens.as_ptr().cast(),
            },
            max_seq_len: max_len as u32,
        };
        // SAFETY: the descriptors name the buffers above, with their sizes.
        unsafe { kvx_gather_kv(&cache, &desc, std::ptr::null_mut()) }
    }

    /// What a gather of a layer makes of the table, block by block.
    fn want(&mut self, layer: usize, kv: usize, blocks: &[i32]) -> Vec<u8> {
        let mut want = Vec::new();
        for block in blocks {
            let pool = self.pools[usize::from(*block < 0)].bytes();
            let unit = ((block & !SECONDARY) as usize * LAYERS + layer) * 2 + kv;
            for (t, h) in (0..4).flat_map(|t| (0..2).map(move |h| (t, h))) {
                let head = unit * UNIT + (h * 4 + t) * 8 * 2;
                want.extend_from_slice(&pool[head..head + 8 * 2]);
            }
        }
        want
    }
}

/// The layer in its pool: blocks `2 * LAYERS` units apart, HND inside, in the order of dimensions of CUSTOM.
fn in_blocks() -> kvx_tensor_desc_t {
    let strides = [(2 * LAYERS * UNIT / 2) as i64, 8, 4 * 8, 1];
    pool(KVX_DTYPE_F16, KVX_LAYOUT_BLOCK_CUSTOM, &DIMS, 1, strides)
}

/// The same as units that follow each other.
fn in_units(units: u32) -> kvx_tensor_desc_t {
    pool(KVX_DTYPE_F16, KVX_LAYOUT_BLOCK_HND, &Dims { blocks: units, ..DIMS }, 1, [0; 4])
}

#[test]
fn every_layer_of_a_pool_is_gathered_by_the_same_table() {
    let blocks = [4, 0, 3 | SECONDARY, 2];
    for layer in 0..LAYERS {
        let units = (2 * LAYERS * BLOCKS - 2 * layer) as u32;
        for (tensor, num_blocks) in [(in_blocks(), DIMS.blocks), (in_units(units), units)] {
            let mut engine = Engine::new(BLOCKS, &blocks);
            assert_eq!(engine.gather(layer, tensor, num_blocks), KVX_STATUS_OK, "layer {layer}");
            for kv in 0..2 {
                let want = engine.want(layer, kv, &blocks);
                engine.out[kv].assert_is(&want, "gathered");
            }
        }
    }
}

#[test]
fn the_last_unit_is_v_of_the_last_block() {
    let mut engine = Engine::new(BLOCKS, &[4]);
    let bound = ((BLOCKS - 1) * 2 * LAYERS + 2) as i32;
    engine.table[0] = bound - 1;
    assert_eq!(engine.gather(2, in_blocks(), DIMS.blocks), KVX_STATUS_OK);
    for past in [bound, bound | SECONDARY, i32::MAX] {
        let mut engine = Engine::new(BLOCKS, &[4]);
        engine.table[0] = past;
        assert_eq!(engine.gather(2, in_blocks(), DIMS.blocks), KVX_STATUS_OUT_OF_RANGE, "{past:#x}");
        engine.table[0] = 0;
        engine.table[1] = past;
        assert_eq!(engine.gather(2, in_blocks(), DIMS.blocks), KVX_STATUS_OUT_OF_RANGE, "{past:#x}");
    }
    // A cache of one block has K and V of it.
    let mut one = in_blocks();
    one.shape[0] = 1;
    let mut engine = Engine::new(1, &[SECONDARY]);
    assert_eq!(engine.gather(1, one, 1), KVX_STATUS_OK);
    engine.table[1] += 1;
    assert_eq!(engine.gather(1, one, 1), KVX_STATUS_OUT_OF_RANGE);
}

/// A pool of 5 blocks and one of 2: described by the smaller, neither gives out more.
#[test]
fn pools_of_two_sizes_share_the_bound_of_the_smaller() {
    let mut smaller = in_blocks();
    smaller.shape[0] = 2;
    for block in [1, 1 | SECONDARY] {
        let mut engine = Engine::new(2, &[block]);
        assert_eq!(engine.gather(2, smaller, 2), KVX_STATUS_OK, "{block:#x}");
        let want = engine.want(2, 0, &[block]);
        engine.out[0].assert_is(&want, "K");
    }
    for block in [2, 2 | SECONDARY] {
        let mut engine = Engine::new(2, &[block]);
        assert_eq!(engine.gather(2, smaller, 2), KVX_STATUS_OUT_OF_RANGE, "{block:#x}");
    }
}
