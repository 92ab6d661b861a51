//! What was put after what. Where a save begins as an earlier one did, as it does when a conversation has grown, the
//! backend can be asked for all that is likely to come in one question.

use kv_platform::sync::Mutex;

use crate::backend::{ChunkHash, ChunkSet, RecentChunks};
use crate::limits::FOLLOWED_CHUNKS;

pub(super) struct Successors(Mutex<RecentChunks<ChunkHash>>);

impl Default for Successors {
    fn default() -> Self {
        Successors(Mutex::new(RecentChunks::new(FOLLOWED_CHUNKS)))
    }
}

impl Successors {
    pub(super) fn add(&self, chunk: ChunkHash, next: ChunkHash) {
        self.0.lock().insert(chunk, next);
    }

    /// A chunk and those that came after it the last time, at most `limit`, each once.
    pub(super) fn from(&self, chunk: ChunkHash, limit: usize) -> Vec<ChunkHash> {
        let successors = self.0.lock();
        let next = |chunk: &ChunkHash| successors.get(chunk).copied();
        let mut seen = ChunkSet::default();
        let new = |chunk: &ChunkHash| seen.insert(*chunk);
        std::iter::successors(Some(chunk), next).take_while(new).take(limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(n: u32) -> ChunkHash {
        ChunkHash::new(&n.to_le_bytes()).unwrap()
    }

    #[test]
    fn a_run_is_foreseen_up_to_its_limit_and_its_loop() {
        let followed = Successors::default();
        (0..9).for_each(|n| followed.add(chunk(n), chunk(n + 1)));
        assert!(followed.from(chunk(5), 100) == [5, 6, 7, 8, 9].map(chunk));
        assert!(followed.from(chunk(0), 3) == [0, 1, 2].map(chunk));
        followed.add(chunk(9), chunk(8));
        assert!(followed.from(chunk(7), 100) == [7, 8, 9].map(chunk));
    }

    #[test]
    fn memory_is_bounded() {
        let followed = Successors::default();
        (0..5 * FOLLOWED_CHUNKS as u32).for_each(|n| followed.add(chunk(n), chunk(n + 1)));
        assert!(followed.from(chunk(0), 2) == [chunk(0)], "it is forgotten");
    }
}
