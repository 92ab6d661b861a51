//! `MSG_NOSIGNAL`.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

#[inline]
pub fn send(socket: BorrowedFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    crate::portable::sockets::send_with(socket, slices, libc::MSG_NOSIGNAL)
}
