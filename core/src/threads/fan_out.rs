//! Work that several threads take pieces of.
//!
//! Invariant: no thread is in the work once [`FanOut::finish`] has returned, and none comes in after, so that the work may borrow from
//! its caller. loom runs this in every order of threads: `RUSTFLAGS="--cfg loom" cargo test -p kv-store-core --lib fan_out`.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

#[cfg(not(loom))]
use kv_platform::sync::{Mutex, MutexGuard};
#[cfg(loom)]
use loom::sync::{
    MutexGuard,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use crate::process::Clock;
#[cfg(not(loom))]
use crate::process::Condition;
#[cfg(loom)]
use tests::{Condition, Mutex};

pub(super) struct FanOut {
    work: &'static (dyn Fn(usize) + Sync),
    count: usize,
    next: AtomicUsize,
    state: Mutex<FanOutState>,
    left: Condition,
}

#[derive(Default)]
struct FanOutState {
    closed: bool,
    helping: usize,
    panic: Option<Box<dyn Any + Send>>,
}

impl FanOut {
    /// `work(0)` to `work(count - 1)` are to be done. `clock`: by which it is waited for those who help.
    pub(super) fn new(work: &'static (dyn Fn(usize) + Sync), count: usize, clock: &Clock) -> Self {
        let (next, state) = (AtomicUsize::new(0), Mutex::new(FanOutState::default()));
        FanOut { work, count, next, state, left: Condition::new(clock) }
    }

    /// Do pieces until none is left.
    pub(super) fn run(&self) {
        loop {
            let index = self.next.fetch_add(1, Relaxed);
            if index >= self.count {
                return;
            }
            (self.work)(index);
        }
    }

    /// The same from another thread than the one that finishes it, unless that has.
    pub(super) fn help(&self) {
        {
            let mut state = self.lock();
            if state.closed {
                return;
            }
            state.helping += 1;
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run()));
        let mut state = self.lock();
        state.helping -= 1;
        state.panic = state.panic.take().or(outcome.err());
        drop(state);
        self.left.notify_one();
    }

    /// Let nobody else in and wait for those who help; the panic of one of them.
    pub(super) fn finish(&self) -> Option<Box<dyn Any + Send>> {
        let mut state = self.lock();
        state.closed = true;
        while state.helping > 0 {
            state = self.left.wait(&self.state, state);
        }
        state.panic.take()
    }

    fn lock(&self) -> MutexGuard<'_, FanOutState> {
        self.state.lock()
    }
}

#[cfg(all(test, loom))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use loom::cell::UnsafeCell;

    /// As [`kv_platform::sync::Mutex`], over loom's threads.
    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }

    /// As [`crate::process::Condition`], over loom's threads.
    pub(super) struct Condition(loom::sync::Condvar);

    impl Condition {
        pub(super) fn new(_: &Clock) -> Self {
            Condition(loom::sync::Condvar::new())
        }

        pub(super) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(super) fn wait<'a, T>(&self, _: &'a Mutex<T>, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap()
        }
    }

    /// What each piece writes to, which only one thread may at a time, and its caller reads once all is done.
    struct WrittenPieces([UnsafeCell<u32>; 2]);

    // SAFETY: loom reports two threads that use a cell at once, which is what these tests look for.
    unsafe impl Sync for WrittenPieces {}

    #[test]
    fn each_piece_is_done_once_and_before_it_is_finished() {
        loom::model(|| {
            let written: &'static WrittenPieces =
                Box::leak(Box::new(WrittenPieces([UnsafeCell::new(0), UnsafeCell::new(0)])));
            // SAFETY: a cell's pointer is used within the closure only.
            let work = |index: usize| written.0[index].with_mut(|cell| unsafe { *cell += 1 });
            let shared = Arc::new(FanOut::new(Box::leak(Box::new(work)), 2, &Clock::default()));
            let helpers: Vec<_> = (0..2)
                .map(|_| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || shared.help())
                })
                .collect();
            shared.run();
            assert!(shared.finish().is_none());
            // SAFETY: as above. No helper may be in the work any more, though some may not have begun.
            let done: Vec<u32> = written.0.iter().map(|cell| cell.with(|cell| unsafe { *cell })).collect();
            assert_eq!(done, [1, 1]);
            helpers.into_iter().for_each(|helper| helper.join().unwrap());
        });
    }
}
