//! The functions of 0.2, for programs that were built with its header: `include/kv_store_deprecated.h`.
//!
//! Each forwards to the function of the table that has its name, and answers the number that 0.2 had for the failure. They stay as long as
//! the library is `libkv_cache.so`.

use std::ffi::{c_char, c_int, c_void};

use kv_store_abi::cache::*;
use kv_store_abi::deprecated::*;
use kv_store_abi::status::KV_STORE_OK;

use super::{last_kind, upkeep};
use crate::error::ErrorKind;

/// The number of 0.2 for what a function of the table has just answered on this thread.
fn former(status: c_int) -> kv_cache_status_t {
    match (status, last_kind()) {
        (KV_STORE_OK, _) => KV_CACHE_OK,
        (_, Some(ErrorKind::Miss)) => KV_CACHE_MISS,
        (_, Some(ErrorKind::InvalidArgument)) => KV_CACHE_INVALID_ARGUMENT,
        (_, Some(ErrorKind::Busy)) => KV_CACHE_BUSY,
        (_, Some(ErrorKind::Full)) => KV_CACHE_FULL,
        (_, Some(ErrorKind::Timeout)) => KV_CACHE_TIMEOUT,
        (_, Some(ErrorKind::Closed)) => KV_CACHE_CLOSED,
        (_, Some(ErrorKind::Io | ErrorKind::Mismatch)) => KV_CACHE_IO,
        (_, Some(ErrorKind::Internal) | None) => KV_CACHE_INTERNAL,
    }
}

/// Functions that answer a status.
macro_rules! forward {
    ($($old:ident = $new:path, ($($name:ident: $type:ty),*);)*) => {$(
        /// # Safety
        /// As the function of the table.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $old($($name: $type),*) -> kv_cache_status_t {
            // SAFETY: by this function's own condition.
            former(unsafe { $new($($name),*) })
        }
    )*};
}

forward! {
    kv_cache_open = super::open, (path: *const c_char, out: *mut *mut kv_cache_t);
    kv_cache_open_toml = super::open_toml, (toml: *const c_char, out: *mut *mut kv_cache_t);
    kv_cache_fingerprint = super::fingerprint, (path: *const c_char, mode: u32, out: *mut u8);
    kv_cache_key = super::key, (identity: *const kv_cache_identity_t, tokens: *const u32, n_tokens: usize, out: *mut u8);
    kv_cache_plan = super::plan,
        (cache: *const kv_cache_t, reason: u32, n_tokens: u64, last_saved: u64, keep: *mut u64);
    kv_cache_lookup = super::lookup, (
        cache: *const kv_cache_t, query: *const kv_cache_query_t, out: *mut *mut kv_cache_hit_t, info: *mut kv_cache_hit_info_t
    );
    kv_cache_load = super::load, (hit: *const kv_cache_hit_t, buffer: *mut u8, size: usize);
    kv_cache_view = super::view, (hit: *const kv_cache_hit_t, data: *mut *const u8, size: *mut usize);
    kv_cache_save = super::save, (cache: *const kv_cache_t, save: *const kv_cache_save_t, saved: *mut kv_cache_saved_t);
    kv_cache_evict = upkeep::evict, (cache: *const kv_cache_t, key: *const u8, tiers: *mut u32);
    kv_cache_evict_bytes = upkeep::evict_bytes, (cache: *const kv_cache_t, tier: u32, bytes: u64, freed: *mut u64);
    kv_cache_relieve = upkeep::relieve, (cache: *const kv_cache_t, used: u64, total: u64, freed: *mut u64);
    kv_cache_gc = upkeep::gc, (cache: *const kv_cache_t, out: *mut kv_cache_gc_t);
    kv_cache_flush = upkeep::flush, (cache: *const kv_cache_t, timeout_ms: u64);
    kv_cache_shutdown = upkeep::shutdown, (cache: *const kv_cache_t, timeout_ms: u64, dropped: *mut u64);
    kv_cache_stats = upkeep::stats, (cache: *const kv_cache_t, out: *mut kv_cache_stats_t);
}

/// As `library_version` of the table.
#[unsafe(no_mangle)]
pub extern "C" fn kv_cache_version() -> *const c_char {
    // SAFETY: it takes nothing.
    unsafe { super::library_version() }
}

/// As `last_error` of the table.
#[unsafe(no_mangle)]
pub extern "C" fn kv_cache_last_error() -> *const c_char {
    // SAFETY: it takes nothing.
    unsafe { super::last_error() }
}

/// # Safety
/// As `close` of the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_cache_close(cache: *mut kv_cache_t) {
    // SAFETY: by this function's own condition.
    unsafe { super::close(cache) }
}

/// # Safety
/// As `release` of the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_cache_release(hit: *mut kv_cache_hit_t) {
    // SAFETY: by this function's own condition.
    unsafe { super::release(hit) }
}

/// # Safety
/// As `set_log` of the table.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_cache_set_log(log: kv_cache_log_fn, user: *mut c_void) {
    // SAFETY: by this function's own condition.
    unsafe { upkeep::set_log(log, user) }
}

#[cfg(test)]
mod tests {
    use super::super::status;
    use super::*;
    use crate::error::Error;

    /// The numbers that programs of 0.2 know.
    #[test]
    fn each_kind_of_failure_keeps_its_number() {
        let kinds = [
            ErrorKind::Miss,
            ErrorKind::InvalidArgument,
            ErrorKind::Busy,
            ErrorKind::Full,
            ErrorKind::Timeout,
            ErrorKind::Closed,
            ErrorKind::Io,
            ErrorKind::Internal,
        ];
        assert_eq!(kinds.map(|kind| former(status(|| Err(Error::new(kind, ""))))), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(former(status(|| Ok(()))), 0, "whatever failed before");
    }
}
