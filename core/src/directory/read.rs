//! Reading files. A file is opened non-blocking and must be regular: a planted FIFO must not hang a call.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{self, FileType, OFlags};
use rustix::io::Errno;

use super::{Directory, RelativePath, not_regular};
use crate::error::Error;
use crate::payload::Destination;

/// Pieces of memory that one read fills.
const PIECES: usize = 64;

impl Directory {
    /// Bytes of a file, from `offset`: `len`, or all to the end. False: there is no such file.
    ///
    /// `room` answers memory for so many bytes, or refuses them, before anything is read. If the file becomes shorter meanwhile,
    /// it stays partly empty.
    pub fn read<'a>(
        &self,
        path: &RelativePath,
        offset: u64,
        len: Option<u64>,
        room: impl FnOnce(u64) -> Result<&'a mut Destination, Error>,
    ) -> Result<bool, Error> {
        let file = match self.open_file(path, OFlags::RDONLY | OFlags::NONBLOCK) {
            Err(Errno::NOENT) => return Ok(false),
            opened => opened?,
        };
        let stat = fs::fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(not_regular());
        }
        self.note_use(&stat, |times| fs::futimens(&file, times));
        let behind = (stat.st_size as u64).checked_sub(offset);
        let len = match (behind, len) {
            (Some(behind), None) => behind,
            (Some(behind), Some(len)) if len <= behind => len,
            _ => return Err(Error::invalid(format!("the file ends at {}, before the range asked for", stat.st_size))),
        };
        let destination = room(len)?;
        let mut at = offset;
        loop {
            let count = match read_some(&file, destination, at) {
                Err(Errno::INTR) => continue,
                read => read?,
            };
            // All is read, or the file became shorter.
            if count == 0 {
                return Ok(true);
            }
            // SAFETY: so many bytes of the rest were initialised.
            unsafe { destination.advance(count) };
            at += count as u64;
        }
    }
}

/// Read as much as fits and as the kernel gives at once. 0: nothing is to be read, or the file ends.
fn read_some(file: &OwnedFd, destination: &mut Destination, at: u64) -> Result<usize, Errno> {
    let at = libc::off_t::try_from(at).map_err(|_| Errno::INVAL)?;
    let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
    let count = destination.rest_in_pieces(&mut pieces);
    let read = match pieces.get(..count).unwrap_or_default() {
        [] => return Ok(0),
        // The kernel has less to do for one than for a list.
        // SAFETY: the piece is memory that is borrowed mutably and may hold anything.
        [piece] => unsafe { libc::pread(file.as_raw_fd(), piece.iov_base, piece.iov_len, at) },
        // SAFETY: so is each of these.
        several => unsafe { libc::preadv(file.as_raw_fd(), several.as_ptr(), several.len() as libc::c_int, at) },
    };
    usize::try_from(read).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
