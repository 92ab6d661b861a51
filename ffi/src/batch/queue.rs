//! Queues for C.

use super::super::{Handle, guarded, report, status};
use super::items::{Call, Items};
use super::last_error::remember;
use super::{Operation, run};
use kv_store_abi::batch::{kv_store_call_t, kv_store_completion_t, kv_store_item_t, kv_store_queue_t};
use kv_store_abi::store::kv_store_v1;
use kv_store_wasm::raw::Until;
use kv_store_wasm::raw::{Opened, Queue, QueueTask, SubmittedPut};
use kv_store_wasm::{Error, ErrorKind};

/// A batch in memory of the caller, who keeps it until the completion is drained. A `kv_store_queue_t` of C points to a queue of them.
struct Request {
    operation: Operation,
    items: Items,
    call: Call,
    /// Has the commit of its save wait; given up when the put is done.
    put: Option<SubmittedPut>,
}

impl QueueTask for Request {
    fn run(&mut self, store: &Opened, until: &Until) -> Result<(), Error> {
        // SAFETY: the caller of `submit` keeps the memory until the completion is drained, which is after this.
        let done = unsafe { self.items.run(store, self.operation, &self.call, until) };
        self.put = None;
        done
    }

    fn give_up(&mut self, why: &Error) {
        // SAFETY: as in `run`.
        unsafe { self.items.set_all(status(why)) };
        self.put = None;
    }
}

pub(super) unsafe extern "C" fn open(handle: *mut kv_store_v1, depth: usize) -> *mut kv_store_queue_t {
    let opened = run("queue_open", || {
        // SAFETY: the caller passes NULL or a live handle.
        let handle = unsafe { Handle::of(handle) }.ok_or_else(|| Error::invalid("the handle is NULL"))?;
        Queue::<Request>::open(&handle.store, depth)
    });
    opened.map_or(std::ptr::null_mut(), |queue| Box::into_raw(Box::new(queue)).cast())
}

/// Run something with a queue; the error's number where that fails.
///
/// # Safety
/// `queue` is NULL or live.
unsafe fn with(
    operation: &str,
    queue: *mut kv_store_queue_t,
    work: impl FnOnce(&Queue<Request>) -> Result<i64, Error>,
) -> i64 {
    let outcome = guarded(operation, || {
        // SAFETY: by this function's own condition.
        let queue = unsafe { queue.cast::<Queue<Request>>().as_ref() };
        work(queue.ok_or_else(|| Error::invalid("the queue is NULL"))?)
    });
    outcome.unwrap_or_else(|error| {
        // That a queue is full is an answer.
        if error.kind() == ErrorKind::Exhausted {
            remember(&error);
        } else {
            report(operation, None, &error);
        }
        status(&error).into()
    })
}

pub(super) unsafe extern "C" fn fd(queue: *mut kv_store_queue_t) -> i32 {
    // SAFETY: the caller passes NULL or a live queue.
    unsafe { with("queue_fd", queue, |queue| queue.event().map(i64::from)) as i32 }
}

pub(super) unsafe extern "C" fn submit(
    queue: *mut kv_store_queue_t,
    cookie: u64,
    operation: u32,
    items: *mut kv_store_item_t,
    count: usize,
    call: *const kv_store_call_t,
) -> i32 {
    // SAFETY: the caller passes NULL or a live queue, and items as the header has it.
    unsafe {
        with("queue_submit", queue, |queue| {
            let operation = Operation::of(operation)?;
            let (items, call) = (Items::new(items, count)?, Call::read(call, operation)?);
            let put = call.save.as_ref().map(kv_store_wasm::Save::submit);
            let timeout = call.options.timeout;
            let submitted = queue.submit(cookie, Request { operation, items, call, put }, timeout);
            submitted.map(|()| 0).map_err(|(_, error)| error)
        }) as i32
    }
}

pub(super) unsafe extern "C" fn drain(
    queue: *mut kv_store_queue_t,
    completions: *mut kv_store_completion_t,
    most: usize,
) -> i64 {
    // SAFETY: the caller passes NULL or a live queue, and room for `most` completions.
    unsafe {
        with("queue_drain", queue, |queue| {
            if completions.is_null() && most > 0 {
                return Err(Error::invalid(format!("the completions are NULL, their number {most}")));
            }
            let drained = queue.drain(most)?;
            for (index, done) in drained.iter().enumerate() {
                let status = done.outcome.as_ref().map_or_else(status, |()| 0);
                completions.add(index).write(kv_store_completion_t { cookie: done.cookie, status, reserved: 0 });
            }
            Ok(drained.len() as i64)
        })
    }
}

pub(super) unsafe extern "C" fn cancel(queue: *mut kv_store_queue_t, cookie: u64) -> i64 {
    // SAFETY: the caller passes NULL or a live queue.
    unsafe { with("queue_cancel", queue, |queue| queue.cancel(cookie).map(|count| count as i64)) }
}

pub(super) unsafe extern "C" fn close(queue: *mut kv_store_queue_t) {
    if queue.is_null() {
        return;
    }
    let _ = run("queue_close", || {
        // SAFETY: the caller passes a queue of `queue_open`, for the last time.
        drop(unsafe { Box::from_raw(queue.cast::<Queue<Request>>()) });
        Ok(())
    });
}
