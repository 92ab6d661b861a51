//! Transposes matrices of small units, which is what HND_PACKED asks for.
//!
//! In the cache, the tokens of one group of elements follow each other;
//! outside, the groups of one token do. Moving a head of a run is thus the
//! transpose of a matrix of units of `pack` elements.
//!
//! Tiles: a perfect shuffle of the rows of an N x N tile (interleave its first
//! half with its second) rotates the bits of an element's index by one, so
//! log2(N) of them swap row and column. One primitive, [`Lanes::zip`], serves
//! every unit below 16 bytes.

use super::lanes::Lanes;
use super::stream::LINE;
#[cfg(target_arch = "x86_64")]
use super::transpose_x86;

/// A matrix in memory: `rows` rows that start `src_row` bytes apart become columns, so that
/// `dst` has `cols` rows that start `dst_row` bytes apart. Units in a row are contiguous.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub rows: usize,
    pub cols: usize,
    /// Bytes of a unit.
    pub unit: usize,
    pub src_row: usize,
    pub dst_row: usize,
}

/// `dst[c][r] = src[r][c]`. `STREAM`: see [`grid::copy`](super::grid::copy); done only where the
/// rows of `dst` start on cache lines and units fill them four at a time: with smaller units, too
/// many lines are half-filled at once, which measured slower.
///
/// # Safety
/// `src` must be valid for reads of `cols` units at each of `rows` steps of `src_row`, `dst` for
/// writes of `rows` units at each of `cols` steps of `dst_row`; they must not overlap.
pub(crate) unsafe fn transpose<L: Lanes, const STREAM: bool>(src: *const u8, dst: *mut u8, m: Matrix) {
    // SAFETY: the caller's promise, passed on.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if L::NATIVE && transpose_x86::takes(&m) {
            return transpose_x86::transpose::<STREAM>(src, dst, m);
        }
        if STREAM && (dst as usize | m.dst_row).is_multiple_of(LINE) {
            match m.unit {
                16 => return units::<L, 1, true>(src, dst, m),
                32 => return units::<L, 2, true>(src, dst, m),
                64 => return units::<L, 4, true>(src, dst, m),
                _ => {}
            }
        }
        match m.unit {
            1 => tiles::<L, 1, 16>(src, dst, m),
            2 => tiles::<L, 2, 8>(src, dst, m),
            4 => tiles::<L, 4, 4>(src, dst, m),
            8 => tiles::<L, 8, 2>(src, dst, m),
            16 => units::<L, 1, false>(src, dst, m),
            32 => units::<L, 2, false>(src, dst, m),
            64 => units::<L, 4, false>(src, dst, m),
            _ => unit_by_unit(src, dst, m, 0..m.rows, 0..m.cols),
        }
    }
}

/// Units below 16 bytes: tiles of `N` vectors, the rest one by one. `U * N == 16`.
///
/// # Safety
/// As [`transpose`], where the unit is `U`.
#[inline(always)]
unsafe fn tiles<L: Lanes, const U: usize, const N: usize>(src: *const u8, dst: *mut u8, m: Matrix) {
    const { assert!(U * N == 16) };
    let (rows, cols) = (m.rows / N * N, m.cols / N * N);
    for c in (0..cols).step_by(N) {
        for r in (0..rows).step_by(N) {
            // SAFETY: rows r..r+N and columns c..c+N are inside the matrix, and N units are the
            // 16 bytes of a vector.
            unsafe {
                let from = src.add(r * m.src_row + c * U);
                let mut tile: [L; N] = std::array::from_fn(|i| L::load(from.add(i * m.src_row)));
                for _ in 0..N.ilog2() {
                    let old = tile;
                    for i in 0..N / 2 {
                        (tile[2 * i], tile[2 * i + 1]) = L::zip::<U>(old[i], old[i + N / 2]);
                    }
                }
                let to = dst.add(c * m.dst_row + r * U);
                for (i, row) in tile.into_iter().enumerate() {
                    row.store(to.add(i * m.dst_row));
                }
            }
        }
    }
    // SAFETY: both rests are inside the matrix.
    unsafe {
        unit_by_unit(src, dst, m, rows..m.rows, 0..cols);
        unit_by_unit(src, dst, m, 0..m.rows, cols..m.cols);
    }
}

/// Units of `V` vectors. Four rows by four columns at a time, because with 16-byte units that
/// is a whole cache line on both sides.
///
/// # Safety
/// As [`transpose`], where the unit is `16 * V`.
#[inline(always)]
unsafe fn units<L: Lanes, const V: usize, const STREAM: bool>(src: *const u8, dst: *mut u8, m: Matrix) {
    const N: usize = 4;
    let (rows, cols) = (m.rows / N * N, m.cols / N * N);
    for c in (0..cols).step_by(N) {
        for r in (0..rows).step_by(N) {
            // SAFETY: rows r..r+N and columns c..c+N are inside the matrix.
            unsafe {
                let from = src.add(r * m.src_row + c * 16 * V);
                let to = dst.add(c * m.dst_row + r * 16 * V);
                for j in 0..N {
                    for i in 0..N {
                        for v in 0..V {
                            let unit = L::load(from.add(i * m.src_row + (j * V + v) * 16));
                            put::<L, STREAM>(unit, to.add(j * m.dst_row + (i * V + v) * 16));
                        }
                    }
                }
            }
        }
    }
    // SAFETY: both rests are inside the matrix.
    unsafe {
        unit_by_unit(src, dst, m, rows..m.rows, 0..cols);
        unit_by_unit(src, dst, m, 0..m.rows, cols..m.cols);
    }
}

/// # Safety
/// As [`Lanes::store`], and aligned to 16 bytes where `STREAM`.
#[inline(always)]
unsafe fn put<L: Lanes, const STREAM: bool>(lanes: L, p: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { if STREAM { lanes.stream(p) } else { lanes.store(p) } }
}

/// Any unit, any part of the matrix.
///
/// # Safety
/// As [`transpose`]; `rows` and `cols` must be inside the matrix.
pub(super) unsafe fn unit_by_unit(
    src: *const u8,
    dst: *mut u8,
    m: Matrix,
    rows: std::ops::Range<usize>,
    cols: std::ops::Range<usize>,
) {
    for c in cols {
        for r in rows.clone() {
            // SAFETY: unit (r, c) is inside the matrix on both sides.
            unsafe {
                let from = src.add(r * m.src_row + c * m.unit);
                let to = dst.add(c * m.dst_row + r * m.unit);
                super::grid::copy_unit(from, to, m.unit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::lanes::{Native, Portable};
    use super::*;

    /// Sizes around every tile edge, rows and columns spaced wider than they are, poison between.
    #[test]
    fn every_unit_and_size_matches_the_definition_on_native_and_portable_lanes() {
        for unit in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 80] {
            for rows in [1, 2, 3, 4, 5, 8, 15, 16, 17, 33] {
                for cols in [1, 2, 4, 7, 8, 16, 18, 32] {
                    check(rows, cols, unit);
                }
            }
        }
    }

    /// Past the caches and not, into rows that begin lines, where the longer rows are on the one side and on the other.
    #[test]
    fn rows_that_begin_lines_are_streamed() {
        for (rows, cols) in [(4usize, 4), (16, 16), (5, 21), (33, 8)] {
            for unit in [16usize, 32, 64] {
                let dst_row = (rows * unit).next_multiple_of(LINE) + LINE;
                for src_row in [cols * unit + 7, dst_row + cols * unit] {
                    checked(Matrix { rows, cols, unit, src_row, dst_row });
                }
            }
        }
    }

    fn check(rows: usize, cols: usize, unit: usize) {
        checked(Matrix { rows, cols, unit, src_row: cols * unit + 5, dst_row: rows * unit + 3 });
    }

    fn checked(m: Matrix) {
        let Matrix { rows, cols, unit, .. } = m;
        // 251 is prime, so neighbours and rows differ.
        let src: Vec<u8> = (0..rows * m.src_row).map(|i| (i % 251) as u8).collect();
        let mut want = vec![0xee; cols * m.dst_row];
        for r in 0..rows {
            for c in 0..cols {
                for b in 0..unit {
                    want[c * m.dst_row + r * unit + b] = src[r * m.src_row + c * unit + b];
                }
            }
        }
        type Transpose = unsafe fn(*const u8, *mut u8, Matrix);
        let ways: [(&str, Transpose); 4] = [
            ("native", transpose::<Native, false>),
            ("native, past the caches", transpose::<Native, true>),
            ("portable", transpose::<Portable, false>),
            ("portable, past the caches", transpose::<Portable, true>),
        ];
        for (name, transpose) in ways {
            let mut memory = vec![0xee; want.len() + LINE];
            let start = memory.as_ptr().align_offset(LINE);
            // SAFETY: the buffers are as long as the matrix says.
            unsafe { transpose(src.as_ptr(), memory[start..].as_mut_ptr(), m) };
            crate::kernel::stream::fence();
            assert!(memory[start..][..want.len()] == want, "{name}, {m:?}");
        }
    }
}
