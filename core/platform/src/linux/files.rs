//! `renameat2`, `fallocate`, `sync_file_range`, `RWF_NOWAIT`, `O_DIRECT`.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::fs::{self, FallocateFlags, RenameFlags};
use rustix::io::Errno;

use crate::files::Memory;

#[inline]
pub fn sync_data(file: BorrowedFd) -> Result<(), Errno> {
    fs::fdatasync(file)
}

#[inline]
pub fn sync(file: BorrowedFd) -> Result<(), Errno> {
    fs::fsync(file)
}

#[inline]
pub fn start_writing(file: BorrowedFd, from: u64, bytes: u64) {
    let (from, bytes) = (from.min(i64::MAX as u64) as i64, bytes.min(i64::MAX as u64) as i64);
    // SAFETY: an open descriptor; 0 bytes are all to the end of the file.
    unsafe { libc::sync_file_range(file.as_raw_fd(), from, bytes, libc::SYNC_FILE_RANGE_WRITE) };
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

/// File systems whose files are memory, by the magic number that `statfs` answers.
const ALL_MEMORY: &[u32] = &[0x0102_1994, 0x8584_58f6, 0x9584_58f6];

/// File systems of a disk of this machine, which open a file without asking anybody: ext2 to ext4, XFS, btrfs, f2fs, bcachefs, ZFS, and
/// overlayfs, which is made of them.
const OF_DISKS: &[u32] = &[0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0xca45_1a4e, 0x2fc1_2fc1, 0x794c_7630];

pub fn in_memory(directory: BorrowedFd) -> Memory {
    match fs::fstatfs(directory).map(|stat| stat.f_type as u32) {
        Ok(kind) if ALL_MEMORY.contains(&kind) => Memory::All,
        Ok(kind) if OF_DISKS.contains(&kind) => Memory::Some,
        _ => Memory::Unknown,
    }
}

/// # Safety
/// The pieces are valid for writes, and nobody else uses them.
#[inline]
pub unsafe fn read_cached(file: BorrowedFd, pieces: &[libc::iovec], at: u64) -> Result<usize, Errno> {
    let at = libc::off_t::try_from(at).map_err(|_| Errno::INVAL)?;
    let count = libc::c_int::try_from(pieces.len()).map_err(|_| Errno::INVAL)?;
    loop {
        // SAFETY: by this function's own condition.
        let read = unsafe { libc::preadv2(file.as_raw_fd(), pieces.as_ptr(), count, at, libc::RWF_NOWAIT) };
        match usize::try_from(read) {
            Ok(read) => return Ok(read),
            Err(_) => match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
                Errno::INTR => {}
                // Kernels before 4.14, and sandboxes that do not know the call.
                Errno::NOSYS | Errno::PERM => return Err(Errno::OPNOTSUPP),
                errno => return Err(errno),
            },
        }
    }
}

pub fn go_around_cache(file: BorrowedFd, around: bool) -> Result<(), Errno> {
    let flags = fs::fcntl_getfl(file)?;
    let wanted = if around { flags | fs::OFlags::DIRECT } else { flags - fs::OFlags::DIRECT };
    fs::fcntl_setfl(file, wanted)
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
