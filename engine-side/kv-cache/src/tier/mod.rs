//! A tier: an index that anyone reads without a lock, and one writer that alone changes it.
//!
//! The index is a concurrent map whose lookups take no lock (papaya), because a lookup must not wait while a writer evicts
//! or links files. Whoever changes the index, the order of use, the budget's account or the reservations holds the tier's
//! writer lock; a lookup never does. A reader pins a row with one atomic step that fails once the row is retired, and
//! the writer retires a row with one that fails while it is pinned: so neither waits for the other.
//!
//! Tiers share nothing but counters: one that is full, slow or broken is no other's concern.

mod directory;
mod entry;
mod evict;
mod gc;
mod load;
mod marker;
mod pinned;
mod publish;
mod scan;
mod store;
mod writer;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::clock::Clock;
use crate::counters::{Counters, TierStats, add};
use crate::descriptor::DIGEST_BYTES;
use crate::error::{Error, Result};
use crate::key::Key;
use crate::kind::TierKind;
use crate::log;
use crate::row::Flaw;
use directory::row_name;
pub(crate) use directory::{Directory, Found, Name};
use entry::{Body, Row};
pub use gc::Gc;
use kv_platform::sync::{Mutex, MutexGuard};
pub(crate) use load::{Bytes, as_uninit};
pub(crate) use pinned::Pinned;
pub use publish::Step;
pub(crate) use publish::StepHook;
pub(crate) use scan::Seen;
use writer::{Account, Writer};

/// What the tiers of a cache share.
pub(crate) struct Shared {
    pub clock: Arc<dyn Clock>,
    pub counters: Counters,
    /// Counts uses of rows. Not a clock, so that one that is set back changes no order.
    pub uses: AtomicU64,
    pub reservation_time_to_live: Duration,
    pub hook: Option<StepHook>,
    /// It was said that rows are saved that other software deletes.
    pub warned_of_quant: AtomicBool,
    /// The digest of what is said of the states.
    pub descriptor: Option<[u8; DIGEST_BYTES]>,
}

impl Shared {
    fn step(&self, step: Step) -> io::Result<()> {
        self.hook.as_ref().map_or(Ok(()), |hook| hook(step))
    }

    fn use_now(&self) -> u64 {
        self.uses.fetch_add(1, Relaxed)
    }
}

pub(crate) struct Tier {
    pub kind: TierKind,
    budget: u64,
    /// None: rows are in memory.
    directory: Option<Directory>,
    index: papaya::HashMap<Key, Arc<Row>>,
    writer: Mutex<Writer>,
    /// The writer's, for those who only look.
    account: Arc<Account>,
    /// A row was used since the uses were last noted.
    was_used: AtomicBool,
    shared: Arc<Shared>,
}

/// What became of a row that was to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    Done,
    /// It was there.
    Present,
    /// Another writer has it.
    Taken,
    /// This writer took longer than its reservation; nothing was stored.
    Abandoned,
}

impl Tier {
    pub fn memory(budget: u64, shared: Arc<Shared>) -> Tier {
        Tier::new(TierKind::Ram, budget, None, shared)
    }

    /// Open a directory and index what is in it.
    pub fn files(kind: TierKind, path: &Path, exclusive: bool, budget: u64, shared: Arc<Shared>) -> Result<Tier> {
        let mut directory = Directory::open(path, exclusive)?;
        directory.descriptor = shared.descriptor;
        let tier = Tier::new(kind, budget, Some(directory), shared);
        tier.scan()?;
        Ok(tier)
    }

    fn new(kind: TierKind, budget: u64, directory: Option<Directory>, shared: Arc<Shared>) -> Tier {
        let writer = Writer::default();
        let account = writer.account();
        let (index, writer, was_used) = (papaya::HashMap::new(), Mutex::new(writer), AtomicBool::new(false));
        Tier { kind, budget, directory, index, writer, account, was_used, shared }
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // Each change of the account is complete before anything that could panic.
        self.writer.lock()
    }

    fn scan(&self) -> Result<()> {
        let Some(directory) = &self.directory else { return Ok(()) };
        let cannot = |error| Error::io(format!("cannot list {}", directory.path.display()), error);
        let names = directory.names().map_err(cannot)?;
        add(&self.shared.counters.temporaries_reaped, directory.reap(&names));
        let mut rows = Vec::new();
        let mut left = LeftAlone::of(&names);
        directory.look_at(&names, |name, seen| match seen {
            Seen::Row(key, found) => rows.push((found.modified, self.row_of(key, &found, 0))),
            Seen::OfOthers(flaw) => {
                self.shared.counters.flaw(&flaw);
                *(if flaw == Flaw::OtherDescriptor { &mut left.described } else { &mut left.later }) += 1;
            }
            Seen::Flawed(flaw) => self.condemn_file(directory, name, &flaw),
            Seen::Unread(error) => log::warn(format_args!("{}/{name} is left out: {error}", directory.path.display())),
        });
        add(&self.shared.counters.misnamed_files, left.misnamed);
        if left != LeftAlone::default() {
            log::warn(format_args!("{}: {left}", directory.path.display()));
        }
        rows.sort_by_key(|(modified, row)| (*modified, row.key));
        let mut writer = self.writer();
        for (_, row) in rows {
            self.publish_now(&mut writer, row);
        }
        self.keep_budget(&mut writer);
        Ok(())
    }

    fn row_of(&self, key: Key, found: &Found, used: u64) -> Row {
        let head = &found.metadata.head;
        let body = Body::File {
            payload_offset: head.payload_offset,
            payload_crc32c: head.payload_crc32c,
            metadata_crc32c: found.metadata_crc32c,
        };
        Row::new(key, head.tokens, head.payload_bytes, found.file_bytes, body, used)
    }

    /// The row of this key, pinned and used. No lock is taken.
    pub fn find(self: &Arc<Self>, key: &Key) -> Option<Pinned> {
        let index = self.index.pin();
        let row = index.get(key)?;
        if !row.pin() {
            return None;
        }
        row.used.store(self.shared.use_now(), Relaxed);
        self.note_later(row);
        Some(Pinned::new(row.clone(), self.clone()))
    }

    /// The row was used now.
    fn note_later(&self, row: &Row) {
        row.used_wall.store(self.shared.clock.wall().as_nanos() as u64, Relaxed);
        // Written only once in a while, so that readers do not take the line from each other.
        if !self.was_used.load(Relaxed) {
            self.was_used.store(true, Relaxed);
        }
    }

    /// Whether the row can be found, and how many tokens it has.
    pub fn tokens_of(&self, key: &Key) -> Option<usize> {
        self.index.pin().get(key).filter(|row| !row.is_retired()).map(|row| row.tokens as usize)
    }

    /// Publish a row as the one that was used last.
    fn publish_now(&self, writer: &mut Writer, row: Row) {
        let now = self.shared.use_now();
        row.used.store(now, Relaxed);
        row.filed.store(now, Relaxed);
        self.publish(writer, row);
    }

    fn publish(&self, writer: &mut Writer, row: Row) {
        let row = Arc::new(row);
        writer.add(row.clone());
        if let Some(former) = self.index.pin().insert(row.key, row) {
            former.retire();
            writer.remove(former);
        }
    }

    /// The tier's name, for people.
    pub fn shown(&self) -> String {
        match &self.directory {
            Some(directory) => directory.path.display().to_string(),
            None => "ram".into(),
        }
    }

    /// Waits for nothing: the writer may be busy.
    pub fn stats(&self, queued: u64) -> TierStats {
        TierStats {
            tier: self.kind,
            rows: self.account.rows(),
            bytes: self.account.used(),
            reserved: self.account.reserved(),
            budget: self.budget,
            queued,
        }
    }

    /// Leave the order of use to the next process that opens the directory: what was used since the last time.
    pub fn note_uses(&self) {
        let Some(directory) = &self.directory else { return };
        if !self.was_used.swap(false, Relaxed) {
            return;
        }
        let used: Vec<_> = self.index.pin().values().filter(|row| row.used_wall.load(Relaxed) != 0).cloned().collect();
        for row in used {
            let at = row.used_wall.swap(0, Relaxed);
            // It is only an order: the next process does without.
            let _ = directory.note_use(&row_name(&row.key), at);
        }
    }

    /// Whether rows are in a directory: then there is an order of use to note.
    pub fn has_files(&self) -> bool {
        self.directory.is_some()
    }
}

/// Files that are reported and left where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LeftAlone {
    /// Rows of a later version.
    later: u64,
    /// Rows of another descriptor.
    described: u64,
    /// Names that end like a row's and are none.
    misnamed: u64,
}

impl LeftAlone {
    /// Those whose name says so.
    fn of(names: &[(String, Name)]) -> LeftAlone {
        let misnamed = names.iter().filter(|(_, name)| *name == Name::Misnamed).count();
        LeftAlone { misnamed: misnamed as u64, ..LeftAlone::default() }
    }
}

impl std::fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LeftAlone { later, described, misnamed } = self;
        write!(
            f,
            "left alone: {later} rows of a later version, {described} of another descriptor, {misnamed} files named like no row"
        )
    }
}
