//! Every rule of the ABI on caches and writes, broken one at a time: the status that `kvx_abi.h`
//! gives, and not a byte written. The unbroken call succeeds, so each case fails for its own
//! reason.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod common;

use common::calls::*;
use common::*;
use kvx::ffi::*;
use std::ffi::c_void;

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
        ("layout", INVALID, |c| (c.cache.k.layout, c.cache.v.layout) = (4, 4)),
        ("layouts differ", INVALID, |c| c.cache.v.layout ^= 1),
        ("dtypes differ", INVALID, |c| c.cache.v.dtype = KVX_DTYPE_BF16),
        ("dtype none", INVALID, |c| (c.cache.k.dtype, c.cache.v.dtype) = (0, 0)),
        ("dtype index", INVALID, |c| (c.cache.k.dtype, c.cache.v.dtype) = (6, 6)),
        ("dtype unknown", INVALID, |c| (c.cache.k.dtype, c.cache.v.dtype) = (11, 11)),
        ("k null", INVALID, |c| c.cache.k.data = null()),
        ("v null", INVALID, |c| c.cache.v.data = null()),
        ("ndim less", INVALID, |c| c.cache.k.ndim -= 1),
        ("ndim more", INVALID, |c| c.cache.v.ndim += 1),
        ("shape", INVALID, |c| c.cache.k.shape[3] += 1),
        ("shape negative", INVALID, |c| c.cache.v.shape[0] = -4),
        ("address space", INVALID, |c| c.cache.k.data = usize::MAX as *mut c_void),
        ("memory unknown", INVALID, |c| c.cache.k.memory = KVX_MEMORY_UNKNOWN),
        ("memory 4", INVALID, |c| c.cache.v.memory = 4),
        ("memory device", UNSUPPORTED, |c| c.cache.v.memory = KVX_MEMORY_DEVICE),
    ];
    let dense: &[Break] = &[
        ("stride", UNSUPPORTED, |c| c.cache.k.stride[0] += 1),
        ("stride 0", UNSUPPORTED, |c| c.cache.v.stride[3] = 0),
        ("stride negative", UNSUPPORTED, |c| c.cache.v.stride[1] = -1),
    ];
    let packed: &[Break] = &[
        ("pack 0", INVALID, |c| c.cache.k.shape[4] = 0),
        ("pack 3", INVALID, |c| (c.cache.k.shape[4], c.cache.k.shape[2]) = (3, 2)),
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
        assert_eq!([whole.validate(), whole.write(), whole.gather()], [0; 3], "{layout}");
        for (name, status, break_it) in rules {
            let mut c = make();
            break_it(&mut c);
            assert_eq!([c.validate(), c.write(), c.gather()], [*status; 3], "{name}, layout {layout}");
            c.assert_untouched(name);
        }
    }
}

/// The same shape and strides under two names, so that only the names differ.
#[test]
fn k_and_v_have_one_layout() {
    let mut c = Calls::new(PACKED, NHD, F16, F16);
    c.cache.v.layout = CUSTOM;
    assert_eq!([c.validate(), c.write(), c.gather()], [INVALID; 3]);
    c.cache.k.layout = CUSTOM;
    assert_eq!(c.validate(), KVX_STATUS_OK);
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
    let mut version = kvx_version_t { size: 0, abi_major: 0, abi_minor: 0, abi_patch: 9 };
    // SAFETY: valid for writes.
    assert_eq!(unsafe { kvx_get_version(&mut version) }, KVX_STATUS_OK);
    let got = (version.size, version.abi_major, version.abi_minor, version.abi_patch);
    assert_eq!(got, (16, 1, 1, 0));
}

#[test]
fn write_rules() {
    let rules: &[Break] = &[
        ("size", INVALID, |c| c.write.size = 511),
        ("slots size", INVALID, |c| c.write.slots.size = 31),
        ("slots dtype", INVALID, |c| c.write.slots.dtype = KVX_DTYPE_U32),
        ("token_count", INVALID, |c| c.write.slots.token_count = 5),
        ("slots null", INVALID, |c| c.write.slots.slots = null()),
        ("slot past the cache", RANGE, |c| c.slots[5] = 16),
        ("slot far past", RANGE, |c| c.slots[0] = i64::MAX),
        ("io in the cache", INVALID, |c| c.write.io.key.data = c.cache.v.data),
        ("slots in the cache", INVALID, |c| c.write.slots.slots = c.cache.k.data),
        ("K is V", INVALID, |c| c.cache.v.data = c.cache.k.data),
        ("K meets V", INVALID, |c| c.cache.v.data = c.cache.k.data.wrapping_byte_add(32)),
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
        ("none at all", INVALID, |c| c.write.v_scale_desc.data = null()),
        ("size", INVALID, |c| c.write.k_scale_desc.size = 103),
        ("dtype f16", UNSUPPORTED, |c| c.write.k_scale_desc.dtype = F16),
        ("dtype none", INVALID, |c| c.write.k_scale_desc.dtype = 0),
        ("granularity none", INVALID, |c| c.write.k_scale_desc.granularity = 0),
        ("granularity 5", INVALID, |c| c.write.k_scale_desc.granularity = 5),
        ("ndim", INVALID, |c| c.write.v_scale_desc.ndim = 1),
        ("ndim many", INVALID, |c| c.write.v_scale_desc.ndim = 6),
        ("per tensor of 4", INVALID, |c| c.write.v_scale_desc.granularity = KVX_SCALE_PER_TENSOR),
        ("shape blocks", INVALID, |c| c.write.v_scale_desc.shape[0] = 3),
        ("shape heads", INVALID, |c| c.write.v_scale_desc.shape[1] = 3),
        ("shape wide", INVALID, |c| c.write.v_scale_desc.shape[0] = (1 << 32) + 4),
        ("stride", INVALID, |c| c.write.v_scale_desc.stride[1] = -1),
        ("stride wide", INVALID, |c| c.write.v_scale_desc.stride[0] = i64::MAX),
        ("in the cache", INVALID, |c| c.write.k_scale_desc.data = c.cache.k.data),
        ("zero", INVALID, |c| c.scales[7] = 0.0),
        ("negative", INVALID, |c| c.scales[0] = -1.0),
        ("NaN", INVALID, |c| c.scales[4] = f32::NAN),
        ("infinite", INVALID, |c| c.scales[2] = f32::INFINITY),
        ("narrow to narrow", INVALID, |c| (c.write.io.key.dtype, c.write.io.value.dtype) = (5, 5)),
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
    // Scales that lie in the cache are refused for that, and not only because what lies there happens to be no scale.
    let mut c = make();
    let len = c.pools[0].bytes().len();
    // SAFETY: K has so many bytes. 0x3f3f3f3f is about 0.75.
    unsafe { c.cache.k.data.cast::<u8>().write_bytes(0x3f, len) };
    (c.write.k_scale_desc.data, c.write.v_scale_desc.data) = (c.cache.k.data, c.cache.k.data);
    assert_eq!(c.write(), INVALID);
    assert!(c.pools[0].bytes().iter().all(|byte| *byte == 0x3f));

    // Where nothing is quantised, scales are not looked at.
    let mut c = Calls::new(PACKED, NHD, F16, F16);
    c.write.k_scale_desc.dtype = 77;
    assert_eq!(c.write(), KVX_STATUS_OK);
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

/// What does not depend on tokens is checked without any, and nothing else is.
#[test]
fn a_write_of_no_tokens_looks_at_all_but_strides_and_buffers() {
    let none = |cache, tokens| {
        let mut c = Calls::new(PACKED, NHD, cache, tokens);
        c.write.io = io(tokens, &[0], &DIMS, null(), null());
        c.write.slots.token_count = 0;
        c.write.slots.slots = null();
        c
    };
    let rules: &[Break] = &[
        ("strides", KVX_STATUS_OK, |c| (c.write.io.key.stride, c.write.io.value.stride) = ([-3; 5], [i64::MAX; 5])),
        ("shape", INVALID, |c| c.write.io.key.shape[1] = 3),
        ("dtypes", INVALID, |c| c.write.io.value.dtype = KVX_DTYPE_BF16),
        ("memory", INVALID, |c| c.write.io.value.memory = KVX_MEMORY_UNKNOWN),
        ("slots dtype", INVALID, |c| c.write.slots.dtype = KVX_DTYPE_U64),
        ("K is V", INVALID, |c| c.cache.v.data = c.cache.k.data),
    ];
    for (name, status, break_it) in rules {
        let mut c = none(F16, F16);
        break_it(&mut c);
        assert_eq!(c.write(), *status, "{name}");
    }
    // Scales of blocks have no block to be used for; the others are used by every write that quantises.
    for (granularity, ndim, status) in [
        (KVX_SCALE_PER_TENSOR, 0, INVALID),
        (KVX_SCALE_PER_HEAD, 1, INVALID),
        (KVX_SCALE_PER_BLOCK, 1, KVX_STATUS_OK),
        (KVX_SCALE_PER_BLOCK_HEAD, 2, KVX_STATUS_OK),
    ] {
        let mut c = none(KVX_DTYPE_F8_E4M3, F16);
        for desc in [&mut c.write.k_scale_desc, &mut c.write.v_scale_desc] {
            (desc.granularity, desc.ndim) = (granularity, ndim);
            desc.shape[0] = if granularity == KVX_SCALE_PER_HEAD { 2 } else { 4 };
        }
        assert_eq!(c.write(), KVX_STATUS_OK, "granularity {granularity}");
        c.scales = [f32::NAN; 8];
        assert_eq!(c.write(), status, "granularity {granularity}");
    }
}

#[test]
fn scales_of_blocks_without_a_token_may_be_anything() {
    // Slots 0, 1, 5, 15 and 9 are in all blocks; without 9, block 2 has no token.
    let mut c = Calls::new(PACKED, NHD, KVX_DTYPE_F8_E4M3, F16);
    c.slots[5] = -1;
    c.scales[4..6].fill(f32::NAN);
    assert_eq!(c.write(), KVX_STATUS_OK);
    // A token for it, and even one head of it counts.
    c.slots[5] = 9;
    c.scales[4] = 0.5;
    assert_eq!(c.write(), INVALID);
}

/// A gather only reads K and V, so that they may be one.
#[test]
fn k_and_v_that_overlap_are_refused_by_validation_and_writes_alike() {
    for layout in [NHD, KVX_LAYOUT_BLOCK_HND, PACKED_LAYOUT, CUSTOM] {
        for distance in [0, 2, 32, DIMS.row() * 2] {
            let mut c = Calls::new(PACKED, layout, F16, F16);
            c.cache.v.data = c.cache.k.data.wrapping_byte_add(distance);
            if distance > 0 {
                c.cache.num_blocks = 3;
                (c.cache.k.shape[0], c.cache.v.shape[0]) = (3, 3);
                c.entries[1] = 2;
            }
            assert_eq!([c.validate(), c.write()], [INVALID; 2], "layout {layout}, {distance}");
            c.assert_untouched("refused");
            assert_eq!(c.gather(), KVX_STATUS_OK, "layout {layout}, {distance}");
        }
    }
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
    assert_eq!(c.validate(), KVX_STATUS_OK);
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
