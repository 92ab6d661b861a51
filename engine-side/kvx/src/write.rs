//! Tokens into the cache, by a slot mapping (KVX sections 5.2 and 7).
//!
//! Invariant: nothing is written unless every slot, scale and buffer of the
//! call is valid. So the slots are walked twice; they are a thousandth of the
//! bytes.

use crate::cache::{KvCacheMut, KvTokens, RawCache, RawTokens, Span, row_bytes};
use crate::dtype::DType;
use crate::error::{Result, invalid, out_of_range};
use crate::index::IndexSlice;
use crate::kernel::{Conversion, Direction, Mover, Stage};
use crate::run::{Run, Runs};
use crate::scale::KvScales;
use crate::threads;

/// Where each token of a batch goes.
///
/// A slot is `block * block_size + offset`. Tokens whose slot is negative or `invalid_slot` are
/// left out. Where a slot comes twice, the later token stays.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a> {
    /// One slot per token.
    pub slots: IndexSlice<'a>,
    /// A slot that marks padding, besides all negative ones; usually -1.
    pub invalid_slot: i64,
}

/// A write of a batch of tokens into a cache.
///
/// ```
/// use kvx::{CacheShape, DType, KvCacheMut, KvTokens, Layout, Slots, Write};
/// let shape = CacheShape { num_blocks: 2, block_size: 4, num_kv_heads: 1, head_dim: 2 };
/// let (mut k, mut v) = (vec![0; 32], vec![0; 32]);
/// let mut cache =
///     KvCacheMut::new(shape, DType::F16, [Layout::Nhd; 2], &mut k, &mut v)?;
/// let (key, value) = ([1; 8], [2; 8]); // two tokens of 4 bytes
/// Write {
///     slots: Slots { slots: [5, -1][..].into(), invalid_slot: -1 },
///     scales: None,
///     threads: 1,
/// }
/// .run(&mut cache, &KvTokens { key: &key, value: &value, dtype: DType::F16 })?;
/// assert_eq!(k[5 * 4..6 * 4], [1; 4]);
/// assert_eq!(k.iter().filter(|b| **b != 0).count(), 4);
/// # Ok::<(), kvx::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// Where the tokens go.
    pub slots: Slots<'a>,
    /// Needed where the cache is FP8 and the tokens are not: `stored = round(x / scale)`, the
    /// quotient in F32, rounded to nearest even, saturating, NaN kept. Unused elsewhere.
    pub scales: Option<KvScales<'a>>,
    /// The most threads that a large call may use, the caller's own included; 0 counts as 1.
    pub threads: usize,
}

impl Write<'_> {
    /// Writes K and V of every token that has a slot. All or nothing.
    ///
    /// # Errors
    /// `InvalidArgument`: not one slot per token, dtypes that neither match nor quantise, scales
    /// that are missing, misshapen, or (those of the slots used) not finite and above zero.
    /// `OutOfRange`: a slot past the cache.
    pub fn run(&self, cache: &mut KvCacheMut<'_>, tokens: &KvTokens<'_>) -> Result<()> {
        let tokens = tokens.raw(&cache.raw.shape)?;
        // SAFETY: the views hold what they describe, and this one is borrowed exclusively.
        unsafe { self.run_raw(&cache.raw, &tokens, 0) }
    }

    /// [`run`](Self::run) as one of several calls that move `all` bytes together, K and V: it is
    /// that sum that decides whether to store past the caches.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_of(&self, all: u64, cache: &mut KvCacheMut<'_>, tokens: &KvTokens<'_>) -> Result<()> {
        let tokens = tokens.raw(&cache.raw.shape)?;
        // SAFETY: as in `run`.
        unsafe { self.run_raw(&cache.raw, &tokens, all) }
    }

    /// Checks all that [`run`](Self::run) would with tokens of `dtype` that lie outside of the
    /// cache, slots and scales included, and writes nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn check(&self, cache: &KvCacheMut<'_>, dtype: DType) -> Result<()> {
        let none = std::ptr::null_mut();
        let count = self.slots.slots.len() as u64;
        let tokens = RawTokens::dense(none, none, dtype, count, &cache.raw.shape)?;
        tokens.spans(&cache.raw.shape)?;
        // No tokens are looked at, so none can be in the way of the cache.
        let conversions = self.conversions(&cache.raw, &tokens)?;
        let movers = Self::movers(&cache.raw, &tokens, &conversions);
        self.validate(&cache.raw, &tokens, [Span::NONE; 2], &movers).map(drop)
    }

    /// # Safety
    /// The tokens, slots and scales must be valid for reads. The slots of `cache` that are named
    /// must be valid for writes, and nobody else may use them during the call.
    #[inline(always)]
    pub(crate) unsafe fn run_raw(&self, cache: &RawCache, tokens: &RawTokens, all: u64) -> Result<()> {
        let shape = &cache.shape;
        let count = self.slots.slots.len();
        if count as u64 != tokens.tokens {
            let have = tokens.tokens;
            return Err(invalid(format!("{count} slots for {have} tokens")));
        }
        let conversions = self.conversions(cache, tokens)?;
        let mut movers = Self::movers(cache, tokens, &conversions);
        let bytes = self.validate(cache, tokens, tokens.spans(shape)?, &movers)?;
        for mover in &mut movers {
            mover.prepare(bytes, all);
        }
        let parts = threads::parts(self.threads, bytes);
        let movers = &movers;
        threads::run(parts, |part| {
            let mut stage = Stage::new();
            let stage = stage.room(movers.iter().map(Mover::stage_len).max().unwrap_or(0))?;
            // Whole blocks go to a thread, so a slot that comes twice is written by one, in order.
            let mine = |block: u64| parts == 1 || block % parts as u64 == part as u64;
            let crosses = parts == 1 && movers.iter().all(|m| m.crosses_blocks(shape));
            let mut runs = Runs::new(shape, crosses, |run: Run| {
                // SAFETY: `places` bounds the run; the pools, the tokens and the stage are
                // disjoint, and no other thread has this block.
                unsafe {
                    movers[0].run(&run, tokens.key, stage);
                    movers[1].run(&run, tokens.value, stage);
                }
                Ok(())
            });
            self.places(cache, |io, block, offset| match mine(block) {
                true => runs.push(Run { part: 0, block, offset, io, tokens: 1 }),
                false => Ok(()),
            })?;
            runs.finish()?;
            movers.iter().for_each(Mover::finish);
            Ok(())
        })
    }

    #[inline(always)]
    fn conversions(&self, cache: &RawCache, tokens: &RawTokens) -> Result<Option<[Conversion<'_>; 2]>> {
        Conversion::both(Direction::Write, &cache.shape, (cache.dtype, tokens.dtype), &self.scales)
    }

    #[inline(always)]
    fn movers<'m>(
        cache: &'m RawCache,
        tokens: &RawTokens,
        conversions: &'m Option<[Conversion<'m>; 2]>,
    ) -> [Mover<'m>; 2] {
        let tensors = [&cache.k, &cache.v];
        Mover::both(Direction::Write, tensors, &cache.shape, tokens.dtype.size(), tokens.steps, conversions)
    }

    /// Everything that a write checks but the number of tokens, and the bytes that it will move.
    /// `sources`: where the tokens are.
    #[inline(always)]
    fn validate(
        &self,
        cache: &RawCache,
        tokens: &RawTokens,
        sources: [Span; 2],
        movers: &[Mover<'_>; 2],
    ) -> Result<u64> {
        let shape = &cache.shape;
        let row = row_bytes(shape, tokens.dtype)?;
        cache.check_disjoint()?;
        let scales = self.scales.map_or([Span::NONE; 2], |s| [s.k.span(), s.v.span()]);
        let sources = [sources[0], sources[1], self.slots.slots.bytes(), scales[0], scales[1]];
        for pool in cache.spans() {
            if sources.iter().any(|source| source.meets(&pool)) {
                return Err(invalid("the cache overlaps the tokens, slots or scales"));
            }
        }
        let mut tokens = 0u64;
        let scaled = movers.iter().any(|mover| mover.block_scale().is_some());
        let mut checked = None;
        self.places(cache, |_, block, _| {
            tokens += 1;
            if scaled && checked != Some(block) {
                for scale in movers.iter().filter_map(Mover::block_scale) {
                    scale.check_values(block, shape)?;
                }
                checked = Some(block);
            }
            Ok(())
        })?;
        Ok(tokens * row as u64 * 2)
    }

    /// Calls `place` with every token that has a slot: which one it is, its block, and where it goes in there.
    #[inline(always)]
    fn places(&self, cache: &RawCache, mut place: impl FnMut(u64, u64, u64) -> Result<()>) -> Result<()> {
        let (limit, block_size) = (cache.shape.slots(), u64::from(cache.shape.block_size));
        let Slots { slots, invalid_slot } = self.slots;
        for io in 0..slots.len() {
            let slot = slots.get(io);
            if slot < 0 || slot == invalid_slot {
                continue;
            }
            let slot = slot as u64;
            if slot >= limit {
                return Err(out_of_range(format!("token {io} goes to slot {slot} of {limit}")));
            }
            place(io as u64, slot / block_size, slot % block_size)?;
        }
        Ok(())
    }
}
