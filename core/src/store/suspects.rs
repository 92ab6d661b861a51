//! Chunks that were found damaged, and what became of them: what [`damage`](super::damage) decides by.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;
use twox_hash::XxHash3_128;

use crate::backend::{ChunkHash, RecentChunks};
use crate::error::Error;
use crate::limits;
use crate::payload::{Buffer, Damaged};

/// What became of a damaged chunk.
pub(crate) enum Damage {
    /// It was damaged on the way only: these are its bytes.
    Passing(Arc<Buffer>),
    /// The backend does not have it any more.
    Removed,
    /// It is left where it is, for the next put of this process to replace it. Why.
    Stays(Error),
}

/// How damaged bytes of a chunk are told from sound ones.
pub(crate) struct Judge<'a> {
    pub is_sound: &'a dyn Fn(&[u8]) -> bool,
    /// It may be removed: that its bytes are wrong does not rest on what the caller says.
    pub removable: bool,
}

/// Chunks that were found damaged once: with which bytes, and when first. Bounded: the oldest are forgotten, and are then found
/// for the first time again.
pub(super) struct Suspects(Mutex<RecentChunks<(Damaged, Instant)>>);

impl Default for Suspects {
    fn default() -> Self {
        Suspects(Mutex::new(RecentChunks::new(limits::DAMAGED_CHUNKS)))
    }
}

/// What is to be done about a chunk that was found damaged.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Suspicion {
    /// It is found so for the first time, or with other bytes than before.
    New,
    /// It was found so a moment ago.
    Again,
    /// It was found so long enough ago.
    Old,
}

impl Suspects {
    /// `old`: for how long it must have been found so.
    pub(super) fn found(&self, hash: &ChunkHash, damaged: Damaged, now: Instant, old: Duration) -> Suspicion {
        let mut found = self.0.lock();
        match found.get(hash) {
            Some((before, since)) if *before == damaged => match now.saturating_duration_since(*since) >= old {
                true => Suspicion::Old,
                false => Suspicion::Again,
            },
            _ => {
                found.insert(*hash, (damaged, now));
                Suspicion::New
            }
        }
    }

    pub(super) fn forget(&self, hash: &ChunkHash) {
        self.0.lock().remove(hash);
    }
}

/// What tells these bytes from other damaged ones.
pub(crate) fn damaged(bytes: &[u8]) -> Damaged {
    Damaged { len: bytes.len(), digest: XxHash3_128::oneshot(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::DAMAGED_CHUNKS;

    const REMOVED_AFTER: Duration = Duration::from_secs(5);

    fn chunk(n: usize) -> ChunkHash {
        ChunkHash::new(&n.to_le_bytes()).unwrap()
    }

    #[test]
    fn only_the_same_bytes_seconds_later_make_an_old_suspicion() {
        let (suspects, now) = (Suspects::default(), Instant::now());
        let found = |bytes: &[u8], at| suspects.found(&chunk(1), damaged(bytes), at, REMOVED_AFTER);
        assert_eq!(found(b"x", now), Suspicion::New);
        assert_eq!(found(b"x", now + REMOVED_AFTER / 2), Suspicion::Again);
        assert_eq!(found(b"x", now + REMOVED_AFTER), Suspicion::Old);
        assert_eq!(found(b"y", now + 2 * REMOVED_AFTER), Suspicion::New, "other bytes are another damage");
        assert_eq!(found(b"y", now + 2 * REMOVED_AFTER), Suspicion::Again);
        suspects.forget(&chunk(1));
        assert_eq!(found(b"y", now + 3 * REMOVED_AFTER), Suspicion::New);
    }

    #[test]
    fn suspects_are_bounded() {
        let (suspects, now) = (Suspects::default(), Instant::now());
        (0..5 * DAMAGED_CHUNKS)
            .for_each(|n| assert_eq!(suspects.found(&chunk(n), damaged(b"x"), now, Duration::ZERO), Suspicion::New));
        assert_eq!(suspects.found(&chunk(0), damaged(b"x"), now, Duration::ZERO), Suspicion::New, "it is forgotten");
    }
}
