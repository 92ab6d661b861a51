//! Lines on standard error. Each is one write, so that those of several threads do not mix, takes no lock that a fork could
//! leave locked, and waits for nobody: what a pipe has no room for is dropped and counted. (On kernels before Linux 6.4, on
//! other systems, and on terminals, another writer can take the room between the look and the write, which then waits.)

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rustix::fs::{self, FileType};
use rustix::io::Errno;

use crate::signals::without_signal;

/// The lines of one library.
pub struct Lines {
    /// Begins the line that says how many were dropped.
    name: &'static str,
    dropped: AtomicU32,
}

impl Lines {
    pub const fn new(name: &'static str) -> Self {
        Lines { name, dropped: AtomicU32::new(0) }
    }

    /// Write a line, unless that would wait for who reads it. How many were dropped before it is said with it; so that a pipe
    /// takes both as one, it has at most half of the 4096 bytes of POSIX's `PIPE_BUF`.
    pub fn write(&self, line: &str) {
        let dropped = self.dropped.swap(0, Relaxed);
        let text = match dropped {
            0 => format!("{line}\n"),
            _ => format!("{}: {dropped} lines were dropped: standard error was full\n{line}\n", self.name),
        };
        let write = || without_signal(libc::SIGPIPE, || write_now(text.as_bytes()));
        // Nothing can be done about a standard error that is closed or at the end of what it may hold.
        if without_signal(libc::SIGXFSZ, write) == Err(Errno::AGAIN) {
            self.dropped.fetch_add(dropped.saturating_add(1), Relaxed);
        }
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
        if let Some(written) = crate::way::stderr::write_at_once(stderr.as_fd(), bytes) {
            return written;
        }
    }
    rustix::io::write(stderr, bytes).map(drop)
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
                let lines = Lines::new("test");
                (0..1000).for_each(|n| lines.write(&format!("line {n} {}", "x".repeat(1000))));
                let mut said = vec![0; 1 << 20];
                let len = reader.read(&mut said).unwrap();
                let written = said[..len].iter().filter(|byte| **byte == b'\n').count();
                lines.write("after");
                let len = reader.read(&mut said).unwrap();
                let dropped = 1000 - written;
                let told = format!("test: {dropped} lines were dropped: standard error was full\nafter\n");
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
}
