//! Room for values: segments are taken, and evicted where there are enough of them.
//!
//! Invariants: a segment that somebody fills is never evicted; no number of a segment is used twice; the file of an evicted segment is
//! removed when the log says so, and what a reader still has of it holds under its own number only.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;

use rustix::fs::{self, AtFlags, FlockOperation, OFlags};
use rustix::io::Errno;

use super::format::{
    Key, LogEntry, MAX_KEY_BYTES, Place, RECORD_ALIGNMENT, RECORD_HEADER_BYTES, SPACES, record_key, record_room,
};
use super::io::read_at;
use super::log::Locked;
use super::put::given_up;
use super::segment::{Record, Reserved, Writing, name_of};
use super::store::{Known, SegmentStore};
use crate::directory::used;
use crate::error::{Error, ErrorKind};
use crate::until::Until;

/// Of a segment that is evicted, this part is copied elsewhere at most: so a value that is put costs 1.11 writes at most.
const COPIED_FRACTION: u64 = 10;
/// A log that is not worth being written anew.
const LEAST_LOG: u64 = 64 << 10;
/// Room for entries that is taken together with a segment.
const LOG_AHEAD: u64 = 1 << 20;
/// A segment that nobody fills is gone on with where this part of it is left.
const LEFT_FRACTION: u64 = 4;

/// The lock of a segment's file that its writer has, and for a moment whoever takes or evicts it.
const NOBODY: FlockOperation = FlockOperation::NonBlockingLockExclusive;
/// That of who copies what is used out of it. All locks of segments are taken by who has that of the log.
const NOBODY_FILLS: FlockOperation = FlockOperation::NonBlockingLockShared;

/// What was evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EvictedValues {
    /// Of values.
    pub bytes: u64,
    /// Values of each space.
    pub values: [u64; SPACES],
    /// The time ran out: there may be more to evict.
    pub more: bool,
}

impl SegmentStore {
    /// A place in the segment that this process fills, or in another one.
    pub(super) fn reserve(&self, room: u64, until: &Until) -> Result<Reserved, Error> {
        let segment_bytes = self.known().header.segment_bytes;
        let place = || self.writing().as_ref().and_then(|writing| Reserved::take(writing, room, segment_bytes));
        if let Some(place) = place() {
            return Ok(place);
        }
        let alone = self.taking.enter(until, |late| late.context("another thread takes a segment"))?;
        if let Some(place) = place() {
            return Ok(place);
        }
        // Its lock stays until all have written who have a place there.
        *self.writing() = None;
        let taken = self.take(room, until)?;
        let found = Reserved::take(&taken, room, segment_bytes);
        let found = found.ok_or_else(|| Error::new(ErrorKind::Other, "a new segment has no room"))?;
        *self.writing() = Some(taken);
        drop(alone);
        // Where that fails, the next who takes a segment evicts one as it is.
        let _ = self.make_room(until);
        Ok(found)
    }

    /// A segment to fill, told to all: one whose writer is gone, or a new one.
    fn take(&self, room: u64, until: &Until) -> Result<Arc<Writing>, Error> {
        let (mut locked, mut known) = self.locked(until)?;
        if locked.len() > 2 * known.index.log_bytes() + LEAST_LOG {
            self.write_anew(&mut locked, &mut known, until)?;
        }
        if let Some(found) = self.adopt(&known, room)? {
            return Ok(found);
        }
        while known.index.segments().count() >= self.most(&known) {
            self.evict_one(&mut locked, &mut known)?;
        }
        let segment =
            known.index.next_segment().ok_or_else(|| Error::new(ErrorKind::Exhausted, "no number is left"))?;
        let name = name_of(segment);
        // One that somebody made who died before the log said so.
        let _ = fs::unlinkat(&self.folder.root, &name, AtFlags::empty());
        let file = loop {
            match self.allocate(&name, known.header.segment_bytes) {
                // Others fill the disk: the store makes do with less.
                Err(Errno::NOSPC | Errno::DQUOT) if known.index.segments().next().is_some() => {
                    self.evict_one(&mut locked, &mut known)?;
                }
                made => break made.map_err(|errno| Error::from(errno).context("allocating a segment"))?,
            }
        };
        locked.reserve(LOG_AHEAD);
        locked.append(&[LogEntry::Taken { segment }], &mut *known)?;
        Ok(Arc::new(Writing::new(segment, Arc::new(file), 0, known.logs)))
    }

    /// A segment whose writer is gone, behind the last record that the log names: what else its writer wrote is nobody's.
    fn adopt(&self, known: &Known, room: u64) -> Result<Option<Arc<Writing>>, Error> {
        let enough = room.max(known.header.segment_bytes / LEFT_FRACTION);
        let left = known.index.segments().filter(|(_, segment)| {
            segment.bad_from.is_none()
                && u64::from(segment.end) * RECORD_ALIGNMENT + enough <= known.header.segment_bytes
        });
        for (number, segment) in left {
            let Some(file) = self.free(number, NOBODY)? else { continue };
            return Ok(Some(Arc::new(Writing::new(number, Arc::new(file), segment.end, known.logs))));
        }
        Ok(None)
    }

    /// The file of a segment that nobody fills, with this lock.
    fn free(&self, segment: u32, lock: FlockOperation) -> Result<Option<File>, Error> {
        let Some(file) = self.folder.at(&name_of(segment), OFlags::RDWR)? else { return Ok(None) };
        match fs::flock(&file, lock) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(Error::from(errno).context("locking a segment")),
        }
    }

    fn allocate(&self, name: &str, bytes: u64) -> Result<File, Errno> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let io = |error: &std::io::Error| Errno::from_io_error(error).unwrap_or(Errno::IO);
        let file = self.folder.create(name, flags)?;
        let made = self.folder.writing(|| match kv_platform::files::allocate(&file, bytes) {
            // Such a file system cannot say that it has room.
            Err(Errno::OPNOTSUPP) => Ok(fs::ftruncate(&file, bytes)?),
            allocated => Ok(allocated?),
        });
        let made = made
            .map_err(|error| io(&error))
            .and_then(|()| fs::flock(&file, FlockOperation::NonBlockingLockExclusive))
            .and_then(|()| self.folder.sync());
        match made {
            Ok(()) => Ok(file),
            Err(errno) => {
                let _ = fs::unlinkat(&self.folder.root, name, AtFlags::empty());
                Err(errno)
            }
        }
    }

    /// The segments in the order in which they go: those whose values were used least of late, of those the ones that nobody has used
    /// for longest.
    fn order(&self, known: &Known) -> Vec<u32> {
        let used = known.index.used();
        let share = |segment| used.get(&segment).copied().unwrap_or(0) * 8 / known.header.segment_bytes;
        let mut order: Vec<(u64, u64, u32)> = known
            .index
            .segments()
            .map(|(number, _)| (share(number), self.last_used(number) / 60_000_000_000, number))
            .collect();
        order.sort_unstable();
        order.into_iter().map(|(_, _, number)| number).collect()
    }

    /// When a value of a segment was last put or used by any process, in nanoseconds, as exact as uses are noted. 0: it is gone.
    pub(super) fn last_used(&self, segment: u32) -> u64 {
        fs::statat(&self.folder.root, name_of(segment), AtFlags::SYMLINK_NOFOLLOW).map_or(0, |stat| used(&stat))
    }

    /// The first of these segments that nobody fills, with its lock; none where its file is lost.
    fn victim(
        &self,
        order: impl IntoIterator<Item = u32>,
        lock: FlockOperation,
    ) -> Result<Option<(u32, Option<File>)>, Error> {
        for number in order {
            match self.free(number, lock)? {
                Some(file) => return Ok(Some((number, Some(file)))),
                None if self.folder.at(&name_of(number), OFlags::RDONLY)?.is_none() => return Ok(Some((number, None))),
                None => {}
            }
        }
        Ok(None)
    }

    fn evict_one(&self, locked: &mut Locked<'_>, known: &mut Known) -> Result<(), Error> {
        let order = self.order(known);
        let victim = match self.victim(order.iter().copied(), NOBODY)? {
            // What others copy out of one is not waited for.
            None => self.victim(order, NOBODY_FILLS)?,
            victim => victim,
        };
        let Some((victim, _file)) = victim else {
            let most = self.most(known);
            let message = format!("all segments are being filled, and there may be {most}: allow more bytes");
            return Err(Error::new(ErrorKind::Exhausted, message));
        };
        locked.append(&[LogEntry::Evicted { segment: victim }], known)?;
        let _ = fs::unlinkat(&self.folder.root, name_of(victim), AtFlags::empty());
        Ok(())
    }

    /// Evict a segment if there are as many as there may be, so that the next one can be taken. What was used of late is copied out of it.
    fn make_room(&self, until: &Until) -> Result<(), Error> {
        let (victim, file, places, segment_bytes, log) = {
            let (_locked, known) = self.locked(until)?;
            if known.index.segments().count() < self.most(&known) {
                return Ok(());
            }
            let Some((victim, file)) = self.victim(self.order(&known), NOBODY)? else { return Ok(()) };
            // Who needs room meanwhile may evict it as it is.
            if let Some(file) = &file
                && fs::flock(file, NOBODY_FILLS).is_err()
            {
                return Ok(());
            }
            (victim, file, known.index.used_in(victim), known.header.segment_bytes, known.logs)
        };
        let mut copies = Vec::new();
        if let Some(file) = &file {
            let mut budget = segment_bytes / COPIED_FRACTION;
            for place in places {
                let room = record_room(MAX_KEY_BYTES, place.len.into());
                if until.check().is_err() {
                    break;
                }
                if budget >= room
                    && let Some(copy) = self.copy(file, place, segment_bytes)?
                {
                    budget -= room;
                    copies.push(copy);
                }
            }
        }
        // What lasts where it is lasts where it is copied to.
        let copied: BTreeSet<u32> = copies.iter().map(|copy| copy.writing.segment).collect();
        for segment in copied {
            if !self.sync_segment(segment, until)? {
                return Err(given_up());
            }
        }
        {
            let (mut locked, mut known) = self.locked(until)?;
            if known.logs != log {
                // Its number may be another file's.
                return Err(given_up());
            }
            let key = |copy: &CopiedRecord| known.index.find(Key { space: copy.space, bytes: &copy.key });
            let still = copies.iter().filter(|copy| key(copy) == Some(copy.from));
            let mut entries: Vec<LogEntry> = still.map(|copy| copy.entry.clone()).collect();
            entries.extend(known.index.has(victim).then_some(LogEntry::Evicted { segment: victim }));
            locked.append(&entries, &mut *known)?;
        }
        if !copies.is_empty() {
            self.sync_log(until)?;
        }
        let _ = fs::unlinkat(&self.folder.root, name_of(victim), AtFlags::empty());
        Ok(())
    }

    /// Copy a value to the segment that this process fills. None: it does not hold, or there is no room.
    fn copy(&self, file: &File, from: Place, segment_bytes: u64) -> Result<Option<CopiedRecord>, Error> {
        let mut bytes = vec![0; RECORD_HEADER_BYTES + MAX_KEY_BYTES + from.len as usize];
        let mut len = 0;
        while let Some(room) = bytes.get_mut(len..).filter(|room| !room.is_empty()) {
            match read_at(file, room, from.offset() + len as u64) {
                // What cannot be read cannot be kept.
                Ok(0) | Err(_) => break,
                Ok(more) => len += more,
            }
        }
        let Some((key, value)) = bytes.get(..len).and_then(|bytes| record_key(bytes, &from)) else { return Ok(None) };
        let room = record_room(key.bytes.len(), from.len.into());
        let reserved = self.writing().as_ref().and_then(|writing| Reserved::take(writing, room, segment_bytes));
        let Some(reserved) = reserved else { return Ok(None) };
        let pieces = [value];
        let record = Record::new(key, &pieces, from.len, reserved);
        self.write_one(&record)?;
        let entry = record.entry();
        Ok(Some(CopiedRecord {
            from,
            space: key.space,
            key: key.bytes.to_vec(),
            entry,
            writing: record.reserved.writing.clone(),
        }))
    }

    /// Have no more values than the bound, these included.
    pub(super) fn keep_to_values(&self, more: usize, until: &Until) -> Result<(), Error> {
        let most = self.max_values.load(std::sync::atomic::Ordering::Relaxed);
        let over = |known: &Known| (known.index.len() + more) as u64 > most;
        if !over(&self.known()) {
            return Ok(());
        }
        // Most of them may lie in the own one.
        *self.writing() = None;
        let (mut locked, mut known) = self.locked(until)?;
        while over(&known) && known.index.len() > 0 {
            self.evict_one(&mut locked, &mut known)?;
        }
        Ok(())
    }

    /// Evict segments: those last used before `unused_since`, and as many as have `bytes` bytes of values, the least recently used
    /// first. What was put or used after `keep_since` stays.
    pub fn evict(
        &self,
        bytes: u64,
        unused_since: Option<u64>,
        keep_since: u64,
        until: &Until,
    ) -> Result<EvictedValues, Error> {
        self.check_writable()?;
        let mut evicted = EvictedValues::default();
        if bytes == 0 && unused_since.is_none() {
            return Ok(evicted);
        }
        // All may be in the own one. It is gone on with if it stays.
        *self.writing() = None;
        let (mut locked, mut known) = self.locked(until)?;
        let mut order: Vec<(u64, u32)> =
            known.index.segments().map(|(number, _)| (self.last_used(number), number)).collect();
        order.sort_unstable();
        for (used, number) in order {
            let unused = unused_since.is_some_and(|since| used < since);
            if used > keep_since || !(unused || evicted.bytes < bytes) {
                break;
            }
            if until.check().is_err() {
                evicted.more = true;
                break;
            }
            let Some((victim, _file)) = self.victim([number], NOBODY)? else { continue };
            let total = known.index.segments().find(|(number, _)| *number == victim).map(|(_, segment)| segment.total);
            evicted.bytes += total.unwrap_or_default().bytes;
            let counted = known.index.counted(victim);
            evicted.values.iter_mut().zip(counted).for_each(|(all, more)| *all += more);
            locked.append(&[LogEntry::Evicted { segment: victim }], &mut *known)?;
            let _ = fs::unlinkat(&self.folder.root, name_of(victim), AtFlags::empty());
        }
        Ok(evicted)
    }

    /// Write the log anew if most of it says nothing any more. Answers whether it did.
    #[cfg(test)]
    pub fn compact(&self, until: &Until) -> Result<bool, Error> {
        let (mut locked, mut known) = self.locked(until)?;
        if locked.len() <= 2 * known.index.log_bytes() + LEAST_LOG {
            return Ok(false);
        }
        self.write_anew(&mut locked, &mut known, until).map(|()| true)
    }

    /// Write the log anew: what is still to be said, and the greatest number of a segment, so that none is used twice.
    pub(super) fn write_anew(&self, locked: &mut Locked<'_>, known: &mut Known, until: &Until) -> Result<(), Error> {
        let header = known.header;
        let (first, last) = (known.index.latest(), known.index.synced());
        locked.compact(&header, (&first, &last), |entry| known.index.is_live(entry))?;
        self.losses.log_was_written();
        locked.follow(known, until)
    }
}

/// A value that was copied out of a segment, and that no log names yet.
struct CopiedRecord {
    from: Place,
    space: u8,
    key: Vec<u8>,
    entry: LogEntry,
    writing: Arc<Writing>,
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
