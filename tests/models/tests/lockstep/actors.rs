//! What runs by itself and waits for others, one at a time: a call of a component, and a thread of its server.

use std::cell::Cell;
use std::ptr;

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
}

pub struct Actor(Coroutine<(), Stop, ()>);

impl Actor {
    pub fn new(job: impl FnOnce() + 'static) -> Self {
        Actor(Coroutine::new(move |yielder, ()| {
            RUNNING.set(yielder);
            job();
        }))
    }

    /// Have it go on until it stops. None: it has ended.
    pub fn resume(&mut self) -> Option<Stop> {
        let stopped = self.0.resume(());
        RUNNING.set(ptr::null());
        match stopped {
            CoroutineResult::Yield(why) => Some(why),
            CoroutineResult::Return(()) => None,
        }
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
