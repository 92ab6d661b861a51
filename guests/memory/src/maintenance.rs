//! Listing, counting and evicting.

use std::ops::Bound;

use kv_store_sdk::key::{hex, unhex};
use kv_store_sdk::{
    ChunkEntry, ChunkPage, Error, Evicted, Eviction, Maintenance, ManifestEntry, ManifestPage, Result, Totals, system,
};

use crate::{Entry, Memory};

/// How long a chunk that no manifest names yet is kept, in nanoseconds.
const SAVE_GRACE: u64 = 60_000_000_000;
/// Of what is stored so much leaves at once, so that a full store does not look for the oldest at each put.
const SHARE: u64 = 16;

impl Maintenance for Memory {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        let after = after.map(|after| unhex(after.as_bytes()).ok_or_else(|| Error::invalid("no place in a listing")));
        let after = after.transpose()?;
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let page = self.chunks.range::<[u8], _>((from, Bound::Unbounded)).take(limit as usize);
        let entries: Vec<ChunkEntry> = page
            .map(|(hash, entry)| ChunkEntry {
                hash: hash.clone(),
                size: Some(entry.data.len()),
                stored: Some(entry.stored),
                used: Some(entry.used),
            })
            .collect();
        let next = entries.last().map(|last| hex(&last.hash));
        Ok(ChunkPage { entries, next })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
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
        Ok(Totals {
            bytes: Some(self.bytes()),
            chunks: Some(self.chunks.len() as u64),
            manifests: Some(self.manifests.len() as u64),
            capacity: None,
        })
    }

    fn evict(&mut self, what: Eviction) -> Result<Evicted> {
        Ok(self.remove_oldest(&what, |entry| entry.stored.max(entry.used) > what.keep_since))
    }
}

impl Memory {
    fn bytes(&self) -> u64 {
        self.chunks.values().chain(self.manifests.values()).map(|entry| entry.data.len()).sum()
    }

    /// Evict so that `len` bytes have room. Answers whether something left.
    pub(crate) fn make_room(&mut self, len: u64) -> bool {
        let now = system::now();
        let bytes = len.max(self.bytes() / SHARE).max(1);
        let what = Eviction { bytes, unused_since: None, keep_since: now };
        let unpublished = |entry: &Entry| !entry.published && entry.stored.saturating_add(SAVE_GRACE) > now;
        let evicted = self.remove_oldest(&what, unpublished);
        evicted.chunks + evicted.manifests > 0
    }

    /// Remove what was not used for longest; of what was used at the same time manifests first. `keep`: chunks that stay.
    fn remove_oldest(&mut self, what: &Eviction, keep: impl Fn(&Entry) -> bool) -> Evicted {
        enum Key {
            Manifest(String),
            Chunk(Vec<u8>),
        }
        let manifests = self.manifests.iter().map(|(name, entry)| (entry.used, false, Key::Manifest(name.clone())));
        let chunks = self.chunks.iter().filter(|(_, entry)| !keep(entry));
        let chunks = chunks.map(|(hash, entry)| (entry.used, true, Key::Chunk(hash.clone())));
        let mut oldest: Vec<(u64, bool, Key)> = manifests.chain(chunks).collect();
        oldest.sort_by_key(|(used, is_chunk, _)| (*used, *is_chunk));
        let mut evicted = Evicted { bytes: 0, chunks: 0, manifests: 0, more: false };
        for (used, _, key) in oldest {
            let expired = what.unused_since.is_some_and(|since| used < since);
            if evicted.bytes >= what.bytes && !expired {
                break;
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
        evicted
    }
}
