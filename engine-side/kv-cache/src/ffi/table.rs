//! The table of `include/kv_cache.h`, and the one function that finds it.

use kv_store_abi::cache::{KV_CACHE_VTABLE_VERSION, kv_cache_vtable_t};

use super::upkeep::{evict, evict_bytes, flush, gc, relieve, set_log, shutdown, stats};
use super::{
    close, fingerprint, key, last_error, library_version, load, lookup, open, open_toml, plan, release, save, view,
};

static VTABLE: kv_cache_vtable_t = kv_cache_vtable_t {
    size: size_of::<kv_cache_vtable_t>() as u32,
    version: KV_CACHE_VTABLE_VERSION,
    library_version,
    open,
    open_toml,
    close,
    fingerprint,
    key,
    plan,
    lookup,
    load,
    view,
    release,
    save,
    evict,
    evict_bytes,
    relieve,
    gc,
    flush,
    shutdown,
    stats,
    set_log,
    last_error,
};

/// The vtable of the token-exact cache. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kv_cache_get_vtable() -> *const kv_cache_vtable_t {
    &VTABLE
}
