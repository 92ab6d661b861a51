//! What can go wrong, in few kinds. The message is one line for an operator: what was tried, why it failed, what to do.

use std::fmt;

/// The kind of a failure. The C ABI answers the negative of its number; consumers must not tell the numbers apart.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// Not reachable, closed, timed out, busy: the same call may work later.
    Unavailable = 1,
    /// Not granted by the operator, or refused by the storage system for want of rights.
    Denied = 2,
    /// No room now: a limit of the host, a full disk.
    Exhausted = 3,
    /// The request cannot be served as it stands, or a value is larger than may be stored.
    Invalid = 4,
    /// What was found is not what must be there.
    Corrupt = 5,
    /// The storage system or the host cannot do this at all.
    Unsupported = 6,
    /// The component trapped or broke the contract; its instance is gone, the next call gets a new one.
    Component = 7,
    /// None of the others.
    Other = 8,
    /// What was to be restored is not there, or not all of it.
    Missing = 9,
    /// What was saved does not fit what it is to be restored into.
    Mismatch = 10,
    /// The caller cancelled it.
    Cancelled = 11,
    /// What was saved is of a later version than this library reads.
    Version = 12,
}

impl ErrorKind {
    /// In the order of their numbers, from 1.
    pub(crate) const NAMES: [&str; 12] = [
        "unavailable",
        "denied",
        "exhausted",
        "invalid",
        "corrupt",
        "unsupported",
        "component",
        "other",
        "missing",
        "mismatch",
        "cancelled",
        "version",
    ];
}

/// A failed operation.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    /// The same failure, with what was being done in front.
    pub(crate) fn context(self, doing: impl fmt::Display) -> Self {
        Error { kind: self.kind, message: format!("{doing}: {}", self.message) }
    }

    /// What went wrong, in kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Whether the same call can be expected to fail again, whatever time passes.
    pub(crate) fn is_permanent(&self) -> bool {
        use ErrorKind::{Component, Denied, Invalid, Unsupported};
        matches!(self.kind, Denied | Invalid | Unsupported | Component)
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(errno: rustix::io::Errno) -> Self {
        use rustix::io::Errno;
        let kind = match errno {
            Errno::ACCESS | Errno::PERM | Errno::ROFS => ErrorKind::Denied,
            Errno::NOSPC | Errno::DQUOT | Errno::NOMEM | Errno::FBIG | Errno::MFILE | Errno::NFILE => {
                ErrorKind::Exhausted
            }
            Errno::NOTDIR | Errno::ISDIR | Errno::NAMETOOLONG | Errno::INVAL | Errno::ILSEQ => ErrorKind::Invalid,
            Errno::LOOP => {
                return Error::new(ErrorKind::Denied, "a symbolic link is in the way; links are not followed");
            }
            Errno::XDEV => {
                let message = "another file system is mounted there: one of the kernel, such as /proc, is never \
                               reached, and no file is moved from one to another";
                return Error::new(ErrorKind::Denied, message);
            }
            Errno::NOENT | Errno::IO | Errno::STALE | Errno::TIMEDOUT | Errno::AGAIN | Errno::BUSY => {
                ErrorKind::Unavailable
            }
            _ => ErrorKind::Other,
        };
        Error::new(kind, std::io::Error::from(errno).to_string())
    }
}
