//! Every rule of the ABI on gathers, broken one at a time; see `validation.rs`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod common;

use common::calls::*;
use common::*;
use kvx::ffi::*;

/// Of every format of the block table.
const ANY_TABLE: &[Break] = &[
    ("size", INVALID, |c| c.gather.size = 351),
    ("table size", INVALID, |c| c.gather.block_table.size = 63),
    ("lens size", INVALID, |c| c.gather.seq_lens.size = 23),
    ("format", INVALID, |c| c.gather.block_table.format = 4),
    ("index dtype", INVALID, |c| c.gather.block_table.index_dtype = KVX_DTYPE_U32),
    ("lens dtype", INVALID, |c| c.gather.seq_lens.dtype = KVX_DTYPE_S64),
    ("seq_count", INVALID, |c| c.gather.seq_lens.seq_count = 1),
    ("indices null", INVALID, |c| c.gather.block_table.indices = null()),
    ("lens null", INVALID, |c| c.gather.seq_lens.lengths = null()),
    ("max_seq_len", INVALID, |c| c.gather.max_seq_len = 4),
    ("beam_width 0", INVALID, |c| c.gather.block_table.beam_width = 0),
    ("negative length", RANGE, |c| c.lens[1] = -1),
    ("key is value", INVALID, |c| c.gather.io.value.data = c.gather.io.key.data),
    ("output in the pool", INVALID, |c| c.gather.io.key.data = c.cache.k.data),
    ("lens in the output", INVALID, |c| {
        c.io[0].bytes()[..8].fill(0);
        c.gather.seq_lens.lengths = c.gather.io.key.data;
    }),
    ("table in the output", INVALID, |c| {
        c.io[0].bytes()[..64].fill(0);
        c.gather.block_table.indices = c.gather.io.key.data;
    }),
];

/// Of the formats whose sequences all have as many blocks.
const WITHOUT_INDPTR: &[Break] = &[
    ("indices_count", INVALID, |c| c.gather.block_table.indices_count -= 1),
    ("indptr", INVALID, |c| c.gather.block_table.indptr = c.indptr.as_ptr().cast()),
    ("indptr_count", INVALID, |c| c.gather.block_table.indptr_count = 3),
    ("max_blocks_per_seq", INVALID, |c| c.gather.block_table.max_blocks_per_seq = 2),
    ("seq_count of nothing", INVALID, |c| {
        // Without a token to gather, only the counts themselves are left to contradict.
        c.gather.io = io(F16, &[0], &DIMS, std::ptr::null_mut(), std::ptr::null_mut());
        c.gather.max_seq_len = 0;
        c.gather.block_table.max_blocks_per_seq = 0;
        c.gather.block_table.indices_count = 0;
        c.gather.seq_lens.seq_count = 1;
    }),
    ("no blocks", RANGE, |c| {
        c.gather.block_table.max_blocks_per_seq = 0;
        c.gather.block_table.indices_count = 0;
    }),
];

/// Of the formats without beams, whose entries are block ids.
const ONE_BEAM: &[Break] = &[
    ("beam_width 2", INVALID, |c| c.gather.block_table.beam_width = 2),
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

/// Of [`RAGGED`] alone.
const OF_RAGGED: &[Break] = &[
    ("more indices", INVALID, |c| c.gather.block_table.indices_count += 1),
    ("fewer indices", RANGE, |c| c.gather.block_table.indices_count -= 1),
    ("indptr null", INVALID, |c| c.gather.block_table.indptr = null()),
    ("indptr_count", INVALID, |c| c.gather.block_table.indptr_count = 2),
    ("indptr dtype", INVALID, |c| c.gather.block_table.indptr_dtype = KVX_DTYPE_U64),
    ("indptr starts", INVALID, |c| c.indptr[0] = 1),
    ("indptr falls", INVALID, |c| c.indptr = [0, 5, 4]),
    ("indptr ends early", INVALID, |c| c.indptr[2] = 4),
    ("indptr past the end", RANGE, |c| c.indptr[2] = 6),
    ("indptr far past", RANGE, |c| c.indptr[1] = i64::MAX),
    ("indptr negative", RANGE, |c| c.indptr[1] = -1),
    ("length past indptr", RANGE, |c| c.lens[1] = 3),
];

/// Of [`OFFSETS`] alone.
const OF_OFFSETS: &[Break] = &[
    ("index dtype", INVALID, |c| {
        c.gather.block_table.index_dtype = KVX_DTYPE_S64;
        c.gather.seq_lens.dtype = KVX_DTYPE_S64;
        // Wide enough, so that only the dtype is wrong.
        c.gather.block_table.indices = c.wide_entries.as_ptr().cast();
        c.gather.seq_lens.lengths = c.wide_lens.as_ptr().cast();
    }),
    ("no flag", INVALID, |c| c.gather.block_table.flags = 0),
    ("more flags", UNSUPPORTED, |c| c.gather.block_table.flags = 3),
    ("pool size", INVALID, |c| c.cache.pool.size = 31),
    ("pool memory", INVALID, |c| c.cache.pool.memory = 0),
    ("pool device", UNSUPPORTED, |c| c.cache.pool.memory = KVX_MEMORY_DEVICE),
    ("no primary", INVALID, |c| c.cache.pool.primary = null()),
    ("bytes_per_block 0", INVALID, |c| c.cache.pool.bytes_per_block = 0),
    ("bytes_per_block", INVALID, |c| c.cache.pool.bytes_per_block -= 1),
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
    ("output in the last block that is read", INVALID, |c| {
        // The block's first token is read into the place of its second. Four tokens are as large as a block, so
        // that nothing but this one is met.
        c.entries[2] = i32::MIN | 3;
        c.gather.max_seq_len = 1;
        let last = c.cache.v.data.wrapping_byte_add(3 * c.cache.pool.bytes_per_block as usize);
        c.gather.io = io(F16, &[4, 1], &DIMS, last, c.gather.io.value.data);
    }),
];

#[test]
fn gather_rules() {
    for (format, rules) in [
        (PACKED, [ANY_TABLE, WITHOUT_INDPTR, ONE_BEAM].concat()),
        (RAGGED, [ANY_TABLE, OF_RAGGED, ONE_BEAM].concat()),
        (OFFSETS, [ANY_TABLE, WITHOUT_INDPTR, OF_OFFSETS].concat()),
    ] {
        let make = || Calls::new(format, NHD, F16, F16);
        assert_eq!(make().gather(), KVX_STATUS_OK, "format {format}");
        for (name, status, break_it) in rules {
            let mut c = make();
            break_it(&mut c);
            assert_eq!(c.gather(), status, "{name}, format {format}");
            if !["lens in the output", "table in the output"].contains(&name) {
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

/// Every count of a gather may be 0, and its lengths may be; what is malformed besides is still refused.
#[test]
fn a_gather_of_nothing_is_ok() {
    let nothings: &[Break] = &[
        ("sequences", KVX_STATUS_OK, |c| {
            let ragged = c.gather.block_table.format == RAGGED;
            c.gather.io = io(F16, &[0, 3], &DIMS, null(), null());
            c.gather.block_table.seq_count = 0;
            c.gather.block_table.indices_count = 0;
            c.gather.block_table.indices = null();
            c.gather.block_table.indptr_count = u32::from(ragged);
            c.indptr[0] = 0;
            c.gather.seq_lens.seq_count = 0;
            c.gather.seq_lens.lengths = null();
        }),
        ("rows", KVX_STATUS_OK, |c| {
            let rows = i64::from(2 * c.gather.block_table.beam_width);
            c.gather.io = io(F16, &[rows, 0], &DIMS, null(), null());
            c.gather.max_seq_len = 0;
        }),
        ("lengths", KVX_STATUS_OK, |c| {
            c.lens = [0, 0];
            if c.gather.block_table.format != RAGGED {
                c.gather.block_table.max_blocks_per_seq = 0;
                c.gather.block_table.indices_count = 0;
            }
        }),
    ];
    for format in [PACKED, RAGGED, OFFSETS] {
        for (name, status, nothing) in nothings {
            let mut c = Calls::new(format, NHD, F16, F16);
            nothing(&mut c);
            assert_eq!(c.gather(), *status, "no {name}, format {format}");
            c.assert_untouched(name);
            c.gather.io.key.memory = KVX_MEMORY_UNKNOWN;
            assert_eq!(c.gather(), INVALID, "no {name}, format {format}");
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
