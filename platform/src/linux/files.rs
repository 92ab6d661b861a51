//! `renameat2`, `fallocate`, `sync_file_range`.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{self, FallocateFlags, RenameFlags};
use rustix::io::Errno;

#[inline]
pub fn sync_data(file: BorrowedFd) -> Result<(), Errno> {
    fs::fdatasync(file)
}

#[inline]
pub fn sync(file: BorrowedFd) -> Result<(), Errno> {
    fs::fsync(file)
}

#[inline]
pub fn start_writing(file: BorrowedFd) {
    // SAFETY: an open descriptor; 0 and 0 are the whole file.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) };
}

#[inline]
pub fn write_out(file: BorrowedFd) -> Result<(), Errno> {
    const ALL: u32 = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: an open descriptor; 0 and 0 are the whole file.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, ALL) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)),
    }
}

#[inline]
pub fn rename_new(from: BorrowedFd, name: &str, to: BorrowedFd, new: &str) -> Result<(), Errno> {
    match fs::renameat_with(from, name, to, new, RenameFlags::NOREPLACE) {
        // File systems and kernels without the flag have hard links.
        Err(Errno::INVAL | Errno::NOSYS) => crate::portable::files::rename_new(from, name, to, new),
        renamed => renamed,
    }
}

pub fn allocate(file: BorrowedFd, bytes: u64) -> Result<(), Errno> {
    fs::fallocate(file, FallocateFlags::empty(), 0, bytes)
}

pub fn set_room_aside(file: BorrowedFd, from: u64, bytes: u64) -> Result<(), Errno> {
    fs::fallocate(file, FallocateFlags::KEEP_SIZE, from, bytes)
}
