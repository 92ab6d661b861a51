//! Saves and restores of paged KV caches, for C. `include/kv_store_kvx.h` is the documentation.

use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of};
use std::time::Duration;

use kvx::ffi::views;
use kvx::ffi::{KVX_DTYPE_INVALID, kvx_cache_desc_t, kvx_scale_desc_t};
use kvx::{KvCache, KvCacheMut, KvScales};

use super::arguments::{model, name};
use super::{Handle, guarded, last_error, report, status};
use kv_store_abi::sequences::*;
use kv_store_abi::store::kv_store_v1;
use kv_store_wasm::Store;
use kv_store_wasm::limits;
use kv_store_wasm::paged::{self, Convert, Restore, RestoreError, Save};
use kv_store_wasm::raw::log;
use kv_store_wasm::{Error, ErrorKind};

/// The first version of `kv_store_kvx_save_t`, without flags and timeout.
const FIRST_SAVE_SIZE: usize = offset_of!(kv_store_kvx_save_t, flags);
/// The first version of `kv_store_kvx_restore_t`, without the timeout.
const FIRST_RESTORE_SIZE: usize = offset_of!(kv_store_kvx_restore_t, timeout_ms);

static VTABLE: kv_store_kvx_vtable_t = kv_store_kvx_vtable_t {
    size: size_of::<kv_store_kvx_vtable_t>() as u32,
    version: KV_STORE_KVX_VTABLE_VERSION,
    save,
    restore,
    describe,
    last_error: last_error::text,
};

/// The vtable of sequences. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_kvx_get_vtable() -> *const kv_store_kvx_vtable_t {
    &VTABLE
}

/// # Safety
/// As `include/kv_store_kvx.h` says.
pub(super) unsafe extern "C" fn save(
    handle: *mut kv_store_v1,
    save: *const kv_store_kvx_save_t,
    result: *mut kv_store_kvx_result_t,
) -> i32 {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        run("kv_store_kvx_save", handle, result, |store| {
            let save: kv_store_kvx_save_t = read(save, FIRST_SAVE_SIZE, "the save")?;
            check_flags(save.flags, KV_STORE_KVX_VERIFY)?;
            let layers = caches(save.layers, save.num_layers)?;
            let views: Vec<_> = layers.iter().map(KvCacheMut::shared).collect();
            let stored = views::dtype(save.stored_dtype).map_err(refused)?;
            let needed = |layer: usize| stored.is_some() && views.get(layer).map(KvCache::dtype) != stored;
            let blocks = views::indices(save.blocks, save.num_blocks, save.block_dtype).map_err(refused)?;
            let scales = scales(save.k_scales, save.v_scales, save.num_layers, needed)?;
            let mut wanted = Save::new(name(save.name)?, &views, blocks, save.num_tokens);
            wanted.model = model(save.model)?;
            wanted.chunk_tokens = save.chunk_tokens;
            wanted.stored = stored;
            wanted.scales = &scales;
            wanted.threads = save.threads as usize;
            wanted.verify = save.flags & KV_STORE_KVX_VERIFY != 0;
            wanted.timeout = timeout(save.timeout_ms);
            let saved = wanted.run(store)?;
            let tokens = wanted.tokens;
            Ok(Outcome { tokens, saved: tokens, chunks: saved.chunks, existed: saved.existed, bytes: saved.bytes })
        })
    }
}

/// # Safety
/// As `include/kv_store_kvx.h` says.
pub(super) unsafe extern "C" fn restore(
    handle: *mut kv_store_v1,
    restore: *const kv_store_kvx_restore_t,
    result: *mut kv_store_kvx_result_t,
) -> i32 {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        run("kv_store_kvx_restore", handle, result, |store| {
            let desc: kv_store_kvx_restore_t = read(restore, FIRST_RESTORE_SIZE, "the restore")?;
            check_flags(desc.flags, KV_STORE_KVX_CONVERT_LAYOUT | KV_STORE_KVX_CONVERT_DTYPE)?;
            if desc.reserved != 0 {
                return Err(Error::invalid("reserved is not 0").into());
            }
            let mut layers = caches(desc.layers, desc.num_layers)?;
            // Whether an FP8 cache is quantised is known only when the manifest is.
            let needed = |layer: usize| layers.get(layer).is_some_and(|cache| cache.shared().dtype().is_fp8());
            let scales = scales(desc.k_scales, desc.v_scales, desc.num_layers, needed)?;
            let mut restore = Restore::new(name(desc.name)?, views::slots(&desc.slots).map_err(refused)?);
            restore.model = model(desc.model)?;
            restore.convert = Convert::new(
                desc.flags & KV_STORE_KVX_CONVERT_LAYOUT != 0,
                desc.flags & KV_STORE_KVX_CONVERT_DTYPE != 0,
            );
            restore.scales = &scales;
            restore.max_bytes = desc.max_bytes;
            restore.threads = desc.threads as usize;
            restore.timeout = timeout(desc.timeout_ms);
            let done = restore.run(store, &mut layers)?;
            Ok(Outcome { tokens: done.tokens, saved: done.saved, chunks: done.chunks, existed: 0, bytes: done.bytes })
        })
    }
}

/// # Safety
/// As `include/kv_store_kvx.h` says.
pub(super) unsafe extern "C" fn describe(
    handle: *mut kv_store_v1,
    of: *const c_char,
    info: *mut kv_store_kvx_info_t,
) -> i32 {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        run("kv_store_kvx_describe", handle, std::ptr::null_mut(), |store| {
            check_size::<kv_store_kvx_info_t>(info.cast(), None, "the info")?;
            let found = paged::describe(store, name(of)?)?;
            let found = found.ok_or_else(|| Error::new(ErrorKind::Missing, "nothing was saved under the name"))?;
            (&raw mut (*info).tokens).write_unaligned(found.tokens);
            (&raw mut (*info).chunk_tokens).write_unaligned(found.chunk_tokens);
            (&raw mut (*info).num_layers).write_unaligned(found.layers.len() as u32);
            (&raw mut (*info).block_size).write_unaligned(found.block_size);
            let dtype = found.layers.first().map_or(KVX_DTYPE_INVALID, |layer| views::dtype_code(layer.stored));
            (&raw mut (*info).dtype).write_unaligned(dtype);
            (&raw mut (*info).bytes).write_unaligned(found.bytes);
            Ok(Outcome::default())
        })
    }
}

/// The numbers of a result.
#[derive(Default)]
struct Outcome {
    tokens: u32,
    saved: u32,
    chunks: u32,
    existed: u32,
    bytes: u64,
}

/// Run a call on a handle, and report what it came to.
///
/// # Safety
/// `handle` is NULL or came from `open` and was not closed; `result` is NULL or valid for writes of what its size says.
unsafe fn run(
    operation: &str,
    handle: *mut kv_store_v1,
    result: *mut kv_store_kvx_result_t,
    call: impl FnOnce(&Store) -> Result<Outcome, RestoreError>,
) -> i32 {
    // SAFETY: by this function's own condition.
    let handle = unsafe { Handle::of(handle) };
    let (mut writable, mut tokens) = (None, 0);
    let outcome = guarded(operation, || {
        if !result.is_null() {
            // SAFETY: by this function's own condition.
            unsafe { check_size::<kv_store_kvx_result_t>(result.cast(), None, "the result")? };
            writable = Some(result);
        }
        let handle = handle.ok_or_else(|| Error::invalid("the handle is NULL"))?;
        call(&handle.store).map_err(|failed| {
            tokens = failed.tokens;
            failed.error
        })
    });
    let (status, outcome, message) = match outcome {
        Ok(outcome) => (0, outcome, String::new()),
        Err(error) => {
            match error.kind() {
                ErrorKind::Missing => last_error::remember(&error),
                _ => report(operation, handle, &error),
            }
            (status(&error), Outcome { tokens, ..Outcome::default() }, log::clean(&error.to_string()))
        }
    };
    if let Some(result) = writable {
        let mut text = [0; 256];
        let cut = message.floor_char_boundary(text.len() - 1);
        for (to, from) in text.iter_mut().zip(message.bytes().take(cut)) {
            *to = from as c_char;
        }
        // SAFETY: not NULL and as large as the struct; alignment is not relied on.
        unsafe {
            (&raw mut (*result).tokens).write_unaligned(outcome.tokens);
            (&raw mut (*result).saved_tokens).write_unaligned(outcome.saved);
            (&raw mut (*result).chunks).write_unaligned(outcome.chunks);
            (&raw mut (*result).existed).write_unaligned(outcome.existed);
            (&raw mut (*result).reserved).write_unaligned(0);
            (&raw mut (*result).bytes).write_unaligned(outcome.bytes);
            (&raw mut (*result).message).write_unaligned(text);
        }
    }
    status
}

fn check_flags(flags: u32, known: u32) -> Result<(), Error> {
    if flags & !known != 0 {
        let unknown = flags & !known;
        return Err(Error::invalid(format!("flags are {flags:#x}; this call does not have {unknown:#x}")));
    }
    Ok(())
}

/// 0 is none.
fn timeout(milliseconds: u32) -> Option<Duration> {
    (milliseconds > 0).then(|| Duration::from_millis(milliseconds.into()))
}

/// The size that a struct says it has: at least that of `T`, or that of a former version of it.
///
/// # Safety
/// `desc` is NULL or valid for reads of 4 bytes.
unsafe fn check_size<T>(desc: *const u32, former: Option<usize>, what: &str) -> Result<usize, Error> {
    if desc.is_null() {
        return Err(Error::invalid(format!("{what} is NULL")));
    }
    // SAFETY: by this function's own condition.
    let size = unsafe { desc.read_unaligned() } as usize;
    if size < size_of::<T>() && Some(size) != former {
        let least = size_of::<T>();
        return Err(Error::invalid(format!(
            "the size of {what} is {size}: set it to the sizeof of the struct, {least}"
        )));
    }
    Ok(size)
}

/// Copy a descriptor, so that nothing that is checked can change afterwards. What its version does not have is 0.
///
/// # Safety
/// `desc` is NULL or valid for reads of what its size says, and every value of its bits is a `T`.
unsafe fn read<T: Copy>(desc: *const T, former: usize, what: &str) -> Result<T, Error> {
    let mut copy = MaybeUninit::<T>::zeroed();
    // SAFETY: by this function's own condition; no more is copied than either has, and zeros are a `T`.
    unsafe {
        let size = check_size::<T>(desc.cast(), Some(former), what)?;
        desc.cast::<u8>().copy_to_nonoverlapping(copy.as_mut_ptr().cast(), size.min(size_of::<T>()));
        Ok(copy.assume_init())
    }
}

/// The addresses of an array's elements, which are as far apart as the first one's size says.
///
/// # Safety
/// `first` is NULL or the first of `count` elements that are valid for reads of what their sizes say.
unsafe fn elements<T>(first: *const T, count: u32, what: &str) -> Result<Vec<*const T>, Error> {
    if count as usize > limits::MAX_KV_LAYERS {
        return Err(Error::invalid(format!("{count} layers are given, the limit is {}", limits::MAX_KV_LAYERS)));
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: by this function's own condition; an element is read only after those before it were found to be as large.
    unsafe {
        let step = check_size::<T>(first.cast(), None, what)?;
        (0..count as usize)
            .map(|index| {
                let element = first.byte_add(index * step);
                if check_size::<T>(element.cast(), None, what)? != step {
                    return Err(Error::invalid(format!("{what}: the elements differ in size, all must have the same")));
                }
                Ok(element)
            })
            .collect()
    }
}

/// # Safety
/// As [`elements`], and the pools are valid for as long as the result is used.
unsafe fn caches<'a>(layers: *const kvx_cache_desc_t, count: u32) -> Result<Vec<KvCacheMut<'a>>, Error> {
    // SAFETY: by this function's own condition.
    unsafe {
        let layers = elements(layers, count, "layers")?.into_iter().enumerate();
        let cache =
            |(index, layer)| views::cache(layer).map_err(|error| refused(error).context(format_args!("layer {index}")));
        layers.map(cache).collect()
    }
}

/// The scales of the layers that need some. Those of others are not looked at, and where no layer needs any the arrays are not.
///
/// # Safety
/// As [`elements`], and the scales are valid for as long as the result is used.
unsafe fn scales<'a>(
    k: *const kvx_scale_desc_t,
    v: *const kvx_scale_desc_t,
    count: u32,
    needed: impl Fn(usize) -> bool,
) -> Result<Vec<Option<KvScales<'a>>>, Error> {
    if (k.is_null() && v.is_null()) || !(0..count as usize).any(&needed) {
        return Ok(Vec::new());
    }
    // SAFETY: by this function's own condition.
    unsafe {
        let [k, v] = [elements(k, count, "k_scales")?, elements(v, count, "v_scales")?];
        let one = |layer: usize, side: &str, desc: *const kvx_scale_desc_t| {
            let scale = views::scale(&desc.read_unaligned());
            scale.map_err(|error| refused(error).context(format_args!("layer {layer}: the scale of {side}")))
        };
        let both = |(layer, (k, v))| {
            if !needed(layer) {
                return Ok(None);
            }
            match (one(layer, "K", k)?, one(layer, "V", v)?) {
                (Some(k), Some(v)) => Ok(Some(KvScales { k, v })),
                (None, None) => Ok(None),
                (k, _) => {
                    let [has, lacks] = if k.is_some() { ["K", "V"] } else { ["V", "K"] };
                    Err(Error::invalid(format!(
                        "layer {layer}: {has} has a scale, but the scale of {lacks} has no data"
                    )))
                }
            }
        };
        k.into_iter().zip(v).enumerate().map(both).collect()
    }
}

fn refused(error: kvx::Error) -> Error {
    let kind = match error.kind() {
        kvx::ErrorKind::Unsupported => ErrorKind::Unsupported,
        _ => ErrorKind::Invalid,
    };
    Error::new(kind, error.to_string())
}
