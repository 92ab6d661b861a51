//! A pipe with words in it, or none. Words of eight bytes, so that who reads it as it would read an eventfd gets as many.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

pub struct Event {
    reader: io::PipeReader,
    writer: io::PipeWriter,
}

impl Event {
    pub fn new() -> io::Result<Self> {
        // Both ends are closed on exec.
        let (reader, writer) = io::pipe()?;
        for end in [reader.as_fd(), writer.as_fd()] {
            fcntl_setfl(end, fcntl_getfl(end)? | OFlags::NONBLOCK)?;
        }
        Ok(Event { reader, writer })
    }

    /// A full pipe, the only way to fail, is readable too.
    pub fn set(&self) {
        let _ = rustix::io::write(&self.writer, &1_u64.to_ne_bytes());
    }

    pub fn clear(&self) {
        // Bounded: who sets it meanwhile is found by the next look.
        const PIPE_BYTES: usize = 64 << 10;
        let mut taken = [0_u8; 1024];
        for _ in 0..PIPE_BYTES / 1024 {
            match rustix::io::read(&self.reader, &mut taken) {
                Ok(count) if count == taken.len() => {}
                Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
    }

    pub fn waited_for(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}
