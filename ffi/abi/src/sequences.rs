//! `include/kv_store_kvx.h`: sequences of a paged cache, straight into and out of a store.

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::kvx::{kvx_cache_desc_t, kvx_dtype_t, kvx_scale_desc_t, kvx_slot_mapping_t};
use crate::store::kv_store_v1;

pub const KV_STORE_KVX_VTABLE_VERSION: u32 = 1;
pub const KV_STORE_KVX_GET_VTABLE_SYMBOL: &CStr = c"kv_store_kvx_get_vtable";

pub const KV_STORE_KVX_MAX_MODEL: u32 = 256;
pub const KV_STORE_KVX_MAX_LAYERS: u32 = 1024;

pub const KV_STORE_KVX_VERIFY: u32 = 1;
pub const KV_STORE_KVX_CONVERT_LAYOUT: u32 = 1;
pub const KV_STORE_KVX_CONVERT_DTYPE: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kv_store_kvx_result_t {
    pub size: u32,
    pub tokens: u32,
    pub saved_tokens: u32,
    pub chunks: u32,
    pub existed: u32,
    pub reserved: u32,
    pub bytes: u64,
    pub message: [c_char; 256],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kv_store_kvx_save_t {
    pub size: u32,
    pub num_layers: u32,
    pub layers: *const kvx_cache_desc_t,
    pub name: *const c_char,
    pub model: *const c_char,
    pub blocks: *const c_void,
    pub block_dtype: kvx_dtype_t,
    pub num_blocks: u32,
    pub num_tokens: u32,
    pub chunk_tokens: u32,
    pub stored_dtype: kvx_dtype_t,
    pub threads: u32,
    pub k_scales: *const kvx_scale_desc_t,
    pub v_scales: *const kvx_scale_desc_t,
    pub flags: u32,
    pub timeout_ms: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kv_store_kvx_restore_t {
    pub size: u32,
    pub num_layers: u32,
    pub layers: *const kvx_cache_desc_t,
    pub name: *const c_char,
    pub model: *const c_char,
    pub slots: kvx_slot_mapping_t,
    pub flags: u32,
    pub threads: u32,
    pub max_bytes: u64,
    pub k_scales: *const kvx_scale_desc_t,
    pub v_scales: *const kvx_scale_desc_t,
    pub timeout_ms: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kv_store_kvx_info_t {
    pub size: u32,
    pub tokens: u32,
    pub chunk_tokens: u32,
    pub num_layers: u32,
    pub block_size: u32,
    pub dtype: kvx_dtype_t,
    pub bytes: u64,
}

#[repr(C)]
pub struct kv_store_kvx_vtable_t {
    pub size: u32,
    pub version: u32,
    pub save: unsafe extern "C" fn(
        store: *mut kv_store_v1,
        save: *const kv_store_kvx_save_t,
        result: *mut kv_store_kvx_result_t,
    ) -> c_int,
    pub restore: unsafe extern "C" fn(
        store: *mut kv_store_v1,
        restore: *const kv_store_kvx_restore_t,
        result: *mut kv_store_kvx_result_t,
    ) -> c_int,
    pub describe:
        unsafe extern "C" fn(store: *mut kv_store_v1, name: *const c_char, info: *mut kv_store_kvx_info_t) -> c_int,
    pub last_error: unsafe extern "C" fn() -> *const c_char,
}

pub type kv_store_kvx_get_vtable_fn = Option<unsafe extern "C" fn() -> *const kv_store_kvx_vtable_t>;

#[rustfmt::skip]
mod layout {
    use super::*;
    layout!(kv_store_kvx_result_t, 288, size 0, tokens 4, saved_tokens 8, chunks 12, existed 16, reserved 20, bytes 24, message 32);
    layout!(kv_store_kvx_save_t, 88, size 0, num_layers 4, layers 8, name 16, model 24, blocks 32, block_dtype 40, num_blocks 44,
        num_tokens 48, chunk_tokens 52, stored_dtype 56, threads 60, k_scales 64, v_scales 72, flags 80, timeout_ms 84);
    layout!(kv_store_kvx_restore_t, 104, size 0, num_layers 4, layers 8, name 16, model 24, slots 32, flags 64, threads 68,
        max_bytes 72, k_scales 80, v_scales 88, timeout_ms 96, reserved 100);
    layout!(kv_store_kvx_info_t, 32, size 0, tokens 4, chunk_tokens 8, num_layers 12, block_size 16, dtype 20, bytes 24);
    layout!(kv_store_kvx_vtable_t, 40, size 0, version 4, save 8, restore 16, describe 24, last_error 32);
}
