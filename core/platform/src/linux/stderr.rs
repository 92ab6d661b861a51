//! `RWF_NOWAIT`.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, ReadWriteFlags};

/// Write, or answer `AGAIN` where that would have to wait. None: it cannot be asked not to.
pub fn write_at_once(to: BorrowedFd, bytes: &[u8]) -> Option<Result<(), Errno>> {
    match rustix::io::pwritev2(to, &[IoSlice::new(bytes)], u64::MAX, ReadWriteFlags::NOWAIT) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::SPIPE) => None,
        written => Some(written.map(drop)),
    }
}
