//! The structs and numbers of the C functions, field for field as in `include/kv_cache.h`, where they are documented.
//!
//! Invariant: sizes and offsets are those that the header asserts, or this does not compile. Enums are plain `u32`: they come
//! from outside, and a Rust enum with an unknown value is undefined.

#![allow(non_camel_case_types, missing_docs)]

use std::ffi::{c_char, c_void};

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

pub type kv_cache_log_t = Option<unsafe extern "C" fn(user: *mut c_void, line: *const c_char)>;

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

/// Asserts the size of a struct and the offset of each field named.
#[cfg(target_pointer_width = "64")]
macro_rules! layout {
    ($type:ident, $size:literal, $($field:ident $offset:literal),+) => {
        const _: () = assert!(size_of::<$type>() == $size);
        $(const _: () = assert!(std::mem::offset_of!($type, $field) == $offset);)+
    };
}

#[cfg(target_pointer_width = "64")]
#[rustfmt::skip]
mod layout {
    use super::*;
    layout!(kv_cache_identity_t, 72, fingerprint 0, context_hash 32, fingerprint_mode 64, quant 65);
    layout!(kv_cache_query_t, 104, size 0, identity 8, tokens 80, n_tokens 88, parent 96);
    layout!(kv_cache_hit_info_t, 64, size 0, kind 4, tier 8, tokens 16, payload_bytes 24, key 32);
    layout!(kv_cache_save_t, 160, size 0, reason 4, tier 8, context_size 12, identity 16, tokens 88, n_tokens 96, payload 104,
        payload_bytes 112, prompt_tokens 120, last_saved 128, prompt 136, detail 144, quant_bits 152);
    layout!(kv_cache_gc_t, 72, size 0, rows_lost 8, adopted 16, temporaries 24, set_aside_removed 32, evicted 40, evicted_bytes 48,
        later_left 56, misnamed_left 64);
    layout!(kv_cache_tier_stats_t, 40, rows 0, bytes 8, reserved_bytes 16, budget 24, queued 32);
    layout!(kv_cache_stats_t, 408, size 0, hits_exact 8, hits_resume 16, hits_longest_prefix 24, misses 32, resume_waits 40,
        prefix_walks 48, prefix_probes 56, prefix_nanos 64, loads 72, loaded_bytes 80, load_nanos 88, load_misses 96,
        pack_nanos 104, saves 112, saves_gated 160, saves_known 168, saves_dropped 176, saves_abandoned 184, saves_failed 192,
        adopted 200, evictions 208, evicted_bytes 216, pressure_evictions 224, corrupt_files 232, truncated_files 240,
        foreign_files 248, newer_files 256, temporaries_reaped 264, tiers 272, misnamed_files 392, tiers_failed 400);
}
