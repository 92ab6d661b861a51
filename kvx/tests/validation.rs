//! Every rule of the ABI, broken one at a time: the status that `kvx_abi.h` gives, and not a byte
//! written. The unbroken call succeeds, so each case fails for its own reason.

mod common;

use common::*;
use kvx::ffi::*;
use std::ffi::c_void;

const INVALID: u32 = KVX_STATUS_INVALID_ARGUMENT;
const UNSUPPORTED: u32 = KVX_STATUS_UNSUPPORTED;
const RANGE: u32 = KVX_STATUS_OUT_OF_RANGE;

const DIMS: Dims = Dims {
    blocks: 4,
    tokens: 4,
    heads: 2,
    dim: 8,
};
const TOKENS: usize = 6;

/// A valid write and a valid gather of each format over one cache, and all that they name.
struct Calls {
    cache: kvx_cache_desc_t,
    write: kvx_write_desc_t,
    gather: kvx_gather_desc_t,
    pools: [Guarded; 2],
    io: [Guarded; 2],
    slots: [i64; TOKENS],
    entries: Vec<i32>,
    wide_entries: Vec<i64>,
    wide_lens: [i64; 2],
    indptr: [i64; 3],
    lens: [i32; 2],
    scales: [f32; 8],
}

impl Calls {
    /// Boxed, so that addresses hold.
    fn new(format: u32, layout: u32, dtype: u32, io_dtype: u32) -> Box<Calls> {
        let strides = dense(&[4, 4, 2, 8]);
        let k = pool(dtype, layout, &DIMS, 4, strides[..4].try_into().unwrap());
        let pool_bytes = || Guarded::new(span(&k), 0);
        // Two sequences of up to 3 tokens, twice where there are beams.
        let rows = if format == KVX_BLOCK_TABLE_KV_OFFSETS {
            4
        } else {
            2
        };
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
                indptr: if ragged {
                    c.indptr.as_ptr().cast()
                } else {
                    std::ptr::null()
                },
                indices_count: c.entries.len() as u32,
                indptr_count: if ragged { 3 } else { 0 },
                flags: u32::from(format == KVX_BLOCK_TABLE_KV_OFFSETS),
            },
            seq_lens: kvx_seq_lens_t {
                size: 24,
                dtype: KVX_DTYPE_S32,
                seq_count: 2,
                lengths: c.lens.as_ptr().cast(),
            },
            max_seq_len: 3,
        };
        calls
    }

    fn write(&self) -> u32 {
        // SAFETY: the descriptors name buffers of `self`; what a test breaks is refused unread.
        unsafe { kvx_write_kv(&self.cache, &self.write, std::ptr::null_mut()) }
    }

    fn gather(&self) -> u32 {
        // SAFETY: as above.
        unsafe { kvx_gather_kv(&self.cache, &self.gather, std::ptr::null_mut()) }
    }

    fn validate(&self) -> u32 {
        // SAFETY: as above.
        unsafe { kvx_validate_cache_desc(&self.cache) }
    }

    fn assert_untouched(&mut self, what: &str) {
        for buffer in self.pools.iter_mut().chain(&mut self.io) {
            let want = vec![POISON; buffer.bytes().len()];
            buffer.assert_is(&want, what);
        }
    }
}

const NHD: u32 = KVX_LAYOUT_BLOCK_NHD;
const PACKED_LAYOUT: u32 = KVX_LAYOUT_BLOCK_HND_PACKED;
const CUSTOM: u32 = KVX_LAYOUT_BLOCK_CUSTOM;
const F16: u32 = KVX_DTYPE_F16;
const PACKED: u32 = KVX_BLOCK_TABLE_PACKED;
const RAGGED: u32 = KVX_BLOCK_TABLE_RAGGED;
const OFFSETS: u32 = KVX_BLOCK_TABLE_KV_OFFSETS;

type Break = (&'static str, u32, fn(&mut Calls));

fn null() -> *mut c_void {
    std::ptr::null_mut()
}

#[test]
fn cache_rules() {
    let any: &[Break] = &[
        ("size", INVALID, |c| c.cache.size -= 1),
        ("k size", INVALID, |c| c.cache.k.size = 111),
        ("v size", INVALID, |c| c.cache.v.size = 0),
        ("num_blocks 0", INVALID, |c| c.cache.num_blocks = 0),
        ("block_size 0", INVALID, |c| c.cache.block_size = 0),
        ("num_kv_heads 0", INVALID, |c| c.cache.num_kv_heads = 0),
        ("head_dim 0", INVALID, |c| c.cache.head_dim = 0),
        ("num_blocks", INVALID, |c| c.cache.num_blocks = 5),
        ("layout", INVALID, |c| {
            (c.cache.k.layout, c.cache.v.layout) = (4, 4)
        }),
        ("layouts differ", INVALID, |c| c.cache.v.layout ^= 1),
        ("dtypes differ", INVALID, |c| {
            c.cache.v.dtype = KVX_DTYPE_BF16
        }),
        ("dtype none", INVALID, |c| {
            (c.cache.k.dtype, c.cache.v.dtype) = (0, 0)
        }),
        ("dtype index", INVALID, |c| {
            (c.cache.k.dtype, c.cache.v.dtype) = (6, 6)
        }),
        ("dtype unknown", INVALID, |c| {
            (c.cache.k.dtype, c.cache.v.dtype) = (11, 11)
        }),
        ("k null", INVALID, |c| c.cache.k.data = null()),
        ("v null", INVALID, |c| c.cache.v.data = null()),
        ("ndim less", INVALID, |c| c.cache.k.ndim -= 1),
        ("ndim more", INVALID, |c| c.cache.v.ndim += 1),
        ("shape", INVALID, |c| c.cache.k.shape[3] += 1),
        ("shape negative", INVALID, |c| c.cache.v.shape[0] = -4),
        ("address space", INVALID, |c| {
            c.cache.k.data = usize::MAX as *mut c_void
        }),
        ("memory unknown", INVALID, |c| {
            c.cache.k.memory = KVX_MEMORY_UNKNOWN
        }),
        ("memory 4", INVALID, |c| c.cache.v.memory = 4),
        ("memory device", UNSUPPORTED, |c| {
            c.cache.v.memory = KVX_MEMORY_DEVICE
        }),
    ];
    let dense: &[Break] = &[
        ("stride", UNSUPPORTED, |c| c.cache.k.stride[0] += 1),
        ("stride 0", UNSUPPORTED, |c| c.cache.v.stride[3] = 0),
        ("stride negative", UNSUPPORTED, |c| c.cache.v.stride[1] = -1),
    ];
    let packed: &[Break] = &[
        ("pack 0", INVALID, |c| c.cache.k.shape[4] = 0),
        ("pack 3", INVALID, |c| {
            (c.cache.k.shape[4], c.cache.k.shape[2]) = (3, 2)
        }),
        ("pack wide", INVALID, |c| c.cache.k.shape[4] = 1 << 32),
        ("groups", INVALID, |c| c.cache.v.shape[2] = 1),
    ];
    let custom: &[Break] = &[
        ("overlap", INVALID, |c| c.cache.k.stride[0] = 63),
        ("stride 0", INVALID, |c| c.cache.k.stride[2] = 0),
        ("negative", INVALID, |c| c.cache.v.stride[1] = -16),
        ("overflow", INVALID, |c| c.cache.v.stride[0] = i64::MAX / 2),
    ];
    for (layout, rules) in [
        (NHD, &[any, dense].concat()),
        (KVX_LAYOUT_BLOCK_HND, &[any, dense].concat()),
        (PACKED_LAYOUT, &[any, dense, packed].concat()),
        (CUSTOM, &[any, custom].concat()),
    ] {
        let make = || Calls::new(PACKED, layout, F16, F16);
        let whole = make();
        assert_eq!(
            [whole.validate(), whole.write(), whole.gather()],
            [0; 3],
            "{layout}"
        );
        for (name, status, break_it) in rules {
            let mut c = make();
            break_it(&mut c);
            assert_eq!(
                [c.validate(), c.write(), c.gather()],
                [*status; 3],
                "{name}, layout {layout}"
            );
            c.assert_untouched(name);
        }
    }
}

#[test]
fn null_descriptors() {
    let c = Calls::new(PACKED, NHD, F16, F16);
    // SAFETY: null is what these functions look for first.
    unsafe {
        assert_eq!(kvx_get_version(std::ptr::null_mut()), INVALID);
        assert_eq!(kvx_validate_cache_desc(std::ptr::null()), INVALID);
        assert_eq!(kvx_write_kv(std::ptr::null(), &c.write, null()), INVALID);
        assert_eq!(kvx_write_kv(&c.cache, std::ptr::null(), null()), INVALID);
        assert_eq!(kvx_gather_kv(std::ptr::null(), &c.gather, null()), INVALID);
        assert_eq!(kvx_gather_kv(&c.cache, std::ptr::null(), null()), INVALID);
    }
}

#[test]
fn version() {
    let mut version = kvx_version_t {
        size: 0,
        abi_major: 0,
        abi_minor: 0,
        abi_patch: 9,
    };
    // SAFETY: valid for writes.
    assert_eq!(unsafe { kvx_get_version(&mut version) }, KVX_STATUS_OK);
    let got = (
        version.size,
        version.abi_major,
        version.abi_minor,
        version.abi_patch,
    );
    assert_eq!(got, (16, 1, 1, 0));
}

/// Rules on tokens that writes and gathers share.
const IO_RULES: &[(&str, u32, fn(&mut kvx_kv_io_desc_t))] = &[
    ("io size", INVALID, |io| io.size = 247),
    ("key size", INVALID, |io| io.key.size = 111),
    ("value size", INVALID, |io| io.value.size = 8),
    ("heads", INVALID, |io| io.num_kv_heads = 1),
    ("head_dim", INVALID, |io| io.head_dim = 16),
    ("num_tokens", INVALID, |io| io.num_tokens += 1),
    ("key null", INVALID, |io| io.key.data = null()),
    ("value null", INVALID, |io| io.value.data = null()),
    ("key dtype", INVALID, |io| io.key.dtype = KVX_DTYPE_BF16),
    ("both dtypes", INVALID, |io| {
        (io.key.dtype, io.value.dtype) = (2, 2)
    }),
    ("no dtype", INVALID, |io| {
        (io.key.dtype, io.value.dtype) = (0, 0)
    }),
    ("ndim", INVALID, |io| io.key.ndim = 2),
    ("ndim 5", INVALID, |io| io.value.ndim = 5),
    ("ndim many", INVALID, |io| io.value.ndim = u32::MAX),
    ("shape", INVALID, |io| io.value.shape[0] += 1),
    ("stride", UNSUPPORTED, |io| io.key.stride[0] += 8),
    ("address space", INVALID, |io| {
        io.key.data = (usize::MAX - 64) as *mut c_void
    }),
    ("memory unknown", INVALID, |io| io.value.memory = 0),
    ("memory device", UNSUPPORTED, |io| {
        io.key.memory = KVX_MEMORY_DEVICE
    }),
];

#[test]
fn write_rules() {
    let rules: &[Break] = &[
        ("size", INVALID, |c| c.write.size = 511),
        ("slots size", INVALID, |c| c.write.slots.size = 31),
        ("slots dtype", INVALID, |c| {
            c.write.slots.dtype = KVX_DTYPE_U32
        }),
        ("token_count", INVALID, |c| c.write.slots.token_count = 5),
        ("slots null", INVALID, |c| c.write.slots.slots = null()),
        ("slot past the cache", RANGE, |c| c.slots[5] = 16),
        ("slot far past", RANGE, |c| c.slots[0] = i64::MAX),
        ("io in the cache", INVALID, |c| {
            c.write.io.key.data = c.cache.v.data
        }),
        ("slots in the cache", INVALID, |c| {
            c.write.slots.slots = c.cache.k.data
        }),
        ("K is V", INVALID, |c| c.cache.v.data = c.cache.k.data),
        ("K meets V", INVALID, |c| {
            c.cache.v.data = c.cache.k.data.wrapping_byte_add(32)
        }),
    ];
    let make = || Calls::new(PACKED, NHD, F16, F16);
    for (name, status, break_it) in rules {
        let mut c = make();
        break_it(&mut c);
        assert_eq!(c.write(), *status, "{name}");
        c.assert_untouched(name);
    }
    for (name, status, break_it) in IO_RULES {
        let mut c = make();
        break_it(&mut c.write.io);
        assert_eq!(c.write(), *status, "{name}");
        c.assert_untouched(name);
    }
}

#[test]
fn scale_rules() {
    let rules: &[Break] = &[
        ("none at all", INVALID, |c| {
            c.write.v_scale_desc.data = null()
        }),
        ("size", INVALID, |c| c.write.k_scale_desc.size = 103),
        ("dtype f16", UNSUPPORTED, |c| {
            c.write.k_scale_desc.dtype = F16
        }),
        ("dtype none", INVALID, |c| c.write.k_scale_desc.dtype = 0),
        ("granularity none", INVALID, |c| {
            c.write.k_scale_desc.granularity = 0
        }),
        ("granularity 5", INVALID, |c| {
            c.write.k_scale_desc.granularity = 5
        }),
        ("ndim", INVALID, |c| c.write.v_scale_desc.ndim = 1),
        ("ndim many", INVALID, |c| c.write.v_scale_desc.ndim = 6),
        ("per tensor of 4", INVALID, |c| {
            c.write.v_scale_desc.granularity = KVX_SCALE_PER_TENSOR
        }),
        ("shape blocks", INVALID, |c| {
            c.write.v_scale_desc.shape[0] = 3
        }),
        ("shape heads", INVALID, |c| {
            c.write.v_scale_desc.shape[1] = 3
        }),
        ("shape wide", INVALID, |c| {
            c.write.v_scale_desc.shape[0] = (1 << 32) + 4
        }),
        ("stride", INVALID, |c| c.write.v_scale_desc.stride[1] = -1),
        ("stride wide", INVALID, |c| {
            c.write.v_scale_desc.stride[0] = i64::MAX
        }),
        ("in the cache", INVALID, |c| {
            c.write.k_scale_desc.data = c.cache.k.data
        }),
        ("zero", INVALID, |c| c.scales[7] = 0.0),
        ("negative", INVALID, |c| c.scales[0] = -1.0),
        ("NaN", INVALID, |c| c.scales[4] = f32::NAN),
        ("infinite", INVALID, |c| c.scales[2] = f32::INFINITY),
        ("narrow to narrow", INVALID, |c| {
            (c.write.io.key.dtype, c.write.io.value.dtype) = (5, 5)
        }),
    ];
    let make = || Calls::new(PACKED, NHD, KVX_DTYPE_F8_E4M3, F16);
    assert_eq!(make().write(), KVX_STATUS_OK);
    // An FP8 gather has no scale in the C ABI.
    assert_eq!(make().gather(), INVALID);
    for (name, status, break_it) in rules {
        let mut c = make();
        break_it(&mut c);
        assert_eq!(c.write(), *status, "{name}");
        c.assert_untouched(name);
    }
    // Where nothing is quantised, scales are not looked at.
    let mut c = Calls::new(PACKED, NHD, F16, F16);
    c.write.k_scale_desc.dtype = 77;
    assert_eq!(c.write(), KVX_STATUS_OK);
}

#[test]
fn gather_rules() {
    let any: &[Break] = &[
        ("size", INVALID, |c| c.gather.size = 351),
        ("table size", INVALID, |c| c.gather.block_table.size = 63),
        ("lens size", INVALID, |c| c.gather.seq_lens.size = 23),
        ("format", INVALID, |c| c.gather.block_table.format = 4),
        ("index dtype", INVALID, |c| {
            c.gather.block_table.index_dtype = KVX_DTYPE_U32
        }),
        ("lens dtype", INVALID, |c| {
            c.gather.seq_lens.dtype = KVX_DTYPE_S64
        }),
        ("seq_count", INVALID, |c| c.gather.seq_lens.seq_count = 1),
        ("indices null", INVALID, |c| {
            c.gather.block_table.indices = null()
        }),
        ("lens null", INVALID, |c| c.gather.seq_lens.lengths = null()),
        ("max_seq_len", INVALID, |c| c.gather.max_seq_len = 4),
        ("beam_width 0", INVALID, |c| {
            c.gather.block_table.beam_width = 0
        }),
        ("negative length", RANGE, |c| c.lens[1] = -1),
        ("key is value", INVALID, |c| {
            c.gather.io.value.data = c.gather.io.key.data
        }),
        ("output in the pool", INVALID, |c| {
            c.gather.io.key.data = c.cache.k.data
        }),
        ("lens in the output", INVALID, |c| {
            c.io[0].bytes()[..8].fill(0);
            c.gather.seq_lens.lengths = c.gather.io.key.data;
        }),
    ];
    let no_indptr: &[Break] = &[
        ("indices_count", INVALID, |c| {
            c.gather.block_table.indices_count -= 1
        }),
        ("indptr", INVALID, |c| {
            c.gather.block_table.indptr = c.indptr.as_ptr().cast()
        }),
        ("indptr_count", INVALID, |c| {
            c.gather.block_table.indptr_count = 3
        }),
        ("max_blocks_per_seq", INVALID, |c| {
            c.gather.block_table.max_blocks_per_seq = 2
        }),
        ("no blocks", RANGE, |c| {
            c.gather.block_table.max_blocks_per_seq = 0;
            c.gather.block_table.indices_count = 0;
        }),
    ];
    let one_beam: &[Break] = &[
        ("beam_width 2", INVALID, |c| {
            c.gather.block_table.beam_width = 2
        }),
        ("block id", RANGE, |c| c.entries[0] = 4),
        ("block id far", RANGE, |c| c.entries[1] = i32::MAX),
        ("wide block id", RANGE, |c| {
            c.wide_entries[0] = 1 << 32;
            c.gather.block_table.indices = c.wide_entries.as_ptr().cast();
            c.gather.seq_lens.lengths = c.wide_lens.as_ptr().cast();
            c.gather.block_table.index_dtype = KVX_DTYPE_S64;
            c.gather.seq_lens.dtype = KVX_DTYPE_S64;
        }),
    ];
    let ragged: &[Break] = &[
        ("more indices", INVALID, |c| {
            c.gather.block_table.indices_count += 1
        }),
        ("fewer indices", RANGE, |c| {
            c.gather.block_table.indices_count -= 1
        }),
        ("indptr null", INVALID, |c| {
            c.gather.block_table.indptr = null()
        }),
        ("indptr_count", INVALID, |c| {
            c.gather.block_table.indptr_count = 2
        }),
        ("indptr dtype", INVALID, |c| {
            c.gather.block_table.indptr_dtype = KVX_DTYPE_U64
        }),
        ("indptr starts", INVALID, |c| c.indptr[0] = 1),
        ("indptr falls", INVALID, |c| c.indptr = [0, 5, 4]),
        ("indptr ends early", INVALID, |c| c.indptr[2] = 4),
        ("indptr past the end", RANGE, |c| c.indptr[2] = 6),
        ("indptr far past", RANGE, |c| c.indptr[1] = i64::MAX),
        ("indptr negative", RANGE, |c| c.indptr[1] = -1),
        ("length past indptr", RANGE, |c| c.lens[1] = 3),
    ];
    let offsets: &[Break] = &[
        ("index dtype", INVALID, |c| {
            c.gather.block_table.index_dtype = KVX_DTYPE_S64;
            c.gather.seq_lens.dtype = KVX_DTYPE_S64;
            // Wide enough, so that only the dtype is wrong.
            c.gather.block_table.indices = c.wide_entries.as_ptr().cast();
            c.gather.seq_lens.lengths = c.wide_lens.as_ptr().cast();
        }),
        ("no flag", INVALID, |c| c.gather.block_table.flags = 0),
        ("more flags", UNSUPPORTED, |c| {
            c.gather.block_table.flags = 3
        }),
        ("pool size", INVALID, |c| c.cache.pool.size = 31),
        ("pool memory", INVALID, |c| c.cache.pool.memory = 0),
        ("pool device", UNSUPPORTED, |c| {
            c.cache.pool.memory = KVX_MEMORY_DEVICE
        }),
        ("no primary", INVALID, |c| c.cache.pool.primary = null()),
        ("bytes_per_block 0", INVALID, |c| {
            c.cache.pool.bytes_per_block = 0
        }),
        ("bytes_per_block", INVALID, |c| {
            c.cache.pool.bytes_per_block -= 1
        }),
        ("offset", RANGE, |c| c.entries[3] = 4),
        ("secondary offset", RANGE, |c| c.entries[3] = i32::MIN | 4),
        ("no secondary", RANGE, |c| {
            c.cache.pool.secondary = null();
            c.entries[7] = i32::MIN;
        }),
        ("-1", RANGE, |c| c.entries[0] = -1),
        ("output in the secondary", INVALID, |c| {
            c.entries[0] = i32::MIN | 3;
            c.gather.io.key.data = c.cache.v.data;
        }),
    ];
    for (format, rules) in [
        (PACKED, [any, no_indptr, one_beam].concat()),
        (RAGGED, [any, ragged, one_beam].concat()),
        (OFFSETS, [any, no_indptr, offsets].concat()),
    ] {
        let make = || Calls::new(format, NHD, F16, F16);
        assert_eq!(make().gather(), KVX_STATUS_OK, "format {format}");
        for (name, status, break_it) in rules {
            let mut c = make();
            break_it(&mut c);
            assert_eq!(c.gather(), status, "{name}, format {format}");
            if name != "lens in the output" {
                c.assert_untouched(name);
            }
        }
        for (name, status, break_it) in IO_RULES {
            let mut c = make();
            break_it(&mut c.gather.io);
            assert_eq!(c.gather(), *status, "{name}, format {format}");
            c.assert_untouched(name);
        }
    }
}

#[test]
fn kv_offsets_need_a_power_of_two() {
    // One block of 4 tokens seen as one of 3: everything else stays valid.
    let mut c = Calls::new(OFFSETS, NHD, F16, F16);
    c.cache.block_size = 3;
    for p in [&mut c.cache.k, &mut c.cache.v] {
        p.shape[1] = 3;
        p.stride = dense(&[4, 3, 2, 8]);
    }
    assert_eq!(c.validate(), KVX_STATUS_OK);
    assert_eq!(c.gather(), INVALID);
    c.assert_untouched("block_size 3");
}

#[test]
fn nothing_to_do_needs_no_buffers() {
    let mut c = Calls::new(PACKED, NHD, F16, F16);
    c.write.io = io(F16, &[0], &DIMS, null(), null());
    c.write.slots.token_count = 0;
    c.write.slots.slots = null();
    assert_eq!(c.write(), KVX_STATUS_OK);
    c.gather.io = io(F16, &[0, 3], &DIMS, null(), null());
    c.gather.block_table.seq_count = 0;
    c.gather.block_table.indices_count = 0;
    c.gather.block_table.indices = null();
    c.gather.seq_lens.seq_count = 0;
    c.gather.seq_lens.lengths = null();
    assert_eq!(c.gather(), KVX_STATUS_OK);
    c.assert_untouched("nothing");
}

/// K and V as `[num_blocks, 2, block_size, heads, dim]`, which some engines have.
#[test]
fn interleaved_pools_are_written() {
    let mut both = Guarded::new(2 * 4 * 4 * DIMS.row() * 2, 0);
    let mut c = Calls::new(PACKED, CUSTOM, F16, F16);
    for p in [&mut c.cache.k, &mut c.cache.v] {
        p.stride[0] *= 2;
    }
    c.cache.k.data = both.ptr();
    c.cache.v.data = both.ptr().wrapping_byte_add(4 * DIMS.row() * 2);
    c.io[0].bytes().fill(1);
    c.io[1].bytes().fill(2);
    c.slots = [-1, -1, 5, -1, -1, -1];
    assert_eq!(c.write(), KVX_STATUS_OK);
    let row = DIMS.row() * 2;
    let mut want = vec![POISON; 32 * row];
    // Slot 5 is token 1 of block 1, whose K are rows 8.. and whose V rows 12...
    want[9 * row..10 * row].fill(1);
    want[13 * row..14 * row].fill(2);
    both.assert_is(&want, "interleaved");
}

/// The file descriptor of standard error belongs to the process, so a child says it.
#[test]
fn device_memory_is_mentioned_once() {
    const CHILD: &str = "KVX_TEST_DEVICE_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let mut c = Calls::new(PACKED, NHD, F16, F16);
        c.cache.k.memory = KVX_MEMORY_DEVICE;
        assert_eq!([c.write(), c.gather(), c.validate()], [UNSUPPORTED; 3]);
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "device_memory_is_mentioned_once", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("KVX_MEMORY_DEVICE").count(), 1, "{said}");
}
