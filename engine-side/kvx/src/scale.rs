//! Scales of a quantised (FP8) cache: `stored = round(x / scale)`, `x = stored * scale`.
//!
//! Scales are F32. They only ever are read, so their strides may be anything
//! that stays in the buffer, 0 included.

use std::marker::PhantomData;

use crate::cache::Span;
use crate::error::{Result, invalid};
use crate::layout::CacheShape;

/// The scales of K or of V, at one of the granularities of KVX section 6.6.
#[derive(Clone, Copy, Debug)]
pub struct Scale<'a>(Kind<'a>);

#[derive(Clone, Copy, Debug)]
enum Kind<'a> {
    Tensor(f32),
    Table(Table<'a>),
}

/// `base + block * block_step + head * head_step`, steps in bytes.
#[derive(Clone, Copy, Debug)]
struct Table<'a> {
    base: *const u8,
    /// Extent along blocks; `None` where all blocks share their scales.
    blocks: Option<u32>,
    heads: Option<u32>,
    block_step: usize,
    head_step: usize,
    buffer: PhantomData<&'a [f32]>,
}

// SAFETY: a shared borrow of floats.
unsafe impl Send for Scale<'_> {}
// SAFETY: as above.
unsafe impl Sync for Scale<'_> {}

/// The scales of both tensors.
#[derive(Clone, Copy, Debug)]
pub struct KvScales<'a> {
    /// Of K.
    pub k: Scale<'a>,
    /// Of V.
    pub v: Scale<'a>,
}

impl<'a> Scale<'a> {
    /// One scale for all.
    pub fn per_tensor(scale: f32) -> Self {
        Scale(Kind::Tensor(scale))
    }

    /// `[num_blocks]`: one scale per physical block.
    pub fn per_block(scales: &'a [f32]) -> Self {
        Self::dense(scales, Some(scales.len()), None)
    }

    /// `[num_kv_heads]`: one scale per head.
    pub fn per_head(scales: &'a [f32]) -> Self {
        Self::dense(scales, None, Some(scales.len()))
    }

    /// `[num_blocks, num_kv_heads]`, dense.
    ///
    /// # Errors
    /// `InvalidArgument` where `scales` is not a multiple of `num_kv_heads`.
    pub fn per_block_head(scales: &'a [f32], num_kv_heads: u32) -> Result<Self> {
        let heads = num_kv_heads as usize;
        if heads == 0 || !scales.len().is_multiple_of(heads) {
            return Err(invalid(format!("{} scales are no multiple of {heads} heads", scales.len())));
        }
        Ok(Self::dense(scales, Some(scales.len() / heads), Some(heads)))
    }

    fn dense(scales: &'a [f32], blocks: Option<usize>, heads: Option<usize>) -> Self {
        // More than u32::MAX never matches a cache; it must not wrap to what does.
        let extent = |n: usize| u32::try_from(n).unwrap_or(0);
        let size = size_of::<f32>();
        Scale(Kind::Table(Table {
            base: scales.as_ptr().cast(),
            blocks: blocks.map(extent),
            heads: heads.map(extent),
            block_step: if blocks.is_some() { size * heads.unwrap_or(1) } else { 0 },
            head_step: if heads.is_some() { size } else { 0 },
            buffer: PhantomData,
        }))
    }

    /// Scales of the C ABI: `(extent, stride in elements)` for each dimension that they have.
    ///
    /// # Safety
    /// For `'a`, `base` must be valid for reads of an F32 (of any alignment) at every offset
    /// that the dimensions describe.
    pub(crate) unsafe fn from_raw(
        base: *const u8,
        blocks: Option<(u32, usize)>,
        heads: Option<(u32, usize)>,
    ) -> Result<Self> {
        let step = |dim: Option<(u32, usize)>| dim.map_or(Some(0), |(_, s)| s.checked_mul(4));
        let (Some(block_step), Some(head_step)) = (step(blocks), step(heads)) else {
            return Err(invalid("a scale stride is larger than the address space"));
        };
        let table = Table {
            base,
            blocks: blocks.map(|d| d.0),
            heads: heads.map(|d| d.0),
            block_step,
            head_step,
            buffer: PhantomData,
        };
        if table.len().and_then(|len| (base as usize).checked_add(len)).is_none() {
            return Err(invalid("the scales pass the end of the address space"));
        }
        Ok(Scale(Kind::Table(table)))
    }

    /// Refuses extents other than the cache's.
    pub(crate) fn check_shape(&self, shape: &CacheShape) -> Result<()> {
        if let Kind::Table(t) = self.0
            && (t.blocks.is_some_and(|n| n != shape.num_blocks) || t.heads.is_some_and(|n| n != shape.num_kv_heads))
        {
            return Err(invalid("scales must have one entry per block and head of the cache"));
        }
        Ok(())
    }

    /// Refuses the scales of `block` that are not finite and above zero. A scale of zero would
    /// turn a whole block into NaN.
    pub(crate) fn check_values(&self, block: u64, shape: &CacheShape) -> Result<()> {
        let heads = if self.varies_by_head() { shape.num_kv_heads as usize } else { 1 };
        for head in 0..heads {
            let scale = self.at(block, head);
            if !(scale.is_finite() && scale > 0.0) {
                return Err(invalid(format!(
                    "the scale of block {block}, head {head} is {scale}; it must be finite and above zero"
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn varies_by_block(&self) -> bool {
        matches!(&self.0, Kind::Table(t) if t.blocks.is_some())
    }

    pub(crate) fn varies_by_head(&self) -> bool {
        matches!(&self.0, Kind::Table(t) if t.heads.is_some())
    }

    /// The scale of a head of a block, both within the shape that was checked.
    pub(crate) fn at(&self, block: u64, head: usize) -> f32 {
        match &self.0 {
            Kind::Tensor(scale) => *scale,
            Kind::Table(t) => {
                debug_assert!(t.blocks.is_none_or(|n| block < u64::from(n)));
                debug_assert!(t.heads.is_none_or(|n| head < n as usize));
                let offset = block as usize * t.block_step + head * t.head_step;
                // SAFETY: `check_shape` matched the extents to the cache's, callers stay within
                // the cache, and whoever made the table vouched for those offsets.
                unsafe { t.base.add(offset).cast::<f32>().read_unaligned() }
            }
        }
    }

    /// The addresses that hold scales.
    pub(crate) fn span(&self) -> Span {
        match &self.0 {
            Kind::Tensor(_) => Span { start: 0, len: 0 },
            Kind::Table(t) => Span::of(t.base, t.len().unwrap_or(usize::MAX)),
        }
    }
}

impl Table<'_> {
    fn len(&self) -> Option<usize> {
        let last = |n: Option<u32>, step: usize| step.checked_mul((n.unwrap_or(1).max(1) - 1) as usize);
        let end = last(self.blocks, self.block_step)?
            .checked_add(last(self.heads, self.head_step)?)?
            .checked_add(size_of::<f32>())?;
        isize::try_from(end).ok().map(|_| end)
    }
}
