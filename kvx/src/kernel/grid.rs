//! Copies a (token, head, group) grid of units between two sets of steps.
//!
//! Every plain copy of this crate is this one: the cache side and the outside
//! differ only in their steps, and write and gather only in which is which.

use super::lanes::Native;
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

/// Copies every unit of `grid`.
///
/// # Safety
/// `src` must be valid for reads and `dst` for writes of `grid.unit` bytes at every offset that
/// the grid and the side's steps describe, and no unit of the one may overlap one of the other.
pub(crate) unsafe fn copy(
    src: *const u8,
    src_steps: GridSteps,
    dst: *mut u8,
    dst_steps: GridSteps,
    grid: Grid,
) {
    if grid.groups > 1 {
        for head in 0..grid.heads {
            // SAFETY: `head` is in the grid.
            unsafe {
                let from = src.add(head * src_steps.head);
                let to = dst.add(head * dst_steps.head);
                copy_groups(from, src_steps, to, dst_steps, grid);
            }
        }
        return;
    }
    let dense = |s: GridSteps| {
        (grid.heads == 1 || s.head == grid.unit)
            && (grid.tokens == 1 || s.token == grid.heads * grid.unit)
    };
    // SAFETY: in the first case the grid is contiguous on both sides; in the others `token` and
    // `head` are in the grid. The destination is written front to back.
    unsafe {
        if dense(src_steps) && dense(dst_steps) {
            let len = grid.tokens * grid.heads * grid.unit;
            std::ptr::copy_nonoverlapping(src, dst, len);
        } else if dst_steps.head < dst_steps.token {
            for token in 0..grid.tokens {
                for head in 0..grid.heads {
                    let from = src.add(token * src_steps.token + head * src_steps.head);
                    let to = dst.add(token * dst_steps.token + head * dst_steps.head);
                    copy_unit(from, to, grid.unit);
                }
            }
        } else {
            for head in 0..grid.heads {
                for token in 0..grid.tokens {
                    let from = src.add(token * src_steps.token + head * src_steps.head);
                    let to = dst.add(token * dst_steps.token + head * dst_steps.head);
                    copy_unit(from, to, grid.unit);
                }
            }
        }
    }
}

/// One head whose elements lie in groups.
///
/// # Safety
/// As [`copy`], for a grid of one head.
unsafe fn copy_groups(src: *const u8, s: GridSteps, dst: *mut u8, d: GridSteps, grid: Grid) {
    let Grid {
        tokens,
        groups,
        unit,
        ..
    } = grid;
    // SAFETY: the matrix is the grid of this head; in the last case so are `token` and `group`.
    unsafe {
        if tokens > 1 && s.token == unit && d.group == unit {
            let m = Matrix {
                rows: groups,
                cols: tokens,
                unit,
                src_row: s.group,
                dst_row: d.token,
            };
            transpose::<Native>(src, dst, m);
        } else if tokens > 1 && s.group == unit && d.token == unit {
            let m = Matrix {
                rows: tokens,
                cols: groups,
                unit,
                src_row: s.token,
                dst_row: d.group,
            };
            transpose::<Native>(src, dst, m);
        } else {
            for token in 0..tokens {
                for group in 0..groups {
                    let from = src.add(token * s.token + group * s.group);
                    let to = dst.add(token * d.token + group * d.group);
                    copy_unit(from, to, unit);
                }
            }
        }
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
            1 => dst.write(src.read()),
            2 => std::ptr::copy_nonoverlapping(src, dst, 2),
            4 => std::ptr::copy_nonoverlapping(src, dst, 4),
            8 => std::ptr::copy_nonoverlapping(src, dst, 8),
            16 => std::ptr::copy_nonoverlapping(src, dst, 16),
            _ => std::ptr::copy_nonoverlapping(src, dst, len),
        }
    }
}
