//! What is on its way between the levels: each block is fetched once, however many wait for it, and written once.
//!
//! A flight is one fetch of one block. Whoever wants the block joins it. It ends when the far level answers: only then are its
//! slot and its place free. A flight that is late is joined by nobody, since the same question would be asked again; its
//! answer still fills the near level. A delete takes the flight out of the table, so that its answer fills nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

use kv_platform::sync::{Condvar, Mutex};

use crate::key::Key;
use crate::slab::Block;

/// One fetch of one block.
pub(super) struct Flight {
    landed: Latch<Option<Block>>,
    pub deadline: Instant,
    /// What the block must be the block of, with validation.
    pub proof: Option<Vec<u8>>,
}

impl Flight {
    pub fn new(deadline: Instant, proof: Option<&[u8]>) -> Arc<Self> {
        Arc::new(Flight { landed: Latch::default(), deadline, proof: proof.map(<[u8]>::to_vec) })
    }

    pub fn finish(&self, block: Option<Block>) {
        self.landed.set(block);
    }

    /// What came, until the deadline. The outer `None`: it is late.
    pub fn wait(&self, deadline: Instant) -> Option<Option<Block>> {
        self.landed.wait(deadline)
    }
}

/// A value that is set once and waited for.
pub(super) struct Latch<T> {
    value: Mutex<Option<T>>,
    set: Condvar,
}

impl<T> Default for Latch<T> {
    fn default() -> Self {
        Latch { value: Mutex::new(None), set: Condvar::new() }
    }
}

impl<T: Clone> Latch<T> {
    pub fn set(&self, value: T) {
        *self.value.lock() = Some(value);
        self.set.notify_all();
    }

    /// The value, or `None` at the deadline.
    pub fn wait(&self, deadline: Instant) -> Option<T> {
        let mut value = self.value.lock();
        while value.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            value = self.set.wait_timeout(value, left);
        }
        value.clone()
    }
}

/// A write of one block that is under way.
pub(super) struct Writing {
    /// Of the batch that it is in.
    pub done: Arc<Latch<()>>,
    /// What is written.
    pub block: Block,
    /// When nobody waits for it any more.
    pub deadline: Instant,
    /// Other bytes were put meanwhile: what is near then is written when this has ended, and where nothing is, this is removed.
    pub outdated: bool,
    /// It was deleted meanwhile, and nobody waits for that any more: it is to be removed when it is written.
    pub doomed: bool,
}

#[derive(Default)]
pub(super) struct Table {
    pub fetching: HashMap<Key, Arc<Flight>>,
    /// Blocks that the far level has slots for. More than `fetching`, where blocks were deleted meanwhile.
    pub fetches: usize,
    pub writing: HashMap<Key, Writing>,
    /// How many deletes of a key are under way: what is fetched meanwhile fills nothing.
    pub deleting: HashMap<Key, usize>,
    /// Questions and removals that are not answered.
    pub asking: usize,
}

impl Table {
    /// Whether an answer to this flight is still wanted. It is not in the table afterwards.
    pub fn end_fetch(&mut self, key: &Key, flight: &Arc<Flight>) -> bool {
        self.fetches -= 1;
        let own = self.fetching.get(key).is_some_and(|of| Arc::ptr_eq(of, flight));
        if own {
            self.fetching.remove(key);
        }
        own && !self.deleting.contains_key(key)
    }
}

/// Everything that is under way. Its lock is taken before those of the near level, never after.
#[derive(Default)]
pub(super) struct Flights {
    pub table: Mutex<Table>,
    /// Deletes that have begun, and those that have ended.
    deletes: AtomicU64,
}

impl Flights {
    /// Changes when a delete begins, and when it ends. While it stays, and no delete of the key is under way, what was taken out
    /// of the near level since is not deleted.
    pub fn epoch(&self) -> u64 {
        self.deletes.load(SeqCst)
    }

    /// A delete begins, or ends.
    pub fn next_epoch(&self) {
        self.deletes.fetch_add(1, SeqCst);
    }

    /// Blocks that are on their way from the far level, and to it.
    pub fn under_way(&self) -> (usize, usize) {
        let table = self.table.lock();
        (table.fetches, table.writing.len())
    }
}
