//! Errors across the boundary. What a guest says reaches an operator's log, so it becomes one clean line.

use crate::bindings::kv_store::backend::types;
use crate::error::{Error, ErrorKind};
use crate::log;

/// A host function's answer: its failure is the guest's to handle, and no trap.
pub(crate) fn answered<T>(result: Result<T, Error>) -> wasmtime::Result<Result<T, types::Error>> {
    Ok(result.map_err(types::Error::from))
}

impl From<Error> for types::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Unavailable => types::ErrorKind::Unavailable,
            ErrorKind::Denied => types::ErrorKind::Denied,
            ErrorKind::Exhausted => types::ErrorKind::Exhausted,
            ErrorKind::Invalid => types::ErrorKind::Invalid,
            ErrorKind::Corrupt => types::ErrorKind::Corrupt,
            ErrorKind::Unsupported => types::ErrorKind::Unsupported,
            ErrorKind::Component
            | ErrorKind::Other
            | ErrorKind::Missing
            | ErrorKind::Mismatch
            | ErrorKind::Cancelled
            | ErrorKind::Version => types::ErrorKind::Other,
        };
        types::Error { kind, message: error.to_string() }
    }
}

impl From<types::Error> for Error {
    fn from(error: types::Error) -> Self {
        let kind = match error.kind {
            types::ErrorKind::Unavailable => ErrorKind::Unavailable,
            types::ErrorKind::Denied => ErrorKind::Denied,
            types::ErrorKind::Exhausted => ErrorKind::Exhausted,
            types::ErrorKind::Invalid => ErrorKind::Invalid,
            types::ErrorKind::Corrupt => ErrorKind::Corrupt,
            types::ErrorKind::Unsupported => ErrorKind::Unsupported,
            types::ErrorKind::Other => ErrorKind::Other,
        };
        let message = log::clean(&error.message);
        let message =
            if message.trim().is_empty() { "the component failed and did not say why".to_owned() } else { message };
        Error::new(kind, message)
    }
}
