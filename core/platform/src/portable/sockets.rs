//! SIGPIPE is blocked and taken.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd};

pub fn send(socket: BorrowedFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    crate::signals::without_signal(libc::SIGPIPE, || send_with(socket, slices, 0))
}

#[inline]
pub fn send_with(socket: BorrowedFd, slices: &[IoSlice<'_>], flags: libc::c_int) -> io::Result<usize> {
    // SAFETY: zeroes are a message without anything; an `IoSlice` is laid out as an iovec, and the kernel only reads them.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = slices.as_ptr().cast_mut().cast();
        message.msg_iovlen = slices.len() as _;
        libc::sendmsg(socket.as_raw_fd(), &message, flags)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}
