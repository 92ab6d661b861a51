//! What survives a power loss: the segments in which values lie, then the log that names them.
//!
//! Invariant: a commit answers for nothing that a sync of this process may have lost. The kernel tells a failure once to all who share a
//! descriptor, and the next sync succeeds whatever was lost. So a failure is noted before the sync counts as over; whoever's sync has succeeded
//! waits for those that were under way meanwhile; and the log says what is noted before anything else is appended.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use kv_platform::sync::Mutex;
use rustix::fs::OFlags;

use super::folder::io_error;
use super::format::{Key, LogEntry, Place, RECORD_ALIGNMENT};
use super::index::Segment;
use super::io::sync_data;
use super::log::Locked;
use super::segment::{Record, name_of};
use super::store::{Known, NewValue, SegmentStore};
use crate::error::Error;
use crate::process::{Clock, Condition};
use crate::until::Until;

/// A segment that a commit has synced.
struct Synced {
    segment: u32,
    /// Behind what the log named when that began.
    end: u32,
    sync: u64,
    /// Which of the logs was followed then.
    log: u64,
}

/// What syncs of a process have lost, and the log does not say yet. It outlives the stores that a process opens in a folder.
pub struct Losses {
    noted: Mutex<Noted>,
    ended: Condition,
}

#[derive(Default)]
struct Noted {
    /// Segments, and the first place of what may be lost.
    segments: BTreeMap<u32, u32>,
    /// The log could not be synced, and was not written anew for that yet.
    log: bool,
    /// Syncs that are under way, of a segment or of the log.
    under_way: BTreeMap<u64, Option<u32>>,
    last: u64,
}

impl Losses {
    pub fn new(clock: &Clock) -> Self {
        Losses { noted: Mutex::default(), ended: Condition::new(clock) }
    }

    pub fn is_empty(&self) -> bool {
        let noted = self.noted.lock();
        noted.segments.is_empty() && !noted.log
    }

    /// All that the log says was written to another file, and synced.
    pub fn log_was_written(&self) {
        self.noted.lock().log = false;
    }

    fn log_is_lost(&self) -> bool {
        self.noted.lock().log
    }

    fn segments(&self) -> BTreeMap<u32, u32> {
        self.noted.lock().segments.clone()
    }

    /// Sync a segment, or the log. `lost` notes that it has failed.
    fn sync(
        &self,
        file: Option<u32>,
        until: &Until,
        sync: impl FnOnce() -> Result<(), Error>,
        lost: impl FnOnce(),
    ) -> Result<(), Error> {
        let mut noted = self.noted.lock();
        noted.last += 1;
        let own = noted.last;
        noted.under_way.insert(own, file);
        drop(noted);
        let synced = sync();
        if synced.is_err() {
            lost();
        }
        let mut noted = self.noted.lock();
        noted.under_way.remove(&own);
        self.ended.notify_all();
        synced?;
        let begun = noted.last;
        // One of them may have been told of what this one has not.
        while noted.under_way.range(..=begun).any(|(_, other)| *other == file) {
            noted = until
                .wait(&self.ended, &self.noted, noted)
                .map_err(|late| late.context("another thread syncs the same file"))?;
        }
        Ok(())
    }
}

/// What came of it that a commit appends to the log.
enum Published<'k> {
    Done,
    Absent(Vec<Key<'k>>),
    /// Something moved meanwhile, and what is there now was not synced.
    Moved,
}

impl SegmentStore {
    /// Have these values survive a power loss, whichever process put them, and then store one more, in place of what lies under its key:
    /// whoever finds that, also after a power loss, finds all of them, if they were not evicted. Answers which of them are not there;
    /// then nothing is stored. Each segment in which some lie that no sync has met yet is synced once, and the log.
    ///
    /// A sync that fails has all processes take for nothing what may be lost.
    pub fn commit<'k>(
        &self,
        keys: &[Key<'k>],
        last: Option<NewValue<'_>>,
        until: &Until,
    ) -> Result<Vec<Key<'k>>, Error> {
        self.check_writable()?;
        loop {
            self.tell_losses(until)?;
            self.follow(until)?;
            match self.try_commit(keys, last, until)? {
                Published::Done => return self.sync_log(until).map(|()| Vec::new()),
                Published::Absent(absent) => return Ok(absent),
                Published::Moved => until.check()?,
            }
        }
    }

    fn try_commit<'k>(
        &self,
        keys: &[Key<'k>],
        last: Option<NewValue<'_>>,
        until: &Until,
    ) -> Result<Published<'k>, Error> {
        let log = self.known().logs;
        let (mut absent, mut found, mut segments) = (Vec::new(), Vec::new(), BTreeMap::new());
        for key in keys {
            match self.find_sure(*key) {
                Some(place) => {
                    found.push((*key, place));
                    let last = segments.entry(place.segment).or_insert(place.unit);
                    *last = place.unit.max(*last);
                }
                None => absent.push(*key),
            }
        }
        if !absent.is_empty() {
            return self.surely_absent(absent, until);
        }
        let last = match last {
            Some((key, pieces)) => {
                let record = self.place(key, pieces, until)?;
                self.write_one(&record)?;
                segments.insert(record.place.segment, u32::MAX);
                Some(record)
            }
            None => None,
        };
        let mut synced = Vec::new();
        let published = match self.sync_all(segments, &mut synced, until) {
            Ok(true) => self.publish((&found, log), last.as_ref(), &synced, until),
            Ok(false) => Ok(Published::Moved),
            Err(error) => Err(error),
        };
        let mut known = self.learning();
        let now = known.logs;
        synced.iter().filter(|synced| synced.log == now).for_each(|synced| known.index.end_sync(synced.sync));
        published
    }

    /// Which of these values are not there by all that the log says: another thread may have begun to read it anew, and have met an error.
    fn surely_absent<'k>(&self, mut absent: Vec<Key<'k>>, until: &Until) -> Result<Published<'k>, Error> {
        let (_locked, known) = self.locked(until)?;
        drop(known);
        absent.retain(|key| self.find_sure(*key).is_none());
        Ok(if absent.is_empty() { Published::Moved } else { Published::Absent(absent) })
    }

    /// Sync segments up to the last place that is asked for, where no sync has met that yet, and see whether the others are there still. False: one
    /// of them is lost.
    fn sync_all(&self, segments: BTreeMap<u32, u32>, all: &mut Vec<Synced>, until: &Until) -> Result<bool, Error> {
        for (segment, last) in segments {
            let mut known = self.learning();
            let Some(Segment { end, synced, .. }) = known.index.segment(segment).copied() else { continue };
            let is_there = if last >= synced {
                // All that the log names now is written.
                let log = known.logs;
                all.push(Synced { segment, end, sync: known.index.begin_sync(segment), log });
                drop(known);
                self.sync_segment(segment, until)?
            } else {
                drop(known);
                self.named(segment)?.is_some() || self.say_gone(segment, until)?
            };
            if !is_there {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Have the log say that the file of a segment is gone, if it still counts on that. False.
    fn say_gone(&self, segment: u32, until: &Until) -> Result<bool, Error> {
        let (mut locked, mut known) = self.locked(until)?;
        if known.index.has(segment) && self.folder.at(&name_of(segment), OFlags::RDONLY)?.is_none() {
            locked.append(&[LogEntry::Bad { segment, from: 0 }], &mut *known)?;
        }
        Ok(false)
    }

    /// Name a record in the log, and what is on the disk, unless some of these values are gone. `found`: where they lay before that was synced,
    /// by which log.
    fn publish<'k>(
        &self,
        (found, log): (&[(Key<'k>, Place)], u64),
        last: Option<&Record<'_>>,
        synced: &[Synced],
        until: &Until,
    ) -> Result<Published<'k>, Error> {
        if last.is_none() && synced.is_empty() {
            return Ok(Published::Done);
        }
        let (mut locked, mut known) = self.locked(until)?;
        let mut entries = Vec::new();
        if let Some(record) = last {
            if !self.takes(&known, record) {
                drop((locked, known));
                self.give_up_writing(|own| own.segment == record.place.segment);
                return Ok(Published::Moved);
            }
            entries.push(record.entry());
        }
        let mut on_disk: BTreeMap<u32, u32> =
            known.index.segments().map(|(number, segment)| (number, segment.synced)).collect();
        // Behind the record, which was written before its segment was synced.
        entries.extend(synced.iter().map(|Synced { segment, end, sync, log }| {
            let own = last.filter(|record| record.place.segment == *segment);
            let to = own.map_or(0, |record| (record.end() / RECORD_ALIGNMENT) as u32).max(*end);
            // What the log names since it began may have been written since, before what was there.
            let to = if *log == known.logs { to.min(known.index.before_sync(*sync)) } else { 0 };
            // Nor does it bring back what a power loss has taken before.
            let to = to.min(known.index.old_from(*segment));
            on_disk.entry(*segment).and_modify(|before| *before = to.max(*before));
            LogEntry::Synced { segment: *segment, to }
        }));
        // Others may have removed one of them, or put it anew, elsewhere.
        let lasts = |(key, place): &(Key<'_>, Place)| {
            let is_on_disk = |at: Place| on_disk.get(&at.segment).is_some_and(|to| at.unit < *to);
            known.index.find(*key).is_some_and(|at| (at == *place && log == known.logs) || is_on_disk(at))
        };
        if !found.iter().all(lasts) {
            return Ok(Published::Moved);
        }
        locked.append(&entries, &mut *known)?;
        Ok(Published::Done)
    }

    /// Have a segment survive a power loss. What may be lost where that fails is marked: nobody else would learn of it. Of a segment that was
    /// evicted meanwhile nothing is lost. False: its file is gone, and the log says so.
    pub(super) fn sync_segment(&self, segment: u32, until: &Until) -> Result<bool, Error> {
        self.syncs.store(true, Relaxed);
        let Some(file) = self.named(segment)? else { return self.say_gone(segment, until) };
        let sync = || sync_data(&*file).map_err(|error| io_error(&error, "syncing a segment"));
        let lost = || {
            self.give_up_writing(|own| own.segment == segment);
            // While nobody can publish: what they do before was synced before.
            let known = self.known();
            if let Some(from) = known.index.segment(segment).map(|known| known.synced) {
                let noted = &mut self.losses.noted.lock().segments;
                noted.entry(segment).and_modify(|lowest| *lowest = from.min(*lowest)).or_insert(from);
            }
        };
        if let Err(error) = self.losses.sync(Some(segment), until, sync, lost) {
            self.tell_losses(until)?;
            let evicted = !self.known().index.has(segment);
            return if evicted { Ok(true) } else { Err(error) };
        }
        Ok(true)
    }

    /// Have the log say what syncs have lost.
    fn tell_losses(&self, until: &Until) -> Result<(), Error> {
        if self.losses.segments().is_empty() { Ok(()) } else { self.locked(until).map(drop) }
    }

    /// The same by whoever may append.
    pub(super) fn tell(&self, locked: &mut Locked<'_>, known: &mut Known) -> Result<(), Error> {
        let lost = self.losses.segments();
        let there = lost.into_iter().filter(|(segment, _)| known.index.has(*segment));
        let bad: Vec<LogEntry> = there.map(|(segment, from)| LogEntry::Bad { segment, from }).collect();
        locked.append(&bad, known)?;
        // Nobody notes one meanwhile.
        self.losses.noted.lock().segments.clear();
        Ok(())
    }

    /// Have all survive a power loss that the log says.
    pub(super) fn sync_log(&self, until: &Until) -> Result<(), Error> {
        if !self.losses.log_is_lost() {
            let lost = || self.losses.noted.lock().log = true;
            let synced = self.losses.sync(None, until, || self.log.sync(), lost);
            if !self.losses.log_is_lost() {
                return synced;
            }
        }
        // What it says may be lost, and nobody else would learn of it. All of it is written to another file, and synced.
        let (mut locked, mut known) = self.locked(until)?;
        self.write_anew(&mut locked, &mut known, until)
    }
}

#[cfg(test)]
#[path = "durable_tests.rs"]
mod tests;
