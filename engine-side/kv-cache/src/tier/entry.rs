//! A row as the index knows it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use kv_platform::sync::Mutex;

use crate::key::Key;
use crate::payload::Memory;

/// Set in `pins` when the row is out of the index: nobody can begin to use it.
const RETIRED: u32 = 1 << 31;

/// A row that can be found. It is not evicted while it is pinned.
pub(crate) struct Row {
    pub key: Key,
    pub tokens: u32,
    pub payload_bytes: u64,
    /// What it takes of the budget.
    pub charged: u64,
    pub body: Body,
    /// The moment of the last use, on the cache's own clock of uses: the order of eviction.
    pub used: AtomicU64,
    /// That moment as the writer last knew it, where the row is in its order.
    pub filed: AtomicU64,
    /// Unix time in nanoseconds of the last use since the cache was opened; 0 for none.
    pub used_wall: AtomicU64,
    pins: AtomicU32,
}

pub(crate) enum Body {
    /// Taken out when the row is evicted, since the index may hold on to the row itself for a while.
    Memory(Mutex<Option<Memory>>),
    File {
        payload_offset: u64,
        payload_crc32c: u32,
        /// The [sum](crate::row::metadata_sum) of everything before the payload, as it was when the row was indexed.
        metadata_crc32c: u32,
    },
}

impl Row {
    pub fn new(key: Key, tokens: u32, payload_bytes: u64, charged: u64, body: Body, used: u64) -> Row {
        let (used, filed, used_wall) = (AtomicU64::new(used), AtomicU64::new(used), AtomicU64::new(0));
        Row { key, tokens, payload_bytes, charged, body, used, filed, used_wall, pins: AtomicU32::new(0) }
    }

    /// Whether both were read from one file, or from files that are alike: then they have the same lengths and checksums.
    pub fn has_the_file_of(&self, other: &Row) -> bool {
        match (&self.body, &other.body) {
            (Body::File { metadata_crc32c: a, .. }, Body::File { metadata_crc32c: b, .. }) => {
                a == b && self.charged == other.charged && self.payload_bytes == other.payload_bytes
            }
            _ => false,
        }
    }

    /// Begin to use the row; false where it is gone.
    pub fn pin(&self) -> bool {
        let pinned = |pins: u32| (pins & RETIRED == 0).then_some(pins + 1);
        self.pins.try_update(Ordering::AcqRel, Ordering::Acquire, pinned).is_ok()
    }

    pub fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::AcqRel);
    }

    /// Let nobody begin to use the row. False, and nothing changes, where somebody does.
    pub fn retire_unused(&self) -> bool {
        self.pins.compare_exchange(0, RETIRED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Let nobody begin to use the row, whoever does now.
    pub fn retire(&self) {
        self.pins.fetch_or(RETIRED, Ordering::AcqRel);
    }

    /// Whether somebody uses the row. It may be otherwise a moment later.
    pub fn is_in_use(&self) -> bool {
        self.pins.load(Ordering::Acquire) & !RETIRED != 0
    }

    pub fn is_retired(&self) -> bool {
        self.pins.load(Ordering::Acquire) & RETIRED != 0
    }

    pub fn memory(&self) -> Option<Memory> {
        match &self.body {
            Body::Memory(bytes) => bytes.lock().clone(),
            Body::File { .. } => None,
        }
    }

    pub fn drop_memory(&self) {
        if let Body::Memory(bytes) = &self.body {
            bytes.lock().take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_begins_to_use_a_row_that_is_retired() {
        let row = Row::new(Key([1; 32]), 1, 1, 1, Body::Memory(Mutex::default()), 0);
        assert!(row.pin() && row.is_in_use() && !row.retire_unused() && !row.is_retired());
        row.retire();
        assert!(!row.pin() && row.is_in_use() && row.is_retired(), "whoever uses it goes on");
        row.unpin();
        assert!(!row.is_in_use() && row.is_retired());
        let unused = Row::new(Key([2; 32]), 1, 1, 1, Body::Memory(Mutex::default()), 0);
        assert!(unused.retire_unused() && !unused.pin() && !unused.is_in_use());
    }
}
