//! Saves for C.

use std::ffi::c_char;

use super::super::arguments::{bytes, name};
use super::super::{kv_store_v1, report};
use super::last_error::remember;
use super::run;
use kv_store_wasm::Buffer;
use kv_store_wasm::limits::MAX_HASH_BYTES;
use kv_store_wasm::{Error, ErrorKind};
use kv_store_wasm::{Save, SaveOutcome};

#[allow(non_camel_case_types)]
pub struct kv_store_save {
    pub(super) save: Save,
}

/// A hash, in the layout of the header.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct kv_store_hash {
    len: u8,
    bytes: [u8; MAX_HASH_BYTES],
}

const LOST: i32 = -102;

pub(super) unsafe extern "C" fn begin(handle: *mut kv_store_v1) -> *mut kv_store_save {
    let begun = run("save_begin", || {
        // SAFETY: the caller passes NULL or a live handle.
        let handle = unsafe { handle.as_ref() }.ok_or_else(|| Error::invalid("the handle is NULL"))?;
        handle.store.begin_save()
    });
    begun.map_or(std::ptr::null_mut(), |save| Box::into_raw(Box::new(kv_store_save { save })))
}

pub(super) unsafe extern "C" fn commit(
    save: *mut kv_store_save,
    manifest: *const c_char,
    data: *const u8,
    data_len: usize,
    out_lost: *mut *mut kv_store_hash,
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
        let save = save.as_ref().ok_or_else(|| Error::invalid("the save is NULL"))?;
        let data = bytes(data, data_len, "the data")?;
        let manifest = if manifest.is_null() { None } else { Some((name(manifest)?, data)) };
        match save.save.commit(manifest)? {
            SaveOutcome::Published => Ok(0),
            SaveOutcome::Lost(lost) => {
                remember(&Error::new(ErrorKind::Missing, format!("{} chunks of the save are lost", lost.len())));
                if let Some(out) = out_lost.as_mut() {
                    *out = hashes(&lost)?.into_raw().0.as_ptr().cast();
                }
                if let Some(count) = out_n_lost.as_mut() {
                    *count = lost.len();
                }
                Ok(LOST)
            }
        }
    });
    committed.unwrap_or_else(|error| {
        report("save_commit", None, &error);
        -(error.kind() as i32)
    })
}

/// Hashes as C has them, one struct after another.
fn hashes(lost: &[Vec<u8>]) -> Result<Buffer, Error> {
    let mut list = Vec::with_capacity(lost.len() * size_of::<kv_store_hash>());
    for hash in lost {
        list.push(hash.len() as u8);
        list.extend_from_slice(hash);
        list.extend(std::iter::repeat_n(0, MAX_HASH_BYTES - hash.len().min(MAX_HASH_BYTES)));
    }
    Buffer::concat(&[&list])
}

pub(super) unsafe extern "C" fn end(save: *mut kv_store_save) {
    if save.is_null() {
        return;
    }
    let _ = run("save_end", || {
        // SAFETY: the caller passes a save of `save_begin`, for the last time.
        drop(unsafe { Box::from_raw(save) });
        Ok(())
    });
}
