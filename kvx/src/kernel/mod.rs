//! Moves one run of tokens of K, or of V, between a cache and dense tokens.
//!
//! A [`Mover`] is made once per call and tensor; what is decided there (which
//! conversion, which instruction set) is not decided again per run.

// Elsewhere there is no table yet: `Codes::new` answers none.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_variables))]
mod codes;
mod convert;
#[cfg(target_arch = "x86_64")]
mod convert_x86;
mod float;
mod grid;
mod lanes;
mod stream;
mod transpose;

use crate::cache::Tensor;
use crate::dtype::DType;
use crate::error::{Result, internal, invalid};
use crate::layout::CacheShape;
use crate::run::Run;
use crate::scale::Scale;
use codes::Codes;
use convert::{Convert, Isa, Rows};
use grid::{Grid, GridSteps};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From tokens into the cache.
    Write,
    /// From the cache into tokens.
    Gather,
}

/// Bytes of elements that are staged at a time where a layout scatters them: enough
/// tokens for a transpose to work on, and half of a first-level cache.
const STAGE_BYTES: usize = 16 << 10;

/// The part of a stage that a write fills at a time, so that what is read ahead meanwhile is not too much at once.
const WRITE_STAGE: usize = STAGE_BYTES / 4;

/// Calls that move at least this much store past the caches. It is more than the second-level
/// cache of any CPU; measured from 16 MiB on, such stores are 1.3 to 2 times as fast, because no
/// line is read only to be overwritten.
const STREAM_BYTES: u64 = 8 << 20;

/// Calls that move at least this much quantise by a table, which takes some 20 us to make.
const CODES_BYTES: u64 = 2 << 20;

/// One direction, one tensor, one type of tokens.
pub(crate) struct Mover<'a> {
    direction: Direction,
    tensor: Tensor,
    heads: usize,
    /// Elements of a head.
    dim: usize,
    /// Bytes of an element outside of the cache.
    io_size: usize,
    /// Whether to store past the caches.
    stream: bool,
    /// `None` for a plain copy.
    convert: Option<(Convert, Scale<'a>)>,
    /// Types of the cache and outside of it.
    types: (DType, DType),
    /// For large calls that quantise 16-bit numbers by one scale.
    codes: Option<Box<Codes>>,
}

impl<'a> Mover<'a> {
    /// # Errors
    /// `InvalidArgument` where the types differ and are not FP8 in the cache and wider outside,
    /// or where they are and no scale is given.
    pub fn new(
        direction: Direction,
        tensor: Tensor,
        shape: &CacheShape,
        (cache, io): (DType, DType),
        scale: Option<Scale<'a>>,
    ) -> Result<Self> {
        let convert = if cache == io {
            None
        } else {
            let isa = Isa::detect();
            let convert = match direction {
                Direction::Write => convert::quantise(isa, io, cache),
                Direction::Gather => convert::dequantise(isa, cache, io),
            };
            let convert =
                convert.ok_or_else(|| invalid(format!("a cache of {cache:?} does not convert to or from {io:?}")))?;
            let scale = scale.ok_or_else(|| invalid(format!("{cache:?} from or to {io:?} needs a scale")))?;
            scale.check_shape(shape)?;
            if !scale.varies_by_block() {
                scale.check_values(0, shape)?;
            }
            Some((convert, scale))
        };
        Ok(Mover {
            direction,
            tensor,
            heads: shape.num_kv_heads as usize,
            dim: shape.head_dim as usize,
            io_size: io.size(),
            stream: false,
            convert,
            types: (cache, io),
            codes: None,
        })
    }

    /// For a call that moves `bytes`, alone or as a part of `all`: whether they pass the caches
    /// by, and whether a table of codes is worth its making. [`finish`](Self::finish) must follow
    /// the last run of each thread.
    pub fn prepare(&mut self, bytes: u64, all: u64) {
        self.stream = bytes.max(all) >= STREAM_BYTES;
        if let (Direction::Write, Some((convert, scale))) = (self.direction, &self.convert)
            && bytes >= CODES_BYTES
            && !scale.varies_by_block()
            && !scale.varies_by_head()
        {
            self.codes = Codes::new(self.types.1, self.types.0, *convert, scale.at(0, 0));
        }
    }

    /// Makes what this thread has moved visible to whoever it tells.
    pub fn finish(&self) {
        if self.stream {
            stream::fence();
        }
    }

    /// Whether runs may go on in the next block: the layout is linear and so are the scales.
    pub fn crosses_blocks(&self, shape: &CacheShape) -> bool {
        let one_pool = self.tensor.block_step == self.tensor.steps.block;
        one_pool && self.tensor.steps.crosses_blocks(shape) && self.block_scale().is_none()
    }

    /// The scale, where it depends on the block and so has to be checked per run.
    pub fn block_scale(&self) -> Option<&Scale<'a>> {
        let scale = self.convert.as_ref().map(|(_, scale)| scale);
        scale.filter(|scale| scale.varies_by_block())
    }

    /// Memory that [`run`](Self::run) works in; each thread needs its own.
    pub fn stage(&self) -> Result<Vec<u8>> {
        let mut stage = Vec::new();
        if self.convert.is_some() && self.tensor.steps.groups > 1 {
            let len = (self.heads * self.dim).max(self.dim * self.io_size).max(STAGE_BYTES);
            (stage.try_reserve_exact(len)).map_err(|_| internal("no memory for a stage"))?;
            stage.resize(len, 0);
        }
        Ok(stage)
    }

    /// Moves `run`; `io` is token 0 of the dense tokens.
    ///
    /// # Safety
    /// `run` must lie in the tensor's part and in the tokens; what is read must be valid for
    /// reads, what is written for writes, and the two must not overlap. `stage` is from
    /// [`stage`](Self::stage).
    pub unsafe fn run(&self, run: &Run, io: *mut u8, stage: &mut [u8]) {
        let steps = &self.tensor.steps;
        let row = self.heads * self.dim * self.io_size;
        // SAFETY: the run is in the pool and in the tokens, whose extents fit an isize.
        let (cache, io) = unsafe {
            let block = self.tensor.parts[run.part].base.add(run.block as usize * self.tensor.block_step);
            (block.add(run.offset as usize * steps.token), io.add(run.io as usize * row))
        };
        let tokens = run.tokens as usize;
        // SAFETY: the caller's promise, passed on.
        unsafe {
            let Some((convert, scale)) = &self.convert else {
                let io_steps = GridSteps { token: row, head: self.dim * self.io_size, group: steps.unit };
                return self.copy(cache, self.cache_steps(), io, io_steps, self.grid(tokens));
            };
            let quantiser = (*convert, scale, run.block);
            if steps.groups == 1 {
                self.convert_rows(quantiser, cache, (steps.token, steps.head), io, tokens);
            } else if self.is_turned() {
                self.convert_turned(quantiser, cache, io, tokens, stage);
            } else {
                self.convert_staged(quantiser, cache, io, tokens, stage);
            }
        }
    }

    /// Whether the tokens of a group follow each other in the cache.
    fn is_turned(&self) -> bool {
        self.tensor.steps.groups > 1 && self.tensor.steps.token == self.tensor.steps.unit
    }

    /// Layouts in which the tokens of a group follow each other: by way of `stage`, which holds some tokens of a head in
    /// the order of the cache, but wide. So what is converted is contiguous, and what is transposed has large units.
    ///
    /// # Safety
    /// As [`run`](Self::run), for `tokens` tokens that start at `cache` and `io`.
    unsafe fn convert_turned(
        &self,
        (convert, scale, block): (Convert, &Scale<'_>, u64),
        cache: *mut u8,
        io: *mut u8,
        tokens: usize,
        stage: &mut [u8],
    ) {
        let steps = &self.tensor.steps;
        let (head_bytes, unit) = (self.dim * self.io_size, steps.unit * self.io_size);
        let io_steps = GridSteps { token: self.heads * head_bytes, head: head_bytes, group: unit };
        let room = if self.direction == Direction::Write { WRITE_STAGE.min(stage.len()) } else { stage.len() };
        let at_once = (room / head_bytes).max(1);
        let stage = stage.as_mut_ptr();
        for done in (0..tokens).step_by(at_once) {
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

    /// Layouts that scatter a head: by way of `stage`, which holds some tokens densely.
    ///
    /// # Safety
    /// As [`run`](Self::run), for `tokens` tokens that start at `cache` and `io`.
    unsafe fn convert_staged(
        &self,
        quantiser: (Convert, &Scale<'_>, u64),
        cache: *mut u8,
        io: *mut u8,
        tokens: usize,
        stage: &mut [u8],
    ) {
        let row = self.heads * self.dim;
        let staged = GridSteps { token: row, head: self.dim, group: self.tensor.steps.unit };
        let at_once = stage.len() / row;
        let stage = stage.as_mut_ptr();
        for done in (0..tokens).step_by(at_once) {
            let count = at_once.min(tokens - done);
            // SAFETY: these are tokens done..done + count, and as many fit the stage.
            unsafe {
                let cache = cache.add(done * self.tensor.steps.token);
                let io = io.add(done * row * self.io_size);
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
    unsafe fn convert_rows(
        &self,
        (convert, scale, block): (Convert, &Scale<'_>, u64),
        near: *mut u8,
        (token_step, head_step): (usize, usize),
        io: *mut u8,
        tokens: usize,
    ) {
        let row = self.heads * self.dim;
        let dense = (self.heads == 1 || head_step == self.dim) && (tokens == 1 || token_step == row);
        // SAFETY: where both sides are dense, all is one row; else `token` and `head` are in it.
        unsafe {
            if dense && !scale.varies_by_head() {
                return self.convert(convert, (near, 0), (io, 0), 1, tokens * row, scale.at(block, 0));
            }
            // Heads inside tokens, as in `grid::copy`.
            for token in 0..tokens {
                let near = (near.add(token * token_step), head_step);
                let far = (io.add(token * row * self.io_size), self.dim * self.io_size);
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
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.direction {
                Direction::Write => {
                    let rows = Rows { count, n, src_step: far_step, dst_step: near_step };
                    // A stage is read at once, so it is not to pass the caches by.
                    let stream = self.stream && (self.tensor.steps.groups == 1 || self.is_turned());
                    match &self.codes {
                        Some(codes) => codes.quantise(far, near, rows, (convert, scale), stream),
                        None => convert(far, near, rows, scale),
                    }
                }
                Direction::Gather => {
                    convert(near, far, Rows { count, n, src_step: near_step, dst_step: far_step }, scale)
                }
            }
        }
    }

    fn grid(&self, tokens: usize) -> Grid {
        Grid { tokens, heads: self.heads, groups: self.tensor.steps.groups, unit: self.tensor.steps.unit }
    }

    fn cache_steps(&self) -> GridSteps {
        let steps = &self.tensor.steps;
        GridSteps { token: steps.token, head: steps.head, group: steps.group }
    }

    /// Copies between the cache, `near`, and tokens or stage, `far`, in this direction.
    ///
    /// # Safety
    /// As [`grid::copy`].
    unsafe fn copy(&self, near: *mut u8, near_steps: GridSteps, far: *mut u8, far_steps: GridSteps, grid: Grid) {
        // SAFETY: the caller's promise, passed on.
        unsafe {
            match self.direction {
                Direction::Write if self.stream => grid::copy::<true>(far, far_steps, near, near_steps, grid),
                Direction::Write => grid::copy::<false>(far, far_steps, near, near_steps, grid),
                Direction::Gather if self.stream => grid::copy::<true>(near, near_steps, far, far_steps, grid),
                Direction::Gather => grid::copy::<false>(near, near_steps, far, far_steps, grid),
            }
        }
    }
}
