//! From C to Rust and back.

use std::ffi::{CStr, c_char, c_int};

use kv_store_abi::cache::*;
use kv_store_abi::status::*;

use super::Held;
use crate::cache::Cache;
use crate::counters::Stats;
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint::{Fingerprint, FingerprintMode};
use crate::hit::{Hit, HitKind};
use crate::key::{Identity, Key};
use crate::kind::TierKind;
use crate::limits::MAX_TOKENS;
use crate::lookup::Query;
use crate::payload::Payload;
use crate::policy::Gate;
use crate::request::{Reason, Save, Saved};
use crate::tier::Gc;

pub(super) fn status_of(kind: ErrorKind) -> c_int {
    match kind {
        ErrorKind::Miss => KV_STORE_MISSING,
        ErrorKind::InvalidArgument => KV_STORE_INVALID,
        ErrorKind::Busy | ErrorKind::Timeout => KV_STORE_UNAVAILABLE,
        ErrorKind::Full => KV_STORE_EXHAUSTED,
        ErrorKind::Closed => KV_STORE_CANCELLED,
        ErrorKind::Mismatch => KV_STORE_MISMATCH,
        ErrorKind::Io | ErrorKind::Internal => KV_STORE_OTHER,
    }
}

/// A struct that begins with its size as the caller knows it. A smaller one than [`LEAST`](Described::LEAST) is of no version that
/// there was; a larger one than ours is of a later version, and what it has more is not looked at.
pub(super) trait Described: Copy {
    /// The size in the first version. What later ones added is filled only where the caller has it.
    const LEAST: usize = size_of::<Self>();

    /// # Safety
    /// `from` must be null or valid for reads of as many bytes as its first field says.
    unsafe fn read(from: *const Self) -> Result<Self> {
        // Nothing that is read has grown.
        const { assert!(Self::LEAST == size_of::<Self>()) };
        // SAFETY: the caller's promise.
        unsafe {
            check_size(from.cast(), Self::LEAST)?;
            Ok(from.read_unaligned())
        }
    }

    /// Set all but the size to zeros, as it is after a failure. Nothing is done where the struct is null: it is optional, or
    /// [`write`](Described::write) refuses that.
    ///
    /// # Safety
    /// `to` must be null or valid for reads of its first field, and for writes of as many bytes as that says.
    unsafe fn clear(to: *mut Self) -> Result<()>
    where
        Self: Default,
    {
        if to.is_null() {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { Self::default().write(to) }
    }

    /// Write all but the size, which is the caller's.
    ///
    /// # Safety
    /// `to` must be null or valid for writes of as many bytes as its first field says.
    unsafe fn write(self, to: *mut Self) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            let size = check_size(to.cast(), Self::LEAST)?;
            let known = size_of::<Self>().min(size as usize);
            to.cast::<u8>().copy_from_nonoverlapping((&raw const self).cast(), known);
            to.cast::<u32>().write_unaligned(size);
        }
        Ok(())
    }
}

/// # Safety
/// `at` must be null or valid for reads of a `u32`.
unsafe fn check_size(at: *const u32, least: usize) -> Result<u32> {
    if at.is_null() {
        return Err(Error::invalid("a pointer to a struct is null"));
    }
    // SAFETY: the caller's promise.
    let size = unsafe { at.read_unaligned() };
    if (size as usize) < least {
        let message =
            format!("a struct's size is {size}, it must be at least {least}: set it to the sizeof of the struct");
        return Err(Error::invalid(message));
    }
    Ok(size)
}

impl Described for kv_cache_query_t {}
impl Described for kv_cache_save_t {}
impl Described for kv_cache_hit_info_t {}
impl Described for kv_cache_gc_t {
    const LEAST: usize = std::mem::offset_of!(kv_cache_gc_t, later_left);
}
impl Described for kv_cache_stats_t {
    const LEAST: usize = std::mem::offset_of!(kv_cache_stats_t, misnamed_files);
}

/// A place for an answer, which is set to what it is after a failure.
///
/// # Safety
/// `out` must be null or valid for reads and writes, aligned.
pub(super) unsafe fn out<'a, T>(out: *mut T, failed: T) -> Result<&'a mut T> {
    if out.is_null() {
        return Err(Error::invalid("an output pointer is null"));
    }
    // SAFETY: the caller's promise; what was there may not have been written yet.
    unsafe {
        out.write(failed);
        Ok(&mut *out)
    }
}

/// The same where the caller may not want the answer.
///
/// # Safety
/// `out` must be null or valid for writes.
pub(super) unsafe fn optional_out<T>(out: *mut T, failed: T) -> OptionalOut<T> {
    let place = OptionalOut(out);
    place.set(failed);
    place
}

/// A place that is null or valid for writes.
pub(super) struct OptionalOut<T>(*mut T);

impl<T> OptionalOut<T> {
    pub fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: the promise of whoever made it.
            unsafe { self.0.write_unaligned(value) };
        }
    }
}

/// # Safety
/// `text` must be null or a C string.
pub(super) unsafe fn text<'a>(text: *const c_char) -> Result<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) }.to_str();
    text.map(Some).map_err(|_| Error::invalid("a text is not UTF-8"))
}

/// # Safety
/// `cache` must be null or what `open` gave.
pub(super) unsafe fn cache<'a>(cache: *const kv_cache_t) -> Result<&'a Cache> {
    // SAFETY: the caller's promise.
    unsafe { cache.cast::<Cache>().as_ref() }.ok_or_else(|| Error::invalid("the cache is null"))
}

/// # Safety
/// `hit` must be null or what `lookup` gave.
pub(super) unsafe fn hit<'a>(hit: *const kv_cache_hit_t) -> Result<&'a Held> {
    // SAFETY: the caller's promise.
    unsafe { hit.cast::<Held>().as_ref() }.ok_or_else(|| Error::invalid("the hit is null"))
}

/// # Safety
/// `tokens` must be null or valid for reads of `n` numbers, aligned.
pub(super) unsafe fn tokens<'a>(tokens: *const u32, n: usize) -> Result<&'a [u32]> {
    if n > MAX_TOKENS {
        return Err(Error::invalid(format!("there are at most {MAX_TOKENS} tokens, not {n}")));
    }
    if n == 0 {
        return Ok(&[]);
    }
    if tokens.is_null() || !tokens.is_aligned() {
        return Err(Error::invalid("the tokens are null, or not aligned to 4 bytes"));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(tokens, n) })
}

/// So that a later version can give them a meaning.
fn check_reserved(is_zero: bool) -> Result<()> {
    if is_zero { Ok(()) } else { Err(Error::invalid("a reserved field is not 0")) }
}

pub(super) fn fingerprint_mode(number: u32) -> Result<FingerprintMode> {
    let mode = u8::try_from(number).ok().and_then(FingerprintMode::from_number);
    mode.ok_or_else(|| Error::invalid("the fingerprint mode is 0 (safe), 1 (gguf-chunked) or 2"))
}

pub(super) fn no_reason(number: u32) -> Error {
    Error::invalid(format!("{number} is no reason of a save: see kv_cache_reason_t"))
}

pub(super) fn identity(from: &kv_cache_identity_t) -> Result<Identity> {
    check_reserved(from.reserved == [0; 6])?;
    let fingerprint = Fingerprint { bytes: from.fingerprint, mode: fingerprint_mode(from.fingerprint_mode.into())? };
    Ok(Identity { fingerprint, quant: from.quant, context_hash: from.context_hash })
}

/// # Safety
/// All that `from` points to must be null or valid for reads.
pub(super) unsafe fn query<'a>(from: &kv_cache_query_t, identity: &'a Identity) -> Result<Query<'a>> {
    check_reserved(from.reserved == 0)?;
    // SAFETY: the caller's promise.
    let (parent, tokens) = unsafe { (from.parent.cast::<[u8; 32]>().as_ref(), tokens(from.tokens, from.n_tokens)?) };
    Ok(Query { identity, tokens, parent: parent.map(|parent| Key(*parent)) })
}

pub(super) fn tier(from: kv_cache_tier_t) -> Result<Option<TierKind>> {
    match from {
        KV_CACHE_TIER_DEFAULT => Ok(None),
        KV_CACHE_TIER_RAM => Ok(Some(TierKind::Ram)),
        KV_CACHE_TIER_RAM_FILE => Ok(Some(TierKind::RamFile)),
        KV_CACHE_TIER_DISK => Ok(Some(TierKind::Disk)),
        other => Err(Error::invalid(format!("{other} is no tier: see kv_cache_tier_t"))),
    }
}

fn tier_number(tier: TierKind) -> kv_cache_tier_t {
    match tier {
        TierKind::Ram => KV_CACHE_TIER_RAM,
        TierKind::RamFile => KV_CACHE_TIER_RAM_FILE,
        TierKind::Disk => KV_CACHE_TIER_DISK,
    }
}

pub(super) fn info(hit: &Hit) -> kv_cache_hit_info_t {
    kv_cache_hit_info_t {
        size: 0,
        kind: match hit.kind() {
            HitKind::Exact => KV_CACHE_HIT_EXACT,
            HitKind::Resume => KV_CACHE_HIT_RESUME,
            HitKind::LongestPrefix => KV_CACHE_HIT_LONGEST_PREFIX,
        },
        tier: tier_number(hit.tier()),
        reserved: 0,
        tokens: hit.tokens() as u64,
        payload_bytes: hit.payload_len() as u64,
        key: hit.key().0,
    }
}

/// # Safety
/// All that `from` points to must be null or valid for reads.
pub(super) unsafe fn save<'a>(from: &kv_cache_save_t, identity: &'a Identity) -> Result<Save<'a>> {
    check_reserved(from.reserved == 0)?;
    if from.payload.is_null() || from.payload_bytes > isize::MAX as usize {
        return Err(Error::invalid("the payload is null, or longer than memory"));
    }
    let quant_bits = u8::try_from(from.quant_bits).map_err(|_| Error::invalid("quant_bits is at most 255"))?;
    // SAFETY: the caller's promise.
    unsafe {
        Ok(Save {
            identity,
            tokens: tokens(from.tokens, from.n_tokens)?,
            payload: Payload::Borrowed(std::slice::from_raw_parts(from.payload, from.payload_bytes)),
            reason: match from.reason {
                KV_CACHE_REASON_COLD => Reason::Cold { prompt_tokens: from.prompt_tokens as usize },
                KV_CACHE_REASON_CONTINUED => Reason::Continued { last_saved: from.last_saved as usize },
                KV_CACHE_REASON_EVICT => Reason::Evict,
                KV_CACHE_REASON_SHUTDOWN => Reason::Shutdown,
                KV_CACHE_REASON_FINISH => Reason::Finish,
                other => return Err(no_reason(other)),
            },
            tier: tier(from.tier)?,
            context_size: from.context_size,
            quant_bits,
            prompt: text(from.prompt)?.unwrap_or_default(),
            detail: text(from.detail)?.unwrap_or_default(),
        })
    }
}

pub(super) fn saved(saved: Saved) -> kv_cache_saved_t {
    match saved {
        Saved::Stored => KV_CACHE_STORED,
        Saved::Queued => KV_CACHE_QUEUED,
        Saved::Known => KV_CACHE_KNOWN,
        Saved::Dropped => KV_CACHE_DROPPED,
        Saved::Gated(Gate::TooShort) => KV_CACHE_TOO_SHORT,
        Saved::Gated(Gate::TooLong) => KV_CACHE_TOO_LONG,
        Saved::Gated(Gate::TooSoon) => KV_CACHE_TOO_SOON,
    }
}

pub(super) fn gc(gc: &Gc) -> kv_cache_gc_t {
    let Gc { rows_lost, adopted, temporaries, set_aside_removed, evicted, evicted_bytes, later_left, misnamed_left } =
        *gc;
    kv_cache_gc_t {
        size: 0,
        reserved: 0,
        rows_lost,
        adopted,
        temporaries,
        set_aside_removed,
        evicted,
        evicted_bytes,
        later_left,
        misnamed_left,
    }
}

pub(super) fn stats(from: &Stats) -> kv_cache_stats_t {
    let tiers = TierKind::ALL.map(|kind| match from.tiers.iter().find(|tier| tier.tier == kind) {
        Some(tier) => kv_cache_tier_stats_t {
            rows: tier.rows,
            bytes: tier.bytes,
            reserved_bytes: tier.reserved,
            budget: tier.budget,
            queued: tier.queued,
        },
        None => Default::default(),
    });
    macro_rules! same {
        ($($field:ident)+) => {
            kv_cache_stats_t { size: 0, reserved: 0, tiers, $($field: from.$field,)+ }
        };
    }
    same! {
        hits_exact hits_resume hits_longest_prefix misses resume_waits prefix_walks prefix_probes prefix_nanos loads
        loaded_bytes load_nanos load_misses pack_nanos saves saves_gated saves_known saves_dropped saves_abandoned
        saves_failed adopted evictions evicted_bytes pressure_evictions corrupt_files truncated_files foreign_files
        newer_files temporaries_reaped misnamed_files tiers_failed
    }
}
