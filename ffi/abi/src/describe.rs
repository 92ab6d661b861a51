//! `include/kv_store_describe.h`: what the values of a store are.

use core::ffi::{CStr, c_char, c_int};

use crate::store::kv_store_v1;

pub const KV_STORE_DESCRIBE_VTABLE_VERSION: u32 = 1;
pub const KV_STORE_DESCRIBE_GET_VTABLE_SYMBOL: &CStr = c"kv_store_describe_get_vtable";

pub const KV_STORE_DESCRIPTOR_BYTES: u32 = 16;

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kv_store_descriptor_t {
    pub size: u32,
    pub reserved: u32,
    pub model: *const c_char,
    pub architecture: *const c_char,
    pub layout: *const c_char,
    pub dtype: *const c_char,
    pub scales: *const c_char,
    pub block_tokens: *const c_char,
    pub layers: *const c_char,
    pub heads: *const c_char,
    pub rank: *const c_char,
    pub ranks: *const c_char,
    pub rope: *const c_char,
    pub adapters: *const c_char,
    pub engine: *const c_char,
    pub format: *const c_char,
}

/// Nothing is said.
impl Default for kv_store_descriptor_t {
    fn default() -> Self {
        const UNSAID: *const c_char = core::ptr::null();
        kv_store_descriptor_t {
            size: size_of::<Self>() as u32,
            reserved: 0,
            model: UNSAID,
            architecture: UNSAID,
            layout: UNSAID,
            dtype: UNSAID,
            scales: UNSAID,
            block_tokens: UNSAID,
            layers: UNSAID,
            heads: UNSAID,
            rank: UNSAID,
            ranks: UNSAID,
            rope: UNSAID,
            adapters: UNSAID,
            engine: UNSAID,
            format: UNSAID,
        }
    }
}

#[repr(C)]
pub struct kv_store_describe_vtable_t {
    pub size: u32,
    pub version: u32,
    pub describe: unsafe extern "C" fn(store: *mut kv_store_v1, descriptor: *const kv_store_descriptor_t) -> c_int,
    pub digest: unsafe extern "C" fn(store: *mut kv_store_v1, out: *mut u8) -> c_int,
    pub last_error: unsafe extern "C" fn() -> *const c_char,
}

pub type kv_store_describe_get_vtable_fn = Option<unsafe extern "C" fn() -> *const kv_store_describe_vtable_t>;

#[rustfmt::skip]
mod layout {
    use super::*;
    layout!(kv_store_descriptor_t, 120, size 0, reserved 4, model 8, architecture 16, layout 24, dtype 32, scales 40, block_tokens 48,
        layers 56, heads 64, rank 72, ranks 80, rope 88, adapters 96, engine 104, format 112);
    layout!(kv_store_describe_vtable_t, 32, size 0, version 4, describe 8, digest 16, last_error 24);
}
