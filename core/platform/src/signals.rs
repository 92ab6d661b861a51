//! The process's signals are left alone: threads that the library starts take none of them (a thread inherits
//! the mask of the one that starts it), and no write of the library's own raises SIGPIPE or SIGXFSZ. No handler is installed.

use std::mem::MaybeUninit;

/// Block all signals in this thread.
pub fn block_signals() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: sigfillset fills `all` before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Run `start`, which starts threads, with all signals blocked in this thread, and restore its mask. The library that this is linked into
/// stays in the process from then on, whoever closes it: its threads outlive a `dlclose`.
pub fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the set was filled by pthread_sigmask.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }
    crate::way::system::stay_loaded(block_signals as fn() as *const libc::c_void);
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

/// Run a write that may find its reader gone (SIGPIPE) or its file too long (SIGXFSZ), in a process where that signal may
/// still be set to kill.
///
/// Linux: the kernel sends it to the thread that writes. macOS sends it to the process, where another thread may be given it:
/// `signals-of-writes` is lacking.
pub fn without_signal<T>(signal: libc::c_int, write: impl FnOnce() -> T) -> T {
    /// Takes the signal that was raised meanwhile, and restores the mask; also where `write` panics.
    struct RestoreAndTake {
        only: libc::sigset_t,
        former: libc::sigset_t,
        was_pending: bool,
    }
    impl Drop for RestoreAndTake {
        fn drop(&mut self) {
            // SAFETY: both sets were filled.
            unsafe {
                // One that was there before is the process's own.
                if !self.was_pending {
                    crate::way::signals::take_pending(&self.only);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &self.former, std::ptr::null_mut());
            }
        }
    }
    let mut only = MaybeUninit::uninit();
    let mut former = MaybeUninit::uninit();
    let mut pending = MaybeUninit::uninit();
    // SAFETY: each set is filled before it is read: the first by sigemptyset, the others by the call that answers 0.
    let _restore = unsafe {
        libc::sigemptyset(only.as_mut_ptr());
        libc::sigaddset(only.as_mut_ptr(), signal);
        let was_pending =
            libc::sigpending(pending.as_mut_ptr()) == 0 && libc::sigismember(pending.as_ptr(), signal) == 1;
        (libc::pthread_sigmask(libc::SIG_BLOCK, only.as_ptr(), former.as_mut_ptr()) == 0).then(|| RestoreAndTake {
            only: only.assume_init(),
            former: former.assume_init(),
            was_pending,
        })
    };
    write()
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};

    use super::*;

    #[test]
    fn a_write_to_nobody_is_an_error_and_no_signal() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        drop(reader);
        // What a process that is no Rust program has.
        // SAFETY: nothing in this process counts on another disposition.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let written = without_signal(libc::SIGPIPE, || writer.write(b"x"));
        assert_eq!(written.unwrap_err().kind(), ErrorKind::BrokenPipe);
    }
}
