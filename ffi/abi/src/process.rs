//! `include/kv_store_wasm.h`: what the library offers to the process, whatever stores are open.

use core::ffi::{CStr, c_char, c_int, c_void};

pub const KV_STORE_WASM_VTABLE_VERSION: u32 = 1;
pub const KV_STORE_WASM_GET_VTABLE_SYMBOL: &CStr = c"kv_store_wasm_get_vtable";

pub const KV_STORE_WASM_LOG_OFF: i32 = 0;
pub const KV_STORE_WASM_LOG_ERROR: i32 = 1;
pub const KV_STORE_WASM_LOG_WARN: i32 = 2;
pub const KV_STORE_WASM_LOG_INFO: i32 = 3;
pub const KV_STORE_WASM_LOG_DEBUG: i32 = 4;

pub type kv_store_wasm_log_fn = Option<unsafe extern "C" fn(context: *mut c_void, level: i32, line: *const c_char)>;

#[repr(C)]
pub struct kv_store_wasm_vtable_t {
    pub size: u32,
    pub version: u32,
    pub metrics: unsafe extern "C" fn(buffer: *mut c_char, len: usize) -> usize,
    pub set_log: unsafe extern "C" fn(function: kv_store_wasm_log_fn, context: *mut c_void, level: i32) -> c_int,
    pub last_error: unsafe extern "C" fn() -> *const c_char,
}

pub type kv_store_wasm_get_vtable_fn = Option<unsafe extern "C" fn() -> *const kv_store_wasm_vtable_t>;

#[rustfmt::skip]
mod layout {
    use super::*;
    layout!(kv_store_wasm_vtable_t, 32, size 0, version 4, metrics 8, set_log 16, last_error 24);
}
