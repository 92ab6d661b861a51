//! The four functions of the KVX C ABI, over the safe API.
//!
//! Invariant: no descriptor, however wrong, makes these functions read or
//! write outside of what it names, and no panic leaves them. Each is a
//! translation (see `parse`) followed by the Rust call; there are no rules
//! here that Rust callers do not have.
//!
//! They keep Rust's names, so that a library that links the kernels exports none of them; the crate `kvx-c`
//! exports them under C's.

mod parse;
pub mod views;

use std::ffi::c_void;
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Once, OnceLock};

pub use kv_store_abi::kvx::*;

use crate::error::{Error, ErrorKind, Result, invalid, unsupported};
use crate::write::Write;

/// Fills `out` with the ABI version of this library, 1.1.0, and its `size`. What `out` held
/// before is not read.
///
/// Returns `KVX_STATUS_OK`, or `KVX_STATUS_INVALID_ARGUMENT` where `out` is null.
///
/// # Safety
/// `out` must be null or valid for writes of a `kvx_version_t`.
pub unsafe extern "C" fn kvx_get_version(out: *mut kvx_version_t) -> kvx_status_t {
    if out.is_null() {
        return KVX_STATUS_INVALID_ARGUMENT;
    }
    let version = kvx_version_t {
        size: size_of::<kvx_version_t>() as u32,
        abi_major: KVX_ABI_VERSION_MAJOR,
        abi_minor: KVX_ABI_VERSION_MINOR,
        abi_patch: 0,
    };
    // SAFETY: not null, so valid by the caller's promise; alignment is not relied on.
    unsafe { out.write_unaligned(version) };
    KVX_STATUS_OK
}

/// Checks a cache descriptor, without touching the pools: what it refuses, a write refuses. `pool` is
/// not looked at; only KV offsets need it.
///
/// # Safety
/// `cache` must be null, or for the duration of the call valid for reads of as many bytes as its `size` says.
pub unsafe extern "C" fn kvx_validate_cache_desc(cache: *const kvx_cache_desc_t) -> kvx_status_t {
    status(|| {
        let (mut copy, desc) = (MaybeUninit::uninit(), cache);
        // SAFETY: the caller's promise.
        let cache = unsafe { read(desc, &mut copy) }?;
        let (cache, _) = parse::cache(cache)?;
        cache.check_disjoint()
    })
}

/// Writes tokens into a cache: [`Write`] for C. All or nothing.
///
/// # Safety
/// Both descriptors must be null or, for the duration of the call, valid for reads of as many bytes as their
/// `size` says. Every buffer that they name must hold what they describe for the duration of the call: sources
/// for reads, the slots named for writes and for nobody else. `stream` is not used.
pub unsafe extern "C" fn kvx_write_kv(
    cache: *const kvx_cache_desc_t,
    write: *const kvx_write_desc_t,
    _stream: *mut c_void,
) -> kvx_status_t {
    status(|| {
        let mut copies = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the caller's promise.
        let (cache, desc) = unsafe { (read(cache, &mut copies.0)?, read(write, &mut copies.1)?) };
        let (cache, _) = parse::cache(cache)?;
        let tokens = parse::write_io(&desc.io, &cache)?;
        // SAFETY: the caller's promise, on slots, scales and everything else.
        unsafe {
            let write = Write {
                slots: parse::slots(&desc.slots, tokens.tokens)?,
                scales: parse::scales(desc, &cache, &tokens)?,
                threads: threads(),
            };
            write.run_raw(&cache, &tokens, 0)
        }
    })
}

/// Gathers sequences out of a cache: [`Gather`](crate::Gather) for C. All or nothing.
///
/// # Safety
/// Both descriptors must be null or, for the duration of the call, valid for reads of as many bytes as their
/// `size` says. Every buffer that they name must hold what they describe for the duration of the call: the output
/// for writes and for nobody else, the rest for reads. `stream` is not used.
pub unsafe extern "C" fn kvx_gather_kv(
    cache: *const kvx_cache_desc_t,
    gather: *const kvx_gather_desc_t,
    _stream: *mut c_void,
) -> kvx_status_t {
    status(|| {
        let mut copies = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the caller's promise.
        let (desc, gather) = unsafe { (read(cache, &mut copies.0)?, read(gather, &mut copies.1)?) };
        let (cache, _) = parse::cache(desc)?;
        // SAFETY: the caller's promise, on the table, the lengths and everything else.
        unsafe {
            let call = parse::gather(gather, &desc.pool, threads())?;
            let out = parse::gather_io(gather, &cache)?;
            call.run_raw(&cache, &out)
        }
    })
}

/// A descriptor that starts with its `size`.
trait Sized32: Copy {}
impl Sized32 for kvx_cache_desc_t {}
impl Sized32 for kvx_write_desc_t {}
impl Sized32 for kvx_gather_desc_t {}

/// A descriptor in its place, or a copy of one that is not aligned. Copying each would be a third of
/// the time of a small call: a wide load of fields that the caller has just written waits for them.
///
/// # Safety
/// While the result lives, `desc` must be null or valid for reads of as many bytes as its first field says.
#[inline(always)]
unsafe fn read<T: Sized32>(desc: *const T, copy: &mut MaybeUninit<T>) -> Result<&T> {
    if desc.is_null() {
        return Err(invalid("a descriptor is null"));
    }
    // SAFETY: at least the size is there by the caller's promise, and then what it says.
    unsafe {
        parse::check_size::<T>(desc.cast::<u32>().read_unaligned())?;
        Ok(if desc.is_aligned() { &*desc } else { copy.write(desc.read_unaligned()) })
    }
}

/// The panic boundary, and errors as numbers.
fn status(call: impl FnOnce() -> Result<()>) -> kvx_status_t {
    // Descriptors are read only and buffers are bytes: there is no state to find broken later.
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => KVX_STATUS_OK,
        Ok(Err(error)) => match error.kind() {
            ErrorKind::InvalidArgument => KVX_STATUS_INVALID_ARGUMENT,
            ErrorKind::Unsupported => KVX_STATUS_UNSUPPORTED,
            ErrorKind::OutOfRange => KVX_STATUS_OUT_OF_RANGE,
            ErrorKind::Internal => KVX_STATUS_INTERNAL_ERROR,
        },
        Err(_) => KVX_STATUS_INTERNAL_ERROR,
    }
}

/// `KVX_THREADS`, read once because the environment of a C program may change under a reader;
/// 1 where it is unset or no number above zero.
fn threads() -> usize {
    static THREADS: OnceLock<usize> = OnceLock::new();
    *THREADS.get_or_init(|| {
        let set = std::env::var("KVX_THREADS").ok();
        set.and_then(|n| n.trim().parse().ok()).unwrap_or(1).max(1)
    })
}

/// Accepts memory that the CPU reaches.
#[inline(always)]
fn check_memory(memory: kvx_memory_type_t) -> Result<()> {
    match memory {
        KVX_MEMORY_HOST | KVX_MEMORY_UNIFIED => Ok(()),
        other => Err(refused_memory(other)),
    }
}

#[cold]
fn refused_memory(memory: kvx_memory_type_t) -> Error {
    static SAID: Once = Once::new();
    match memory {
        KVX_MEMORY_DEVICE => {
            const MESSAGE: &str = "kvx: memory is KVX_MEMORY_DEVICE, which these CPU kernels can \
                not reach; use HOST or UNIFIED memory";
            SAID.call_once(|| {
                // The library that these functions are exported from names its log so.
                if std::env::var_os("KV_STORE_WASM_LOG").is_some_and(|level| level == "off") {
                    return;
                }
                // Nobody may be listening; the status says it too.
                let _ = writeln!(std::io::stderr(), "{MESSAGE}");
            });
            unsupported(MESSAGE)
        }
        other => invalid(format!("memory type {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_internal_error() {
        assert_eq!(status(|| panic!("on purpose")), KVX_STATUS_INTERNAL_ERROR);
        assert_eq!(status(|| Err(crate::error::internal(""))), KVX_STATUS_INTERNAL_ERROR);
        assert_eq!(status(|| Ok(())), KVX_STATUS_OK);
    }
}
