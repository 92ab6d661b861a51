//! Moves one run of tokens of K, or of V, between a cache and tokens outside of it.
//!
//! A [`Mover`] is made once per call and tensor; what is decided there (which
//! conversion, which instruction set) is not decided again per run.

#![allow(clippy::indexing_slicing, reason = "of arrays of a fixed length, whose indices were checked with the call")]

// Elsewhere there is no table yet: `Codes::new` answers none.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, unused_variables))]
mod codes;
mod convert;
#[cfg(target_arch = "x86_64")]
mod convert_x86;
mod float;
mod grid;
mod lanes;
mod quantised;
mod stream;
mod transpose;
#[cfg(target_arch = "x86_64")]
mod transpose_x86;
#[cfg(target_arch = "x86_64")]
mod vectors_x86;
#[cfg(target_arch = "x86_64")]
mod widths_x86;

use std::mem::MaybeUninit;

use crate::cache::Tensor;
use crate::dtype::DType;
use crate::error::{Result, internal, invalid};
use crate::layout::CacheShape;
use crate::run::Run;
use crate::scale::{KvScales, Scale};
use codes::Codes;
use convert::{Convert, Isa};
use grid::{Grid, GridSteps};
use stream::LINE;

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

/// Calls that move at least this much store past the caches. It is more than the second-level
/// cache of any CPU; measured from 16 MiB on, such stores are 1.3 to 2 times as fast, because no
/// line is read only to be overwritten.
const STREAM_BYTES: u64 = 8 << 20;

/// Calls that move at least this much quantise by a table, which takes some 20 us to make.
const CODES_BYTES: u64 = 2 << 20;

/// Memory that runs are staged in: on the stack of the call, but for heads that are too large for that.
pub(crate) struct Stage {
    near: MaybeUninit<[u8; STAGE_BYTES + LINE]>,
    far: Vec<MaybeUninit<u8>>,
}

impl Stage {
    #[inline(always)]
    pub fn new() -> Self {
        Stage { near: MaybeUninit::uninit(), far: Vec::new() }
    }

    /// `len` bytes.
    #[inline(always)]
    pub fn room(&mut self, len: usize) -> Result<&mut [MaybeUninit<u8>]> {
        if len <= STAGE_BYTES + LINE {
            // SAFETY: as many bytes as there are, which need not be initialised.
            return Ok(unsafe { std::slice::from_raw_parts_mut(self.near.as_mut_ptr().cast(), len) });
        }
        self.far.try_reserve_exact(len).map_err(|_| internal("no memory for a stage"))?;
        self.far.resize(len, MaybeUninit::uninit());
        Ok(&mut self.far)
    }
}

/// One direction, one tensor, one type of tokens.
pub(crate) struct Mover<'a> {
    direction: Direction,
    tensor: &'a Tensor,
    heads: usize,
    /// Elements of a head.
    dim: usize,
    /// Bytes of an element outside of the cache, and from a token to the next there.
    io_size: usize,
    io_step: usize,
    /// Whether to store past the caches.
    stream: bool,
    /// `None` for a plain copy.
    convert: Option<&'a Conversion<'a>>,
    /// For large calls that quantise 16-bit numbers by one scale.
    codes: Option<Box<Codes>>,
}

/// How elements are converted on the way between FP8 and wider tokens.
pub(crate) struct Conversion<'a> {
    convert: Convert,
    scale: Scale<'a>,
    /// Types of the cache and outside of it.
    types: (DType, DType),
}

impl<'a> Conversion<'a> {
    /// Those of K and of V; `None` for plain copies.
    ///
    /// # Errors
    /// `InvalidArgument` where the types differ and are not FP8 in the cache and wider outside,
    /// or where they are and no scale is given.
    #[inline(always)]
    pub fn both(
        direction: Direction,
        shape: &CacheShape,
        (cache, io): (DType, DType),
        scales: &Option<KvScales<'a>>,
    ) -> Result<Option<[Self; 2]>> {
        if cache == io {
            return Ok(None);
        }
        Self::of_types(direction, shape, (cache, io), scales).map(Some)
    }

    fn of_types(
        direction: Direction,
        shape: &CacheShape,
        types: (DType, DType),
        scales: &Option<KvScales<'a>>,
    ) -> Result<[Self; 2]> {
        let (cache, io) = types;
        let isa = Isa::detect();
        let convert = match direction {
            Direction::Write => convert::quantise(isa, io, cache),
            Direction::Gather => convert::dequantise(isa, cache, io),
        };
        let convert =
            convert.ok_or_else(|| invalid(format!("a cache of {cache:?} does not convert to or from {io:?}")))?;
        let scales = scales.ok_or_else(|| invalid(format!("{cache:?} from or to {io:?} needs a scale")))?;
        for scale in [&scales.k, &scales.v] {
            scale.check_shape(shape)?;
            if !scale.varies_by_block() {
                scale.check_values(0, shape)?;
            }
        }
        Ok([scales.k, scales.v].map(|scale| Conversion { convert, scale, types }))
    }
}

impl<'a> Mover<'a> {
    /// The movers of K and of V. `io_size`: bytes of an element outside, `steps`: of a token there.
    #[inline(always)]
    pub fn both(
        direction: Direction,
        tensors: [&'a Tensor; 2],
        shape: &CacheShape,
        io_size: usize,
        steps: [usize; 2],
        conversions: &'a Option<[Conversion<'a>; 2]>,
    ) -> [Self; 2] {
        let mover = |side: usize| Mover {
            direction,
            tensor: tensors[side],
            heads: shape.num_kv_heads as usize,
            dim: shape.head_dim as usize,
            io_size,
            io_step: steps[side],
            stream: false,
            convert: conversions.as_ref().map(|both| &both[side]),
            codes: None,
        };
        [mover(0), mover(1)]
    }

    /// For a call that moves `bytes`, alone or as a part of `all`: whether they pass the caches
    /// by, and whether a table of codes is worth its making. [`finish`](Self::finish) must follow
    /// the last run of each thread.
    #[inline(always)]
    pub fn prepare(&mut self, bytes: u64, all: u64) {
        self.stream = bytes.max(all) >= STREAM_BYTES;
        if let (Direction::Write, Some(Conversion { convert, scale, types })) = (self.direction, self.convert)
            && bytes >= CODES_BYTES
            && !scale.varies_by_block()
            && !scale.varies_by_head()
        {
            self.codes = Codes::new(types.1, types.0, *convert, scale.at(0, 0));
        }
    }

    /// Makes what this thread has moved visible to whoever it tells.
    #[inline(always)]
    pub fn finish(&self) {
        if self.stream {
            stream::fence();
        }
    }

    /// Whether runs may go on in the next block: the layout is linear and so are the scales.
    #[inline(always)]
    pub fn crosses_blocks(&self, shape: &CacheShape) -> bool {
        let one_pool = self.tensor.block_step == self.tensor.steps.block;
        one_pool && self.tensor.steps.crosses_blocks(shape) && self.block_scale().is_none()
    }

    /// The scale, where it depends on the block and so has to be checked per run.
    #[inline(always)]
    pub fn block_scale(&self) -> Option<&Scale<'a>> {
        self.convert.map(|conversion| &conversion.scale).filter(|scale| scale.varies_by_block())
    }

    /// Bytes of memory that [`run`](Self::run) works in; each thread needs its own [`Stage`].
    #[inline(always)]
    pub fn stage_len(&self) -> usize {
        if self.convert.is_none() || self.tensor.steps.groups == 1 {
            return 0;
        }
        (self.heads * self.dim).max(self.dim * self.io_size).max(STAGE_BYTES) + LINE
    }

    /// Moves `run`; `io` is token 0 outside.
    ///
    /// # Safety
    /// `run` must lie in the tensor's part and in the tokens; what is read must be valid for
    /// reads, what is written for writes, and the two must not overlap. `stage` has
    /// [`stage_len`](Self::stage_len) bytes.
    pub unsafe fn run(&self, run: &Run, io: *mut u8, stage: &mut [MaybeUninit<u8>]) {
        let steps = &self.tensor.steps;
        // SAFETY: the run is in the pool and in the tokens, whose extents fit an isize.
        let (cache, io) = unsafe {
            let block = self.tensor.parts[run.part].base.add(run.block as usize * self.tensor.block_step);
            (block.add(run.offset as usize * steps.token), io.add(run.io as usize * self.io_step))
        };
        let tokens = run.tokens as usize;
        // SAFETY: the caller's promise, passed on.
        unsafe {
            let Some(Conversion { convert, scale, .. }) = self.convert else {
                let io_steps = GridSteps { token: self.io_step, head: self.dim * self.io_size, group: steps.unit };
                return self.copy(cache, self.cache_steps(), io, io_steps, self.grid(tokens));
            };
            let quantiser = (*convert, scale, run.block);
            if steps.groups == 1 {
                self.convert_rows(quantiser, cache, (steps.token, steps.head), io, tokens);
            } else {
                // So that no vector that is read from it lies across two lines.
                let (_, stage) = stage.split_at_mut(stage.as_ptr().align_offset(LINE));
                // A few tokens are too short a row for a vector: heads are then converted whole.
                if self.is_turned() && tokens * steps.unit >= convert::STEP {
                    self.convert_turned(quantiser, cache, io, tokens, stage);
                } else {
                    self.convert_staged(quantiser, cache, io, tokens, stage);
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
