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
mod pinned;
mod publish;
mod scan;
mod writer;

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::Clock;
use crate::counters::{Counters, TierStats, add};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::kind::TierKind;
use crate::limits::ROW_OVERHEAD_BYTES;
use crate::log;
use crate::row::{Flaw, NewRow};
use crate::save::Payload;
use directory::row_name;
pub(crate) use directory::{Directory, Found, Name};
use entry::{Body, Row};
pub use gc::Gc;
pub(crate) use load::Bytes;
pub(crate) use pinned::Pinned;
use publish::Placed;
pub use publish::Step;
pub(crate) use publish::StepHook;
pub(crate) use scan::Seen;
use writer::Writer;

/// What the tiers of a cache share.
pub(crate) struct Shared {
    pub clock: Arc<dyn Clock>,
    pub counters: Counters,
    /// Counts uses of rows. Not a clock, so that one that is set back changes no order.
    pub uses: AtomicU64,
    pub reservation_time_to_live: Duration,
    pub hook: Option<StepHook>,
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

/// A reservation that is released when it is dropped.
struct Reserved<'a> {
    tier: &'a Tier,
    key: Key,
    token: u64,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.tier.writer().release(&self.key, self.token);
    }
}

impl Tier {
    pub fn memory(budget: u64, shared: Arc<Shared>) -> Tier {
        Tier::new(TierKind::Ram, budget, None, shared)
    }

    /// Open a directory and index what is in it.
    pub fn files(kind: TierKind, path: &Path, exclusive: bool, budget: u64, shared: Arc<Shared>) -> Result<Tier> {
        let directory = Directory::open(path, exclusive)?;
        let tier = Tier::new(kind, budget, Some(directory), shared);
        tier.scan()?;
        Ok(tier)
    }

    fn new(kind: TierKind, budget: u64, directory: Option<Directory>, shared: Arc<Shared>) -> Tier {
        Tier { kind, budget, directory, index: papaya::HashMap::new(), writer: Mutex::default(), shared }
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // Each change of the account is complete before anything that could panic.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
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
            Seen::Later(flaw) => {
                self.shared.counters.flaw(&flaw);
                left.later += 1;
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
        row.used_wall.store(self.shared.clock.wall().as_nanos() as u64, Relaxed);
        Some(Pinned::new(row.clone(), self.clone()))
    }

    /// Whether the row can be found, and how many tokens it has.
    pub fn tokens_of(&self, key: &Key) -> Option<usize> {
        self.index.pin().get(key).filter(|row| !row.is_retired()).map(|row| row.tokens as usize)
    }

    /// Store a row, by the protocol of [`publish`].
    pub fn store(&self, key: Key, new: &NewRow<'_>, payload: &mut Payload<'_>) -> Result<Stored> {
        let layout = self.directory.as_ref().map(|_| new.layout());
        let before = layout.as_ref().map_or(ROW_OVERHEAD_BYTES, |layout| layout.len() as u64);
        let charged = before + new.payload_bytes;
        let token = {
            let mut writer = self.writer();
            if self.tokens_of(&key).is_some() {
                return Ok(Stored::Present);
            }
            let now = self.shared.clock.monotonic();
            writer.expire(now);
            if writer.has_live_reservation(&key, now) {
                return Ok(Stored::Taken);
            }
            if charged > self.budget || !self.make_room(&mut writer, charged) {
                return Err(self.no_room(charged, &writer));
            }
            let time_to_live = self.shared.reservation_time_to_live;
            match writer.reserve(key, charged, now, time_to_live) {
                Some(token) => token,
                None => return Ok(Stored::Taken),
            }
        };
        let reserved = Reserved { tier: self, key, token };
        let cannot = |error| Error::io(format!("cannot store row {key} in the tier {}", self.shown()), error);
        self.shared.step(Step::Reserved).map_err(cannot)?;
        match (&self.directory, layout) {
            (Some(directory), Some(layout)) => {
                let step = |step| self.shared.step(step);
                let temporary = directory.write_temporary(&key, layout, payload.as_slice(), &step).map_err(cannot)?;
                self.place(&reserved, new, charged, || {
                    let condemn = |flaw: &Flaw| self.condemn_file(directory, &row_name(&key), flaw);
                    let placed = directory.link(&temporary, &key, new.payload_bytes, &condemn)?;
                    self.shared.step(Step::Linked)?;
                    Ok(match placed {
                        Placed::Ours => Body::File {
                            payload_offset: temporary.payload_offset,
                            payload_crc32c: temporary.payload_crc32c,
                            metadata_crc32c: temporary.metadata_crc32c,
                        }
                        .into(),
                        Placed::Adopted(found) => {
                            add(&self.shared.counters.adopted, 1);
                            self.row_of(key, &found, 0).into()
                        }
                    })
                })
            }
            _ => self.place(&reserved, new, charged, || Ok(Body::Memory(Mutex::new(Some(payload.take()))).into())),
        }
        .map_err(cannot)
    }

    /// Steps 3 to 5 under the writer's lock: nothing comes between the check and the publication.
    fn place(
        &self,
        reserved: &Reserved<'_>,
        new: &NewRow<'_>,
        charged: u64,
        link: impl FnOnce() -> io::Result<Place>,
    ) -> io::Result<Stored> {
        let mut writer = self.writer();
        if !writer.is_live(&reserved.key, reserved.token, self.shared.clock.monotonic()) {
            add(&self.shared.counters.saves_abandoned, 1);
            return Ok(Stored::Abandoned);
        }
        self.shared.step(Step::Checked)?;
        let used = self.shared.use_now();
        let row = match link()? {
            Place::Row(row) => {
                row.used.store(used, Relaxed);
                row.filed.store(used, Relaxed);
                *row
            }
            Place::New(body) => {
                let tokens = new.tokens.len() as u32;
                Row::new(reserved.key, tokens, new.payload_bytes, charged, body, used)
            }
        };
        row.used_wall.store(self.shared.clock.wall().as_nanos() as u64, Relaxed);
        writer.release(&reserved.key, reserved.token);
        self.publish(&mut writer, row);
        drop(writer);
        self.shared.step(Step::Published)?;
        Ok(Stored::Done)
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

    fn no_room(&self, charged: u64, writer: &Writer) -> Error {
        let (shown, budget) = (self.shown(), self.budget);
        let message = if charged > budget {
            format!("a row of {charged} bytes is larger than the budget of the tier {shown}, {budget} bytes")
        } else {
            format!(
                "the tier {shown} has no room for {charged} bytes: of {budget}, {} are in use or being written and cannot be \
                 evicted",
                writer.used() + writer.reserved()
            )
        };
        Error::new(ErrorKind::Full, message)
    }

    /// The tier's name, for people.
    pub fn shown(&self) -> String {
        match &self.directory {
            Some(directory) => directory.path.display().to_string(),
            None => "ram".into(),
        }
    }

    pub fn stats(&self, queued: u64) -> TierStats {
        let writer = self.writer();
        TierStats {
            tier: self.kind,
            rows: writer.rows() as u64,
            bytes: writer.used(),
            reserved: writer.reserved(),
            budget: self.budget,
            queued,
        }
    }

    /// Leave the order of use to the next process that opens the directory.
    pub fn note_uses(&self) {
        let Some(directory) = &self.directory else { return };
        let used: Vec<_> = self.writer().all().filter(|row| row.used_wall.load(Relaxed) != 0).cloned().collect();
        for row in used {
            let at = row.used_wall.swap(0, Relaxed);
            // It is only an order: the next process does without.
            let _ = directory.note_use(&row_name(&row.key), at);
        }
    }
}

/// Files that are reported and left where they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LeftAlone {
    /// Rows of a later version.
    later: u64,
    /// Names that end like a row's and are none.
    misnamed: u64,
}

impl LeftAlone {
    /// Those whose name says so.
    fn of(names: &[(String, Name)]) -> LeftAlone {
        let misnamed = names.iter().filter(|(_, name)| *name == Name::Misnamed).count();
        LeftAlone { later: 0, misnamed: misnamed as u64 }
    }
}

impl std::fmt::Display for LeftAlone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let LeftAlone { later, misnamed } = self;
        write!(f, "left alone: {later} rows of a later version, {misnamed} files named like no row")
    }
}

/// What step 4 makes of a row.
enum Place {
    New(Body),
    Row(Box<Row>),
}

impl From<Body> for Place {
    fn from(body: Body) -> Self {
        Place::New(body)
    }
}

impl From<Row> for Place {
    fn from(row: Row) -> Self {
        Place::Row(Box::new(row))
    }
}
