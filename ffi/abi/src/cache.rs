//! `include/kv_cache.h`: the token-exact cache, in `libkv_cache.so`.

use core::ffi::{CStr, c_char, c_int, c_void};

pub const KV_CACHE_VTABLE_VERSION: u32 = 1;
pub const KV_CACHE_GET_VTABLE_SYMBOL: &CStr = c"kv_cache_get_vtable";

pub type kv_cache_tier_t = u32;
pub const KV_CACHE_TIER_DEFAULT: kv_cache_tier_t = 0;
pub const KV_CACHE_TIER_RAM: kv_cache_tier_t = 1;
pub const KV_CACHE_TIER_RAM_FILE: kv_cache_tier_t = 2;
pub const KV_CACHE_TIER_DISK: kv_cache_tier_t = 3;

pub type kv_cache_hit_kind_t = u32;
pub const KV_CACHE_HIT_EXACT: kv_cache_hit_kind_t = 1;
pub const KV_CACHE_HIT_RESUME: kv_cache_hit_kind_t = 2;
pub const KV_CACHE_HIT_LONGEST_PREFIX: kv_cache_hit_kind_t = 3;

/// The numbers of the row file.
pub type kv_cache_reason_t = u32;
pub const KV_CACHE_REASON_COLD: kv_cache_reason_t = 1;
pub const KV_CACHE_REASON_CONTINUED: kv_cache_reason_t = 2;
pub const KV_CACHE_REASON_EVICT: kv_cache_reason_t = 3;
pub const KV_CACHE_REASON_SHUTDOWN: kv_cache_reason_t = 4;
pub const KV_CACHE_REASON_FINISH: kv_cache_reason_t = 5;

pub type kv_cache_saved_t = u32;
pub const KV_CACHE_STORED: kv_cache_saved_t = 0;
pub const KV_CACHE_QUEUED: kv_cache_saved_t = 1;
pub const KV_CACHE_KNOWN: kv_cache_saved_t = 2;
pub const KV_CACHE_DROPPED: kv_cache_saved_t = 3;
pub const KV_CACHE_TOO_SHORT: kv_cache_saved_t = 4;
pub const KV_CACHE_TOO_LONG: kv_cache_saved_t = 5;
pub const KV_CACHE_TOO_SOON: kv_cache_saved_t = 6;
pub const KV_CACHE_FAILED: kv_cache_saved_t = 7;

pub type kv_cache_fingerprint_mode_t = u32;
pub const KV_CACHE_FINGERPRINT_SAFE: kv_cache_fingerprint_mode_t = 0;
pub const KV_CACHE_FINGERPRINT_GGUF_CHUNKED: kv_cache_fingerprint_mode_t = 1;
pub const KV_CACHE_FINGERPRINT_FAST_UNSAFE: kv_cache_fingerprint_mode_t = 2;

/// A cache, as a caller sees it.
#[repr(C)]
pub struct kv_cache_t {
    _opaque: [u8; 0],
}

/// A hit, as a caller sees it.
#[repr(C)]
pub struct kv_cache_hit_t {
    _opaque: [u8; 0],
}

pub type kv_cache_log_fn = Option<unsafe extern "C" fn(user: *mut c_void, line: *const c_char)>;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct kv_cache_identity_t {
    pub fingerprint: [u8; 32],
    pub context_hash: [u8; 32],
    pub fingerprint_mode: u8,
    pub quant: u8,
    pub reserved: [u8; 6],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct kv_cache_query_t {
    pub size: u32,
    pub reserved: u32,
    pub identity: kv_cache_identity_t,
    pub tokens: *const u32,
    pub n_tokens: usize,
    pub parent: *const u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct kv_cache_hit_info_t {
    pub size: u32,
    pub kind: kv_cache_hit_kind_t,
    pub tier: kv_cache_tier_t,
    pub reserved: u32,
    pub tokens: u64,
    pub payload_bytes: u64,
    pub key: [u8; 32],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct kv_cache_save_t {
    pub size: u32,
    pub reason: kv_cache_reason_t,
    pub tier: kv_cache_tier_t,
    pub context_size: u32,
    pub identity: kv_cache_identity_t,
    pub tokens: *const u32,
    pub n_tokens: usize,
    pub payload: *const u8,
    pub payload_bytes: usize,
    pub prompt_tokens: u64,
    pub last_saved: u64,
    pub prompt: *const c_char,
    pub detail: *const c_char,
    pub quant_bits: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct kv_cache_gc_t {
    pub size: u32,
    pub reserved: u32,
    pub rows_lost: u64,
    pub adopted: u64,
    pub temporaries: u64,
    pub set_aside_removed: u64,
    pub evicted: u64,
    pub evicted_bytes: u64,
    pub later_left: u64,
    pub misnamed_left: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct kv_cache_tier_stats_t {
    pub rows: u64,
    pub bytes: u64,
    pub reserved_bytes: u64,
    pub budget: u64,
    pub queued: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct kv_cache_stats_t {
    pub size: u32,
    pub reserved: u32,
    pub hits_exact: u64,
    pub hits_resume: u64,
    pub hits_longest_prefix: u64,
    pub misses: u64,
    pub resume_waits: u64,
    pub prefix_walks: u64,
    pub prefix_probes: u64,
    pub prefix_nanos: u64,
    pub loads: u64,
    pub loaded_bytes: u64,
    pub load_nanos: u64,
    pub load_misses: u64,
    pub pack_nanos: u64,
    pub saves: [u64; 6],
    pub saves_gated: u64,
    pub saves_known: u64,
    pub saves_dropped: u64,
    pub saves_abandoned: u64,
    pub saves_failed: u64,
    pub adopted: u64,
    pub evictions: u64,
    pub evicted_bytes: u64,
    pub pressure_evictions: u64,
    pub corrupt_files: u64,
    pub truncated_files: u64,
    pub foreign_files: u64,
    pub newer_files: u64,
    pub temporaries_reaped: u64,
    pub tiers: [kv_cache_tier_stats_t; 3],
    pub misnamed_files: u64,
    pub tiers_failed: u64,
}

#[repr(C)]
pub struct kv_cache_vtable_t {
    pub size: u32,
    pub version: u32,
    pub library_version: unsafe extern "C" fn() -> *const c_char,
    pub open: unsafe extern "C" fn(path: *const c_char, out: *mut *mut kv_cache_t) -> c_int,
    pub open_toml: unsafe extern "C" fn(toml: *const c_char, out: *mut *mut kv_cache_t) -> c_int,
    pub close: unsafe extern "C" fn(cache: *mut kv_cache_t),
    pub fingerprint: unsafe extern "C" fn(path: *const c_char, mode: u32, out: *mut u8) -> c_int,
    pub key: unsafe extern "C" fn(
        identity: *const kv_cache_identity_t,
        tokens: *const u32,
        n_tokens: usize,
        out: *mut u8,
    ) -> c_int,
    pub plan: unsafe extern "C" fn(
        cache: *const kv_cache_t,
        reason: u32,
        n_tokens: u64,
        last_saved: u64,
        keep: *mut u64,
    ) -> c_int,
    pub lookup: unsafe extern "C" fn(
        cache: *const kv_cache_t,
        query: *const kv_cache_query_t,
        out: *mut *mut kv_cache_hit_t,
        info: *mut kv_cache_hit_info_t,
    ) -> c_int,
    pub load: unsafe extern "C" fn(hit: *const kv_cache_hit_t, buffer: *mut u8, size: usize) -> c_int,
    pub view: unsafe extern "C" fn(hit: *const kv_cache_hit_t, data: *mut *const u8, size: *mut usize) -> c_int,
    pub release: unsafe extern "C" fn(hit: *mut kv_cache_hit_t),
    pub save: unsafe extern "C" fn(
        cache: *const kv_cache_t,
        save: *const kv_cache_save_t,
        saved: *mut kv_cache_saved_t,
    ) -> c_int,
    pub evict: unsafe extern "C" fn(cache: *const kv_cache_t, key: *const u8, tiers: *mut u32) -> c_int,
    pub evict_bytes: unsafe extern "C" fn(cache: *const kv_cache_t, tier: u32, bytes: u64, freed: *mut u64) -> c_int,
    pub relieve: unsafe extern "C" fn(cache: *const kv_cache_t, used: u64, total: u64, freed: *mut u64) -> c_int,
    pub gc: unsafe extern "C" fn(cache: *const kv_cache_t, out: *mut kv_cache_gc_t) -> c_int,
    pub flush: unsafe extern "C" fn(cache: *const kv_cache_t, timeout_ms: u64) -> c_int,
    pub shutdown: unsafe extern "C" fn(cache: *const kv_cache_t, timeout_ms: u64, dropped: *mut u64) -> c_int,
    pub stats: unsafe extern "C" fn(cache: *const kv_cache_t, out: *mut kv_cache_stats_t) -> c_int,
    pub set_log: unsafe extern "C" fn(log: kv_cache_log_fn, user: *mut c_void),
    pub last_error: unsafe extern "C" fn() -> *const c_char,
}

pub type kv_cache_get_vtable_fn = Option<unsafe extern "C" fn() -> *const kv_cache_vtable_t>;

#[rustfmt::skip]
mod layout {
    use super::*;
    layout!(kv_cache_identity_t, 72, fingerprint 0, context_hash 32, fingerprint_mode 64, quant 65, reserved 66);
    layout!(kv_cache_query_t, 104, size 0, reserved 4, identity 8, tokens 80, n_tokens 88, parent 96);
    layout!(kv_cache_hit_info_t, 64, size 0, kind 4, tier 8, reserved 12, tokens 16, payload_bytes 24, key 32);
    layout!(kv_cache_save_t, 160, size 0, reason 4, tier 8, context_size 12, identity 16, tokens 88, n_tokens 96, payload 104,
        payload_bytes 112, prompt_tokens 120, last_saved 128, prompt 136, detail 144, quant_bits 152, reserved 156);
    layout!(kv_cache_gc_t, 72, size 0, reserved 4, rows_lost 8, adopted 16, temporaries 24, set_aside_removed 32, evicted 40, evicted_bytes 48,
        later_left 56, misnamed_left 64);
    layout!(kv_cache_tier_stats_t, 40, rows 0, bytes 8, reserved_bytes 16, budget 24, queued 32);
    layout!(kv_cache_stats_t, 408, size 0, reserved 4, hits_exact 8, hits_resume 16, hits_longest_prefix 24, misses 32, resume_waits 40,
        prefix_walks 48, prefix_probes 56, prefix_nanos 64, loads 72, loaded_bytes 80, load_nanos 88, load_misses 96,
        pack_nanos 104, saves 112, saves_gated 160, saves_known 168, saves_dropped 176, saves_abandoned 184, saves_failed 192,
        adopted 200, evictions 208, evicted_bytes 216, pressure_evictions 224, corrupt_files 232, truncated_files 240,
        foreign_files 248, newer_files 256, temporaries_reaped 264, tiers 272, misnamed_files 392, tiers_failed 400);
    layout!(kv_cache_vtable_t, 176, size 0, version 4, library_version 8, open 16, open_toml 24, close 32, fingerprint 40, key 48, plan 56, lookup 64, load 72, view 80, release 88, save 96, evict 104, evict_bytes 112, relieve 120, gc 128, flush 136, shutdown 144, stats 152, set_log 160, last_error 168);
}
