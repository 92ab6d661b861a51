//! Threads that the consumer does not notice: they take none of its signals, and nothing waits for them to end.

use std::io;
use std::mem::MaybeUninit;

/// Start a thread with all signals blocked. (A thread inherits the mask of the one that starts it.)
pub(crate) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut all = MaybeUninit::uninit();
    let mut former = MaybeUninit::uninit();
    // SAFETY: sigfillset fills `all`, and pthread_sigmask fills `former` where it answers 0, before either is read.
    let masked = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), former.as_mut_ptr()) == 0
    };
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    if masked {
        // SAFETY: `former` was filled above.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, former.as_ptr(), std::ptr::null_mut()) };
    }
    started.map(drop)
}
