//! Threads that we start take no signal of the consumer's: a thread inherits the mask of the one that starts it.

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
