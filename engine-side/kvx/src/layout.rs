//! Where the element (block, token, head, dim) of a K or V pool lies.
//!
//! Invariant: a [`Steps`] is only made of strides that nest, so that no two
//! elements share a byte, and whose farthest byte fits an `isize`. Everything
//! behind it may then add and multiply offsets without checks. The nesting
//! also makes "do K and V share a byte?" a question of a few divisions
//! ([`Steps::meets`]), which is what lets K and V live interleaved in one
//! buffer.
//!
//! All four layouts become the same five numbers, because a head is always a
//! number of groups of contiguous elements: one group for NHD and HND, `dim /
//! pack` for HND_PACKED, and single elements for a CUSTOM layout whose last
//! stride is not 1.

#![allow(clippy::indexing_slicing, reason = "of arrays of a fixed length, whose indices were checked with the call")]

use crate::dtype::DType;
use crate::error::{Error, Result, invalid};

/// The dimensions of a paged cache (KVX section 6.1); K and V have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheShape {
    /// Physical blocks in a pool.
    pub num_blocks: u32,
    /// Tokens per block.
    pub block_size: u32,
    /// KV heads per token.
    pub num_kv_heads: u32,
    /// Elements per head.
    pub head_dim: u32,
}

impl CacheShape {
    /// One past the largest slot: `num_blocks * block_size`.
    pub fn slots(&self) -> u64 {
        u64::from(self.num_blocks) * u64::from(self.block_size)
    }

    /// Elements of K, or of V, of one token. Fits `u64`: the factors are `u32`.
    pub fn token_elements(&self) -> u64 {
        u64::from(self.num_kv_heads) * u64::from(self.head_dim)
    }

    #[inline(always)]
    fn check(&self) -> Result<()> {
        // One by one: a wide load would wait for the stores of the fields.
        if self.num_blocks == 0 || self.block_size == 0 || self.num_kv_heads == 0 || self.head_dim == 0 {
            return Err(invalid("every dimension of the cache must be above zero"));
        }
        Ok(())
    }
}

/// The order of the dimensions of a K or V pool (KVX section 4.2). Strides are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// `[num_blocks, block_size, num_kv_heads, head_dim]`, dense.
    Nhd,
    /// `[num_blocks, num_kv_heads, block_size, head_dim]`, dense.
    Hnd,
    /// `[num_blocks, num_kv_heads, head_dim / pack, block_size, pack]`, dense.
    HndPacked {
        /// Contiguous elements of a head; divides `head_dim`.
        pack: u32,
    },
    /// `[num_blocks, block_size, num_kv_heads, head_dim]` with these strides.
    ///
    /// The strides must nest: taken from the smallest up, each must be larger
    /// than the farthest offset that the smaller ones reach together (a
    /// dimension of extent 1 has no say). Every permutation of the dimensions
    /// nests, with or without gaps; what overlaps does not.
    Custom {
        /// Strides of block, token, head and dim.
        strides: [u64; 4],
    },
}

impl Layout {
    /// Extents and strides as KVX section 4.2 lists them: dense row-major, or for `Custom` those given.
    ///
    /// # Errors
    /// `InvalidArgument`: a zero dimension, a `pack` that does not divide `head_dim`, a pool that
    /// is larger than the address space.
    #[inline(always)]
    pub(crate) fn describe(&self, shape: &CacheShape) -> Result<Described> {
        shape.check()?;
        let [b, t, h, d] = [shape.num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim].map(i64::from);
        match *self {
            Layout::Nhd => Described::dense([b, t, h, d]),
            Layout::Hnd => Described::dense([b, h, t, d]),
            Layout::HndPacked { pack } => {
                if pack == 0 || !shape.head_dim.is_multiple_of(pack) {
                    return Err(invalid("pack must divide head_dim"));
                }
                Described::dense([b, h, i64::from(shape.head_dim / pack), t, i64::from(pack)])
            }
            Layout::Custom { strides: given } => {
                let dims = [b, t, h, d, 1];
                let mut strides = [0; 5];
                for ((to, from), extent) in strides.iter_mut().zip(given).zip(dims) {
                    *to = match i64::try_from(from) {
                        Ok(stride) => stride,
                        // A stride that is never taken.
                        Err(_) if extent == 1 => 0,
                        Err(_) => return Err(too_large()),
                    };
                }
                Ok(Described { dims, strides, ndim: 4, dense: None })
            }
        }
    }

    /// Checks strides, and turns them into byte steps.
    #[inline(always)]
    pub(crate) fn resolve(&self, described: &Described, shape: &CacheShape, dtype: DType) -> Result<Steps> {
        let s = described.strides;
        // Strides of (block, token, head, group) and the elements of a group.
        let (order, pack) = match *self {
            Layout::Nhd => ([s[0], s[1], s[2], 0], shape.head_dim),
            Layout::Hnd => ([s[0], s[2], s[1], 0], shape.head_dim),
            Layout::HndPacked { pack } => ([s[0], s[3], s[1], s[2]], pack),
            Layout::Custom { .. } if s[3] == 1 || shape.head_dim == 1 => ([s[0], s[1], s[2], 0], shape.head_dim),
            Layout::Custom { .. } => ([s[0], s[1], s[2], s[3]], 1),
        };
        match described.dense {
            Some(elements) => Steps::dense(order, pack, shape, dtype, elements),
            None => Steps::nested(order, pack, shape, dtype),
        }
    }
}

/// A layout of a shape; see [`Layout::describe`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described {
    pub dims: [i64; 5],
    pub strides: [i64; 5],
    /// How many of both there are.
    pub ndim: usize,
    /// How many elements there are, where they follow each other without gaps.
    dense: Option<i64>,
}

impl Described {
    #[inline(always)]
    fn dense<const N: usize>(extents: [i64; N]) -> Result<Described> {
        let (mut dims, mut strides) = ([1; 5], [0; 5]);
        let mut step = 1i64;
        for i in (0..N).rev() {
            (dims[i], strides[i]) = (extents[i], step);
            step = step.checked_mul(extents[i]).ok_or_else(too_large)?;
        }
        Ok(Described { dims, strides, ndim: N, dense: Some(step) })
    }
}

#[cold]
fn too_large() -> Error {
    invalid("the pool is larger than the address space")
}

/// A layout in bytes, checked and normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    pub block: usize,
    pub token: usize,
    pub head: usize,
    /// Between two groups of one head; without meaning where `groups` is 1.
    pub group: usize,
    /// Groups per head.
    pub groups: usize,
    /// Contiguous bytes of one group.
    pub unit: usize,
    /// From the first byte of the pool to one past its last.
    pub span: usize,
    /// The same of one block.
    pub block_span: usize,
}

impl Steps {
    /// Of strides that are those of a dense tensor of so many elements.
    #[inline(always)]
    fn dense(strides: [i64; 4], pack: u32, shape: &CacheShape, dtype: DType, elements: i64) -> Result<Self> {
        let span = elements.checked_mul(dtype.size() as i64).and_then(|span| isize::try_from(span).ok());
        let Some(span) = span else {
            return Err(too_large());
        };
        // No stride is larger than the whole, which fits.
        let [block, token, head, group] = strides.map(|stride| stride as usize * dtype.size());
        let steps = Steps { block, token, head, group, ..Steps::of_groups(pack, shape, dtype, span as usize) };
        Ok(steps.joined(shape))
    }

    /// Of strides that may not nest: from the smallest up, each must pass what the ones before reach.
    fn nested(strides: [i64; 4], pack: u32, shape: &CacheShape, dtype: DType) -> Result<Self> {
        let groups = shape.head_dim / pack;
        let bytes = |stride: i64, extent: u32| {
            match usize::try_from(stride).ok().and_then(|s| s.checked_mul(dtype.size())) {
                Some(step) => Ok(step),
                // A step that is never taken.
                None if extent == 1 => Ok(0),
                None => Err(too_large()),
            }
        };
        let mut steps = Steps {
            block: bytes(strides[0], shape.num_blocks)?,
            token: bytes(strides[1], shape.block_size)?,
            head: bytes(strides[2], shape.num_kv_heads)?,
            group: bytes(strides[3], groups)?,
            ..Steps::of_groups(pack, shape, dtype, 0)
        };
        let mut reach = 0u128;
        for (step, extent) in steps.dims(shape).into_iter().rev().filter(|dim| dim.1 > 1) {
            if (step as u128) <= reach {
                return Err(invalid("strides overlap or interleave: each must pass what the smaller ones reach"));
            }
            reach += step as u128 * (extent as u128 - 1);
        }
        // Half the address space bounds every offset, so later sums can not wrap.
        if reach >= isize::MAX as u128 {
            return Err(too_large());
        }
        steps.span = reach as usize + 1;
        Ok(steps.joined(shape))
    }

    #[inline(always)]
    fn of_groups(pack: u32, shape: &CacheShape, dtype: DType, span: usize) -> Self {
        // NHD and HND have one group, and a division less.
        let groups = if pack == shape.head_dim { 1 } else { (shape.head_dim / pack) as usize };
        let unit = pack as usize * dtype.size();
        Steps { block: 0, token: 0, head: 0, group: 0, groups, unit, span, block_span: 0 }
    }

    /// With groups that follow each other as one, and what follows from the steps.
    #[inline(always)]
    fn joined(mut self, shape: &CacheShape) -> Self {
        if self.groups > 1 && self.group == self.unit {
            self.unit *= self.groups;
            self.groups = 1;
        }
        self.block_span = self.span - self.block * (shape.num_blocks as usize - 1);
        if shape.block_size == 1 {
            // Never used inside a block; this lets runs go on from block to block.
            self.token = self.block;
        }
        self
    }

    /// (step, extent) of every dimension, the bytes of a group included, largest step first. A step
    /// that is never taken is 0.
    pub fn dims(&self, shape: &CacheShape) -> [(usize, usize); 5] {
        let mut dims = [
            (self.block, shape.num_blocks as usize),
            (self.token, shape.block_size as usize),
            (self.head, shape.num_kv_heads as usize),
            (self.group, self.groups),
            (1, self.unit),
        ];
        for (step, extent) in &mut dims {
            if *extent == 1 {
                *step = 0;
            }
        }
        // By insertion: they are five, mostly in order, and this is a tenth of a small call.
        for i in 1..dims.len() {
            let mut j = i;
            while j > 0 && dims[j - 1].0 < dims[j].0 {
                dims.swap(j - 1, j);
                j -= 1;
            }
        }
        dims
    }

    /// Whether token `t` of block `b` lies where token `b * block_size + t` of one
    /// endless block would, so that a run of slots may cross blocks.
    #[inline]
    pub fn crosses_blocks(&self, shape: &CacheShape) -> bool {
        self.token.checked_mul(shape.block_size as usize) == Some(self.block)
    }

    /// Bytes of a token, where the tokens of a block are dense `[tokens, heads, dim]`.
    pub fn dense_row(&self, shape: &CacheShape) -> Option<usize> {
        let row = shape.num_kv_heads as usize * self.unit;
        let heads = shape.num_kv_heads == 1 || self.head == self.unit;
        let tokens = shape.block_size == 1 || self.token == row;
        (self.groups == 1 && heads && tokens).then_some(row)
    }

    /// Whether two pools of these steps, the second `distance` bytes past the first, share a byte.
    pub fn meets(&self, shape: &CacheShape, distance: i128) -> bool {
        fn solve(dims: &[(usize, usize)], rest: i128) -> bool {
            let Some(&(step, extent)) = dims.first() else {
                return rest == 0;
            };
            if extent == 1 {
                return solve(&dims[1..], rest);
            }
            // The smaller steps reach less than one of this, so only two counts can do.
            let step = step as i128;
            let low = rest.div_euclid(step);
            [low, low + 1].into_iter().any(|n| n.abs() < extent as i128 && solve(&dims[1..], rest - n * step))
        }
        solve(&self.dims(shape), distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    const SHAPE: CacheShape = CacheShape { num_blocks: 3, block_size: 2, num_kv_heads: 2, head_dim: 3 };

    fn steps(layout: Layout, shape: &CacheShape, dtype: DType) -> Result<Steps> {
        layout.resolve(&layout.describe(shape)?, shape, dtype)
    }

    fn bytes(strides: [u64; 4], from: i128) -> Vec<i128> {
        let [b, t, h, d] = strides.map(i128::from);
        let mut all = Vec::new();
        for i in 0..36i128 {
            let at = i / 12 * b + i / 6 % 2 * t + i / 3 % 2 * h + i % 3 * d;
            all.extend([from + 2 * at, from + 2 * at + 1]);
        }
        all
    }

    /// Small strides of every kind: what is accepted never overlaps itself, and whether two such
    /// pools share a byte is known for every distance.
    #[test]
    fn accepted_strides_never_overlap_and_meetings_are_exact() {
        let mut accepted = 0;
        for i in 0..16u64.pow(4) {
            let strides = [i % 16, i / 16 % 16, i / 256 % 16, i / 4096];
            let Ok(steps) = steps(Layout::Custom { strides }, &SHAPE, DType::F16) else {
                continue;
            };
            accepted += 1;
            let own = bytes(strides, 0);
            let set: HashSet<_> = own.iter().copied().collect();
            assert_eq!(set.len(), own.len(), "{strides:?} overlaps");
            assert_eq!(own.iter().max(), Some(&(steps.span as i128 - 1)), "{strides:?}");
            for distance in -70..70 {
                let shares = bytes(strides, distance).iter().any(|b| set.contains(b));
                assert_eq!(steps.meets(&SHAPE, distance), shares, "{strides:?} + {distance}");
            }
        }
        // The 24 orders of the dimensions without gaps, and more with.
        assert!(accepted > 24, "{accepted}");
    }

    #[test]
    fn every_order_of_the_dimensions_is_accepted() {
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
            let extents = [3, 2, 2, 3];
            let (mut strides, mut step) = ([0; 4], 1);
            for i in order {
                strides[i] = step;
                step *= extents[i];
            }
            assert!(steps(Layout::Custom { strides }, &SHAPE, DType::F16).is_ok(), "{order:?}");
        }
    }

    #[test]
    fn what_passes_the_address_space_is_refused() {
        let huge =
            CacheShape { num_blocks: u32::MAX, block_size: u32::MAX, num_kv_heads: u32::MAX, head_dim: u32::MAX };
        assert!(steps(Layout::Nhd, &huge, DType::F32).is_err());
        let strides = [i64::MAX as u64, 6, 3, 1];
        assert!(steps(Layout::Custom { strides }, &SHAPE, DType::F32).is_err());
        assert!(steps(Layout::Custom { strides: [u64::MAX; 4] }, &SHAPE, DType::F32).is_err());
    }
}
