//! Files by paths that somebody else wrote: none leads out of a directory, through a link, or into a file system of the kernel.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::way;

/// To open what is only looked at: it needs no right to read on Linux, and does not open the device or FIFO that may be there.
pub const LOOK: OFlags = way::paths::LOOK;

/// Of a file that an open may make: for this user only.
pub(crate) fn mode(flags: OFlags) -> Mode {
    if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() }
}

/// Open what lies at a relative path. It is below `root`, no link was followed on the way or at its end (`LOOP`), and it lies on no file
/// system of the kernel (`XDEV`). Closed on exec. The path may hold `.`; and `..`, if the caller has seen that it stays below.
/// [`LOOK`] is for directories here: on Linux it opens a link itself.
///
/// Linux: the kernel resolves the path in one step (`openat2`), so what is checked is what is opened. Portable: one step for each part,
/// from the directory opened before, with `O_NOFOLLOW`; `..` goes back to that one and asks the kernel for nothing.
#[inline]
pub fn open_below(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    way::paths::open_below(root.as_fd(), path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW)
}

/// The same for a path below `root` on the same mount, if nothing on the way has to be fetched from a disk or a server. `AGAIN`: it may have
/// to be, and nothing was waited for. The file is not made.
///
/// Linux: `RESOLVE_CACHED`; kernels before 5.12 open the file and may wait. Portable: always `AGAIN`.
#[inline]
pub fn open_cached(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    way::paths::open_cached(root.as_fd(), path, flags | OFlags::CLOEXEC | OFlags::NOFOLLOW)
}

/// What kind of file system of the kernel an open file or directory lies on; none where it is one for files.
///
/// Linux: by the type of the file system. Portable: by its device, which is that of a place where systems mount theirs.
pub fn kernel_file_system(file: impl AsFd) -> Result<Option<&'static str>, Errno> {
    way::paths::kernel_file_system(file.as_fd())
}

/// `XDEV` for what lies on a file system of the kernel.
pub fn check_file_system(file: impl AsFd) -> Result<(), Errno> {
    match kernel_file_system(file)? {
        Some(_) => Err(Errno::XDEV),
        None => Ok(()),
    }
}

/// A path that leads to what an open descriptor stands for, whatever lies under its former name.
pub fn of_descriptor(file: BorrowedFd) -> String {
    format!("{}/{}", way::paths::DESCRIPTORS, file.as_raw_fd())
}
