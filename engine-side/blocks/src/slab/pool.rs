//! Which slots of a slab are in use, and by how many.
//!
//! Invariant: a slot is free, or has a count above 0. Who takes the count to 0 gives the slot back, and nobody has used it for
//! anything else before. A count may be raised only by who holds one, or under the lock of the index that holds one.

use crate::sync::{AtomicU32, Mutex, Ordering};

/// Free slots are kept in so many lists, so that threads do not wait for one another.
const LISTS: usize = 8;

pub(crate) struct Pool {
    counts: Box<[AtomicU32]>,
    /// The first slot that was never used.
    fresh: AtomicU32,
    freed: [Mutex<Vec<u32>>; LISTS],
}

impl Pool {
    pub fn new(slots: u32) -> Self {
        Pool {
            counts: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            fresh: AtomicU32::new(0),
            freed: std::array::from_fn(|_| Mutex::new(Vec::new())),
        }
    }

    /// Take a free slot, with a count of 1. `near` spreads takers over the lists.
    pub fn take(&self, near: usize) -> Option<u32> {
        // What was used before lies in memory that the system has given already.
        let freed = || (0..LISTS).find_map(|step| self.take_freed(near.wrapping_add(step)));
        let slot = freed().or_else(|| self.take_fresh())?;
        if let Some(count) = self.counts.get(slot as usize) {
            count.store(1, Ordering::Relaxed);
        }
        Some(slot)
    }

    fn take_freed(&self, list: usize) -> Option<u32> {
        self.freed.get(list % LISTS)?.lock().pop()
    }

    fn take_fresh(&self) -> Option<u32> {
        let slots = self.counts.len() as u32;
        let next = |fresh: u32| (fresh < slots).then_some(fresh + 1);
        self.fresh.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).ok()
    }

    /// Raise the count of a slot that is in use.
    pub fn retain(&self, slot: u32) {
        if let Some(count) = self.counts.get(slot as usize) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lower the count of a slot; at 0 it is free. `near`: as with [`Pool::take`], so that a thread finds what it gave back.
    pub fn release(&self, slot: u32, near: usize) {
        let Some(count) = self.counts.get(slot as usize) else { return };
        // What was read from the slot before is read before the next owner writes it.
        if count.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(list) = self.freed.get(near % LISTS)
        {
            list.lock().push(slot);
        }
    }

    /// Whether more than one holds the slot.
    pub fn is_shared(&self, slot: u32) -> bool {
        self.counts.get(slot as usize).is_some_and(|count| count.load(Ordering::Acquire) > 1)
    }

    /// Slots that are in use.
    pub fn in_use(&self) -> usize {
        let freed: usize = self.freed.iter().map(|list| list.lock().len()).sum();
        (self.fresh.load(Ordering::Relaxed) as usize).saturating_sub(freed)
    }
}
