//! A store of records, as the host has it for a component (`host/src/contract/records.rs`), over `core`.

use std::rc::Rc;
use std::sync::Arc;

use kv_store_core::directory::{Directory, Found};
use kv_store_core::error::Error as OfCore;
use kv_store_core::limits;
use kv_store_core::payload::{Destination, Filling};
use kv_store_core::segments::{Key, NewValue, Place, SegmentStore, ValuePut};
use kv_store_core::until::Until;
use kv_store_sdk::bindings::kv_store::backend::store_types::Hashes;
use kv_store_sdk::native::records::{Bounds, Entry, Evicted, Page, Recorded, Totals};
use kv_store_sdk::{CommitOutcome, DeleteOutcome, Presence, PutOutcome, Result};

use super::told;
use crate::hashed::HashSet;
use crate::shipped::call::Call;

/// A store that an instance has opened.
pub struct OpenStore {
    pub store: Arc<SegmentStore>,
    pub directory: Arc<Directory>,
}

/// The same during a call.
pub struct Records {
    pub call: Rc<Call>,
    pub opened: Rc<OpenStore>,
}

fn keys(space: u8, hashes: &Hashes) -> Vec<Key<'_>> {
    hashes.bytes.chunks_exact(hashes.width as usize).map(|bytes| Key { space, bytes }).collect()
}

impl Records {
    fn until(&self) -> &Until {
        &self.call.until
    }

    /// Do something by the time of the call.
    fn ask<T>(&self, what: impl FnOnce(&SegmentStore, &Until) -> std::result::Result<T, OfCore>) -> Result<T> {
        self.call.goes_on();
        let answer = what(&self.opened.store, self.until());
        self.call.goes_on();
        answer.map_err(told)
    }

    /// One after another, as long as one is left that may lie elsewhere by now.
    fn read_all(&self, keys: &[Key<'_>]) -> Vec<Option<Result<Option<Vec<u8>>>>> {
        let store = &self.opened.store;
        let mut outcomes: Vec<Option<Result<Option<Vec<u8>>>>> = keys.iter().map(|_| None).collect();
        let mut left: Vec<(usize, Key<'_>, Option<Place>)> =
            keys.iter().enumerate().map(|(at, key)| (at, *key, None)).collect();
        while !left.is_empty() {
            let (mut there, log) = (Vec::new(), store.followed());
            for (at, key, tried) in std::mem::take(&mut left) {
                match store.find(key) {
                    Some(place) if tried != Some(place) => there.push((at, key, place)),
                    None if log.is_none() || store.followed() != log => left.push((at, key, None)),
                    place => {
                        place.iter().for_each(|place| store.note_damage(key, place));
                        outcomes[at] = Some(Ok(None));
                    }
                }
            }
            let wanted: Vec<_> = there.iter().map(|(_, key, place)| (*place, *key)).collect();
            let mut room = |_: usize, len: u64| Filling::new(len).map(Destination::Buffer);
            let found = store.read_all(&wanted, &self.opened.directory, self.until(), &mut room);
            for (Found { read, destination }, (at, key, place)) in found.into_iter().zip(there) {
                match (read, destination) {
                    (Ok(true), Some(Destination::Buffer(filling))) => {
                        outcomes[at] = Some(filling.finish().map(|buffer| Some(buffer.to_vec())).map_err(told));
                    }
                    (Ok(_), _) => left.push((at, key, Some(place))),
                    (Err(error), _) => outcomes[at] = Some(Err(told(error))),
                }
            }
            if !left.is_empty()
                && let Err(error) = store.follow(self.until())
            {
                left.drain(..).for_each(|(at, ..)| outcomes[at] = Some(Err(told(error.clone()))));
            }
        }
        outcomes
    }
}

impl Recorded for Records {
    fn exists(&self, space: u8, hashes: &Hashes) -> Result<Vec<Presence>> {
        let lens = self.ask(|store, until| store.exists(&keys(space, hashes), until))?;
        let presence = |len: Option<u32>| len.map_or(Presence::Absent, |len| Presence::Present(Some(len.into())));
        Ok(lens.into_iter().map(presence).collect())
    }

    fn get(&self, space: u8, hashes: &Hashes) -> Result<Vec<Result<Option<Vec<u8>>>>> {
        self.ask(|store, until| store.follow(until))?;
        let outcomes = self.read_all(&keys(space, hashes));
        self.call.goes_on();
        Ok(outcomes.into_iter().map_while(|outcome| outcome).collect())
    }

    fn put(&self, space: u8, hashes: &Hashes, values: Vec<Vec<u8>>, replace: bool) -> Result<Vec<PutOutcome>> {
        let pieces: Vec<[&[u8]; 1]> = values.iter().map(|value| [value.as_slice()]).collect();
        let keys = keys(space, hashes);
        let new: Vec<NewValue<'_>> = keys.iter().zip(&pieces).map(|(key, pieces)| (*key, &pieces[..])).collect();
        let stored = self.ask(|store, until| store.put(&new, replace, until))?;
        let outcome = |outcome| match outcome {
            Ok(ValuePut::New) => PutOutcome::Stored,
            Ok(ValuePut::Existed) => PutOutcome::Existed,
            Err(error) => PutOutcome::Failed(told(error)),
        };
        Ok(stored.into_iter().map(outcome).collect())
    }

    fn delete(&self, space: u8, hashes: &Hashes, durable: bool) -> Result<Vec<DeleteOutcome>> {
        let keys = keys(space, hashes);
        self.ask(|store, until| store.delete(&keys, durable, until))?;
        Ok(keys.iter().map(|_| DeleteOutcome::Gone).collect())
    }

    fn commit(&self, space: u8, fresh: &[Hashes], last: Option<(u8, &[u8], Vec<u8>)>) -> Result<CommitOutcome> {
        let all: Vec<Key<'_>> = fresh.iter().flat_map(|hashes| keys(space, hashes)).collect();
        let value = last.as_ref().map(|(.., value)| [value.as_slice()]);
        let new = last.as_ref().zip(value.as_ref());
        let new = new.map(|((space, key, _), value)| (Key { space: *space, bytes: key }, &value[..]));
        let absent = self.ask(|store, until| store.commit(&all, new, until))?;
        if absent.is_empty() {
            return Ok(CommitOutcome::Published);
        }
        let absent: HashSet<&[u8]> = absent.into_iter().map(|key| key.bytes).collect();
        let gone = fresh.iter().map(|hashes| {
            let keys = hashes.bytes.chunks_exact(hashes.width as usize);
            Hashes { width: hashes.width, bytes: keys.filter(|key| absent.contains(key)).flatten().copied().collect() }
        });
        Ok(CommitOutcome::Absent(gone.filter(|hashes| !hashes.bytes.is_empty()).collect()))
    }

    fn entries(&self, space: u8, after: Option<&str>, limit: u32) -> Result<Page> {
        let limit = (limit as usize).min(limits::MAX_DIRECTORY_ENTRIES);
        let (listed, next) = self.ask(|store, until| store.list(space, after, limit, until))?;
        let entry = |listed: kv_store_core::segments::Listed| Entry {
            key: listed.key,
            size: listed.len.into(),
            used: listed.used,
        };
        Ok(Page { entries: listed.into_iter().map(entry).collect(), next })
    }

    fn usage(&self, space: u8) -> Result<Totals> {
        let total = self.ask(|store, until| store.follow(until).map(|()| store.total(space)))?;
        Ok(Totals { records: total.values, bytes: total.bytes })
    }

    fn bounds(&self) -> Bounds {
        let store = &self.opened.store;
        Bounds { capacity: store.capacity(), max_value_bytes: store.max_value_bytes() }
    }

    fn evict(&self, bytes: u64, unused_since: Option<u64>, keep_since: u64) -> Result<Evicted> {
        let evicted = self.ask(|store, until| store.evict(bytes, unused_since, keep_since, until))?;
        Ok(Evicted { bytes: evicted.bytes, records: evicted.values.to_vec(), more: evicted.more })
    }
}
