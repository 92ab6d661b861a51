//! What keeps a cache in order: eviction, memory pressure, garbage, its end, its counters.

use std::ffi::{CString, c_int, c_void};
use std::time::Duration;

use super::convert::{self, Described};
use super::status;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::pressure::Sample;
use kv_store_abi::cache::*;

/// Evict the row of a key from all tiers: [`Cache::evict`](crate::Cache::evict). How many tiers had it is written to `tiers`, which may be null.
///
/// # Safety
/// `cache` must be null or open, `key` null or valid for 32 bytes, `tiers` null or valid for a write.
pub(super) unsafe extern "C" fn evict(cache: *const kv_cache_t, key: *const u8, tiers: *mut u32) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (tiers, cache, key) =
            unsafe { (convert::optional_out(tiers, 0), convert::cache(cache)?, key.cast::<[u8; 32]>().as_ref()) };
        cache.check_open()?;
        tiers.set(cache.evict(&Key(*key.ok_or_else(|| Error::invalid("the key is null"))?)) as u32);
        Ok(())
    })
}

/// Evict the oldest rows of a tier: [`Cache::evict_bytes`](crate::Cache::evict_bytes).
///
/// # Safety
/// `cache` must be null or open, `freed` null or valid for a write.
pub(super) unsafe extern "C" fn evict_bytes(
    cache: *const kv_cache_t,
    tier: kv_cache_tier_t,
    bytes: u64,
    freed: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (freed, cache) = unsafe { (convert::optional_out(freed, 0), convert::cache(cache)?) };
        cache.check_open()?;
        let tier = convert::tier(tier)?.ok_or_else(|| Error::invalid("name a tier to evict from"))?;
        freed.set(cache.evict_bytes(tier, bytes));
        Ok(())
    })
}

/// Tell the cache how much memory is used: [`Cache::relieve`](crate::Cache::relieve).
///
/// # Safety
/// `cache` must be null or open, `freed` null or valid for a write.
pub(super) unsafe extern "C" fn relieve(cache: *const kv_cache_t, used: u64, total: u64, freed: *mut u64) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (freed, cache) = unsafe { (convert::optional_out(freed, 0), convert::cache(cache)?) };
        cache.check_open()?;
        freed.set(cache.relieve(Sample { used, total }));
        Ok(())
    })
}

/// Bring all tiers in order: [`Cache::gc`](crate::Cache::gc).
///
/// # Safety
/// `cache` must be null or open, `out` null or valid as its `size` says.
pub(super) unsafe extern "C" fn gc(cache: *const kv_cache_t, out: *mut kv_cache_gc_t) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let cache = unsafe { kv_cache_gc_t::clear(out).and_then(|()| convert::cache(cache)) }?;
        let gc = cache.gc()?;
        // SAFETY: the caller's promise.
        if out.is_null() { Ok(()) } else { unsafe { convert::gc(&gc).write(out) } }
    })
}

/// Wait for queued saves: [`Cache::flush`](crate::Cache::flush); `TIMEOUT` where they take longer.
///
/// # Safety
/// `cache` must be null or open.
pub(super) unsafe extern "C" fn flush(cache: *const kv_cache_t, timeout_ms: u64) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let cache = unsafe { convert::cache(cache) }?;
        cache.check_process()?;
        match cache.flush(Duration::from_millis(timeout_ms)) {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::Timeout, "saves are still queued")),
        }
    })
}

/// Close a cache within a time, and keep the handle: [`Cache::shutdown`](crate::Cache::shutdown).
///
/// # Safety
/// `cache` must be null or open, `dropped` null or valid for a write.
pub(super) unsafe extern "C" fn shutdown(cache: *const kv_cache_t, timeout_ms: u64, dropped: *mut u64) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (dropped, cache) = unsafe { (convert::optional_out(dropped, 0), convert::cache(cache)?) };
        cache.check_process()?;
        dropped.set(cache.shutdown(Duration::from_millis(timeout_ms)));
        Ok(())
    })
}

/// What happened, and what is held: [`Cache::stats`](crate::Cache::stats).
///
/// # Safety
/// `cache` must be null or open, `out` null or valid as its `size` says.
pub(super) unsafe extern "C" fn stats(cache: *const kv_cache_t, out: *mut kv_cache_stats_t) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let cache = unsafe { kv_cache_stats_t::clear(out).and_then(|()| convert::cache(cache)) }?;
        cache.check_process()?;
        // SAFETY: the caller's promise.
        unsafe { convert::stats(&cache.stats()).write(out) }
    })
}

/// Where lines for the operator go: [`set_log`](crate::set_log).
///
/// # Safety
/// `log` must be null or a function that any thread may call with `user`, until it is replaced and the calls that began before
/// that have ended.
pub(super) unsafe extern "C" fn set_log(log: kv_cache_log_fn, user: *mut c_void) {
    struct User(*mut c_void);
    // SAFETY: the promise of the caller of `set_log`: any thread may hand it to the function.
    unsafe impl Send for User {}
    // SAFETY: as above.
    unsafe impl Sync for User {}
    impl User {
        fn get(&self) -> *mut c_void {
            self.0
        }
    }
    let user = User(user);
    let sink = log.map(|log| -> Box<dyn Fn(&str) + Send + Sync> {
        Box::new(move |line| {
            let line = CString::new(line).unwrap_or_default();
            // SAFETY: the promise of the caller of `set_log`.
            unsafe { log(user.get(), line.as_ptr()) }
        })
    });
    crate::log::set_log(sink);
}
