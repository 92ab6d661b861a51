//! The contract's `records`, over the stores that the [`Host`](super::Host) of the running call opens.

use std::any::Any;
use std::cell::Cell;

use super::payloads::{Part, Payload, joined};
use super::{Rc, host};
use crate::bindings::kv_store::backend::store_types::{
    CommitOutcome, DeleteOutcome, GetOutcome, Hashes, Presence, PutOutcome,
};
use crate::{Error, Result};

/// A store of records during a call, as a host has it. Batches may be answered in part.
pub trait Recorded {
    fn exists(&self, space: u8, keys: &Hashes) -> Result<Vec<Presence>>;

    /// None: there is no such record.
    fn get(&self, space: u8, keys: &Hashes) -> Result<Vec<Result<Option<Vec<u8>>>>>;

    fn put(&self, space: u8, keys: &Hashes, values: Vec<Vec<u8>>, replace: bool) -> Result<Vec<PutOutcome>>;

    fn delete(&self, space: u8, keys: &Hashes, durable: bool) -> Result<Vec<DeleteOutcome>>;

    /// `last`: its space, its key and its value.
    fn commit(&self, space: u8, fresh: &[Hashes], last: Option<(u8, &[u8], Vec<u8>)>) -> Result<CommitOutcome>;

    fn entries(&self, space: u8, after: Option<&str>, limit: u32) -> Result<Page>;

    fn usage(&self, space: u8) -> Result<Totals>;

    fn bounds(&self) -> Bounds;

    fn evict(&self, bytes: u64, unused_since: Option<u64>, keep_since: u64) -> Result<Evicted>;
}

/// What a store is opened with.
#[derive(Debug, Default)]
pub struct RecordOptions {
    pub max_bytes: Cell<Option<u64>>,
    pub max_records: Cell<Option<u64>>,
    pub file_bytes: Cell<Option<u64>>,
}

impl RecordOptions {
    pub fn new() -> Self {
        RecordOptions::default()
    }

    pub fn set_max_bytes(&self, bytes: u64) {
        self.max_bytes.set(Some(bytes));
    }

    pub fn set_max_records(&self, records: u64) {
        self.max_records.set(Some(records));
    }

    pub fn set_file_bytes(&self, bytes: u64) {
        self.file_bytes.set(Some(bytes));
    }
}

#[derive(Debug)]
pub struct NewRecord<'a> {
    pub space: u8,
    pub key: Vec<u8>,
    pub value: Vec<Part<'a>>,
}

#[derive(Clone, Debug)]
pub struct Entry {
    pub key: Vec<u8>,
    pub size: u64,
    pub used: u64,
}

#[derive(Clone, Debug)]
pub struct Page {
    pub entries: Vec<Entry>,
    pub next: Option<String>,
}

#[derive(Clone, Copy, Debug)]
pub struct Totals {
    pub records: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub capacity: u64,
    pub max_value_bytes: u64,
}

#[derive(Clone, Debug)]
pub struct Evicted {
    pub bytes: u64,
    pub records: Vec<u64>,
    pub more: bool,
}

/// A handle to a store of records. What it does is done by the host of the call that uses it.
pub struct RecordStore {
    opened: Rc<dyn Any>,
}

pub fn open_records(grant: &str, options: Option<&RecordOptions>) -> Result<RecordStore> {
    let default = RecordOptions::default();
    let opened = host(|host| host.open_records(grant, options.unwrap_or(&default)))?;
    Ok(RecordStore { opened })
}

impl RecordStore {
    fn recorded<T>(&self, ask: impl FnOnce(&dyn Recorded) -> Result<T>) -> Result<T> {
        host(|host| ask(&*host.records(&self.opened)?))
    }

    pub fn exists(&self, space: u8, keys: &Hashes) -> Result<Vec<Presence>> {
        self.recorded(|records| records.exists(space, keys))
    }

    pub fn get(&self, space: u8, keys: &Hashes, _item: Option<u32>) -> Result<Vec<GetOutcome>> {
        let outcome = |read: Result<Option<Vec<u8>>>| match read {
            Ok(Some(bytes)) => Payload::from_bytes(&bytes).map_or_else(GetOutcome::Failed, GetOutcome::Found),
            Ok(None) => GetOutcome::Missing,
            Err(error) => GetOutcome::Failed(error),
        };
        Ok(self.recorded(|records| records.get(space, keys))?.into_iter().map(outcome).collect())
    }

    pub fn put(&self, space: u8, keys: &Hashes, values: &[Vec<Part>], replace: bool) -> Result<Vec<PutOutcome>> {
        let values = values.iter().map(|parts| joined(parts)).collect::<Result<Vec<_>>>()?;
        self.recorded(|records| records.put(space, keys, values, replace))
    }

    pub fn delete(&self, space: u8, keys: &Hashes, durable: bool) -> Result<Vec<DeleteOutcome>> {
        self.recorded(|records| records.delete(space, keys, durable))
    }

    pub fn commit(&self, space: u8, fresh: &[Hashes], last: Option<&NewRecord>) -> Result<CommitOutcome> {
        let value = last.map(|record| joined(&record.value)).transpose()?;
        let last = last.zip(value).map(|(record, value)| (record.space, record.key.as_slice(), value));
        self.recorded(|records| records.commit(space, fresh, last))
    }

    pub fn entries(&self, space: u8, after: Option<&str>, limit: u32) -> Result<Page> {
        self.recorded(|records| records.entries(space, after, limit))
    }

    pub fn usage(&self, space: u8) -> Result<Totals> {
        self.recorded(|records| records.usage(space))
    }

    pub fn bounds(&self) -> Bounds {
        let bounds = self.recorded(|records| Ok(records.bounds()));
        bounds.unwrap_or(Bounds { capacity: 0, max_value_bytes: 0 })
    }

    pub fn evict(&self, bytes: u64, unused_since: Option<u64>, keep_since: u64) -> Result<Evicted> {
        self.recorded(|records| records.evict(bytes, unused_since, keep_since))
    }
}

/// What a host answers that opens none.
pub(super) fn none<T>() -> Result<T> {
    Err(Error::denied("no directory is granted for records"))
}
