//! Queues for C.

use super::super::{guarded, kv_store_v1, report};
use super::items::{Call, Items, kv_store_call, kv_store_item};
use super::last_error::remember;
use super::{Operation, run};
use kv_store_wasm::raw::Until;
use kv_store_wasm::raw::{Job, Opened, Queue, SubmittedPut};
use kv_store_wasm::{Error, ErrorKind};

#[allow(non_camel_case_types)]
pub struct kv_store_queue {
    queue: Queue<Request>,
}

#[allow(non_camel_case_types)]
#[repr(C)]
pub struct kv_store_completion {
    cookie: u64,
    status: i32,
    reserved: u32,
}

/// A batch in memory of the caller, who keeps it until the completion is drained.
struct Request {
    operation: Operation,
    items: Items,
    call: Call,
    /// Has the commit of its save wait; given up when the put is done.
    put: Option<SubmittedPut>,
}

impl Job for Request {
    fn run(&mut self, store: &Opened, until: &Until) -> Result<(), Error> {
        // SAFETY: the caller of `submit` keeps the memory until the completion is drained, which is after this.
        let done = unsafe { self.items.run(store, self.operation, &self.call, until) };
        self.put = None;
        done
    }

    fn give_up(&mut self, why: &Error) {
        // SAFETY: as in `run`.
        unsafe { self.items.set_all(-(why.kind() as i32)) };
        self.put = None;
    }
}

pub(super) unsafe extern "C" fn open(handle: *mut kv_store_v1, depth: usize) -> *mut kv_store_queue {
    let opened = run("queue_open", || {
        // SAFETY: the caller passes NULL or a live handle.
        let handle = unsafe { handle.as_ref() }.ok_or_else(|| Error::invalid("the handle is NULL"))?;
        Queue::open(&handle.store, depth)
    });
    opened.map_or(std::ptr::null_mut(), |queue| Box::into_raw(Box::new(kv_store_queue { queue })))
}

/// Run something with a queue; the error's number where that fails.
///
/// # Safety
/// `queue` is NULL or live.
unsafe fn with(
    operation: &str,
    queue: *mut kv_store_queue,
    work: impl FnOnce(&Queue<Request>) -> Result<i64, Error>,
) -> i64 {
    let outcome = guarded(operation, || {
        // SAFETY: by this function's own condition.
        let queue = unsafe { queue.as_ref() }.ok_or_else(|| Error::invalid("the queue is NULL"))?;
        work(&queue.queue)
    });
    outcome.unwrap_or_else(|error| {
        // That a queue is full is an answer.
        if error.kind() == ErrorKind::Exhausted {
            remember(&error);
        } else {
            report(operation, None, &error);
        }
        -(error.kind() as i64)
    })
}

pub(super) unsafe extern "C" fn fd(queue: *mut kv_store_queue) -> i32 {
    // SAFETY: the caller passes NULL or a live queue.
    unsafe { with("queue_fd", queue, |queue| queue.event().map(i64::from)) as i32 }
}

pub(super) unsafe extern "C" fn submit(
    queue: *mut kv_store_queue,
    cookie: u64,
    operation: u32,
    items: *mut kv_store_item,
    count: usize,
    call: *const kv_store_call,
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
    queue: *mut kv_store_queue,
    completions: *mut kv_store_completion,
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
                let status = done.outcome.as_ref().map_or_else(|error| -(error.kind() as i32), |()| 0);
                completions.add(index).write(kv_store_completion { cookie: done.cookie, status, reserved: 0 });
            }
            Ok(drained.len() as i64)
        })
    }
}

pub(super) unsafe extern "C" fn cancel(queue: *mut kv_store_queue, cookie: u64) -> i64 {
    // SAFETY: the caller passes NULL or a live queue.
    unsafe { with("queue_cancel", queue, |queue| queue.cancel(cookie).map(|count| count as i64)) }
}

pub(super) unsafe extern "C" fn close(queue: *mut kv_store_queue) {
    if queue.is_null() {
        return;
    }
    let _ = run("queue_close", || {
        // SAFETY: the caller passes a queue of `queue_open`, for the last time.
        drop(unsafe { Box::from_raw(queue) });
        Ok(())
    });
}
