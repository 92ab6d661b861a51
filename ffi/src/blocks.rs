//! The C interface of the block cache. `include/kv_blocks.h` is its documentation.

use std::ffi::{c_char, c_void};

use kv_store_abi::blocks::*;
use kv_store_wasm::blocks::{self, Acquired, Cache, Config, Layout, Spec};
use kv_store_wasm::raw::log::{self, Level};
use kv_store_wasm::{Error, limits};

use super::arguments::text;
use super::{guarded, last_error, status};

/// What a `kv_blocks_t` of C points to. A `kv_blocks_acquired_t` is an [`Acquired`].
struct BlocksHandle {
    cache: Cache,
    /// A child that was forked off has none of its threads.
    process: u32,
}

static VTABLE: kv_blocks_vtable_t = kv_blocks_vtable_t {
    size: size_of::<kv_blocks_vtable_t>() as u32,
    version: KV_BLOCKS_VTABLE_VERSION,
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
    last_error: last_error::text,
};

/// The vtable of the block cache. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kv_blocks_get_vtable() -> *const kv_blocks_vtable_t {
    &VTABLE
}

/// The longest TOML of a config.
const MAX_CONFIG_BYTES: usize = 1 << 20;
/// The most tokens of a query or a prefix.
const MAX_TOKENS: usize = 1 << 28;

fn failed(operation: &str, error: &Error) -> i64 {
    last_error::remember(error);
    log::failure(operation, "kv_blocks", error, format_args!("kv_blocks {operation}"), error.message());
    status(error).into()
}

/// # Safety
/// `handle` is NULL or came from `open` and was not closed.
unsafe fn call(operation: &str, handle: *mut kv_blocks_t, run: impl FnOnce(&Cache) -> Result<i64, Error>) -> i64 {
    // SAFETY: by this function's own condition; handles are only ever shared.
    let handle = unsafe { handle.cast::<BlocksHandle>().as_ref() };
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
unsafe fn read<'a>(query: *const kv_blocks_query_t) -> Result<(&'a [i32], &'a [i32]), Error> {
    // SAFETY: by this function's own condition.
    unsafe {
        let query = query.as_ref().ok_or_else(|| Error::invalid("the query is NULL"))?;
        Ok((lent(query.prefix, query.n_prefix, "the prefix")?, lent(query.query, query.n_query, "the query")?))
    }
}

unsafe extern "C" fn open(toml: *const c_char, spec: *const kv_blocks_spec_t) -> *mut kv_blocks_t {
    let opened = guarded("open", || {
        // SAFETY: the caller passes NULL or C strings, and NULL or a spec of theirs.
        let (toml, spec) = unsafe {
            let toml = if toml.is_null() { "" } else { text(toml, MAX_CONFIG_BYTES, "the config")? };
            (toml, read_spec(spec)?)
        };
        let config = Config::from_env(toml).map_err(Error::from)?;
        for told in config.ignored.iter().chain(&config.former) {
            log::line(Level::Warn, format_args!("kv_blocks: {told}"));
        }
        blocks::open(config, spec)
    });
    match opened {
        Ok(cache) => Box::into_raw(Box::new(BlocksHandle { cache, process: std::process::id() })).cast(),
        Err(error) => {
            failed("open", &error);
            std::ptr::null_mut()
        }
    }
}

/// # Safety
/// `spec` is NULL, or valid with its strings.
unsafe fn read_spec(spec: *const kv_blocks_spec_t) -> Result<Spec, Error> {
    // SAFETY: by this function's own condition.
    unsafe {
        let given = spec.as_ref().ok_or_else(|| Error::invalid("the spec is NULL"))?;
        if (given.size as usize) < size_of::<kv_blocks_spec_t>() {
            return Err(Error::invalid(format!(
                "the spec's size is {}: set it to sizeof(kv_blocks_spec_t)",
                given.size
            )));
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
    handle: *mut kv_blocks_t,
    query: *const kv_blocks_query_t,
    blocks: *const *const c_void,
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
            let blocks: Vec<&[u8]> =
                blocks.iter().map(|block| std::slice::from_raw_parts(block.cast::<u8>(), bytes)).collect();
            Ok(cache.put(prefix, query, &blocks).map_err(Error::from)? as i64)
        })
    }
}

unsafe extern "C" fn get(
    handle: *mut kv_blocks_t,
    query: *const kv_blocks_query_t,
    blocks: *const *mut c_void,
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
                blocks.iter().map(|block| std::slice::from_raw_parts_mut(block.cast::<u8>(), bytes)).collect();
            Ok(cache.get(prefix, query, &mut rooms).map_err(Error::from)? as i64)
        })
    }
}

unsafe extern "C" fn acquire(
    handle: *mut kv_blocks_t,
    query: *const kv_blocks_query_t,
    blocks: *mut *const c_void,
    count: usize,
    acquired: *mut *mut kv_blocks_acquired_t,
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
                *blocks.add(index) = block.as_ptr().cast();
            }
            let tokens = found.len() * cache.block_tokens();
            if !found.is_empty() {
                *out = Box::into_raw(Box::new(found)).cast();
            }
            Ok(tokens as i64)
        })
    }
}

unsafe extern "C" fn give_back(acquired: *mut kv_blocks_acquired_t) {
    if acquired.is_null() {
        return;
    }
    let dropped = guarded("give_back", || {
        // SAFETY: the caller passes what `acquire` gave, for the last time.
        drop(unsafe { Box::from_raw(acquired.cast::<Acquired>()) });
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
    handle: *mut kv_blocks_t,
    query: *const kv_blocks_query_t,
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

unsafe extern "C" fn exists(handle: *mut kv_blocks_t, query: *const kv_blocks_query_t) -> i64 {
    // SAFETY: as in `put`.
    unsafe { counted("exists", handle, query, Cache::exists) }
}

unsafe extern "C" fn remove(handle: *mut kv_blocks_t, query: *const kv_blocks_query_t) -> i64 {
    // SAFETY: as in `put`.
    unsafe { counted("remove", handle, query, Cache::delete) }
}

unsafe extern "C" fn prefetch(handle: *mut kv_blocks_t, query: *const kv_blocks_query_t) -> i64 {
    // SAFETY: as in `put`.
    unsafe { counted("prefetch", handle, query, Cache::prefetch) }
}

unsafe extern "C" fn flush(handle: *mut kv_blocks_t) -> i32 {
    // SAFETY: as in `put`.
    unsafe { call("flush", handle, |cache| cache.flush().map(|()| 0).map_err(Error::from)) as i32 }
}

unsafe extern "C" fn info(handle: *mut kv_blocks_t, out: *mut kv_blocks_info_t) -> i32 {
    // SAFETY: as in `put`; `out` is NULL or writable.
    let told = unsafe {
        call("info", handle, |cache| {
            let out = out.as_mut().ok_or_else(|| Error::invalid("the info is NULL"))?;
            if (out.size as usize) < size_of::<kv_blocks_info_t>() {
                return Err(Error::invalid(format!(
                    "the info's size is {}: set it to sizeof(kv_blocks_info_t)",
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

unsafe extern "C" fn metrics(handle: *mut kv_blocks_t, buffer: *mut c_char, len: usize) -> usize {
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

unsafe extern "C" fn close(handle: *mut kv_blocks_t) {
    // SAFETY: the caller passes NULL or a live handle, for the last time.
    let Some(process) = unsafe { handle.cast::<BlocksHandle>().as_ref() }.map(|handle| handle.process) else { return };
    if process != std::process::id() {
        // A thread of the parent may hold a lock for ever: nothing is freed.
        return;
    }
    // SAFETY: as above.
    unsafe { call("close", handle, |cache| cache.close().map(|()| 0).map_err(Error::from)) };
    let dropped = guarded("close", || {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw(handle.cast::<BlocksHandle>()) });
        Ok(())
    });
    if let Err(error) = dropped {
        failed("close", &error);
    }
}
