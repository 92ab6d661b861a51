//! Least recently used.

use super::Policy;
use super::fifo::oldest_unpinned;
use super::links::{Links, Queue};

/// Gives up the entry whose last use is the longest ago. The first access of an entry is its hot one.
pub struct Lru {
    links: Links,
    queue: Queue,
}

impl Default for Lru {
    fn default() -> Self {
        Lru { links: Links::default(), queue: Queue::new(0) }
    }
}

impl Policy for Lru {
    fn insert(&mut self, entry: u32, fingerprint: u64, bytes: u64) -> bool {
        self.links.admit(entry, fingerprint, bytes);
        self.queue.push(&mut self.links, entry);
        false
    }

    fn access(&mut self, entry: u32) -> bool {
        if !self.links.known(entry) {
            return false;
        }
        self.queue.renew(&mut self.links, entry);
        std::mem::replace(&mut self.links[entry].hotness, 1) == 0
    }

    fn remove(&mut self, entry: u32) {
        if self.links.known(entry) {
            self.queue.unlink(&mut self.links, entry);
        }
    }

    fn victim(&mut self, pinned: &mut dyn FnMut(u32) -> bool) -> Option<u32> {
        oldest_unpinned(&mut self.queue, &mut self.links, pinned)
    }

    fn bytes(&self) -> u64 {
        self.queue.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_access_of_an_entry_is_its_hot_one() {
        let mut lru = Lru::default();
        lru.insert(3, 7, 100);
        assert_eq!([3, 3, 4].map(|entry| lru.access(entry)), [true, false, false]);
    }
}
