//! `include/kv_store_batch.h`: batches, saves and queues.

use core::ffi::{CStr, c_char, c_int, c_void};

use crate::store::kv_store_v1;

pub const KV_STORE_BATCH_VTABLE_VERSION: u32 = 1;
pub const KV_STORE_BATCH_GET_VTABLE_SYMBOL: &CStr = c"kv_store_batch_get_vtable";

pub const KV_STORE_LEN_UNKNOWN: u64 = u64::MAX;

pub const KV_STORE_DURABLE: u32 = 1;
pub const KV_STORE_REPLACE: u32 = 2;
pub const KV_STORE_SEALED: u32 = 4;
pub const KV_STORE_ALLOCATE: u32 = 8;
pub const KV_STORE_XXH3_KEYS: u32 = 16;
pub const KV_STORE_SELF_CHECKED: u32 = 32;

pub const KV_STORE_PUT: u32 = 1;
pub const KV_STORE_GET: u32 = 2;
pub const KV_STORE_EXISTS: u32 = 3;
pub const KV_STORE_DELETE: u32 = 4;

/// A save, as a caller sees it.
#[repr(C)]
pub struct kv_store_save_t {
    _opaque: [u8; 0],
}

/// A queue, as a caller sees it.
#[repr(C)]
pub struct kv_store_queue_t {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kv_store_piece_t {
    pub data: *mut c_void,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kv_store_item_t {
    pub hash: *const u8,
    pub hash_len: usize,
    pub pieces: *const kv_store_piece_t,
    pub n_pieces: usize,
    pub len: u64,
    pub data: *mut c_void,
    pub status: i32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kv_store_call_t {
    pub size: u32,
    pub flags: u32,
    pub timeout_ms: u64,
    pub save: *mut kv_store_save_t,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kv_store_completion_t {
    pub cookie: u64,
    pub status: i32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kv_store_hash_t {
    pub len: u8,
    pub bytes: [u8; 64],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct kv_store_info_t {
    pub size: u32,
    pub durable: u8,
    pub shared: u8,
    pub deletes: u8,
    pub write_through: u8,
    pub max_value_bytes: u64,
    pub batch_items: u64,
    pub batch_bytes: u64,
}

/// `put_many` and the other three.
pub type Many = unsafe extern "C" fn(
    store: *mut kv_store_v1,
    items: *mut kv_store_item_t,
    n_items: usize,
    call: *const kv_store_call_t,
) -> c_int;

#[repr(C)]
pub struct kv_store_batch_vtable_t {
    pub size: u32,
    pub version: u32,
    pub put_many: Many,
    pub get_many: Many,
    pub exists_many: Many,
    pub delete_many: Many,
    pub save_begin: unsafe extern "C" fn(store: *mut kv_store_v1) -> *mut kv_store_save_t,
    pub save_commit: unsafe extern "C" fn(
        save: *mut kv_store_save_t,
        name: *const c_char,
        data: *const u8,
        data_len: usize,
        out_lost: *mut *mut kv_store_hash_t,
        out_n_lost: *mut usize,
    ) -> c_int,
    pub save_end: unsafe extern "C" fn(save: *mut kv_store_save_t),
    pub queue_open: unsafe extern "C" fn(store: *mut kv_store_v1, depth: usize) -> *mut kv_store_queue_t,
    pub queue_fd: unsafe extern "C" fn(queue: *mut kv_store_queue_t) -> c_int,
    pub queue_submit: unsafe extern "C" fn(
        queue: *mut kv_store_queue_t,
        cookie: u64,
        operation: u32,
        items: *mut kv_store_item_t,
        n_items: usize,
        call: *const kv_store_call_t,
    ) -> c_int,
    pub queue_drain:
        unsafe extern "C" fn(queue: *mut kv_store_queue_t, completions: *mut kv_store_completion_t, most: usize) -> i64,
    pub queue_cancel: unsafe extern "C" fn(queue: *mut kv_store_queue_t, cookie: u64) -> i64,
    pub queue_close: unsafe extern "C" fn(queue: *mut kv_store_queue_t),
    pub info: unsafe extern "C" fn(store: *mut kv_store_v1, out: *mut kv_store_info_t) -> c_int,
    pub last_error: unsafe extern "C" fn() -> *const c_char,
}

pub type kv_store_batch_get_vtable_fn = Option<unsafe extern "C" fn() -> *const kv_store_batch_vtable_t>;

#[rustfmt::skip]
mod layout {
    use super::*;
    layout!(kv_store_piece_t, 16, data 0, len 8);
    layout!(kv_store_item_t, 56, hash 0, hash_len 8, pieces 16, n_pieces 24, len 32, data 40, status 48, reserved 52);
    layout!(kv_store_call_t, 24, size 0, flags 4, timeout_ms 8, save 16);
    layout!(kv_store_completion_t, 16, cookie 0, status 8, reserved 12);
    layout!(kv_store_hash_t, 65, len 0, bytes 1);
    layout!(kv_store_info_t, 32, size 0, durable 4, shared 5, deletes 6, write_through 7, max_value_bytes 8, batch_items 16,
        batch_bytes 24);
    layout!(kv_store_batch_vtable_t, 128, size 0, version 4, put_many 8, get_many 16, exists_many 24, delete_many 32, save_begin 40,
        save_commit 48, save_end 56, queue_open 64, queue_fd 72, queue_submit 80, queue_drain 88, queue_cancel 96, queue_close 104,
        info 112, last_error 120);
}
