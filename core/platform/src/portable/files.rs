//! Hard links, `fsync`, zeros.

#[cfg(target_vendor = "apple")]
use std::os::fd::AsRawFd;
use std::os::fd::BorrowedFd;

use rustix::fs::{self, AtFlags};
use rustix::io::Errno;

use crate::files::Memory;

pub fn sync_data(file: BorrowedFd) -> Result<(), Errno> {
    sync(file)
}

pub fn sync(file: BorrowedFd) -> Result<(), Errno> {
    #[cfg(target_vendor = "apple")]
    match fs::fcntl_fullfsync(file) {
        // Network file systems know no disk.
        Err(Errno::INVAL | Errno::NOTSUP | Errno::NOTTY | Errno::OPNOTSUPP) => {}
        synced => return synced,
    }
    fs::fsync(file)
}

pub fn start_writing(_: BorrowedFd, _: u64, _: u64) {}

pub fn write_out(file: BorrowedFd) -> Result<(), Errno> {
    sync_data(file)
}

pub fn in_memory(_: BorrowedFd) -> Memory {
    Memory::Unknown
}

/// # Safety
/// None is needed: nothing is read.
pub unsafe fn read_cached(_: BorrowedFd, _: &[libc::iovec], _: u64) -> Result<usize, Errno> {
    Err(Errno::OPNOTSUPP)
}

#[cfg(target_vendor = "apple")]
pub fn go_around_cache(file: BorrowedFd, around: bool) -> Result<(), Errno> {
    // SAFETY: an open descriptor and a number.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_NOCACHE, libc::c_int::from(around)) } {
        -1 => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        _ => Ok(()),
    }
}

#[cfg(not(target_vendor = "apple"))]
pub fn go_around_cache(_: BorrowedFd, _: bool) -> Result<(), Errno> {
    Err(Errno::OPNOTSUPP)
}

pub fn rename_new(from: BorrowedFd, name: &str, to: BorrowedFd, new: &str) -> Result<(), Errno> {
    fs::linkat(from, name, to, new, AtFlags::empty())?;
    let _ = fs::unlinkat(from, name, AtFlags::empty());
    Ok(())
}

pub fn allocate(file: BorrowedFd, bytes: u64) -> Result<(), Errno> {
    const ZEROS: usize = 64 << 10;
    let zeros = [0; ZEROS];
    let mut at = 0;
    while at < bytes {
        let len = (bytes - at).min(ZEROS as u64) as usize;
        match rustix::io::pwrite(file, zeros.get(..len).unwrap_or_default(), at) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(Errno::IO),
            written => at += written? as u64,
        }
    }
    Ok(())
}

pub fn set_room_aside(_: BorrowedFd, _: u64, _: u64) -> Result<(), Errno> {
    Ok(())
}
