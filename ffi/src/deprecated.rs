//! The functions of 0.2 that have another name now, for programs that were built with its headers: `include/kv_store_deprecated.h`.
//!
//! Each forwards, and nothing else. They stay as long as the library is `libkv_store_wasm.so.1`.

use std::ffi::{c_char, c_void};

use kv_store_abi::batch::kv_store_batch_vtable_t;
use kv_store_abi::process::kv_store_wasm_log_fn;
use kv_store_abi::sequences::{
    kv_store_kvx_info_t, kv_store_kvx_restore_t, kv_store_kvx_result_t, kv_store_kvx_save_t,
};
use kv_store_abi::store::kv_store_v1;

use super::{batch, log, metrics, paged};

/// As [`batch::kv_store_batch_get_vtable`].
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_get_batch_vtable() -> *const kv_store_batch_vtable_t {
    batch::kv_store_batch_get_vtable()
}

/// # Safety
/// As [`paged::save`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_kvx_save(
    handle: *mut kv_store_v1,
    save: *const kv_store_kvx_save_t,
    result: *mut kv_store_kvx_result_t,
) -> i32 {
    // SAFETY: by this function's own condition.
    unsafe { paged::save(handle, save, result) }
}

/// # Safety
/// As [`paged::restore`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_kvx_restore(
    handle: *mut kv_store_v1,
    restore: *const kv_store_kvx_restore_t,
    result: *mut kv_store_kvx_result_t,
) -> i32 {
    // SAFETY: by this function's own condition.
    unsafe { paged::restore(handle, restore, result) }
}

/// # Safety
/// As [`paged::describe`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_kvx_describe(
    handle: *mut kv_store_v1,
    name: *const c_char,
    info: *mut kv_store_kvx_info_t,
) -> i32 {
    // SAFETY: by this function's own condition.
    unsafe { paged::describe(handle, name, info) }
}

/// # Safety
/// As [`metrics::metrics`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_wasm_metrics(buffer: *mut c_char, len: usize) -> usize {
    // SAFETY: by this function's own condition.
    unsafe { metrics::metrics(buffer, len) }
}

/// # Safety
/// As [`log::set_log`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_wasm_set_log(
    function: kv_store_wasm_log_fn,
    context: *mut c_void,
    level: i32,
) -> i32 {
    // SAFETY: by this function's own condition.
    unsafe { log::set_log(function, context, level) }
}
