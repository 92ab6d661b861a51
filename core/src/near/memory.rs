//! Copies in memory, bounded in bytes. S3-FIFO of the block cache says which is given up.
//!
//! One lock, which is held for a look into a table; bytes are copied and freed outside of it.

use std::collections::HashMap;
use std::sync::Arc;

use kv_blocks::policy::{Policy, S3Fifo, S3FifoOptions};
use kv_platform::sync::Mutex;

use super::CopyKey;
use super::copies::Copy;
use crate::payload::Buffer;

/// What a copy costs beside its bytes: its place in the table, in the list and in the policy, and the heads of its memory.
pub(super) const ENTRY_BYTES: u64 = 256;

pub(super) struct MemoryTier {
    state: Mutex<MemoryState>,
    capacity: u64,
}

struct MemoryState {
    index: HashMap<CopyKey, u32, foldhash::fast::RandomState>,
    entries: Vec<CachedChunk>,
    unused: Vec<u32>,
    policy: S3Fifo,
}

struct CachedChunk {
    key: CopyKey,
    /// None: the number is unused.
    copy: Option<Copy>,
    /// The disk tier has it, with the same time.
    on_disk: bool,
}

/// A copy on its way in or out.
pub(super) struct Moved {
    pub key: CopyKey,
    pub copy: Copy,
    pub on_disk: bool,
    /// How many deletes there had been when it was known to be the backend's. After one more it is nobody's.
    pub deletes: u64,
}

impl MemoryTier {
    pub fn new(capacity: u64) -> Self {
        let policy = S3Fifo::new(capacity, S3FifoOptions::default());
        let state = MemoryState { index: HashMap::default(), entries: Vec::new(), unused: Vec::new(), policy };
        MemoryTier { state: Mutex::new(state), capacity }
    }

    /// Whether so many bytes can be kept at all.
    pub fn has_room_for(&self, len: usize) -> bool {
        cost(len) <= self.capacity
    }

    /// The copy of a chunk. Counts as a use of it.
    pub fn get(&self, key: &CopyKey) -> Option<Copy> {
        let mut state = self.state.lock();
        let entry = *state.index.get(key)?;
        state.policy.access(entry);
        state.entries.get(entry as usize)?.copy.clone()
    }

    /// Whether the copy of a chunk is this very memory.
    pub fn holds(&self, key: &CopyKey, data: &Arc<Buffer>) -> bool {
        let state = self.state.lock();
        let entry = state.index.get(key).and_then(|entry| state.entries.get(*entry as usize));
        entry.and_then(|entry| entry.copy.as_ref()).is_some_and(|copy| Arc::ptr_eq(&copy.data, data))
    }

    /// The backend was found to have a chunk. False: there is no copy.
    pub fn confirm(&self, key: &CopyKey, time: u64, is_current: impl FnOnce() -> bool) -> bool {
        let mut state = self.state.lock();
        let Some(entry) = state.index.get(key).copied() else { return false };
        let entry = state.entries.get_mut(entry as usize);
        let Some(CachedChunk { copy: Some(copy), on_disk, .. }) = entry else { return false };
        if is_current() && copy.confirmed < time {
            (copy.confirmed, *on_disk) = (time, false);
        }
        true
    }

    /// Keep a copy, unless it was deleted meanwhile. Returns what was given up for it, and the copy itself where there is no room
    /// for it. `deletes` is asked under the lock under which [`MemoryTier::remove`] counts.
    pub fn insert(&self, new: Moved, deletes: impl Fn(&CopyKey) -> u64) -> Vec<Moved> {
        if !self.has_room_for(new.copy.data.len()) {
            return vec![new];
        }
        let mut state = self.state.lock();
        if deletes(&new.key) != new.deletes {
            return Vec::new();
        }
        let mut left = Vec::new();
        if let Some(entry) = state.index.get(&new.key).copied() {
            state.policy.access(entry);
            if let Some(entry) = state.entries.get_mut(entry as usize)
                && let Some(copy) = &mut entry.copy
                && copy.confirmed < new.copy.confirmed
            {
                (copy.confirmed, entry.on_disk) = (new.copy.confirmed, new.on_disk);
            }
            return left;
        }
        let needed = cost(new.copy.data.len());
        while state.policy.bytes().saturating_add(needed) > self.capacity {
            let Some(gone) = state.give_up(&deletes) else { break };
            left.push(gone);
        }
        let (key, entry) = (new.key, CachedChunk { key: new.key, copy: Some(new.copy), on_disk: new.on_disk });
        let number = match state.unused.pop() {
            Some(number) => {
                if let Some(place) = state.entries.get_mut(number as usize) {
                    *place = entry;
                }
                number
            }
            None => {
                state.entries.push(entry);
                state.entries.len() as u32 - 1
            }
        };
        state.index.insert(key, number);
        state.policy.insert(number, key.fingerprint(), needed);
        left
    }

    /// Remove the copy of a chunk. `count` counts the delete.
    pub fn remove(&self, key: &CopyKey, count: impl FnOnce()) {
        let mut state = self.state.lock();
        count();
        let Some(entry) = state.index.get(key).copied() else { return };
        state.policy.remove(entry);
        let gone = state.take_out(entry);
        drop(state);
        drop(gone);
    }

    /// Bytes of all copies, and what they cost beside.
    pub fn bytes(&self) -> u64 {
        self.state.lock().policy.bytes()
    }
}

impl MemoryState {
    fn give_up(&mut self, deletes: impl Fn(&CopyKey) -> u64) -> Option<Moved> {
        let number = self.policy.victim(&mut |_| false)?;
        let CachedChunk { key, copy, on_disk } = self.take_out(number)?;
        Some(Moved { key, copy: copy?, on_disk, deletes: deletes(&key) })
    }

    /// Remove an entry that the policy has forgotten.
    fn take_out(&mut self, number: u32) -> Option<CachedChunk> {
        let entry = self.entries.get_mut(number as usize)?;
        let gone = CachedChunk { key: entry.key, copy: entry.copy.take(), on_disk: entry.on_disk };
        self.index.remove(&gone.key);
        self.unused.push(number);
        Some(gone)
    }
}

/// What a copy of so many bytes takes of the capacity.
fn cost(len: usize) -> u64 {
    (len as u64).saturating_add(ENTRY_BYTES)
}
