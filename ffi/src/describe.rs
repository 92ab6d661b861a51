//! What the values of a store are, for C. `include/kv_store_describe.h` is the documentation.

use std::ffi::c_char;

use kv_store_abi::describe::*;
use kv_store_abi::store::kv_store_v1;
use kv_store_wasm::limits::MAX_DESCRIPTOR_FIELD_BYTES;
use kv_store_wasm::{Descriptor, Error, ErrorKind, Field, Store};

use super::arguments::text;
use super::{call, last_error};

static VTABLE: kv_store_describe_vtable_t = kv_store_describe_vtable_t {
    size: size_of::<kv_store_describe_vtable_t>() as u32,
    version: KV_STORE_DESCRIBE_VTABLE_VERSION,
    describe,
    digest,
    last_error: last_error::text,
};

/// The vtable of descriptors. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_describe_get_vtable() -> *const kv_store_describe_vtable_t {
    &VTABLE
}

/// The largest descriptor that a later version may have.
const MOST_BYTES: usize = 4096;

/// # Safety
/// `descriptor` is NULL or points to as many bytes as its `size` says, whose texts are NULL or C strings.
unsafe fn read(descriptor: *const kv_store_descriptor_t) -> Result<Descriptor, Error> {
    if descriptor.is_null() {
        return Err(Error::invalid("the descriptor is NULL"));
    }
    // SAFETY: each struct of this name begins with its size.
    let size = unsafe { (&raw const (*descriptor).size).read() } as usize;
    let own = size_of::<kv_store_descriptor_t>();
    if size < own || size > MOST_BYTES {
        return Err(Error::invalid(format!("kv_store_descriptor_t.size is {size}, not {own}")));
    }
    // SAFETY: by this function's own condition there are so many bytes, which are initialised.
    let later = unsafe { std::slice::from_raw_parts(descriptor.cast::<u8>().add(own), size - own) };
    if later.iter().any(|byte| *byte != 0) {
        let message = "the descriptor says something that only a later version of this library knows: use that one";
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    // SAFETY: it has at least the members of this version.
    let kv_store_descriptor_t {
        size: _,
        reserved: _,
        model,
        architecture,
        layout,
        dtype,
        scales,
        block_tokens,
        layers,
        heads,
        rank,
        ranks,
        rope,
        adapters,
        engine,
        format,
    } = unsafe { descriptor.read() };
    let texts: [(Field, *const c_char); Field::ALL.len()] = [
        (Field::Model, model),
        (Field::Architecture, architecture),
        (Field::Layout, layout),
        (Field::Dtype, dtype),
        (Field::Scales, scales),
        (Field::BlockTokens, block_tokens),
        (Field::Layers, layers),
        (Field::Heads, heads),
        (Field::Rank, rank),
        (Field::Ranks, ranks),
        (Field::Rope, rope),
        (Field::Adapters, adapters),
        (Field::Engine, engine),
        (Field::Format, format),
    ];
    texts.into_iter().filter(|(_, said)| !said.is_null()).try_fold(
        Descriptor::default(),
        |descriptor, (field, said)| {
            // SAFETY: by this function's own condition.
            let said = unsafe { text(said, MAX_DESCRIPTOR_FIELD_BYTES, field.name()) }?;
            descriptor.with(field, said)
        },
    )
}

unsafe extern "C" fn describe(handle: *mut kv_store_v1, descriptor: *const kv_store_descriptor_t) -> i32 {
    let run = |store: &Store| {
        // SAFETY: the caller keeps the header's conditions.
        store.describe(&unsafe { read(descriptor) }?).map(|()| 0)
    };
    // SAFETY: the handle is NULL or live.
    unsafe { call("describe", handle, run) }
}

unsafe extern "C" fn digest(handle: *mut kv_store_v1, out: *mut u8) -> i32 {
    let run = |store: &Store| {
        if out.is_null() {
            return Err(Error::invalid("the output is NULL"));
        }
        let digest =
            store.descriptor()?.digest().map_or([0; KV_STORE_DESCRIPTOR_BYTES as usize], |digest| *digest.bytes());
        // SAFETY: the caller passes room for so many bytes.
        unsafe { std::ptr::copy_nonoverlapping(digest.as_ptr(), out, digest.len()) };
        Ok(0)
    };
    // SAFETY: as in `describe`.
    unsafe { call("digest", handle, run) }
}
