//! The near level: blocks in memory, by key. Cut into shards, so that threads seldom wait for one another.

mod shard;

use std::sync::Arc;

use crate::key::Key;
use crate::policy::{PolicyKind, S3FifoOptions};
use crate::slab::{Block, Pinned, Slab};
use kv_platform::sync::{Mutex, MutexGuard};
use shard::{Gone, Inserted, Shard};

/// The most shards.
const SHARDS: usize = 16;
/// A shard has at least so many entries, so that a policy has something to choose from.
const SHARD_ENTRIES: usize = 64;

pub(crate) struct Near {
    slab: Arc<Slab>,
    shards: Box<[Mutex<Shard>]>,
}

/// A block that has left the near level.
pub(crate) struct Left {
    pub key: Key,
    pub block: Block,
    pub in_far: bool,
}

/// What a put into the near level came to.
#[derive(Default)]
pub(crate) struct Stored {
    pub hot: bool,
    /// It replaced a block that the far level has.
    pub outdates_far: bool,
    pub evicted: Option<Left>,
}

impl Near {
    /// A near level of `entries` blocks, which are in slots of `slab`.
    pub fn new(slab: Arc<Slab>, entries: usize, policy: PolicyKind, s3fifo: S3FifoOptions) -> Self {
        let mut shards = 1;
        while shards < SHARDS && entries / (shards * 2) >= SHARD_ENTRIES {
            shards *= 2;
        }
        let bytes = slab.len() as u64;
        let shard = |number: usize| {
            let entries = entries / shards + usize::from(number < entries % shards);
            Mutex::new(Shard::new(entries, bytes, policy.build(entries as u64 * bytes, s3fifo)))
        };
        Near { shards: (0..shards).map(shard).collect(), slab }
    }

    #[allow(clippy::indexing_slicing, reason = "the remainder is below the number of shards, which is not 0")]
    fn shard(&self, key: &Key) -> MutexGuard<'_, Shard> {
        self.shards[key.spread() % self.shards.len()].lock()
    }

    /// The block of a key, and whether this was its hot access.
    pub fn access(&self, key: &Key) -> Option<(Pinned<'_>, bool)> {
        let mut shard = self.shard(key);
        let (slot, hot) = shard.access(key)?;
        // SAFETY: the index, whose lock is held, holds the slot; the count that is added is the pin's.
        let pinned = unsafe {
            self.slab.retain(slot);
            self.slab.pinned(slot)
        };
        Some((pinned, hot))
    }

    /// As [`Near::access`], but no use of it.
    pub fn peek(&self, key: &Key) -> Option<Block> {
        let shard = self.shard(key);
        let slot = shard.peek(key)?;
        // SAFETY: as in `access`.
        Some(unsafe {
            self.slab.retain(slot);
            self.slab.block(slot)
        })
    }

    /// Whether the far level was last heard to have a block.
    pub fn in_far(&self, key: &Key) -> bool {
        self.shard(key).in_far(key)
    }

    /// Whether this very block is here.
    pub fn holds(&self, key: &Key, block: &Block) -> bool {
        self.shard(key).peek(key) == Some(block.id())
    }

    /// The far level has this block.
    pub fn note_in_far(&self, key: &Key, block: &Block) {
        self.shard(key).note_in_far(key, block.id());
    }

    /// Put a block under its key; `in_far`: it came from the far level.
    pub fn insert(&self, key: Key, block: Pinned<'_>, in_far: bool) -> Stored {
        let slot = block.into_id();
        let Inserted { hot, replaced, evicted } =
            self.shard(&key).insert(key, slot, in_far, |slot| self.slab.is_shared(slot));
        let outdates_far = replaced.as_ref().is_some_and(|replaced| replaced.in_far) && !in_far;
        // SAFETY: the count is what the index gave up.
        drop(replaced.map(|replaced| unsafe { self.slab.pinned(replaced.slot) }));
        Stored { hot, outdates_far, evicted: evicted.map(|evicted| self.left(evicted)) }
    }

    /// Give up a block in the shard of a key, or in any.
    pub fn evict(&self, key: &Key) -> Option<Left> {
        let pinned = |slot| self.slab.is_shared(slot);
        // The guard is gone before the next shard is locked.
        let own = self.shard(key).evict(pinned);
        let gone = own.or_else(|| self.shards.iter().find_map(|shard| shard.lock().evict(pinned)))?;
        Some(self.left(gone))
    }

    /// Remove a block.
    pub fn remove(&self, key: &Key) -> Option<Left> {
        let gone = self.shard(key).remove(key)?;
        Some(self.left(gone))
    }

    /// Remove all blocks.
    pub fn clear(&self) {
        for shard in &self.shards {
            let slots = shard.lock().clear();
            // SAFETY: the counts were the index's, which has given them up.
            slots.into_iter().for_each(|slot| drop(unsafe { self.slab.pinned(slot) }));
        }
    }

    fn left(&self, gone: Gone) -> Left {
        // SAFETY: the count is what the index gave up, or what it did not take.
        Left { key: gone.key, block: unsafe { self.slab.block(gone.slot) }, in_far: gone.in_far }
    }

    /// Blocks that are there.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

impl Drop for Near {
    fn drop(&mut self) {
        self.clear();
    }
}
