//! From descriptors of the C ABI to the types of the Rust API, for a library whose own C calls
//! take them. The rules are those of the four functions.

use super::*;
use crate::cache::KvCacheMut;
use crate::dtype::DType;
use crate::index::IndexSlice;
use crate::scale::Scale;
use crate::write::Slots;

/// A cache; `pool` is not looked at.
///
/// # Errors
/// As `kvx_validate_cache_desc`.
///
/// # Safety
/// `desc` must be null, or valid for reads of as many bytes as its `size` says. The result must
/// not be used for longer than the pools are there, and only as [`KvCacheMut::from_raw`] allows.
pub unsafe fn cache<'a>(desc: *const kvx_cache_desc_t) -> Result<KvCacheMut<'a>> {
    let mut copy = MaybeUninit::uninit();
    // SAFETY: the caller's promise.
    let desc = unsafe { read(desc, &mut copy)? };
    let (raw, layouts) = parse::cache(desc)?;
    Ok(KvCacheMut::of(raw, layouts))
}

/// A slot for each token.
///
/// # Errors
/// `InvalidArgument`: a `size` that is too small, slots that are null, another dtype than S32 or
/// S64.
///
/// # Safety
/// For `'a`, the slots must be valid for reads.
pub unsafe fn slots<'a>(desc: &kvx_slot_mapping_t) -> Result<Slots<'a>> {
    // SAFETY: the caller's promise.
    unsafe { parse::slots(desc, u64::from(desc.token_count)) }
}

/// Integers of an index dtype.
///
/// # Errors
/// `InvalidArgument`: they are null, or of another dtype than S32 or S64.
///
/// # Safety
/// For `'a`, `base` must be null or valid for reads of `len` of them.
pub unsafe fn indices<'a>(base: *const c_void, len: u32, dtype: kvx_dtype_t) -> Result<IndexSlice<'a>> {
    // SAFETY: the caller's promise.
    unsafe { parse::indices(base, len, parse::wide(dtype)?) }
}

/// A scale; `None` where `data` is null.
///
/// # Errors
/// As a write with this scale.
///
/// # Safety
/// For `'a`, what the descriptor names must be valid for reads.
pub unsafe fn scale<'a>(desc: &kvx_scale_desc_t) -> Result<Option<Scale<'a>>> {
    if desc.data.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { parse::scale(desc, std::ptr::null()).map(Some) }
}

/// The type of elements; `None` for `KVX_DTYPE_INVALID`.
///
/// # Errors
/// `InvalidArgument`: no type of elements.
pub fn dtype(dtype: kvx_dtype_t) -> Result<Option<DType>> {
    match dtype {
        KVX_DTYPE_INVALID => Ok(None),
        dtype => parse::dtype(dtype).map(Some),
    }
}

/// The number of a type of elements.
pub fn dtype_code(dtype: DType) -> kvx_dtype_t {
    match dtype {
        DType::F16 => KVX_DTYPE_F16,
        DType::BF16 => KVX_DTYPE_BF16,
        DType::F32 => KVX_DTYPE_F32,
        DType::F8E4M3 => KVX_DTYPE_F8_E4M3,
        DType::F8E5M2 => KVX_DTYPE_F8_E5M2,
    }
}
