//! A set of hashes that forgets: it holds the last `capacity` at least and twice so many at most.

use std::sync::{Mutex, MutexGuard};

use super::hash::{ChunkHash, ChunkSet};

pub(super) struct Seen {
    capacity: usize,
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    young: ChunkSet,
    old: ChunkSet,
}

impl Seen {
    pub(super) fn new(capacity: usize) -> Self {
        Seen { capacity, generations: Mutex::default() }
    }

    /// Answers whether the hash is new here.
    pub(super) fn add(&self, hash: ChunkHash) -> bool {
        let mut sets = self.lock();
        if sets.young.len() >= self.capacity {
            sets.old = std::mem::take(&mut sets.young);
        }
        let known = sets.old.contains(&hash);
        sets.young.insert(hash) && !known
    }

    pub(super) fn holds(&self, hash: &ChunkHash) -> bool {
        let sets = self.lock();
        sets.young.contains(hash) || sets.old.contains(hash)
    }

    pub(super) fn forget(&self, hash: &ChunkHash) {
        let mut sets = self.lock();
        sets.young.remove(hash);
        sets.old.remove(hash);
    }

    fn lock(&self) -> MutexGuard<'_, Generations> {
        self.generations.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_memory_is_bounded() {
        let seen = Seen::new(10);
        let hash = |n: u8| ChunkHash::new(&[n]).unwrap();
        (0..100).for_each(|n| assert!(seen.add(hash(n))));
        assert!(!seen.add(hash(99)));
        assert!((90..100).all(|n| seen.holds(&hash(n))));
        assert!((0..100).filter(|n| seen.holds(&hash(*n))).count() <= 20);
        seen.forget(&hash(99));
        assert!(!seen.holds(&hash(99)));
    }
}
