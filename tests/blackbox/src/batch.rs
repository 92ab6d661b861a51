//! `kv_store_batch.h`, an item a call.

use kv_store_abi::batch::{
    KV_STORE_BATCH_GET_VTABLE_SYMBOL, Many, kv_store_batch_get_vtable_fn, kv_store_batch_vtable_t, kv_store_call_t,
    kv_store_item_t, kv_store_piece_t,
};

use crate::{Handle, Library};

/// The functions of a library. None: it has none.
pub fn batches(library: &Library) -> Option<&'static kv_store_batch_vtable_t> {
    // SAFETY: as include/kv_store_batch.h declares it; the vtable is static.
    unsafe {
        let get: kv_store_batch_get_vtable_fn =
            library.function(KV_STORE_BATCH_GET_VTABLE_SYMBOL.to_str().ok()?).ok()?;
        get?().as_ref()
    }
}

/// A batch of one item: its status, and what was fetched.
pub fn one(store: &Handle<'_>, call: Many, key: &[u8], flags: u32, value: &mut [u8]) -> (i32, Vec<u8>) {
    let piece = kv_store_piece_t { data: value.as_mut_ptr().cast(), len: value.len() };
    let mut item = kv_store_item_t {
        hash: key.as_ptr(),
        hash_len: key.len(),
        pieces: if value.is_empty() { std::ptr::null() } else { &piece },
        n_pieces: usize::from(!value.is_empty()),
        len: 0,
        data: std::ptr::null_mut(),
        status: 0,
        reserved: 0,
    };
    let size = size_of::<kv_store_call_t>() as u32;
    let options = kv_store_call_t { size, flags, timeout_ms: 0, save: std::ptr::null_mut() };
    // SAFETY: an open store, one item whose pointers lead to what it says, and options of that size, all valid during the call.
    let answer = unsafe { call(store.raw, &mut item, 1, &options) };
    let mut fetched = Vec::new();
    if !item.data.is_null() {
        // SAFETY: the library allocated `len` bytes by malloc, and they are ours to free.
        unsafe {
            fetched.extend_from_slice(std::slice::from_raw_parts(item.data.cast::<u8>(), item.len as usize));
            libc::free(item.data);
        }
    }
    (if answer == 0 { item.status } else { answer }, fetched)
}
