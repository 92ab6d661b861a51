//! The folder of a store: its files by name, and the order of those who change it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::Duration;

use kv_platform::{files, paths};
use rustix::fs::{self, FlockOperation, OFlags};
use rustix::io::Errno;

use crate::directory::flock_within;
use crate::error::{Error, ErrorKind};
use crate::until::Until;

/// Between two looks at the time of a call that waits.
const LOOKED_AT: Duration = Duration::from_millis(5);

pub struct Folder(pub OwnedFd);

impl Folder {
    /// A file, never through a link. None: there is none.
    pub fn at(&self, name: &str, flags: OFlags) -> Result<Option<File>, Error> {
        match paths::open_below(&self.0, name, flags) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::from(errno).context(name)),
        }
    }

    /// Have a file under another name, in place of what is there, also after a power loss.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        fs::renameat(&self.0, from, &self.0, to)?;
        self.sync()
    }

    pub fn sync(&self) -> Result<(), Errno> {
        files::sync(&self.0)
    }

    /// Wait until no other process changes the folder. All threads of this one share the lock.
    pub fn lock(&self, until: &Until) -> Result<(), Error> {
        let left = || if until.check().is_ok() { LOOKED_AT } else { Duration::ZERO };
        flock_within(&self.0, left).map_err(|errno| match (errno, until.check()) {
            (Errno::AGAIN, Err(late)) => late.context("another process holds the index log"),
            _ => Error::from(errno).context("locking the index log"),
        })
    }

    pub fn unlock(&self) {
        let _ = fs::flock(&self.0, FlockOperation::Unlock);
    }
}

/// What failed while something was done.
pub fn io_error(error: &std::io::Error, doing: &str) -> Error {
    Errno::from_io_error(error)
        .map_or_else(|| Error::new(ErrorKind::Other, error.to_string()), Error::from)
        .context(doing)
}
