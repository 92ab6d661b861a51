//! Units of 16 bytes, by AVX-512: four by four in registers, whole lines on both sides.
//!
//! They are the groups of HND_PACKED with 8 elements of 16 bits, and what FP8 is staged as on its way there and back.

use std::arch::x86_64::*;

use super::stream::LINE;
use super::transpose::{Matrix, unit_by_unit};

const UNIT: usize = 16;
const N: usize = 4;

/// Whether [`transpose`] does for such a matrix.
#[inline(always)]
pub(super) fn takes(m: &Matrix) -> bool {
    m.unit == UNIT && m.rows >= N && m.cols >= N && is_x86_feature_detected!("avx512f")
}

/// [`transpose`](super::transpose::transpose) of a matrix that this [`takes`].
///
/// # Safety
/// As there.
pub(super) unsafe fn transpose<const STREAM: bool>(src: *const u8, dst: *mut u8, m: Matrix) {
    // SAFETY: the caller's promise; lines begin where each store is streamed to.
    unsafe {
        if STREAM && (dst as usize | m.dst_row).is_multiple_of(LINE) {
            tiles::<true>(src, dst, m);
        } else {
            tiles::<false>(src, dst, m);
        }
    }
}

/// # Safety
/// AVX-512 F; as [`transpose`], and `dst` and its rows begin lines where `STREAM`.
#[target_feature(enable = "avx512f")]
unsafe fn tiles<const STREAM: bool>(src: *const u8, dst: *mut u8, m: Matrix) {
    let (rows, cols) = (m.rows / N * N, m.cols / N * N);
    // SAFETY: rows r..r+N and columns c..c+N are inside the matrix; both rests are, too.
    unsafe {
        // Along the longer rows, those of tokens, as few at a time as can be: lines of one that are written apart from each
        // other were 2 to 3 times as slow in blocks of 64 tokens.
        let down = m.dst_row > m.src_row;
        let (outer, inner) = if down { (cols, rows) } else { (rows, cols) };
        for i in (0..outer).step_by(N) {
            for j in (0..inner).step_by(N) {
                let (r, c) = if down { (j, i) } else { (i, j) };
                let tile = transposed(src.add(r * m.src_row + c * UNIT), m.src_row);
                let to = dst.add(c * m.dst_row + r * UNIT);
                for (i, line) in tile.into_iter().enumerate() {
                    put::<STREAM>(to.add(i * m.dst_row), line);
                }
            }
        }
        unit_by_unit(src, dst, m, rows..m.rows, 0..cols);
        unit_by_unit(src, dst, m, 0..m.rows, cols..m.cols);
    }
}

/// Four units of each of four rows that lie `step` apart: the first units of all, the second, and so on.
///
/// # Safety
/// AVX-512 F; 64 bytes at each of four steps from `p` on.
#[inline(always)]
pub(super) unsafe fn transposed(p: *const u8, step: usize) -> [__m512i; N] {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (_mm512_loadu_si512(p.cast()), _mm512_loadu_si512(p.add(step).cast()));
        let (c, d) = (_mm512_loadu_si512(p.add(2 * step).cast()), _mm512_loadu_si512(p.add(3 * step).cast()));
        // Of the units 0 to 3: two of the one row, then two of the other.
        let ab_even = _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b);
        let ab_odd = _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b);
        let cd_even = _mm512_shuffle_i64x2::<0b10_00_10_00>(c, d);
        let cd_odd = _mm512_shuffle_i64x2::<0b11_01_11_01>(c, d);
        [
            _mm512_shuffle_i64x2::<0b10_00_10_00>(ab_even, cd_even),
            _mm512_shuffle_i64x2::<0b10_00_10_00>(ab_odd, cd_odd),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(ab_even, cd_even),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(ab_odd, cd_odd),
        ]
    }
}

/// # Safety
/// AVX-512 F; room for 64 bytes at `to`, where a line begins if `STREAM`.
#[inline(always)]
pub(super) unsafe fn put<const STREAM: bool>(to: *mut u8, x: __m512i) {
    // SAFETY: the caller's promise.
    unsafe { if STREAM { _mm512_stream_si512(to.cast(), x) } else { _mm512_storeu_si512(to.cast(), x) } }
}
