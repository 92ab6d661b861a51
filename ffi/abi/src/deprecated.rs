//! `include/kv_store_deprecated.h`: the numbers of 0.2 that a function of this version still answers.

pub type kv_cache_status_t = u32;
pub const KV_CACHE_OK: kv_cache_status_t = 0;
pub const KV_CACHE_MISS: kv_cache_status_t = 1;
pub const KV_CACHE_INVALID_ARGUMENT: kv_cache_status_t = 2;
pub const KV_CACHE_BUSY: kv_cache_status_t = 3;
pub const KV_CACHE_FULL: kv_cache_status_t = 4;
pub const KV_CACHE_TIMEOUT: kv_cache_status_t = 5;
pub const KV_CACHE_CLOSED: kv_cache_status_t = 6;
pub const KV_CACHE_IO: kv_cache_status_t = 7;
pub const KV_CACHE_INTERNAL: kv_cache_status_t = 8;
