//! The store: values under names in memory, within a bound, the least recently used leaving first.
//!
//! Invariant: a manifest that is answered names no chunk that is gone (of the chunks that it was published with). A manifest
//! is published only while all of them are here, and whenever it is used its chunks are used after it. So in the order of
//! last use each manifest comes before its chunks, and eviction, which goes by that order, takes it first. A chunk that is
//! deleted may leave before its manifests: they are not answered while it is gone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use lru::LruCache;
use memkv_wire::fields::Kind;

use crate::disk::{Disk, Staged};

/// What an entry costs beside its bytes: the table, allocations, counts.
const ENTRY_BYTES: u64 = 200;

/// Namespace, kind and key as one run of bytes that no other three make.
pub type Name = Arc<[u8]>;
pub type Value = Arc<Vec<u8>>;

/// The name of what a namespace has under a key.
pub fn name(namespace: &str, kind: Kind, key: &[u8]) -> Name {
    // A namespace has at most 255 bytes.
    [&[kind as u8, namespace.len() as u8], namespace.as_bytes(), key].concat().into()
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
        let mut table = self.lock();
        names.iter().map(|name| table.entries.get(name).is_some()).collect()
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
        if !replace && self.lock().entries.get(&name).is_some() {
            return Put::Existed;
        }
        // Written before the lock is taken; appears under it. What takes the place of something that may be durable must be so
        // itself.
        let staged = match self.stage(&name, &value, &[], replace) {
            Ok(staged) => staged,
            Err(put) => return put,
        };
        let mut table = self.lock();
        if !replace && table.entries.get(&name).is_some() {
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
        chunks.iter().filter(|chunk| self.entries.promote(*chunk)).count() == chunks.len()
    }

    fn get(&mut self, name: &Name) -> Option<Value> {
        let entry = self.entries.get(name)?;
        let (value, chunks) = (entry.value.clone(), entry.chunks.clone());
        self.touch(&chunks).then_some(value)
    }

    fn insert(&mut self, name: Name, value: Value, chunks: Arc<[Name]>, synced: bool) {
        let pins = self.entries.peek(&name).map_or(0, |former| former.pins);
        self.remove(&name);
        self.bytes += cost(&name, &value, &chunks);
        self.manifests += u64::from(is_manifest(&name));
        self.entries.put(name, Entry { value, chunks, pins, synced });
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
