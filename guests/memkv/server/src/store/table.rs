//! The table: entries in the order of their last use, and what of them must stay.

use std::sync::Arc;

use lru::LruCache;

use super::generations::Generations;
use crate::clock;
use crate::names::{Name, Value, is_manifest};
use crate::os::Instant;

/// What an entry costs beside its bytes: the table, allocations, counts.
const ENTRY_BYTES: u64 = 200;

pub struct Table {
    pub entries: LruCache<Name, Entry>,
    pub bytes: u64,
    pub manifests: u64,
    pub generations: Generations,
}

pub struct Entry {
    pub value: Value,
    /// Of a manifest: the chunks that it names.
    pub chunks: Arc<[Name]>,
    /// Manifests that are being published and name this chunk: until they are, it stays.
    pub pins: u32,
    /// On disk for good. Without a disk nothing ever is.
    pub synced: bool,
    /// Nanoseconds since 1970-01-01 UTC.
    pub stored: u64,
    pub used: u64,
    /// Of a manifest, in microseconds; 0: it has no place for one, or was loaded.
    generation: u64,
}

pub fn cost(name: &[u8], value: &[u8], chunks: &[Name]) -> u64 {
    ENTRY_BYTES + (name.len() + value.len() + std::mem::size_of_val(chunks)) as u64
}

/// A chunk that must stay for a while.
pub struct Pinned {
    pub name: Name,
    pub value: Value,
    pub synced: bool,
}

impl Table {
    /// Count chunks as used. Answers whether all of them are here.
    pub fn touch(&mut self, chunks: &[Name]) -> bool {
        let now = clock::wall();
        chunks.iter().filter(|chunk| self.use_at(chunk, now).is_some()).count() == chunks.len()
    }

    /// An entry, which is used now.
    pub fn use_at(&mut self, name: &Name, now: u64) -> Option<&Entry> {
        let entry = self.entries.get_mut(name)?;
        entry.used = now;
        Some(entry)
    }

    pub fn get(&mut self, name: &Name) -> Option<Value> {
        let entry = self.use_at(name, clock::wall())?;
        let (value, chunks) = (entry.value.clone(), entry.chunks.clone());
        self.touch(&chunks).then_some(value)
    }

    /// Insert a chunk that is not on disk for good.
    pub fn insert(&mut self, name: Name, value: Value) {
        self.put(name, value, Arc::new([]), false, 0);
    }

    fn put(&mut self, name: Name, value: Value, chunks: Arc<[Name]>, synced: bool, generation: u64) {
        let pins = self.entries.peek(&name).map_or(0, |former| former.pins);
        self.remove(&name);
        self.bytes += cost(&name, &value, &chunks);
        self.manifests += u64::from(is_manifest(&name));
        let now = clock::wall();
        self.entries.put(name, Entry { value, chunks, pins, synced, stored: now, used: now, generation });
    }

    /// Insert a manifest, and then use its chunks, so that they leave after it.
    pub fn publish(&mut self, name: Name, value: Value, chunks: &[Name], generation: u64) {
        // The names that the table has already, not copies of them.
        let own = |chunk| self.entries.get_key_value(chunk).map(|(name, _)| name.clone());
        let chunks: Arc<[Name]> = chunks.iter().filter_map(own).collect();
        self.put(name, value, chunks.clone(), true, generation);
        self.touch(&chunks);
    }

    pub fn remove(&mut self, name: &Name) -> bool {
        let Some(entry) = self.entries.pop(name) else { return false };
        self.bytes -= cost(name, &entry.value, &entry.chunks);
        self.manifests -= u64::from(is_manifest(name));
        if entry.generation > 0 {
            self.generations.removed(name, entry.generation, Instant::now());
        }
        true
    }

    /// A generation for a manifest: greater than each that its name had lately.
    pub fn next_generation(&mut self, name: &Name) -> u64 {
        let there = self.entries.peek(name).map_or(0, |entry| entry.generation);
        self.generations.next(name, there, clock::wall() / 1000, Instant::now())
    }

    /// Whether a greater generation was published since this one was given.
    pub fn is_overtaken(&self, name: &Name, generation: u64) -> bool {
        let there = self.entries.peek(name).map_or(0, |entry| entry.generation);
        there.max(self.generations.published(name, Instant::now())) > generation
    }

    /// How many of these chunks are gone, which only what could not be synced is.
    pub fn lost(&self, pinned: &[Pinned]) -> usize {
        let is_here = |pin: &Pinned| {
            self.entries.peek(&pin.name).is_some_and(|entry| entry.pins > 0 || Arc::ptr_eq(&entry.value, &pin.value))
        };
        pinned.iter().filter(|pin| !is_here(pin)).count()
    }

    /// Keep chunks from eviction. How many are gone, if any is.
    pub fn pin(&mut self, chunks: &[Name]) -> Result<Vec<Pinned>, usize> {
        let gone = chunks.iter().filter(|chunk| !self.entries.contains(*chunk)).count();
        if gone > 0 {
            return Err(gone);
        }
        let pin = |name: &Name| {
            let entry = self.entries.get_mut(name)?;
            entry.pins += 1;
            Some(Pinned { name: name.clone(), value: entry.value.clone(), synced: entry.synced })
        };
        Ok(chunks.iter().filter_map(pin).collect())
    }

    pub fn unpin(&mut self, pinned: &[Pinned], synced: bool) {
        for pin in pinned {
            if let Some(entry) = self.entries.peek_mut(&pin.name) {
                entry.pins = entry.pins.saturating_sub(1);
                // Unless it was replaced meanwhile.
                entry.synced |= synced && Arc::ptr_eq(&entry.value, &pin.value);
            }
        }
    }
}
