//! A part of the near level: an index over slots, and the order in which they are given up.
//!
//! The index holds one count of each slot that is in it. All here runs under the shard's lock and takes constant time, but for
//! the search of a victim among pinned blocks.

use hashbrown::HashTable;

use crate::key::Key;
use crate::policy::Policy;

/// An entry that has left the index, with its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub key: Key,
    pub slot: u32,
    /// It was in the far level when it was last heard of.
    pub in_far: bool,
}

/// What an insertion came to.
#[derive(Debug, Default)]
pub(crate) struct Inserted {
    /// This was the block's hot access.
    pub hot: bool,
    /// What had the key before.
    pub replaced: Option<Gone>,
    /// What was given up to make room.
    pub evicted: Option<Gone>,
}

struct Node {
    key: Key,
    slot: u32,
    in_far: bool,
}

pub(crate) struct Shard {
    index: HashTable<u32>,
    nodes: Vec<Node>,
    unused: Vec<u32>,
    policy: Box<dyn Policy>,
    /// The most entries.
    capacity: usize,
    /// Bytes of an entry.
    entry_bytes: u64,
}

impl Shard {
    pub fn new(capacity: usize, entry_bytes: u64, policy: Box<dyn Policy>) -> Self {
        // Memory that is not used is not taken: growing by doubling would leave half of it.
        let nodes = Vec::with_capacity(capacity);
        Shard { index: HashTable::new(), nodes, unused: Vec::new(), policy, capacity, entry_bytes }
    }

    fn find(&self, key: &Key) -> Option<u32> {
        let same = |entry: &u32| self.nodes.get(*entry as usize).is_some_and(|node| node.key == *key);
        self.index.find(key.fingerprint(), same).copied()
    }

    /// The slot of a key, and whether this was its hot access.
    pub fn access(&mut self, key: &Key) -> Option<(u32, bool)> {
        let entry = self.find(key)?;
        let hot = self.policy.access(entry);
        Some((self.nodes.get(entry as usize)?.slot, hot))
    }

    /// The slot of a key. This is no use of it.
    pub fn peek(&self, key: &Key) -> Option<u32> {
        Some(self.nodes.get(self.find(key)? as usize)?.slot)
    }

    /// Whether the far level was last heard to have it.
    pub fn in_far(&self, key: &Key) -> bool {
        self.find(key).and_then(|entry| self.nodes.get(entry as usize)).is_some_and(|node| node.in_far)
    }

    /// The far level has what is in this slot.
    pub fn note_in_far(&mut self, key: &Key, slot: u32) {
        if let Some(entry) = self.find(key)
            && let Some(node) = self.nodes.get_mut(entry as usize).filter(|node| node.slot == slot)
        {
            node.in_far = true;
        }
    }

    /// Put a slot, with a count of it, under a key.
    pub fn insert(&mut self, key: Key, slot: u32, in_far: bool, pinned: impl Fn(u32) -> bool) -> Inserted {
        if let Some(entry) = self.find(&key) {
            let Some(node) = self.nodes.get_mut(entry as usize) else { return Inserted::default() };
            let replaced = Gone { key, slot: node.slot, in_far: node.in_far };
            (node.slot, node.in_far) = (slot, in_far);
            let hot = self.policy.access(entry);
            return Inserted { hot, replaced: Some(replaced), evicted: None };
        }
        // Where everything is pinned, what would be given up first leaves the index all the same. Its memory stays with who
        // has it; how much that can be is bounded by the slots.
        let evicted = match self.index.len() >= self.capacity {
            true => self.evict(pinned).or_else(|| self.evict(|_| false)),
            false => None,
        };
        let node = Node { key, slot, in_far };
        let entry = match self.unused.pop() {
            Some(entry) => {
                if let Some(place) = self.nodes.get_mut(entry as usize) {
                    *place = node;
                }
                entry
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        let nodes = &self.nodes;
        let hash = |entry: &u32| nodes.get(*entry as usize).map_or(0, |node| node.key.fingerprint());
        self.index.insert_unique(key.fingerprint(), entry, hash);
        let hot = self.policy.insert(entry, key.fingerprint(), self.entry_bytes);
        Inserted { hot, replaced: None, evicted }
    }

    /// Give up one entry that is not pinned.
    pub fn evict(&mut self, pinned: impl Fn(u32) -> bool) -> Option<Gone> {
        let nodes = &self.nodes;
        let mut is_pinned = |entry: u32| nodes.get(entry as usize).is_some_and(|node| pinned(node.slot));
        let entry = self.policy.victim(&mut is_pinned)?;
        self.take_out(entry)
    }

    /// Remove a key.
    pub fn remove(&mut self, key: &Key) -> Option<Gone> {
        let entry = self.find(key)?;
        self.policy.remove(entry);
        self.take_out(entry)
    }

    /// Remove an entry that the policy has forgotten.
    fn take_out(&mut self, entry: u32) -> Option<Gone> {
        let node = self.nodes.get(entry as usize)?;
        let gone = Gone { key: node.key, slot: node.slot, in_far: node.in_far };
        if let Ok(found) = self.index.find_entry(gone.key.fingerprint(), |of| *of == entry) {
            found.remove();
        }
        self.unused.push(entry);
        Some(gone)
    }

    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Every slot, with its count; the shard is empty afterwards.
    pub fn clear(&mut self) -> Vec<u32> {
        let entries: Vec<u32> = self.index.drain().collect();
        entries.iter().for_each(|entry| self.policy.remove(*entry));
        let slots = entries.iter().filter_map(|entry| self.nodes.get(*entry as usize)).map(|node| node.slot).collect();
        self.nodes.clear();
        self.unused.clear();
        slots
    }
}
