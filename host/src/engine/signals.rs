//! The consumer's signals stay the consumer's: threads that we start take none of them (a thread inherits the mask of the
//! one that starts it), and its threads keep their alternate signal stacks.

use std::cell::Cell;
use std::mem::MaybeUninit;

/// Block all signals in this thread.
pub(super) fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: sigfillset fills `all` before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Run guest code with this thread's alternate signal stack kept. wasmtime puts one of its own in its place when a thread
/// first runs a guest, for signal handlers that we do not have it install; a crash reporter of the consumer's needs its own.
pub(crate) fn keeping_signal_stack<T>(run: impl FnOnce() -> T) -> T {
    struct Restore(libc::stack_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the stack that the thread had a moment ago.
            unsafe { libc::sigaltstack(&self.0, std::ptr::null_mut()) };
        }
    }
    thread_local! {
        static SEEN: Cell<bool> = const { Cell::new(false) };
    }
    if SEEN.replace(true) {
        return run();
    }
    let mut former = MaybeUninit::uninit();
    // SAFETY: with no new stack, sigaltstack only fills `former`, where it answers 0.
    let _restore = unsafe {
        (libc::sigaltstack(std::ptr::null(), former.as_mut_ptr()) == 0).then(|| Restore(former.assume_init()))
    };
    run()
}

/// Run `start` with all signals blocked in this thread, and restore its mask.
pub(crate) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the set was filled by pthread_sigmask.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }
    let mut all = MaybeUninit::uninit();
    let mut former = MaybeUninit::uninit();
    // SAFETY: sigfillset fills `all`, and pthread_sigmask fills `former` where it answers 0, before either is read.
    let _restore = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        (libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), former.as_mut_ptr()) == 0)
            .then(|| Restore(former.assume_init()))
    };
    start()
}
