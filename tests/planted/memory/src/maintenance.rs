//! Listing, counting and evicting.

use std::collections::BTreeMap;
use std::ops::Bound;

use kv_store_sdk::key::{hex, unhex};
use kv_store_sdk::{
    ChunkEntry, ChunkPage, Error, Evicted, Eviction, Maintenance, ManifestEntry, ManifestPage, Result, Totals,
};

use crate::named::Memory as Bug;
use crate::{Entry, Memory};

enum Key {
    Manifest(String),
    Chunk(Vec<u8>),
}

/// What may go, and what decides when.
struct Candidate {
    used: u64,
    stored: u64,
    key: Key,
}

impl Candidate {
    fn is_chunk(&self) -> bool {
        matches!(self.key, Key::Chunk(_))
    }
}

impl Memory {
    fn may_go(&self, entry: &Entry, what: &Eviction) -> bool {
        self.is(Bug::EvictsFresh) || entry.stored.max(entry.used) <= what.keep_since
    }

    /// What may go, in the order in which it goes.
    fn candidates(&self, what: &Eviction) -> Vec<Candidate> {
        let manifests = self.manifests.iter().map(|(name, entry)| {
            let key = Key::Manifest(name.clone());
            Candidate { used: entry.used, stored: entry.stored, key }
        });
        let chunks = self.chunks.iter().filter(|(_, entry)| self.may_go(entry, what));
        let chunks = chunks.map(|(hash, entry)| {
            let key = Key::Chunk(hash.clone());
            Candidate { used: entry.used, stored: entry.stored, key }
        });
        let mut candidates: Vec<Candidate> = manifests.chain(chunks).collect();
        candidates.sort_by_key(|one| (one.used, one.is_chunk()));
        match self.bug {
            Bug::EvictsChunksFirst => candidates.sort_by_key(|one| (!one.is_chunk(), one.used)),
            // Manifests first: this is about the order of chunks.
            Bug::EvictsNewestFirst => candidates.sort_by_key(|one| (one.is_chunk(), u64::MAX - one.used)),
            Bug::EvictsByStored => candidates.sort_by_key(|one| (one.is_chunk(), one.stored)),
            Bug::NeverEvictsChunks => candidates.retain(|one| !one.is_chunk()),
            _ => {}
        }
        candidates
    }

    fn expires(&self, used: u64, what: &Eviction) -> bool {
        what.unused_since.is_some_and(|since| match self.bug {
            Bug::IgnoresUnusedSince => false,
            Bug::ExpiresAll => true,
            Bug::TakesUsedForUnused => used > since,
            _ => used < since,
        })
    }
}

impl Maintenance for Memory {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        let after = after.map(|after| unhex(after.as_bytes()).ok_or_else(|| Error::invalid("no place in a listing")));
        let after = after.transpose()?;
        let mut all: BTreeMap<&[u8], ChunkEntry> = BTreeMap::new();
        if self.is(Bug::ListsRemoved) {
            for (hash, len) in &self.removed {
                all.insert(hash, ChunkEntry { hash: hash.clone(), size: Some(*len), stored: None, used: None });
            }
        }
        for (hash, entry) in &self.chunks {
            let used = if self.is(Bug::UsedIsStored) { entry.stored } else { entry.used };
            let (size, stored) = (Some(entry.data.len()), Some(entry.stored));
            all.insert(hash, ChunkEntry { hash: hash.clone(), size, stored, used: Some(used) });
        }
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let page = all.range::<[u8], _>((from, Bound::Unbounded)).take(limit as usize);
        let entries: Vec<ChunkEntry> = page.map(|(_, entry)| entry.clone()).collect();
        let next = entries.last().map(|last| hex(&last.hash));
        Ok(ChunkPage { entries, next })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        if self.is(Bug::ListsNoManifests) {
            return Ok(ManifestPage { entries: Vec::new(), next: None });
        }
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = self.manifests.range::<str, _>((from, Bound::Unbounded)).take(limit as usize);
        let entries: Vec<ManifestEntry> = page
            .map(|(name, entry)| ManifestEntry {
                name: name.clone(),
                size: Some(entry.data.len()),
                stored: Some(entry.stored),
                used: Some(entry.used),
            })
            .collect();
        let next = entries.last().map(|last| last.name.clone());
        Ok(ManifestPage { entries, next })
    }

    fn usage(&mut self) -> Result<Totals> {
        let bytes = self.chunks.values().chain(self.manifests.values()).map(|entry| entry.data.len()).sum();
        let (chunks, manifests) = (self.chunks.len() as u64, self.manifests.len() as u64);
        Ok(Totals { bytes: Some(bytes), chunks: Some(chunks), manifests: Some(manifests), capacity: None })
    }

    fn evict(&mut self, what: Eviction) -> Result<Evicted> {
        let mut evicted = Evicted { bytes: 0, chunks: 0, manifests: 0, more: self.is(Bug::AlwaysMore) };
        let wanted = match self.bug {
            Bug::SaysEvicted => return Ok(Evicted { bytes: what.bytes, chunks: 1, ..evicted }),
            Bug::EvictsTooLittle => what.bytes / 2,
            Bug::EvictsAll => u64::MAX,
            _ => what.bytes,
        };
        for Candidate { used, key, .. } in self.candidates(&what) {
            if evicted.bytes >= wanted && !self.expires(used, &what) {
                continue;
            }
            let removed = match key {
                Key::Manifest(name) => {
                    evicted.manifests += 1;
                    self.manifests.remove(&name)
                }
                Key::Chunk(hash) => {
                    evicted.chunks += 1;
                    self.chunks.remove(&hash)
                }
            };
            evicted.bytes += removed.map_or(0, |entry| entry.data.len());
        }
        if self.is(Bug::CountsDouble) {
            evicted.bytes *= 2;
        }
        Ok(evicted)
    }
}
