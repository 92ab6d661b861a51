//! `include/kv_store_abi.h`: the published ABI `kv_store_v1`.

use core::ffi::{CStr, c_char, c_int};

pub const KV_STORE_VTABLE_VERSION: u32 = 2;
pub const KV_STORE_GET_VTABLE_SYMBOL: &CStr = c"kv_store_get_vtable";
pub const KV_STORE_WASM_MAX_VALUE_BYTES: u64 = 1 << 30;

/// An opened store, as a caller sees it.
#[repr(C)]
pub struct kv_store_v1 {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct kv_store_vtable {
    pub version: u32,
    pub open: Option<unsafe extern "C" fn(uri: *const c_char) -> *mut kv_store_v1>,
    pub close: Option<unsafe extern "C" fn(store: *mut kv_store_v1)>,
    pub put_chunk: Option<
        unsafe extern "C" fn(
            store: *mut kv_store_v1,
            hash: *const u8,
            hash_len: usize,
            data: *const u8,
            data_len: usize,
        ) -> c_int,
    >,
    pub get_chunk: Option<
        unsafe extern "C" fn(
            store: *mut kv_store_v1,
            hash: *const u8,
            hash_len: usize,
            out_data: *mut *mut u8,
            out_len: *mut usize,
        ) -> c_int,
    >,
    pub put_manifest: Option<
        unsafe extern "C" fn(store: *mut kv_store_v1, name: *const c_char, data: *const u8, data_len: usize) -> c_int,
    >,
    pub get_manifest: Option<
        unsafe extern "C" fn(
            store: *mut kv_store_v1,
            name: *const c_char,
            out_data: *mut *mut u8,
            out_len: *mut usize,
        ) -> c_int,
    >,
    pub delete_manifest: Option<unsafe extern "C" fn(store: *mut kv_store_v1, name: *const c_char) -> c_int>,
    /// Only where `version` is 2 or more: a table of version 1 ends before it.
    pub prefetch_chunks: Option<
        unsafe extern "C" fn(store: *mut kv_store_v1, hashes: *const u8, hash_len: usize, n_hashes: usize) -> c_int,
    >,
}

pub type kv_store_get_vtable_fn = Option<unsafe extern "C" fn() -> *const kv_store_vtable>;

#[rustfmt::skip]
mod layout {
    use super::*;
    layout!(kv_store_vtable, 72, version 0, open 8, close 16, put_chunk 24, get_chunk 32, put_manifest 40, get_manifest 48,
        delete_manifest 56, prefetch_chunks 64);
}
