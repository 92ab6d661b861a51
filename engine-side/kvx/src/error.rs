//! What can go wrong, and the status of the C ABI that says so.
//!
//! Kinds map one to one to `kvx_status_t` (KVX section 8), so the C functions
//! translate an error without looking at its text. `INCOMPATIBLE` has no kind:
//! it is what a consumer says of a provider's version, and none of the calls
//! takes a version.

use std::fmt;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// The class of an [`Error`]; one per failing `kvx_status_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A malformed argument: a zero dimension, a buffer that is too short, dtypes that do not fit.
    InvalidArgument,
    /// A well-formed request for what this implementation does not do.
    Unsupported,
    /// A slot, block id, KV offset, `indptr` entry or length points outside its bounds.
    OutOfRange,
    /// A bug in this crate, or memory ran out.
    Internal,
}

/// A refused call. Nothing has been written when one is returned, except by
/// [`ErrorKind::Internal`], which says nothing of the output.
#[derive(Clone, Debug)]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    /// The class, for decisions; the text is for people.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error { kind: ErrorKind::InvalidArgument, message: message.into() }
}

pub(crate) fn unsupported(message: impl Into<String>) -> Error {
    Error { kind: ErrorKind::Unsupported, message: message.into() }
}

pub(crate) fn out_of_range(message: impl Into<String>) -> Error {
    Error { kind: ErrorKind::OutOfRange, message: message.into() }
}

pub(crate) fn internal(message: impl Into<String>) -> Error {
    Error { kind: ErrorKind::Internal, message: message.into() }
}
