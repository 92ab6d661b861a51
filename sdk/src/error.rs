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
    /// Not reachable, closed, timed out, busy: the same call may work later.
    unavailable => Unavailable,
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
}
