//! A store: one opened URI, as a consumer uses it. What happens between the consumer's call and the guest's is here:
//! buffering, the barrier of a manifest, prefetched chunks, and the check of what was fetched.
//!
//! [`Store`] is one handle. What handles on the same URI have in common, the instances first of all, is [`Shared`].

mod batch;
mod batches;
mod damage;
mod followed;
mod foreseen;
mod hash;
mod hashes;
mod known;
mod ledger;
mod lengths;
mod places;
mod prefetch;
mod queue;
mod registry;
mod requests;
mod save;
mod seal;
mod shared;
mod spare;
mod target;
mod verify;

use std::collections::hash_map::Entry;
use std::mem::ManuallyDrop;
use std::sync::Arc;

pub use batch::{BatchOptions, Fetch, Fetched, Memory, NewChunk, Presence, Save, SaveOutcome};
pub(crate) use batch::{SubmittedPut, Wanted};
pub(crate) use damage::Damage;
pub(crate) use queue::{Job, Queue};
pub(crate) use registry::{guarded, used};
pub use requests::{Done, Outcomes, Request, RequestQueue};

use hash::{ChunkHash, ChunkMap, ChunkSet};
use prefetch::Prefetched;
use save::SaveState;
use shared::{Bytes, Shared};

use crate::counters::{Event, Operation};
use crate::engine;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::log::{self, Level};
use crate::payload::{Buffer, spare as spare_memory};
use crate::uri::StoreUri;

/// One opened store. Any number of threads may use it at once.
///
/// ```no_run
/// # fn main() -> Result<(), kv_store_wasm::Error> {
/// let store = kv_store_wasm::Store::open("local-fs:///var/cache/kv")?;
/// store.put_chunk(b"some-key", b"bytes")?;
/// store.put_manifest("conversation-7", b"some-key")?;
/// assert_eq!(&*store.get_chunk(b"some-key")?.unwrap(), b"bytes");
/// # Ok(())
/// # }
/// ```
pub struct Store {
    /// Not dropped in a child that was forked off: another thread of the parent may have been in the middle of changing
    /// it, and may hold its locks for ever.
    opened: ManuallyDrop<Arc<Opened>>,
    generation: u64,
}

pub(crate) struct Opened {
    shared: Arc<Shared>,
    /// Comes before each manifest's name; from the config's `root`.
    prefix: Option<String>,
    /// The chunks that the next manifest publishes.
    save: Arc<SaveState>,
    prefetched: Prefetched,
}

/// What a put came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// Accepted; new as far as is known.
    New,
    /// It was there already.
    Existed,
}

/// What was opened, for people.
#[derive(Clone, Debug)]
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
}

impl Store {
    /// Open the store that a URI names. See `include/kv_store_abi.h` for the URI.
    pub fn open(uri: &str) -> Result<Self, Error> {
        let uri = StoreUri::parse(uri)?;
        let (shared, prefix) = registry::open(&uri).map_err(|error| error.context(uri.as_str()))?;
        let opened = Opened { save: Arc::default(), prefetched: Prefetched::default(), shared, prefix };
        Ok(Store { generation: opened.shared.generation, opened: ManuallyDrop::new(Arc::new(opened)) })
    }

    /// What was opened.
    pub fn info(&self) -> StoreInfo {
        self.opened.shared.info()
    }

    /// Store a chunk under a hash of 1 to 64 bytes. It is sure to be readable, and durable, once a
    /// [`Store::put_manifest`] that begins after this call has succeeded.
    pub fn put_chunk(&self, hash: &[u8], data: &[u8]) -> Result<Put, Error> {
        self.counted(Operation::PutChunk, |opened| {
            let hash = ChunkHash::new(hash)?;
            opened.shared.check_len(data.len())?;
            opened.shared.verifier.saw_put(&hash, data);
            opened.put(hash, Bytes::Borrowed(data))
        })
    }

    /// Fetch a chunk; `None` if there is none, or what is there is not what the hash says.
    pub fn get_chunk(&self, hash: &[u8]) -> Result<Option<Buffer>, Error> {
        self.counted(Operation::GetChunk, |Opened { shared, save, prefetched, .. }| {
            let hash = ChunkHash::new(hash)?;
            let until = &shared.until();
            until.expect(shared.max_value_bytes());
            let found = if let Some(data) = save.waiting(&hash) {
                shared.counters.count(Event::BufferHits);
                Some(Buffer::concat(&[&data])?)
            } else if let Some(data) = prefetched.take(shared, &hash, until) {
                shared.counters.count(Event::PrefetchHits);
                Some(owned(data)?)
            } else {
                shared.get_one(&hash, until)?.map(owned).transpose()?
            };
            Ok(shared.got(found))
        })
    }

    /// Publish a manifest, after all chunks that were put on this handle before. After a failure, put the chunks again
    /// before the next try.
    pub fn put_manifest(&self, name: &str, data: &[u8]) -> Result<(), Error> {
        self.counted(Operation::PutManifest, |opened| {
            let Opened { shared, save, .. } = opened;
            let name = opened.full_name(name)?;
            shared.check_len(data.len())?;
            save.put_manifest(shared, &name, data)?;
            shared.counters.add(Event::BytesPut, data.len() as u64);
            Ok(())
        })
    }

    /// Hand on the chunks that are still buffered, so that they are readable through any handle. They are durable only after
    /// a manifest.
    pub fn flush(&self) -> Result<(), Error> {
        let Opened { shared, save, .. } = self.usable()?;
        save.flush(shared, &shared.until())?;
        save.tell_losses()
    }

    /// Fetch a manifest; `None` if there is none.
    pub fn get_manifest(&self, name: &str) -> Result<Option<Buffer>, Error> {
        self.counted(Operation::GetManifest, |opened| {
            let shared = &opened.shared;
            let until = shared.until();
            until.expect(shared.max_value_bytes());
            let found = shared.get_manifest(&opened.full_name(name)?, &until)?;
            Ok(shared.got(found.map(owned).transpose()?))
        })
    }

    /// Remove a manifest. That there was none is success.
    pub fn delete_manifest(&self, name: &str) -> Result<(), Error> {
        self.counted(Operation::DeleteManifest, |opened| {
            opened.shared.delete_manifest(&opened.full_name(name)?, &opened.shared.until())
        })
    }

    /// Fetch chunks that will be asked for soon, in as few calls of the backend as may be. `hashes` are of `hash_len`
    /// bytes each, one after another. What does not fit the cache is left out.
    pub fn prefetch_chunks(&self, hashes: &[u8], hash_len: usize) -> Result<(), Error> {
        self.counted(Operation::PrefetchChunks, |Opened { shared, save, prefetched, .. }| {
            if hash_len == 0 || hash_len > limits::MAX_HASH_BYTES {
                return Err(hash::bad_length(hash_len));
            }
            let wanted = hashes.chunks_exact(hash_len).filter_map(|hash| ChunkHash::new(hash).ok());
            prefetched.fill(shared, wanted.filter(|hash| !save.holds(hash)))
        })
    }

    /// Run one operation of the consumer, and count it.
    fn counted<T>(&self, operation: Operation, run: impl FnOnce(&Opened) -> Result<T, Error>) -> Result<T, Error> {
        let opened = self.usable()?;
        let outcome = run(opened);
        opened.shared.counters.call(operation, &outcome);
        outcome
    }

    /// What was opened, if it was in this process and not in the one that this was forked off.
    fn usable(&self) -> Result<&Opened, Error> {
        check_process(self.generation)?;
        Ok(&self.opened)
    }

    /// What was opened, for batches.
    pub(crate) fn opened(&self) -> Result<&Opened, Error> {
        self.usable()
    }

    /// The store's own URI, for messages.
    pub(crate) fn uri(&self) -> &str {
        &self.opened.shared.uri
    }
}

/// For whoever has payload memory of the host's own, and checks by itself what it fetches.
impl Store {
    /// Store a chunk without a copy of its bytes. It is as good as [`Store::put_chunk`], but does not tell the store what
    /// its keys are: those of other users may be others.
    pub(crate) fn put_buffer(&self, hash: &[u8], data: &Arc<Buffer>) -> Result<Put, Error> {
        self.counted(Operation::PutChunk, |opened| {
            opened.shared.check_len(data.len())?;
            opened.put(ChunkHash::new(hash)?, Bytes::Buffered(data))
        })
    }

    /// As [`Store::put_buffer`], of a chunk that lies in several pieces. Where the backend is not written through, they are
    /// copied into one.
    pub(crate) fn put_pieces(&self, hash: &[u8], pieces: &[&[u8]]) -> Result<Put, Error> {
        self.counted(Operation::PutChunk, |opened| {
            let data = Bytes::Scattered(pieces);
            opened.shared.check_len(data.len())?;
            opened.put(ChunkHash::new(hash)?, data)
        })
    }

    /// [`Store::get_buffers`] of chunks whose lengths are known, into memory that [`Store::keep_buffers`] has kept.
    pub(crate) fn get_buffers_of(
        &self,
        hashes: &[[u8; 8]],
        lens: impl Iterator<Item = usize>,
    ) -> Result<Vec<Option<Arc<Buffer>>>, Error> {
        let ready = self.usable()?.shared.spare.take(lens);
        let (found, left) = spare_memory::with_ready(ready, || self.get_buffers(hashes));
        self.keep_buffers(left.into_iter().map(Arc::new));
        found
    }

    /// Keep memory that nobody else holds, for the next chunks.
    pub(crate) fn keep_buffers(&self, buffers: impl Iterator<Item = Arc<Buffer>>) {
        if let Ok(opened) = self.usable() {
            buffers.for_each(|buffer| opened.shared.spare.keep(buffer));
        }
    }

    /// Fetch chunks, each as the backend answers it, unchecked and without a copy.
    pub(crate) fn get_buffers(&self, hashes: &[[u8; 8]]) -> Result<Vec<Option<Arc<Buffer>>>, Error> {
        let Opened { shared, save, prefetched, .. } = self.usable()?;
        let until = &shared.until();
        let hashes: Vec<ChunkHash> = hashes.iter().map(|hash| ChunkHash::new(hash)).collect::<Result<_, _>>()?;
        let mut found = ChunkMap::default();
        let mut absent = Vec::new();
        for hash in &hashes {
            if let Entry::Vacant(place) = found.entry(*hash) {
                let here = save.waiting(hash).or_else(|| prefetched.take(shared, hash, until));
                if place.insert(here).is_none() {
                    absent.push(*hash);
                }
            }
        }
        until.expect(limits::KV_BATCH_BYTES);
        for batch in absent.chunks(shared.batch_items()) {
            let mut rest = batch;
            while !rest.is_empty() {
                let answers = shared.get_answers(rest, until)?;
                let answered = answers.len();
                for (hash, answer) in rest.iter().zip(answers) {
                    found.insert(*hash, answer?);
                }
                rest = rest.get(answered..).unwrap_or_default();
            }
        }
        Ok(hashes.iter().map(|hash| found.get(hash).cloned().flatten()).collect())
    }

    /// Which chunks there are.
    pub(crate) fn has_chunks(&self, hashes: &[[u8; 8]]) -> Result<Vec<bool>, Error> {
        let Opened { shared, save, .. } = self.usable()?;
        let hashes: Vec<ChunkHash> = hashes.iter().map(|hash| ChunkHash::new(hash)).collect::<Result<_, _>>()?;
        let mut distinct = ChunkSet::default();
        let unknown = |hash: &ChunkHash| !save.holds(hash) && distinct.insert(*hash);
        let distinct: Vec<ChunkHash> = hashes.iter().copied().filter(unknown).collect();
        let mut absent = ChunkSet::default();
        let until = shared.until();
        for batch in distinct.chunks(shared.batch_items()) {
            let stored = shared.exists(batch, &until)?.into_iter();
            absent.extend(batch.iter().zip(stored).filter(|(_, stored)| !stored).map(|(hash, _)| *hash));
        }
        Ok(hashes.iter().map(|hash| !absent.contains(hash)).collect())
    }

    /// Remove a chunk that [`Store::get_buffers`] has answered with wrong bytes, unless a further read brings right ones.
    pub(crate) fn remove_damaged(
        &self,
        hash: &[u8],
        damaged: &[u8],
        is_sound: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Damage, Error> {
        let shared = &self.usable()?.shared;
        Ok(shared.remove_damaged(&ChunkHash::new(hash)?, damaged, is_sound, &shared.until()))
    }

    /// Refuse a name or a length that a put would refuse.
    pub(crate) fn check(&self, name: &str, largest: usize) -> Result<(), Error> {
        let opened = self.usable()?;
        opened.full_name(name)?;
        opened.shared.check_len(largest)
    }
}

/// Refuse what was opened in another process than this one.
fn check_process(generation: u64) -> Result<(), Error> {
    if generation == engine::generation() {
        return Ok(());
    }
    let message = "this store was opened before a fork: open it again in this process";
    Err(Error::new(ErrorKind::Unsupported, message))
}

impl Opened {
    fn check_process(&self) -> Result<(), Error> {
        check_process(self.shared.generation)
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

    fn put(&self, hash: ChunkHash, data: Bytes<'_>) -> Result<Put, Error> {
        let Opened { shared, save, .. } = self;
        let len = data.len();
        let put = save.put(shared, hash, data)?;
        shared.saw_len(len);
        shared.counters.add(Event::BytesPut, len as u64);
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
            log::line(
                Level::Warn,
                format_args!("{uri}: closed with {chunks} chunks that no manifest followed; discarded"),
            );
        }
        // SAFETY: once, and nobody uses it after.
        unsafe { ManuallyDrop::drop(&mut self.opened) }
        registry::closed();
    }
}

/// The memory itself where nobody else has it, and a copy where a guest keeps it.
fn owned(data: Arc<Buffer>) -> Result<Buffer, Error> {
    Arc::try_unwrap(data).or_else(|shared| Buffer::concat(&[&shared]))
}
