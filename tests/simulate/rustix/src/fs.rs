//! What `core` asks of files by name.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};

pub use kernel::fs::*;

use crate::io::Result;
use crate::path::Arg;
use crate::{ask, ask_of_path, text};

pub fn open(path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let name = text(&path)?;
    match ask_of_path(name, |system| system.open(None, name, flags, false)) {
        Some(opened) => opened,
        None => kernel::fs::open(path, flags, mode),
    }
}

pub fn openat(at: impl AsFd, path: impl Arg, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
    let name = text(&path)?;
    match ask(&at, |system, own| system.open(Some(own), name, flags, false)) {
        Some(opened) => opened,
        None => kernel::fs::openat(&at, path, flags, mode),
    }
}

pub fn mkdirat(at: impl AsFd, path: impl Arg, mode: Mode) -> Result<()> {
    let name = text(&path)?;
    match ask(&at, |system, own| system.make_directory(own, name)) {
        Some(made) => made,
        None => kernel::fs::mkdirat(&at, path, mode),
    }
}

pub fn unlinkat(at: impl AsFd, path: impl Arg, flags: AtFlags) -> Result<()> {
    let name = text(&path)?;
    match ask(&at, |system, own| system.remove(own, name, flags.contains(AtFlags::REMOVEDIR))) {
        Some(removed) => removed,
        None => kernel::fs::unlinkat(&at, path, flags),
    }
}

pub fn renameat(from: impl AsFd, old: impl Arg, to: impl AsFd, new: impl Arg) -> Result<()> {
    match rename(&from, text(&old)?, &to, text(&new)?, true) {
        Some(renamed) => renamed,
        None => kernel::fs::renameat(&from, old, &to, new),
    }
}

/// None: it is the kernel's.
pub fn rename(from: impl AsFd, old: &str, to: impl AsFd, new: &str, replace: bool) -> Option<Result<()>> {
    use std::os::fd::AsRawFd;
    let to = to.as_fd().as_raw_fd();
    ask(&from, |system, own| system.rename((own, old), (to, new), replace))
}

pub fn stat(path: impl Arg) -> Result<Stat> {
    let name = text(&path)?;
    match ask_of_path(name, |system| system.stat(None, name)) {
        Some(stat) => stat,
        None => kernel::fs::stat(path),
    }
}

pub fn statat(at: impl AsFd, path: impl Arg, flags: AtFlags) -> Result<Stat> {
    let name = text(&path)?;
    match ask(&at, |system, own| system.stat(Some(own), name)) {
        Some(stat) => stat,
        None => kernel::fs::statat(&at, path, flags),
    }
}

pub fn fstat(fd: impl AsFd) -> Result<Stat> {
    ask(&fd, |system, own| system.stat(Some(own), "")).unwrap_or_else(|| kernel::fs::fstat(&fd))
}

pub fn fstatvfs(fd: impl AsFd) -> Result<StatVfs> {
    ask(&fd, |system, own| system.space(own)).unwrap_or_else(|| kernel::fs::fstatvfs(&fd))
}

pub fn futimens(fd: impl AsFd, times: &Timestamps) -> Result<()> {
    ask(&fd, |system, own| system.set_times(own, "", times)).unwrap_or_else(|| kernel::fs::futimens(&fd, times))
}

pub fn utimensat(at: impl AsFd, path: impl Arg, times: &Timestamps, flags: AtFlags) -> Result<()> {
    let name = text(&path)?;
    match ask(&at, |system, own| system.set_times(own, name, times)) {
        Some(set) => set,
        None => kernel::fs::utimensat(&at, path, times, flags),
    }
}

pub fn fcntl_getfl(fd: impl AsFd) -> Result<OFlags> {
    ask(&fd, |system, own| system.mode(own)).unwrap_or_else(|| kernel::fs::fcntl_getfl(&fd))
}

pub fn ftruncate(fd: impl AsFd, bytes: u64) -> Result<()> {
    ask(&fd, |system, own| system.set_length(own, bytes)).unwrap_or_else(|| kernel::fs::ftruncate(&fd, bytes))
}

pub fn flock(fd: impl AsFd, how: FlockOperation) -> Result<()> {
    ask(&fd, |system, own| system.lock(own, how)).unwrap_or_else(|| kernel::fs::flock(&fd, how))
}

/// The names of a directory.
pub struct Dir(Names);

enum Names {
    Kernel(kernel::fs::Dir),
    Simulated(std::vec::IntoIter<CString>),
}

pub struct DirEntry(CString);

impl Dir {
    pub fn read_from(fd: impl AsFd) -> Result<Self> {
        Ok(Dir(match ask(&fd, |system, own| system.list(own)) {
            Some(names) => Names::Simulated(names?.into_iter()),
            None => Names::Kernel(kernel::fs::Dir::read_from(&fd)?),
        }))
    }
}

impl Iterator for Dir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            Names::Kernel(names) => names.next().map(|entry| entry.map(|entry| DirEntry(entry.file_name().to_owned()))),
            Names::Simulated(names) => names.next().map(|name| Ok(DirEntry(name))),
        }
    }
}

impl DirEntry {
    pub fn file_name(&self) -> &CStr {
        &self.0
    }
}
