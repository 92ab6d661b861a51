//! Runs of FP8 caches whose tokens are wider: converted in place where heads are contiguous, and by way of a stage where not.

use std::mem::MaybeUninit;

use super::codes::{Codes, GroupedHead};
use super::convert::{Convert, Rows};
use super::grid::{self, Grid, GridSteps};
use super::{Direction, Mover, STAGE_BYTES, stream};
use crate::scale::Scale;

/// The part of a stage that a write fills at a time, so that what is read ahead meanwhile is not too much at once.
const WRITE_STAGE: usize = STAGE_BYTES / 4;

/// Tokens whose heads are quantised one after another where tiles leave the registers as codes. A head of the next is read
/// ahead meanwhile, and both must fit the first-level cache; with twice as many it was slower.
const TILE_TOKENS: usize = 16;

impl Mover<'_> {
    /// Whether the tokens of a group follow each other in the cache.
    pub(super) fn is_turned(&self) -> bool {
        self.tensor.steps.groups > 1 && self.tensor.steps.token == self.tensor.steps.unit
    }

    /// Layouts in which the tokens of a group follow each other: by way of `stage`, which holds some tokens of a head in
    /// the order of the cache, but wide. So what is converted is contiguous, and what is transposed has large units.
    ///
    /// # Safety
    /// As [`run`](Self::run), for `tokens` tokens that start at `cache` and `io`.
    pub(super) unsafe fn convert_turned(
        &self,
        (convert, scale, block): (Convert, &Scale<'_>, u64),
        cache: *mut u8,
        io: *mut u8,
        tokens: usize,
        stage: &mut [MaybeUninit<u8>],
    ) {
        let steps = &self.tensor.steps;
        let (head_bytes, unit) = (self.dim * self.io_size, steps.unit * self.io_size);
        let io_steps = GridSteps { token: self.io_step, head: head_bytes, group: unit };
        let first = match (self.direction, &self.codes) {
            (Direction::Write, Some(codes)) => {
                let first = Codes::whole_groups(steps.groups, steps.unit, tokens);
                // SAFETY: the first of the tokens, which the table was made for.
                unsafe { self.quantise_tiles(codes, cache, io, first) };
                first
            }
            _ => 0,
        };
        let room = if self.direction == Direction::Write { WRITE_STAGE.min(stage.len()) } else { stage.len() };
        let at_once = (room / head_bytes).max(1);
        let stage = stage.as_mut_ptr().cast::<u8>();
        for done in (first..tokens).step_by(at_once) {
            let count = at_once.min(tokens - done);
            let staged = GridSteps { token: unit, head: 0, group: count * unit };
            let grid = Grid { tokens: count, heads: 1, groups: steps.groups, unit };
            // The groups of whole blocks follow each other too.
            let row = count * steps.unit;
            let (rows, n) = if steps.group == row { (1, row * steps.groups) } else { (steps.groups, row) };
            for head in 0..self.heads {
                let scale = scale.at(block, head);
                // SAFETY: these are tokens done..done + count of a head, and as many fit the stage.
                unsafe {
                    let near = (cache.add(done * steps.token + head * steps.head), steps.group);
                    let far = (stage, staged.group);
                    let io = io.add(done * io_steps.token + head * head_bytes);
                    if self.direction == Direction::Write {
                        // The stage is read at once, so it is not to pass the caches by.
                        grid::copy::<false>(io, io_steps, stage, staged, grid);
                        // What comes next is read while this is quantised: the next head, or the first of the next tokens.
                        let last = head + 1 == self.heads;
                        let next = if last {
                            io.wrapping_add(count * io_steps.token).wrapping_sub(head * head_bytes)
                        } else {
                            io.add(head_bytes)
                        };
                        for token in 0..count {
                            stream::read_ahead(next.wrapping_add(token * io_steps.token), head_bytes);
                        }
                    }
                    self.convert(convert, near, far, rows, n, scale);
                    if self.direction == Direction::Gather {
                        self.copy(stage, staged, io, io_steps, grid);
                    }
                }
            }
        }
    }

    /// The part of [`convert_turned`](Self::convert_turned) that needs no stage.
    ///
    /// # Safety
    /// As there, for a number of tokens that [`Codes::whole_groups`] gave.
    unsafe fn quantise_tiles(&self, codes: &Codes, cache: *mut u8, io: *const u8, tokens: usize) {
        let steps = &self.tensor.steps;
        let head_bytes = self.dim * self.io_size;
        for done in (0..tokens).step_by(TILE_TOKENS) {
            let count = TILE_TOKENS.min(tokens - done);
            for head in 0..self.heads {
                let at = head * head_bytes;
                // What comes next: the next head, or the first of the next tokens.
                let last = head + 1 == self.heads;
                let ahead = if last { (count * self.io_step).wrapping_sub(at) } else { head_bytes };
                let grouped = GroupedHead {
                    tokens: count,
                    groups: steps.groups,
                    src_step: self.io_step,
                    dst_step: steps.group,
                    ahead: ahead as isize,
                    stream: self.stream,
                };
                // SAFETY: a head of some of the tokens.
                unsafe {
                    let near = cache.add(done * steps.token + head * steps.head);
                    codes.quantise_groups(io.add(done * self.io_step + at), near, grouped);
                }
            }
        }
    }

    /// Layouts that scatter a head: by way of `stage`, which holds some tokens densely.
    ///
    /// # Safety
    /// As [`run`](Self::run), for `tokens` tokens that start at `cache` and `io`.
    pub(super) unsafe fn convert_staged(
        &self,
        quantiser: (Convert, &Scale<'_>, u64),
        cache: *mut u8,
        io: *mut u8,
        tokens: usize,
        stage: &mut [MaybeUninit<u8>],
    ) {
        let row = self.heads * self.dim;
        let staged = GridSteps { token: row, head: self.dim, group: self.tensor.steps.unit };
        let at_once = stage.len() / row;
        let stage = stage.as_mut_ptr().cast::<u8>();
        for done in (0..tokens).step_by(at_once) {
            let count = at_once.min(tokens - done);
            // SAFETY: these are tokens done..done + count, and as many fit the stage.
            unsafe {
                let cache = cache.add(done * self.tensor.steps.token);
                let io = io.add(done * self.io_step);
                if self.direction == Direction::Gather {
                    // The stage is read at once, so it is not to pass the caches by.
                    grid::copy::<false>(cache, self.cache_steps(), stage, staged, self.grid(count));
                }
                self.convert_rows(quantiser, stage, (row, self.dim), io, count);
                if self.direction == Direction::Write {
                    self.copy(cache, self.cache_steps(), stage, staged, self.grid(count));
                }
            }
        }
    }

    /// Converts between heads that are contiguous at `near`, token and head being so many bytes
    /// apart, and the tokens at `io`.
    ///
    /// # Safety
    /// As [`run`](Self::run), for `tokens` tokens that start at `near` and `io`.
    pub(super) unsafe fn convert_rows(
        &self,
        (convert, scale, block): (Convert, &Scale<'_>, u64),
        near: *mut u8,
        (token_step, head_step): (usize, usize),
        io: *mut u8,
        tokens: usize,
    ) {
        let row = self.heads * self.dim;
        let dense = (self.heads == 1 || head_step == self.dim)
            && (tokens == 1 || (token_step == row && self.io_step == row * self.io_size));
        // SAFETY: where both sides are dense, all is one row; else `token` and `head` are in it.
        unsafe {
            if dense && !scale.varies_by_head() {
                return self.convert(convert, (near, 0), (io, 0), 1, tokens * row, scale.at(block, 0));
            }
            // In the order of what is read, as in `grid::copy`.
            if self.direction == Direction::Gather && head_step > token_step {
                for head in 0..self.heads {
                    let near = (near.add(head * head_step), token_step);
                    let far = (io.add(head * self.dim * self.io_size), self.io_step);
                    self.convert(convert, near, far, tokens, self.dim, scale.at(block, head));
                }
                return;
            }
            for token in 0..tokens {
                let near = (near.add(token * token_step), head_step);
                let far = (io.add(token * self.io_step), self.dim * self.io_size);
                if !scale.varies_by_head() {
                    self.convert(convert, near, far, self.heads, self.dim, scale.at(block, 0));
                    continue;
                }
                for head in 0..self.heads {
                    let [near, far] = [near, far].map(|(start, step)| (start.add(head * step), 0));
                    self.convert(convert, near, far, 1, self.dim, scale.at(block, head));
                }
            }
        }
    }

    /// Converts rows of `n` elements between the cache (or stage) and tokens, in this direction.
    /// Each side is where it starts, and the bytes from a row to the next.
    ///
    /// # Safety
    /// As [`Convert`].
    unsafe fn convert(
        &self,
        convert: Convert,
        (near, near_step): (*mut u8, usize),
        (far, far_step): (*mut u8, usize),
        count: usize,
        n: usize,
        scale: f32,
    ) {
        // A stage is read at once, so it is not to pass the caches by.
        let staged = match self.direction {
            Direction::Write => self.tensor.steps.groups > 1 && !self.is_turned(),
            Direction::Gather => self.is_turned(),
        };
        let (src_step, dst_step) = match self.direction {
            Direction::Write => (far_step, near_step),
            Direction::Gather => (near_step, far_step),
        };
        let rows = Rows { count, n, src_step, dst_step, stream: self.stream && !staged };
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match (self.direction, &self.codes) {
                (Direction::Write, Some(codes)) => codes.quantise(far, near, rows, (convert, scale)),
                (Direction::Write, None) => convert(far, near, rows, scale),
                (Direction::Gather, _) => convert(near, far, rows, scale),
            }
        }
    }
}
