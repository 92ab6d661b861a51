//! What can go wrong, and the status of the C functions that says so.

use std::fmt;
use std::io;

use crate::row::Flaw;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The class of an [`Error`]; each is one `kv_cache_status_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A malformed argument or config.
    InvalidArgument,
    /// The row of a hit is damaged or gone. Look up again: a shorter row or another tier may serve.
    Miss,
    /// The directory belongs to another process.
    Busy,
    /// There is no room: the row is larger than the tier's budget, all rows are in use, or the disk is full.
    Full,
    /// The time is over. What was begun may still end well.
    Timeout,
    /// The cache is closed, or was opened by the process that this one was forked from.
    Closed,
    /// The operating system refused.
    Io,
    /// The row in the place of a save is of another descriptor, and is left alone.
    Mismatch,
    /// A bug in this crate.
    Internal,
}

/// A call that failed, what of, and what to do.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
    source: Option<io::Error>,
}

impl Error {
    /// The class, for decisions; the text is for people.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), source: None }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::InvalidArgument, message)
    }

    /// An operation that the system refused: `Full` where there is no room, else `Io`; or a save over a row of another descriptor.
    pub(crate) fn io(operation: impl Into<String>, source: io::Error) -> Error {
        let full = matches!(source.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG));
        let mismatch = source.get_ref().is_some_and(|cause| cause.downcast_ref() == Some(&Flaw::OtherDescriptor));
        let kind = match (full, mismatch) {
            (true, _) => ErrorKind::Full,
            (_, true) => ErrorKind::Mismatch,
            _ => ErrorKind::Io,
        };
        Error { kind, message: operation.into(), source: Some(source) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_full_disk_is_told_from_other_failures_and_the_systems_words_are_kept() {
        for (code, kind) in [
            (libc::ENOSPC, ErrorKind::Full),
            (libc::EDQUOT, ErrorKind::Full),
            (libc::EFBIG, ErrorKind::Full),
            (libc::EIO, ErrorKind::Io),
        ] {
            let said = io::Error::from_raw_os_error(code);
            let error = Error::io("cannot write it", io::Error::from_raw_os_error(code));
            assert_eq!((error.kind(), error.to_string()), (kind, format!("cannot write it: {said}")));
            assert_eq!(error.source().map(ToString::to_string), Some(said.to_string()));
        }
        let error = Error::invalid("no");
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidArgument, "no"));
        assert!(error.source().is_none());
    }
}
