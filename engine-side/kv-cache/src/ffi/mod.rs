//! The C functions of `include/kv_cache.h`, over the Rust API. Types and constants are those of the crate `kv-store-abi`.
//!
//! Each is a translation: it checks what C can get wrong (null, sizes, numbers), calls the Rust function of the same name,
//! and answers a status; the text of a failure is kept for `last_error`. No panic leaves them. There are no rules
//! here that Rust callers do not have; the header says them.

mod convert;
mod deprecated;
mod table;
mod upkeep;

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::OnceLock;

pub use kv_store_abi::cache::*;
use kv_store_abi::status::*;
pub use table::kv_cache_get_vtable;

use crate::cache::Cache;
use crate::config::Config;
use crate::error::{Error, ErrorKind, Result};
use crate::fingerprint::Fingerprint;
use crate::hit::{Hit, View};
use convert::Described;

/// What a `kv_cache_hit_t` of C points to. A `kv_cache_t` is a [`Cache`].
struct Held {
    // Before the hit: it is dropped first.
    view: OnceLock<View>,
    hit: Hit,
}

thread_local! {
    static LAST: RefCell<(Option<ErrorKind>, CString)> = RefCell::default();
}

/// The panic boundary: an outcome as a status, its text kept.
fn status(call: impl FnOnce() -> Result<()>) -> c_int {
    let (kind, message) = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => return KV_STORE_OK,
        Ok(Err(error)) => (error.kind(), error.to_string()),
        Err(_) => (ErrorKind::Internal, "a bug in kv-cache: a panic was caught".to_owned()),
    };
    let message = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // A thread that ends has no place for it any more.
    let _ = LAST.try_with(|last| last.replace((Some(kind), message)));
    convert::status_of(kind)
}

/// Why the last call of this thread that failed did; empty if none has. The text stands until the next one.
unsafe extern "C" fn last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().1.as_ptr()).unwrap_or(c"".as_ptr())
}

/// The kind of that failure. A thread that ends has none.
fn last_kind() -> Option<ErrorKind> {
    LAST.try_with(|last| last.borrow().0).unwrap_or_default()
}

/// The library's version, such as "0.2.0".
unsafe extern "C" fn library_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// Open a cache from a config file.
///
/// # Safety
/// `path` must be null or a C string, `out` null or valid for a write.
unsafe extern "C" fn open(path: *const c_char, out: *mut *mut kv_cache_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_with(path, out, |path| Config::load(Path::new(path))) }
}

/// Open a cache from the text of a config.
///
/// # Safety
/// `toml` must be null or a C string, `out` null or valid for a write.
unsafe extern "C" fn open_toml(toml: *const c_char, out: *mut *mut kv_cache_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { open_with(toml, out, Config::parse) }
}

/// # Safety
/// `text` must be null or a C string, `out` null or valid for a write.
unsafe fn open_with(
    text: *const c_char,
    out: *mut *mut kv_cache_t,
    config: impl FnOnce(&str) -> Result<Config>,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, text) = unsafe { (convert::out(out, std::ptr::null_mut())?, convert::text(text)?) };
        let text = text.ok_or_else(|| Error::invalid("the config is null"))?;
        let cache = Cache::open(config(text)?)?;
        *out = Box::into_raw(Box::new(cache)).cast();
        Ok(())
    })
}

/// Close a cache: [`Cache::shutdown`] with `evict_save_timeout_ms`, and let go of it.
///
/// # Safety
/// `cache` must be null or what `open` gave, and not be used again.
unsafe extern "C" fn close(cache: *mut kv_cache_t) {
    if cache.is_null() {
        return;
    }
    // Nothing is told to the caller, who cannot do anything about it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the caller's promise; it was made by Box::into_raw.
        let cache = unsafe { Box::from_raw(cache.cast::<Cache>()) };
        cache.shutdown(cache.evict_save_timeout());
    }));
}

/// The fingerprint of a model file: [`Fingerprint::of_file`].
///
/// # Safety
/// `path` must be null or a C string, `out` null or valid for a write of 32 bytes.
unsafe extern "C" fn fingerprint(path: *const c_char, mode: u32, out: *mut u8) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (out, path) = unsafe { (convert::out(out.cast::<[u8; 32]>(), [0; 32])?, convert::text(path)?) };
        let path = path.ok_or_else(|| Error::invalid("the path is null"))?;
        *out = Fingerprint::of_file(Path::new(path), convert::fingerprint_mode(mode)?)?.bytes;
        Ok(())
    })
}

/// The key of exactly these tokens: [`Identity::key`](crate::Identity::key).
///
/// # Safety
/// Pointers must be null or valid for what they point to; `tokens` for `n_tokens` numbers, `out` for 32 bytes.
unsafe extern "C" fn key(
    identity: *const kv_cache_identity_t,
    tokens: *const u32,
    n_tokens: usize,
    out: *mut u8,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let out = convert::out(out.cast::<[u8; 32]>(), [0; 32])?;
            let identity = identity.as_ref().ok_or_else(|| Error::invalid("the identity is null"))?;
            *out = convert::identity(identity)?.key(convert::tokens(tokens, n_tokens)?).0;
        }
        Ok(())
    })
}

/// How many tokens a save of this reason keeps, 0 for none: the policy's gates.
///
/// # Safety
/// `cache` must be null or open, `keep` null or valid for a write.
unsafe extern "C" fn plan(
    cache: *const kv_cache_t,
    reason: kv_cache_reason_t,
    n_tokens: u64,
    last_saved: u64,
    keep: *mut u64,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (keep, cache) = unsafe { (convert::out(keep, 0)?, convert::cache(cache)?) };
        let (tokens, policy) = (n_tokens as usize, cache.policy());
        *keep = match reason {
            KV_CACHE_REASON_COLD => policy.cold(tokens).map(|kept| kept as u64),
            KV_CACHE_REASON_CONTINUED => policy.continued(tokens, last_saved as usize).map(|()| n_tokens),
            KV_CACHE_REASON_FINISH => policy.finish(tokens).map(|()| n_tokens),
            KV_CACHE_REASON_EVICT | KV_CACHE_REASON_SHUTDOWN => Ok(n_tokens),
            other => return Err(convert::no_reason(other)),
        }
        .unwrap_or(0);
        Ok(())
    })
}

/// Find a row: [`Cache::lookup`].
///
/// # Safety
/// `cache` must be null or open; the others null or valid as their `size` says, tokens and parent included.
unsafe extern "C" fn lookup(
    cache: *const kv_cache_t,
    query: *const kv_cache_query_t,
    out: *mut *mut kv_cache_hit_t,
    info: *mut kv_cache_hit_info_t,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let out = convert::out(out, std::ptr::null_mut())?;
            kv_cache_hit_info_t::clear(info)?;
            let cache = convert::cache(cache)?;
            let query = kv_cache_query_t::read(query)?;
            let identity = convert::identity(&query.identity)?;
            let hit = cache.lookup(&convert::query(&query, &identity)?)?;
            let hit = hit.ok_or_else(|| Error::new(ErrorKind::Miss, "no row is a prefix of these tokens"))?;
            if !info.is_null() {
                convert::info(&hit).write(info)?;
            }
            *out = Box::into_raw(Box::new(Held { view: OnceLock::new(), hit })).cast();
        }
        Ok(())
    })
}

/// Copy a row's payload into a buffer of exactly its size: [`Hit::load_into`].
///
/// # Safety
/// `hit` must be null or what a lookup gave, `buffer` null or valid for a write of `size` bytes.
unsafe extern "C" fn load(hit: *const kv_cache_hit_t, buffer: *mut u8, size: usize) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let hit = unsafe { convert::hit(hit) }?;
        if buffer.is_null() || size != hit.hit.payload_len() {
            let payload = hit.hit.payload_len();
            let wrong = if buffer.is_null() { "is null".to_owned() } else { format!("has {size}") };
            return Err(Error::invalid(format!("the payload has {payload} bytes, but the buffer {wrong}")));
        }
        // SAFETY: the caller's promise; the bytes may not have been written yet.
        let buffer = unsafe { std::slice::from_raw_parts_mut(buffer.cast::<MaybeUninit<u8>>(), size) };
        hit.hit.load_into_uninit(buffer).map(drop)
    })
}

/// A row's payload in place: [`Hit::view`]. It stands until the hit is released.
///
/// # Safety
/// `hit` must be null or what a lookup gave, the others null or valid for a write.
unsafe extern "C" fn view(hit: *const kv_cache_hit_t, data: *mut *const u8, size: *mut usize) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        let (data, size, hit) =
            unsafe { (convert::out(data, std::ptr::null())?, convert::out(size, 0)?, convert::hit(hit)?) };
        let view = match hit.view.get() {
            Some(view) => view,
            None => {
                let view = hit.hit.view()?;
                hit.view.get_or_init(|| view)
            }
        };
        (*data, *size) = (view.as_ptr(), view.len());
        Ok(())
    })
}

/// Let go of a row.
///
/// # Safety
/// `hit` must be null or what a lookup gave; neither it nor its view may be used again.
unsafe extern "C" fn release(hit: *mut kv_cache_hit_t) {
    if !hit.is_null() {
        // SAFETY: the caller's promise; it was made by Box::into_raw.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(unsafe { Box::from_raw(hit.cast::<Held>()) })));
    }
}

/// Save a row: [`Cache::save`].
///
/// # Safety
/// `cache` must be null or open; `save` null or valid as its `size` says, all that it points to included; `saved` null or valid
/// for a write.
unsafe extern "C" fn save(
    cache: *const kv_cache_t,
    save: *const kv_cache_save_t,
    saved: *mut kv_cache_saved_t,
) -> c_int {
    status(|| {
        // SAFETY: the caller's promise.
        unsafe {
            let saved = convert::optional_out(saved, KV_CACHE_FAILED);
            let cache = convert::cache(cache)?;
            let save = kv_cache_save_t::read(save)?;
            let identity = convert::identity(&save.identity)?;
            saved.set(convert::saved(cache.save(convert::save(&save, &identity)?)?));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_panic_is_an_internal_error() {
        assert_eq!(status(|| panic!("on purpose")), KV_STORE_OTHER);
        assert_eq!(status(|| Err(Error::invalid("a\0b"))), KV_STORE_INVALID);
        // SAFETY: the text is of this thread, which calls nothing in between.
        let text = unsafe { CStr::from_ptr(last_error()) };
        assert_eq!(text, c"a b");
        assert_eq!(status(|| Ok(())), KV_STORE_OK);
    }
}
