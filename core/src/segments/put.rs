//! Storing values: each is given a place, written there, and named in the log.

use std::collections::HashSet;
use std::io::IoSlice;
use std::sync::atomic::Ordering::Relaxed;

use kv_platform::files;

use super::format::{Key, LogEntry, MAX_KEY_BYTES, SPACES, record_room};
use super::segment::{Record, write_all};
use super::store::{NewValue, SegmentStore, ValuePut, longest};
use crate::error::{Error, ErrorKind};
use crate::until::Until;

/// Where saves are made durable, the disk begins to write so many bytes as soon as they are in a segment: the sync waits for less.
const WRITTEN_EARLY: u64 = 64 << 10;

/// What became of values, in their order: of all of them, or of the first ones.
pub type Puts = Vec<Result<ValuePut, Error>>;

impl SegmentStore {
    /// Store values: an outcome for each, or for the first ones if the time runs out. What is there stays, unless it is to be replaced.
    pub fn put(&self, values: &[NewValue<'_>], replace: bool, until: &Until) -> Result<Puts, Error> {
        self.check_writable()?;
        if let Some(outcomes) = self.try_put(values, replace, until)? {
            return Ok(outcomes);
        }
        // Into another segment.
        self.try_put(values, replace, until)?.ok_or_else(given_up)
    }

    /// None: a segment was lost while it was written to.
    fn try_put(&self, values: &[NewValue<'_>], replace: bool, until: &Until) -> Result<Option<Puts>, Error> {
        self.follow(until)?;
        self.keep_to_values(values.len(), until)?;
        let mut outcomes: Puts = values.iter().map(|_| Ok(ValuePut::Existed)).collect();
        let mut records = Vec::new();
        let mut here: HashSet<Key<'_>> = HashSet::new();
        let mut tried = 0;
        for ((key, pieces), outcome) in values.iter().zip(&mut outcomes) {
            if tried > 0 && until.check().is_err() {
                break;
            }
            tried += 1;
            let first = here.insert(*key);
            if replace || (first && self.find_sure(*key).is_none()) {
                match self.place(*key, pieces, until) {
                    Ok(record) => records.push((record, outcome)),
                    Err(error) => *outcome = Err(error),
                }
            }
        }
        self.write(&mut records);
        records.retain(|(_, outcome)| outcome.is_ok());
        if records.is_empty() {
            drop(records);
            outcomes.truncate(tried);
            return Ok(Some(outcomes));
        }
        let (mut locked, mut known) = self.locked(until)?;
        // Another process may have put some of them meanwhile.
        records.retain(|(record, _)| replace || !known.index.has_for_sure(record.key));
        if records.iter().any(|(record, _)| !self.takes(&known, record)) {
            drop((locked, known));
            *self.writing() = None;
            return Ok(None);
        }
        let entries: Vec<LogEntry> = records.iter().map(|(record, _)| record.entry()).collect();
        locked.append(&entries, &mut *known)?;
        records.iter_mut().for_each(|(_, outcome)| **outcome = Ok(ValuePut::New));
        drop(records);
        outcomes.truncate(tried);
        Ok(Some(outcomes))
    }

    /// A place for a value.
    pub(super) fn place<'a>(&self, key: Key<'a>, pieces: &'a [&'a [u8]], until: &Until) -> Result<Record<'a>, Error> {
        check_key(key)?;
        let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let segment_bytes = self.known().header.segment_bytes;
        let (Ok(short), true) = (u32::try_from(len), len <= longest(segment_bytes)) else {
            let most = longest(segment_bytes);
            return Err(Error::invalid(format!("a value of {len} bytes is longer than a segment takes: {most}")));
        };
        let reserved = self.reserve(record_room(key.bytes.len(), len), until)?;
        Ok(Record::new(key, pieces, short, reserved))
    }

    /// Write records, those that lie one behind the other at once.
    fn write(&self, records: &mut [(Record<'_>, &mut Result<ValuePut, Error>)]) {
        let follows = |one: &(Record<'_>, _), next: &(Record<'_>, _)| {
            let (one, next) = (&one.0, &next.0);
            one.place.segment == next.place.segment && one.end() == next.place.offset()
        };
        for run in records.chunk_by_mut(follows) {
            let Some((first, _)) = run.first() else { continue };
            let (file, at) = (first.reserved.writing.file.clone(), first.place.offset());
            let mut slices: Vec<IoSlice<'_>> = run.iter().flat_map(|(record, _)| record.slices()).collect();
            let bytes: u64 = slices.iter().map(|slice| slice.len() as u64).sum();
            match write_all(&self.folder, &file, at, &mut slices) {
                Ok(()) if bytes >= WRITTEN_EARLY && self.syncs.load(Relaxed) => files::start_writing(&*file, at, bytes),
                Ok(()) => {}
                Err(error) => run.iter_mut().for_each(|(_, outcome)| **outcome = Err(error.clone())),
            }
        }
    }

    /// Write one record.
    pub(super) fn write_one(&self, record: &Record<'_>) -> Result<(), Error> {
        let slices = &mut record.slices().collect::<Vec<_>>();
        write_all(&self.folder, &record.reserved.writing.file, record.place.offset(), slices)
    }
}

/// The segment of a record is gone or bad: somebody removed the files of the store, or a sync failed.
pub(super) fn given_up() -> Error {
    Error::new(ErrorKind::Unavailable, "a segment is lost, or could not be synced, while it was written to: try again")
}

fn check_key(key: Key<'_>) -> Result<(), Error> {
    let len = key.bytes.len();
    if !(1..=MAX_KEY_BYTES).contains(&len) {
        return Err(Error::invalid(format!("a key has 1 to {MAX_KEY_BYTES} bytes, this one {len}")));
    }
    if usize::from(key.space) >= SPACES {
        return Err(Error::invalid(format!(
            "there are {SPACES} spaces of keys, from 0: {} is none of them",
            key.space
        )));
    }
    Ok(())
}
