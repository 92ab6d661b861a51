//! The C ABI `kv_store_v1`. `include/kv_store_abi.h` is its documentation; `batch` is `include/kv_store_batch.h`, `paged`
//! `include/kv_store_kvx.h`, `blocks` `include/kv_blocks.h`, `describe` `include/kv_store_describe.h`, `process`
//! `include/kv_store_wasm.h`. Types and constants are those of the crate
//! `kv-store-abi`.
//!
//! Every entry checks its arguments before it uses them, turns a panic into an error, and logs a failure, at most once a minute for each store and cause. Its
//! functions are unmangled, so a library or a program that links this crate exports them; one that uses the crate
//! `kv-store-wasm` alone exports nothing.

mod arguments;
mod batch;
mod blocks;
mod deprecated;
mod describe;
mod last_error;
mod log;
mod metrics;
mod paged;
mod process;

use std::ffi::c_char;

pub use batch::kv_store_batch_get_vtable;
pub use blocks::kv_blocks_get_vtable;
pub use describe::kv_store_describe_get_vtable;
pub use paged::kv_store_kvx_get_vtable;
pub use process::kv_store_wasm_get_vtable;

use arguments::{Output, bytes, name, uri};
use kv_store_abi::status::KV_STORE_MISSING;
use kv_store_abi::store::{KV_STORE_VTABLE_VERSION, kv_store_v1, kv_store_vtable};
use kv_store_wasm::raw::log::failure;
use kv_store_wasm::{Error, ErrorKind, Put, Store};
// Exports the functions of `include/kvx_abi.h`.
use kvx_c as _;

/// What a `kv_store_v1` of C points to.
struct Handle {
    store: Store,
}

impl Handle {
    /// # Safety
    /// `handle` is NULL or came from `open` and was not closed.
    unsafe fn of<'a>(handle: *mut kv_store_v1) -> Option<&'a Self> {
        // SAFETY: by this function's own condition; handles are only ever shared.
        unsafe { handle.cast::<Self>().as_ref() }
    }
}

static VTABLE: kv_store_vtable = kv_store_vtable {
    version: KV_STORE_VTABLE_VERSION,
    open: Some(open),
    close: Some(close),
    put_chunk: Some(put_chunk),
    get_chunk: Some(get_chunk),
    put_manifest: Some(put_manifest),
    get_manifest: Some(get_manifest),
    delete_manifest: Some(delete_manifest),
    prefetch_chunks: Some(prefetch_chunks),
};

/// The vtable of this library. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_get_vtable() -> *const kv_store_vtable {
    &VTABLE
}

unsafe extern "C" fn open(string: *const c_char) -> *mut kv_store_v1 {
    let mut named = None;
    let opened = guarded("open", || {
        // SAFETY: the caller passes NULL or a C string.
        Store::open(named.insert(unsafe { uri(string) }?))
    });
    match opened {
        Ok(store) => Box::into_raw(Box::new(Handle { store })).cast(),
        Err(error) => {
            last_error::remember(&error);
            // The message names the store, as far as it may be shown.
            failure("open", named.unwrap_or_default(), &error, "open", error.message());
            std::ptr::null_mut()
        }
    }
}

unsafe extern "C" fn close(handle: *mut kv_store_v1) {
    if handle.is_null() {
        return;
    }
    let closed = guarded("close", || {
        // SAFETY: the caller passes a handle of `open`, for the last time.
        drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
        Ok(())
    });
    if let Err(error) = closed {
        report("close", None, &error);
    }
}

unsafe extern "C" fn put_chunk(
    handle: *mut kv_store_v1,
    hash: *const u8,
    hash_len: usize,
    data: *const u8,
    data_len: usize,
) -> i32 {
    // SAFETY: the caller passes NULL or a live handle, and pointers to as many bytes as it says.
    unsafe {
        call("put_chunk", handle, |store| {
            let put = store.put_chunk(bytes(hash, hash_len, "the hash")?, bytes(data, data_len, "the data")?)?;
            Ok(i32::from(put == Put::Existed))
        })
    }
}

unsafe extern "C" fn get_chunk(
    handle: *mut kv_store_v1,
    hash: *const u8,
    hash_len: usize,
    out_data: *mut *mut u8,
    out_len: *mut usize,
) -> i32 {
    // SAFETY: as in `put_chunk`; the out pointers are NULL or writable.
    unsafe {
        let output = Output::clear(out_data, out_len);
        call("get_chunk", handle, |store| {
            let output = output?;
            match store.get_chunk(bytes(hash, hash_len, "the hash")?)? {
                Some(data) => Ok(output.hand_over(data)),
                None => Ok(KV_STORE_MISSING),
            }
        })
    }
}

unsafe extern "C" fn put_manifest(
    handle: *mut kv_store_v1,
    manifest: *const c_char,
    data: *const u8,
    data_len: usize,
) -> i32 {
    // SAFETY: as in `put_chunk`; the name is NULL or a C string.
    unsafe {
        call("put_manifest", handle, |store| {
            store.put_manifest(name(manifest)?, bytes(data, data_len, "the data")?).map(|()| 0)
        })
    }
}

unsafe extern "C" fn get_manifest(
    handle: *mut kv_store_v1,
    manifest: *const c_char,
    out_data: *mut *mut u8,
    out_len: *mut usize,
) -> i32 {
    // SAFETY: as in `get_chunk` and `put_manifest`.
    unsafe {
        let output = Output::clear(out_data, out_len);
        call("get_manifest", handle, |store| {
            let output = output?;
            match store.get_manifest(name(manifest)?)? {
                Some(data) => Ok(output.hand_over(data)),
                None => Ok(KV_STORE_MISSING),
            }
        })
    }
}

unsafe extern "C" fn delete_manifest(handle: *mut kv_store_v1, manifest: *const c_char) -> i32 {
    // SAFETY: as in `put_manifest`.
    unsafe { call("delete_manifest", handle, |store| store.delete_manifest(name(manifest)?).map(|()| 0)) }
}

unsafe extern "C" fn prefetch_chunks(
    handle: *mut kv_store_v1,
    hashes: *const u8,
    hash_len: usize,
    n_hashes: usize,
) -> i32 {
    // SAFETY: as in `put_chunk`.
    unsafe {
        call("prefetch_chunks", handle, |store| {
            let total = hash_len.checked_mul(n_hashes);
            let total =
                total.ok_or_else(|| Error::invalid(format!("{n_hashes} hashes of {hash_len} bytes overflow")))?;
            store.prefetch_chunks(bytes(hashes, total, "the list of hashes")?, hash_len).map(|()| 0)
        })
    }
}

/// Run an operation on a handle and turn its outcome into the ABI's number.
///
/// # Safety
/// `handle` is NULL or came from `open` and was not closed.
unsafe fn call(operation: &str, handle: *mut kv_store_v1, run: impl FnOnce(&Store) -> Result<i32, Error>) -> i32 {
    // SAFETY: by this function's own condition.
    let handle = unsafe { Handle::of(handle) };
    let outcome = guarded(operation, || match handle {
        Some(handle) => run(&handle.store),
        None => Err(Error::invalid("the handle is NULL")),
    });
    outcome.unwrap_or_else(|error| {
        report(operation, handle, &error);
        status(&error)
    })
}

/// The status of a failure.
fn status(error: &Error) -> i32 {
    match error.kind() {
        ErrorKind::Missing => KV_STORE_MISSING,
        kind => -(kind as i32),
    }
}

/// Run with a panic turned into an error: none may cross into C.
fn guarded<T>(operation: &str, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    kv_store_wasm::raw::caught(run).unwrap_or_else(|text| {
        let message = format!("a defect of kv-store-wasm in {operation}, please report it: {text}");
        Err(Error::new(ErrorKind::Other, message))
    })
}

fn report(operation: &str, handle: Option<&Handle>, error: &Error) {
    last_error::remember(error);
    match handle.map(|handle| handle.store.uri()) {
        Some(uri) => failure(operation, uri, error, format_args!("{operation} {uri}"), error.message()),
        None => failure(operation, "", error, operation, error.message()),
    }
}

#[cfg(test)]
mod tests;
