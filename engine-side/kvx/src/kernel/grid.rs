//! Copies a (token, head, group) grid of units between two sets of steps.
//!
//! Every plain copy of this crate is this one: the cache side and the outside
//! differ only in their steps, and write and gather only in which is which.

use super::lanes::Native;
use super::stream::{LINE, stream};
use super::transpose::{Matrix, transpose};

/// The extents of a grid; a unit is contiguous on both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub tokens: usize,
    pub heads: usize,
    pub groups: usize,
    /// Bytes of a unit.
    pub unit: usize,
}

/// Bytes from a token, head or group to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GridSteps {
    pub token: usize,
    pub head: usize,
    pub group: usize,
}

/// Copies every unit of `grid`. `STREAM`: with stores that pass by the caches, for calls that
/// move more than caches hold; [`fence`](super::stream::fence) must follow.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `grid.unit` bytes at every offset that
/// the grid and the side's steps describe, and no unit of the one may overlap one of the other.
pub(crate) unsafe fn copy<const STREAM: bool>(
    src: *const u8,
    src_steps: GridSteps,
    dst: *mut u8,
    dst_steps: GridSteps,
    grid: Grid,
) {
    if grid.groups > 1 {
        if grid.tokens == 1 {
            // SAFETY: the caller's promise.
            return unsafe { copy_token(src, src_steps, dst, dst_steps, grid) };
        }
        for head in 0..grid.heads {
            // SAFETY: `head` is in the grid.
            unsafe {
                let from = src.add(head * src_steps.head);
                let to = dst.add(head * dst_steps.head);
                copy_groups::<STREAM>(from, src_steps, to, dst_steps, grid);
            }
        }
        return;
    }
    let dense = |s: GridSteps| {
        (grid.heads == 1 || s.head == grid.unit) && (grid.tokens == 1 || s.token == grid.heads * grid.unit)
    };
    // SAFETY: in the first case the grid is contiguous on both sides; in the other, each token and
    // head is in the grid.
    unsafe {
        if dense(src_steps) && dense(dst_steps) {
            copy_bytes::<STREAM>(src, dst, grid.tokens * grid.heads * grid.unit);
            return;
        }
        // In the order of what is read, which the CPU then reads ahead: a gather from HND by heads is 1.3 to 1.6 times as
        // fast as by tokens, and a write by tokens twice as fast as by heads.
        let token = (grid.tokens, src_steps.token, dst_steps.token);
        let head = (grid.heads, src_steps.head, dst_steps.head);
        let (outer, inner) = if src_steps.head > src_steps.token { (head, token) } else { (token, head) };
        for i in 0..outer.0 {
            for j in 0..inner.0 {
                let from = src.add(i * outer.1 + j * inner.1);
                copy_bytes::<STREAM>(from, dst.add(i * outer.2 + j * inner.2), grid.unit);
            }
        }
    }
}

/// One token whose elements lie in groups: units all over a block. Mostly the groups of all heads are equally far apart.
///
/// # Safety
/// As [`copy`], for a grid of one token.
unsafe fn copy_token(src: *const u8, s: GridSteps, dst: *mut u8, d: GridSteps, grid: Grid) {
    let Grid { mut heads, mut groups, unit, .. } = grid;
    if s.head == groups * s.group && d.head == groups * d.group {
        (heads, groups) = (1, heads * groups);
    }
    for head in 0..heads {
        // SAFETY: `head` is in the grid, and its groups are.
        unsafe {
            let (src, dst) = (src.add(head * s.head), dst.add(head * d.head));
            // The unit is picked once for all groups: a token has nothing else to spread it over.
            match unit {
                2 => units::<2>(src, s.group, dst, d.group, groups, unit),
                4 => units::<4>(src, s.group, dst, d.group, groups, unit),
                8 => units::<8>(src, s.group, dst, d.group, groups, unit),
                16 => units::<16>(src, s.group, dst, d.group, groups, unit),
                32 => units::<32>(src, s.group, dst, d.group, groups, unit),
                _ => units::<0>(src, s.group, dst, d.group, groups, unit),
            }
        }
    }
}

/// One head whose elements lie in groups.
///
/// # Safety
/// As [`copy`], for a grid of one head.
unsafe fn copy_groups<const STREAM: bool>(src: *const u8, s: GridSteps, dst: *mut u8, d: GridSteps, grid: Grid) {
    let Grid { tokens, groups, unit, .. } = grid;
    // SAFETY: the matrix is the grid of this head; in the last case so are `token` and `group`.
    unsafe {
        if tokens > 1 && s.token == unit && d.group == unit {
            let m = Matrix { rows: groups, cols: tokens, unit, src_row: s.group, dst_row: d.token };
            transpose::<Native, STREAM>(src, dst, m);
        } else if tokens > 1 && s.group == unit && d.token == unit {
            let m = Matrix { rows: tokens, cols: groups, unit, src_row: s.token, dst_row: d.group };
            transpose::<Native, STREAM>(src, dst, m);
        } else {
            let one = Grid { tokens: 1, heads: 1, ..grid };
            for token in 0..tokens {
                copy_token(src.add(token * s.token), s, dst.add(token * d.token), d, one);
            }
        }
    }
}

/// Copies `count` units that lie so many bytes apart. `UNIT`: their bytes, or 0 for any.
///
/// # Safety
/// As [`copy_unit`], at each step of both sides.
#[inline(always)]
unsafe fn units<const UNIT: usize>(
    src: *const u8,
    src_step: usize,
    dst: *mut u8,
    dst_step: usize,
    count: usize,
    unit: usize,
) {
    /// So many at a time, or else counting takes as long as copying.
    const AT_ONCE: usize = 8;
    let unit = if UNIT > 0 { UNIT } else { unit };
    let whole = if UNIT > 0 { count / AT_ONCE * AT_ONCE } else { 0 };
    // SAFETY: every unit is one of the caller's.
    unsafe {
        for first in (0..whole).step_by(AT_ONCE) {
            let (src, dst) = (src.add(first * src_step), dst.add(first * dst_step));
            for i in 0..AT_ONCE {
                std::ptr::copy_nonoverlapping(src.add(i * src_step), dst.add(i * dst_step), unit);
            }
        }
        for i in whole..count {
            std::ptr::copy_nonoverlapping(src.add(i * src_step), dst.add(i * dst_step), unit);
        }
    }
}

/// Copies whole cache lines past the caches where `STREAM` and the destination's alignment
/// allow, and the rest as usual.
///
/// # Safety
/// As [`copy_unit`].
#[inline(always)]
unsafe fn copy_bytes<const STREAM: bool>(src: *const u8, dst: *mut u8, len: usize) {
    // Short rows that start amid a line would leave half-filled lines on both ends, which is
    // slower than not streaming at all.
    let head = dst.align_offset(LINE);
    if !STREAM || (head > 0 && len < 64 * LINE) {
        // SAFETY: the caller's promise.
        return unsafe { copy_unit(src, dst, len) };
    }
    // SAFETY: the three parts make up `len`, and the middle starts and ends on a line.
    unsafe {
        copy_unit(src, dst, head);
        let lines = (len - head) / LINE * LINE;
        stream(src.add(head), dst.add(head), lines);
        copy_unit(src.add(head + lines), dst.add(head + lines), len - head - lines);
    }
}

/// Copies `len` bytes; small powers of two without a call.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `len` bytes; they must not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_unit(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's promise; constant lengths become plain loads and stores.
    unsafe {
        match len {
            0 => {}
            1 => dst.write(src.read()),
            2 => std::ptr::copy_nonoverlapping(src, dst, 2),
            4 => std::ptr::copy_nonoverlapping(src, dst, 4),
            8 => std::ptr::copy_nonoverlapping(src, dst, 8),
            16 => std::ptr::copy_nonoverlapping(src, dst, 16),
            _ => std::ptr::copy_nonoverlapping(src, dst, len),
        }
    }
}
