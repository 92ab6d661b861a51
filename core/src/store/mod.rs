//! A store: one opened URI, as a consumer uses it. What happens between the consumer's call and the guest's is here:
//! buffering, the barrier of a manifest, prefetched chunks, and the check of what was fetched.
//!
//! [`Store`] is one handle. What handles on the same URI have in common, the instances first of all, is `OpenStore`.

mod as_stored;
mod batch;
mod batches;
mod bound;
mod contents;
mod damage;
mod describe;
mod followed;
mod foreseen;
mod layouts;
mod ledger;
mod lookup;
mod maintenance;
mod open_store;
mod pages;
mod places;
mod prefetch;
mod process;
mod queue;
mod registry;
mod requests;
mod save;
mod seal;
mod spare;
mod superseded;
mod suspects;
mod timed;
mod upkeep;
mod verify;

use std::mem::ManuallyDrop;
use std::sync::{Arc, OnceLock};

pub use crate::backend::{Presence, Put};
pub use as_stored::Stored;
pub use batch::{BatchOptions, Fetch, Fetched, Memory, NewChunk, Save, SaveOutcome};
pub use batch::{FetchItem, SubmittedPut};
pub use contents::{ChunkEntry, Evicted, Eviction, ManifestEntry, Page, Usage};
pub use pages::Pages;
pub use process::{Process, ProcessParts, metrics, serve_no_metrics};
pub use queue::{Queue, QueueOwner, QueueTask};
pub use registry::{Directories, Setup, guarded, reach};
pub use requests::{Done, Outcomes, Request, RequestQueue};
pub(crate) use suspects::Damage;
pub(crate) use timed::TimedStore;

use open_store::{Item, OpenStore};
use prefetch::Prefetched;
use save::SaveState;

use crate::backend::{Backend, Bytes, ChunkHash, bad_length};
use crate::counters::{Answer, Event, Operation};
use crate::error::Error;
use crate::limits;
use crate::log::{self, Level};
use crate::payload::Buffer;
use crate::process::Fork;
use crate::until::Until;
use crate::uri::StoreUri;

/// One opened store. Any number of threads may use it at once.
pub struct Store {
    /// Not dropped in a child that was forked off: another thread of the parent may have been in the middle of changing
    /// it, and may hold its locks for ever.
    opened: ManuallyDrop<Arc<Opened>>,
    fork: Fork,
}

/// What a handle has open.
pub struct Opened {
    shared: Arc<OpenStore>,
    /// Comes before each manifest's name; from the config's `root`.
    prefix: Option<String>,
    /// What its values are, from its first use on.
    said: OnceLock<describe::HandleDescription>,
    /// The chunks that the next manifest publishes.
    save: Arc<SaveState>,
    prefetched: Prefetched,
}

/// What was opened, for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreInfo {
    /// The store's own URI.
    pub uri: String,
    /// The SHA-256 of the component, in hex.
    pub component_sha256: String,
    /// What the backend says it reached.
    pub label: String,
    /// The directory that the component may reach.
    pub directory: Option<std::path::PathBuf>,
    /// The server that the component may reach, `host:port`.
    pub server: Option<String>,
    /// Survives a restart of the storage system.
    pub durable: bool,
    /// Other processes that open the same URI see the same store.
    pub shared: bool,
    /// The longest chunk or manifest.
    pub max_value_bytes: u64,
    /// Chunks go to the backend at once.
    pub write_through: bool,
    /// A commit names the chunks that were put since the last one, and publishes nothing if one of them is gone.
    pub wants_fresh: bool,
    /// A chunk that is replaced may be missing meanwhile.
    pub replaces_in_steps: bool,
}

impl Store {
    /// Open the store that a URI names. See `include/kv_store_abi.h` for the URI.
    pub fn open_with(uri: &str, setup: &Setup) -> Result<Self, Error> {
        let during = |error: Error| error.during(Operation::Open.name());
        let uri = StoreUri::parse(uri).map_err(during)?;
        let opened = registry::open(&uri, setup);
        let (shared, prefix) = opened.map_err(|error| during(error.context(uri.as_str())))?;
        let save = Arc::new(SaveState::new(&shared.process.clock));
        let opened = Opened { save, prefetched: Prefetched::default(), shared, prefix, said: OnceLock::new() };
        Ok(Store { fork: opened.shared.process.fork(), opened: ManuallyDrop::new(Arc::new(opened)) })
    }

    /// What was opened.
    pub fn info(&self) -> StoreInfo {
        self.opened.shared.info()
    }

    /// Store a chunk under a hash of 1 to 64 bytes. It is sure to be readable, and durable, once a
    /// [`Store::put_manifest`] that begins after this call has succeeded.
    pub fn put_chunk(&self, hash: &[u8], data: &[u8]) -> Result<Put, Error> {
        self.counted(Operation::PutChunk, |opened| {
            let hash = ChunkHash::new(hash)?.described_as(opened.described()?);
            opened.shared.check_len(data.len())?;
            opened.shared.verifier.saw_put(&hash, data);
            let hash = hash.lying(opened.shared.layout_of_chunk(&hash));
            opened.shared.check_stored_len(&hash, data.len())?;
            opened.put(&opened.save, hash, Bytes::Borrowed(data), &opened.shared.until())
        })
    }

    /// Fetch a chunk; `None` if there is none, or what is there is not what the hash says.
    pub fn get_chunk(&self, hash: &[u8]) -> Result<Option<Buffer>, Error> {
        self.counted_or(
            Operation::GetChunk,
            |_| {
                self.opened.shared.refused(1);
                Ok(None)
            },
            |opened| {
                let shared = &opened.shared;
                let hash = ChunkHash::new(hash).inspect_err(|_| shared.refused(1))?;
                let Some(described) = opened.asks_as(1) else { return Ok(None) };
                let hash = hash.described_as(described);
                let until = shared.until();
                let found = opened.get(&hash, &until);
                shared.answered(Item::Chunk(&hash), found_bytes(&found), &until);
                found
            },
        )
    }

    /// Publish a manifest, after all chunks that were put on this handle before. After a failure, put the chunks again
    /// before the next try.
    pub fn put_manifest(&self, name: &str, data: &[u8]) -> Result<(), Error> {
        self.publish(&self.opened.save, name, data, None)
    }

    /// Hand on the chunks that are still buffered, so that they are readable through any handle. They are durable only after
    /// a manifest.
    pub fn flush(&self) -> Result<(), Error> {
        let flush = |Opened { shared, save, .. }: &Opened| {
            save.flush(shared, &shared.until())?;
            save.check_losses(shared)
        };
        self.usable().and_then(flush).map_err(|error| error.during("flush"))
    }

    /// Fetch a manifest; `None` if there is none.
    pub fn get_manifest(&self, name: &str) -> Result<Option<Buffer>, Error> {
        self.get_manifest_within(name, None)
    }

    /// Remove a manifest. That there was none is success.
    pub fn delete_manifest(&self, name: &str) -> Result<(), Error> {
        self.counted(Operation::DeleteManifest, |opened| {
            opened.shared.backend.delete_manifest(&opened.full_name(name)?, &opened.shared.until())
        })
    }

    /// Fetch chunks that will be asked for soon, in as few calls of the backend as may be. `hashes` are of `hash_len`
    /// bytes each, one after another. What does not fit the cache is left out.
    pub fn prefetch_chunks(&self, hashes: &[u8], hash_len: usize) -> Result<(), Error> {
        self.counted(Operation::PrefetchChunks, |opened| {
            let Opened { shared, save, prefetched, .. } = opened;
            if hash_len == 0 || hash_len > limits::MAX_HASH_BYTES {
                return Err(bad_length(hash_len));
            }
            let Ok(described) = opened.described() else { return Ok(()) };
            let wanted = hashes.chunks_exact(hash_len).filter_map(|hash| ChunkHash::new(hash).ok());
            let wanted = wanted.map(|hash| hash.described_as(described));
            prefetched.fill(shared, wanted.filter(|hash| !save.holds(hash)))
        })
    }

    /// As [`Opened::counted`].
    fn counted<T: Answer>(
        &self,
        operation: Operation,
        run: impl FnOnce(&Opened) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.counted_or(operation, Err, run)
    }

    /// As [`Opened::counted_or`].
    fn counted_or<T: Answer>(
        &self,
        operation: Operation,
        refused: impl FnOnce(Error) -> Result<T, Error>,
        run: impl FnOnce(&Opened) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let opened = self.usable().map_err(|error| error.during(operation.name()))?;
        opened.counted_or(operation, refused, || run(opened))
    }

    /// What was opened, if it was in this process and not in the one that this was forked off.
    fn usable(&self) -> Result<&Opened, Error> {
        process::check(self.fork)?;
        Ok(&self.opened)
    }

    /// What was opened, for batches.
    #[doc(hidden)]
    pub fn opened(&self) -> Result<&Opened, Error> {
        self.usable()
    }

    /// The store's own URI.
    pub fn uri(&self) -> &str {
        &self.opened.shared.uri
    }
}

impl Opened {
    fn shared(&self) -> &OpenStore {
        &self.shared
    }

    fn prefix(&self) -> Option<&str> {
        self.prefix.as_deref()
    }

    fn check_process(&self) -> Result<(), Error> {
        self.shared.check_process()
    }

    /// Run one operation of the consumer, if the quotas have room for it, and count it.
    fn counted<T: Answer>(&self, operation: Operation, run: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.counted_or(operation, Err, run)
    }

    /// As [`Opened::counted`]. `refused` makes the answer of one that is over a quota.
    fn counted_or<T: Answer>(
        &self,
        operation: Operation,
        refused: impl FnOnce(Error) -> Result<T, Error>,
        run: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let OpenStore { counters, reach, quota, process, .. } = &*self.shared;
        let begun = process.clock.now();
        let admitted = match quota.is_metered() {
            true => quota.admit(&reach.meters, operation.puts(), begun),
            false => Ok(()),
        };
        let outcome = match admitted {
            Ok(()) => run(),
            Err(over) => {
                counters.count(Event::QuotaRefused);
                refused(over)
            }
        };
        counters.call(operation, &outcome, process.clock.since(begun));
        outcome.map_err(|error| error.during(operation.name()))
    }

    /// A manifest's name in the backend.
    fn full_name(&self, name: &str) -> Result<String, Error> {
        let full = match &self.prefix {
            Some(prefix) if !name.is_empty() => format!("{prefix}/{name}"),
            _ => name.to_owned(),
        };
        if full.is_empty() || full.len() > limits::MAX_NAME_BYTES {
            let message =
                format!("a manifest's name has 1 to {} bytes, this one {}", limits::MAX_NAME_BYTES, full.len());
            return Err(Error::invalid(message));
        }
        Ok(full)
    }

    fn get(&self, hash: &ChunkHash, until: &Until) -> Result<Option<Buffer>, Error> {
        let Opened { shared, save, prefetched, .. } = self;
        until.expect(shared.max_value_bytes());
        if let Some(data) = save.waiting(hash) {
            shared.counters.count(Event::BufferHits);
            Buffer::concat(&[&data]).map(Some)
        } else if let Some(data) = prefetched.take(shared, hash, until) {
            shared.counters.count(Event::PrefetchHits);
            owned(data).map(Some)
        } else {
            shared.get_one(hash, until)?.map(owned).transpose()
        }
    }

    fn put(&self, save: &Arc<SaveState>, hash: ChunkHash, data: Bytes<'_>, until: &Until) -> Result<Put, Error> {
        let shared = &self.shared;
        let len = data.len();
        let put = save.put(shared, hash, data, until)?;
        shared.note_len(len);
        shared.moved_in(len as u64);
        shared.counters.add(Event::Duplicates, u64::from(put == Put::Existed));
        Ok(put)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let Ok(Opened { shared, save, .. }) = self.usable() else { return };
        let chunks = save.discard(shared);
        if chunks > 0 {
            shared.counters.add(Event::Discarded, chunks as u64);
            let uri = &shared.uri;
            // An engine that opens a store for each save, and whose saves fail, closes as often.
            log::repeated(
                Level::Warn,
                &["discarded", uri],
                uri,
                format_args!("closed with {chunks} chunks that no manifest followed; discarded"),
            );
        }
        let process = shared.process.clone();
        // SAFETY: once, and nobody uses it after.
        unsafe { ManuallyDrop::drop(&mut self.opened) }
        process.stores.closed(process.held());
    }
}

/// The length of what was found, for the counters.
fn found_bytes(found: &Result<Option<Buffer>, Error>) -> Result<Option<u64>, &Error> {
    found.as_ref().map(|found| found.as_ref().map(|data| data.len() as u64))
}

/// The memory itself where nobody else has it, and a copy where a guest keeps it.
fn owned(data: Arc<Buffer>) -> Result<Buffer, Error> {
    Arc::try_unwrap(data).or_else(|shared| Buffer::concat(&[&shared]))
}

#[cfg(test)]
mod bundle_tests;
#[cfg(test)]
mod describe_tests;
#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod save_tests;
#[cfg(test)]
mod tests;
