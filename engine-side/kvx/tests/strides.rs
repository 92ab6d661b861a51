//! Tokens that are slices of a fused projection: what engines have, without a copy.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod common;

use common::calls::*;
use common::*;
use kvx::ffi::*;

/// Elements of Q, K and V of one token, as one projection computes them: 4 heads of Q, 2 of K, 2 of V.
const FUSED: usize = (4 + 2 + 2) * 8;
const K_AT: usize = 4 * 8;
const V_AT: usize = 6 * 8;

/// `tokens` tokens of K and V in `fused`, with those leading dimensions.
fn sliced(fused: &mut Guarded, leading: &[i64], dtype: u32) -> kvx_kv_io_desc_t {
    let at = |element: usize| element * size_of_dtype(dtype);
    let base = fused.ptr();
    let mut io = io(dtype, leading, &DIMS, base.wrapping_byte_add(at(K_AT)), base.wrapping_byte_add(at(V_AT)));
    spread(&mut io.key, FUSED, 0);
    spread(&mut io.value, FUSED, 0);
    io
}

/// The bytes of one side of one token.
fn part(fused: &[u8], token: usize, at: usize) -> Vec<u8> {
    fused[(token * FUSED + at) * 2..][..DIMS.row() * 2].to_vec()
}

#[test]
fn slices_of_a_fused_projection_are_written_and_gathered_in_place() {
    for layout in [NHD, KVX_LAYOUT_BLOCK_HND, PACKED_LAYOUT, CUSTOM] {
        let source = noise(TOKENS * FUSED * 2, 7);
        let mut fused = Guarded::from(&source, 0);
        let mut c = Calls::new(PACKED, layout, F16, F16);
        c.write.io = sliced(&mut fused, &[TOKENS as i64], F16);
        c.slots = [4, 5, 6, 7, 0, 1];
        assert_eq!(c.write(), KVX_STATUS_OK, "layout {layout}");
        fused.assert_is(&source, "tokens are only read");

        // Two sequences of three tokens, K and V into the gaps of each other and of Q.
        let mut out = Guarded::new(TOKENS * FUSED * 2, 0);
        c.gather.io = sliced(&mut out, &[2, 3], F16);
        c.entries = vec![1, 0];
        c.gather.block_table.indices = c.entries.as_ptr().cast();
        c.lens = [3, 2];
        assert_eq!(c.gather(), KVX_STATUS_OK, "layout {layout}");
        let mut want = vec![POISON; TOKENS * FUSED * 2];
        for (row, token) in [(0, 0), (1, 1), (2, 2), (3, 4), (4, 5)] {
            for at in [K_AT, V_AT] {
                want[(row * FUSED + at) * 2..][..DIMS.row() * 2].copy_from_slice(&part(&source, token, at));
            }
        }
        out.assert_is(&want, "gathered");
    }
}

#[test]
fn rows_that_share_a_byte_are_refused() {
    let mut out = Guarded::new(TOKENS * FUSED * 2, 0);
    let mut c = Calls::new(PACKED, NHD, F16, F16);
    c.gather.io = sliced(&mut out, &[2, 3], F16);
    let key = c.gather.io.key.data;
    // One element into the last element of K, and as far into the K of the next token.
    for bytes in [DIMS.row() * 2 - 2, (FUSED - DIMS.row()) * 2 + 2, 3 * FUSED * 2] {
        c.gather.io.value.data = key.wrapping_byte_add(bytes);
        assert_eq!(c.gather(), INVALID, "{bytes}");
        out.assert_is(&[POISON; TOKENS * FUSED * 2], "refused");
    }
    // Of other strides than each other's, rows are not told apart.
    c.gather.io = sliced(&mut out, &[2, 3], F16);
    spread(&mut c.gather.io.value, FUSED + 8, 0);
    assert_eq!(c.gather(), INVALID);
    // Sequences are as far apart as their tokens say.
    c.gather.io = sliced(&mut out, &[2, 3], F16);
    c.gather.io.key.stride[0] += FUSED as i64;
    assert_eq!(c.gather(), UNSUPPORTED);
    // The gaps belong to the tokens: no pool may lie there.
    c.write.io = sliced(&mut out, &[TOKENS as i64], F16);
    c.cache.v.data = out.ptr();
    assert_eq!(c.write(), INVALID);
}
