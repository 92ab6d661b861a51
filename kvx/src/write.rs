//! Tokens into the cache, by a slot mapping (KVX sections 5.2 and 7).
//!
//! Invariant: nothing is written unless every slot, scale and buffer of the
//! call is valid. So the slots are walked twice; they are a thousandth of the
//! bytes.

use crate::cache::{KvCacheMut, KvTokens, RawCache, RawTokens, Span, row_bytes};
use crate::dtype::DType;
use crate::error::{Result, invalid, out_of_range};
use crate::index::IndexSlice;
use crate::kernel::{Direction, Mover};
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
        self.validate(&cache.raw, &tokens, &[]).map(drop)
    }

    /// # Safety
    /// The tokens, slots and scales must be valid for reads. The slots of `cache` that are named
    /// must be valid for writes, and nobody else may use them during the call.
    pub(crate) unsafe fn run_raw(&self, cache: &RawCache, tokens: &RawTokens, all: u64) -> Result<()> {
        let shape = &cache.shape;
        let count = self.slots.slots.len();
        if count as u64 != tokens.tokens {
            let have = tokens.tokens;
            return Err(invalid(format!("{count} slots for {have} tokens")));
        }
        let (mut movers, bytes) = self.validate(cache, tokens, &tokens.spans(shape)?)?;
        for mover in &mut movers {
            mover.prepare(bytes, all);
        }
        let parts = threads::parts(self.threads, bytes);
        threads::run(parts, |part| {
            let mut stage = movers[0].stage()?;
            if stage.is_empty() {
                stage = movers[1].stage()?;
            }
            // Whole blocks go to a thread, so a slot that comes twice is written by one, in order.
            let mine = |block: u64| block % parts as u64 == part as u64;
            let crosses = parts == 1 && movers.iter().all(|m| m.crosses_blocks(shape));
            let mut runs = Runs::new(shape, crosses, |run: Run| {
                // SAFETY: `push_runs` bounds the run; the pools, the tokens and the stage are
                // disjoint, and no other thread has this block.
                unsafe {
                    movers[0].run(&run, tokens.key, &mut stage);
                    movers[1].run(&run, tokens.value, &mut stage);
                }
                Ok(())
            });
            self.push_runs(cache, &mut runs, mine)?;
            runs.finish()?;
            movers.iter().for_each(Mover::finish);
            Ok(())
        })
    }

    /// Everything that a write checks but the number of tokens, and the bytes that it will move.
    /// `sources`: where the tokens are.
    fn validate(&self, cache: &RawCache, tokens: &RawTokens, sources: &[Span]) -> Result<([Mover<'_>; 2], u64)> {
        let shape = &cache.shape;
        let types = (cache.dtype, tokens.dtype);
        let row = row_bytes(shape, tokens.dtype)?;
        let scale = |side: fn(&KvScales<'_>) -> _| self.scales.as_ref().map(side);
        let movers = [
            Mover::new(Direction::Write, cache.k, shape, types, tokens.steps[0], self.scales.map(|s| s.k))?,
            Mover::new(Direction::Write, cache.v, shape, types, tokens.steps[1], self.scales.map(|s| s.v))?,
        ];
        cache.check_disjoint()?;
        let [k_span, v_span] = [scale(|s| s.k.span()), scale(|s| s.v.span())];
        let mut sources = sources.to_vec();
        sources.push(self.slots.slots.bytes());
        sources.extend(k_span.into_iter().chain(v_span));
        for pool in cache.spans() {
            if sources.iter().any(|source| source.meets(&pool)) {
                return Err(invalid("the cache overlaps the tokens, slots or scales"));
            }
        }
        let mut bytes = 0u64;
        let mut validate = Runs::new(shape, false, |run: Run| {
            bytes += run.tokens * row as u64 * 2;
            for scale in movers.iter().filter_map(Mover::block_scale) {
                scale.check_values(run.block, shape)?;
            }
            Ok(())
        });
        self.push_runs(cache, &mut validate, |_| true)?;
        validate.finish()?;
        Ok((movers, bytes))
    }

    fn push_runs<F: FnMut(Run) -> Result<()>>(
        &self,
        cache: &RawCache,
        runs: &mut Runs<F>,
        wanted: impl Fn(u64) -> bool,
    ) -> Result<()> {
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
            let block = slot / block_size;
            if wanted(block) {
                runs.push(Run { part: 0, block, offset: slot % block_size, io: io as u64, tokens: 1 })?;
            }
        }
        Ok(())
    }
}
