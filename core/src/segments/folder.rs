//! The folder of a store: its files by name, and the order of those who change it.

use std::fs::File;
use std::os::fd::OwnedFd;

use kv_platform::{files, paths};
use rustix::fs::{self, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::directory::{flock_within, uninterrupted};
use crate::error::{Error, ErrorKind};
use crate::signals::{files_are_bounded, without_signal};
use crate::until::Until;

/// An empty file that says whose the folder is. No backend opens one that another has marked.
const MARKER: &str = ".segments";

pub struct SegmentFolder {
    pub root: OwnedFd,
    /// Nothing in it may be changed.
    pub read_only: bool,
    /// The process had a bound on the length of files (RLIMIT_FSIZE) when the folder was opened: past it a write would raise SIGXFSZ.
    bounded: bool,
}

impl SegmentFolder {
    pub fn new(root: OwnedFd, read_only: bool) -> Self {
        SegmentFolder { root, read_only, bounded: files_are_bounded() }
    }

    /// Do what makes a file longer.
    pub fn writing<T>(&self, write: impl FnOnce() -> std::io::Result<T>) -> std::io::Result<T> {
        if self.bounded { without_signal(libc::SIGXFSZ, write) } else { write() }
    }

    /// A file, never through a link. None: there is none.
    pub fn at(&self, name: &str, flags: OFlags) -> Result<Option<File>, Error> {
        match paths::open_below(&self.root, name, flags) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::from(errno).context(name)),
        }
    }

    /// Refuse a folder of another kind of store, and mark one that holds nothing of them: each would take the other's files for strangers.
    pub fn claim(&self) -> Result<(), Error> {
        for (marker, whose) in [(".local-fs", "files of local-fs"), (".token-cache", "rows of the token-exact cache")] {
            if self.at(marker, OFlags::RDONLY)?.is_some() {
                return Err(Error::invalid(format!(
                    "the directory holds {whose}: give the segments a directory of their own"
                )));
            }
        }
        let made = self.create(MARKER, OFlags::WRONLY | OFlags::CREATE);
        made.map(drop).map_err(|errno| Error::from(errno).context(MARKER))
    }

    /// A file that is not there yet.
    pub fn create(&self, name: &str, flags: OFlags) -> Result<File, Errno> {
        paths::open_below(&self.root, name, flags).map(File::from)
    }

    /// Have a file under another name, in place of what is there, also after a power loss.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        fs::renameat(&self.root, from, &self.root, to)?;
        self.sync()
    }

    pub fn sync(&self) -> Result<(), Errno> {
        uninterrupted(|| files::sync(&self.root))
    }

    /// Wait until no other process changes the folder. All threads of this one share the lock.
    pub fn lock(&self, until: &Until) -> Result<(), Error> {
        flock_within(&self.root, until)
            .map_err(|late| late.context("another process holds the index log"))?
            .map_err(|errno| Error::from(errno).context("locking the index log"))
    }

    pub fn unlock(&self) {
        let _ = fs::flock(&self.root, FlockOperation::Unlock);
    }
}

/// What failed while something was done.
pub fn io_error(error: &std::io::Error, doing: &str) -> Error {
    Errno::from_io_error(error)
        .map_or_else(|| Error::new(ErrorKind::Other, error.to_string()), Error::from)
        .context(doing)
}
