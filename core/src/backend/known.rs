//! What is known of the chunks of one store, whoever put them: which the backend has, and which are damaged there. Pure, and
//! bounded: each set forgets its oldest hashes. What it says of presence is a hint, since a backend may evict; a commit never
//! relies on it.

use super::hash::{ChunkHash, RecentChunks};
use crate::limits;

pub struct KnownChunks {
    present: RecentChunks<()>,
    damaged: RecentChunks<()>,
}

impl Default for KnownChunks {
    fn default() -> Self {
        KnownChunks {
            present: RecentChunks::new(limits::KNOWN_CHUNKS),
            damaged: RecentChunks::new(limits::DAMAGED_CHUNKS),
        }
    }
}

impl KnownChunks {
    /// The backend has a chunk, whole: it was stored in place of whatever was there.
    pub fn stored(&mut self, hash: ChunkHash) {
        self.damaged.remove(&hash);
        self.present.insert(hash, ());
    }

    /// The backend has a chunk, as it answered to a put that replaces nothing. One that was found damaged meanwhile is so still.
    pub fn existed(&mut self, hash: ChunkHash) {
        if !self.damaged.contains(&hash) {
            self.present.insert(hash, ());
        }
    }

    /// The backend does not have it.
    pub fn absent(&mut self, hash: &ChunkHash) {
        self.present.remove(hash);
    }

    /// Chunks were evicted, and nobody said which.
    pub fn forget_present(&mut self) {
        self.present = RecentChunks::new(limits::KNOWN_CHUNKS);
    }

    /// Its stored bytes are wrong; the next put replaces them. Returns whether that is news.
    pub fn found_damaged(&mut self, hash: ChunkHash) -> bool {
        self.present.remove(&hash);
        let is_news = !self.damaged.contains(&hash);
        self.damaged.insert(hash, ());
        is_news
    }

    pub fn is_present(&self, hash: &ChunkHash) -> bool {
        self.present.contains(hash)
    }

    pub fn is_damaged(&self, hash: &ChunkHash) -> bool {
        self.damaged.contains(hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u8) -> ChunkHash {
        ChunkHash::new(&[n]).unwrap()
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
