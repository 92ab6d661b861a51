//! `rustix`, with a file system that the program brings in place of the kernel's: `core` is built over it as it is, so that what it asks of
//! files and directories, and in which order, is what runs in histories.
//!
//! A descriptor of a simulated file is one of the kernel's too, of an empty file of the thread that cannot be read or written, so that its number
//! is nobody else's as long as it is open, and it can be told whether it still is. What the system of the thread does not know goes to the kernel.

pub mod fs;
pub mod io;

use std::cell::{OnceCell, RefCell};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::rc::Rc;

pub use kernel::{event, fd, ffi, mm, path, process, stdio, time};

use fs::{OFlags, Stat, StatVfs, Timestamps};
use io::{Errno, Result};

/// A directory that is open.
pub type At = RawFd;

/// A file system. Its functions may have the running thread wait.
pub trait System {
    /// Whether a descriptor is one of its own.
    fn knows(&self, fd: RawFd) -> bool;
    /// Whether an absolute path leads to it.
    fn holds(&self, path: &str) -> bool;
    /// `at`: none for an absolute path. `cached`: `AGAIN` where the disk would be asked.
    fn open(&self, at: Option<At>, path: &str, flags: OFlags, cached: bool) -> Result<OwnedFd>;
    fn make_directory(&self, at: At, path: &str) -> Result<()>;
    /// `replace`: over what is there.
    fn rename(&self, from: (At, &str), to: (At, &str), replace: bool) -> Result<()>;
    fn remove(&self, at: At, path: &str, directory: bool) -> Result<()>;
    /// An empty path is what is open itself.
    fn stat(&self, at: Option<At>, path: &str) -> Result<Stat>;
    fn set_times(&self, at: At, path: &str, times: &Timestamps) -> Result<()>;
    /// How it was opened.
    fn mode(&self, fd: RawFd) -> Result<OFlags>;
    /// Have a file be so long, with room for all of it. `OPNOTSUPP`: this file system cannot promise room.
    fn allocate(&self, fd: RawFd, bytes: u64) -> Result<()>;
    /// The same without the promise.
    fn set_length(&self, fd: RawFd, bytes: u64) -> Result<()>;
    /// Room behind what a file has.
    fn set_room_aside(&self, fd: RawFd) -> Result<()>;
    fn space(&self, fd: RawFd) -> Result<StatVfs>;
    fn list(&self, fd: RawFd) -> Result<Vec<CString>>;
    fn lock(&self, fd: RawFd, how: fs::FlockOperation) -> Result<()>;
    /// `at`: none behind what was written before. Answers how many bytes it took.
    fn write(&self, fd: RawFd, at: Option<u64>, bytes: &[u8]) -> Result<usize>;
    /// At most so many bytes. `cached`: `AGAIN` where the disk would be asked.
    fn read(&self, fd: RawFd, at: u64, most: usize, cached: bool) -> Result<Vec<u8>>;
    /// Of a directory: its names.
    fn sync(&self, fd: RawFd) -> Result<()>;
    /// The bytes of a file reach the disk before the names that it gets from now on.
    fn write_out(&self, fd: RawFd) -> Result<()>;
}

thread_local! {
    static SYSTEM: RefCell<Option<Rc<dyn System>>> = const { RefCell::new(None) };
}

/// Have this thread's files be those of a system. None: the kernel's.
pub fn enter(system: Option<Rc<dyn System>>) {
    SYSTEM.set(system);
}

thread_local! {
    /// What all descriptors of this thread's simulated files lead to, and its inode.
    static FILE: OnceCell<(OwnedFd, u64)> = const { OnceCell::new() };
}

fn file() -> Result<(OwnedFd, u64)> {
    let file = kernel::fs::memfd_create("simulated", kernel::fs::MemfdFlags::CLOEXEC)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let own = kernel::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, kernel::fs::Mode::empty())?;
    let inode = kernel::fs::fstat(&own)?.st_ino;
    Ok((own, inode))
}

/// A number for a simulated file, given back to the kernel when it is dropped.
pub fn descriptor() -> Result<OwnedFd> {
    FILE.with(|known| {
        if known.get().is_none() {
            // Nobody else sets it: it is the thread's.
            let _ = known.set(file()?);
        }
        let (file, _) = known.get().ok_or(Errno::BADF)?;
        kernel::io::fcntl_dupfd_cloexec(file, 0)
    })
}

/// Whether the number of a simulated file of this thread was not given back yet, or is that of another one.
pub fn is_open(fd: RawFd) -> bool {
    let inode = FILE.with(|known| known.get().map(|(_, inode)| *inode));
    kernel::fs::stat(format!("/proc/self/fd/{fd}")).is_ok_and(|stat| Some(stat.st_ino) == inode)
}

/// Ask the system of the thread about a descriptor. None: it is the kernel's.
pub fn ask<T>(fd: impl AsFd, what: impl FnOnce(&dyn System, RawFd) -> T) -> Option<T> {
    // Not borrowed while others go on.
    let system = SYSTEM.with_borrow(Clone::clone)?;
    let fd = fd.as_fd().as_raw_fd();
    system.knows(fd).then(|| what(&*system, fd))
}

/// The same about an absolute path.
pub(crate) fn ask_of_path<T>(path: &str, what: impl FnOnce(&dyn System) -> T) -> Option<T> {
    let system = SYSTEM.with_borrow(Clone::clone)?;
    system.holds(path).then(|| what(&*system))
}

/// A path as a system takes it.
pub(crate) fn text(path: &impl path::Arg) -> Result<&str> {
    path.as_str().map_err(|_| Errno::INVAL)
}
