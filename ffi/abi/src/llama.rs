//! `include/kv_store_llama.h`: states of llama.cpp's sequences, in `libkv_store_llama.so`.

use core::ffi::{CStr, c_char};

pub const KV_STORE_LLAMA_VTABLE_VERSION: u32 = 1;
pub const KV_STORE_LLAMA_GET_VTABLE_SYMBOL: &CStr = c"kv_store_llama_get_vtable";

/// A store of states, as a caller sees it.
#[repr(C)]
pub struct kv_store_llama_t {
    _opaque: [u8; 0],
}

/// libllama's.
#[repr(C)]
pub struct llama_context {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct kv_store_llama_vtable_t {
    pub size: u32,
    pub version: u32,
    pub open: unsafe extern "C" fn(uri: *const c_char, model: *const c_char) -> *mut kv_store_llama_t,
    pub save: unsafe extern "C" fn(
        states: *const kv_store_llama_t,
        ctx: *mut llama_context,
        name: *const c_char,
        seq_id: i32,
        tokens: *const i32,
        n_tokens: usize,
    ) -> i64,
    pub load: unsafe extern "C" fn(
        states: *const kv_store_llama_t,
        ctx: *mut llama_context,
        name: *const c_char,
        seq_id: i32,
        tokens: *mut i32,
        room: usize,
        n_tokens: *mut usize,
    ) -> i64,
    pub close: unsafe extern "C" fn(states: *mut kv_store_llama_t),
    pub last_error: unsafe extern "C" fn() -> *const c_char,
}

pub type kv_store_llama_get_vtable_fn = Option<unsafe extern "C" fn() -> *const kv_store_llama_vtable_t>;

#[rustfmt::skip]
mod layout {
    use super::*;
    layout!(kv_store_llama_vtable_t, 48, size 0, version 4, open 8, save 16, load 24, close 32, last_error 40);
}
