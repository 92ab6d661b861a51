//! Where values lie, by the hash of their keys: 21 bytes a value, and no key. A record says itself whose it is, so two keys with one
//! hash are a miss for one of them and never the other one's value; the seed of a store keeps anybody from choosing such keys.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use hashbrown::HashTable;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::format::{Key, LogEntry, Place, RECORD_ALIGNMENT, SPACES, UNIT_BITS, record_room};

/// Twenty bytes, which alignment would make twenty-four.
struct Slot {
    hash: [u32; 2],
    segment: u32,
    /// The place in units, the space, whether the value is sure to be what was put, and whether it was used of late.
    unit: AtomicU32,
    len: u32,
}

const USED: u32 = 1 << 31;
const SURE: u32 = 1 << 30;
const UNIT: u32 = (1 << UNIT_BITS) - 1;

impl Slot {
    fn hash(&self) -> u64 {
        u64::from(self.hash[0]) | u64::from(self.hash[1]) << 32
    }

    fn place(&self) -> Place {
        Place { segment: self.segment, unit: self.unit.load(Relaxed) & UNIT, len: self.len }
    }

    fn space(&self) -> usize {
        ((self.unit.load(Relaxed) & !(USED | SURE)) >> UNIT_BITS) as usize
    }

    fn is_used(&self) -> bool {
        self.unit.load(Relaxed) & USED != 0
    }

    fn note_use(&self) {
        // Most are noted already: a line of the cache that is only read is shared by all threads.
        if !self.is_used() {
            self.unit.fetch_or(USED, Relaxed);
        }
    }
}

/// Values, and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// How many there are.
    pub values: u64,
    /// Without their keys and what a record adds.
    pub bytes: u64,
}

impl Total {
    fn add(&mut self, len: u32) {
        self.values += 1;
        self.bytes += u64::from(len);
    }

    fn take(&mut self, len: u32) {
        self.values = self.values.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(u64::from(len));
    }
}

/// What is known of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// What lies there.
    pub total: Total,
    /// Behind the last record that was put there, in units.
    pub end: u32,
    /// What lies before this unit is on the disk.
    pub synced: u32,
    /// What lies from this unit on is nothing.
    pub bad_from: Option<u32>,
    /// From this unit on lies what was read out of the log first, and is not known to be on the disk: a power loss may have taken it.
    pub old_from: Option<u32>,
}

/// What the entries of a log come to.
pub struct Index {
    seed: u64,
    slots: HashTable<Slot>,
    /// In their order: who picks one of several that are alike picks the same each time.
    segments: BTreeMap<u32, Segment>,
    /// Syncs that are under way: of which segment, and the first place that was put there since.
    syncs: BTreeMap<u64, (u32, u32)>,
    last_sync: u64,
    /// Hashes of keys whose values did not hold, and of which the log says nothing newer.
    damaged: HashSet<u64>,
    /// The same of the log that was followed before this one, which may say the same: what they have is read before somebody goes by it.
    doubted: HashSet<u64>,
    spaces: [Total; SPACES],
    /// The greatest number of a segment that was taken.
    latest: u32,
    /// Puts that were applied, and the bytes of their entries.
    puts: Total,
    /// The log is being read for the first time: a power loss may have come between an entry and this one's reader, and may have left the
    /// entry without its record.
    old: bool,
    /// The most values: a log that says more was not written by a store with these settings, and what it says too much is not there.
    most: usize,
}

impl Index {
    pub fn new(seed: u64, most: usize) -> Self {
        Index {
            seed,
            slots: HashTable::new(),
            segments: BTreeMap::new(),
            damaged: HashSet::new(),
            doubted: HashSet::new(),
            syncs: BTreeMap::new(),
            last_sync: 0,
            spaces: Default::default(),
            latest: 0,
            puts: Total::default(),
            old: true,
            most,
        }
    }

    /// That of a log that takes the place of the one which is followed.
    pub fn anew(former: &Index, seed: u64) -> Self {
        let doubted = match seed == former.seed {
            true => former.damaged.union(&former.doubted).copied().collect(),
            false => HashSet::new(),
        };
        Index { doubted, ..Index::new(seed, former.most) }
    }

    fn hash(&self, key: Key<'_>) -> u64 {
        xxh3_64_with_seed(key.bytes, self.seed.wrapping_add(u64::from(key.space)))
    }

    fn slot(&self, key: Key<'_>) -> Option<&Slot> {
        let hash = self.hash(key);
        let slot = self.slots.find(hash, |slot| slot.hash() == hash)?;
        self.holds(&slot.place()).then_some(slot)
    }

    /// Where the value of a key lies, if it does.
    pub fn find(&self, key: Key<'_>) -> Option<Place> {
        self.slot(key).map(Slot::place)
    }

    /// The same, for somebody who uses the value.
    pub fn find_to_use(&self, key: Key<'_>) -> Option<Place> {
        self.slot(key).inspect(|slot| slot.note_use()).map(Slot::place)
    }

    /// Whether there is a value that is sure to be what was put: it is on the disk, or the machine has run ever since.
    pub fn has_for_sure(&self, key: Key<'_>) -> bool {
        self.slot(key).is_some_and(|slot| self.is_sure(slot))
    }

    fn is_sure(&self, slot: &Slot) -> bool {
        let synced = |segment: &Segment| slot.place().unit < segment.synced;
        let is_doubted = !self.doubted.is_empty() && self.doubted.contains(&slot.hash());
        let is_synced = || self.segments.get(&slot.segment).is_some_and(synced);
        !is_doubted && (slot.unit.load(Relaxed) & SURE != 0 || is_synced())
    }

    /// What lies at a place was read, and is what was put.
    pub fn note_sure(&self, key: Key<'_>, place: &Place) {
        if let Some(slot) = self.slot(key).filter(|slot| slot.place() == *place) {
            slot.unit.fetch_or(SURE, Relaxed);
        }
    }

    /// All that the log says was read. What it says from now on is as it is written.
    pub fn followed(&mut self) {
        self.old = false;
    }

    /// Whether it is.
    pub fn is_followed(&self) -> bool {
        !self.old
    }

    /// Whether what was put at a place is still something.
    fn holds(&self, place: &Place) -> bool {
        self.segments.get(&place.segment).is_some_and(|segment| segment.bad_from.is_none_or(|from| place.unit < from))
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// What a space holds.
    pub fn total(&self, space: u8) -> Total {
        self.spaces.get(usize::from(space)).copied().unwrap_or_default()
    }

    /// The number that the next segment gets.
    pub fn next_segment(&self) -> Option<u32> {
        self.latest.checked_add(1)
    }

    pub fn segments(&self) -> impl Iterator<Item = (u32, &Segment)> {
        self.segments.iter().map(|(number, segment)| (*number, segment))
    }

    /// Whether what is put in a segment now will be found.
    pub fn takes(&self, segment: u32) -> bool {
        self.segments.get(&segment).is_some_and(|segment| segment.bad_from.is_none())
    }

    /// Whether a segment is one of the store.
    pub fn has(&self, segment: u32) -> bool {
        self.segments.contains_key(&segment)
    }

    /// Bytes of what was used of late, by segment. Where that is more than half of all, each value must be used again to count from now on.
    pub fn used(&self) -> HashMap<u32, u64> {
        let (mut used, mut all, mut of_all) = (HashMap::new(), 0, 0);
        for slot in &self.slots {
            of_all += u64::from(slot.len) + RECORD_ALIGNMENT;
            if slot.is_used() {
                all += u64::from(slot.len) + RECORD_ALIGNMENT;
                *used.entry(slot.segment).or_default() += u64::from(slot.len) + RECORD_ALIGNMENT;
            }
        }
        if all > of_all / 2 {
            for slot in &self.slots {
                slot.unit.fetch_and(!USED, Relaxed);
            }
        }
        used
    }

    /// The places in a segment whose values were used of late, in order.
    pub fn used_in(&self, segment: u32) -> Vec<Place> {
        let of_it = self.slots.iter().filter(|slot| slot.segment == segment && slot.is_used());
        let mut places: Vec<Place> = of_it.map(Slot::place).collect();
        places.sort_unstable_by_key(|place| place.unit);
        places
    }

    /// How many values of each space lie in a segment.
    pub fn counted(&self, segment: u32) -> [u64; SPACES] {
        let mut counted = [0; SPACES];
        for slot in self.slots.iter().filter(|slot| slot.segment == segment) {
            if let Some(count) = counted.get_mut(slot.space()) {
                *count += 1;
            }
        }
        counted
    }

    /// Bytes of a log that says what this index knows, about.
    pub fn log_bytes(&self) -> u64 {
        let each = self.puts.bytes.checked_div(self.puts.values).unwrap_or(0);
        self.slots.len() as u64 * each + self.segments.len() as u64 * 16
    }

    /// Whether an entry of the log still says something.
    pub fn is_live(&self, entry: &LogEntry) -> bool {
        match entry {
            LogEntry::Put { space, key, place } => self.find(Key { space: *space, bytes: key }) == Some(*place),
            LogEntry::Taken { segment } | LogEntry::Bad { segment, .. } => self.has(*segment),
            // What they took away is not written again, and what is synced is said at the end.
            LogEntry::Deleted { .. } | LogEntry::Evicted { .. } | LogEntry::Synced { .. } => false,
        }
    }

    /// What a log that is written anew ends with.
    pub fn synced(&self) -> Vec<LogEntry> {
        let synced = self.segments.iter().filter(|(_, known)| known.synced > 0);
        synced.map(|(segment, known)| LogEntry::Synced { segment: *segment, to: known.synced }).collect()
    }

    /// What is known of a segment.
    pub fn segment(&self, segment: u32) -> Option<&Segment> {
        self.segments.get(&segment)
    }

    /// What a log that is written anew begins with, so that no number is used twice.
    pub fn latest(&self) -> [LogEntry; 2] {
        [LogEntry::Taken { segment: self.latest }, LogEntry::Evicted { segment: self.latest }]
    }

    /// Let an entry take effect.
    pub fn apply(&mut self, entry: &LogEntry) {
        match entry {
            LogEntry::Put { space, key, place } => self.put(Key { space: *space, bytes: key }, place),
            LogEntry::Deleted { space, key } => self.forget(self.hash(Key { space: *space, bytes: key })),
            LogEntry::Taken { segment } => {
                self.segments.entry(*segment).or_default();
                self.latest = self.latest.max(*segment);
            }
            LogEntry::Evicted { segment } => {
                if self.segments.remove(segment).is_some_and(|segment| segment.total.values > 0) {
                    let spaces = &mut self.spaces;
                    self.slots.retain(|slot| {
                        let stays = slot.segment != *segment;
                        if !stays && let Some(total) = spaces.get_mut(slot.space()) {
                            total.take(slot.len);
                        }
                        stays
                    });
                }
            }
            LogEntry::Synced { segment, to } => {
                if let Some(segment) = self.segments.get_mut(segment) {
                    segment.synced = segment.synced.max(*to);
                    segment.old_from = segment.old_from.map(|from| from.max(*to)).filter(|from| *from < segment.end);
                }
            }
            LogEntry::Bad { segment, from } => {
                if let Some(segment) = self.segments.get_mut(segment) {
                    segment.bad_from = Some(segment.bad_from.map_or(*from, |before| before.min(*from)));
                }
            }
        }
    }

    /// A sync of a segment begins. What is put there from now on may be written after it.
    pub fn begin_sync(&mut self, segment: u32) -> u64 {
        self.last_sync += 1;
        self.syncs.insert(self.last_sync, (segment, u32::MAX));
        self.last_sync
    }

    /// What lies before this unit was written before a sync began. 0: nothing is known of that sync any more.
    pub fn before_sync(&self, sync: u64) -> u32 {
        self.syncs.get(&sync).map_or(0, |(_, lowest)| *lowest)
    }

    /// From which unit of a segment on a sync says nothing, whenever it began: a power loss may have taken what lies there.
    pub fn old_from(&self, segment: u32) -> u32 {
        self.segments.get(&segment).and_then(|segment| segment.old_from).unwrap_or(u32::MAX)
    }

    pub fn end_sync(&mut self, sync: u64) {
        self.syncs.remove(&sync);
    }

    fn put(&mut self, key: Key<'_>, place: &Place) {
        let hash = self.hash(key);
        self.forget(hash);
        let of_segment = self.syncs.values_mut().filter(|(segment, _)| *segment == place.segment);
        of_segment.for_each(|(_, lowest)| *lowest = place.unit.min(*lowest));
        // Of a segment that nobody took, or that is gone: the place may be another one's.
        let Some(segment) = self.segments.get_mut(&place.segment) else { return };
        if self.slots.len() >= self.most {
            return;
        }
        let room = record_room(key.bytes.len(), place.len.into()) / RECORD_ALIGNMENT;
        segment.end = segment.end.max(place.unit.saturating_add(room as u32));
        // It was being written when others were synced.
        segment.synced = segment.synced.min(place.unit);
        if self.old {
            segment.old_from = Some(segment.old_from.map_or(place.unit, |from| from.min(place.unit)));
        }
        segment.total.add(place.len);
        self.puts.values += 1;
        self.puts.bytes += LogEntry::put_bytes(key.bytes.len());
        if let Some(total) = self.spaces.get_mut(usize::from(key.space)) {
            total.add(place.len);
        }
        let slot = Slot {
            hash: [hash as u32, (hash >> 32) as u32],
            segment: place.segment,
            unit: AtomicU32::new(
                place.unit & UNIT | u32::from(key.space) << UNIT_BITS | if self.old { 0 } else { SURE },
            ),
            len: place.len,
        };
        self.slots.insert_unique(hash, slot, Slot::hash);
    }

    /// What lies at a place is not what was put under a key.
    pub fn forget_at(&mut self, key: Key<'_>, place: &Place) {
        if self.find(key) == Some(*place) {
            let hash = self.hash(key);
            self.forget(hash);
            self.damaged.insert(hash);
        }
    }

    /// Whether the log says something of a key that is to be taken back for it to be gone: others may not know yet that a value is damaged.
    pub fn is_said(&self, key: Key<'_>) -> bool {
        self.find(key).is_some() || self.damaged.contains(&self.hash(key))
    }

    fn forget(&mut self, hash: u64) {
        self.damaged.remove(&hash);
        if !self.old {
            self.doubted.remove(&hash);
        }
        if let Ok(slot) = self.slots.find_entry(hash, |slot| slot.hash() == hash) {
            let (slot, _) = slot.remove();
            if let Some(segment) = self.segments.get_mut(&slot.segment) {
                segment.total.take(slot.len);
            }
            if let Some(total) = self.spaces.get_mut(slot.space()) {
                total.take(slot.len);
            }
        }
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
