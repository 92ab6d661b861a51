//! Reading files and directories. A file is opened non-blocking and must be regular: a planted FIFO must not hang a call.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{self, FileType, OFlags};
use rustix::io::Errno;

use super::{Directory, RelativePath, not_regular};
use crate::error::Error;
use crate::payload::Destination;

/// Pieces of memory that one read fills.
const PIECES: usize = 64;

/// One entry of a directory.
pub(crate) struct Entry {
    pub name: String,
    pub directory: bool,
    /// Bytes; 0 for a directory.
    pub size: u64,
    /// Nanoseconds since 1970-01-01 UTC.
    pub modified: u64,
}

impl Directory {
    /// Bytes of a file, from `offset`: `len`, or all to the end. False: there is no such file.
    ///
    /// `room` answers memory for so many bytes, or refuses them, before anything is read. If the file becomes shorter meanwhile,
    /// it stays partly empty.
    pub(crate) fn read<'a>(
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

    /// The first `limit` entries after `after`, in byte order of their names. Empty also if there is no such directory.
    /// Memory is bounded by `limit`, however large the directory is.
    pub(crate) fn entries(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Vec<Entry>, Error> {
        let directory = match self.open_directory(path) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut first: BTreeMap<String, Entry> = BTreeMap::new();
        for entry in fs::Dir::read_from(&directory)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            // The host's own, `.` and `..` are no path that a component may use.
            let listed = RelativePath::parse(name.to_owned()).is_ok() && after.is_none_or(|after| name > after);
            if !listed || (first.len() >= limit && first.last_key_value().is_none_or(|(last, _)| name > last.as_str()))
            {
                continue;
            }
            let stat = match fs::statat(&directory, name, fs::AtFlags::SYMLINK_NOFOLLOW) {
                // Removed since it was listed.
                Err(Errno::NOENT) => continue,
                stat => stat?,
            };
            let directory = match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => true,
                FileType::RegularFile => false,
                _ => continue,
            };
            let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
            let entry = Entry {
                name: name.to_owned(),
                directory,
                size: if directory { 0 } else { stat.st_size as u64 },
                modified: seconds.saturating_mul(1_000_000_000).saturating_add(stat.st_mtime_nsec as u64),
            };
            first.insert(entry.name.clone(), entry);
            if first.len() > limit {
                first.pop_last();
            }
        }
        Ok(first.into_values().collect())
    }
}

/// Read as much as fits and as the kernel gives at once. 0: nothing is to be read, or the file ends.
fn read_some(file: &OwnedFd, destination: &mut Destination, at: u64) -> Result<usize, Errno> {
    let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
    let count = destination.rest_in_pieces(&mut pieces);
    if count == 0 {
        return Ok(0);
    }
    let at = libc::off64_t::try_from(at).map_err(|_| Errno::INVAL)?;
    // SAFETY: the first `count` pieces are memory that is borrowed mutably and may hold anything.
    let read = unsafe { libc::preadv64(file.as_raw_fd(), pieces.as_ptr(), count as libc::c_int, at) };
    usize::try_from(read).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
