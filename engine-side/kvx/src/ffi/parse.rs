//! From descriptors of the C ABI to the types of the Rust API.
//!
//! Invariant: only descriptors are looked at here, never the buffers that they
//! point to (but for a per-tensor scale, which is one number). Each rule
//! names the status that `kvx_abi.h` promises for it; rules about what is in
//! the buffers are the Rust API's.

#![allow(clippy::indexing_slicing, reason = "of arrays of a fixed length, whose indices were checked with the call")]

use super::*;
use crate::cache::{RawCache, RawTokens, row_bytes};
use crate::dtype::DType;
use crate::gather::Gather;
use crate::index::IndexSlice;
use crate::layout::{CacheShape, Described, Layout, Steps};
use crate::scale::{KvScales, Scale};
use crate::table::{BlockTable, OffsetPools};
use crate::write::Slots;

/// A larger size is a later minor version's struct, whose first part is ours.
#[inline(always)]
pub(super) fn check_size<T>(size: u32) -> Result<()> {
    if (size as usize) < size_of::<T>() {
        let name = std::any::type_name::<T>().rsplit("::").next().unwrap_or("");
        return Err(invalid(format!("{name} of size {size}")));
    }
    Ok(())
}

#[inline(always)]
pub(super) fn dtype(dtype: kvx_dtype_t) -> Result<DType> {
    Ok(match dtype {
        KVX_DTYPE_F16 => DType::F16,
        KVX_DTYPE_BF16 => DType::BF16,
        KVX_DTYPE_F32 => DType::F32,
        KVX_DTYPE_F8_E4M3 => DType::F8E4M3,
        KVX_DTYPE_F8_E5M2 => DType::F8E5M2,
        other => return Err(invalid(format!("dtype {other} is no float"))),
    })
}

/// Whether an index dtype is S64, or else S32.
#[inline(always)]
pub(super) fn wide(dtype: kvx_dtype_t) -> Result<bool> {
    match dtype {
        KVX_DTYPE_S32 => Ok(false),
        KVX_DTYPE_S64 => Ok(true),
        other => Err(invalid(format!("index dtype {other} is neither S32 nor S64"))),
    }
}

/// # Safety
/// As [`IndexSlice::from_raw`], unless `base` is null.
#[inline(always)]
pub(super) unsafe fn indices<'a>(base: *const c_void, len: u32, wide: bool) -> Result<IndexSlice<'a>> {
    if base.is_null() && len > 0 {
        return Err(invalid("an index buffer is null"));
    }
    let bytes = (len as usize).checked_mul(if wide { 8 } else { 4 });
    if bytes.and_then(|n| (base as usize).checked_add(n)).is_none() {
        return Err(invalid("an index buffer passes the end of the address space"));
    }
    // SAFETY: not null unless empty; the caller's promise.
    Ok(unsafe { IndexSlice::from_raw(base.cast(), len as usize, wide) })
}

/// All of KVX sections 4 and 6.1 but the pool of KV offsets.
#[inline(always)]
pub(super) fn cache(desc: &kvx_cache_desc_t) -> Result<(RawCache, [Layout; 2])> {
    let shape = CacheShape {
        num_blocks: desc.num_blocks,
        block_size: desc.block_size,
        num_kv_heads: desc.num_kv_heads,
        head_dim: desc.head_dim,
    };
    check_size::<kvx_tensor_desc_t>(desc.k.size)?;
    check_size::<kvx_tensor_desc_t>(desc.v.size)?;
    if desc.k.layout != desc.v.layout || desc.k.dtype != desc.v.dtype {
        return Err(invalid("K and V must have the same layout and dtype"));
    }
    if desc.k.data.is_null() || desc.v.data.is_null() {
        return Err(invalid("K or V is null"));
    }
    let dtype = dtype(desc.k.dtype)?;
    let k = layout(&desc.k, &shape, dtype)?;
    let own;
    let v = if alike(&desc.k, &desc.v) {
        &k
    } else {
        own = layout(&desc.v, &shape, dtype)?;
        &own
    };
    let bases = [desc.k.data.cast(), desc.v.data.cast()];
    check_memory(desc.k.memory)?;
    check_memory(desc.v.memory)?;
    Ok((RawCache::of(shape, dtype, [&k.1, &v.1], bases)?, [k.0, v.0]))
}

/// Checks `ndim`, `shape` and strides.
#[inline(always)]
fn layout(desc: &kvx_tensor_desc_t, shape: &CacheShape, dtype: DType) -> Result<(Layout, Steps)> {
    let layout = match desc.layout {
        KVX_LAYOUT_BLOCK_NHD => Layout::Nhd,
        KVX_LAYOUT_BLOCK_HND => Layout::Hnd,
        KVX_LAYOUT_BLOCK_HND_PACKED => {
            Layout::HndPacked { pack: u32::try_from(desc.shape[4]).map_err(|_| invalid("pack is shape[4]"))? }
        }
        KVX_LAYOUT_BLOCK_CUSTOM => {
            let mut strides = [0; 4];
            for (i, (to, from)) in strides.iter_mut().zip(desc.stride).enumerate() {
                *to = match u64::try_from(from) {
                    Ok(stride) => stride,
                    Err(_) if desc.shape[i] == 1 => 0,
                    Err(_) => return Err(invalid("a stride is negative")),
                };
            }
            Layout::Custom { strides }
        }
        other => return Err(invalid(format!("layout {other}"))),
    };
    let described = layout.describe(shape)?;
    let Described { dims, strides, ndim, .. } = described;
    let (mut shaped, mut dense) = (ndim == desc.ndim as usize, true);
    for i in 0..KVX_MAX_TENSOR_DIMS {
        shaped &= i >= ndim || dims[i] == desc.shape[i];
        dense &= i >= ndim || dims[i] == 1 || strides[i] == desc.stride[i];
    }
    if !shaped {
        return Err(invalid("ndim and shape must be those of the layout and the cache"));
    }
    let steps = layout.resolve(&described, shape, dtype)?;
    if !dense && !matches!(layout, Layout::Custom { .. }) {
        return Err(unsupported("strides of this layout are dense; others are for CUSTOM"));
    }
    Ok((layout, steps))
}

/// Whether two tensors have the same dimensions and strides, as K and V mostly do: what was found
/// of the one then goes for the other. Without branches, as calls are small.
#[inline(always)]
fn alike(a: &kvx_tensor_desc_t, b: &kvx_tensor_desc_t) -> bool {
    let mut differ = i64::from(a.ndim ^ b.ndim);
    for i in 0..KVX_MAX_TENSOR_DIMS {
        differ |= (a.shape[i] ^ b.shape[i]) | (a.stride[i] ^ b.stride[i]);
    }
    differ == 0
}

/// Both IO tensors; `leading` are the dimensions that may stand before heads and head_dim, each
/// with `tokens` as its product.
#[inline(always)]
fn io(desc: &kvx_kv_io_desc_t, cache: &RawCache, tokens: u32, leading: &[&[i64]]) -> Result<RawTokens> {
    check_size::<kvx_kv_io_desc_t>(desc.size)?;
    let shape = &cache.shape;
    if (desc.num_kv_heads, desc.head_dim) != (shape.num_kv_heads, shape.head_dim) {
        return Err(invalid("tokens and cache differ in heads or head_dim"));
    }
    if desc.num_tokens != tokens {
        let have = desc.num_tokens;
        return Err(invalid(format!("num_tokens is {have}, the call has {tokens}")));
    }
    let dtype = dtype(desc.key.dtype)?;
    let row = row_bytes(shape, dtype)?;
    let (key, value) = (&desc.key, &desc.value);
    check_size::<kvx_tensor_desc_t>(key.size)?;
    check_size::<kvx_tensor_desc_t>(value.size)?;
    if value.dtype != key.dtype {
        return Err(invalid("key and value differ in dtype"));
    }
    if tokens > 0 && (key.data.is_null() || value.data.is_null()) {
        return Err(invalid("key or value is null"));
    }
    let step = |tensor: &kvx_tensor_desc_t| {
        let tail = [shape.num_kv_heads, shape.head_dim].map(i64::from);
        let ndim = tensor.ndim as usize;
        let fits = leading.iter().any(|head| {
            let n = head.len();
            ndim == n + 2
                && (0..n).all(|i| tensor.shape[i] == head[i])
                && (0..2).all(|i| tensor.shape[n + i] == tail[i])
        });
        if !fits {
            return Err(invalid("ndim and shape of key and value must be those of the call"));
        }
        if tokens == 0 {
            return Ok(row);
        }
        token_step(&tensor.shape[..ndim], &tensor.stride[..ndim], row, dtype.size())
    };
    let first = step(key)?;
    let steps = [first, if alike(key, value) { first } else { step(value)? }];
    check_memory(key.memory)?;
    check_memory(value.memory)?;
    Ok(RawTokens { key: key.data.cast(), value: value.data.cast(), dtype, tokens: u64::from(tokens), steps })
}

/// Bytes from a token to the next, where heads and head_dim are dense in a row and the dimensions
/// before them step from token to token evenly. Strides of dimensions of extent 1 have no say.
#[inline(always)]
fn token_step(shape: &[i64], stride: &[i64], row: usize, size: usize) -> Result<usize> {
    let (before, n) = (shape.len() - 2, shape.len());
    let dense = (shape[n - 1] == 1 || stride[n - 1] == 1) && (shape[n - 2] == 1 || stride[n - 2] == shape[n - 1]);
    let mut step = None;
    let mut tokens = 1i64;
    let mut even = true;
    for i in (0..before).rev().filter(|i| shape[*i] != 1) {
        let first = *step.get_or_insert(stride[i]);
        even &= first.checked_mul(tokens) == Some(stride[i]);
        // The product is the number of tokens, which fits 32 bits.
        tokens *= shape[i];
    }
    let bytes = match step {
        None => Some(row),
        Some(step) => usize::try_from(step).ok().and_then(|step| step.checked_mul(size)),
    };
    match bytes {
        Some(bytes) if dense && even && bytes >= row => Ok(bytes),
        None if step.is_some_and(|step| step > 0) => Err(invalid("a stride passes the address space")),
        _ => {
            Err(unsupported("key and value must be dense but for the stride of tokens, which may be longer than a row"))
        }
    }
}

#[inline(always)]
pub(super) fn write_io(desc: &kvx_kv_io_desc_t, cache: &RawCache) -> Result<RawTokens> {
    io(desc, cache, desc.num_tokens, &[&[i64::from(desc.num_tokens)]])
}

/// `[seq_count, max_seq_len]` or `[num_tokens]` before heads and head_dim; with KV offsets
/// `[seq_count, beam_width, max_seq_len]` too, and sequences times beams count as sequences.
pub(super) fn gather_io(desc: &kvx_gather_desc_t, cache: &RawCache) -> Result<RawTokens> {
    let table = &desc.block_table;
    let (seqs, beams) = (u64::from(table.seq_count), u64::from(table.beam_width));
    let rows = seqs * beams;
    let tokens = u128::from(rows) * u128::from(desc.max_seq_len);
    let tokens = u32::try_from(tokens).map_err(|_| invalid("seq_count * beam_width * max_seq_len passes 32 bits"))?;
    // With a max_seq_len of 0, rows may exceed i64; the shape then matches nothing.
    let len = i64::from(desc.max_seq_len);
    let rows = i64::try_from(rows).unwrap_or(-1);
    let split = [seqs as i64, beams as i64, len];
    let with_beams = table.format == KVX_BLOCK_TABLE_KV_OFFSETS;
    let leading: &[&[i64]] = &[&[i64::from(tokens)], &[rows, len], &split];
    io(&desc.io, cache, tokens, if with_beams { leading } else { &leading[..2] })
}

/// # Safety
/// The slots must be valid for reads.
#[inline(always)]
pub(super) unsafe fn slots<'a>(desc: &kvx_slot_mapping_t, tokens: u64) -> Result<Slots<'a>> {
    check_size::<kvx_slot_mapping_t>(desc.size)?;
    if u64::from(desc.token_count) != tokens {
        let count = desc.token_count;
        return Err(invalid(format!("token_count is {count}, num_tokens {tokens}")));
    }
    Ok(Slots {
        // SAFETY: the caller's promise.
        slots: unsafe { indices(desc.slots, desc.token_count, wide(desc.dtype)?)? },
        invalid_slot: desc.invalid_slot,
    })
}

/// `None` where the write is a plain copy, whose scales are not looked at.
///
/// # Safety
/// The scales must be valid for reads.
#[inline(always)]
pub(super) unsafe fn scales<'a>(
    desc: &kvx_write_desc_t,
    cache: &RawCache,
    tokens: &RawTokens,
) -> Result<Option<KvScales<'a>>> {
    if cache.dtype == tokens.dtype {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe {
        Ok(Some(KvScales { k: scale(&desc.k_scale_desc, desc.k_scale)?, v: scale(&desc.v_scale_desc, desc.v_scale)? }))
    }
}

/// # Safety
/// As [`scales`].
pub(super) unsafe fn scale<'a>(desc: &kvx_scale_desc_t, fallback: *const c_void) -> Result<Scale<'a>> {
    if desc.data.is_null() {
        if fallback.is_null() {
            return Err(invalid("an FP8 cache needs a scale for K and for V"));
        }
        // SAFETY: not null, so an F32 by the caller's promise, of any alignment.
        return Ok(Scale::per_tensor(unsafe { fallback.cast::<f32>().read_unaligned() }));
    }
    check_size::<kvx_scale_desc_t>(desc.size)?;
    match desc.dtype {
        KVX_DTYPE_F32 => {}
        KVX_DTYPE_F16 | KVX_DTYPE_BF16 => return Err(unsupported("scales must be F32")),
        other => return Err(invalid(format!("scale dtype {other}"))),
    }
    let ndim = desc.ndim as usize;
    let dim = |i: usize| -> Result<(u32, usize)> {
        let extent = u32::try_from(desc.shape[i]);
        let stride = usize::try_from(desc.stride[i]);
        match (extent, stride) {
            (Ok(extent), Ok(stride)) => Ok((extent, stride)),
            _ => Err(invalid("a scale extent or stride is out of bounds")),
        }
    };
    // SAFETY: the caller's promise.
    unsafe {
        let data = desc.data.cast::<u8>();
        match (desc.granularity, ndim) {
            (KVX_SCALE_PER_TENSOR, 0..=KVX_MAX_TENSOR_DIMS) => {
                if desc.shape[..ndim].iter().any(|n| *n != 1) {
                    return Err(invalid("a scale per tensor has one element"));
                }
                Ok(Scale::per_tensor(data.cast::<f32>().read_unaligned()))
            }
            (KVX_SCALE_PER_BLOCK, 1) => Scale::from_raw(data, Some(dim(0)?), None),
            (KVX_SCALE_PER_HEAD, 1) => Scale::from_raw(data, None, Some(dim(0)?)),
            (KVX_SCALE_PER_BLOCK_HEAD, 2) => Scale::from_raw(data, Some(dim(0)?), Some(dim(1)?)),
            (granularity, ndim) => Err(invalid(format!("scale granularity {granularity} with {ndim} dimensions"))),
        }
    }
}

/// The table, the lengths, and the pools where the table is of KV offsets.
///
/// # Safety
/// Indices, `indptr` and lengths must be valid for reads, and the pools as the ABI says.
pub(super) unsafe fn gather<'a>(
    desc: &kvx_gather_desc_t,
    pool: &kvx_pool_desc_t,
    threads: usize,
) -> Result<Gather<'a>> {
    let (t, lens) = (&desc.block_table, &desc.seq_lens);
    check_size::<kvx_block_table_t>(t.size)?;
    check_size::<kvx_seq_lens_t>(lens.size)?;
    if t.seq_count != lens.seq_count {
        return Err(invalid("table and lengths differ in seq_count"));
    }
    let wide_indices = wide(t.index_dtype)?;
    if lens.dtype != t.index_dtype {
        return Err(invalid("lengths and indices differ in dtype"));
    }
    let ragged = t.format == KVX_BLOCK_TABLE_RAGGED;
    if !ragged && (!t.indptr.is_null() || t.indptr_count != 0) {
        return Err(invalid("indptr is for RAGGED tables"));
    }
    if t.format != KVX_BLOCK_TABLE_KV_OFFSETS && t.beam_width != 1 {
        return Err(invalid("beam_width is 1 but for KV offsets"));
    }
    // SAFETY: the caller's promise.
    unsafe {
        let entries = indices(t.indices, t.indices_count, wide_indices)?;
        let table = match t.format {
            KVX_BLOCK_TABLE_PACKED => BlockTable::Packed { indices: entries, max_blocks_per_seq: t.max_blocks_per_seq },
            KVX_BLOCK_TABLE_RAGGED => BlockTable::Ragged {
                indices: entries,
                indptr: indices(t.indptr, t.indptr_count, wide(t.indptr_dtype)?)?,
            },
            KVX_BLOCK_TABLE_KV_OFFSETS => BlockTable::KvOffsets {
                indices: entries,
                beam_width: t.beam_width,
                max_blocks_per_seq: t.max_blocks_per_seq,
                pools: pools(pool, t.flags)?,
            },
            other => return Err(invalid(format!("block table format {other}"))),
        };
        Ok(Gather {
            table,
            seq_lens: indices(lens.lengths, lens.seq_count, wide_indices)?,
            max_seq_len: desc.max_seq_len,
            scales: None,
            threads,
        })
    }
}

/// # Safety
/// As [`gather`].
unsafe fn pools<'a>(desc: &kvx_pool_desc_t, flags: u32) -> Result<OffsetPools<'a>> {
    if flags & KVX_BLOCK_TABLE_FLAG_KVCACHEINDEX == 0 {
        return Err(invalid("KV offsets need KVX_BLOCK_TABLE_FLAG_KVCACHEINDEX"));
    }
    if flags != KVX_BLOCK_TABLE_FLAG_KVCACHEINDEX {
        return Err(unsupported(format!("block table flags {flags:#x}")));
    }
    check_size::<kvx_pool_desc_t>(desc.size)?;
    if desc.primary.is_null() {
        return Err(invalid("KV offsets need a primary pool"));
    }
    check_memory(desc.memory)?;
    let (primary, secondary) = (desc.primary.cast(), desc.secondary.cast());
    // SAFETY: the caller's promise.
    Ok(unsafe { OffsetPools::from_raw(desc.bytes_per_block, primary, secondary) })
}
