//! Chunks that this process has removed a moment ago, so that no save publishes a manifest over them because it was told before that they
//! are there.

use std::time::Instant;

use super::{ChunkHash, ChunkMap};
use crate::limits::{CONFIRMED_FOR, MAX_REMOVED_CHUNKS};

/// What was removed within [`CONFIRMED_FOR`]; what a backend said before that is asked again in any case.
#[derive(Default)]
pub struct Removed {
    chunks: ChunkMap<Instant>,
    /// There were too many: each chunk counts as removed then.
    all: Option<Instant>,
}

impl Removed {
    /// A chunk is about to be removed, or was.
    pub fn note(&mut self, hash: ChunkHash, now: Instant) {
        if self.chunks.len() >= MAX_REMOVED_CHUNKS {
            self.chunks.retain(|_, removed| now.saturating_duration_since(*removed) < CONFIRMED_FOR);
        }
        if self.chunks.len() >= MAX_REMOVED_CHUNKS {
            self.chunks.clear();
            self.all = Some(now);
        }
        self.chunks.insert(hash, now);
    }

    /// Whether a chunk that the backend was known to have at `confirmed` may have been removed since.
    pub fn is_since(&self, hash: &ChunkHash, confirmed: Instant) -> bool {
        let since = |removed: &Instant| *removed >= confirmed;
        self.all.as_ref().is_some_and(since) || self.chunks.get(hash).is_some_and(since)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::fake::hashes;
    use super::*;

    #[test]
    fn what_was_removed_is_not_taken_to_be_there_and_too_many_are_not_remembered() {
        let (begun, chunks) = (Instant::now(), hashes(3));
        let after = |millis| begun + Duration::from_millis(millis);
        let mut removed = Removed::default();
        removed.note(chunks[0], after(10));
        assert!(removed.is_since(&chunks[0], after(9)) && removed.is_since(&chunks[0], after(10)));
        assert!(!removed.is_since(&chunks[0], after(11)) && !removed.is_since(&chunks[1], after(9)));
        let hash = |n: usize| ChunkHash::new(&n.to_le_bytes()).unwrap();
        (0..MAX_REMOVED_CHUNKS).for_each(|n| removed.note(hash(n), after(20)));
        assert!(removed.chunks.len() <= MAX_REMOVED_CHUNKS);
        assert!(removed.is_since(&chunks[1], after(20)) && !removed.is_since(&chunks[1], after(21)));
        // What was removed so long ago needs no room.
        let mut removed = Removed::default();
        (0..MAX_REMOVED_CHUNKS).for_each(|n| removed.note(hash(n), after(20)));
        removed.note(chunks[0], after(20) + CONFIRMED_FOR);
        assert!(removed.chunks.len() == 1 && removed.all.is_none());
    }
}
