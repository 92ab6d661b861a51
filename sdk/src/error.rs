//! Shorthands for the contract's error: one line for a person, which names what was tried and what would help.

use crate::{Error, ErrorKind};

macro_rules! constructors {
    ($($(#[$doc:meta])* $name:ident => $kind:ident),* $(,)?) => {
        impl Error {
            $($(#[$doc])*
            pub fn $name(message: impl Into<String>) -> Self {
                Error { kind: ErrorKind::$kind, message: message.into(), code: None }
            })*
        }
    };
}

constructors! {
    /// Not reachable, closed, timed out: the same call may work later.
    unavailable => Unavailable,
    /// The storage system takes no more now, or is starting; nothing was done. The host does not stop calling for it.
    busy => Busy,
    /// Refused for want of rights.
    denied => Denied,
    /// No room now: a quota, a full disk. What may be stored later is kept and tried again.
    exhausted => Exhausted,
    /// The request makes no sense as it stands, or the value is larger than the storage system takes: never tried again.
    invalid => Invalid,
    /// What was found is not what must be there.
    corrupt => Corrupt,
    /// The storage system cannot do this at all.
    unsupported => Unsupported,
    /// None of the others.
    other => Other,
}

impl Error {
    /// The same error with the storage system's own code: `SlowDown`, `MOVED`, `-704`.
    pub fn with_code(self, code: impl Into<String>) -> Self {
        Error { code: Some(code.into()), ..self }
    }

    /// Whether a server was waited for in vain, for its patience or to the end of the call, and did not refuse, reset or close: to ask
    /// it again costs as much again. No kind says so; the host names the bound that ran out.
    pub fn has_run_out(&self) -> bool {
        self.kind == ErrorKind::Unavailable
            && ["patience_ms", "deadline"].iter().any(|bound| self.message.contains(bound))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_kind_its_line_and_the_systems_code() {
        let errors = [Error::unavailable("u"), Error::denied("d"), Error::exhausted("e"), Error::invalid("i")];
        assert_eq!(
            errors.map(|error| (error.kind, error.message, error.code)),
            [
                (ErrorKind::Unavailable, "u".to_owned(), None),
                (ErrorKind::Denied, "d".to_owned(), None),
                (ErrorKind::Exhausted, "e".to_owned(), None),
                (ErrorKind::Invalid, "i".to_owned(), None),
            ]
        );
        let Error { kind, message, code } = Error::busy("busy").with_code("SlowDown");
        assert_eq!((kind, message.as_str(), code.as_deref()), (ErrorKind::Busy, "busy", Some("SlowDown")));
    }

    #[test]
    fn a_wait_that_ran_out_is_told_from_a_connection_that_was_closed() {
        for said in ["no byte for 5000 ms (patience_ms)", "the server did not answer by the deadline"] {
            assert!(Error::unavailable(said).has_run_out(), "{said}");
            assert!(!Error::corrupt(said).has_run_out(), "{said}");
        }
        assert!(!Error::unavailable("the server closed the connection").has_run_out());
    }
}
