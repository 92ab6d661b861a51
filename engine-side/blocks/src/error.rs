//! What a call can come to. The codes are those of AIBrix's connectors.

use serde::Serialize;

/// Why a call, or a part of it, did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// None of the others.
    Error = 1,
    /// There is none.
    NotFound = 2,
    /// The call makes no sense as it stands.
    Invalid = 3,
    /// No block of memory is free, and none can be given up.
    OutOfMemory = 4,
    /// Not done in the time allowed.
    Timeout = 5,
    /// A bound was reached, and the work was dropped.
    Denied = 6,
    /// The cache was closed, or the block deleted meanwhile.
    Cancelled = 7,
    /// What was found is not what was put.
    Corrupt = 8,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [ErrorKind; 8] = [
        ErrorKind::Error,
        ErrorKind::NotFound,
        ErrorKind::Invalid,
        ErrorKind::OutOfMemory,
        ErrorKind::Timeout,
        ErrorKind::Denied,
        ErrorKind::Cancelled,
        ErrorKind::Corrupt,
    ];

    /// As it stands in metrics.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Error => "error",
            ErrorKind::NotFound => "not_found",
            ErrorKind::Invalid => "invalid",
            ErrorKind::OutOfMemory => "out_of_memory",
            ErrorKind::Timeout => "timeout",
            ErrorKind::Denied => "denied",
            ErrorKind::Cancelled => "cancelled",
            ErrorKind::Corrupt => "corrupt",
        }
    }
}

/// A failed call: its kind, and a line for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

/// The result of a call.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of a kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Error { kind, message: message.into() }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Error::new(ErrorKind::Invalid, message)
    }

    /// Its kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}
