//! One step for each part of a path, and the file systems of the kernel by where they are mounted.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::paths::{check_file_system, mode};

pub const LOOK: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK);
pub const DESCRIPTORS: &str = "/dev/fd";

/// Where systems mount file systems of the kernel.
const MOUNTED: &[&str] = &[
    "/dev",
    "/dev/fd",
    "/dev/pts",
    "/dev/mqueue",
    "/proc",
    "/proc/sys/fs/binfmt_misc",
    "/sys",
    "/sys/fs/cgroup",
    "/sys/fs/cgroup/unified",
    "/sys/fs/bpf",
    "/sys/fs/fuse/connections",
    "/sys/fs/pstore",
    "/sys/fs/selinux",
    "/sys/fs/resctrl",
    "/sys/firmware/efi/efivars",
    "/sys/kernel/config",
    "/sys/kernel/debug",
    "/sys/kernel/debug/tracing",
    "/sys/kernel/security",
    "/sys/kernel/tracing",
];

/// On Linux too, where the kernel cannot do it in one step.
pub fn open_below(root: BorrowedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let step = crate::paths::LOOK | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let (parents, mut name) = path.rsplit_once('/').unwrap_or(("", path));
    let mut flags = flags;
    // What a path ends in that names no file is the directory before it.
    if matches!(name, "" | ".") {
        (name, flags) = (".", flags | OFlags::DIRECTORY);
    }
    let mut way: Vec<OwnedFd> = Vec::new();
    let up = |way: &mut Vec<OwnedFd>| way.pop().map(drop).ok_or(Errno::LOOP);
    for part in parents.split('/') {
        match part {
            "" | "." => {}
            // Where this came from, whatever was renamed meanwhile.
            ".." => up(&mut way)?,
            part => {
                let upper = way.last().map_or(root, OwnedFd::as_fd);
                let next = fs::openat(upper, part, step, Mode::empty());
                way.push(next.map_err(|errno| link_or(errno, upper, part))?);
            }
        }
    }
    if name == ".." {
        up(&mut way)?;
        (name, flags) = (".", flags | OFlags::DIRECTORY);
    }
    let upper = way.last().map_or(root, OwnedFd::as_fd);
    check_entry(upper, name, flags)?;
    let opened = fs::openat(upper, name, flags, mode(flags)).map_err(|errno| link_or(errno, upper, name))?;
    check_file_system(&opened)?;
    // O_PATH with O_NOFOLLOW opens a link itself.
    match FileType::from_raw_mode(fs::fstat(&opened)?.st_mode) {
        FileType::Symlink => Err(Errno::LOOP),
        _ => Ok(opened),
    }
}

pub fn open_cached(_: BorrowedFd, _: &str, _: OFlags) -> Result<OwnedFd, Errno> {
    Err(Errno::AGAIN)
}

/// Before an open, which may already change something: neither what lies there nor what would be made there is on a file system of the
/// kernel. What lies there afterwards is looked at once more.
fn check_entry(upper: BorrowedFd, name: &str, flags: OFlags) -> Result<(), Errno> {
    let device = match fs::statat(upper, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(there) => there.st_dev,
        Err(Errno::NOENT) if !flags.contains(OFlags::CREATE) => return Err(Errno::NOENT),
        Err(_) => fs::fstat(upper)?.st_dev,
    };
    // Another device than the directory's: something is mounted there.
    match fs::fstat(upper)?.st_dev == device {
        true => check_file_system(upper),
        false => mounted_on(device, MOUNTED).map_or(Ok(()), |_| Err(Errno::XDEV)),
    }
}

/// Systems differ in what they answer where a link stands and none is followed.
fn link_or(errno: Errno, upper: BorrowedFd, name: &str) -> Errno {
    let is_link = |stat: fs::Stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    match errno {
        Errno::NOTDIR | Errno::MLINK if fs::statat(upper, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(is_link) => {
            Errno::LOOP
        }
        errno => errno,
    }
}

pub fn kernel_file_system(file: BorrowedFd) -> Result<Option<&'static str>, Errno> {
    lies_on(file, MOUNTED)
}

/// The place of these that a file lies on the same file system as, if something of its own is mounted there.
pub fn lies_on(file: BorrowedFd, places: &[&'static str]) -> Result<Option<&'static str>, Errno> {
    Ok(mounted_on(fs::fstat(file)?.st_dev, places))
}

fn mounted_on(device: fs::Dev, places: &[&'static str]) -> Option<&'static str> {
    let of = |path: &str| fs::stat(path).ok().map(|stat| stat.st_dev as fs::Dev);
    match of("/") == Some(device) {
        true => None,
        false => places.iter().find(|path| of(path) == Some(device)).copied(),
    }
}
