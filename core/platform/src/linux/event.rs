//! An eventfd.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

pub struct Event(OwnedFd);

impl Event {
    pub fn new() -> io::Result<Self> {
        Ok(Event(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// A full counter, the only way to fail, is readable too.
    #[inline]
    pub fn set(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    #[inline]
    pub fn clear(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }

    pub fn waited_for(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
