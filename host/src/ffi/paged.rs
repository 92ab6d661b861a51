//! Saves and restores of paged KV caches, for C. `include/kv_store_kvx.h` is the documentation.

use std::ffi::{c_char, c_void};
use std::mem::offset_of;

use kvx::ffi::views;
use kvx::ffi::{KVX_DTYPE_INVALID, kvx_cache_desc_t, kvx_dtype_t, kvx_scale_desc_t, kvx_slot_mapping_t};
use kvx::{KvCacheMut, KvScales};

use super::arguments::{model, name};
use super::{MISSING, guarded, kv_store_v1, report};
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::log;
use crate::paged::{Convert, Restore, RestoreError, Save, describe};
use crate::store::Store;

#[allow(non_camel_case_types)]
#[repr(C)]
pub struct kv_store_kvx_result_t {
    size: u32,
    tokens: u32,
    saved_tokens: u32,
    chunks: u32,
    existed: u32,
    reserved: u32,
    bytes: u64,
    message: [u8; 256],
}

#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
#[repr(C)]
pub struct kv_store_kvx_save_t {
    size: u32,
    num_layers: u32,
    layers: *const kvx_cache_desc_t,
    name: *const c_char,
    model: *const c_char,
    blocks: *const c_void,
    block_dtype: kvx_dtype_t,
    num_blocks: u32,
    num_tokens: u32,
    chunk_tokens: u32,
    stored_dtype: kvx_dtype_t,
    threads: u32,
    k_scales: *const kvx_scale_desc_t,
    v_scales: *const kvx_scale_desc_t,
}

#[allow(non_camel_case_types)]
#[derive(Clone, Copy)]
#[repr(C)]
pub struct kv_store_kvx_restore_t {
    size: u32,
    num_layers: u32,
    layers: *const kvx_cache_desc_t,
    name: *const c_char,
    model: *const c_char,
    slots: kvx_slot_mapping_t,
    flags: u32,
    threads: u32,
    max_bytes: u64,
    k_scales: *const kvx_scale_desc_t,
    v_scales: *const kvx_scale_desc_t,
}

const CONVERT_LAYOUT: u32 = 1;
const CONVERT_DTYPE: u32 = 2;

#[allow(non_camel_case_types)]
#[repr(C)]
pub struct kv_store_kvx_info_t {
    size: u32,
    tokens: u32,
    chunk_tokens: u32,
    num_layers: u32,
    block_size: u32,
    dtype: kvx_dtype_t,
    bytes: u64,
}

// The layouts of the header.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<kv_store_kvx_result_t>() == 288);
    assert!(offset_of!(kv_store_kvx_result_t, bytes) == 24);
    assert!(offset_of!(kv_store_kvx_result_t, message) == 32);
    assert!(size_of::<kv_store_kvx_save_t>() == 80);
    assert!(offset_of!(kv_store_kvx_save_t, layers) == 8);
    assert!(offset_of!(kv_store_kvx_save_t, blocks) == 32);
    assert!(offset_of!(kv_store_kvx_save_t, num_tokens) == 48);
    assert!(offset_of!(kv_store_kvx_save_t, threads) == 60);
    assert!(offset_of!(kv_store_kvx_save_t, v_scales) == 72);
    assert!(size_of::<kv_store_kvx_restore_t>() == 96);
    assert!(offset_of!(kv_store_kvx_restore_t, slots) == 32);
    assert!(offset_of!(kv_store_kvx_restore_t, flags) == 64);
    assert!(offset_of!(kv_store_kvx_restore_t, max_bytes) == 72);
    assert!(offset_of!(kv_store_kvx_restore_t, v_scales) == 88);
    assert!(size_of::<kv_store_kvx_info_t>() == 32);
    assert!(offset_of!(kv_store_kvx_info_t, bytes) == 24);
};

/// # Safety
/// As `include/kv_store_kvx.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_kvx_save(
    handle: *mut kv_store_v1,
    save: *const kv_store_kvx_save_t,
    result: *mut kv_store_kvx_result_t,
) -> i32 {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        run("kv_store_kvx_save", handle, result, |store| {
            let save: kv_store_kvx_save_t = read(save, "the save")?;
            let layers = caches(save.layers, save.num_layers)?;
            let views: Vec<_> = layers.iter().map(KvCacheMut::shared).collect();
            let save = Save {
                name: name(save.name)?,
                model: model(save.model)?,
                layers: &views,
                blocks: views::indices(save.blocks, save.num_blocks, save.block_dtype).map_err(refused)?,
                tokens: save.num_tokens,
                chunk_tokens: save.chunk_tokens,
                stored: views::dtype(save.stored_dtype).map_err(refused)?,
                scales: &scales(save.k_scales, save.v_scales, save.num_layers)?,
                threads: save.threads as usize,
            };
            let saved = save.run(store)?;
            let tokens = save.tokens;
            Ok(Outcome { tokens, saved: tokens, chunks: saved.chunks, existed: saved.existed, bytes: saved.bytes })
        })
    }
}

/// # Safety
/// As `include/kv_store_kvx.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_kvx_restore(
    handle: *mut kv_store_v1,
    restore: *const kv_store_kvx_restore_t,
    result: *mut kv_store_kvx_result_t,
) -> i32 {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        run("kv_store_kvx_restore", handle, result, |store| {
            let desc: kv_store_kvx_restore_t = read(restore, "the restore")?;
            if desc.flags & !(CONVERT_LAYOUT | CONVERT_DTYPE) != 0 {
                return Err(Error::invalid(format!("flags are {:#x}, some of them unknown", desc.flags)).into());
            }
            let mut layers = caches(desc.layers, desc.num_layers)?;
            let restore = Restore {
                name: name(desc.name)?,
                model: model(desc.model)?,
                slots: views::slots(&desc.slots).map_err(refused)?,
                convert: Convert { layout: desc.flags & CONVERT_LAYOUT != 0, dtype: desc.flags & CONVERT_DTYPE != 0 },
                scales: &scales(desc.k_scales, desc.v_scales, desc.num_layers)?,
                max_bytes: desc.max_bytes,
                threads: desc.threads as usize,
            };
            let done = restore.run(store, &mut layers)?;
            Ok(Outcome { tokens: done.tokens, saved: done.saved, chunks: done.chunks, existed: 0, bytes: done.bytes })
        })
    }
}

/// # Safety
/// As `include/kv_store_kvx.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_store_kvx_describe(
    handle: *mut kv_store_v1,
    of: *const c_char,
    info: *mut kv_store_kvx_info_t,
) -> i32 {
    // SAFETY: the caller's promises, passed on.
    unsafe {
        run("kv_store_kvx_describe", handle, std::ptr::null_mut(), |store| {
            check_size::<kv_store_kvx_info_t>(info.cast(), "the info")?;
            let found = describe(store, name(of)?)?;
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
    // SAFETY: by this function's own condition; handles are only ever shared.
    let handle = unsafe { handle.as_ref() };
    let (mut writable, mut tokens) = (None, 0);
    let outcome = guarded(operation, || {
        if !result.is_null() {
            // SAFETY: by this function's own condition.
            unsafe { check_size::<kv_store_kvx_result_t>(result.cast(), "the result")? };
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
            let missing = error.kind() == ErrorKind::Missing;
            if !missing {
                report(operation, handle, &error);
            }
            let status = if missing { MISSING } else { -(error.kind() as i32) };
            (status, Outcome { tokens, ..Outcome::default() }, log::clean(&error.to_string()))
        }
    };
    if let Some(result) = writable {
        let mut text = [0; 256];
        let cut = message.floor_char_boundary(text.len() - 1);
        for (to, from) in text.iter_mut().zip(message.bytes().take(cut)) {
            *to = from;
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

/// The size that a struct says it has; at least that of `T`.
///
/// # Safety
/// `desc` is NULL or valid for reads of 4 bytes.
unsafe fn check_size<T>(desc: *const u32, what: &str) -> Result<usize, Error> {
    if desc.is_null() {
        return Err(Error::invalid(format!("{what} is NULL")));
    }
    // SAFETY: by this function's own condition.
    let size = unsafe { desc.read_unaligned() } as usize;
    if size < size_of::<T>() {
        return Err(Error::invalid(format!("the size of {what} is {size}, the struct has {}", size_of::<T>())));
    }
    Ok(size)
}

/// Copy a descriptor, so that nothing that is checked can change afterwards.
///
/// # Safety
/// `desc` is NULL or valid for reads of what its size says, and every value of its bits is a `T`.
unsafe fn read<T: Copy>(desc: *const T, what: &str) -> Result<T, Error> {
    // SAFETY: by this function's own condition.
    unsafe {
        check_size::<T>(desc.cast(), what)?;
        Ok(desc.read_unaligned())
    }
}

/// The addresses of an array's elements, which are as far apart as the first one's size says.
///
/// # Safety
/// `first` is NULL or the first of `count` elements that are valid for reads of what their sizes say.
unsafe fn elements<T>(first: *const T, count: u32, what: &str) -> Result<Vec<*const T>, Error> {
    if count as usize > limits::MAX_KV_LAYERS {
        return Err(Error::invalid(format!("{count} layers are more than {}", limits::MAX_KV_LAYERS)));
    }
    if count == 0 {
        return Ok(Vec::new());
    }
    // SAFETY: by this function's own condition; an element is read only after those before it were found to be as large.
    unsafe {
        let step = check_size::<T>(first.cast(), what)?;
        (0..count as usize)
            .map(|index| {
                let element = first.byte_add(index * step);
                if check_size::<T>(element.cast(), what)? != step {
                    return Err(Error::invalid(format!("{what}: the elements differ in size")));
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

/// # Safety
/// As [`elements`], and the scales are valid for as long as the result is used.
unsafe fn scales<'a>(
    k: *const kvx_scale_desc_t,
    v: *const kvx_scale_desc_t,
    count: u32,
) -> Result<Vec<KvScales<'a>>, Error> {
    if k.is_null() && v.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: by this function's own condition.
    unsafe {
        let [k, v] = [elements(k, count, "k_scales")?, elements(v, count, "v_scales")?];
        let one = |desc: *const kvx_scale_desc_t| {
            let scale = views::scale(&desc.read_unaligned()).map_err(refused)?;
            scale.ok_or_else(|| Error::invalid("a scale has no data"))
        };
        k.into_iter().zip(v).map(|(k, v)| Ok(KvScales { k: one(k)?, v: one(v)? })).collect()
    }
}

fn refused(error: kvx::Error) -> Error {
    let kind = match error.kind() {
        kvx::ErrorKind::Unsupported => ErrorKind::Unsupported,
        _ => ErrorKind::Invalid,
    };
    Error::new(kind, error.to_string())
}
