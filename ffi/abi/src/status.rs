//! `include/kv_store_status.h`: the one list of statuses.

use core::ffi::c_int;

pub type kv_store_status = c_int;
pub const KV_STORE_OK: kv_store_status = 0;
pub const KV_STORE_EXISTED: kv_store_status = 1;
pub const KV_STORE_UNAVAILABLE: kv_store_status = -1;
pub const KV_STORE_DENIED: kv_store_status = -2;
pub const KV_STORE_EXHAUSTED: kv_store_status = -3;
pub const KV_STORE_INVALID: kv_store_status = -4;
pub const KV_STORE_CORRUPT: kv_store_status = -5;
pub const KV_STORE_UNSUPPORTED: kv_store_status = -6;
pub const KV_STORE_COMPONENT: kv_store_status = -7;
pub const KV_STORE_OTHER: kv_store_status = -8;
pub const KV_STORE_MISMATCH: kv_store_status = -10;
pub const KV_STORE_CANCELLED: kv_store_status = -11;
pub const KV_STORE_VERSION: kv_store_status = -12;
pub const KV_STORE_MISSING: kv_store_status = -100;
pub const KV_STORE_TOO_LONG: kv_store_status = -101;
pub const KV_STORE_LOST: kv_store_status = -102;
