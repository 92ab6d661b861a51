//! The contract's `files` interface, over [`Directory`].

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use wasmtime::component::Resource;

use super::GuestAnswer;
use super::payload::slices;
use super::{Incoming, Reserved, State, answered};
use crate::contract::bindings::kv_store::backend::files::{
    Entry, EvictOutcome, Host, HostDirectory, ReadOutcome, ReadRequest, RemoveOutcome, SizeOutcome, Space,
    WriteOutcome, WriteRequest,
};
use crate::directory::{Directory, FileEviction, Found, Looked, RelativePath, Wanted, Written};
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::until::Until;

/// What guests did with a file, by its path below the directory that was granted, or with a record: `records SPACE/KEY`, the key in hex.
#[derive(Clone, Copy, Debug)]
pub enum FileEvent<'a> {
    /// It has a new content.
    Written {
        /// Below the directory.
        path: &'a str,
        /// In bytes.
        len: u64,
        /// It survives power loss as soon as the call has succeeded.
        durable: bool,
    },
    /// It survives power loss.
    Synced {
        /// Below the directory.
        path: &'a str,
    },
}

/// Whom the process tells: `kv-store check` has an account of what a component made durable. Set once, and by no other program.
static WATCH: OnceLock<fn(FileEvent)> = OnceLock::new();

/// Be told of the files of all stores of this process. The first call stays.
pub fn watch(watch: fn(FileEvent)) {
    let _ = WATCH.set(watch);
}

/// Who is told, if anybody is.
pub(super) fn watched() -> Option<fn(FileEvent)> {
    WATCH.get().copied()
}

fn report(event: FileEvent) {
    if let Some(watch) = watched() {
        watch(event);
    }
}

/// What a guest's handle to a directory stands for.
pub struct OpenDirectory(Arc<Directory>);

impl Host for State {
    fn open_directory(&mut self, grant: String) -> GuestAnswer<Resource<OpenDirectory>> {
        let granted = self.granted(&grant);
        answered(granted.and_then(|directory| self.push(OpenDirectory(directory), limits::HANDLE_BYTES)))
    }
}

impl State {
    /// The directory that the operator granted under a name; "" is the one that the URI names.
    pub(super) fn granted(&self, grant: &str) -> Result<Arc<Directory>, Error> {
        let granted = match grant {
            "" => self.access.reach.directory.as_ref(),
            name => self.access.reach.folders.get(name),
        };
        granted.cloned().ok_or_else(|| {
            let scheme = &self.access.reach.name;
            let message = if grant.is_empty() {
                format!("the URI names no directory: write {scheme}:///absolute/path")
            } else {
                let grant = crate::log::clean(grant);
                format!(
                    "no directory is granted under the name {grant:?}: add it to fs of backend.{scheme} in the config"
                )
            };
            Error::new(ErrorKind::Denied, message)
        })
    }

    fn directory(&self, handle: &Resource<OpenDirectory>) -> wasmtime::Result<Arc<Directory>> {
        Ok(self.table.get(handle)?.0.clone())
    }
}

impl State {
    /// Whether the deadline of the call has not passed yet.
    fn in_time(&self) -> impl Fn() -> Result<(), Error> + use<> {
        let until = self.until.clone();
        let late = || Error::new(ErrorKind::Unavailable, "the files could not be synced by the deadline (deadline_ms)");
        move || if Instant::now() < until.deadline() { Ok(()) } else { Err(late()) }
    }
}

/// The part of a batch that one call answers, by number and until the deadline; the guest asks again for the rest.
fn one_batch<T>(items: Vec<T>, until: &Until) -> impl Iterator<Item = T> + use<T> {
    let until = until.clone();
    let in_time = move |index: &usize| *index == 0 || Instant::now() < until.deadline();
    let items = items.into_iter().take(limits::MAX_BATCH_ITEMS).enumerate();
    items.take_while(move |(index, _)| in_time(index)).map(|(_, item)| item)
}

fn parse_all(paths: Vec<String>) -> Result<Vec<RelativePath>, Error> {
    paths.into_iter().map(RelativePath::parse).collect()
}

impl HostDirectory for State {
    fn read(&mut self, handle: Resource<OpenDirectory>, requests: Vec<ReadRequest>) -> GuestAnswer<Vec<ReadOutcome>> {
        let directory = self.directory(&handle)?;
        let count = requests.len().min(limits::MAX_BATCH_ITEMS);
        let mut items: Vec<(Option<u32>, Option<Reserved>)> = Vec::with_capacity(count);
        items.extend(requests.iter().take(count).map(|request| (request.item, None)));
        let wanted = requests.into_iter().take(count).map(|ReadRequest { path, offset, len, item: _ }| {
            RelativePath::parse(path).map(|path| Wanted { path, offset, len })
        });
        let (until, mut on_way) = (self.until.clone(), 0);
        let found = directory.read_all(wanted, Some(&until), &mut |index, len| {
            let Some((item, taken)) = items.get_mut(index) else { return Err(Error::invalid("nobody asked for it")) };
            let Incoming { destination, room } = self.incoming(len, *item, &mut on_way)?;
            *taken = room;
            Ok(destination)
        });
        let (mut outcomes, mut ended) = (Vec::with_capacity(found.len()), false);
        for (Found { read, destination }, (_, room)) in found.into_iter().zip(items) {
            if ended {
                self.items.give_back(destination);
                continue;
            }
            let read = match destination {
                Some(destination) => self.settle(Incoming { destination, room }, read.map(drop)).map(Some),
                None => read.map(|_missing| None),
            };
            match read {
                Ok(Some(payload)) => outcomes.push(ReadOutcome::Found(payload)),
                Ok(None) => outcomes.push(ReadOutcome::Missing),
                // What was read so far may make room when the guest hands it on.
                Err(error) if error.kind() == ErrorKind::Exhausted && !outcomes.is_empty() => ended = true,
                Err(error) => outcomes.push(ReadOutcome::Failed(error.into())),
            }
        }
        Ok(Ok(outcomes))
    }

    fn write(
        &mut self,
        handle: Resource<OpenDirectory>,
        requests: Vec<WriteRequest>,
        durable: bool,
    ) -> GuestAnswer<Vec<WriteOutcome>> {
        let directory = self.directory(&handle)?;
        let (mut outcomes, mut written) = (Vec::new(), Vec::new());
        for request in one_batch(requests, &self.until) {
            let parts = slices(&self.table, &self.items, &request.content)?;
            let outcome = RelativePath::parse(request.path).and_then(|path| {
                let parts = parts?;
                let outcome = directory.write(&path, &parts, request.replace, durable, Some(&self.until))?;
                if outcome == Written::Written {
                    let len = parts.iter().map(|part| part.len() as u64).sum();
                    report(FileEvent::Written { path: path.as_str(), len, durable });
                }
                written.push(path);
                Ok(outcome)
            });
            outcomes.push(match outcome {
                Ok(Written::Written) => WriteOutcome::Written,
                Ok(Written::Existed) => WriteOutcome::Existed,
                Err(error) => WriteOutcome::Failed(error.into()),
            });
        }
        if durable && let Err(error) = directory.sync_directories(&written, self.in_time()) {
            return answered(Err(error));
        }
        Ok(Ok(outcomes))
    }

    fn sizes(&mut self, handle: Resource<OpenDirectory>, paths: Vec<String>) -> GuestAnswer<Vec<SizeOutcome>> {
        let directory = self.directory(&handle)?;
        let mut looked = Looked::default();
        let size = |path| match RelativePath::parse(path).and_then(|path| directory.size(&path, &mut looked)) {
            Ok(Some(size)) => SizeOutcome::Size(size),
            Ok(None) => SizeOutcome::Missing,
            Err(error) => SizeOutcome::Failed(error.into()),
        };
        Ok(Ok(one_batch(paths, &self.until).map(size).collect()))
    }

    fn sync(&mut self, handle: Resource<OpenDirectory>, paths: Vec<String>) -> GuestAnswer<()> {
        let directory = self.directory(&handle)?;
        answered(parse_all(paths).and_then(|paths| {
            directory.sync(&paths, self.in_time())?;
            paths.iter().for_each(|path| report(FileEvent::Synced { path: path.as_str() }));
            Ok(())
        }))
    }

    fn remove(
        &mut self,
        handle: Resource<OpenDirectory>,
        paths: Vec<String>,
        durable: bool,
    ) -> GuestAnswer<Vec<RemoveOutcome>> {
        let directory = self.directory(&handle)?;
        let remove = |path| match RelativePath::parse(path)
            .and_then(|path| directory.remove(&path, durable, Some(&self.until)))
        {
            Ok(true) => RemoveOutcome::Removed,
            Ok(false) => RemoveOutcome::Missing,
            Err(error) => RemoveOutcome::Failed(error.into()),
        };
        Ok(Ok(one_batch(paths, &self.until).map(remove).collect()))
    }

    fn remove_unused(
        &mut self,
        handle: Resource<OpenDirectory>,
        paths: Vec<String>,
        unused_since: u64,
    ) -> GuestAnswer<Vec<EvictOutcome>> {
        let directory = self.directory(&handle)?;
        let remove = |path| {
            let evicted = RelativePath::parse(path).and_then(|path| directory.remove_unused(&path, unused_since));
            match evicted {
                Ok(FileEviction::Removed(bytes)) => EvictOutcome::Removed(bytes),
                Ok(FileEviction::Kept) => EvictOutcome::Kept,
                Ok(FileEviction::Missing) => EvictOutcome::Missing,
                Err(error) => EvictOutcome::Failed(error.into()),
            }
        };
        Ok(Ok(one_batch(paths, &self.until).map(remove).collect()))
    }

    fn space(&mut self, handle: Resource<OpenDirectory>) -> GuestAnswer<Space> {
        let space = self.directory(&handle)?.space();
        answered(space.map(|space| Space { total: space.total, available: space.available }))
    }

    fn entries(
        &mut self,
        handle: Resource<OpenDirectory>,
        path: String,
        after: Option<String>,
        limit: u32,
    ) -> GuestAnswer<Vec<Entry>> {
        let directory = self.directory(&handle)?;
        if limit == 0 {
            // An empty answer says that there is no more.
            return answered(Err(Error::invalid("the limit of entries must be at least 1")));
        }
        let limit = (limit as usize).min(limits::MAX_DIRECTORY_ENTRIES);
        // "" is the granted directory itself.
        let checked = if path.is_empty() { Ok(()) } else { RelativePath::parse(path.clone()).map(drop) };
        let entries = checked.and_then(|()| directory.entries(&path, after.as_deref(), limit));
        let convert = |entry: crate::directory::Entry| Entry {
            name: entry.name,
            directory: entry.directory,
            size: entry.size,
            modified: entry.modified,
            used: entry.used,
        };
        answered(entries.map(|entries| entries.into_iter().map(convert).collect()))
    }

    fn drop(&mut self, handle: Resource<OpenDirectory>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        self.dropped(limits::HANDLE_BYTES);
        Ok(())
    }
}
