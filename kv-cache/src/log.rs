//! One line on standard error for each thing that an operator should know, in one write that waits for nobody: what a pipe
//! has no room for is dropped and counted.

use std::fmt::Display;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::fs::{self, FileType};
use rustix::io::{Errno, ReadWriteFlags};

/// The longest line, in bytes: with the one on what was dropped it is less than what a pipe takes as one.
const MAX_LINE_BYTES: usize = 2048;

/// Write a line: `kv-cache: text`.
pub(crate) fn warn(text: impl Display) {
    static DROPPED: AtomicU32 = AtomicU32::new(0);
    let tame = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = format!("kv-cache: {text}").chars().map(tame).collect();
    line.truncate(line.floor_char_boundary(MAX_LINE_BYTES));
    line.push('\n');
    let dropped = DROPPED.swap(0, Relaxed);
    if dropped > 0 {
        line = format!("kv-cache: {dropped} lines were dropped: standard error was full\n{line}");
    }
    // Nothing can be done about a standard error that is closed.
    if without_sigpipe(|| write_now(line.as_bytes())) == Err(Errno::AGAIN) {
        DROPPED.fetch_add(dropped.saturating_add(1), Relaxed);
    }
}

/// Write, or answer `AGAIN` where that would have to wait. The descriptor is shared with others, so its mode stays as it is.
fn write_now(bytes: &[u8]) -> Result<(), Errno> {
    let stderr = rustix::stdio::stderr();
    let is_file = fs::fstat(stderr).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
    // A file has no reader to wait for.
    if !is_file {
        let mut ready = libc::pollfd { fd: stderr.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
        // SAFETY: one entry, ours alone.
        if unsafe { libc::poll(&mut ready, 1, 0) } == 0 {
            return Err(Errno::AGAIN);
        }
        // Another writer may have taken the room meanwhile; pipes of Linux 6.4 and later, and sockets, can be asked not to wait.
        match rustix::io::pwritev2(stderr, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => {}
            written => return written.map(drop),
        }
    }
    rustix::io::write(stderr, bytes).map(drop)
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
    fn nobody_waits_for_who_reads_it() {
        use std::io::Read;
        let (mut reader, writer) = std::io::pipe().unwrap();
        // In a child, because standard error is the process's. One that waits is killed.
        // SAFETY: the child uses what glibc leaves usable in it, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: numbers only.
            unsafe {
                libc::alarm(60);
                libc::dup2(writer.as_raw_fd(), 2);
            }
            let told = std::panic::catch_unwind(move || {
                (0..1000).for_each(|n| warn(format_args!("line {n} {}", "x".repeat(1000))));
                let mut said = vec![0; 1 << 20];
                let len = reader.read(&mut said).unwrap();
                let written = said[..len].iter().filter(|byte| **byte == b'\n').count();
                warn("after");
                let len = reader.read(&mut said).unwrap();
                let dropped = 1000 - written;
                let told =
                    format!("kv-cache: {dropped} lines were dropped: standard error was full\nkv-cache: after\n");
                dropped > 900 && said[..len] == *told.as_bytes()
            });
            // SAFETY: ends the child at once, without what the test program does at its end.
            unsafe { libc::_exit(if told.unwrap_or(false) { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: `status` is ours.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
    }

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
