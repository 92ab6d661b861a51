//! Tokens out of the cache, by a block table (KVX sections 5.1, 5.3 and 7).
//!
//! Invariant: nothing is written unless every length, table entry and scale
//! that the gather uses is valid. So the table is walked twice.

#![allow(clippy::indexing_slicing, reason = "of arrays of a fixed length, whose indices were checked with the call")]

use std::ops::Range;

use crate::cache::{KvCache, KvTokensMut, KvTokensUninit, RawCache, RawTokens, Span, Tensor, row_bytes};
use crate::error::{Result, invalid};
use crate::index::IndexSlice;
use crate::kernel::{Conversion, Direction, Mover, Stage};
use crate::layout::CacheShape;
use crate::run::{Run, Runs};
use crate::scale::KvScales;
use crate::table::{BlockTable, Side};
use crate::threads;

/// A gather of whole sequences out of a cache.
///
/// The output is dense `[seq_count, max_seq_len, num_kv_heads, head_dim]`, and with a table of
/// KV offsets `[seq_count, beam_width, max_seq_len, num_kv_heads, head_dim]`. Token `t` of a
/// sequence is row `t`; rows at or past the sequence's length stay as they were, and so do
/// those of blocks with a negative id.
///
/// ```
/// use kvx::{BlockTable, CacheShape, DType, Gather, KvCache, KvTokensMut, Layout};
/// let shape = CacheShape { num_blocks: 2, block_size: 2, num_kv_heads: 1, head_dim: 2 };
/// let k: Vec<u8> = (0..16).collect();
/// let cache = KvCache::new(shape, DType::F16, [Layout::Nhd; 2], &k, &k)?;
/// let (mut key, mut value) = ([0xff; 16], [0xff; 16]);
/// Gather {
///     table: BlockTable::Packed { indices: [1, 0][..].into(), max_blocks_per_seq: 2 },
///     seq_lens: [3][..].into(),
///     max_seq_len: 4,
///     scales: None,
///     threads: 1,
/// }
/// .run(&cache, &mut KvTokensMut { key: &mut key, value: &mut value, dtype: DType::F16 })?;
/// assert_eq!(key, [8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 255, 255, 255, 255]);
/// # Ok::<(), kvx::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Gather<'a> {
    /// Which block holds which part of a sequence.
    pub table: BlockTable<'a>,
    /// Cached tokens of each sequence.
    pub seq_lens: IndexSlice<'a>,
    /// Rows of the output per sequence; what a longer sequence has more is left out.
    pub max_seq_len: u32,
    /// Needed where the cache is FP8 and the tokens are not: `x = stored * scale`, the product
    /// in F32, rounded to nearest even, to infinity where F16 is too small. Unused elsewhere.
    pub scales: Option<KvScales<'a>>,
    /// The most threads that a large call may use, the caller's own included; 0 counts as 1.
    pub threads: usize,
}

impl Gather<'_> {
    /// Fills K and V of every row that has a token. All or nothing.
    ///
    /// # Errors
    /// `InvalidArgument`: an output of another size, counts or `indptr` that contradict each
    /// other, dtypes that neither match nor dequantise, scales that are missing, misshapen,
    /// or (those of the blocks used) not finite and above zero.
    /// `OutOfRange`: a block id, KV offset, `indptr` entry or length outside its bounds.
    /// `Unsupported`: scales per block with KV offsets, whose pools number their own blocks.
    pub fn run(&self, cache: &KvCache<'_>, out: &mut KvTokensMut<'_>) -> Result<()> {
        let out = out.raw(&cache.raw.shape)?;
        // SAFETY: the views hold what they describe, and the output is borrowed exclusively.
        unsafe { self.run_raw(&cache.raw, &out) }
    }

    /// [`run`](Self::run) into memory that need not be initialised. Where every sequence is
    /// `max_seq_len` tokens or longer and no block id is negative, all of it is afterwards.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_uninit(&self, cache: &KvCache<'_>, out: &mut KvTokensUninit<'_>) -> Result<()> {
        let out = out.raw(&cache.raw.shape)?;
        // SAFETY: as in `run`; the output is only written.
        unsafe { self.run_raw(&cache.raw, &out) }
    }

    /// # Safety
    /// The table, lengths, scales and the blocks that they name must be valid for reads. `out`
    /// must be valid for writes, and nobody else may use it during the call.
    pub(crate) unsafe fn run_raw(&self, cache: &RawCache, out: &RawTokens) -> Result<()> {
        let shape = &cache.shape;
        self.table.check(shape, &self.seq_lens)?;
        let rows = self.seq_lens.len() as u128 * u128::from(self.table.beam_width());
        let want = rows.saturating_mul(u128::from(self.max_seq_len));
        if u128::from(out.tokens) != want {
            let have = out.tokens;
            return Err(invalid(format!("the output has {have} tokens, the gather fills {want}")));
        }
        let row = row_bytes(shape, out.dtype)?;
        let types = (cache.dtype, out.dtype);
        let tensors = [self.table.tensor(&cache.k, shape)?, self.table.tensor(&cache.v, shape)?];
        let conversions = Conversion::both(Direction::Gather, shape, types, &self.scales)?;
        let [k, v] = &tensors;
        let mut movers = Mover::both(Direction::Gather, [k, v], shape, out.dtype.size(), out.steps, &conversions);
        if matches!(self.table, BlockTable::KvOffsets { .. }) && movers.iter().any(|m| m.block_scale().is_some()) {
            return Err(crate::error::unsupported("scales per block do not go with KV offsets"));
        }

        let lens = (&self.seq_lens, self.max_seq_len);
        let mut total = [0u64; 2];
        let table = self.table.spans();
        let scales = self.scales.map_or([Span::NONE; 2], |s| [s.k.span(), s.v.span()]);
        let mut pools = [Span::NONE; 4];
        for side in [Side::Key, Side::Value] {
            let i = side as usize;
            let mut used = [0u64; 2];
            self.table.runs(side, &tensors[i], shape, lens, &mut |run| {
                total[i] += run.tokens;
                used[run.part] = used[run.part].max(run.block + 1);
                match movers[i].block_scale() {
                    Some(scale) => scale.check_values(run.block, shape),
                    None => Ok(()),
                }
            })?;
            pools[2 * i..][..2].copy_from_slice(&self.table.source_spans(&tensors[i], used));
        }
        let [key, value] = out.spans(shape)?;
        let sources = [&[self.seq_lens.bytes()], &table[..], &scales, &pools];
        if out.meet([key, value], row) || sources.into_iter().flatten().any(|s| s.meets(&key) || s.meets(&value)) {
            return Err(invalid("the output overlaps itself or what is read"));
        }

        let bytes = (total[0] + total[1]) * row as u64;
        for mover in &mut movers {
            mover.prepare(bytes, bytes);
        }
        let parts = threads::parts(self.threads, bytes);
        threads::run(parts, |part| {
            for side in [Side::Key, Side::Value] {
                let i = side as usize;
                // Each thread takes an equal share of the tokens, in the order of the table.
                let share = |n: usize| match n == parts {
                    true => total[i],
                    false => (u128::from(total[i]) * n as u128 / parts as u128) as u64,
                };
                let to = if side == Side::Key { out.key } else { out.value };
                // SAFETY: output, pools and stage are disjoint, and the shares of the threads are too.
                unsafe { self.move_share(side, &tensors[i], &movers[i], shape, share(part)..share(part + 1), to)? };
            }
            Ok(())
        })
    }

    /// Move the tokens of one side that are so far in the order of the table.
    ///
    /// # Safety
    /// As [`run_raw`](Self::run_raw), for the tokens of `share`; `to` is the side's part of the output.
    unsafe fn move_share(
        &self,
        side: Side,
        tensor: &Tensor,
        mover: &Mover<'_>,
        shape: &CacheShape,
        share: Range<u64>,
        to: *mut u8,
    ) -> Result<()> {
        let mut stage = Stage::new();
        let stage = stage.room(mover.stage_len())?;
        let mut seen = 0u64;
        let mut runs = Runs::new(shape, mover.crosses_blocks(shape), |run: Run| {
            // SAFETY: `BlockTable::runs` bounds the run; and as above.
            unsafe { mover.run(&run, to, stage) };
            Ok(())
        });
        self.table.runs(side, tensor, shape, (&self.seq_lens, self.max_seq_len), &mut |run| {
            let first = seen;
            seen += run.tokens;
            let (low, high) = (first.max(share.start), seen.min(share.end));
            if low >= high {
                return Ok(());
            }
            runs.push(Run { offset: run.offset + (low - first), io: run.io + (low - first), tokens: high - low, ..run })
        })?;
        runs.finish()?;
        mover.finish();
        Ok(())
    }
}
