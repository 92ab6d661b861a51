//! `sigpending`, and `sigwait` for what that found.

use std::mem::MaybeUninit;

pub fn take_pending(set: &libc::sigset_t) {
    let mut pending = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the sets are ours, and `pending` is filled where sigpending answers 0. The signal is blocked in this thread, so that it can
    // be waited for; one that was raised by this thread's own write is pending for this thread alone, so that none else takes it.
    unsafe {
        if libc::sigpending(pending.as_mut_ptr()) != 0 {
            return;
        }
        let pending = pending.assume_init();
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            if libc::sigismember(set, signal) == 1 && libc::sigismember(&pending, signal) == 1 {
                let mut taken = 0;
                libc::sigwait(set, &mut taken);
            }
        }
    }
}
