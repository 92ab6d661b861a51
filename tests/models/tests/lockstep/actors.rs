//! What runs by itself and waits for others, one at a time: a call of a component, and a thread of its server.

use std::cell::{Cell, RefCell};
use std::ptr;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};

/// Where an actor stops, until it is told to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Nothing has come on its connection.
    Reads,
    /// It is about to connect.
    Connects,
    /// It is about to take a lock of something that has this type.
    Locks(&'static str),
    /// It is about to make a system call.
    Calls,
    /// It waits until others have changed something.
    Waits,
}

thread_local! {
    static RUNNING: Cell<*const Yielder<(), Stop>> = const { Cell::new(ptr::null()) };
    /// Those of actors that are gone: to map a new one for each is most of what a walk takes.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// Some, but while it is dropped.
pub struct Actor(Option<Coroutine<(), Stop, ()>>);

impl Actor {
    pub fn new(job: impl FnOnce() + 'static) -> Self {
        let stack = STACKS.with_borrow_mut(Vec::pop).unwrap_or_default();
        Actor(Some(Coroutine::with_stack(stack, move |yielder, ()| {
            RUNNING.set(yielder);
            job();
        })))
    }

    /// Have it go on until it stops. None: it has ended.
    pub fn resume(&mut self) -> Option<Stop> {
        let stopped = self.0.as_mut()?.resume(());
        RUNNING.set(ptr::null());
        match stopped {
            CoroutineResult::Yield(why) => Some(why),
            CoroutineResult::Return(()) => None,
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let Some(mut job) = self.0.take() else { return };
        job.force_unwind();
        STACKS.with_borrow_mut(|stacks| stacks.push(job.into_stack()));
    }
}

/// Stop the running actor here. Who is none goes on, as what is dropped with its actor does.
pub fn stop(why: Stop) {
    let own = RUNNING.get();
    if own.is_null() || std::thread::panicking() {
        assert!(own.is_null() || why != Stop::Waits, "nobody ends what is waited for");
        return;
    }
    // SAFETY: `resume` sets it to null before anybody else runs, so it is the yielder of the actor that is running.
    unsafe { &*own }.suspend(why);
    RUNNING.set(own);
}

/// Whether an actor is running.
pub fn is_one() -> bool {
    !RUNNING.get().is_null()
}
