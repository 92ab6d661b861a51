//! The trait that a backend implements, and the glue between it and the generated bindings.
//!
//! The contract says that the instance is the store, so there is exactly one backend in an instance, made by the first
//! call. [`Instance`] keeps it; what reaches a backend has been opened.

use std::cell::RefCell;
use std::thread::LocalKey;

use crate::batch::{self, Chunk, Hashes, Manifest};
use crate::bindings::exports::kv_store::backend::store::{self, Guest};
use crate::{CommitOutcome, DeleteOutcome, Error, GetOutcome, Options, Payload, Presence, PutOutcome, Result};

/// A storage system, opened at one URI.
///
/// Batches: answer `i` belongs to item `i`; an answer may be shorter than the batch, but not empty, and the host then
/// asks again for the rest. An `Err` in place of a list says that nothing is known about any item. Every operation may
/// be repeated and must then have the same result.
pub trait Backend: Sized + 'static {
    /// Open the store at the backend's own `uri`. Fail if the storage system cannot be used as it is: an operator's
    /// mistake should show here. Take the options you know and end with [`Options::finish`].
    fn open(uri: &str, options: Options) -> Result<(Self, Features)>;

    /// Which chunks are present, readable now, and how long they are where that costs nothing to know. When in doubt:
    /// [`Presence::Absent`].
    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>>;

    /// Store chunks. Their bytes are [`Chunk::part`] while the call runs; [`Chunk::keep`] keeps them. `replace`: write also what
    /// exists.
    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>>;

    /// Fetch chunks, each exactly as it was put. Say with each receive or read which item it answers, its place among `hashes`:
    /// the host then puts the bytes where the consumer wants them, without a copy.
    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>>;

    /// Remove chunks that the host has found damaged, so that the next put, from whichever process, stores them again. That
    /// there was none is success. [`Error::unsupported`] where the storage system removes nothing.
    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>>;

    /// Publish a manifest: a reader sees the former one or this one, whole. `fresh`: the chunks put since the last commit, each
    /// list of another width; make them durable first, where the backend is durable. Empty where it is not, and did not ask. If
    /// some of them are gone, publish nothing and name them: [`absent`](crate::absent). Without a manifest, only make them durable.
    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome>;

    /// The manifest under a name, or `None`.
    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>>;

    /// Remove a manifest; that there was none is success. Chunks stay.
    fn delete_manifest(&mut self, name: &str) -> Result<()>;
}

/// What the host should know about the store just opened. The default is for a backend that keeps its data elsewhere: as
/// many instances as the host likes, no limits known, not durable, not shared, buffered. **One that keeps data in itself
/// must set `max_instances` to `Some(1)`**, or each instance has a part of it.
#[derive(Clone, Debug, Default)]
pub struct Features {
    /// What was reached, for a log line: `Redis 7.2 at cache.svc:6379/3`.
    pub label: String,
    /// How many instances may serve this URI in one process; `None`: any number. `Some(1)`: the instance holds the data.
    pub max_instances: Option<u32>,
    /// Items per batch that suit the backend; `None`: no limit known.
    pub max_batch_items: Option<u32>,
    /// Bytes per batch that suit the backend; a single chunk may still exceed it.
    pub max_batch_bytes: Option<u64>,
    /// The longest chunk or manifest, in bytes, that would not be refused.
    pub max_value_bytes: Option<u64>,
    /// What was answered survives a restart of the storage system.
    pub durable: bool,
    /// Other processes that open the same URI see the same store.
    pub shared: bool,
    /// Putting what exists costs little: the host need not ask `exists` first.
    pub cheap_repeat: bool,
    /// Hand each chunk on at once and without a copy, instead of gathering chunks until the manifest comes.
    pub write_through: bool,
    /// Further facts by name. `("fresh", "wanted")`: hand [`Backend::commit`] its `fresh` though the store is not durable.
    pub more: Vec<(String, String)>,
}

impl From<Features> for store::Features {
    fn from(features: Features) -> Self {
        store::Features {
            label: features.label,
            max_instances: features.max_instances.unwrap_or(0),
            max_batch_items: features.max_batch_items.unwrap_or(0),
            max_batch_bytes: features.max_batch_bytes.unwrap_or(0),
            max_value_bytes: features.max_value_bytes.unwrap_or(0),
            durable: features.durable,
            shared: features.shared,
            cheap_repeat: features.cheap_repeat,
            write_through: features.write_through,
            more: features.more,
        }
    }
}

/// Where an instance keeps its backend. Implemented by [`export!`](crate::export).
pub trait Instance: 'static {
    type Backend: Backend;
    fn slot() -> &'static LocalKey<RefCell<Option<Self::Backend>>>;
}

fn with<I: Instance, T>(call: impl FnOnce(&mut I::Backend) -> Result<T>) -> Result<T> {
    I::slot().with_borrow_mut(|slot| match slot {
        Some(backend) => call(backend),
        None => Err(Error::invalid("the store was not opened: call `open` first")),
    })
}

impl<I: Instance> Guest for I {
    fn open(uri: String, options: Vec<(String, String)>) -> Result<store::Features> {
        let (backend, features) = I::Backend::open(&uri, Options::new(options))?;
        I::slot().set(Some(backend));
        Ok(features.into())
    }

    fn exists(hashes: store::Hashes) -> Result<Vec<Presence>> {
        with::<I, _>(|backend| backend.exists(Hashes::of(&hashes)))
    }

    fn put_chunks(hashes: store::Hashes, lens: Vec<u64>, replace: bool) -> Result<Vec<PutOutcome>> {
        with::<I, _>(|backend| backend.put_chunks(&batch::chunks(Hashes::of(&hashes), &lens), replace))
    }

    fn get_chunks(hashes: store::Hashes) -> Result<Vec<GetOutcome>> {
        with::<I, _>(|backend| backend.get_chunks(Hashes::of(&hashes)))
    }

    fn delete_chunks(hashes: store::Hashes) -> Result<Vec<DeleteOutcome>> {
        with::<I, _>(|backend| backend.delete_chunks(Hashes::of(&hashes)))
    }

    fn commit(fresh: Vec<store::Hashes>, manifest: Option<store::Manifest>) -> Result<CommitOutcome> {
        let fresh: Vec<Hashes> = fresh.iter().map(Hashes::of).collect();
        let manifest = manifest.as_ref().map(|manifest| Manifest { name: &manifest.name, len: manifest.len });
        with::<I, _>(|backend| backend.commit(&fresh, manifest))
    }

    fn get_manifest(name: String) -> Result<Option<Payload>> {
        with::<I, _>(|backend| backend.get_manifest(&name))
    }

    fn delete_manifest(name: String) -> Result<()> {
        with::<I, _>(|backend| backend.delete_manifest(&name))
    }
}
