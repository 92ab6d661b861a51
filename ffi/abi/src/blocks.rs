//! `include/kv_blocks.h`: the block cache.

use core::ffi::{CStr, c_char, c_int, c_void};

pub const KV_BLOCKS_VTABLE_VERSION: u32 = 1;
pub const KV_BLOCKS_GET_VTABLE_SYMBOL: &CStr = c"kv_blocks_get_vtable";

/// A cache, as a caller sees it.
#[repr(C)]
pub struct kv_blocks_t {
    _opaque: [u8; 0],
}

/// Blocks that were acquired, as a caller sees them.
#[repr(C)]
pub struct kv_blocks_acquired_t {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kv_blocks_spec_t {
    pub size: u32,
    pub block_tokens: u32,
    pub block_bytes: u64,
    pub model: *const c_char,
    pub layout: *const c_char,
    pub dtype: *const c_char,
    pub first_layer: u32,
    pub end_layer: u32,
    pub first_head: u32,
    pub end_head: u32,
    pub rank: u32,
    pub ranks: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kv_blocks_query_t {
    pub prefix: *const i32,
    pub n_prefix: usize,
    pub query: *const i32,
    pub n_query: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kv_blocks_info_t {
    pub size: u32,
    pub block_tokens: u32,
    pub block_bytes: u64,
}

/// `exists` and the other two.
pub type Counted = unsafe extern "C" fn(cache: *mut kv_blocks_t, query: *const kv_blocks_query_t) -> i64;

#[repr(C)]
pub struct kv_blocks_vtable_t {
    pub size: u32,
    pub version: u32,
    pub open: unsafe extern "C" fn(toml: *const c_char, spec: *const kv_blocks_spec_t) -> *mut kv_blocks_t,
    pub put: unsafe extern "C" fn(
        cache: *mut kv_blocks_t,
        query: *const kv_blocks_query_t,
        blocks: *const *const c_void,
        n_blocks: usize,
    ) -> i64,
    pub get: unsafe extern "C" fn(
        cache: *mut kv_blocks_t,
        query: *const kv_blocks_query_t,
        blocks: *const *mut c_void,
        n_blocks: usize,
    ) -> i64,
    pub acquire: unsafe extern "C" fn(
        cache: *mut kv_blocks_t,
        query: *const kv_blocks_query_t,
        out_blocks: *mut *const c_void,
        n_blocks: usize,
        out_acquired: *mut *mut kv_blocks_acquired_t,
    ) -> i64,
    pub give_back: unsafe extern "C" fn(acquired: *mut kv_blocks_acquired_t),
    pub exists: Counted,
    pub remove: Counted,
    pub prefetch: Counted,
    pub flush: unsafe extern "C" fn(cache: *mut kv_blocks_t) -> c_int,
    pub info: unsafe extern "C" fn(cache: *mut kv_blocks_t, out: *mut kv_blocks_info_t) -> c_int,
    pub metrics: unsafe extern "C" fn(cache: *mut kv_blocks_t, buffer: *mut c_char, len: usize) -> usize,
    pub close: unsafe extern "C" fn(cache: *mut kv_blocks_t),
    pub last_error: unsafe extern "C" fn() -> *const c_char,
}

pub type kv_blocks_get_vtable_fn = Option<unsafe extern "C" fn() -> *const kv_blocks_vtable_t>;

#[rustfmt::skip]
mod layout {
    use super::*;
    layout!(kv_blocks_spec_t, 64, size 0, block_tokens 4, block_bytes 8, model 16, layout 24, dtype 32, first_layer 40, end_layer 44,
        first_head 48, end_head 52, rank 56, ranks 60);
    layout!(kv_blocks_query_t, 32, prefix 0, n_prefix 8, query 16, n_query 24);
    layout!(kv_blocks_info_t, 16, size 0, block_tokens 4, block_bytes 8);
    layout!(kv_blocks_vtable_t, 112, size 0, version 4, open 8, put 16, get 24, acquire 32, give_back 40, exists 48, remove 56,
        prefetch 64, flush 72, info 80, metrics 88, close 96, last_error 104);
}
