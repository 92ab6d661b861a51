//! There is no way to ask a descriptor of others not to wait once.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

pub fn write_at_once(to: BorrowedFd, _: &[u8]) -> Option<Result<(), Errno>> {
    let mut ready = libc::pollfd { fd: to.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, ours alone.
    unsafe { libc::poll(&mut ready, 1, 0) };
    // Nobody reads it any more: where the signal for that is sent to the process, it is better not raised.
    (ready.revents & (libc::POLLERR | libc::POLLHUP) != 0).then_some(Err(Errno::PIPE))
}
