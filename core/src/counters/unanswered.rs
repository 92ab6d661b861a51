//! Why a chunk or a manifest that was asked for was not answered, as far as this process knows: exactly one reason for each.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::Counters;
use crate::error::{Error, ErrorKind};
use crate::until::Until;

/// Declares the reasons: a variant, its name, what it says.
macro_rules! reasons {
    ($($reason:ident $name:literal $text:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Unanswered { $(#[doc = $text] $reason,)* }

        /// Name and text, in the order of their numbers.
        const REASONS: [(&str, &str); [$($name),*].len()] = [$(($name, $text),)*];
    };
}

reasons! {
    Absent "absent" "it is not there";
    Damaged "damaged" "its bytes are not those that were put";
    Older "older" "it is older than a manifest that was read before under this name";
    Later "later" "it lies in an envelope of a later version";
    Flag "flag" "it is not what a flag of the call says of it";
    Descriptor "descriptor" "it lies under another descriptor than the reader's";
    Late "late" "the call's time ran out, or its caller cancelled it";
    Breaker "breaker" "the circuit breaker is open";
    Refused "refused" "it was refused: a quota, a limit, rights, or no room to serve it now";
    Failed "failed" "the backend or its server failed";
}

impl Unanswered {
    /// Why a failure left it unanswered.
    pub fn of(error: &Error, until: &Until) -> Self {
        match error.kind() {
            _ if error.is_by_breaker() => Unanswered::Breaker,
            ErrorKind::Cancelled => Unanswered::Late,
            ErrorKind::Denied | ErrorKind::Exhausted | ErrorKind::Invalid | ErrorKind::Unsupported => {
                Unanswered::Refused
            }
            _ if error.is_busy() => Unanswered::Refused,
            ErrorKind::Unavailable if error.waited().is_some() || until.is_over() => Unanswered::Late,
            _ => Unanswered::Failed,
        }
    }

    /// For a log line.
    pub fn text(self) -> &'static str {
        REASONS.get(self as usize).map_or("", |(_, text)| text)
    }
}

/// One number for each reason.
pub(super) struct ByReason([AtomicU64; REASONS.len()]);

impl ByReason {
    pub(super) fn new() -> Self {
        ByReason(std::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// By name.
    pub(super) fn read(&self) -> impl Iterator<Item = (&'static str, u64)> {
        REASONS.iter().zip(&self.0).map(|((name, _), count)| (*name, count.load(Relaxed)))
    }
}

impl Counters {
    pub fn unanswered(&self, reason: Unanswered, items: u64) {
        if let Some(counter) = self.unanswered.0.get(reason as usize) {
            counter.fetch_add(items, Relaxed);
        }
    }
}
