//! Views of memory: the K and V pools of a cache, and tokens outside of it.
//!
//! Invariant: a view is only made after its buffers are known to hold every
//! byte that its shape, layout and dtype can reach, so kernels need no bounds
//! but those of block and token indices. Buffers are bytes and need no
//! alignment; 64 bytes is fastest.
//!
//! Inside, pools are raw pointers rather than slices: two calls may write
//! disjoint slots of one pool at once (KVX section 7.2), and K and V may lie
//! interleaved in one buffer, neither of which a `&mut [u8]` can express.

#![allow(clippy::indexing_slicing, reason = "of arrays of a fixed length, whose indices were checked with the call")]

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use crate::dtype::DType;
use crate::error::{Result, invalid};
use crate::layout::{CacheShape, Layout, Steps};

/// A run of equally spaced blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub base: *mut u8,
    /// Blocks that may be addressed; 0 for a part that is not there.
    pub blocks: u64,
}

impl Part {
    pub const ABSENT: Part = Part { base: std::ptr::null_mut(), blocks: 0 };
}

// SAFETY: these are plain addresses; whoever follows them upholds the rules of the view that
// they came from (shared for `KvCache`, exclusive for `KvCacheMut`).
unsafe impl Send for Part {}
// SAFETY: as above; the struct itself has no interior mutability.
unsafe impl Sync for Part {}

/// Where the blocks of one tensor, K or V, are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tensor {
    /// The pool itself; or, behind a table of KV offsets, the primary and the secondary pool.
    pub parts: [Part; 2],
    /// Bytes from a block to the next.
    pub block_step: usize,
    pub steps: Steps,
}

/// The raw form of both views; what the kernels and the C functions use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawCache {
    pub shape: CacheShape,
    pub dtype: DType,
    pub k: Tensor,
    pub v: Tensor,
}

/// A range of addresses, for overlap checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub start: usize,
    pub len: usize,
}

impl Span {
    pub const NONE: Span = Span { start: 0, len: 0 };

    pub fn of(base: *const u8, len: usize) -> Self {
        Span { start: base as usize, len }
    }

    pub fn meets(&self, other: &Span) -> bool {
        self.len > 0
            && other.len > 0
            && self.start < other.start.saturating_add(other.len)
            && other.start < self.start.saturating_add(self.len)
    }
}

impl RawCache {
    pub fn new(shape: CacheShape, dtype: DType, layouts: [Layout; 2], bases: [*mut u8; 2]) -> Result<Self> {
        let steps = |layout: Layout| layout.resolve(&layout.describe(&shape)?, &shape, dtype);
        Self::of(shape, dtype, [&steps(layouts[0])?, &steps(layouts[1])?], bases)
    }

    /// As [`new`](Self::new), of layouts that are resolved already.
    #[inline(always)]
    pub fn of(shape: CacheShape, dtype: DType, steps: [&Steps; 2], bases: [*mut u8; 2]) -> Result<Self> {
        let past = |side: usize| (bases[side] as usize).checked_add(steps[side].span).is_none();
        if past(0) || past(1) {
            return Err(invalid("the pool passes the end of the address space"));
        }
        let tensor = |side: usize| {
            let pool = Part { base: bases[side], blocks: u64::from(shape.num_blocks) };
            Tensor { parts: [pool, Part::ABSENT], block_step: steps[side].block, steps: *steps[side] }
        };
        Ok(RawCache { shape, dtype, k: tensor(0), v: tensor(1) })
    }

    /// The addresses of the K and of the V pool.
    #[inline(always)]
    pub fn spans(&self) -> [Span; 2] {
        let span = |t: &Tensor| Span::of(t.parts[0].base, t.steps.span);
        [span(&self.k), span(&self.v)]
    }

    /// Refuses K and V pools that share a byte, which no write could honour.
    #[inline(always)]
    pub fn check_disjoint(&self) -> Result<()> {
        let [k, v] = self.spans();
        if !k.meets(&v) {
            return Ok(());
        }
        let interleaved = self.k.steps.dims(&self.shape) == self.v.steps.dims(&self.shape)
            && !(self.k.steps).meets(&self.shape, v.start as i128 - k.start as i128);
        if !interleaved {
            return Err(invalid("K and V overlap; interleaved pools need equal strides and no shared element"));
        }
        Ok(())
    }
}

/// K and V pools to read from: shared views over one engine's paged cache.
///
/// `Copy`, and usable from any number of threads while the buffers live.
#[derive(Clone, Copy, Debug)]
pub struct KvCache<'a> {
    pub(crate) raw: RawCache,
    layouts: [Layout; 2],
    buffers: PhantomData<&'a [u8]>,
}

impl<'a> KvCache<'a> {
    /// A view of `k` and `v`, each at least as long as its layout reaches.
    ///
    /// # Errors
    /// `InvalidArgument`: a zero dimension, a `pack` that does not divide
    /// `head_dim`, strides that do not nest, or a buffer that is too short.
    pub fn new(
        shape: CacheShape,
        dtype: DType,
        [k_layout, v_layout]: [Layout; 2],
        k: &'a [u8],
        v: &'a [u8],
    ) -> Result<Self> {
        let bases = [k, v].map(|b| b.as_ptr().cast_mut());
        let raw = RawCache::new(shape, dtype, [k_layout, v_layout], bases)?;
        check_len(&raw, [k.len(), v.len()])?;
        Ok(KvCache { raw, layouts: [k_layout, v_layout], buffers: PhantomData })
    }

    /// The dimensions of the cache.
    pub fn shape(&self) -> CacheShape {
        self.raw.shape
    }

    /// The element type of the pools.
    pub fn dtype(&self) -> DType {
        self.raw.dtype
    }

    /// The layouts of K and of V.
    pub fn layouts(&self) -> [Layout; 2] {
        self.layouts
    }

    /// K and V of the first tokens of a block, as they lie in the pools: what a gather of them would answer, without a copy.
    /// `None` where they are not dense `[tokens, num_kv_heads, head_dim]` there, as in HND, or not in the cache.
    ///
    /// ```
    /// use kvx::{CacheShape, DType, KvCache, Layout};
    /// let shape = CacheShape { num_blocks: 2, block_size: 4, num_kv_heads: 2, head_dim: 1 };
    /// let k: Vec<u8> = (0..32).collect();
    /// let cache = KvCache::new(shape, DType::F16, [Layout::Nhd; 2], &k, &k)?;
    /// assert_eq!(cache.dense_tokens(1, 3), Some([&k[16..28]; 2]));
    /// assert_eq!(cache.dense_tokens(1, 5), None);
    /// let cache = KvCache::new(shape, DType::F16, [Layout::Hnd; 2], &k, &k)?;
    /// assert_eq!(cache.dense_tokens(1, 3), None);
    /// # Ok::<(), kvx::Error>(())
    /// ```
    pub fn dense_tokens(&self, block: u32, tokens: u32) -> Option<[&'a [u8]; 2]> {
        let RawCache { shape, k, v, .. } = &self.raw;
        if block >= shape.num_blocks || tokens > shape.block_size {
            return None;
        }
        let side = |tensor: &Tensor| {
            let len = tensor.steps.dense_row(shape)? * tokens as usize;
            // SAFETY: block and tokens are in the cache, so the bytes are those of the buffers that this is a view of.
            Some(unsafe {
                std::slice::from_raw_parts(tensor.parts[0].base.add(block as usize * tensor.block_step), len)
            })
        };
        Some([side(k)?, side(v)?])
    }
}

/// K and V pools to write to.
#[derive(Debug)]
pub struct KvCacheMut<'a> {
    pub(crate) raw: RawCache,
    layouts: [Layout; 2],
    buffers: PhantomData<&'a mut [u8]>,
}

impl<'a> KvCacheMut<'a> {
    /// A view of `k` and `v`; see [`KvCache::new`].
    ///
    /// # Errors
    /// As [`KvCache::new`].
    pub fn new(
        shape: CacheShape,
        dtype: DType,
        layouts: [Layout; 2],
        k: &'a mut [u8],
        v: &'a mut [u8],
    ) -> Result<Self> {
        let raw = RawCache::new(shape, dtype, layouts, [k.as_mut_ptr(), v.as_mut_ptr()])?;
        check_len(&raw, [k.len(), v.len()])?;
        Ok(KvCacheMut { raw, layouts, buffers: PhantomData })
    }

    /// A view of pools that are reached by pointers: for an engine's own memory, for K and V
    /// interleaved in one buffer, and for several threads that write disjoint slots.
    ///
    /// # Errors
    /// As [`KvCache::new`], but for the lengths, which can not be checked.
    ///
    /// # Safety
    /// For `'a`, every element that `shape` and the layouts describe from `k` and `v` must be
    /// valid for reads and writes, and nobody else may touch the slots that are written through
    /// this view, or write those that are read. Several views of one pool may be live, and be
    /// written from several threads, as long as their slots differ.
    pub unsafe fn from_raw(
        shape: CacheShape,
        dtype: DType,
        layouts: [Layout; 2],
        k: *mut u8,
        v: *mut u8,
    ) -> Result<Self> {
        if k.is_null() || v.is_null() {
            return Err(invalid("K and V must not be null"));
        }
        Ok(Self::of(RawCache::new(shape, dtype, layouts, [k, v])?, layouts))
    }

    /// Whether this cache and another one have a byte in common. Caches that are interleaved in one buffer have none, if their
    /// shapes and strides are equal; of others whose addresses overlap it is taken for granted.
    ///
    /// ```
    /// use kvx::{CacheShape, DType, KvCacheMut, Layout};
    /// let shape = CacheShape { num_blocks: 2, block_size: 1, num_kv_heads: 1, head_dim: 1 };
    /// let (mut one, mut other) = ([0; 8], [0; 8]);
    /// let (k, v) = one.split_at_mut(4);
    /// let a = KvCacheMut::new(shape, DType::F16, [Layout::Nhd; 2], k, v)?;
    /// let (k, v) = other.split_at_mut(4);
    /// let b = KvCacheMut::new(shape, DType::F16, [Layout::Nhd; 2], k, v)?;
    /// assert!(!a.shares_memory(&b) && a.shares_memory(&a));
    /// # Ok::<(), kvx::Error>(())
    /// ```
    pub fn shares_memory(&self, other: &KvCacheMut<'_>) -> bool {
        let meets = |one: &Tensor, its: Span, two: &Tensor, theirs: Span| {
            let interleaved = self.raw.shape == other.raw.shape
                && one.steps.dims(&self.raw.shape) == two.steps.dims(&other.raw.shape)
                && !one.steps.meets(&self.raw.shape, theirs.start as i128 - its.start as i128);
            its.meets(&theirs) && !interleaved
        };
        let own = [self.raw.k, self.raw.v].into_iter().zip(self.raw.spans());
        own.into_iter().any(|(one, its)| {
            let mut theirs = [other.raw.k, other.raw.v].into_iter().zip(other.raw.spans());
            theirs.any(|(two, theirs)| meets(&one, its, &two, theirs))
        })
    }

    /// As [`from_raw`](Self::from_raw), of pools that a descriptor described.
    pub(crate) fn of(raw: RawCache, layouts: [Layout; 2]) -> Self {
        KvCacheMut { raw, layouts, buffers: PhantomData }
    }

    /// The same pools, to read from.
    pub fn shared(&self) -> KvCache<'_> {
        KvCache { raw: self.raw, layouts: self.layouts, buffers: PhantomData }
    }
}

fn check_len(raw: &RawCache, lens: [usize; 2]) -> Result<()> {
    for (name, tensor, len) in [("K", raw.k, lens[0]), ("V", raw.v, lens[1])] {
        let need = tensor.steps.span;
        if len < need {
            return Err(invalid(format!("{name} has {len} bytes, its shape and layout reach {need}")));
        }
    }
    Ok(())
}

/// Tokens outside the cache: key and value, each `[tokens]` rows of dense `[num_kv_heads, head_dim]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawTokens {
    pub key: *mut u8,
    pub value: *mut u8,
    pub dtype: DType,
    pub tokens: u64,
    /// Bytes from a token to the next, of key and of value. A row or more: slices of a fused projection have gaps.
    pub steps: [usize; 2],
}

// SAFETY: as for `Part`.
unsafe impl Send for RawTokens {}
// SAFETY: as for `Part`.
unsafe impl Sync for RawTokens {}

impl RawTokens {
    /// Tokens without gaps.
    pub fn dense(key: *mut u8, value: *mut u8, dtype: DType, tokens: u64, shape: &CacheShape) -> Result<Self> {
        let row = row_bytes(shape, dtype)?;
        Ok(RawTokens { key, value, dtype, tokens, steps: [row; 2] })
    }

    /// The addresses of key and value, gaps included, checked to be in the address space.
    #[inline(always)]
    pub fn spans(&self, shape: &CacheShape) -> Result<[Span; 2]> {
        let row = row_bytes(shape, self.dtype)?;
        let span = |base: *mut u8, step: usize| -> Option<Span> {
            let len = match self.tokens {
                0 => 0,
                tokens => usize::try_from(tokens - 1).ok()?.checked_mul(step)?.checked_add(row)?,
            };
            isize::try_from(len).ok()?;
            (base as usize).checked_add(len)?;
            Some(Span::of(base, len))
        };
        match (span(self.key, self.steps[0]), span(self.value, self.steps[1])) {
            (Some(key), Some(value)) => Ok([key, value]),
            _ => Err(invalid("the tokens pass the end of the address space")),
        }
    }

    /// Whether a row of the key shares a byte with one of the value. Rows of equal steps may lie in each other's gaps.
    pub fn meet(&self, [key, value]: [Span; 2], row: usize) -> bool {
        if !key.meets(&value) {
            return false;
        }
        let distance = (value.start as i128 - key.start as i128).rem_euclid(self.steps[0].max(1) as i128);
        let apart = row as i128 <= distance && distance + row as i128 <= self.steps[0] as i128;
        self.steps[0] != self.steps[1] || !apart
    }
}

/// Bytes of K, or of V, of one token.
#[inline(always)]
pub(crate) fn row_bytes(shape: &CacheShape, dtype: DType) -> Result<usize> {
    let bytes = shape.token_elements().checked_mul(dtype.size() as u64);
    match bytes.and_then(|bytes| isize::try_from(bytes).ok()) {
        Some(row) => Ok(row as usize),
        None => Err(invalid("the tokens are larger than the address space")),
    }
}

/// Tokens to write into a cache: keys and values, each dense row-major
/// `[tokens, num_kv_heads, head_dim]` of `dtype` (KVX section 6.8).
#[derive(Clone, Copy, Debug)]
pub struct KvTokens<'a> {
    /// The keys.
    pub key: &'a [u8],
    /// The values, as many bytes as keys.
    pub value: &'a [u8],
    /// The element type of both.
    pub dtype: DType,
}

/// Memory that a gather fills, and that may be uninitialised before; laid out as [`KvTokens`].
#[derive(Debug)]
pub struct KvTokensUninit<'a> {
    /// The keys.
    pub key: &'a mut [MaybeUninit<u8>],
    /// The values, as many bytes as keys.
    pub value: &'a mut [MaybeUninit<u8>],
    /// The element type of both.
    pub dtype: DType,
}

/// Tokens to be filled from a cache; laid out as [`KvTokens`].
#[derive(Debug)]
pub struct KvTokensMut<'a> {
    /// The keys.
    pub key: &'a mut [u8],
    /// The values, as many bytes as keys.
    pub value: &'a mut [u8],
    /// The element type of both.
    pub dtype: DType,
}

impl KvTokens<'_> {
    pub(crate) fn raw(&self, shape: &CacheShape) -> Result<RawTokens> {
        let tokens = count(self.key.len(), self.value.len(), self.dtype, shape)?;
        let [key, value] = [self.key, self.value].map(|bytes| bytes.as_ptr().cast_mut());
        RawTokens::dense(key, value, self.dtype, tokens, shape)
    }
}

impl KvTokensMut<'_> {
    pub(crate) fn raw(&mut self, shape: &CacheShape) -> Result<RawTokens> {
        let tokens = count(self.key.len(), self.value.len(), self.dtype, shape)?;
        RawTokens::dense(self.key.as_mut_ptr(), self.value.as_mut_ptr(), self.dtype, tokens, shape)
    }
}

impl KvTokensUninit<'_> {
    pub(crate) fn raw(&mut self, shape: &CacheShape) -> Result<RawTokens> {
        let tokens = count(self.key.len(), self.value.len(), self.dtype, shape)?;
        let [key, value] = [self.key.as_mut_ptr().cast(), self.value.as_mut_ptr().cast()];
        RawTokens::dense(key, value, self.dtype, tokens, shape)
    }
}

fn count(key: usize, value: usize, dtype: DType, shape: &CacheShape) -> Result<u64> {
    let row = u128::from(shape.token_elements()) * dtype.size() as u128;
    if key != value || !(key as u128).is_multiple_of(row) {
        return Err(invalid(format!("key has {key} bytes and value {value}; both must be the same multiple of {row}")));
    }
    Ok((key as u128 / row) as u64)
}
