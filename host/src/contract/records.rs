//! The contract's `records` interface, over the segment stores of the process.

use std::collections::HashSet;
use std::sync::Arc;

use wasmtime::component::Resource;

use super::GuestAnswer;
use super::files::{FileEvent, watched};
use super::payload::slices;
use super::{Incoming, Reserved, State, answered};
use crate::contract::bindings::kv_store::backend::payloads::Part;
use crate::contract::bindings::kv_store::backend::records::{
    Bounds, Entry, Evicted, Host, HostRecordOptions, HostRecordStore, NewRecord, Page, Totals,
};
use crate::contract::bindings::kv_store::backend::store_types::{
    CommitOutcome, DeleteOutcome, GetOutcome, Hashes, Presence, PutOutcome,
};
use crate::directory::{Directory, Found};
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::Payload;
use crate::segments::{Key, MAX_KEY_BYTES, NewValue, Place, SPACES, SegmentSettings, SegmentStore, ValuePut};

/// What a guest's handle to options stands for.
#[derive(Default)]
pub struct RecordOptions(SegmentSettings);

/// What a guest's handle to a store of records stands for.
pub struct RecordStore {
    store: Arc<SegmentStore>,
    directory: Arc<Directory>,
}

impl Host for State {
    fn open_records(
        &mut self,
        grant: String,
        options: Option<Resource<RecordOptions>>,
    ) -> GuestAnswer<Resource<RecordStore>> {
        let mut settings = match options {
            Some(handle) => self.table.get(&handle)?.0,
            None => SegmentSettings::default(),
        };
        let most = settings.max_values.unwrap_or(limits::MAX_RECORDS).min(limits::MAX_RECORDS);
        settings.max_values = Some(most);
        let opened = self.granted(&grant).and_then(|directory| {
            let reach = &self.access.reach;
            let store = reach.segments.open(&directory, &settings, &reach.limits, &self.until)?;
            Ok(RecordStore { store, directory })
        });
        answered(opened.and_then(|opened| self.push(opened, limits::HANDLE_BYTES)))
    }
}

impl HostRecordOptions for State {
    fn new(&mut self) -> wasmtime::Result<Resource<RecordOptions>> {
        Ok(self.push(RecordOptions::default(), limits::HANDLE_BYTES)?)
    }

    fn set_max_bytes(&mut self, handle: Resource<RecordOptions>, bytes: u64) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.0.max_bytes = Some(bytes);
        Ok(())
    }

    fn set_max_records(&mut self, handle: Resource<RecordOptions>, records: u64) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.0.max_values = Some(records);
        Ok(())
    }

    fn set_file_bytes(&mut self, handle: Resource<RecordOptions>, bytes: u64) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.0.segment_bytes = Some(bytes);
        Ok(())
    }

    fn drop(&mut self, handle: Resource<RecordOptions>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        self.dropped(limits::HANDLE_BYTES);
        Ok(())
    }
}

/// The keys that a guest passes, as far as one call answers them.
fn keys(space: u8, hashes: &Hashes) -> Result<Vec<Key<'_>>, Error> {
    let all = all_keys(space, hashes)?;
    Ok(all.take(limits::MAX_BATCH_ITEMS).collect())
}

fn all_keys(space: u8, hashes: &Hashes) -> Result<impl Iterator<Item = Key<'_>>, Error> {
    let width = hashes.width as usize;
    if !(1..=MAX_KEY_BYTES).contains(&width) || !hashes.bytes.len().is_multiple_of(width) {
        let len = hashes.bytes.len();
        return Err(Error::invalid(format!("{len} bytes are no keys of {width} bytes, of 1 to {MAX_KEY_BYTES}")));
    }
    if usize::from(space) >= SPACES {
        return Err(Error::invalid(format!("there are {SPACES} spaces of keys, from 0: {space} is none of them")));
    }
    Ok(hashes.bytes.chunks_exact(width).map(move |bytes| Key { space, bytes }))
}

impl State {
    pub(super) fn records(
        &self,
        handle: &Resource<RecordStore>,
    ) -> wasmtime::Result<(Arc<SegmentStore>, Arc<Directory>)> {
        let RecordStore { store, directory } = self.table.get(handle)?;
        Ok((store.clone(), directory.clone()))
    }

    /// Records, each into the memory of an item where it is for one. None: there was no room or no time for it.
    fn read_records(
        &mut self,
        store: &SegmentStore,
        directory: &Directory,
        records: Vec<Record<'_>>,
    ) -> Vec<Option<Result<Option<Resource<Payload>>, Error>>> {
        let mut outcomes = Vec::new();
        outcomes.resize_with(records.len(), || None);
        // Those that are there, by their numbers among all, and where they were tried.
        let mut left: Vec<(usize, Record<'_>, Option<Place>)> =
            records.into_iter().enumerate().map(|(at, record)| (at, record, None)).collect();
        let until = self.until.clone();
        while !left.is_empty() {
            let mut there = Vec::with_capacity(left.len());
            let log = store.followed();
            for (at, record, tried) in std::mem::take(&mut left) {
                // It may have been evicted since the log was read, or lie elsewhere; at the same place it is damaged.
                match store.find(record.key) {
                    Some(place) if tried != Some(place) => there.push((at, record, place)),
                    None if log.is_none() || store.followed() != log => left.push((at, record, None)),
                    place => {
                        place.iter().for_each(|place| store.note_damage(record.key, place));
                        set(&mut outcomes, at, Ok(None));
                    }
                }
            }
            let wanted: Vec<_> = there.iter().map(|(_, record, place)| (*place, record.key)).collect();
            let mut rooms: Vec<Option<Reserved>> = wanted.iter().map(|_| None).collect();
            let mut on_way = 0;
            let found = store.read_all(&wanted, directory, &until, &mut |index, len| {
                let item = there.get(index).and_then(|(_, record, _)| record.item);
                let Incoming { destination, room } = self.incoming(len, item, &mut on_way)?;
                if let Some(place) = rooms.get_mut(index) {
                    *place = room;
                }
                Ok(destination)
            });
            for ((Found { read, destination }, room), (at, record, place)) in found.into_iter().zip(rooms).zip(there) {
                match (read, destination) {
                    (Ok(true), Some(destination)) => {
                        let settled = self.settle(Incoming { destination, room }, Ok(()));
                        set(&mut outcomes, at, settled.map(Some));
                    }
                    (read, destination) => {
                        self.items.give_back(destination);
                        match read {
                            Ok(_) => left.push((at, record, Some(place))),
                            Err(error) => set(&mut outcomes, at, Err(error)),
                        }
                    }
                }
            }
            if !left.is_empty()
                && let Err(error) = store.follow(&until)
            {
                left.drain(..).for_each(|(at, ..)| set(&mut outcomes, at, Err(error.clone())));
            }
        }
        outcomes
    }
}

/// A record that is to be read, and the item that it is for.
struct Record<'a> {
    key: Key<'a>,
    item: Option<u32>,
}

fn set<T>(outcomes: &mut [Option<T>], at: usize, outcome: T) {
    if let Some(place) = outcomes.get_mut(at) {
        *place = Some(outcome);
    }
}

fn put_outcome(outcome: Result<ValuePut, Error>) -> PutOutcome {
    match outcome {
        Ok(ValuePut::New) => PutOutcome::Stored,
        Ok(ValuePut::Existed) => PutOutcome::Existed,
        Err(error) => PutOutcome::Failed(error.into()),
    }
}

impl HostRecordStore for State {
    fn exists(&mut self, handle: Resource<RecordStore>, space: u8, hashes: Hashes) -> GuestAnswer<Vec<Presence>> {
        let (store, _) = self.records(&handle)?;
        let lens = keys(space, &hashes).and_then(|keys| store.exists(&keys, &self.until));
        let presence = |len: Option<u32>| len.map_or(Presence::Absent, |len| Presence::Present(Some(u64::from(len))));
        answered(lens.map(|lens| lens.into_iter().map(presence).collect()))
    }

    fn get(
        &mut self,
        handle: Resource<RecordStore>,
        space: u8,
        hashes: Hashes,
        item: Option<u32>,
    ) -> GuestAnswer<Vec<GetOutcome>> {
        let (store, directory) = self.records(&handle)?;
        let keys = match keys(space, &hashes).and_then(|keys| store.follow(&self.until).map(|()| keys)) {
            Ok(keys) => keys,
            Err(error) => return answered(Err(error)),
        };
        let mut outcomes = Vec::with_capacity(keys.len());
        let records = keys.into_iter().zip(0_u32..);
        let records = records.map(|(key, at)| Record { key, item: item.and_then(|first| first.checked_add(at)) });
        let mut ended = false;
        for read in self.read_records(&store, &directory, records.collect()) {
            match read {
                // The guest asks for what is behind the end once more.
                Some(Ok(Some(payload))) if ended => self.drop_payload(payload)?,
                _ if ended => {}
                Some(Ok(Some(payload))) => outcomes.push(GetOutcome::Found(payload)),
                Some(Ok(None)) => outcomes.push(GetOutcome::Missing),
                // What was read so far may make room when the guest hands it on.
                Some(Err(error)) if error.kind() != ErrorKind::Exhausted || outcomes.is_empty() => {
                    outcomes.push(GetOutcome::Failed(error.into()));
                }
                _ => ended = true,
            }
        }
        Ok(Ok(outcomes))
    }

    fn put(
        &mut self,
        handle: Resource<RecordStore>,
        space: u8,
        hashes: Hashes,
        values: Vec<Vec<Part>>,
        replace: bool,
    ) -> GuestAnswer<Vec<PutOutcome>> {
        let (store, directory) = self.records(&handle)?;
        let keys = match keys(space, &hashes) {
            Ok(keys) => keys,
            Err(error) => return answered(Err(error)),
        };
        if hashes.bytes.len() / hashes.width.max(1) as usize != values.len() {
            return answered(Err(Error::invalid("there are not as many values as keys")));
        }
        let (mut pieces, mut slices_held) = (Vec::with_capacity(keys.len()), 0);
        for parts in values.iter().take(keys.len()) {
            let value = slices(&self.table, &self.items, parts)?;
            slices_held += value.as_ref().map_or(0, Vec::len);
            // The guest asks again for the rest.
            if slices_held > limits::MAX_SLICES && !pieces.is_empty() {
                break;
            }
            pieces.push(value.and_then(|value| {
                let room = directory.admit(bytes(&value), Some(&self.until))?;
                Ok((value, room))
            }));
        }
        let whole = keys.iter().zip(&pieces).filter_map(|(key, value)| Some((*key, &*value.as_ref().ok()?.0)));
        let stored = store.put(&whole.collect::<Vec<NewValue<'_>>>(), replace, &self.until);
        answered(stored.map(|stored| {
            let mut stored = stored.into_iter();
            let outcomes = pieces.into_iter().zip(&keys).map_while(|(value, key)| match value {
                Ok((value, _room)) => stored.next().inspect(|outcome| {
                    if matches!(outcome, Ok(ValuePut::New)) {
                        note(*key, Some((bytes(&value), false)));
                        let tally = directory.tally();
                        tally.into_iter().for_each(|tally| tally.add(i64::try_from(bytes(&value)).unwrap_or(i64::MAX)));
                    }
                }),
                Err(error) => Some(Err(error)),
            });
            outcomes.map(put_outcome).collect()
        }))
    }

    fn delete(
        &mut self,
        handle: Resource<RecordStore>,
        space: u8,
        hashes: Hashes,
        durable: bool,
    ) -> GuestAnswer<Vec<DeleteOutcome>> {
        let (store, _) = self.records(&handle)?;
        answered(keys(space, &hashes).and_then(|keys| {
            store.delete(&keys, durable, &self.until)?;
            Ok(keys.iter().map(|_| DeleteOutcome::Gone).collect())
        }))
    }

    fn commit(
        &mut self,
        handle: Resource<RecordStore>,
        space: u8,
        fresh: Vec<Hashes>,
        last: Option<NewRecord>,
    ) -> GuestAnswer<CommitOutcome> {
        let (store, directory) = self.records(&handle)?;
        let value = match &last {
            Some(record) => Some(slices(&self.table, &self.items, &record.value)?),
            None => None,
        };
        answered((|| {
            let value = value.transpose()?;
            let _room = value.as_ref().map(|value| directory.admit(bytes(value), Some(&self.until))).transpose()?;
            let mut all = Vec::new();
            for hashes in &fresh {
                all.extend(all_keys(space, hashes)?.take(limits::MAX_FRESH_CHUNKS + 1));
                if all.len() > limits::MAX_FRESH_CHUNKS {
                    let most = limits::MAX_FRESH_CHUNKS;
                    return Err(Error::invalid(format!("a commit names {most} records at most")));
                }
            }
            let new = |(record, value)| {
                let NewRecord { space, key, .. }: &NewRecord = record;
                (Key { space: *space, bytes: key }, value)
            };
            let last = last.as_ref().zip(value.as_deref()).map(new);
            let absent: HashSet<&[u8]> =
                store.commit(&all, last, &self.until)?.into_iter().map(|key| key.bytes).collect();
            if absent.is_empty() {
                all.iter().for_each(|key| note(*key, None));
                last.iter().for_each(|(key, value)| note(*key, Some((bytes(value), true))));
                return Ok(CommitOutcome::Published);
            }
            let gone = fresh.iter().map(|hashes| {
                let keys = hashes.bytes.chunks_exact(hashes.width.max(1) as usize);
                let bytes: Vec<u8> = keys.filter(|key| absent.contains(key)).flatten().copied().collect();
                Hashes { width: hashes.width, bytes }
            });
            Ok(CommitOutcome::Absent(gone.filter(|hashes| !hashes.bytes.is_empty()).collect()))
        })())
    }

    fn entries(
        &mut self,
        handle: Resource<RecordStore>,
        space: u8,
        after: Option<String>,
        limit: u32,
    ) -> GuestAnswer<Page> {
        let (store, _) = self.records(&handle)?;
        if limit == 0 || usize::from(space) >= SPACES {
            return answered(Err(Error::invalid("a listing is of one of the spaces 0 to 3, and its limit 1 or more")));
        }
        let limit = (limit as usize).min(limits::MAX_DIRECTORY_ENTRIES);
        let page = store.list(space, after.as_deref(), limit, &self.until);
        answered(page.map(|(listed, next)| {
            let entry =
                |listed: crate::segments::Listed| Entry { key: listed.key, size: listed.len.into(), used: listed.used };
            Page { entries: listed.into_iter().map(entry).collect(), next }
        }))
    }

    fn usage(&mut self, handle: Resource<RecordStore>, space: u8) -> GuestAnswer<Totals> {
        let (store, _) = self.records(&handle)?;
        if usize::from(space) >= SPACES {
            return answered(Err(Error::invalid("the spaces are 0 to 3")));
        }
        answered(store.follow(&self.until).map(|()| {
            let total = store.total(space);
            Totals { records: total.values, bytes: total.bytes }
        }))
    }

    fn bounds(&mut self, handle: Resource<RecordStore>) -> wasmtime::Result<Bounds> {
        let (store, _) = self.records(&handle)?;
        Ok(Bounds { capacity: store.capacity(), max_value_bytes: store.max_value_bytes() })
    }

    fn evict(
        &mut self,
        handle: Resource<RecordStore>,
        bytes: u64,
        unused_since: Option<u64>,
        keep_since: u64,
    ) -> GuestAnswer<Evicted> {
        let (store, directory) = self.records(&handle)?;
        let evicted = store.evict(bytes, unused_since, keep_since, &self.until);
        answered(evicted.map(|evicted| {
            if let Some(tally) = directory.tally() {
                tally.add(i64::try_from(evicted.bytes).unwrap_or(i64::MAX).saturating_neg());
            }
            let crate::segments::EvictedValues { bytes, values, more } = evicted;
            Evicted { bytes, records: values.to_vec(), more }
        }))
    }

    fn drop(&mut self, handle: Resource<RecordStore>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        self.dropped(limits::HANDLE_BYTES);
        Ok(())
    }
}

/// Tell who watches files of a record that was written, with its length and whether it is durable, or was synced.
fn note(key: Key<'_>, written: Option<(u64, bool)>) {
    let Some(report) = watched() else { return };
    let key_in_hex = hex::encode(key.bytes);
    let path = format!("records {}/{key_in_hex}", key.space);
    report(match written {
        Some((len, durable)) => FileEvent::Written { path: &path, len, durable },
        None => FileEvent::Synced { path: &path },
    });
}

fn bytes(pieces: &[&[u8]]) -> u64 {
    pieces.iter().map(|piece| piece.len() as u64).sum()
}
