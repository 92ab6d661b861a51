//! What is known of the chunks of one store, whoever put them: which the backend has, and which are damaged there. Pure, and
//! bounded: each set forgets its oldest hashes. What it says of presence is a hint, since a backend may evict; a commit never
//! relies on it.

use super::hash::{ChunkHash, ChunkSet};
use crate::limits;

pub struct KnownChunks {
    present: RecentSet,
    damaged: RecentSet,
}

impl Default for KnownChunks {
    fn default() -> Self {
        KnownChunks { present: RecentSet::new(limits::KNOWN_CHUNKS), damaged: RecentSet::new(limits::DAMAGED_CHUNKS) }
    }
}

impl KnownChunks {
    /// The backend has a chunk, whole: it was stored in place of whatever was there.
    pub fn stored(&mut self, hash: ChunkHash) {
        self.damaged.remove(&hash);
        self.present.insert(hash);
    }

    /// The backend has a chunk, as it answered to a put that replaces nothing. One that was found damaged meanwhile is so still.
    pub fn existed(&mut self, hash: ChunkHash) {
        if !self.damaged.contains(&hash) {
            self.present.insert(hash);
        }
    }

    /// The backend does not have it.
    pub fn absent(&mut self, hash: &ChunkHash) {
        self.present.remove(hash);
    }

    /// Chunks were evicted, and nobody said which.
    pub fn forget_present(&mut self) {
        self.present = RecentSet::new(limits::KNOWN_CHUNKS);
    }

    /// Its stored bytes are wrong; the next put replaces them. Returns whether that is news.
    pub fn found_damaged(&mut self, hash: ChunkHash) -> bool {
        self.present.remove(&hash);
        self.damaged.insert(hash)
    }

    pub fn is_present(&self, hash: &ChunkHash) -> bool {
        self.present.contains(hash)
    }

    pub fn is_damaged(&self, hash: &ChunkHash) -> bool {
        self.damaged.contains(hash)
    }
}

/// A set that holds the last `capacity` hashes at least, and twice as many at most.
struct RecentSet {
    capacity: usize,
    young: ChunkSet,
    old: ChunkSet,
}

impl RecentSet {
    fn new(capacity: usize) -> Self {
        RecentSet { capacity, young: ChunkSet::default(), old: ChunkSet::default() }
    }

    /// Returns whether the hash was not in the set.
    fn insert(&mut self, hash: ChunkHash) -> bool {
        if self.young.len() >= self.capacity {
            self.old = std::mem::take(&mut self.young);
        }
        let known = self.old.contains(&hash);
        self.young.insert(hash) && !known
    }

    fn contains(&self, hash: &ChunkHash) -> bool {
        self.young.contains(hash) || self.old.contains(hash)
    }

    fn remove(&mut self, hash: &ChunkHash) {
        self.young.remove(hash);
        self.old.remove(hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u8) -> ChunkHash {
        ChunkHash::new(&[n]).unwrap()
    }

    #[test]
    fn the_newest_are_kept_and_memory_is_bounded() {
        let mut set = RecentSet::new(10);
        (0..100).for_each(|n| assert!(set.insert(hash(n))));
        assert!(!set.insert(hash(99)));
        assert!((90..100).all(|n| set.contains(&hash(n))));
        assert!((0..100).filter(|n| set.contains(&hash(*n))).count() <= 20);
        set.remove(&hash(99));
        assert!(!set.contains(&hash(99)));
    }

    #[test]
    fn a_put_that_replaced_nothing_does_not_mend_what_was_found_damaged_meanwhile() {
        let mut known = KnownChunks::default();
        known.found_damaged(hash(1));
        known.existed(hash(1));
        assert!(!known.is_present(&hash(1)) && known.is_damaged(&hash(1)));
        known.existed(hash(2));
        assert!(known.is_present(&hash(2)));
    }

    #[test]
    fn a_damaged_chunk_is_not_present_until_it_is_stored_again() {
        let mut known = KnownChunks::default();
        known.stored(hash(1));
        assert!(known.is_present(&hash(1)));
        assert!(known.found_damaged(hash(1)) && !known.found_damaged(hash(1)));
        assert!(!known.is_present(&hash(1)) && known.is_damaged(&hash(1)));
        known.stored(hash(1));
        assert!(known.is_present(&hash(1)) && !known.is_damaged(&hash(1)));
    }
}
