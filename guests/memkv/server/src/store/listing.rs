//! Listing, counting and evicting what a namespace has.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use memkv_wire::fields::{Evict, Evicted, Kind, Listed, Usage};

use super::Store;
use super::table::Entry;
use crate::clock;
#[cfg(simulated)]
use crate::names::{Name, Value};
use crate::names::{is_manifest, place};

/// Entries that leave while the table is locked once.
const EVICTED_TOGETHER: usize = 16 << 10;

impl Store {
    /// What a namespace has of a kind: the first `limit` keys after one, in byte order.
    pub fn list(&self, namespace: &str, kind: Kind, after: &[u8], limit: usize) -> Vec<Listed> {
        let place = place(namespace, kind);
        let table = self.table.lock();
        let mut first: BTreeMap<&[u8], &Entry> = BTreeMap::new();
        for (name, entry) in table.entries.iter() {
            let Some(key) = name.strip_prefix(place.as_slice()).filter(|key| *key > after) else { continue };
            if first.len() >= limit && first.last_key_value().is_none_or(|(last, _)| key > *last) {
                continue;
            }
            first.insert(key, entry);
            if first.len() > limit {
                first.pop_last();
            }
        }
        let listed = |(key, entry): (&[u8], &Entry)| {
            let Entry { value, stored, used, .. } = entry;
            Listed { key: key.to_vec(), size: value.len() as u64, stored: *stored, used: *used }
        };
        first.into_iter().map(listed).collect()
    }

    /// What a get of each name would answer now, without a use of it: for a simulation, which compares it with what clients are answered.
    #[cfg(simulated)]
    pub fn peek(&self, names: &[Name]) -> Vec<Option<Value>> {
        let table = self.table.lock();
        let answered = |entry: &&Entry| entry.chunks.iter().all(|chunk| table.entries.contains(chunk));
        names.iter().map(|name| table.entries.peek(name).filter(answered).map(|entry| entry.value.clone())).collect()
    }

    /// How much a namespace holds.
    pub fn usage(&self, namespace: &str) -> Usage {
        let [chunk, manifest] = [Kind::Chunk, Kind::Manifest].map(|kind| place(namespace, kind));
        let mut usage = Usage { capacity: self.bound, ..Usage::default() };
        for (name, entry) in self.table.lock().entries.iter() {
            if name.starts_with(&chunk) {
                usage.chunks += 1;
            } else if name.starts_with(&manifest) {
                usage.manifests += 1;
            } else {
                continue;
            }
            usage.bytes += entry.value.len() as u64;
        }
        usage
    }

    /// Remove what was not used, of one namespace or of all. The order of use has each manifest before its chunks.
    pub fn evict(&self, namespace: Option<&str>, what: &Evict) -> Evicted {
        let places = namespace.map(|namespace| [Kind::Chunk, Kind::Manifest].map(|kind| place(namespace, kind)));
        let here =
            |name: &[u8]| places.as_ref().is_none_or(|places| places.iter().any(|place| name.starts_with(place)));
        let mut table = self.table.lock();
        let mut evicted = Evicted::default();
        let mut oldest = Vec::new();
        for (name, entry) in table.entries.iter().rev().filter(|(name, _)| here(name)) {
            let enough = evicted.bytes >= what.bytes && entry.used >= what.unused_since;
            if enough || oldest.len() >= EVICTED_TOGETHER {
                evicted.more = !enough;
                break;
            }
            let kept = !is_manifest(name) && entry.stored.max(entry.used) > what.keep_since;
            if kept || entry.pins > 0 {
                continue;
            }
            let counted = if is_manifest(name) { &mut evicted.manifests } else { &mut evicted.chunks };
            *counted += 1;
            evicted.bytes += entry.value.len() as u64;
            oldest.push(name.clone());
        }
        for name in &oldest {
            table.remove(name);
            if let Some(disk) = &self.disk {
                disk.evict(name);
            }
        }
        self.evicted.fetch_add(oldest.len() as u64, Relaxed);
        evicted
    }

    /// Remove what was not used for so long.
    pub fn expire(&self, ttl: Duration) {
        let ttl = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        let what = Evict { bytes: 0, unused_since: clock::wall().saturating_sub(ttl), keep_since: u64::MAX };
        while self.evict(None, &what).more {}
    }
}
