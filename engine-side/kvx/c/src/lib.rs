//! The functions of the KVX C ABI under their C names. `include/kvx_abi.h` is the documentation, [`kvx::ffi`] the code.
//!
//! They are a crate of their own because rustc exports an unmangled function of an rlib from every cdylib and staticlib
//! that links the rlib: a library that uses the kernels does not export them for that.

use std::ffi::c_void;

use kvx::ffi::{kvx_cache_desc_t, kvx_gather_desc_t, kvx_status_t, kvx_version_t, kvx_write_desc_t};

/// # Safety
/// As [`kvx::ffi::kvx_get_version`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvx_get_version(out: *mut kvx_version_t) -> kvx_status_t {
    // SAFETY: by this function's own condition.
    unsafe { kvx::ffi::kvx_get_version(out) }
}

/// # Safety
/// As [`kvx::ffi::kvx_validate_cache_desc`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvx_validate_cache_desc(cache: *const kvx_cache_desc_t) -> kvx_status_t {
    // SAFETY: by this function's own condition.
    unsafe { kvx::ffi::kvx_validate_cache_desc(cache) }
}

/// # Safety
/// As [`kvx::ffi::kvx_write_kv`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvx_write_kv(
    cache: *const kvx_cache_desc_t,
    write: *const kvx_write_desc_t,
    stream: *mut c_void,
) -> kvx_status_t {
    // SAFETY: by this function's own condition.
    unsafe { kvx::ffi::kvx_write_kv(cache, write, stream) }
}

/// # Safety
/// As [`kvx::ffi::kvx_gather_kv`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvx_gather_kv(
    cache: *const kvx_cache_desc_t,
    gather: *const kvx_gather_desc_t,
    stream: *mut c_void,
) -> kvx_status_t {
    // SAFETY: by this function's own condition.
    unsafe { kvx::ffi::kvx_gather_kv(cache, gather, stream) }
}
