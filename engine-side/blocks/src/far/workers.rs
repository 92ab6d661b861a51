//! A far level over calls that block: a few threads carry them out.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use kv_platform::signals;
use kv_platform::sync::{Condvar, Mutex};

use super::{DamagedItem, Far, Features, GetItem, Outcome, PutItem, Request, Work};
use crate::error::{Error, ErrorKind, Result};
use crate::limits;

/// A storage system whose calls return when they are done. Calls come from several threads at once. `timeout` is how long
/// somebody waits for the answer; a call should not take much longer. An outcome for each item is expected.
pub trait Blocking: Send + Sync + 'static {
    /// What it can do.
    fn features(&self) -> Features {
        Features::default()
    }

    /// Store values, in place of what is there under their keys.
    fn put_many(&self, items: &[PutItem], timeout: Duration) -> Vec<Outcome>;

    /// Fetch values into the slots of the items.
    fn get_many(&self, items: &mut [GetItem], timeout: Duration) -> Vec<Outcome>;

    /// Which keys exist.
    fn exists_many(&self, keys: &[Vec<u8>], timeout: Duration) -> Vec<Outcome>;

    /// Remove keys.
    fn delete_many(&self, keys: &[Vec<u8>], timeout: Duration) -> Vec<Outcome>;

    /// Look at values that came damaged, see [`Work::Damaged`]. This leaves them as they are.
    fn look_at_damaged(&self, items: &[DamagedItem], _timeout: Duration) -> Vec<Outcome> {
        vec![Outcome::Missing; items.len()]
    }
}

/// Threads over a [`Blocking`]. They block all signals, and end when this is dropped and their calls have returned; nobody
/// waits for them.
pub struct Workers<B: Blocking> {
    shared: Arc<Shared<B>>,
}

struct Shared<B> {
    backend: B,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    closed: bool,
}

impl<B: Blocking> Workers<B> {
    /// Start so many threads, at least one.
    pub fn start(backend: B, threads: usize) -> Result<Self> {
        let shared = Arc::new(Shared { backend, state: Mutex::default(), work: Condvar::new() });
        let workers = Workers { shared };
        for number in 0..threads.clamp(1, limits::MAX_WORKERS) {
            let shared = workers.shared.clone();
            let thread = std::thread::Builder::new().name("kv-blocks".to_owned());
            let started = signals::with_signals_blocked(|| thread.spawn(move || serve(&shared)));
            // With one thread the rest is slower, not impossible.
            if let (0, Err(cause)) = (number, started) {
                return Err(Error::new(ErrorKind::OutOfMemory, format!("cannot start a thread: {cause}")));
            }
        }
        Ok(workers)
    }
}

impl<B: Blocking> Far for Workers<B> {
    fn features(&self) -> Features {
        self.shared.backend.features()
    }

    fn submit(&self, request: Request) {
        let mut state = self.shared.state.lock();
        if state.closed || state.waiting.len() >= limits::MAX_WAITING {
            drop(state);
            request.fail(ErrorKind::Denied);
            return;
        }
        state.waiting.push_back(request);
        drop(state);
        self.shared.work.notify_one();
    }
}

impl<B: Blocking> Drop for Workers<B> {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        self.shared.work.notify_all();
        // What was not begun is not.
        drop(waiting);
    }
}

fn serve<B: Blocking>(shared: &Shared<B>) {
    loop {
        let mut state = shared.state.lock();
        let request = loop {
            if let Some(request) = state.waiting.pop_front() {
                break request;
            }
            if state.closed {
                return;
            }
            state = shared.work.wait(state);
        };
        drop(state);
        // A panic ends one request, not the thread.
        let _ = catch_unwind(AssertUnwindSafe(|| carry_out(&shared.backend, request)));
    }
}

fn carry_out<B: Blocking>(backend: &B, mut request: Request) {
    let timeout = request.time_left();
    // Nobody waits any more. A put is worth it all the same: its time began when it was handed over.
    if timeout.is_zero() && !matches!(request.work(), Some(Work::Put(_))) {
        request.fail(ErrorKind::Timeout);
        return;
    }
    let Some(work) = request.work() else { return };
    let outcomes = match work {
        Work::Put(items) => backend.put_many(items, timeout),
        Work::Get(items) => backend.get_many(items, timeout),
        Work::Exists(keys) => backend.exists_many(keys, timeout),
        Work::Delete(keys) => backend.delete_many(keys, timeout),
        Work::Damaged(items) => backend.look_at_damaged(items, timeout),
    };
    request.complete(outcomes);
}
