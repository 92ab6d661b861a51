//! The store: values go into segments, and are there when the log says so.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

use kv_platform::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use rustix::fs::{self, AtFlags, Timespec, Timestamps, UTIME_OMIT};

use super::durable::Losses;
use super::folder::SegmentFolder;
use super::format::{Header, Key, LogEntry, MAX_KEY_BYTES, Place, RECORD_HEADER_BYTES, makes_sense};
use super::index::{Index, Total};
use super::log::{Follow, Locked, Log, Step};
use super::segment::{RecordFilling, Writing, has_name, name_of};
use crate::error::{Error, ErrorKind};
use crate::limits::{MAX_RECORDS, USE_NOTED};
use crate::one_at_a_time::OneAtATime;
use crate::payload::{self, Destination};
use crate::process::{Clock, Random};
use crate::until::Until;

/// What a store is opened with.
#[derive(Clone, Copy, Debug, Default)]
pub struct SegmentSettings {
    /// Bytes of a segment of a store that is made; one that is there keeps its own. None: an eighth of all, 256 MiB at most.
    pub segment_bytes: Option<u64>,
    /// What all segments may take. None: what was said when the store was made, and if nothing was, four fifths of what was free.
    pub max_bytes: Option<u64>,
    /// The most values. None: [`MAX_RECORDS`].
    pub max_values: Option<u64>,
}

/// Bytes of a segment where its operator says nothing and the store is large.
const SEGMENT_BYTES: u64 = 256 << 20;
/// A segment is the most that is evicted at once, so it is no more than this part of the store.
const SEGMENTS: u64 = 8;
/// The shortest that a segment is made for that.
const LEAST_SEGMENT: u64 = 64 << 10;
/// One is filled, one was filled, and one is evicted.
pub(super) const LEAST_SEGMENTS: u64 = 3;

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValuePut {
    /// It was stored.
    New,
    /// There is a value under its key, which stays.
    Existed,
}

/// A value that is to be stored: its key, and its pieces.
pub type NewValue<'a> = (Key<'a>, &'a [&'a [u8]]);

/// A store in a folder, for all threads of a process.
pub struct SegmentStore {
    pub(super) folder: Arc<SegmentFolder>,
    pub(super) log: Log,
    clock: Clock,
    made_with: Header,
    /// 0: what the log's header says.
    max_bytes: AtomicU64,
    pub(super) max_values: AtomicU64,
    known: RwLock<Known>,
    pub(super) writing: Mutex<Option<Arc<Writing>>>,
    /// What is put here is made durable afterwards.
    pub(super) syncs: AtomicBool,
    /// Who takes another one.
    pub(super) taking: OneAtATime,
    pub(super) losses: Arc<Losses>,
    /// A thread reads a long log: what it has not come to is not there yet.
    replaying: AtomicBool,
}

/// What the log says, and the files that were opened for it.
pub(super) struct Known {
    pub index: Index,
    pub header: Header,
    /// Logs that were followed.
    pub logs: u64,
    pub files: HashMap<u32, Arc<File>>,
    /// When it was last noted that a value of a segment was used, in nanoseconds.
    noted: HashMap<u32, AtomicU64>,
}

impl Follow for Known {
    fn begin(&mut self, header: Option<&Header>) {
        self.header = header.copied().unwrap_or(self.header);
        self.logs += 1;
        self.index = Index::anew(&self.index, self.header.seed);
        self.files.clear();
        self.noted.clear();
    }

    fn apply(&mut self, entry: &LogEntry) {
        match entry {
            LogEntry::Evicted { segment } => {
                self.files.remove(segment);
                self.noted.remove(segment);
            }
            LogEntry::Taken { segment } => drop(self.noted.entry(*segment).or_default()),
            _ => {}
        }
        self.index.apply(entry);
    }

    fn followed(&mut self) {
        self.index.followed();
    }
}

impl SegmentStore {
    /// The store in a folder, made if it is not there and may be. What its log says is followed by [`SegmentStore::follow`].
    pub fn open(
        folder: OwnedFd,
        read_only: bool,
        settings: &SegmentSettings,
        (clock, random): (&Clock, &Random),
        until: &Until,
    ) -> Result<Self, Error> {
        let folder = Arc::new(SegmentFolder::new(folder, read_only));
        let mut seed = [0; 8];
        random.fill(&mut seed)?;
        let made_with = header(&folder, settings, u64::from_ne_bytes(seed))?;
        let log = Log::new(folder.clone(), clock);
        if !read_only && !log.is_there()? {
            // A disk that takes nothing is met by the first put: what is there can be read.
            let made = folder.claim().and_then(|()| log.lock(until)?.make(&made_with));
            if let Err(error) = made
                && matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Version)
            {
                return Err(error);
            }
        }
        let max_values = settings.max_values.unwrap_or(MAX_RECORDS);
        // Others may allow themselves more; what is twice as much is nobody's store.
        let most = usize::try_from(max_values.saturating_mul(2)).unwrap_or(usize::MAX);
        let known = Known {
            index: Index::new(made_with.seed, most),
            header: made_with,
            logs: 0,
            files: HashMap::new(),
            noted: HashMap::new(),
        };
        Ok(SegmentStore {
            log,
            folder,
            clock: clock.clone(),
            made_with,
            max_bytes: AtomicU64::new(settings.max_bytes.unwrap_or(0)),
            max_values: AtomicU64::new(max_values),
            known: RwLock::new(known),
            writing: Mutex::new(None),
            syncs: AtomicBool::new(false),
            taking: OneAtATime::new(clock),
            losses: Arc::new(Losses::new(clock)),
            replaying: AtomicBool::new(false),
        })
    }

    /// The same with what was lost in its folder before.
    pub(super) fn with_losses(self, losses: &Arc<Losses>) -> Self {
        SegmentStore { losses: losses.clone(), ..self }
    }

    /// The bounds that somebody else opens it with count from now on.
    pub(super) fn bound(&self, settings: &SegmentSettings) {
        settings.max_bytes.into_iter().for_each(|bytes| self.max_bytes.store(bytes, Relaxed));
        settings.max_values.into_iter().for_each(|values| self.max_values.store(values, Relaxed));
    }

    pub(super) fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.clock.read(&self.known)
    }

    pub(super) fn learning(&self) -> RwLockWriteGuard<'_, Known> {
        self.clock.write(&self.known)
    }

    pub(super) fn writing(&self) -> MutexGuard<'_, Option<Arc<Writing>>> {
        self.clock.lock(&self.writing)
    }

    /// Learn what other processes did.
    pub fn follow(&self, until: &Until) -> Result<(), Error> {
        if self.log.is_current() || self.replaying.load(SeqCst) {
            return Ok(());
        }
        self.log.tail().follow(&mut *self.learning(), until)
    }

    /// The log of which all is known, or that is read beside the calls. What is not found is not there if this is the same before and after:
    /// another thread may have begun with a log that was written anew, and have met an error.
    pub fn followed(&self) -> Option<u64> {
        let known = self.known();
        (known.index.is_followed() || self.replaying.load(SeqCst)).then_some(known.logs)
    }

    /// Bytes of the log that are still to be followed.
    pub fn behind(&self) -> u64 {
        self.log.left()
    }

    /// [`SegmentStore::follow`] for a long log: others are answered meanwhile out of what is known already.
    pub fn replay(&self, until: &Until) -> Result<(), Error> {
        let mut tail = self.log.tail();
        self.replaying.store(true, SeqCst);
        let mut step = |step: Step<'_>| {
            let mut known = self.learning();
            match step {
                Step::Begin(header) => known.begin(header),
                Step::Apply(entries) => entries.iter().for_each(|entry| known.apply(entry)),
            }
        };
        let replayed = tail.follow_by(&mut step, until).map(|()| self.learning().followed());
        self.replaying.store(false, SeqCst);
        replayed
    }

    /// Take the right to append, and learn all that was appended. What syncs have lost is said first.
    pub(super) fn locked(&self, until: &Until) -> Result<(Locked<'_>, RwLockWriteGuard<'_, Known>), Error> {
        let mut locked = self.log.lock(until)?;
        let mut known = self.learning();
        locked.follow(&mut *known, until)?;
        if !locked.has_log() {
            // Somebody removed what was in the folder, or it could not be made.
            self.folder.claim()?;
            locked.make(&self.made_with)?;
            locked.follow(&mut *known, until)?;
        }
        self.tell(&mut locked, &mut known)?;
        Ok((locked, known))
    }

    /// The most segments.
    pub(super) fn most(&self, known: &Known) -> usize {
        let own = self.max_bytes.load(Relaxed);
        let bytes = if own == 0 { known.header.max_bytes } else { own };
        usize::try_from((bytes / known.header.segment_bytes).max(LEAST_SEGMENTS)).unwrap_or(usize::MAX)
    }

    /// The longest value.
    pub fn max_value_bytes(&self) -> u64 {
        longest(self.known().header.segment_bytes)
    }

    /// What the segments may take.
    pub fn capacity(&self) -> u64 {
        let known = self.known();
        self.most(&known) as u64 * known.header.segment_bytes
    }

    /// What a space holds.
    pub fn total(&self, space: u8) -> Total {
        self.known().index.total(space)
    }

    /// The lengths of the values that there are.
    pub fn exists(&self, keys: &[Key<'_>], until: &Until) -> Result<Vec<Option<u32>>, Error> {
        loop {
            self.follow(until)?;
            let log = self.followed();
            let lens: Vec<_> = keys.iter().map(|key| self.find_sure(*key).map(|place| place.len)).collect();
            if lens.iter().all(Option::is_some) || (log.is_some() && self.followed() == log) {
                return Ok(lens);
            }
            until.check()?;
        }
    }

    /// [`SegmentStore::find`] for somebody who goes by it without reading the value: one that a power loss may have taken is read first.
    pub(super) fn find_sure(&self, key: Key<'_>) -> Option<Place> {
        let place = self.find(key)?;
        if self.known().index.has_for_sure(key) {
            return Some(place);
        }
        let value = Destination::Buffer(payload::Filling::new(place.len.into()).ok()?);
        // What cannot be read is not there.
        let holds = self.read(&place, key, value).is_ok_and(|(holds, _)| holds);
        if holds {
            self.known().index.note_sure(key, &place);
        }
        holds.then_some(place)
    }

    /// Where the value of a key lies, for somebody who uses it.
    pub fn find(&self, key: Key<'_>) -> Option<Place> {
        let known = self.known();
        let place = known.index.find_to_use(key)?;
        // No writer says so, and nobody is to make room for it.
        if u64::from(place.len) > longest(known.header.segment_bytes) {
            return None;
        }
        let now = self.clock.wall_ns();
        let noted = known.noted.get(&place.segment)?;
        let before = noted.load(Relaxed);
        if now.abs_diff(before) > USE_NOTED.as_nanos() as u64
            && noted.compare_exchange(before, now, Relaxed, Relaxed).is_ok()
            && !self.folder.read_only
        {
            drop(known);
            self.note_use(place.segment, now);
        }
        Some(place)
    }

    /// Have others know that values of a segment are used.
    fn note_use(&self, segment: u32, now: u64) {
        let time = |nanoseconds: u64| Timespec {
            tv_sec: (nanoseconds / 1_000_000_000) as i64,
            tv_nsec: (nanoseconds % 1_000_000_000) as _,
        };
        let modified = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: time(now), last_modification: modified };
        let _ = fs::utimensat(&self.folder.root, name_of(segment), &times, AtFlags::SYMLINK_NOFOLLOW);
    }

    /// A value that was found at a place does not hold there, and the log has nothing newer of it: it is not there any more, so that the next put
    /// of it stores it.
    pub fn note_damage(&self, key: Key<'_>, place: &Place) {
        self.learning().index.forget_at(key, place);
        self.give_up_writing(|own| {
            own.segment == place.segment && !has_name(&self.folder, own.segment, &own.file).unwrap_or(true)
        });
    }

    /// Read the value that lies at a place into `value`, which has room for it. False: it is not there any more, or is not what was put.
    pub fn read(&self, place: &Place, key: Key<'_>, value: Destination) -> Result<(bool, Destination), Error> {
        let Some(file) = self.file(place.segment)? else { return Ok((false, value)) };
        let mut filling = RecordFilling::new(place, key, value);
        let holds = filling.read_all(&file, place.offset())? && filling.holds(key);
        Ok((holds, filling.destination))
    }

    pub(super) fn check_writable(&self) -> Result<(), Error> {
        match self.folder.read_only {
            true => Err(Error::new(
                ErrorKind::Denied,
                "the directory is granted read-only: fs of the config says access = \"ro\"",
            )),
            false => Ok(()),
        }
    }

    /// Remove values. That there is none is success. `durable`: they stay gone after a power loss.
    pub fn delete(&self, keys: &[Key<'_>], durable: bool, until: &Until) -> Result<(), Error> {
        self.check_writable()?;
        {
            let (mut locked, mut known) = self.locked(until)?;
            let there = keys.iter().filter(|key| known.index.is_said(**key));
            let gone = |key: &Key<'_>| LogEntry::Deleted { space: key.space, key: key.bytes.to_vec() };
            let entries: Vec<LogEntry> = there.map(gone).collect();
            locked.append(&entries, &mut *known)?;
        }
        // Also of what somebody else removed.
        if durable { self.sync_log(until) } else { Ok(()) }
    }
}

/// The longest value that a segment takes, whatever its key.
pub(super) fn longest(segment_bytes: u64) -> u64 {
    let rest = segment_bytes.saturating_sub((RECORD_HEADER_BYTES + MAX_KEY_BYTES) as u64);
    rest.min(u32::MAX.into())
}

/// What a store is made with.
fn header(folder: &SegmentFolder, settings: &SegmentSettings, seed: u64) -> Result<Header, Error> {
    let space = fs::fstatvfs(&folder.root).map_err(|errno| Error::from(errno).context("the space of the disk"))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let max_bytes = settings.max_bytes.unwrap_or(free / 5 * 4);
    let by_bound = (max_bytes / SEGMENTS / LEAST_SEGMENT * LEAST_SEGMENT).clamp(LEAST_SEGMENT, SEGMENT_BYTES);
    let segment_bytes = settings.segment_bytes.unwrap_or(by_bound);
    if !makes_sense(segment_bytes) {
        return Err(Error::invalid(format!("a segment has a multiple of 64 bytes, up to 16 GiB, not {segment_bytes}")));
    }
    if settings.max_bytes.is_some() && max_bytes / segment_bytes < LEAST_SEGMENTS {
        return Err(Error::invalid(format!(
            "max_bytes = {max_bytes} has no room for {LEAST_SEGMENTS} segments of {segment_bytes} bytes: allow more, or make them shorter"
        )));
    }
    Ok(Header { seed, segment_bytes, max_bytes })
}

#[cfg(test)]
#[path = "store_tests.rs"]
pub(super) mod tests;
