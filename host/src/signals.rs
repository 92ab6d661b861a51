//! The consumer's threads keep their alternate signal stacks while they run guest code. Masks are the core crate's `signals`.

use std::cell::Cell;
use std::mem::MaybeUninit;

pub(crate) use kv_store_core::signals::{block_signals, files_are_bounded, with_signals_blocked, without_signal};

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
