//! What a sequence is apart from its bytes, and where in a chunk a layer's bytes are.
//!
//! A chunk holds some tokens of all layers: layer by layer K, then V, each dense `[tokens, heads, head_dim]`. So its bytes
//! depend on the values of its own tokens alone, and not on layouts, block sizes or block ids.
//!
//! Invariant: the bytes of a [`Sequence`]'s chunks are within what a value may have, so no sum over them overflows.

use std::fmt;
use std::ops::Range;

use kvx::ffi::views;
use kvx::{DType, Layout};

use crate::error::{Error, ErrorKind};
use crate::limits;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    pub layers: Vec<Layer>,
    pub tokens: u32,
    /// Tokens of each chunk but the last, which has the rest.
    pub chunk_tokens: u32,
}

/// One layer's K and V.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layer {
    /// Heads of K and V.
    pub heads: u32,
    /// Values of a head.
    pub head_dim: u32,
    /// The type of what is in the chunks.
    pub stored: DType,
    /// The type of the cache that it was saved from.
    pub cache: DType,
    /// The orders of K and V there.
    pub orders: [Order; 2],
}

/// The order of the dimensions of a pool: what a [`Layout`] is without its strides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// [`Layout::Nhd`]
    Nhd,
    /// [`Layout::Hnd`]
    Hnd,
    /// [`Layout::HndPacked`] with this `pack`.
    HndPacked(u32),
    /// Of any strides: they are the pool's own business.
    Custom,
}

impl Sequence {
    pub fn new(layers: Vec<Layer>, tokens: u32, chunk_tokens: u32) -> Result<Self, Error> {
        if layers.is_empty() || layers.len() > limits::MAX_KV_LAYERS {
            let (have, most) = (layers.len(), limits::MAX_KV_LAYERS);
            return Err(Error::invalid(format!("a sequence has 1 to {most} layers, this one {have}")));
        }
        if tokens == 0 || chunk_tokens == 0 || layers.iter().any(|layer| layer.heads == 0 || layer.head_dim == 0) {
            return Err(Error::invalid("tokens, tokens of a chunk, heads and head_dim must be above zero"));
        }
        let row =
            |layer: &Layer| u128::from(layer.heads) * u128::from(layer.head_dim) * 2 * layer.stored.size() as u128;
        let chunk = layers.iter().map(row).sum::<u128>() * u128::from(chunk_tokens.min(tokens));
        if chunk > limits::MAX_VALUE_BYTES as u128 {
            let limit = limits::MAX_VALUE_BYTES;
            let message =
                format!("a chunk of {chunk_tokens} tokens is larger ({chunk} bytes) than may be stored ({limit})");
            return Err(Error::invalid(message));
        }
        Ok(Sequence { layers, tokens, chunk_tokens })
    }

    pub fn chunks(&self) -> u32 {
        self.tokens.div_ceil(self.chunk_tokens)
    }

    /// The tokens of a chunk.
    pub fn tokens_of(&self, chunk: u32) -> Range<u32> {
        let start = chunk.saturating_mul(self.chunk_tokens).min(self.tokens);
        start..start.saturating_add(self.chunk_tokens).min(self.tokens)
    }

    pub fn chunk_bytes(&self, chunk: u32) -> u64 {
        let tokens = self.tokens_of(chunk).len();
        self.layers.iter().map(|layer| 2 * layer.side_bytes(tokens) as u64).sum()
    }
}

impl Layer {
    /// Of K, or of V, of so many tokens of a chunk.
    pub(super) fn side_bytes(&self, tokens: usize) -> usize {
        tokens * self.heads as usize * self.head_dim as usize * self.stored.size()
    }

    /// Why these values can not go into a cache like `other`'s; none if they can.
    pub(super) fn mismatch(&self, other: &Layer, convert: super::Convert) -> Option<String> {
        if (self.heads, self.head_dim) != (other.heads, other.head_dim) {
            let Layer { heads, head_dim, .. } = self;
            return Some(format!(
                "saved with {heads} heads of {head_dim}, the cache has {} of {}",
                other.heads, other.head_dim
            ));
        }
        if self.orders != other.orders && !convert.layout {
            return Some(format!(
                "saved from {:?}, the cache is {:?}; ask for layouts to be converted",
                self.orders, other.orders
            ));
        }
        if self.stored == other.cache {
            return None;
        }
        let (stored, cache) = (self.stored, other.cache);
        if !cache.is_fp8() || stored.is_fp8() {
            return Some(format!("saved as {stored:?}, the cache is {cache:?}, and there is no conversion"));
        }
        let advice = "ask for dtypes to be converted, and pass the cache's scales";
        (!convert.dtype).then(|| format!("saved as {stored:?}, the cache is {cache:?}; {advice}"))
    }
}

impl Order {
    pub(super) fn new(layout: Layout) -> Result<Self, Error> {
        Ok(match layout {
            Layout::Nhd => Order::Nhd,
            Layout::Hnd => Order::Hnd,
            Layout::HndPacked { pack } => Order::HndPacked(pack),
            Layout::Custom { .. } => Order::Custom,
            other => return Err(Error::new(ErrorKind::Unsupported, format!("layout {other:?}"))),
        })
    }

    pub(super) fn of(code: u8, pack: u32) -> Option<Self> {
        Some(match (code, pack) {
            (1, 0) => Order::Nhd,
            (2, 0) => Order::Hnd,
            (3, 1..) => Order::HndPacked(pack),
            (15, 0) => Order::Custom,
            _ => return None,
        })
    }

    /// The number of `kvx_layout_t`.
    pub(super) fn code(self) -> u8 {
        match self {
            Order::Nhd => 1,
            Order::Hnd => 2,
            Order::HndPacked(_) => 3,
            Order::Custom => 15,
        }
    }

    pub(super) fn pack(self) -> u32 {
        match self {
            Order::HndPacked(pack) => pack,
            _ => 0,
        }
    }
}

/// As `kvx_abi.h` calls it.
impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Order::Nhd => f.write_str("NHD"),
            Order::Hnd => f.write_str("HND"),
            Order::HndPacked(pack) => write!(f, "HND_PACKED/{pack}"),
            Order::Custom => f.write_str("CUSTOM"),
        }
    }
}

/// The type with a number of `kvx_dtype_t`.
pub(super) fn dtype_of(code: u8) -> Option<DType> {
    views::dtype(code.into()).ok().flatten()
}

pub(super) fn code_of(dtype: DType) -> u8 {
    views::dtype_code(dtype) as u8
}
