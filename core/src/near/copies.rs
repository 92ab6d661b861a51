//! What a copy is, and how old it may be.

use std::sync::Arc;

use crate::payload::Buffer;

/// The bytes of a chunk, and when the backend was last known to have it.
#[derive(Clone)]
pub(super) struct Copy {
    pub data: Arc<Buffer>,
    /// Nanoseconds since 1970-01-01 UTC: before the call began that brought it, or that confirmed it.
    pub confirmed: u64,
}

/// What is known when a call of the backend begins. What the call brings is kept only if no delete came in between.
#[derive(Clone, Copy)]
pub(super) struct Since {
    pub time: u64,
    pub deletes: u64,
}

impl Copy {
    /// Whether it was confirmed within the last `ttl` nanoseconds. A time in the future is that of a clock that was wrong.
    pub fn is_fresh(&self, now: u64, ttl: u64) -> bool {
        now.checked_sub(self.confirmed).is_some_and(|age| age < ttl)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_fresh_for_as_long_as_was_said() {
        let copy = Copy { data: Arc::new(Buffer::concat(&[b"x"]).unwrap()), confirmed: 1000 };
        assert!(copy.is_fresh(1000, 1) && copy.is_fresh(1009, 10));
        assert!(!copy.is_fresh(1010, 10) && !copy.is_fresh(999, 10), "at its end, and before it began");
    }
}
