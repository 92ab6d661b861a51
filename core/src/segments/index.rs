//! Where values lie, by the hash of their keys: 21 bytes a value, and no key. A record says itself whose it is, so two keys with one
//! hash are a miss for one of them and never the other one's value; the seed of a store keeps anybody from choosing such keys.

use std::collections::HashMap;

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::format::{Entry, Place, RECORD_ALIGNMENT, record_room};

/// Twenty bytes, which alignment would make twenty-four.
#[derive(Clone, Copy)]
struct Slot {
    hash: [u32; 2],
    segment: u32,
    unit: u32,
    len: u32,
}

impl Slot {
    fn hash(&self) -> u64 {
        u64::from(self.hash[0]) | u64::from(self.hash[1]) << 32
    }
}

/// What is known of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Values that lie there, and their bytes.
    pub values: u64,
    pub bytes: u64,
    /// Behind the last record that was put there, in units.
    pub end: u32,
    /// What lies from this unit on is nothing.
    pub bad_from: Option<u32>,
}

/// What the entries of a log come to.
pub struct Index {
    seed: u64,
    slots: HashTable<Slot>,
    segments: HashMap<u32, Segment>,
    /// The greatest number of a segment that was taken.
    latest: u32,
}

impl Index {
    pub fn new(seed: u64) -> Self {
        Index { seed, slots: HashTable::new(), segments: HashMap::new(), latest: 0 }
    }

    fn hash(&self, key: &[u8]) -> u64 {
        xxh3_64_with_seed(key, self.seed)
    }

    /// Where the value of a key lies, if it does.
    pub fn find(&self, key: &[u8]) -> Option<Place> {
        let hash = self.hash(key);
        let slot = self.slots.find(hash, |slot| slot.hash() == hash)?;
        let place = Place { segment: slot.segment, unit: slot.unit, len: slot.len };
        self.holds(&place).then_some(place)
    }

    /// Whether what was put at a place is still something.
    fn holds(&self, place: &Place) -> bool {
        self.segments.get(&place.segment).is_some_and(|segment| segment.bad_from.is_none_or(|from| place.unit < from))
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The number that the next segment gets.
    pub fn next_segment(&self) -> Option<u32> {
        self.latest.checked_add(1)
    }

    pub fn segments(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.segments.iter().map(|(number, segment)| (*number, segment))
    }

    /// Whether an entry of the log still says something.
    pub fn is_live(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Put { key, place } => self.find(key) == Some(*place),
            Entry::Taken { segment } | Entry::Bad { segment, .. } => self.segments.contains_key(segment),
            // What they took away is not written again.
            Entry::Deleted { .. } | Entry::Evicted { .. } => false,
        }
    }

    /// What a log that is written anew begins with, so that no number is used twice.
    pub fn latest(&self) -> [Entry; 2] {
        [Entry::Taken { segment: self.latest }, Entry::Evicted { segment: self.latest }]
    }

    /// Let an entry take effect.
    pub fn apply(&mut self, entry: &Entry) {
        match entry {
            // Of a segment that nobody took, or that is gone: the place may be another one's.
            Entry::Put { place, .. } if !self.segments.contains_key(&place.segment) => {}
            Entry::Put { key, place } => {
                let hash = self.hash(key);
                self.forget(hash);
                let slot = Slot {
                    hash: [hash as u32, (hash >> 32) as u32],
                    segment: place.segment,
                    unit: place.unit,
                    len: place.len,
                };
                self.slots.insert_unique(hash, slot, Slot::hash);
                if let Some(segment) = self.segments.get_mut(&place.segment) {
                    segment.values += 1;
                    segment.bytes += u64::from(place.len);
                    let room = record_room(key.len(), place.len.into()) / RECORD_ALIGNMENT;
                    segment.end = segment.end.max(place.unit.saturating_add(room as u32));
                }
            }
            Entry::Deleted { key } => self.forget(self.hash(key)),
            Entry::Taken { segment } => {
                self.segments.entry(*segment).or_default();
                self.latest = self.latest.max(*segment);
            }
            Entry::Evicted { segment } => {
                if self.segments.remove(segment).is_some_and(|segment| segment.values > 0) {
                    self.slots.retain(|slot| slot.segment != *segment);
                }
            }
            Entry::Bad { segment, from } => {
                if let Some(segment) = self.segments.get_mut(segment) {
                    segment.bad_from = Some(segment.bad_from.map_or(*from, |before| before.min(*from)));
                }
            }
        }
    }

    fn forget(&mut self, hash: u64) {
        if let Ok(slot) = self.slots.find_entry(hash, |slot| slot.hash() == hash) {
            let (slot, _) = slot.remove();
            if let Some(segment) = self.segments.get_mut(&slot.segment) {
                segment.values -= 1;
                segment.bytes -= u64::from(slot.len);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &[u8], segment: u32, unit: u32, len: u32) -> Entry {
        Entry::Put { key: key.to_vec(), place: Place { segment, unit, len } }
    }

    fn index(entries: &[Entry]) -> Index {
        let mut index = Index::new(7);
        entries.iter().for_each(|entry| index.apply(entry));
        index
    }

    #[test]
    fn the_last_entry_of_a_key_counts() {
        let taken = |segment| Entry::Taken { segment };
        let all = index(&[taken(1), taken(2), put(b"a", 1, 0, 10), put(b"b", 1, 1, 20), put(b"a", 2, 5, 30)]);
        assert_eq!(all.find(b"a"), Some(Place { segment: 2, unit: 5, len: 30 }));
        assert_eq!((all.find(b"b").map(|place| place.segment), all.find(b"c"), all.len()), (Some(1), None, 2));
        let of =
            |index: &Index, number: u32| index.segments().find(|(own, _)| *own == number).map(|(_, segment)| *segment);
        assert_eq!(of(&all, 1), Some(Segment { values: 1, bytes: 20, end: 2, bad_from: None }));
        assert_eq!(all.next_segment(), Some(3));

        let mut gone = all;
        gone.apply(&Entry::Deleted { key: b"a".to_vec() });
        assert_eq!((gone.find(b"a"), of(&gone, 2).map(|segment| segment.values)), (None, Some(0)));
        gone.apply(&Entry::Evicted { segment: 1 });
        assert_eq!((gone.find(b"b"), gone.len(), of(&gone, 1)), (None, 0, None));
        // What a writer says of a segment that was taken from it is nothing.
        gone.apply(&put(b"late", 1, 0, 1));
        assert_eq!((gone.find(b"late"), gone.next_segment()), (None, Some(3)));
    }

    #[test]
    fn what_lies_behind_a_sync_that_failed_is_nothing() {
        let mut index = index(&[Entry::Taken { segment: 1 }, put(b"before", 1, 3, 1), put(b"behind", 1, 4, 1)]);
        index.apply(&Entry::Bad { segment: 1, from: 4 });
        assert_eq!((index.find(b"before").is_some(), index.find(b"behind")), (true, None));
        index.apply(&Entry::Bad { segment: 1, from: 9 });
        assert_eq!(index.find(b"behind"), None);
        index.apply(&Entry::Bad { segment: 1, from: 0 });
        assert_eq!(index.find(b"before"), None);
    }

    #[test]
    fn ten_million_values_have_room_in_400_mb() {
        assert_eq!(size_of::<Slot>(), 20);
        let mut index = Index::new(7);
        index.apply(&Entry::Taken { segment: 1 });
        (0..100_000_u32).for_each(|n| index.apply(&put(&n.to_le_bytes(), 1, n, 4096)));
        assert_eq!(index.len(), 100_000);
        // A power of two of buckets, seven eighths of them filled, with a byte beside each.
        assert!(index.slots.capacity() < 2 * 100_000);
        let buckets = (10_000_000_u64 * 8 / 7).next_power_of_two();
        assert!(buckets * (20 + 1) < 400_000_000);
    }
}
