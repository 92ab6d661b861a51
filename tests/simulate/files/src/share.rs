//! A granted directory, as the host has it for a component (`host/src/contract/files.rs`), over `core`.

use std::rc::Rc;
use std::sync::Arc;

use kv_store_core::directory::{Directory, FileEviction, Looked, RelativePath, Wanted, Written};
use kv_store_core::error::{Error as OfCore, ErrorKind as KindOfCore};
use kv_store_core::limits;
use kv_store_core::payload::{Destination, Filling};
use kv_store_core::until::Until;
use kv_store_sdk::files::{Entry, EvictOutcome, ReadRequest, Space};
use kv_store_sdk::native::files::Granted;
use kv_store_sdk::{Error, ErrorKind, Result};

/// A call of a component.
pub trait Calls {
    /// Its time.
    fn until(&self) -> &Until;
    /// Its component goes on.
    fn goes_on(&self);
}

/// The directory of a call.
pub struct Share<C> {
    pub call: Rc<C>,
    pub directory: Arc<Directory>,
}

/// As a component is told.
pub fn told(error: OfCore) -> Error {
    let kind = match error.kind() {
        _ if error.is_busy() => ErrorKind::Busy,
        KindOfCore::Unavailable => ErrorKind::Unavailable,
        KindOfCore::Denied => ErrorKind::Denied,
        KindOfCore::Exhausted => ErrorKind::Exhausted,
        KindOfCore::Invalid => ErrorKind::Invalid,
        KindOfCore::Corrupt => ErrorKind::Corrupt,
        KindOfCore::Unsupported => ErrorKind::Unsupported,
        _ => ErrorKind::Other,
    };
    Error { kind, message: error.to_string(), code: None }
}

fn path(path: &str) -> std::result::Result<RelativePath, OfCore> {
    RelativePath::parse(path.to_owned())
}

impl<C: Calls> Share<C> {
    fn until(&self) -> &Until {
        self.call.until()
    }

    fn is_in_time(&self) -> bool {
        self.until().clock().now() < self.until().deadline()
    }

    fn in_time(&self) -> std::result::Result<(), OfCore> {
        match self.is_in_time() {
            true => Ok(()),
            false => Err(OfCore::new(KindOfCore::Unavailable, "the files could not be synced by the deadline")),
        }
    }

    /// The part of a batch that one call answers.
    fn one_batch<T>(&self, items: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
        let items = items.into_iter().take(limits::MAX_BATCH_ITEMS).enumerate();
        items.take_while(|(index, _)| *index == 0 || self.is_in_time()).map(|(_, item)| item)
    }
}

impl<C: Calls> Granted for Share<C> {
    fn read(&self, wanted: &[ReadRequest]) -> Result<Vec<Result<Option<Vec<u8>>>>> {
        self.call.goes_on();
        let wanted: Vec<_> = wanted
            .iter()
            .take(limits::MAX_BATCH_ITEMS)
            .map(|wanted| path(&wanted.path).map(|path| Wanted { path, offset: wanted.offset, len: wanted.len }))
            .collect();
        let mut room = |_: usize, len: u64| Filling::new(len).map(Destination::Buffer);
        let found = self.directory.read_all(wanted, Some(self.until()), &mut room);
        self.call.goes_on();
        let answer = |found: kv_store_core::directory::Found| match (found.read, found.destination) {
            (Err(error), _) => Err(told(error)),
            (Ok(_), Some(Destination::Buffer(filling))) => match filling.finish() {
                Ok(buffer) => Ok(Some(buffer.to_vec())),
                Err(error) => Err(told(error)),
            },
            (Ok(_), _) => Ok(None),
        };
        Ok(found.into_iter().map(answer).collect())
    }

    fn write(&self, files: Vec<(String, Vec<u8>, bool)>, durable: bool) -> Result<Vec<Result<bool>>> {
        let mut written = Vec::new();
        let mut outcomes = Vec::new();
        for (name, bytes, replace) in self.one_batch(files) {
            self.call.goes_on();
            let outcome = path(&name).and_then(|path| {
                let outcome = self.directory.write(&path, &[&bytes], replace, durable, Some(self.until()))?;
                written.push(path);
                Ok(outcome == Written::Written)
            });
            outcomes.push(outcome.map_err(told));
        }
        if durable {
            self.directory.sync_directories(&written, || self.in_time()).map_err(told)?;
        }
        self.call.goes_on();
        Ok(outcomes)
    }

    fn sizes(&self, paths: &[String]) -> Result<Vec<Result<Option<u64>>>> {
        self.call.goes_on();
        let mut looked = Looked::default();
        let size = |name: &String| path(name).and_then(|path| self.directory.size(&path, &mut looked)).map_err(told);
        Ok(self.one_batch(paths).map(size).collect())
    }

    fn sync(&self, paths: &[String]) -> Result<()> {
        self.call.goes_on();
        let paths = paths.iter().map(|name| path(name)).collect::<std::result::Result<Vec<_>, _>>().map_err(told)?;
        self.directory.sync(&paths, || self.in_time()).map_err(told)?;
        self.call.goes_on();
        Ok(())
    }

    fn remove(&self, paths: &[String], durable: bool) -> Result<Vec<Result<bool>>> {
        self.call.goes_on();
        let remove = |name: &String| {
            let removed = path(name).and_then(|path| self.directory.remove(&path, durable, Some(self.until())));
            removed.map_err(told)
        };
        let removed = self.one_batch(paths).map(remove).collect();
        self.call.goes_on();
        Ok(removed)
    }

    fn remove_unused(&self, paths: &[String], unused_since: u64) -> Result<Vec<EvictOutcome>> {
        self.call.goes_on();
        let remove = |name: &String| match path(name).and_then(|path| self.directory.remove_unused(&path, unused_since))
        {
            Ok(FileEviction::Removed(bytes)) => EvictOutcome::Removed(bytes),
            Ok(FileEviction::Kept) => EvictOutcome::Kept,
            Ok(FileEviction::Missing) => EvictOutcome::Missing,
            Err(error) => EvictOutcome::Failed(told(error)),
        };
        Ok(self.one_batch(paths).map(remove).collect())
    }

    fn space(&self) -> Result<Space> {
        let space = self.directory.space().map_err(told)?;
        Ok(Space { total: space.total, available: space.available })
    }

    fn entries(&self, name: &str, after: Option<&str>, limit: u32) -> Result<Vec<Entry>> {
        self.call.goes_on();
        let limit = (limit as usize).min(limits::MAX_DIRECTORY_ENTRIES);
        let checked = if name.is_empty() { Ok(()) } else { path(name).map(drop) };
        let entries = checked.and_then(|()| self.directory.entries(name, after, limit)).map_err(told)?;
        let entry = |entry: kv_store_core::directory::Entry| Entry {
            name: entry.name,
            directory: entry.directory,
            size: entry.size,
            modified: entry.modified,
            used: entry.used,
        };
        Ok(entries.into_iter().map(entry).collect())
    }
}
