//! One near level: its memory before its disk tier, what was deleted, and the levels of the process.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kv_platform::sync::Mutex;

use super::CopyKey;
use super::copies::{Copy, Since};
use super::disk::{DamagedCopy, Disk};
use super::memory::{MemoryTier, Moved};
use super::writer::{Line, Writer, WrittenLevel};
use crate::budget::Owner;
use crate::config::Near;
use crate::counters::{Counters, Event};
use crate::directory;
use crate::error::Error;
use crate::log;
use crate::payload::Buffer;
use crate::process::Clock;
use crate::threads::{Helpers, Whose};
use crate::until::Until;

pub struct NearLevel {
    memory: MemoryTier,
    disk: Option<Disk>,
    /// Nanoseconds.
    ttl: u64,
    /// How often a chunk was deleted whose hash falls here. What was fetched across a delete is not kept.
    deletes: [AtomicU64; STRIPES],
    counters: Arc<Counters>,
    clock: Clock,
    writer: Arc<Writer>,
    /// What waits to be written, and whose work that is.
    pub(super) line: Line,
    whose: Whose,
    /// What a test adds to the time.
    #[cfg(test)]
    pub(super) later: AtomicU64,
    /// What a test does before each write.
    #[cfg(test)]
    pub(super) held: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

const STRIPES: usize = 64;

/// What a level holds.
#[derive(Clone, Copy, Debug)]
pub struct NearUsage {
    pub memory_bytes: u64,
    /// None: it has no disk tier.
    pub disk_bytes: Option<u64>,
}

/// The near levels of a process.
pub struct NearLevels {
    /// Each with whose it is.
    levels: Mutex<Vec<(Whom, Weak<NearLevel>)>>,
    clock: Clock,
    writer: Arc<Writer>,
    directories: Arc<directory::Shared>,
}

type Whom = (String, Option<String>, Near);

impl NearLevels {
    /// None yet.
    pub fn new(clock: Clock, writers: Arc<Helpers>, directories: Arc<directory::Shared>) -> Self {
        NearLevels { levels: Mutex::default(), clock, writer: Arc::new(Writer::new(writers)), directories }
    }

    /// Wait until all is written that was handed to the writer.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        self.writer.settle();
    }

    /// The level of a backend, and of its tenant where it has one. A disk tier that cannot be used is left out, with one line.
    pub fn level(
        &self,
        (backend, tenant): (&str, Option<&str>),
        owner: &Arc<Owner>,
        near: &Near,
        counters: &Arc<Counters>,
    ) -> Arc<NearLevel> {
        let whom = (backend.to_owned(), tenant.map(str::to_owned), near.clone());
        let mut levels = self.levels.lock();
        levels.retain(|(_, level)| level.strong_count() > 0);
        if let Some(level) = levels.iter().find(|(of, _)| *of == whom).and_then(|(_, level)| level.upgrade()) {
            return level;
        }
        let level = Arc::new(self.open(owner, near, counters));
        levels.push((whom, Arc::downgrade(&level)));
        level
    }

    pub(super) fn open(&self, owner: &Arc<Owner>, near: &Near, counters: &Arc<Counters>) -> NearLevel {
        let whose = Whose::of(owner);
        let disk = near.disk.as_deref().and_then(|path| {
            let refused = |error: &Error| {
                log::line(log::Level::Warn, format_args!("near.disk {}: {error}; it is left out", path.display()));
            };
            Disk::open(path, near.disk_bytes, &self.directories, &whose).inspect_err(refused).ok()
        });
        NearLevel {
            memory: MemoryTier::new(near.memory_bytes),
            disk,
            ttl: u64::try_from(Duration::from_secs(near.ttl_s).as_nanos()).unwrap_or(u64::MAX),
            deletes: std::array::from_fn(|_| AtomicU64::new(0)),
            counters: counters.clone(),
            clock: self.clock.clone(),
            writer: self.writer.clone(),
            line: Line::default(),
            whose,
            #[cfg(test)]
            later: AtomicU64::new(0),
            #[cfg(test)]
            held: Mutex::default(),
        }
    }
}

impl NearLevel {
    pub fn usage(&self) -> NearUsage {
        NearUsage { memory_bytes: self.memory.bytes(), disk_bytes: self.disk.as_ref().map(Disk::bytes) }
    }

    #[cfg(test)]
    fn before_write(&self) {
        let held = self.held.lock().clone();
        held.into_iter().for_each(|held| held());
    }

    pub(super) fn count(&self, event: Event, amount: u64) {
        self.counters.add(event, amount);
    }

    fn now(&self) -> u64 {
        #[cfg(test)]
        let later = self.later.load(SeqCst);
        #[cfg(not(test))]
        let later = 0;
        self.clock.wall_ns().saturating_add(later)
    }

    /// Whether a chunk of so many bytes can be kept.
    pub(super) fn has_room_for(&self, len: usize) -> bool {
        self.memory.has_room_for(len) || self.disk.as_ref().is_some_and(|disk| disk.has_room_for(len))
    }

    /// To be asked before a call of the backend begins, for what it may bring.
    pub(super) fn since(&self, key: &CopyKey) -> Since {
        Since { time: self.now(), deletes: self.deleted(key) }
    }

    /// Whether a copy is as good as the backend's chunk.
    pub(super) fn is_fresh(&self, copy: &Copy) -> bool {
        copy.is_fresh(self.now(), self.ttl)
    }

    /// The copy of a chunk, fresh or not. One of the disk tier comes into memory.
    pub(super) fn find(self: &Arc<Self>, key: &CopyKey, until: &Until) -> Option<Copy> {
        if let Some(copy) = self.memory.get(key) {
            return Some(copy);
        }
        let disk = self.disk.as_ref()?;
        let deletes = self.deleted(key);
        let found = disk.read(key, until).unwrap_or_else(|DamagedCopy| {
            self.count(Event::NearDamaged, 1);
            None
        });
        let copy = found?;
        if self.memory.has_room_for(copy.data.len()) {
            self.take_in(Moved { key: *key, copy: copy.clone(), on_disk: true, deletes });
        }
        Some(copy)
    }

    /// Keep a chunk that a call of the backend has brought, or has stored.
    pub(super) fn keep(self: &Arc<Self>, key: &CopyKey, data: Arc<Buffer>, since: Since) {
        let copy = Copy { data, confirmed: since.time };
        self.take_in(Moved { key: *key, copy, on_disk: false, deletes: since.deletes });
    }

    /// Keep a copy in memory, and hand what that has no room for to the disk tier.
    fn take_in(self: &Arc<Self>, new: Moved) {
        let left = self.memory.insert(new, |key| self.deleted(key));
        if self.disk.is_some() {
            left.into_iter()
                .filter(|moved| !moved.on_disk && self.is_fresh(&moved.copy))
                .for_each(|moved| self.writer.queue_copy(self, moved));
        }
    }

    /// The backend has a chunk, as a call has said. False: there is no copy in memory.
    pub(super) fn confirm(&self, key: &CopyKey, since: Since) -> bool {
        self.memory.confirm(key, since.time, || self.deleted(key) == since.deletes)
    }

    /// Whether the copy in memory is these very bytes. They were held against the hash when they came.
    pub(super) fn holds(&self, key: &CopyKey, data: &Arc<Buffer>) -> bool {
        self.memory.holds(key, data)
    }

    /// Remove the copy of a chunk, and keep none that is on its way.
    pub(super) fn forget(&self, key: &CopyKey) {
        self.memory.remove(key, || {
            self.deletes(key).fetch_add(1, SeqCst);
        });
        if let Some(disk) = &self.disk {
            disk.remove(key);
        }
    }

    /// How many chunks were deleted of which this may be one.
    pub(super) fn deleted(&self, key: &CopyKey) -> u64 {
        self.deletes(key).load(SeqCst)
    }

    #[allow(clippy::indexing_slicing, reason = "the remainder is below the length, which is not 0")]
    fn deletes(&self, key: &CopyKey) -> &AtomicU64 {
        &self.deletes[usize::from(key.hash[0]) % STRIPES]
    }
}

impl WrittenLevel for NearLevel {
    fn line(&self) -> &Line {
        &self.line
    }

    fn whose(&self) -> &Whose {
        &self.whose
    }

    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn write_copy(&self, moved: &Moved) -> bool {
        let Moved { key, copy, deletes, .. } = moved;
        let Some(disk) = &self.disk else { return false };
        #[cfg(test)]
        self.before_write();
        disk.count();
        disk.write(key, copy, || self.deleted(key) == *deletes)
    }
}
