//! A descriptor that one thread makes readable and another waits for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::way;

/// It is readable from [`Event::set`] on until [`Event::clear`], however often it was set. Non-blocking, and closed on exec.
///
/// Linux: an eventfd. Portable: a pipe, two descriptors. Who reads eight bytes of it gets eight.
pub struct Event(way::event::Event);

impl Event {
    pub fn new() -> io::Result<Self> {
        way::event::Event::new().map(Event)
    }

    /// It becomes readable.
    #[inline]
    pub fn set(&self) {
        self.0.set();
    }

    /// It is not readable any more, whoever read it before.
    #[inline]
    pub fn clear(&self) {
        self.0.clear();
    }
}

impl AsFd for Event {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.waited_for()
    }
}
