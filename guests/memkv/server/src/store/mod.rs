//! The store: values under names in memory, within a bound, the least recently used leaving first.
//!
//! Invariant: a manifest that is answered names no chunk that is gone (of the chunks that it was published with). A manifest
//! is published only while all of them are here, and whenever it is used its chunks are used after it. So in the order of
//! last use each manifest comes before its chunks, and eviction, which goes by that order, takes it first. A chunk that is
//! deleted may leave before its manifests: they are not answered while it is gone.
//!
//! A change whose end has passed changes nothing. That is looked at under the lock of the table, in the step that changes it: a server that
//! was stopped after it had read a frame, or while it wrote a file, finds the time there that has passed. `tests/models/src/memkv.rs` has
//! the invariants: "an acknowledged change is not undone" and "a refused change is not there".

mod generations;
mod listing;
mod table;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::UNIX_EPOCH;

use lru::LruCache;
use memkv_wire::GENERATION_BYTES;

use crate::clock;
use crate::disk::{Disk, Doubt, Staged};
use crate::names::{Name, Value, is_manifest};
use crate::os::{self, Mutex};
use generations::Generations;
use table::{Pinned, Table, cost};

pub struct Store {
    bound: u64,
    disk: Option<Disk>,
    table: Mutex<Table>,
    pub evicted: AtomicU64,
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
    /// Its end had passed.
    TooLate,
}

/// What became of a delete.
#[derive(Debug, PartialEq, Eq)]
pub enum Deleted {
    Gone,
    /// There was nothing.
    Missing,
    /// Why it is still there.
    Failed(String),
    /// Its end had passed.
    TooLate,
}

/// What a change of a manifest says besides its content.
#[derive(Clone, Copy, Default)]
pub struct Terms {
    /// See [`is_late`].
    pub end: u64,
    /// The last bytes of the value are the place of a generation.
    pub generation: bool,
}

/// Whether the end of a change, on [`clock::steady`], has passed. 0: it has none.
fn is_late(end: u64) -> bool {
    end != 0 && clock::steady() >= end
}

/// How much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub chunks: u64,
    pub manifests: u64,
    pub bytes: u64,
    pub bound: u64,
}

impl Store {
    /// A store of at most `bound` bytes, with what the disk has.
    pub fn open(bound: u64, disk: Option<Disk>) -> std::io::Result<Self> {
        let table =
            Table { entries: LruCache::unbounded(), bytes: 0, manifests: 0, generations: Generations::default() };
        let store = Store { bound, disk, table: Mutex::new(table), evicted: AtomicU64::new(0) };
        store.load()?;
        Ok(store)
    }

    /// Chunks in the order in which they were written, then the manifests whose chunks are all here. What does not fit is
    /// not removed: more likely the bound was given wrong.
    fn load(&self) -> std::io::Result<()> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let mut table = self.table.lock();
        let mut manifests = Vec::new();
        let mut total = 0_u64;
        for (written, file) in disk.files()? {
            // By the clock that generations come from: it may have been set back since.
            let written = written.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
            table.generations.begin_after(u64::try_from(written).unwrap_or_default());
            let Some(found) = disk.read(&file)? else { continue };
            total = total.saturating_add(cost(&found.name, &found.value, &found.chunks));
            if total > self.bound {
                // Only to say how much there is.
            } else if is_manifest(&found.name) {
                manifests.push(found);
            } else {
                table.insert(found.name, found.value);
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
                table.publish(found.name, found.value, &found.chunks, 0);
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
        let table = self.table.lock();
        let chunks = (table.entries.len() as u64).saturating_sub(table.manifests);
        Size { chunks, manifests: table.manifests, bytes: table.bytes, bound: self.bound }
    }

    /// Whether there is something under each name. What is asked for counts as used.
    pub fn exists(&self, names: &[Name]) -> Vec<bool> {
        let (mut table, now) = (self.table.lock(), clock::wall());
        names.iter().map(|name| table.use_at(name, now).is_some()).collect()
    }

    pub fn get(&self, name: &Name) -> Option<Value> {
        self.table.lock().get(name)
    }

    /// What is under each name, from the first on, for as many as do not come to more than `max_bytes`, but at least one.
    pub fn get_some(&self, names: &[Name], max_bytes: u64) -> Vec<Option<Value>> {
        let mut table = self.table.lock();
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

    pub fn put_chunk(&self, name: Name, value: Vec<u8>, replace: bool, end: u64) -> Put {
        if !replace && self.table.lock().use_at(&name, clock::wall()).is_some() {
            return Put::Existed;
        }
        // Written before the lock is taken; appears under it. What takes the place of something that may be durable must be so
        // itself.
        let staged = match self.stage(&name, &value, &[], replace) {
            Ok(staged) => staged,
            Err(put) => return put,
        };
        let mut table = self.table.lock();
        if is_late(end) {
            return Put::TooLate;
        }
        if !replace && table.use_at(&name, clock::wall()).is_some() {
            return Put::Existed;
        }
        if !self.make_room(&mut table, cost(&name, &value, &[])) {
            return self.full();
        }
        if let Err(error) = staged.map_or(Ok(()), Staged::appear) {
            return failed(&error);
        }
        table.insert(name, Arc::new(value));
        Put::Stored
    }

    /// Publish a manifest, once all its chunks are here, and on disk for good if there is one.
    pub fn put_manifest(&self, name: Name, mut value: Vec<u8>, chunks: &[Name], terms: Terms) -> Put {
        let mut random = [0; 8];
        if let Err(error) = os::fill(&mut random) {
            return Put::Failed(format!("the server has no random numbers: {error}"));
        }
        let (pinned, generation) = {
            let mut table = self.table.lock();
            if is_late(terms.end) {
                return Put::TooLate;
            }
            let pinned = match table.pin(chunks) {
                Ok(pinned) => pinned,
                Err(gone) => return Put::Gone(gone),
            };
            (pinned, if terms.generation { table.next_generation(&name) } else { 0 })
        };
        if let Some(place) = value.last_chunk_mut::<GENERATION_BYTES>().filter(|_| generation > 0) {
            let (time, rest) = place.split_at_mut(8);
            time.copy_from_slice(&generation.to_le_bytes());
            rest.copy_from_slice(&random);
        }
        let staged = self.sync(&pinned).and_then(|()| self.stage(&name, &value, chunks, true));
        let mut table = self.table.lock();
        let synced = staged.is_ok() && self.disk.is_some();
        let put = staged.map_or_else(
            |put| put,
            |staged| self.publish(&mut table, &name, value, &pinned, staged, (terms.end, generation)),
        );
        table.unpin(&pinned, synced);
        drop(table);
        match put {
            Put::Stored => self.settle(&name).map_or_else(|error| failed(&error), |()| Put::Stored),
            put => put,
        }
    }

    /// What publishing a manifest does to its chunks, without a manifest.
    pub fn commit(&self, chunks: &[Name]) -> Put {
        let pinned = match self.table.lock().pin(chunks) {
            Ok(pinned) => pinned,
            Err(gone) => return Put::Gone(gone),
        };
        let synced = self.sync(&pinned);
        let mut table = self.table.lock();
        let lost = table.lost(&pinned);
        table.unpin(&pinned, synced.is_ok() && self.disk.is_some());
        match synced {
            Err(put) => put,
            Ok(()) if lost > 0 => Put::Gone(lost),
            Ok(()) => {
                table.touch(chunks);
                Put::Stored
            }
        }
    }

    /// The step that changes the table, for a manifest with an end and a generation.
    fn publish(
        &self,
        table: &mut Table,
        name: &Name,
        value: Vec<u8>,
        pinned: &[Pinned],
        staged: Option<Staged>,
        (end, generation): (u64, u64),
    ) -> Put {
        if is_late(end) {
            return Put::TooLate;
        }
        let lost = table.lost(pinned);
        if lost > 0 {
            return Put::Gone(lost);
        }
        // Another, which was given its generation later, was published while this one was written to disk: as if this one had come
        // just before it. A reader that knows the other would take this one for an older one.
        if generation > 0 && table.is_overtaken(name, generation) {
            return Put::Stored;
        }
        let chunks: Vec<Name> = pinned.iter().map(|pin| pin.name.clone()).collect();
        if !self.make_room(table, cost(name, &value, &chunks)) {
            return self.full();
        }
        if let Err(error) = staged.map_or(Ok(()), Staged::appear) {
            return failed(&error);
        }
        table.publish(name.clone(), Arc::new(value), &chunks, generation);
        Put::Stored
    }

    /// Make the chunks of a manifest last. One whose file could not be synced is removed: a second sync would succeed and prove
    /// nothing (`docs/decisions/what-could-not-be-synced-is-removed.md`).
    fn sync(&self, pinned: &[Pinned]) -> Result<(), Put> {
        let Some(disk) = &self.disk else { return Ok(()) };
        let unsynced = pinned.iter().filter(|pin| !pin.synced).map(|pin| &pin.name);
        let Err((error, doubt)) = disk.sync(unsynced) else { return Ok(()) };
        let mut table = self.table.lock();
        let doubtful: Vec<Name> = match doubt {
            Doubt::None => Vec::new(),
            Doubt::File(name) => {
                let own = pinned.iter().find(|pin| pin.name == name).map(|pin| &pin.value);
                // What has replaced it meanwhile was synced before it appeared.
                let is_own = |value| own.is_some_and(|own| Arc::ptr_eq(own, value));
                table.entries.peek(&name).filter(|entry| is_own(&entry.value)).map(|_| name).into_iter().collect()
            }
            // Also what other saves have put there: they would sync the folder again, and be told that all is well.
            Doubt::Folder(folder) => {
                let is_in = |name: &Name| disk.folder(name).as_ref() == Some(&folder);
                let unsynced = table.entries.iter().filter(|(name, entry)| !entry.synced && is_in(name));
                unsynced.map(|(name, _)| name.clone()).collect()
            }
        };
        for name in &doubtful {
            table.remove(name);
            disk.evict(name);
        }
        Err(failed(&error))
    }

    /// A chunk is deleted because a client has found it damaged, or wants it gone: manifests that name it are missing until it is
    /// put again.
    pub fn delete(&self, name: &Name, end: u64) -> Deleted {
        let failed = |error| Deleted::Failed(format!("the server cannot write its files: {error}"));
        let mut table = self.table.lock();
        if is_late(end) {
            return Deleted::TooLate;
        }
        if table.entries.peek(name).is_some_and(|entry| entry.pins > 0) {
            return Deleted::Failed("a manifest that names the chunk is being published: delete it after that".into());
        }
        // First where it could come back from.
        if let Err(error) = self.disk.as_ref().map_or(Ok(()), |disk| disk.remove(name)) {
            return failed(error);
        }
        let found = table.remove(name);
        drop(table);
        match self.settle(name) {
            Ok(()) if found => Deleted::Gone,
            Ok(()) => Deleted::Missing,
            Err(error) => failed(error),
        }
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
}

fn failed(error: &std::io::Error) -> Put {
    match error.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            Put::Full("the server's disk is full".into())
        }
        _ => Put::Failed(format!("the server cannot write its files: {error}")),
    }
}
