//! Sending without a signal.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;

use crate::way;

/// How many pieces one call sends at most.
pub const MAX_SLICES: usize = 1024;

/// Send what of these pieces the socket takes at once. A peer that is gone is an error, and never SIGPIPE.
///
/// Linux: `MSG_NOSIGNAL`. Portable: the signal is taken before anybody hears of it.
#[inline]
pub fn send(socket: impl AsFd, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    way::sockets::send(socket.as_fd(), slices.get(..MAX_SLICES).unwrap_or(slices))
}
