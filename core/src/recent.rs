//! A bounded map that forgets what was put into it longest ago. Pure.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

/// Holds the last `capacity` keys at least, and twice as many at most.
pub(crate) struct RecentMap<K, V, S> {
    capacity: usize,
    young: HashMap<K, V, S>,
    old: HashMap<K, V, S>,
}

impl<K: Hash + Eq, V, S: BuildHasher + Default> RecentMap<K, V, S> {
    pub(crate) fn new(capacity: usize) -> Self {
        RecentMap { capacity, young: HashMap::default(), old: HashMap::default() }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(crate) fn contains(&self, key: &K) -> bool {
        self.get(key).is_some()
    }

    /// It is the newest from now on.
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= self.capacity {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_are_kept_and_memory_is_bounded() {
        let mut map: RecentMap<u32, u32, std::hash::RandomState> = RecentMap::new(10);
        (0..100).for_each(|n| map.insert(n, n));
        assert!((90..100).all(|n| map.get(&n) == Some(&n)));
        assert!((0..100).filter(|n| map.contains(n)).count() <= 20);
        map.insert(85, 1);
        assert_eq!(map.get(&85), Some(&1), "the newer value counts");
        map.remove(&85);
        assert!(!map.contains(&85));
    }
}
