//! The C interface of the block cache. `include/kv_blocks.h` is its documentation.

use std::ffi::c_char;

use kv_store_wasm::blocks::{self, Acquired, Cache, Config, Layout, Spec};
use kv_store_wasm::raw::log::{self, Level};
use kv_store_wasm::{Error, limits};

use super::arguments::text;
use super::{guarded, last_error};

/// A cache, as C sees it.
#[allow(non_camel_case_types)]
pub struct kv_blocks {
    cache: Cache,
    /// A child that was forked off has none of its threads.
    process: u32,
}

/// Blocks that were acquired, as C sees them.
#[allow(non_camel_case_types)]
pub struct kv_blocks_acquired(#[allow(dead_code, reason = "held until it is given back")] Acquired);

/// What a block is, in the layout of the header.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct kv_blocks_spec {
    size: u32,
    block_tokens: u32,
    block_bytes: u64,
    model: *const c_char,
    layout: *const c_char,
    dtype: *const c_char,
    first_layer: u32,
    end_layer: u32,
    first_head: u32,
    end_head: u32,
    rank: u32,
    ranks: u32,
}

/// A query and its prefix, in the layout of the header.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct kv_blocks_query {
    prefix: *const i32,
    n_prefix: usize,
    query: *const i32,
    n_query: usize,
}

/// What a cache is, in the layout of the header.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct kv_blocks_info {
    size: u32,
    block_tokens: u32,
    block_bytes: u64,
}

type Counted = unsafe extern "C" fn(*mut kv_blocks, *const kv_blocks_query) -> i64;

type Acquire = unsafe extern "C" fn(
    *mut kv_blocks,
    *const kv_blocks_query,
    *mut *const u8,
    usize,
    *mut *mut kv_blocks_acquired,
) -> i64;

/// The vtable, in the order and layout of the header.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct kv_blocks_vtable {
    size: u32,
    version: u32,
    open: unsafe extern "C" fn(*const c_char, *const kv_blocks_spec) -> *mut kv_blocks,
    put: unsafe extern "C" fn(*mut kv_blocks, *const kv_blocks_query, *const *const u8, usize) -> i64,
    get: unsafe extern "C" fn(*mut kv_blocks, *const kv_blocks_query, *const *mut u8, usize) -> i64,
    acquire: Acquire,
    give_back: unsafe extern "C" fn(*mut kv_blocks_acquired),
    exists: Counted,
    remove: Counted,
    prefetch: Counted,
    flush: unsafe extern "C" fn(*mut kv_blocks) -> i32,
    info: unsafe extern "C" fn(*mut kv_blocks, *mut kv_blocks_info) -> i32,
    metrics: unsafe extern "C" fn(*mut kv_blocks, *mut c_char, usize) -> usize,
    close: unsafe extern "C" fn(*mut kv_blocks),
    last_error: unsafe extern "C" fn() -> *const c_char,
}

static VTABLE: kv_blocks_vtable = kv_blocks_vtable {
    size: size_of::<kv_blocks_vtable>() as u32,
    version: 1,
    open,
    put,
    get,
    acquire,
    give_back,
    exists,
    remove,
    prefetch,
    flush,
    info,
    metrics,
    close,
    last_error: last_error_text,
};

/// The vtable of the block cache. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kv_blocks_get_vtable() -> *const kv_blocks_vtable {
    &VTABLE
}

/// The longest TOML of a config.
const MAX_CONFIG_BYTES: usize = 1 << 20;
/// The most tokens of a query or a prefix.
const MAX_TOKENS: usize = 1 << 28;

fn failed(operation: &str, error: &Error) -> i64 {
    last_error::remember(error);
    log::line(Level::Error, format_args!("kv_blocks {operation}: {}", error.message()));
    -(error.kind() as i64)
}

/// # Safety
/// `handle` is NULL or came from `open` and was not closed.
unsafe fn call(operation: &str, handle: *mut kv_blocks, run: impl FnOnce(&Cache) -> Result<i64, Error>) -> i64 {
    // SAFETY: by this function's own condition; handles are only ever shared.
    let handle = unsafe { handle.as_ref() };
    let outcome = guarded(operation, || match handle {
        None => Err(Error::invalid("the handle is NULL")),
        Some(handle) if handle.process != std::process::id() => {
            Err(Error::invalid("the cache was opened before a fork: open one in this process"))
        }
        Some(handle) => run(&handle.cache),
    });
    outcome.unwrap_or_else(|error| failed(operation, &error))
}

/// What the caller lends for the call.
///
/// # Safety
/// `data` is NULL or points to `len` values that stay valid and unchanged for `'a`.
unsafe fn lent<'a, T>(data: *const T, len: usize, what: &str) -> Result<&'a [T], Error> {
    match (data.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Error::invalid(format!("{what} is NULL, its length {len}"))),
        (false, len) if len > MAX_TOKENS => {
            Err(Error::invalid(format!("{what} has a length of {len}, the limit is {MAX_TOKENS}")))
        }
        (false, _) if !data.is_aligned() => Err(Error::invalid(format!("{what} is not aligned"))),
        // SAFETY: by this function's own condition, and within what a slice may have.
        (false, len) => Ok(unsafe { std::slice::from_raw_parts(data, len) }),
    }
}

/// The prefix and the query.
///
/// # Safety
/// `query` is NULL or points to a query whose pointers are as [`lent`] asks.
unsafe fn read<'a>(query: *const kv_blocks_query) -> Result<(&'a [i32], &'a [i32]), Error> {
    // SAFETY: by this function's own condition.
    unsafe {
        let query = query.as_ref().ok_or_else(|| Error::invalid("the query is NULL"))?;
        Ok((lent(query.prefix, query.n_prefix, "the prefix")?, lent(query.query, query.n_query, "the query")?))
    }
}

unsafe extern "C" fn open(toml: *const c_char, spec: *const kv_blocks_spec) -> *mut kv_blocks {
    let opened = guarded("open", || {
        // SAFETY: the caller passes NULL or C strings, and NULL or a spec of theirs.
        let (toml, spec) = unsafe {
            let toml = if toml.is_null() { "" } else { text(toml, MAX_CONFIG_BYTES, "the config")? };
            (toml, read_spec(spec)?)
        };
        let config = Config::from_env(toml).map_err(Error::from)?;
        for ignored in &config.ignored {
            log::line(Level::Warn, format_args!("kv_blocks: {ignored}"));
        }
        blocks::open(config, spec)
    });
    match opened {
        Ok(cache) => Box::into_raw(Box::new(kv_blocks { cache, process: std::process::id() })),
        Err(error) => {
            failed("open", &error);
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// `spec` is NULL, or valid with its strings.
unsafe fn read_spec(spec: *const kv_blocks_spec) -> Result<Spec, Error> {
    // SAFETY: by this function's own condition.
    unsafe {
        let given = spec.as_ref().ok_or_else(|| Error::invalid("the spec is NULL"))?;
        if (given.size as usize) < size_of::<kv_blocks_spec>() {
            return Err(Error::invalid(format!("the spec's size is {}: set it to sizeof(kv_blocks_spec)", given.size)));
        }
        let model = text(given.model, limits::MAX_NAME_BYTES, "the model")?;
        let bytes = usize::try_from(given.block_bytes).map_err(|_| Error::invalid("block_bytes is too large"))?;
        let mut spec = Spec::new(model, given.block_tokens as usize, bytes);
        if !given.layout.is_null() {
            let layout = text(given.layout, 16, "the layout")?;
            spec.layout = Layout::try_from(layout.to_owned()).map_err(Error::invalid)?;
        }
        if !given.dtype.is_null() {
            spec.dtype = text(given.dtype, 16, "the dtype")?.parse().map_err(|error: String| Error::invalid(error))?;
        }
        if given.end_layer > 0 {
            spec.layers = given.first_layer..given.end_layer;
        }
        if given.end_head > 0 {
            spec.heads = given.first_head..given.end_head;
        }
        if given.ranks > 0 {
            spec.tensor_parallel = (given.rank, given.ranks);
        }
        Ok(spec)
    }
}

unsafe extern "C" fn put(
    handle: *mut kv_blocks,
    query: *const kv_blocks_query,
    blocks: *const *const u8,
    count: usize,
) -> i64 {
    // SAFETY: the caller passes NULL or a live handle, and as many blocks as it says, each of `block_bytes` bytes.
    unsafe {
        call("put", handle, |cache| {
            let (prefix, query) = read(query)?;
            let blocks = lent(blocks, count, "the list of blocks")?;
            if blocks.iter().any(|block| block.is_null()) {
                return Err(Error::invalid("a block is NULL"));
            }
            let bytes = cache.block_bytes();
            let blocks: Vec<&[u8]> = blocks.iter().map(|block| std::slice::from_raw_parts(*block, bytes)).collect();
            Ok(cache.put(prefix, query, &blocks).map_err(Error::from)? as i64)
        })
    }
}

unsafe extern "C" fn get(
    handle: *mut kv_blocks,
    query: *const kv_blocks_query,
    blocks: *const *mut u8,
    count: usize,
) -> i64 {
    // SAFETY: as in `put`; the blocks are writable, nobody else uses them, and none overlaps another.
    unsafe {
        call("get", handle, |cache| {
            let (prefix, query) = read(query)?;
            let blocks = lent(blocks, count, "the list of blocks")?;
            if blocks.iter().any(|block| block.is_null()) {
                return Err(Error::invalid("a block is NULL"));
            }
            let bytes = cache.block_bytes();
            let mut rooms: Vec<&mut [u8]> =
                blocks.iter().map(|block| std::slice::from_raw_parts_mut(*block, bytes)).collect();
            Ok(cache.get(prefix, query, &mut rooms).map_err(Error::from)? as i64)
        })
    }
}

unsafe extern "C" fn acquire(
    handle: *mut kv_blocks,
    query: *const kv_blocks_query,
    blocks: *mut *const u8,
    count: usize,
    acquired: *mut *mut kv_blocks_acquired,
) -> i64 {
    // SAFETY: as in `put`; the outputs are NULL or writable.
    unsafe {
        let Some(out) = acquired.as_mut() else {
            return failed("acquire", &Error::invalid("out_acquired is NULL"));
        };
        *out = std::ptr::null_mut();
        call("acquire", handle, |cache| {
            let (prefix, query) = read(query)?;
            if blocks.is_null() && count > 0 {
                return Err(Error::invalid("out_blocks is NULL"));
            }
            let most = query.len().min(count.saturating_mul(cache.block_tokens()));
            let found = cache.acquire(prefix, query.get(..most).unwrap_or(query)).map_err(Error::from)?;
            for (index, block) in found.iter().enumerate() {
                *blocks.add(index) = block.as_ptr();
            }
            let tokens = found.len() * cache.block_tokens();
            if !found.is_empty() {
                *out = Box::into_raw(Box::new(kv_blocks_acquired(found)));
            }
            Ok(tokens as i64)
        })
    }
}

unsafe extern "C" fn give_back(acquired: *mut kv_blocks_acquired) {
    if acquired.is_null() {
        return;
    }
    let dropped = guarded("give_back", || {
        // SAFETY: the caller passes what `acquire` gave, for the last time.
        drop(unsafe { Box::from_raw(acquired) });
        Ok(())
    });
    if let Err(error) = dropped {
        failed("give_back", &error);
    }
}

/// # Safety
/// As the header asks of the caller.
unsafe fn counted(
    operation: &str,
    handle: *mut kv_blocks,
    query: *const kv_blocks_query,
    run: impl FnOnce(&Cache, &[i32], &[i32]) -> Result<usize, blocks::BlockError>,
) -> i64 {
    // SAFETY: by this function's own condition.
    unsafe {
        call(operation, handle, |cache| {
            let (prefix, query) = read(query)?;
            Ok(run(cache, prefix, query).map_err(Error::from)? as i64)
        })
    }
}

unsafe extern "C" fn exists(handle: *mut kv_blocks, query: *const kv_blocks_query) -> i64 {
    // SAFETY: as in `put`.
    unsafe { counted("exists", handle, query, Cache::exists) }
}

unsafe extern "C" fn remove(handle: *mut kv_blocks, query: *const kv_blocks_query) -> i64 {
    // SAFETY: as in `put`.
    unsafe { counted("remove", handle, query, Cache::delete) }
}

unsafe extern "C" fn prefetch(handle: *mut kv_blocks, query: *const kv_blocks_query) -> i64 {
    // SAFETY: as in `put`.
    unsafe { counted("prefetch", handle, query, Cache::prefetch) }
}

unsafe extern "C" fn flush(handle: *mut kv_blocks) -> i32 {
    // SAFETY: as in `put`.
    unsafe { call("flush", handle, |cache| cache.flush().map(|()| 0).map_err(Error::from)) as i32 }
}

unsafe extern "C" fn info(handle: *mut kv_blocks, out: *mut kv_blocks_info) -> i32 {
    // SAFETY: as in `put`; `out` is NULL or writable.
    let told = unsafe {
        call("info", handle, |cache| {
            let out = out.as_mut().ok_or_else(|| Error::invalid("the info is NULL"))?;
            if (out.size as usize) < size_of::<kv_blocks_info>() {
                return Err(Error::invalid(format!(
                    "the info's size is {}: set it to sizeof(kv_blocks_info)",
                    out.size
                )));
            }
            out.block_tokens = cache.block_tokens() as u32;
            out.block_bytes = cache.block_bytes() as u64;
            Ok(0)
        })
    };
    told as i32
}

unsafe extern "C" fn metrics(handle: *mut kv_blocks, buffer: *mut c_char, len: usize) -> usize {
    let mut told = String::new();
    // SAFETY: as in `put`.
    unsafe {
        call("metrics", handle, |cache| {
            told = cache.metrics().to_prometheus("");
            Ok(0)
        });
    }
    if !buffer.is_null() && len > 0 {
        let count = told.len().min(len - 1);
        // SAFETY: `count` bytes are in `told`, and one more than them in `buffer`, as the caller says.
        unsafe {
            std::ptr::copy_nonoverlapping(told.as_ptr(), buffer.cast(), count);
            *buffer.add(count) = 0;
        }
    }
    told.len()
}

unsafe extern "C" fn close(handle: *mut kv_blocks) {
    // SAFETY: the caller passes NULL or a live handle, for the last time.
    let Some(process) = unsafe { handle.as_ref() }.map(|handle| handle.process) else { return };
    if process != std::process::id() {
        // A thread of the parent may hold a lock for ever: nothing is freed.
        return;
    }
    // SAFETY: as above.
    unsafe { call("close", handle, |cache| cache.close().map(|()| 0).map_err(Error::from)) };
    let dropped = guarded("close", || {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(handle) });
        Ok(())
    });
    if let Err(error) = dropped {
        failed("close", &error);
    }
}

unsafe extern "C" fn last_error_text() -> *const c_char {
    last_error::text()
}
