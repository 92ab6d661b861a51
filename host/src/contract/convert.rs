//! Errors across the boundary. What a guest says reaches an operator's log, so it becomes one clean line.

use crate::contract::bindings::kv_store::backend::types;
use crate::error::{Error, ErrorKind};
use crate::{limits, log};

/// What a function of the contract comes to: a trap, or what the guest gets.
pub(crate) type GuestAnswer<T> = wasmtime::Result<Result<T, types::Error>>;

/// A host function's answer: its failure is the guest's to handle, and no trap.
pub(crate) fn answered<T>(result: Result<T, Error>) -> GuestAnswer<T> {
    Ok(result.map_err(types::Error::from))
}

impl From<Error> for types::Error {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            _ if error.is_busy() => types::ErrorKind::Busy,
            ErrorKind::Unavailable => types::ErrorKind::Unavailable,
            ErrorKind::Denied => types::ErrorKind::Denied,
            ErrorKind::Exhausted => types::ErrorKind::Exhausted,
            ErrorKind::Invalid => types::ErrorKind::Invalid,
            ErrorKind::Corrupt => types::ErrorKind::Corrupt,
            ErrorKind::Unsupported => types::ErrorKind::Unsupported,
            _ => types::ErrorKind::Other,
        };
        types::Error { kind, message: error.to_string(), code: None }
    }
}

impl From<types::Error> for Error {
    fn from(error: types::Error) -> Self {
        let busy = error.kind == types::ErrorKind::Busy;
        let kind = match error.kind {
            types::ErrorKind::Unavailable | types::ErrorKind::Busy => ErrorKind::Unavailable,
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
        let message = match error.code.map(|code| brief(&code)) {
            Some(code) if !code.is_empty() && !message.contains(&code) => format!("{message} ({code})"),
            _ => message,
        };
        if busy { Error::busy(message) } else { Error::new(kind, message) }
    }
}

/// A storage system's own code, as a line of an operator's log may have it.
fn brief(code: &str) -> String {
    log::clean(code).chars().take(limits::MAX_ERROR_CODE_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(message: &str, code: &str) -> String {
        let kind = types::ErrorKind::Unavailable;
        Error::from(types::Error { kind, message: message.into(), code: Some(code.into()) }).to_string()
    }

    #[test]
    fn a_code_is_told_once_on_one_line_and_cut() {
        assert_eq!(told("the bucket is busy", "SlowDown"), "the bucket is busy (SlowDown)");
        assert_eq!(told("MOVED 1 h:1", "MOVED"), "MOVED 1 h:1");
        assert_eq!(told("why", ""), "why");
        let long = told("why", &"a\nb".repeat(1 << 20));
        assert!(
            !long.contains('\n') && long.chars().count() <= limits::MAX_ERROR_CODE_CHARS + "why ()".len(),
            "{long}"
        );
    }
}
