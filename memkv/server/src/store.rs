//! The store: values under names in memory, within a bound, the least recently used leaving first.
//!
//! Invariant: a manifest that is answered names no chunk that is gone (of the chunks that it was published with). A manifest
//! is published only while all of them are here, and whenever it is used its chunks are used after it. So in the order of
//! last use each manifest comes before its chunks, and eviction, which goes by that order, takes it first. A chunk that is
//! deleted may leave before its manifests: they are not answered while it is gone.
//!
//! `tests/models/src/memkv.rs` has the invariants "an acknowledged change is not undone" and "a refused change is not there". The first does
//! not hold yet for what comes late.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lru::LruCache;
use memkv_wire::fields::{Evict, Evicted, Kind, Listed, Usage};

use crate::disk::{Disk, Staged};

/// What an entry costs beside its bytes: the table, allocations, counts.
const ENTRY_BYTES: u64 = 200;

/// Entries that leave while the table is locked once.
const EVICTED_TOGETHER: usize = 16 << 10;

/// Namespace, kind and key as one run of bytes that no other three make.
pub type Name = Arc<[u8]>;
pub type Value = Arc<Vec<u8>>;

/// The name of what a namespace has under a key.
pub fn name(namespace: &str, kind: Kind, key: &[u8]) -> Name {
    // A namespace has at most 255 bytes.
    [&[kind as u8, namespace.len() as u8], namespace.as_bytes(), key].concat().into()
}

/// What names of a kind in a namespace begin with.
fn place(namespace: &str, kind: Kind) -> Vec<u8> {
    [&[kind as u8, namespace.len() as u8], namespace.as_bytes()].concat()
}

/// Nanoseconds since 1970-01-01 UTC.
fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Whether a name is that of a manifest.
pub fn is_manifest(name: &[u8]) -> bool {
    name.first() == Some(&(Kind::Manifest as u8))
}

pub struct Store {
    bound: u64,
    disk: Option<Disk>,
    table: Mutex<Table>,
    pub evicted: AtomicU64,
}

struct Table {
    entries: LruCache<Name, Entry>,
    bytes: u64,
    manifests: u64,
}

struct Entry {
    value: Value,
    /// Of a manifest: the chunks that it names.
    chunks: Arc<[Name]>,
    /// Manifests that are being published and name this chunk: until they are, it stays.
    pins: u32,
    /// On disk for good. Without a disk nothing ever is.
    synced: bool,
    /// Nanoseconds since 1970-01-01 UTC.
    stored: u64,
    used: u64,
}

/// What became of a put.
#[derive(Debug, PartialEq, Eq)]
pub enum Put {
    Stored,
    Existed,
    /// No room.
    Full(String),
    /// So many of the chunks of a manifest are not here.
    Gone(usize),
    Failed(String),
}

/// How much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub chunks: u64,
    pub manifests: u64,
    pub bytes: u64,
    pub bound: u64,
}

fn cost(name: &[u8], value: &[u8], chunks: &[Name]) -> u64 {
    ENTRY_BYTES + (name.len() + value.len() + std::mem::size_of_val(chunks)) as u64
}

impl Store {
    /// A store of at most `bound` bytes, with what the disk has.
    pub fn open(bound: u64, disk: Option<Disk>) -> std::io::Result<Self> {
        let table = Table { entries: LruCache::unbounded(), bytes: 0, manifests: 0 };
        let store = Store { bound, disk, table: Mutex::new(table), evicted: AtomicU64::new(0) };
        store.load()?;
        Ok(store)
    }

    /// Chunks in the order in which they were written, then the manifests whose chunks are all here. What does not fit is
    /// not removed: more likely the bound was given wrong.
    fn load(&self) -> std::io::Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let mut table = self.lock();
        let mut manifests = Vec::new();
        let mut total = 0_u64;
        for file in disk.files()? {
            let Some(found) = disk.read(&file)? else { continue };
            total = total.saturating_add(cost(&found.name, &found.value, &found.chunks));
            if total > self.bound {
                // Only to say how much there is.
            } else if is_manifest(&found.name) {
                manifests.push(found);
            } else {
                table.insert(found.name, found.value, Arc::new([]), false);
            }
        }
        if total > self.bound {
            return Err(std::io::Error::other(format!(
                "it comes to {total} bytes, which is more than the {} of --memory: give --memory {}MiB or more, or \
                 another folder (nothing was removed)",
                self.bound,
                total.div_ceil(1 << 20)
            )));
        }
        for found in manifests {
            if found.chunks.iter().all(|chunk| table.entries.contains(chunk)) {
                table.publish(found.name, found.value, &found.chunks);
            } else {
                crate::say("a manifest on disk names chunks that are not there any more: removed");
                disk.evict(&found.name);
            }
        }
        Ok(())
    }

    /// What was published survives a restart.
    pub fn is_durable(&self) -> bool {
        self.disk.is_some()
    }

    pub fn size(&self) -> Size {
        let table = self.lock();
        let chunks = (table.entries.len() as u64).saturating_sub(table.manifests);
        Size { chunks, manifests: table.manifests, bytes: table.bytes, bound: self.bound }
    }

    /// Whether there is something under each name. What is asked for counts as used.
    pub fn exists(&self, names: &[Name]) -> Vec<bool> {
        let (mut table, now) = (self.lock(), now());
        names.iter().map(|name| table.use_at(name, now).is_some()).collect()
    }

    pub fn get(&self, name: &Name) -> Option<Value> {
        self.lock().get(name)
    }

    /// What is under each name, from the first on, for as many as do not come to more than `max_bytes`, but at least one.
    pub fn get_some(&self, names: &[Name], max_bytes: u64) -> Vec<Option<Value>> {
        let mut table = self.lock();
        let mut bytes = 0_u64;
        let mut found = Vec::new();
        for name in names {
            let value = table.get(name);
            bytes = bytes.saturating_add(value.as_ref().map_or(0, |value| value.len() as u64));
            if bytes > max_bytes && !found.is_empty() {
                break;
            }
            found.push(value);
        }
        found
    }

    pub fn put_chunk(&self, name: Name, value: Vec<u8>, replace: bool) -> Put {
        if !replace && self.lock().use_at(&name, now()).is_some() {
            return Put::Existed;
        }
        // Written before the lock is taken; appears under it. What takes the place of something that may be durable must be so
        // itself.
        let staged = match self.stage(&name, &value, &[], replace) {
            Ok(staged) => staged,
            Err(put) => return put,
        };
        let mut table = self.lock();
        if !replace && table.use_at(&name, now()).is_some() {
            return Put::Existed;
        }
        if !self.make_room(&mut table, cost(&name, &value, &[])) {
            return self.full();
        }
        if let Err(error) = staged.map_or(Ok(()), Staged::appear) {
            return failed(&error);
        }
        table.insert(name, Arc::new(value), Arc::new([]), false);
        Put::Stored
    }

    /// Publish a manifest, once all its chunks are here, and on disk for good if there is one.
    pub fn put_manifest(&self, name: Name, value: Vec<u8>, chunks: &[Name]) -> Put {
        let pinned = match self.lock().pin(chunks) {
            Ok(pinned) => pinned,
            Err(gone) => return Put::Gone(gone),
        };
        let staged = match &self.disk {
            None => Ok(None),
            Some(disk) => {
                let unsynced = pinned.iter().filter(|pin| !pin.synced).map(|pin| &pin.name);
                let synced = disk.sync(unsynced).map_err(|error| failed(&error));
                synced.and_then(|()| self.stage(&name, &value, chunks, true))
            }
        };
        let mut table = self.lock();
        let staged = match staged {
            Ok(staged) => staged,
            Err(put) => {
                table.unpin(&pinned, false);
                return put;
            }
        };
        let room = self.make_room(&mut table, cost(&name, &value, chunks));
        table.unpin(&pinned, self.disk.is_some());
        if !room {
            return self.full();
        }
        if let Err(error) = staged.map_or(Ok(()), Staged::appear) {
            return failed(&error);
        }
        let chunks: Vec<Name> = pinned.into_iter().map(|pin| pin.name).collect();
        table.publish(name.clone(), Arc::new(value), &chunks);
        drop(table);
        self.settle(&name).map_or_else(|error| failed(&error), |()| Put::Stored)
    }

    /// Whether there was one. A chunk is deleted because a client has found it damaged: manifests that name it are missing
    /// until it is put again. `Err`: why it is still there.
    pub fn delete(&self, name: &Name) -> Result<bool, String> {
        let failed = |error| format!("the server cannot write its files: {error}");
        let mut table = self.lock();
        if table.entries.peek(name).is_some_and(|entry| entry.pins > 0) {
            return Err("a manifest that names the chunk is being published: delete it after that".into());
        }
        // First where it could come back from.
        self.disk.as_ref().map_or(Ok(()), |disk| disk.remove(name)).map_err(failed)?;
        let found = table.remove(name);
        drop(table);
        self.settle(name).map_err(failed)?;
        Ok(found)
    }

    /// Make it last that a file has appeared or gone.
    fn settle(&self, name: &Name) -> std::io::Result<()> {
        self.disk.as_ref().map_or(Ok(()), |disk| disk.sync_folder(name))
    }

    fn stage(&self, name: &Name, value: &[u8], chunks: &[Name], sync: bool) -> Result<Option<Staged>, Put> {
        let Some(disk) = &self.disk else { return Ok(None) };
        disk.stage(name, value, chunks, sync).map(Some).map_err(|error| failed(&error))
    }

    /// Evict until there is room for `bytes` more. False: not even then.
    fn make_room(&self, table: &mut Table, bytes: u64) -> bool {
        let mut spared = 0;
        while table.bytes.saturating_add(bytes) > self.bound {
            let Some((oldest, entry)) = table.entries.peek_lru() else { return false };
            let oldest = oldest.clone();
            if entry.pins > 0 {
                spared += 1;
                if spared > table.entries.len() {
                    return false;
                }
                table.entries.promote(&oldest);
                continue;
            }
            table.remove(&oldest);
            self.evicted.fetch_add(1, Relaxed);
            if let Some(disk) = &self.disk {
                disk.evict(&oldest);
            }
        }
        true
    }

    /// What a namespace has of a kind: the first `limit` keys after one, in byte order.
    pub fn list(&self, namespace: &str, kind: Kind, after: &[u8], limit: usize) -> Vec<Listed> {
        let place = place(namespace, kind);
        let table = self.lock();
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

    /// How much a namespace holds.
    pub fn usage(&self, namespace: &str) -> Usage {
        let [chunk, manifest] = [Kind::Chunk, Kind::Manifest].map(|kind| place(namespace, kind));
        let mut usage = Usage { capacity: self.bound, ..Usage::default() };
        for (name, entry) in self.lock().entries.iter() {
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
        let mut table = self.lock();
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
        let what = Evict { bytes: 0, unused_since: now().saturating_sub(ttl), keep_since: u64::MAX };
        while self.evict(None, &what).more {}
    }

    fn full(&self) -> Put {
        Put::Full(format!("the server keeps at most {} bytes, and what it keeps is in use", self.bound))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn failed(error: &std::io::Error) -> Put {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Put::Full("the server's disk is full".into())
        }
        _ => Put::Failed(format!("the server cannot write its files: {error}")),
    }
}

/// A chunk that must stay for a while.
struct Pinned {
    name: Name,
    value: Value,
    synced: bool,
}

impl Table {
    /// Count chunks as used. Answers whether all of them are here.
    fn touch(&mut self, chunks: &[Name]) -> bool {
        let now = now();
        chunks.iter().filter(|chunk| self.use_at(chunk, now).is_some()).count() == chunks.len()
    }

    /// An entry, which is used now.
    fn use_at(&mut self, name: &Name, now: u64) -> Option<&Entry> {
        let entry = self.entries.get_mut(name)?;
        entry.used = now;
        Some(entry)
    }

    fn get(&mut self, name: &Name) -> Option<Value> {
        let entry = self.use_at(name, now())?;
        let (value, chunks) = (entry.value.clone(), entry.chunks.clone());
        self.touch(&chunks).then_some(value)
    }

    fn insert(&mut self, name: Name, value: Value, chunks: Arc<[Name]>, synced: bool) {
        let pins = self.entries.peek(&name).map_or(0, |former| former.pins);
        self.remove(&name);
        self.bytes += cost(&name, &value, &chunks);
        self.manifests += u64::from(is_manifest(&name));
        let now = now();
        self.entries.put(name, Entry { value, chunks, pins, synced, stored: now, used: now });
    }

    /// Insert a manifest, and then use its chunks, so that they leave after it.
    fn publish(&mut self, name: Name, value: Value, chunks: &[Name]) {
        // The names that the table has already, not copies of them.
        let own = |chunk| self.entries.get_key_value(chunk).map(|(name, _)| name.clone());
        let chunks: Arc<[Name]> = chunks.iter().filter_map(own).collect();
        self.insert(name, value, chunks.clone(), true);
        self.touch(&chunks);
    }

    fn remove(&mut self, name: &Name) -> bool {
        let Some(entry) = self.entries.pop(name) else { return false };
        self.bytes -= cost(name, &entry.value, &entry.chunks);
        self.manifests -= u64::from(is_manifest(name));
        true
    }

    /// Keep chunks from eviction. How many are gone, if any is.
    fn pin(&mut self, chunks: &[Name]) -> Result<Vec<Pinned>, usize> {
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

    fn unpin(&mut self, pinned: &[Pinned], synced: bool) {
        for pin in pinned {
            if let Some(entry) = self.entries.peek_mut(&pin.name) {
                entry.pins = entry.pins.saturating_sub(1);
                // Unless it was replaced meanwhile.
                entry.synced |= synced && Arc::ptr_eq(&entry.value, &pin.value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(n: u64) -> Name {
        name("ns", Kind::Chunk, &n.to_le_bytes())
    }

    fn manifest(n: u64) -> Name {
        name("ns", Kind::Manifest, &n.to_le_bytes())
    }

    fn store(bound: u64) -> Store {
        Store::open(bound, None).unwrap()
    }

    /// Room for `n` chunks of 1000 bytes.
    fn room_for(n: u64) -> u64 {
        n * cost(&chunk(0), &[0; 1000], &[])
    }

    fn put(store: &Store, n: u64) -> Put {
        store.put_chunk(chunk(n), vec![n as u8; 1000], false)
    }

    #[test]
    fn a_namespace_is_listed_in_pages_and_counted() {
        let store = store(room_for(100));
        (0..10).for_each(|n| assert_eq!(put(&store, n), Put::Stored));
        let other = name("other", Kind::Chunk, b"k");
        assert_eq!(store.put_chunk(other, vec![0; 1000], false), Put::Stored);
        assert_eq!(store.put_manifest(manifest(1), vec![1; 5], &[chunk(1)]), Put::Stored);
        let mut keys = Vec::new();
        loop {
            let page = store.list("ns", Kind::Chunk, keys.last().map_or(&b""[..], |key: &Vec<u8>| key), 3);
            if page.is_empty() {
                break;
            }
            assert!(page.len() <= 3 && page.iter().all(|entry| entry.size == 1000 && entry.used >= entry.stored));
            keys.extend(page.into_iter().map(|entry| entry.key));
        }
        let expected: Vec<Vec<u8>> = (0..10_u64).map(|n| n.to_le_bytes().to_vec()).collect();
        assert_eq!(keys, expected);
        let usage = store.usage("ns");
        assert_eq!((usage.chunks, usage.manifests, usage.bytes), (10, 1, 10_005));
    }

    #[test]
    fn what_was_not_used_is_evicted_and_what_was_stored_lately_stays() {
        let store = store(room_for(100));
        (0..10).for_each(|n| assert_eq!(put(&store, n), Put::Stored));
        assert_eq!(store.put_manifest(manifest(1), vec![1; 5], &[chunk(0), chunk(1)]), Put::Stored);
        let nothing = Evict { bytes: 5000, unused_since: 0, keep_since: 0 };
        assert_eq!(store.evict(Some("ns"), &nothing).chunks, 0, "all of them were stored after that");
        assert_eq!(store.get(&manifest(1)), None, "a manifest may leave at any time");
        let what = Evict { bytes: 2500, unused_since: 0, keep_since: u64::MAX };
        assert_eq!(store.evict(Some("other"), &what), Evicted::default());
        let evicted = store.evict(Some("ns"), &what);
        assert_eq!((evicted.chunks, evicted.bytes, evicted.more), (3, 3000, false));
        // The manifest's chunks were used last.
        assert_eq!(store.exists(&[chunk(0), chunk(1), chunk(2), chunk(5)]), [true, true, false, true]);
        store.expire(Duration::ZERO);
        assert_eq!(store.usage("ns").chunks, 0);
    }

    #[test]
    fn names_of_different_places_are_different() {
        assert_ne!(name("a", Kind::Chunk, b"bc"), name("ab", Kind::Chunk, b"c"));
        assert_ne!(name("a", Kind::Chunk, b"b"), name("a", Kind::Manifest, b"b"));
    }

    #[test]
    fn what_was_used_least_recently_leaves_first() {
        let store = store(room_for(3));
        for n in [1, 2, 3] {
            assert_eq!(put(&store, n), Put::Stored);
        }
        assert_eq!(store.exists(&[chunk(1)]), [true]);
        assert!(store.get(&chunk(2)).is_some());
        assert_eq!(put(&store, 4), Put::Stored);
        assert_eq!(store.exists(&[chunk(1), chunk(2), chunk(3), chunk(4)]), [true, true, false, true]);
        assert_eq!(store.evicted.load(Relaxed), 1);
        assert!(store.size().bytes <= room_for(3));
    }

    #[test]
    fn a_manifest_leaves_before_its_chunks() {
        let store = store(room_for(6));
        for n in [1, 2, 3] {
            put(&store, n);
        }
        assert_eq!(store.put_manifest(manifest(1), vec![0; 10], &[chunk(1), chunk(2), chunk(3)]), Put::Stored);
        // Asked without being used.
        let there = |name: &Name| store.lock().entries.contains(name);
        let mut left_alone = 0;
        for n in 10..40 {
            put(&store, n);
            let chunks = [1, 2, 3].iter().filter(|n| there(&chunk(**n))).count();
            assert!(chunks == 3 || !there(&manifest(1)), "{chunks} chunks are left after chunk {n}");
            left_alone += u64::from(chunks == 3 && !there(&manifest(1)));
        }
        assert!(left_alone > 0 && !there(&chunk(3)));
    }

    #[test]
    fn a_manifest_that_is_used_keeps_its_chunks() {
        let store = store(room_for(6));
        for n in [1, 2] {
            put(&store, n);
        }
        store.put_manifest(manifest(1), vec![0; 10], &[chunk(1), chunk(2)]);
        for n in 10..40 {
            assert!(store.get(&manifest(1)).is_some());
            put(&store, n);
        }
        assert_eq!(store.exists(&[chunk(1), chunk(2), chunk(10)]), [true, true, false]);
    }

    #[test]
    fn a_manifest_without_all_its_chunks_is_not_published() {
        let store = store(room_for(4));
        put(&store, 1);
        assert_eq!(store.put_manifest(manifest(1), vec![1], &[chunk(1)]), Put::Stored);
        assert_eq!(store.put_manifest(manifest(1), vec![2], &[chunk(1), chunk(2), chunk(3)]), Put::Gone(2));
        assert_eq!(store.get(&manifest(1)).unwrap().as_slice(), [1]);
        for n in 10..20 {
            put(&store, n);
        }
        assert_eq!(store.exists(&[chunk(1)]), [false], "a failed publication keeps nothing");
    }

    #[test]
    fn a_manifest_that_does_not_fit_beside_its_chunks_is_refused() {
        let store = store(room_for(3));
        for n in [1, 2] {
            put(&store, n);
        }
        assert!(matches!(store.put_manifest(manifest(1), vec![0; 2000], &[chunk(1), chunk(2)]), Put::Full(_)));
        assert_eq!(store.exists(&[chunk(1), chunk(2)]), [true, true]);
        for n in 10..20 {
            assert_eq!(put(&store, n), Put::Stored, "nothing is kept any more");
        }
        assert!(matches!(store.put_chunk(chunk(1), vec![0; 4000], false), Put::Full(_)));
    }

    #[test]
    fn a_replacement_is_counted_once() {
        let store = store(room_for(3));
        put(&store, 1);
        let before = store.size();
        assert_eq!(put(&store, 1), Put::Existed);
        assert_eq!(store.put_chunk(chunk(1), vec![9; 1000], true), Put::Stored);
        assert_eq!(store.size(), before);
        assert_eq!(store.get(&chunk(1)).unwrap().as_slice(), [9; 1000]);
        assert!(store.delete(&chunk(1)).unwrap() && !store.delete(&chunk(1)).unwrap());
        assert_eq!(store.size().bytes, 0);
    }

    #[test]
    fn a_manifest_is_missing_while_a_chunk_that_it_names_is_deleted() {
        let store = store(room_for(6));
        for n in [1, 2, 3] {
            put(&store, n);
        }
        assert_eq!(store.put_manifest(manifest(1), vec![7], &[chunk(1), chunk(2)]), Put::Stored);
        assert_eq!(store.put_manifest(manifest(2), vec![8], &[chunk(3)]), Put::Stored);
        assert!(store.delete(&chunk(1)).unwrap());
        assert_eq!(store.exists(&[chunk(1), chunk(2)]), [false, true]);
        assert!(store.get(&manifest(1)).is_none() && store.get(&manifest(2)).is_some());
        assert_eq!(put(&store, 1), Put::Stored, "it is stored again, and not said to be there");
        assert_eq!(store.get(&manifest(1)).unwrap().as_slice(), [7]);
    }

    #[test]
    fn a_chunk_stays_while_a_manifest_that_names_it_is_being_published() {
        let store = store(room_for(3));
        put(&store, 1);
        let pinned = store.lock().pin(&[chunk(1)]).unwrap();
        assert!(store.delete(&chunk(1)).unwrap_err().contains("published"));
        store.lock().unpin(&pinned, false);
        assert!(store.delete(&chunk(1)).unwrap());
    }

    #[test]
    fn what_is_being_published_stays_when_room_is_made_and_when_all_is_evicted() {
        let store = store(room_for(3));
        for n in [1, 2, 3] {
            put(&store, n);
        }
        let pinned = store.lock().pin(&[chunk(1)]).unwrap();
        for n in 10..16 {
            assert_eq!(put(&store, n), Put::Stored);
        }
        assert!(store.lock().entries.contains(&chunk(1)), "room is made of others");
        let all = Evict { bytes: u64::MAX, unused_since: u64::MAX, keep_since: u64::MAX };
        assert_eq!(store.evict(Some("ns"), &all).chunks, 2);
        assert_eq!(store.usage("ns").chunks, 1);
        // Where all that is there is being published, there is no room.
        assert!(matches!(store.put_chunk(chunk(20), vec![0; 2500], false), Put::Full(_)));
        assert!(store.lock().entries.contains(&chunk(1)));
        store.lock().unpin(&pinned, false);
        assert_eq!(store.evict(Some("ns"), &all).chunks, 1);
    }

    #[test]
    fn a_batch_is_answered_up_to_its_bound_and_never_with_nothing() {
        let store = store(room_for(9));
        for n in [1, 2, 3] {
            put(&store, n);
        }
        let names = [chunk(1), chunk(9), chunk(2), chunk(3)];
        for (max_bytes, answered) in [(0, 1), (1000, 2), (1999, 2), (2000, 3), (u64::MAX, 4)] {
            assert_eq!(store.get_some(&names, max_bytes).len(), answered, "{max_bytes}");
        }
        assert_eq!(store.get_some(&names, 2000)[1], None);
    }
}
