//! The C interface of batches, saves and queues. `include/kv_store_batch.h` is its documentation.

mod items;
mod queue;
mod save;

use items::{Call, Items};

use super::{call, guarded, last_error, report, status};
use kv_store_abi::batch::*;
use kv_store_abi::store::kv_store_v1;
use kv_store_wasm::Error;
use kv_store_wasm::Store;

static VTABLE: kv_store_batch_vtable_t = kv_store_batch_vtable_t {
    size: size_of::<kv_store_batch_vtable_t>() as u32,
    version: KV_STORE_BATCH_VTABLE_VERSION,
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
    last_error: last_error::text,
};

/// The vtable of batches. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kv_store_batch_get_vtable() -> *const kv_store_batch_vtable_t {
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
        match number {
            KV_STORE_PUT => Ok(Operation::Put),
            KV_STORE_GET => Ok(Operation::Get),
            KV_STORE_EXISTS => Ok(Operation::Exists),
            KV_STORE_DELETE => Ok(Operation::Delete),
            _ => Err(Error::invalid(format!("there is no operation {number}; KV_STORE_PUT is {KV_STORE_PUT}"))),
        }
    }
}

/// # Safety
/// As the header asks of the caller.
unsafe fn many(
    operation: Operation,
    handle: *mut kv_store_v1,
    items: *mut kv_store_item_t,
    count: usize,
    options: *const kv_store_call_t,
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
    items: *mut kv_store_item_t,
    count: usize,
    call: *const kv_store_call_t,
) -> i32 {
    // SAFETY: the caller keeps the header's conditions.
    unsafe { many(Operation::Put, handle, items, count, call) }
}

unsafe extern "C" fn get_many(
    handle: *mut kv_store_v1,
    items: *mut kv_store_item_t,
    count: usize,
    call: *const kv_store_call_t,
) -> i32 {
    // SAFETY: as in `put_many`.
    unsafe { many(Operation::Get, handle, items, count, call) }
}

unsafe extern "C" fn exists_many(
    handle: *mut kv_store_v1,
    items: *mut kv_store_item_t,
    count: usize,
    call: *const kv_store_call_t,
) -> i32 {
    // SAFETY: as in `put_many`.
    unsafe { many(Operation::Exists, handle, items, count, call) }
}

unsafe extern "C" fn delete_many(
    handle: *mut kv_store_v1,
    items: *mut kv_store_item_t,
    count: usize,
    call: *const kv_store_call_t,
) -> i32 {
    // SAFETY: as in `put_many`.
    unsafe { many(Operation::Delete, handle, items, count, call) }
}

unsafe extern "C" fn info(handle: *mut kv_store_v1, out: *mut kv_store_info_t) -> i32 {
    let run = |store: &Store| {
        // SAFETY: the caller passes NULL or a writable struct whose size is set.
        let out = unsafe { out.as_mut() }.ok_or_else(|| Error::invalid("the info is NULL"))?;
        if (out.size as usize) < size_of::<kv_store_info_t>() {
            let (size, needed) = (out.size, size_of::<kv_store_info_t>());
            return Err(Error::invalid(format!("kv_store_info_t.size is {size}, not {needed}")));
        }
        let info = store.opened()?.batch_info();
        *out = kv_store_info_t {
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

/// Run a function that has no handle of `kv_store_v1`.
fn run<T>(operation: &str, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    guarded(operation, run).inspect_err(|error| report(operation, None, error))
}
