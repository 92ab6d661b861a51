//! What is asked of open files and directories.

use std::os::fd::AsFd;

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

/// Only a hint: the system begins to write a file out, so that the syncs of several files wait for all of them at once.
///
/// Linux: `sync_file_range`. Portable: nothing.
#[inline]
pub fn start_writing(file: impl AsFd) {
    way::files::start_writing(file.as_fd());
}

/// The bytes of a file are with the disk, whose cache is flushed by the next [`sync`] of anything on the same file system.
///
/// Linux: `sync_file_range`; a file system that has none answers `INVAL`, `NOSYS`, `SPIPE` or `OPNOTSUPP`. Portable: [`sync_data`].
#[inline]
pub fn write_out(file: impl AsFd) -> Result<(), Errno> {
    way::files::write_out(file.as_fd())
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
