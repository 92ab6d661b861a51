//! A valid call of each kind, to be broken one rule at a time.

use super::*;

pub const INVALID: u32 = KVX_STATUS_INVALID_ARGUMENT;
pub const UNSUPPORTED: u32 = KVX_STATUS_UNSUPPORTED;
pub const RANGE: u32 = KVX_STATUS_OUT_OF_RANGE;

pub const DIMS: Dims = Dims { blocks: 4, tokens: 4, heads: 2, dim: 8 };
pub const TOKENS: usize = 6;

/// A valid write and a valid gather of each format over one cache, and all that they name.
pub struct Calls {
    pub cache: kvx_cache_desc_t,
    pub write: kvx_write_desc_t,
    pub gather: kvx_gather_desc_t,
    pub pools: [Guarded; 2],
    pub io: [Guarded; 2],
    pub slots: [i64; TOKENS],
    pub entries: Vec<i32>,
    pub wide_entries: Vec<i64>,
    pub wide_lens: [i64; 2],
    pub indptr: [i64; 3],
    pub lens: [i32; 2],
    pub scales: [f32; 8],
}

impl Calls {
    /// Boxed, so that addresses hold.
    pub fn new(format: u32, layout: u32, dtype: u32, io_dtype: u32) -> Box<Calls> {
        let strides = dense(&[4, 4, 2, 8]);
        let k = pool(dtype, layout, &DIMS, 4, strides[..4].try_into().unwrap());
        let pool_bytes = || Guarded::new(span(&k), 0);
        // Two sequences of up to 3 tokens, twice where there are beams.
        let rows = if format == KVX_BLOCK_TABLE_KV_OFFSETS { 4 } else { 2 };
        let io_bytes = || Guarded::new(2 * TOKENS * DIMS.row() * size_of_dtype(io_dtype), 0);
        let entries = match format {
            KVX_BLOCK_TABLE_PACKED => vec![0, 3],
            KVX_BLOCK_TABLE_RAGGED => vec![0, 0, 0, 2, 2],
            _ => vec![0, 1, 2, 3, 0, 1, 2, 3],
        };
        let mut calls = Box::new(Calls {
            cache: cache(&DIMS, k, k),
            write: zeroed(),
            gather: zeroed(),
            pools: [pool_bytes(), pool_bytes()],
            io: [io_bytes(), io_bytes()],
            slots: [0, 1, 5, -1, 15, 9],
            wide_entries: entries.iter().map(|e| i64::from(*e)).collect(),
            entries,
            indptr: [0, 3, 5],
            wide_lens: [3, 2],
            lens: [3, 2],
            scales: [0.5; 8],
        });
        let c = &mut *calls;
        [c.cache.k.data, c.cache.v.data] = c.pools.each_mut().map(Guarded::ptr);
        c.cache.pool = kvx_pool_desc_t {
            size: 32,
            memory: KVX_MEMORY_HOST,
            bytes_per_block: (DIMS.row() * 4 * size_of_dtype(dtype)) as u32,
            primary: c.cache.k.data,
            secondary: c.cache.v.data,
        };
        let [key, value] = c.io.each_mut().map(Guarded::ptr);
        let write_io = io(io_dtype, &[TOKENS as i64], &DIMS, key, value);
        c.write = write_desc(write_io, true, c.slots.as_ptr().cast());
        let scale = kvx_scale_desc_t {
            size: 104,
            dtype: KVX_DTYPE_F32,
            granularity: KVX_SCALE_PER_BLOCK_HEAD,
            ndim: 2,
            shape: [4, 2, 0, 0, 0],
            stride: [2, 1, 0, 0, 0],
            data: c.scales.as_ptr().cast(),
        };
        (c.write.k_scale_desc, c.write.v_scale_desc) = (scale, scale);
        let ragged = format == KVX_BLOCK_TABLE_RAGGED;
        c.gather = kvx_gather_desc_t {
            size: 352,
            io: io(io_dtype, &[rows, 3], &DIMS, key, value),
            block_table: kvx_block_table_t {
                size: 64,
                format,
                index_dtype: KVX_DTYPE_S32,
                indptr_dtype: if ragged { KVX_DTYPE_S64 } else { 0 },
                seq_count: 2,
                beam_width: rows as u32 / 2,
                max_blocks_per_seq: 1,
                indices: c.entries.as_ptr().cast(),
                indptr: if ragged { c.indptr.as_ptr().cast() } else { std::ptr::null() },
                indices_count: c.entries.len() as u32,
                indptr_count: if ragged { 3 } else { 0 },
                flags: u32::from(format == KVX_BLOCK_TABLE_KV_OFFSETS),
            },
            seq_lens: kvx_seq_lens_t { size: 24, dtype: KVX_DTYPE_S32, seq_count: 2, lengths: c.lens.as_ptr().cast() },
            max_seq_len: 3,
        };
        calls
    }

    pub fn write(&self) -> u32 {
        // SAFETY: the descriptors name buffers of `self`; what a test breaks is refused unread.
        unsafe { kvx_write_kv(&self.cache, &self.write, std::ptr::null_mut()) }
    }

    pub fn gather(&self) -> u32 {
        // SAFETY: as above.
        unsafe { kvx_gather_kv(&self.cache, &self.gather, std::ptr::null_mut()) }
    }

    pub fn validate(&self) -> u32 {
        // SAFETY: as above.
        unsafe { kvx_validate_cache_desc(&self.cache) }
    }

    pub fn assert_untouched(&mut self, what: &str) {
        for buffer in self.pools.iter_mut().chain(&mut self.io) {
            let want = vec![POISON; buffer.bytes().len()];
            buffer.assert_is(&want, what);
        }
    }
}

pub const NHD: u32 = KVX_LAYOUT_BLOCK_NHD;
pub const PACKED_LAYOUT: u32 = KVX_LAYOUT_BLOCK_HND_PACKED;
pub const CUSTOM: u32 = KVX_LAYOUT_BLOCK_CUSTOM;
pub const F16: u32 = KVX_DTYPE_F16;
pub const PACKED: u32 = KVX_BLOCK_TABLE_PACKED;
pub const RAGGED: u32 = KVX_BLOCK_TABLE_RAGGED;
pub const OFFSETS: u32 = KVX_BLOCK_TABLE_KV_OFFSETS;

pub type Break = (&'static str, u32, fn(&mut Calls));

pub fn null() -> *mut c_void {
    std::ptr::null_mut()
}

pub type IoBreak = (&'static str, u32, fn(&mut kvx_kv_io_desc_t));

/// Rules on tokens that writes and gathers share.
pub const IO_RULES: &[IoBreak] = &[
    ("io size", INVALID, |io| io.size = 247),
    ("key size", INVALID, |io| io.key.size = 111),
    ("value size", INVALID, |io| io.value.size = 8),
    ("heads", INVALID, |io| io.num_kv_heads = 1),
    ("head_dim", INVALID, |io| io.head_dim = 16),
    ("num_tokens", INVALID, |io| io.num_tokens += 1),
    ("key null", INVALID, |io| io.key.data = null()),
    ("value null", INVALID, |io| io.value.data = null()),
    ("key dtype", INVALID, |io| io.key.dtype = KVX_DTYPE_BF16),
    ("value dtype", INVALID, |io| io.value.dtype = KVX_DTYPE_BF16),
    ("both dtypes", INVALID, |io| (io.key.dtype, io.value.dtype) = (2, 2)),
    ("no dtype", INVALID, |io| (io.key.dtype, io.value.dtype) = (0, 0)),
    ("ndim", INVALID, |io| io.key.ndim = 2),
    ("ndim 5", INVALID, |io| io.value.ndim = 5),
    ("ndim many", INVALID, |io| io.value.ndim = u32::MAX),
    ("shape", INVALID, |io| io.value.shape[0] += 1),
    ("stride", UNSUPPORTED, |io| io.key.stride[0] -= 8),
    ("stride 0", UNSUPPORTED, |io| io.value.stride[0] = 0),
    ("stride negative", UNSUPPORTED, |io| io.key.stride[0] = -16),
    ("stride of heads", UNSUPPORTED, |io| io.key.stride[io.key.ndim as usize - 2] += 8),
    ("stride of elements", UNSUPPORTED, |io| io.value.stride[io.value.ndim as usize - 1] = 2),
    ("stride past the address space", INVALID, |io| spread(&mut io.key, i64::MAX as usize / 8, 0)),
    ("address space", INVALID, |io| io.key.data = (usize::MAX - 64) as *mut c_void),
    ("memory unknown", INVALID, |io| io.value.memory = 0),
    ("memory device", UNSUPPORTED, |io| io.key.memory = KVX_MEMORY_DEVICE),
];
