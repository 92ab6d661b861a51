//! What is asked of open files and directories.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use crate::way;

/// The bytes of a file, and what is needed to find them, survive a power loss.
///
/// Linux: `fdatasync`. Portable: `fsync`, and on macOS `F_FULLFSYNC`, without which the disk may still hold them in a cache.
#[inline]
pub fn sync_data(file: impl AsFd) -> Result<(), Errno> {
    way::files::sync_data(file.as_fd())
}

/// A file or a directory survives a power loss as it is: for a directory, its names.
#[inline]
pub fn sync(file: impl AsFd) -> Result<(), Errno> {
    way::files::sync(file.as_fd())
}

/// Only a hint: the system begins to write out so many bytes of a file from a place on (0: all), so that a later sync waits for less, and
/// the syncs of several files for all of them at once.
///
/// Linux: `sync_file_range`. Portable: nothing.
#[inline]
pub fn start_writing(file: impl AsFd, from: u64, bytes: u64) {
    way::files::start_writing(file.as_fd(), from, bytes);
}

/// The bytes of a file are with the disk, whose cache is flushed by the next [`sync`] of anything on the same file system.
///
/// Linux: `sync_file_range`; a file system that has none answers `INVAL`, `NOSYS`, `SPIPE` or `OPNOTSUPP`. Portable: [`sync_data`].
#[inline]
pub fn write_out(file: impl AsFd) -> Result<(), Errno> {
    way::files::write_out(file.as_fd())
}

/// How it is known that a read needs no disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// No read does: the files lie in memory.
    All,
    /// [`read_cached`] tells, and an open asks nobody else.
    Some,
    /// It is not known: an open alone may wait for a server.
    Unknown,
}

/// How that is known of the file system that a directory lies on.
///
/// Linux: by its type. Portable: it is not.
pub fn in_memory(directory: impl AsFd) -> Memory {
    way::files::in_memory(directory.as_fd())
}

/// Read from a place of a file what lies in memory, up to the first byte that does not. `AGAIN`: the first one does not. 0: the file ends
/// there. `OPNOTSUPP`: the file system cannot tell.
///
/// Linux: `preadv2` with `RWF_NOWAIT`. Portable: always `OPNOTSUPP`.
///
/// # Safety
/// The pieces are valid for writes, and nobody else uses them.
#[inline]
pub unsafe fn read_cached(file: impl AsFd, pieces: &[libc::iovec], at: u64) -> Result<usize, Errno> {
    // SAFETY: by this function's own condition.
    unsafe { way::files::read_cached(file.as_fd(), pieces, at) }
}

/// Read from a place of a file, whatever that waits for. 0: the file ends there.
///
/// # Safety
/// The pieces are valid for writes, and nobody else uses them.
#[inline]
pub unsafe fn read(file: impl AsFd, pieces: &[libc::iovec], at: u64) -> Result<usize, Errno> {
    let at = libc::off_t::try_from(at).map_err(|_| Errno::INVAL)?;
    let count = libc::c_int::try_from(pieces.len()).map_err(|_| Errno::INVAL)?;
    // SAFETY: by this function's own condition.
    let read = unsafe { libc::preadv(file.as_fd().as_raw_fd(), pieces.as_ptr(), count, at) };
    usize::try_from(read).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

/// Where reads around the page cache begin, how long they are, and where their memory lies: multiples of this.
pub const AROUND_CACHE_ALIGNMENT: usize = 4096;

/// From now on, reads through this descriptor and its copies go around the page cache, or through it again. What was written before is seen
/// either way. A file system may still refuse them when they come (`INVAL`).
///
/// Linux: `O_DIRECT`. macOS: `F_NOCACHE`. Otherwise `OPNOTSUPP`.
pub fn go_around_cache(file: impl AsFd, around: bool) -> Result<(), Errno> {
    way::files::go_around_cache(file.as_fd(), around)
}

/// A file has another name, in one step, and nothing is replaced: `EXIST` where something has that name.
///
/// Linux: `renameat2`, and as below where a file system lacks it. Portable: a hard link, after which the former name is removed. A process
/// that is killed in between leaves that.
#[inline]
pub fn rename_new(from: impl AsFd, name: &str, to: impl AsFd, new: &str) -> Result<(), Errno> {
    way::files::rename_new(from.as_fd(), name, to.as_fd(), new)
}

/// A new, empty file has this length, reads as zeros, and writes into it never want for room.
///
/// Linux: `fallocate`. Portable: zeros are written.
pub fn allocate(file: impl AsFd, bytes: u64) -> Result<(), Errno> {
    way::files::allocate(file.as_fd(), bytes)
}

/// The file system sets room aside for so many bytes behind `from`, as far as it can say so; the length stays.
///
/// Linux: `fallocate`. Portable: nothing, and a full disk is met when the bytes are written.
pub fn set_room_aside(file: impl AsFd, from: u64, bytes: u64) -> Result<(), Errno> {
    way::files::set_room_aside(file.as_fd(), from, bytes)
}
