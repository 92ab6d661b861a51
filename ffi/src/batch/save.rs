//! Saves for C.

use std::ffi::c_char;

use super::super::arguments::{bytes, name};
use super::super::{Handle, report, status};
use super::last_error::remember;
use super::run;
use kv_store_abi::batch::{kv_store_hash_t, kv_store_save_t};
use kv_store_abi::status::KV_STORE_LOST;
use kv_store_abi::store::kv_store_v1;
use kv_store_wasm::Buffer;
use kv_store_wasm::limits::MAX_HASH_BYTES;
use kv_store_wasm::{Error, ErrorKind};
use kv_store_wasm::{Save, SaveOutcome};

/// What a `kv_store_save_t` of C points to.
pub(super) struct Begun {
    pub(super) save: Save,
}

impl Begun {
    /// # Safety
    /// `save` is NULL or live.
    pub(super) unsafe fn of<'a>(save: *mut kv_store_save_t) -> Option<&'a Self> {
        // SAFETY: by this function's own condition; saves are only ever shared.
        unsafe { save.cast::<Self>().as_ref() }
    }
}

pub(super) unsafe extern "C" fn begin(handle: *mut kv_store_v1) -> *mut kv_store_save_t {
    let begun = run("save_begin", || {
        // SAFETY: the caller passes NULL or a live handle.
        let handle = unsafe { Handle::of(handle) }.ok_or_else(|| Error::invalid("the handle is NULL"))?;
        handle.store.begin_save()
    });
    begun.map_or(std::ptr::null_mut(), |save| Box::into_raw(Box::new(Begun { save })).cast())
}

pub(super) unsafe extern "C" fn commit(
    save: *mut kv_store_save_t,
    manifest: *const c_char,
    data: *const u8,
    data_len: usize,
    out_lost: *mut *mut kv_store_hash_t,
    out_n_lost: *mut usize,
) -> i32 {
    // SAFETY: the caller passes NULL or a live save, NULL or a C string, as many bytes as it says, and outputs that are
    // NULL or writable.
    let committed = super::guarded("save_commit", || unsafe {
        if let Some(lost) = out_lost.as_mut() {
            *lost = std::ptr::null_mut();
        }
        if let Some(count) = out_n_lost.as_mut() {
            *count = 0;
        }
        let begun = Begun::of(save).ok_or_else(|| Error::invalid("the save is NULL"))?;
        let data = bytes(data, data_len, "the data")?;
        let manifest = if manifest.is_null() { None } else { Some((name(manifest)?, data)) };
        match begun.save.commit(manifest)? {
            SaveOutcome::Published => Ok(0),
            SaveOutcome::Lost(lost) => {
                remember(&Error::new(ErrorKind::Missing, format!("{} chunks of the save are lost", lost.len())));
                if let Some(out) = out_lost.as_mut() {
                    *out = hashes(&lost)?.into_raw().0.as_ptr().cast();
                }
                if let Some(count) = out_n_lost.as_mut() {
                    *count = lost.len();
                }
                Ok(KV_STORE_LOST)
            }
        }
    });
    committed.unwrap_or_else(|error| {
        report("save_commit", None, &error);
        status(&error)
    })
}

/// Hashes as C has them, one struct after another.
fn hashes(lost: &[Vec<u8>]) -> Result<Buffer, Error> {
    let mut list = Vec::with_capacity(lost.len() * size_of::<kv_store_hash_t>());
    for hash in lost {
        list.push(hash.len() as u8);
        list.extend_from_slice(hash);
        list.extend(std::iter::repeat_n(0, MAX_HASH_BYTES - hash.len().min(MAX_HASH_BYTES)));
    }
    Buffer::concat(&[&list])
}

pub(super) unsafe extern "C" fn end(save: *mut kv_store_save_t) {
    if save.is_null() {
        return;
    }
    let _ = run("save_end", || {
        // SAFETY: the caller passes a save of `save_begin`, for the last time.
        drop(unsafe { Box::from_raw(save.cast::<Begun>()) });
        Ok(())
    });
}
