//! Block tables: from a sequence's tokens to where they are in the cache (KVX section 5.1).
//!
//! Invariant: a run that [`BlockTable::runs`] hands out is within the pools
//! and within the output, whatever the table's entries say. Both the pass
//! that validates and the pass that copies go through it, so the entries are
//! checked again at the moment of use.

#![allow(clippy::indexing_slicing, reason = "of arrays of a fixed length, whose indices were checked with the call")]

use crate::cache::{Part, Span, Tensor};
use crate::error::{Error, Result, invalid, out_of_range};
use crate::index::IndexSlice;
use crate::layout::CacheShape;
use crate::run::Run;

/// Top bit of a `KVCacheIndex`: the block is in the secondary pool.
const SECONDARY: u32 = 1 << 31;

/// The mapping of logical to physical blocks, in one of the three encodings.
///
/// Only entries that a sequence's length reaches are read, so padding may hold anything.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum BlockTable<'a> {
    /// `[seq_count, max_blocks_per_seq]` block ids. A negative id gathers nothing for its block.
    Packed {
        /// The ids, row by row.
        indices: IndexSlice<'a>,
        /// Entries of a row.
        max_blocks_per_seq: u32,
    },
    /// A block id for each cached token. A negative id gathers nothing for its token.
    Ragged {
        /// The ids, sequence after sequence.
        indices: IndexSlice<'a>,
        /// Where each sequence starts, and one past the last: `seq_count + 1` prefix sums.
        indptr: IndexSlice<'a>,
    },
    /// `[seq_count, beam_width, 2, max_blocks_per_seq]` offsets as TensorRT-LLM keeps them: K
    /// and V have entries of their own, the top bit picks the secondary pool, and the other
    /// 31 bits count `bytes_per_block` from that pool's base. The block size is a power of two.
    KvOffsets {
        /// The offsets; S32.
        indices: IndexSlice<'a>,
        /// Beams of each sequence; they share its length.
        beam_width: u32,
        /// Entries of a row.
        max_blocks_per_seq: u32,
        /// What the offsets count in.
        pools: OffsetPools<'a>,
    },
}

/// The pools behind a table of KV offsets. K and V blocks share them; within a block, the
/// layouts of the cache hold.
#[derive(Clone, Copy, Debug)]
pub struct OffsetPools<'a> {
    bytes_per_block: u32,
    primary: (*const u8, PoolSize),
    secondary: Option<(*const u8, PoolSize)>,
    buffers: std::marker::PhantomData<&'a [u8]>,
}

/// What bounds the offsets into a pool.
#[derive(Clone, Copy, Debug)]
enum PoolSize {
    /// The length of a slice.
    Bytes(usize),
    /// What the cache describes, as the C ABI gives no size: see [`described_units`].
    Cache,
}

// SAFETY: shared borrows of bytes.
unsafe impl Send for OffsetPools<'_> {}
// SAFETY: as above.
unsafe impl Sync for OffsetPools<'_> {}

impl<'a> OffsetPools<'a> {
    /// Pools whose offsets count `bytes_per_block`; an offset is valid as long as the whole
    /// block lies in its pool.
    pub fn new(bytes_per_block: u32, primary: &'a [u8], secondary: Option<&'a [u8]>) -> Self {
        let sized = |b: &'a [u8]| (b.as_ptr(), PoolSize::Bytes(b.len()));
        OffsetPools {
            bytes_per_block,
            primary: sized(primary),
            secondary: secondary.map(sized),
            buffers: std::marker::PhantomData,
        }
    }

    /// Pools without a size; both have the units that the cache describes.
    ///
    /// # Safety
    /// For `'a`, each pool must be valid for reads of [`described_units`] times `bytes_per_block` bytes.
    pub(crate) unsafe fn from_raw(bytes_per_block: u32, primary: *const u8, secondary: *const u8) -> Self {
        OffsetPools {
            bytes_per_block,
            primary: (primary, PoolSize::Cache),
            secondary: (!secondary.is_null()).then_some((secondary, PoolSize::Cache)),
            buffers: std::marker::PhantomData,
        }
    }

    fn part(&self, pool: Option<(*const u8, PoolSize)>, own: &Tensor, num_blocks: u32) -> Part {
        let Some((base, size)) = pool else {
            return Part::ABSENT;
        };
        let unit = self.bytes_per_block as usize;
        let blocks = match size {
            PoolSize::Cache => described_units(num_blocks, own.steps.block / unit),
            PoolSize::Bytes(len) if len < own.steps.block_span => 0,
            PoolSize::Bytes(len) => ((len - own.steps.block_span) / unit) as u64 + 1,
        };
        Part { base: base.cast_mut(), blocks }
    }

    /// The tensor that `own` describes, with its blocks in these pools.
    fn tensor(&self, own: &Tensor, shape: &CacheShape) -> Result<Tensor> {
        let span = own.steps.block_span;
        if (self.bytes_per_block as usize) < span {
            return Err(invalid(format!(
                "bytes_per_block is {}, a block of the cache reaches {span}",
                self.bytes_per_block
            )));
        }
        let part = |pool| self.part(pool, own, shape.num_blocks);
        let tensor = Tensor {
            parts: [part(Some(self.primary)), part(self.secondary)],
            block_step: self.bytes_per_block as usize,
            steps: own.steps,
        };
        for part in tensor.parts {
            let span = part_span(&part, part.blocks, &tensor);
            if span.start.checked_add(span.len).is_none() || span.len > isize::MAX as usize {
                return Err(invalid("a pool passes the end of the address space"));
            }
        }
        Ok(tensor)
    }
}

/// How many units of `bytes_per_block` the blocks of a cache lie in, when `spacing` of them lie from a block to the next.
///
/// TensorRT-LLM's pools are `[blocks, layers, 2]` units. From the first unit of a layer, its blocks are `2 * layers` apart,
/// and the last unit of the layer is V of the last block, right after its K.
fn described_units(num_blocks: u32, spacing: usize) -> u64 {
    let spacing = (spacing as u64).max(1);
    // Saturates for a cache that no address space holds; the caller checks that.
    u64::from(num_blocks - 1).saturating_mul(spacing).saturating_add(spacing.min(2))
}

/// The addresses of the first `blocks` blocks of a part.
fn part_span(part: &Part, blocks: u64, tensor: &Tensor) -> Span {
    let len = match (blocks as usize).checked_sub(1) {
        Some(last) => (last.saturating_mul(tensor.block_step)).saturating_add(tensor.steps.block_span),
        None => 0,
    };
    Span::of(part.base, len)
}

/// K or V; the C ABI orders them so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Key = 0,
    Value = 1,
}

impl BlockTable<'_> {
    /// Checks all but the entries: counts, `indptr`, powers of two (KVX section 7.1).
    pub(crate) fn check(&self, shape: &CacheShape, lens: &IndexSlice<'_>) -> Result<()> {
        let seqs = lens.len() as u128;
        let (have, want) = match self {
            BlockTable::Packed { indices, max_blocks_per_seq } => {
                (indices.len(), seqs * u128::from(*max_blocks_per_seq))
            }
            BlockTable::Ragged { indices, indptr } => {
                return check_indptr(indptr, indices.len(), lens);
            }
            BlockTable::KvOffsets { indices, beam_width, max_blocks_per_seq, .. } => {
                if *beam_width == 0 || indices.is_wide() {
                    return Err(invalid("KV offsets are S32, and beam_width is at least 1"));
                }
                if !shape.block_size.is_power_of_two() {
                    return Err(invalid("KV offsets need a block_size that is a power of two"));
                }
                let rows = seqs * u128::from(*beam_width) * 2;
                // At most 2^64 * 2^32 * 2 * 2^32 = 2^129: saturate rather than wrap.
                (indices.len(), rows.saturating_mul(u128::from(*max_blocks_per_seq)))
            }
        };
        if have as u128 != want {
            return Err(invalid(format!("the table has {have} entries, its shape asks for {want}")));
        }
        Ok(())
    }

    /// Output rows per sequence, in units of `max_seq_len` tokens.
    pub(crate) fn beam_width(&self) -> u32 {
        match self {
            BlockTable::KvOffsets { beam_width, .. } => *beam_width,
            _ => 1,
        }
    }

    /// The pools to gather from: the cache's own, or those of the offsets.
    pub(crate) fn tensor(&self, own: &Tensor, shape: &CacheShape) -> Result<Tensor> {
        match self {
            BlockTable::KvOffsets { pools, .. } => pools.tensor(own, shape),
            _ => Ok(*own),
        }
    }

    /// The addresses of the table itself.
    pub(crate) fn spans(&self) -> [Span; 2] {
        let none = Span::NONE;
        match self {
            BlockTable::Packed { indices, .. } | BlockTable::KvOffsets { indices, .. } => [indices.bytes(), none],
            BlockTable::Ragged { indices, indptr } => [indices.bytes(), indptr.bytes()],
        }
    }

    /// The addresses that a gather reads blocks from, where `used[part]` blocks from the base on
    /// are read. The C ABI gives the secondary pool no size, so what is beyond is not judged.
    pub(crate) fn source_spans(&self, tensor: &Tensor, used: [u64; 2]) -> [Span; 2] {
        match self {
            BlockTable::KvOffsets { .. } => [0, 1].map(|i| part_span(&tensor.parts[i], used[i], tensor)),
            _ => {
                let span = Span::of(tensor.parts[0].base, tensor.steps.span);
                [span, Span::NONE]
            }
        }
    }

    /// Calls `sink` with every run of `side`, sequence by sequence, in the order of the tokens.
    ///
    /// # Errors
    /// `OutOfRange` for an entry outside its pool, a negative length, or a length beyond what
    /// the table holds; and what `sink` returns.
    pub(crate) fn runs(
        &self,
        side: Side,
        tensor: &Tensor,
        shape: &CacheShape,
        (lens, max_seq_len): (&IndexSlice<'_>, u32),
        sink: &mut impl FnMut(Run) -> Result<()>,
    ) -> Result<()> {
        let block_size = u64::from(shape.block_size);
        let max_len = u64::from(max_seq_len);
        for seq in 0..lens.len() {
            let len = u64::try_from(lens.get(seq))
                .map_err(|_| out_of_range(format!("sequence {seq} has a negative length")))?;
            let first_row = seq as u64 * max_len;
            match self {
                BlockTable::Packed { indices, max_blocks_per_seq } => {
                    let width = u64::from(*max_blocks_per_seq);
                    let row = Row {
                        first_entry: seq as u64 * width,
                        width,
                        first_io: first_row,
                        len: len.min(max_len),
                        block_size,
                    };
                    row.runs(indices, |id| block_id(id, tensor), sink)?;
                }
                BlockTable::Ragged { indices, indptr } => {
                    // `check` has seen that these are in order and in bounds; a caller that
                    // changes them meanwhile meets the bounds check of `get`.
                    let (start, end) = (indptr.get(seq) as u64, indptr.get(seq + 1) as u64);
                    if len > end.saturating_sub(start) {
                        return Err(too_long(seq, len));
                    }
                    for token in 0..len.min(max_len) {
                        let id = indices.get((start + token) as usize);
                        if let Some((part, block)) = block_id(id, tensor)? {
                            sink(Run { part, block, offset: token % block_size, io: first_row + token, tokens: 1 })?;
                        }
                    }
                }
                BlockTable::KvOffsets { indices, beam_width, max_blocks_per_seq, .. } => {
                    let width = u64::from(*max_blocks_per_seq);
                    for beam in 0..u64::from(*beam_width) {
                        let io_row = seq as u64 * u64::from(*beam_width) + beam;
                        let row = Row {
                            first_entry: (io_row * 2 + side as u64) * width,
                            width,
                            first_io: io_row * max_len,
                            len: len.min(max_len),
                            block_size,
                        };
                        row.runs(indices, |entry| kv_offset(entry, tensor), sink)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// One row of a table with an entry per block.
struct Row {
    first_entry: u64,
    width: u64,
    first_io: u64,
    len: u64,
    block_size: u64,
}

impl Row {
    fn runs(
        &self,
        indices: &IndexSlice<'_>,
        decode: impl Fn(i64) -> Result<Option<(usize, u64)>>,
        sink: &mut impl FnMut(Run) -> Result<()>,
    ) -> Result<()> {
        let blocks = self.len.div_ceil(self.block_size);
        if blocks > self.width {
            let (len, width) = (self.len, self.width);
            return Err(out_of_range(format!(
                "{len} tokens need {blocks} blocks, the table has {width} for a sequence"
            )));
        }
        for logical in 0..blocks {
            let done = logical * self.block_size;
            let entry = indices.get((self.first_entry + logical) as usize);
            if let Some((part, block)) = decode(entry)? {
                sink(Run {
                    part,
                    block,
                    offset: 0,
                    io: self.first_io + done,
                    tokens: (self.len - done).min(self.block_size),
                })?;
            }
        }
        Ok(())
    }
}

fn block_id(id: i64, tensor: &Tensor) -> Result<Option<(usize, u64)>> {
    let Ok(block) = u64::try_from(id) else {
        return Ok(None);
    };
    if block >= tensor.parts[0].blocks {
        let blocks = tensor.parts[0].blocks;
        return Err(out_of_range(format!("block {block} of {blocks}")));
    }
    Ok(Some((0, block)))
}

fn kv_offset(entry: i64, tensor: &Tensor) -> Result<Option<(usize, u64)>> {
    let entry = entry as u32;
    let part = usize::from(entry & SECONDARY != 0);
    let block = u64::from(entry & !SECONDARY);
    if block >= tensor.parts[part].blocks {
        let (name, blocks) = (["primary", "secondary"][part], tensor.parts[part].blocks);
        return Err(out_of_range(format!("KV offset {block} of {blocks} in the {name} pool")));
    }
    Ok(Some((part, block)))
}

fn too_long(seq: usize, len: u64) -> Error {
    out_of_range(format!("sequence {seq} has {len} tokens, more than the table holds for it"))
}

/// Prefix sums that start at 0, never fall, and end at the number of indices.
fn check_indptr(indptr: &IndexSlice<'_>, indices: usize, lens: &IndexSlice<'_>) -> Result<()> {
    if Some(indptr.len()) != lens.len().checked_add(1) {
        return Err(invalid("indptr has one entry more than there are sequences"));
    }
    let mut last = 0i64;
    for i in 0..indptr.len() {
        let entry = indptr.get(i);
        if entry < 0 || entry as u64 > indices as u64 {
            return Err(out_of_range(format!("indptr[{i}] is {entry}, there are {indices} indices")));
        }
        if entry < last || (i == 0 && entry != 0) {
            return Err(invalid(format!("indptr[{i}] is {entry}: it starts at 0 and never falls")));
        }
        last = entry;
    }
    if last as u64 != indices as u64 {
        return Err(invalid(format!("indptr ends at {last}, there are {indices} indices")));
    }
    Ok(())
}
