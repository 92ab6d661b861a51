//! What survives a power loss: the segments in which values lie, then the log that names them.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::folder::io_error;
use super::format::{Key, LogEntry, RECORD_ALIGNMENT};
use super::segment::Record;
use super::store::{NewValue, SegmentStore, given_up};
use crate::error::{Error, ErrorKind};
use crate::until::Until;

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
        self.follow(until)?;
        let (mut absent, mut segments) = (Vec::new(), BTreeMap::new());
        for key in keys {
            match self.find_sure(*key) {
                Some(place) => segments
                    .entry(place.segment)
                    .and_modify(|unit: &mut u32| *unit = place.unit.max(*unit))
                    .or_insert(place.unit),
                None => {
                    absent.push(*key);
                    continue;
                }
            };
        }
        if !absent.is_empty() {
            return Ok(absent);
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
        for (segment, last) in segments {
            let Some(known) = self.known().index.segment(segment).copied() else { continue };
            // All that the log names now is written.
            if last >= known.synced {
                self.sync_segment(segment, until)?;
                synced.push((segment, known.end));
            }
        }
        let absent = self.publish(keys, last.as_ref(), &synced, until)?;
        if absent.is_empty() { self.sync_log(until).map(|()| absent) } else { Ok(absent) }
    }

    /// Name a record in the log, and what is on the disk, unless some of these values are gone.
    fn publish<'k>(
        &self,
        keys: &[Key<'k>],
        last: Option<&Record<'_>>,
        synced: &[(u32, u32)],
        until: &Until,
    ) -> Result<Vec<Key<'k>>, Error> {
        if last.is_none() && synced.is_empty() {
            return Ok(Vec::new());
        }
        let (mut locked, mut known) = self.locked(until)?;
        let absent: Vec<Key<'k>> = keys.iter().filter(|key| known.index.find(**key).is_none()).copied().collect();
        if !absent.is_empty() {
            return Ok(absent);
        }
        let mut entries = Vec::new();
        if let Some(record) = last {
            if !known.index.takes(record.place.segment) {
                return Err(given_up());
            }
            entries.push(record.entry());
        }
        // Behind the record, which was written before its segment was synced.
        entries.extend(synced.iter().map(|(segment, end)| {
            let own = last.filter(|record| record.place.segment == *segment);
            let to = own.map_or(0, |record| (record.end() / RECORD_ALIGNMENT) as u32).max(*end);
            LogEntry::Synced { segment: *segment, to }
        }));
        locked.append(&entries, &mut *known)?;
        Ok(absent)
    }

    /// Have a segment survive a power loss. What may be lost where that fails is marked: the kernel tells each failure once, and nobody
    /// else would learn of it. Of a segment that was evicted meanwhile nothing is lost.
    pub(super) fn sync_segment(&self, segment: u32, until: &Until) -> Result<(), Error> {
        self.syncs.store(true, Relaxed);
        let own = self.writing().as_ref().filter(|own| own.segment == segment).map(|own| own.file.clone());
        let file = match own {
            Some(file) => Some(file),
            None => self.file(segment)?,
        };
        let synced = match file {
            Some(file) => file.sync_data().map_err(|error| io_error(&error, "syncing a segment")),
            None => Err(Error::new(ErrorKind::Corrupt, "the file of a segment is lost")),
        };
        let Err(error) = synced else { return Ok(()) };
        self.writing().take_if(|own| own.segment == segment);
        let (mut locked, mut known) = self.locked(until)?;
        let Some(from) = known.index.segment(segment).map(|known| known.synced) else { return Ok(()) };
        locked.append(&[LogEntry::Bad { segment, from }], &mut *known)?;
        Err(error)
    }

    /// Have all survive a power loss that the log says.
    pub(super) fn sync_log(&self, until: &Until) -> Result<(), Error> {
        if self.log.sync().is_ok() {
            return Ok(());
        }
        // What it says may be lost, and nobody else would learn of it. All of it is written to another file, and synced.
        let (mut locked, mut known) = self.locked(until)?;
        self.write_anew(&mut locked, &mut known, until)
    }
}
