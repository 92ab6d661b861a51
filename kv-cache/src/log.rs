//! One line on standard error for each thing that an operator should know, in one write.

use std::fmt::Display;
use std::mem::MaybeUninit;

/// Write a line: `kv-cache: text`.
pub(crate) fn warn(text: impl Display) {
    let tame = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = format!("kv-cache: {text}").chars().map(tame).collect();
    line.push('\n');
    // Nothing can be done about a standard error that is closed or full.
    let _ = without_sigpipe(|| rustix::io::write(rustix::stdio::stderr(), line.as_bytes()));
}

/// Run a write that may find its reader gone, in a process where SIGPIPE may still be set to kill.
fn without_sigpipe<T>(write: impl FnOnce() -> T) -> T {
    let mut pipe = MaybeUninit::uninit();
    let mut former = MaybeUninit::uninit();
    let mut pending = MaybeUninit::uninit();
    // SAFETY: each set is filled before it is read: the first by sigemptyset, the others by the call that answers 0.
    unsafe {
        libc::sigemptyset(pipe.as_mut_ptr());
        libc::sigaddset(pipe.as_mut_ptr(), libc::SIGPIPE);
        let was_pending =
            libc::sigpending(pending.as_mut_ptr()) == 0 && libc::sigismember(pending.as_ptr(), libc::SIGPIPE) == 1;
        let blocked = libc::pthread_sigmask(libc::SIG_BLOCK, pipe.as_ptr(), former.as_mut_ptr()) == 0;
        let written = write();
        if blocked {
            // One that was there before is the consumer's.
            if !was_pending {
                let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                libc::sigtimedwait(pipe.as_ptr(), std::ptr::null_mut(), &now);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, former.as_ptr(), std::ptr::null_mut());
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_to_nobody_is_an_error_and_no_signal() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        // What a consumer that is no Rust program has.
        // SAFETY: nothing in this process counts on another disposition.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        let written = without_sigpipe(|| rustix::io::write(&writer, b"x"));
        assert_eq!(written, Err(rustix::io::Errno::PIPE));
    }
}
