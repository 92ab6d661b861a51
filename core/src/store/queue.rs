//! Requests that are carried out while the caller goes on, and told by a descriptor when they are done.
//!
//! Invariants: `submit` and `drain` never wait for I/O. The requests of a queue are bounded by its depth, which counts them
//! until they are drained; the threads of all queues are bounded together. A request is complete, however it ended, only
//! when no thread uses what it refers to. The descriptor is readable while completions wait to be drained.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_platform::event::Event;
use kv_platform::sync::Mutex;

use super::{Opened, Store};
use crate::error::{Error, ErrorKind};
use crate::limits::{self, Limits};
use crate::process::{Clock, Condition};
use crate::threads::Lent;
use crate::until::Until;

/// What a queue is of: an opened store, or a test's fake.
pub trait QueueOwner: Send + Sync + 'static {
    /// Refuse what was opened in another process than this one.
    fn check_process(&self) -> Result<(), Error>;

    /// The threads that carry out requests, and the time by which they are late.
    fn threads(&self) -> (Lent<'_>, &Clock);

    /// The bounds of its calls.
    fn limits(&self) -> &Limits;
}

impl QueueOwner for Opened {
    fn check_process(&self) -> Result<(), Error> {
        self.shared.check_process()
    }

    fn threads(&self) -> (Lent<'_>, &Clock) {
        let process = &self.shared.process;
        (process.threads.queues.lent(&self.shared.reach.whose), &process.clock)
    }

    fn limits(&self) -> &Limits {
        &self.shared.reach.limits
    }
}

/// What a queue carries out.
pub trait QueueTask<S = Opened>: Send + 'static {
    /// Carry it out. Until it returns, what the job refers to is in use.
    fn run(&mut self, store: &S, until: &Until) -> Result<(), Error>;

    /// It will not be carried out.
    fn give_up(&mut self, why: &Error);
}

/// A request that is done.
pub struct Completion<J> {
    pub cookie: u64,
    pub job: J,
    /// Why it was not carried out; its parts may have failures of their own.
    pub outcome: Result<(), Error>,
}

/// A queue of one store, which it keeps open.
pub struct Queue<J: QueueTask<S>, S: QueueOwner = Opened>(std::mem::ManuallyDrop<Arc<SharedQueue<J, S>>>);

struct SharedQueue<J, S> {
    opened: Arc<S>,
    depth: usize,
    event: Event,
    state: Mutex<QueueState<J>>,
    idle: Condition,
}

struct QueueState<J> {
    waiting: VecDeque<QueuedJob<J>>,
    /// By a number of its own: its cookie, and what cancels it.
    running: HashMap<u64, (u64, Arc<AtomicBool>)>,
    completed: VecDeque<Completion<J>>,
    next: u64,
    /// Turns on a thread that have been asked for and have not ended.
    turns: usize,
    closed: bool,
}

struct QueuedJob<J> {
    cookie: u64,
    job: J,
    /// When it is late. `None`: it has the time of any call, from when it begins.
    deadline: Option<Instant>,
}

impl<J> QueueState<J> {
    fn undrained(&self) -> usize {
        self.waiting.len() + self.running.len() + self.completed.len()
    }
}

impl<J: QueueTask> Queue<J> {
    /// A queue for at most `depth` requests, 1 to [`limits::MAX_QUEUE_DEPTH`].
    pub fn open(store: &Store, depth: usize) -> Result<Self, Error> {
        store.usable()?;
        Queue::of(Arc::clone(&store.opened), depth)
    }
}

impl<S: QueueOwner, J: QueueTask<S>> Queue<J, S> {
    fn of(opened: Arc<S>, depth: usize) -> Result<Self, Error> {
        if depth == 0 || depth > limits::MAX_QUEUE_DEPTH {
            let most = limits::MAX_QUEUE_DEPTH;
            return Err(Error::invalid(format!("a queue has a depth of 1 to {most}, not {depth}")));
        }
        let state = QueueState {
            waiting: VecDeque::new(),
            running: HashMap::new(),
            completed: VecDeque::new(),
            next: 0,
            turns: 0,
            closed: false,
        };
        let event = Event::new()
            .map_err(|cause| Error::new(ErrorKind::Exhausted, format!("cannot make an event to wait for: {cause}")))?;
        let idle = Condition::new(opened.threads().1);
        let inner = SharedQueue { opened, depth, event, state: Mutex::new(state), idle };
        Ok(Queue(std::mem::ManuallyDrop::new(Arc::new(inner))))
    }

    /// The descriptor.
    pub fn event(&self) -> Result<RawFd, Error> {
        Ok(self.usable()?.event.as_fd().as_raw_fd())
    }

    /// Have a job done. Gives it back if it is not accepted: `Exhausted` where the queue is full.
    pub fn submit(&self, cookie: u64, job: J, timeout: Option<Duration>) -> Result<(), (J, Error)> {
        let inner = match self.usable() {
            Ok(inner) => inner,
            Err(error) => return Err((job, error)),
        };
        let mut state = inner.state.lock();
        if state.undrained() >= inner.depth {
            let message =
                format!("the queue is full: {} requests are not drained; drain completions first", inner.depth);
            return Err((job, Error::new(ErrorKind::Exhausted, message)));
        }
        let deadline = timeout.and_then(|timeout| inner.opened.threads().1.now().checked_add(timeout));
        state.waiting.push_back(QueuedJob { cookie, job, deadline });
        if state.turns < limits::MAX_QUEUE_THREADS {
            state.turns += 1;
            drop(state);
            inner.take_turn();
        }
        Ok(())
    }

    /// Take completions, `most` at most.
    pub fn drain(&self, most: usize) -> Result<Vec<Completion<J>>, Error> {
        let inner = self.usable()?;
        let mut state = inner.state.lock();
        inner.event.clear();
        let count = most.min(state.completed.len());
        let drained = state.completed.drain(..count).collect();
        if !state.completed.is_empty() {
            inner.event.set();
        }
        Ok(drained)
    }

    /// Cancel the requests of a cookie: those that wait complete at once, one that runs is stopped between its batches.
    /// Returns how many there were.
    pub fn cancel(&self, cookie: u64) -> Result<usize, Error> {
        Ok(self.usable()?.cancel(|of| of == cookie))
    }

    fn usable(&self) -> Result<&Arc<SharedQueue<J, S>>, Error> {
        self.0.opened.check_process()?;
        Ok(&self.0)
    }
}

impl<S: QueueOwner, J: QueueTask<S>> SharedQueue<J, S> {
    /// Ask for a turn on a thread, which carries out one request.
    fn take_turn(self: &Arc<Self>) {
        let inner = self.clone();
        if !self.opened.threads().0.spawn_job(move || inner.serve()) {
            // No thread can be made, or all queues together have too many turns waiting.
            let mut state = self.state.lock();
            self.end_turn(&mut state);
            if state.turns == 0 {
                let waiting = std::mem::take(&mut state.waiting);
                let why =
                    Error::new(ErrorKind::Exhausted, "no thread is free to carry out the request: try again later");
                waiting.into_iter().for_each(|request| self.complete(&mut state, request, Err(why.clone())));
            }
        }
    }

    fn serve(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let Some(mut request) = state.waiting.pop_front() else {
            self.end_turn(&mut state);
            return;
        };
        let cancelled = Arc::new(AtomicBool::new(state.closed));
        state.next += 1;
        let number = state.next;
        state.running.insert(number, (request.cookie, cancelled.clone()));
        drop(state);
        let until = Until::with(self.opened.threads().1, self.opened.limits(), request.deadline, Some(cancelled));
        let run = || request.job.run(&self.opened, &until);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Other, "a defect of kv-store-wasm in a queue, please report it: a panic"))
        });
        let mut state = self.state.lock();
        state.running.remove(&number);
        self.complete(&mut state, request, outcome);
        if state.waiting.is_empty() {
            self.end_turn(&mut state);
        } else {
            drop(state);
            // Behind those of other queues.
            self.take_turn();
        }
    }

    fn end_turn(&self, state: &mut QueueState<J>) {
        state.turns -= 1;
        if state.turns == 0 {
            self.idle.notify_all();
        }
    }

    fn complete(&self, state: &mut QueueState<J>, mut request: QueuedJob<J>, outcome: Result<(), Error>) {
        if let Err(why) = &outcome {
            request.job.give_up(why);
        }
        state.completed.push_back(Completion { cookie: request.cookie, job: request.job, outcome });
        self.event.set();
    }

    fn cancel(&self, of: impl Fn(u64) -> bool) -> usize {
        let mut state = self.state.lock();
        let (cancelled, kept) =
            std::mem::take(&mut state.waiting).into_iter().partition::<VecDeque<_>, _>(|r| of(r.cookie));
        state.waiting = kept;
        let running: Vec<_> = state.running.values().filter(|(cookie, _)| of(*cookie)).collect();
        running.iter().for_each(|(_, cancelled)| cancelled.store(true, Relaxed));
        let count = cancelled.len() + running.len();
        let why = Error::new(ErrorKind::Cancelled, "the request was cancelled");
        cancelled.into_iter().for_each(|request| self.complete(&mut state, request, Err(why.clone())));
        count
    }
}

/// Cancels what is left and waits until nothing runs. In a child that was forked off nothing is freed: a thread of the
/// parent may hold the lock for ever.
impl<S: QueueOwner, J: QueueTask<S>> Drop for Queue<J, S> {
    fn drop(&mut self) {
        if self.usable().is_err() {
            return;
        }
        self.0.state.lock().closed = true;
        self.0.cancel(|_| true);
        let mut state = self.0.state.lock();
        while state.turns > 0 {
            state = self.0.idle.wait(&self.0.state, state);
        }
        drop(state);
        // SAFETY: once, and nobody uses it after.
        unsafe { std::mem::ManuallyDrop::drop(&mut self.0) }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
