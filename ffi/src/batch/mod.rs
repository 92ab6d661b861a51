//! The C interface of batches, saves and queues. `include/kv_store_batch.h` is its documentation.

mod items;
mod queue;
mod save;

use std::ffi::c_char;

use items::{Call, Items};
use queue::kv_store_queue;
use save::kv_store_save;

use super::{call, guarded, kv_store_v1, last_error, report};
use kv_store_wasm::Error;
use kv_store_wasm::Store;

/// What a store is, in the layout of the header.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct kv_store_info {
    size: u32,
    durable: u8,
    shared: u8,
    deletes: u8,
    write_through: u8,
    max_value_bytes: u64,
    batch_items: u64,
    batch_bytes: u64,
}

type Batch =
    unsafe extern "C" fn(*mut kv_store_v1, *mut items::kv_store_item, usize, *const items::kv_store_call) -> i32;

/// The vtable, in the order and layout of the header.
#[allow(non_camel_case_types)]
#[repr(C)]
pub struct kv_store_batch_vtable {
    size: u32,
    version: u32,
    put_many: Batch,
    get_many: Batch,
    exists_many: Batch,
    delete_many: Batch,
    save_begin: unsafe extern "C" fn(*mut kv_store_v1) -> *mut kv_store_save,
    save_commit: unsafe extern "C" fn(
        *mut kv_store_save,
        *const c_char,
        *const u8,
        usize,
        *mut *mut save::kv_store_hash,
        *mut usize,
    ) -> i32,
    save_end: unsafe extern "C" fn(*mut kv_store_save),
    queue_open: unsafe extern "C" fn(*mut kv_store_v1, usize) -> *mut kv_store_queue,
    queue_fd: unsafe extern "C" fn(*mut kv_store_queue) -> i32,
    queue_submit: unsafe extern "C" fn(
        *mut kv_store_queue,
        u64,
        u32,
        *mut items::kv_store_item,
        usize,
        *const items::kv_store_call,
    ) -> i32,
    queue_drain: unsafe extern "C" fn(*mut kv_store_queue, *mut queue::kv_store_completion, usize) -> i64,
    queue_cancel: unsafe extern "C" fn(*mut kv_store_queue, u64) -> i64,
    queue_close: unsafe extern "C" fn(*mut kv_store_queue),
    info: unsafe extern "C" fn(*mut kv_store_v1, *mut kv_store_info) -> i32,
    last_error: unsafe extern "C" fn() -> *const c_char,
}

static VTABLE: kv_store_batch_vtable = kv_store_batch_vtable {
    size: size_of::<kv_store_batch_vtable>() as u32,
    version: 1,
    put_many,
    get_many,
    exists_many,
    delete_many,
    save_begin: save::begin,
    save_commit: save::commit,
    save_end: save::end,
    queue_open: queue::open,
    queue_fd: queue::fd,
    queue_submit: queue::submit,
    queue_drain: queue::drain,
    queue_cancel: queue::cancel,
    queue_close: queue::close,
    info,
    last_error: last_error_text,
};

/// The vtable of batches. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_get_batch_vtable() -> *const kv_store_batch_vtable {
    &VTABLE
}

/// What a batch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Put,
    Get,
    Exists,
    Delete,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Operation::Put => "put_many",
            Operation::Get => "get_many",
            Operation::Exists => "exists_many",
            Operation::Delete => "delete_many",
        }
    }

    fn of(number: u32) -> Result<Self, Error> {
        [Operation::Put, Operation::Get, Operation::Exists, Operation::Delete]
            .into_iter()
            .zip(1..)
            .find_map(|(operation, of)| (of == number).then_some(operation))
            .ok_or_else(|| Error::invalid(format!("there is no operation {number}; KV_STORE_PUT is 1")))
    }
}

/// # Safety
/// As the header asks of the caller.
unsafe fn many(
    operation: Operation,
    handle: *mut kv_store_v1,
    items: *mut items::kv_store_item,
    count: usize,
    options: *const items::kv_store_call,
) -> i32 {
    let run = |store: &Store| {
        // SAFETY: by this function's own condition.
        let (items, call) = unsafe { (Items::new(items, count)?, Call::read(options, operation)?) };
        let opened = store.opened()?;
        let until = opened.until(call.options.timeout);
        // SAFETY: as above; the items are the caller's until this returns.
        unsafe { items.run(opened, operation, &call, &until) }.map(|()| 0)
    };
    // SAFETY: the handle is NULL or live.
    unsafe { call(operation.name(), handle, run) }
}

unsafe extern "C" fn put_many(
    handle: *mut kv_store_v1,
    items: *mut items::kv_store_item,
    count: usize,
    call: *const items::kv_store_call,
) -> i32 {
    // SAFETY: the caller keeps the header's conditions.
    unsafe { many(Operation::Put, handle, items, count, call) }
}

unsafe extern "C" fn get_many(
    handle: *mut kv_store_v1,
    items: *mut items::kv_store_item,
    count: usize,
    call: *const items::kv_store_call,
) -> i32 {
    // SAFETY: as in `put_many`.
    unsafe { many(Operation::Get, handle, items, count, call) }
}

unsafe extern "C" fn exists_many(
    handle: *mut kv_store_v1,
    items: *mut items::kv_store_item,
    count: usize,
    call: *const items::kv_store_call,
) -> i32 {
    // SAFETY: as in `put_many`.
    unsafe { many(Operation::Exists, handle, items, count, call) }
}

unsafe extern "C" fn delete_many(
    handle: *mut kv_store_v1,
    items: *mut items::kv_store_item,
    count: usize,
    call: *const items::kv_store_call,
) -> i32 {
    // SAFETY: as in `put_many`.
    unsafe { many(Operation::Delete, handle, items, count, call) }
}

unsafe extern "C" fn info(handle: *mut kv_store_v1, out: *mut kv_store_info) -> i32 {
    let run = |store: &Store| {
        // SAFETY: the caller passes NULL or a writable struct whose size is set.
        let out = unsafe { out.as_mut() }.ok_or_else(|| Error::invalid("the info is NULL"))?;
        if (out.size as usize) < size_of::<kv_store_info>() {
            let (size, needed) = (out.size, size_of::<kv_store_info>());
            return Err(Error::invalid(format!("kv_store_info.size is {size}, not {needed}")));
        }
        let info = store.opened()?.batch_info();
        *out = kv_store_info {
            size: out.size,
            durable: info.durable.into(),
            shared: info.shared.into(),
            deletes: info.deletes.into(),
            write_through: info.write_through.into(),
            max_value_bytes: info.max_value_bytes,
            batch_items: info.batch_items,
            batch_bytes: info.batch_bytes,
        };
        Ok(0)
    };
    // SAFETY: as in `put_many`.
    unsafe { call("info", handle, run) }
}

unsafe extern "C" fn last_error_text() -> *const c_char {
    last_error::text()
}

/// Run a function that has no handle of `kv_store_v1`.
fn run<T>(operation: &str, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    guarded(operation, run).inspect_err(|error| report(operation, None, error))
}
