//! What can go wrong, in few kinds. The message is one line for an operator: what was tried, why it failed, what to do.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

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
    /// What was saved does not fit what it is to be restored into, or lies there under another descriptor.
    Mismatch = 10,
    /// The caller cancelled it.
    Cancelled = 11,
    /// What was saved is of a later version than this library reads.
    Version = 12,
}

impl ErrorKind {
    /// In the order of their numbers, from 1.
    #[doc(hidden)]
    pub const NAMES: [&str; 12] = [
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
///
/// Shown, it is one line: the operation, what was wrong, and where something can be done about it, what.
///
/// ```
/// # use kv_store_core as kv_store_wasm;
/// let error = kv_store_wasm::StoreUri::parse("no uri").expect_err("it names no backend");
/// assert_eq!(error.kind(), kv_store_wasm::ErrorKind::Invalid);
/// assert!(!error.can_retry() && error.to_string().starts_with("the URI has no scheme"));
/// ```
// One word, because results are moved with every call, and futures hold several.
#[derive(Clone, Debug)]
pub struct Error(Box<ErrorDetails>);

#[derive(Clone, Debug)]
struct ErrorDetails {
    kind: ErrorKind,
    message: String,
    /// It says nothing against the backend.
    busy: bool,
    /// The circuit breaker refused the call.
    by_breaker: bool,
    /// A server was waited for so long, without a byte.
    waited: Option<Duration>,
    operation: Option<&'static str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(operation) = self.0.operation {
            write!(formatter, "{operation}: ")?;
        }
        formatter.write_str(&self.0.message)
    }
}

impl StdError for Error {
    /// The error of the operating system, of a parser or the like that it comes from, where there is one. The message has its
    /// text already.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

/// The component broke the contract.
#[doc(hidden)]
pub fn contract_violation(what: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Component, format!("broke the contract: it {what}"))
}

impl Error {
    /// The host has no instance free, or the storage system takes no more now: nothing was done.
    pub fn busy(message: impl Into<String>) -> Self {
        let mut error = Error::new(ErrorKind::Unavailable, message);
        error.0.busy = true;
        error
    }

    /// Whether the host had no instance free, or the storage system took no more: it says nothing against the backend.
    pub fn is_busy(&self) -> bool {
        self.0.busy
    }

    #[doc(hidden)]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let message = message.into();
        Error(Box::new(ErrorDetails {
            kind,
            message,
            busy: false,
            by_breaker: false,
            waited: None,
            operation: None,
            source: None,
        }))
    }

    #[doc(hidden)]
    pub fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    /// The same failure, with what was being done in front.
    #[doc(hidden)]
    pub fn context(mut self, doing: impl fmt::Display) -> Self {
        self.0.message = format!("{doing}: {}", self.0.message);
        self
    }

    /// The same failure, as one of an operation of the caller's.
    #[doc(hidden)]
    pub fn during(mut self, operation: &'static str) -> Self {
        self.0.operation = Some(operation);
        self
    }

    /// The same failure, with what it comes from.
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// The circuit breaker is open: the call was not tried.
    pub(crate) fn refused_by_breaker(message: String) -> Self {
        let mut error = Error::new(ErrorKind::Unavailable, message);
        error.0.by_breaker = true;
        error
    }

    pub(crate) fn is_by_breaker(&self) -> bool {
        self.0.by_breaker
    }

    /// A server was waited for so long, without a byte.
    pub fn after_waiting(mut self, patience: Duration) -> Self {
        self.0.waited = Some(patience);
        self
    }

    /// How long a server was waited for that sent no byte. None: it failed otherwise.
    pub fn waited(&self) -> Option<Duration> {
        self.0.waited
    }

    /// The same failure, with something to add at its end.
    pub fn with_note(mut self, note: &str) -> Self {
        self.0.message.push_str(note);
        self
    }

    /// What went wrong, in kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The caller's operation that failed: `open`, `put_chunk`, `get_many` and so on, as the calls of the C ABI are named. None:
    /// it is of one item of a batch, or no store was asked.
    pub fn operation(&self) -> Option<&'static str> {
        self.0.operation
    }

    /// What was wrong and what to do about it, without the operation.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Whether the same call, made again later, may succeed although nobody has changed the request, the config or the
    /// component: a server may be back, a place may be free.
    pub fn can_retry(&self) -> bool {
        use ErrorKind::{Cancelled, Exhausted, Other, Unavailable};
        matches!(self.0.kind, Unavailable | Exhausted | Cancelled | Other)
    }

    /// Whether a chunk that was refused so would be refused again, so that it must not wait for the next manifest.
    pub fn is_permanent(&self) -> bool {
        use ErrorKind::{Component, Denied, Invalid, Mismatch, Unsupported};
        matches!(self.0.kind, Denied | Invalid | Unsupported | Component | Mismatch)
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
                return Error::new(
                    ErrorKind::Denied,
                    "a symbolic link is in the way; links are not followed: use a path without them",
                );
            }
            Errno::XDEV => {
                let message = "another file system is mounted there: kernel file systems such as /proc are never \
                               used, and files are not moved between file systems: choose another directory";
                return Error::new(ErrorKind::Denied, message);
            }
            Errno::NOENT | Errno::IO | Errno::STALE | Errno::TIMEDOUT | Errno::AGAIN | Errno::BUSY => {
                ErrorKind::Unavailable
            }
            _ => ErrorKind::Other,
        };
        let remedy = match errno {
            Errno::NOSPC => ": free space there, or bound the store (max_bytes; kv-store gc)",
            Errno::DQUOT => ": free space, or raise the disk quota of this user",
            Errno::ACCESS | Errno::PERM => {
                ": give the user of this process the right to it, or choose another directory"
            }
            Errno::ROFS => ": mount it for writing, or choose another directory",
            Errno::MFILE | Errno::NFILE => ": raise the bound on open files (ulimit -n)",
            Errno::FBIG => ": raise the bound on the length of files (ulimit -f), or store smaller chunks",
            _ => "",
        };
        let source = std::io::Error::from(errno);
        Error::new(kind, format!("{source}{remedy}")).with_source(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_operator_can_mend_says_how() {
        use rustix::io::Errno;
        for (errno, kind, said) in [
            (Errno::NOSPC, ErrorKind::Exhausted, "free space there"),
            (Errno::ACCESS, ErrorKind::Denied, "give the user of this process"),
            (Errno::ROFS, ErrorKind::Denied, "mount it for writing"),
            (Errno::MFILE, ErrorKind::Exhausted, "ulimit -n"),
        ] {
            let error = Error::from(errno);
            assert!(error.kind() == kind && error.to_string().contains(said), "{error}");
        }
    }

    #[test]
    fn an_error_tells_its_operation_its_source_and_whether_to_try_again() {
        let error = Error::from(rustix::io::Errno::NOSPC).context("/cache/a").during("put_chunk");
        let said = error.to_string();
        assert!(said.starts_with("put_chunk: /cache/a: No space left on device (os error 28): free space"), "{said}");
        assert_eq!((error.operation(), error.message().starts_with("/cache/a: ")), (Some("put_chunk"), true));
        let source = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(libc::ENOSPC));
        assert!(error.can_retry() && Error::busy("all are busy").can_retry());
        assert!(!Error::invalid("no").can_retry() && Error::invalid("no").source().is_none());
    }

    /// What a chunk is given up for is nothing that a later try may change.
    #[test]
    fn what_is_permanent_cannot_be_tried_again() {
        use ErrorKind::*;
        let all = [
            Unavailable,
            Denied,
            Exhausted,
            Invalid,
            Corrupt,
            Unsupported,
            Component,
            Other,
            Missing,
            Mismatch,
            Cancelled,
            Version,
        ];
        assert_eq!(all.len(), ErrorKind::NAMES.len());
        for error in all.map(|kind| Error::new(kind, "text")) {
            assert!(!(error.is_permanent() && error.can_retry()), "{:?}", error.kind());
        }
    }
}
