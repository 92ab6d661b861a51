//! Pointers from C, checked once and made into what Rust trusts.

use std::ffi::c_char;

use kv_store_wasm::Buffer;
use kv_store_wasm::Error;
use kv_store_wasm::limits;

/// Bytes that the caller lends for the call. NULL is no bytes, if it says so.
///
/// # Safety
/// `data` is NULL or points to `len` bytes that stay valid and unchanged for `'a`.
pub(super) unsafe fn bytes<'a>(data: *const u8, len: usize, what: &str) -> Result<&'a [u8], Error> {
    match (data.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Error::invalid(format!("{what} is NULL, its length {len}"))),
        (false, len) if len > isize::MAX as usize => {
            Err(Error::invalid(format!("{what} has a length of {len}, more than memory")))
        }
        // SAFETY: by this function's own condition, and within what a slice may have.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(data, len) }),
    }
}

/// A C string as UTF-8, of at most `limit` bytes; it is read no further.
///
/// # Safety
/// `string` is NULL or points to a C string that stays valid and unchanged for `'a`.
pub(super) unsafe fn text<'a>(string: *const c_char, limit: usize, what: &str) -> Result<&'a str, Error> {
    if string.is_null() {
        return Err(Error::invalid(format!("{what} is NULL")));
    }
    // SAFETY: strnlen reads to the NUL and no further.
    let len = unsafe { libc::strnlen(string, limit + 1) };
    if len > limit {
        return Err(Error::invalid(format!("{what} is longer than {limit} bytes")));
    }
    // SAFETY: `len` bytes were just read, and they stay as they are by this function's own condition.
    let bytes = unsafe { std::slice::from_raw_parts(string.cast::<u8>(), len) };
    std::str::from_utf8(bytes).map_err(|error| Error::invalid(format!("{what} is not UTF-8: {error}")))
}

/// A store's URI, which may have `wasm://` before it.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn uri<'a>(string: *const c_char) -> Result<&'a str, Error> {
    // SAFETY: by this function's own condition.
    unsafe { text(string, "wasm://".len() + limits::MAX_URI_BYTES, "the URI") }
}

/// A manifest's name.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn name<'a>(string: *const c_char) -> Result<&'a str, Error> {
    // SAFETY: by this function's own condition.
    unsafe { text(string, limits::MAX_NAME_BYTES, "the manifest's name") }
}

/// What the values of a sequence belong to; NULL is nothing.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn model<'a>(string: *const c_char) -> Result<&'a [u8], Error> {
    if string.is_null() {
        return Ok(&[]);
    }
    // SAFETY: by this function's own condition.
    Ok(unsafe { text(string, limits::MAX_KV_MODEL_BYTES, "the model") }?.as_bytes())
}

/// Where an output goes.
pub(super) struct Output {
    data: *mut *mut u8,
    len: *mut usize,
}

impl Output {
    /// Both set to nothing, so that a caller that forgets to check frees nothing. An error if one of them is NULL.
    ///
    /// # Safety
    /// Each is NULL or valid for writes until the call returns.
    pub(super) unsafe fn clear(data: *mut *mut u8, len: *mut usize) -> Result<Self, Error> {
        // SAFETY: by this function's own condition.
        unsafe {
            if let Some(data) = data.as_mut() {
                *data = std::ptr::null_mut();
            }
            if let Some(len) = len.as_mut() {
                *len = 0;
            }
        }
        if data.is_null() || len.is_null() {
            return Err(Error::invalid("out_data or out_len is NULL"));
        }
        Ok(Output { data, len })
    }

    /// Give memory to the caller, who frees it. Answers success.
    pub(super) fn hand_over(self, buffer: Buffer) -> i32 {
        let (data, len) = buffer.into_raw();
        // SAFETY: `clear` checked both, and its condition holds until the call returns.
        unsafe {
            *self.data = data.as_ptr();
            *self.len = len;
        }
        0
    }
}
