//! First in, first out.

use super::Policy;
use super::links::{Links, Queue};

/// Gives up the entry that came first. The first access of an entry is its hot one.
pub struct Fifo {
    links: Links,
    queue: Queue,
}

impl Default for Fifo {
    fn default() -> Self {
        Fifo { links: Links::default(), queue: Queue::new(0) }
    }
}

impl Policy for Fifo {
    fn insert(&mut self, entry: u32, fingerprint: u64, bytes: u64) -> bool {
        self.links.admit(entry, fingerprint, bytes);
        self.queue.push(&mut self.links, entry);
        false
    }

    fn access(&mut self, entry: u32) -> bool {
        self.links.known(entry) && std::mem::replace(&mut self.links[entry].hotness, 1) == 0
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

/// Take out the oldest entry that is not pinned; the pinned ones that are passed over become the newest.
pub(super) fn oldest_unpinned(
    queue: &mut Queue,
    links: &mut Links,
    pinned: &mut dyn FnMut(u32) -> bool,
) -> Option<u32> {
    for _ in 0..queue.len {
        let oldest = queue.oldest()?;
        if !pinned(oldest) {
            queue.unlink(links, oldest);
            return Some(oldest);
        }
        queue.renew(links, oldest);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_access_of_an_entry_is_its_hot_one() {
        let mut fifo = Fifo::default();
        fifo.insert(3, 7, 100);
        assert_eq!([3, 3, 4].map(|entry| fifo.access(entry)), [true, false, false]);
    }
}
