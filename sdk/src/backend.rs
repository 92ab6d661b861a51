//! The trait that a backend implements, and the glue between it and the generated bindings.
//!
//! The contract says that the instance is the store, so there is exactly one backend in an instance, made by the first
//! call. [`Instance`] keeps it; what reaches a backend has been opened.

use std::cell::RefCell;
use std::thread::LocalKey;

use crate::batch::{self, Chunk, Hashes, Manifest};
use crate::bindings::exports::kv_store::backend::store::Guest;
use crate::bindings::kv_store::backend::store_types as store;
use crate::{
    CommitOutcome, DeleteOutcome, Error, GetOutcome, Options, Payload, Presence, Properties, PutOutcome, Result,
};

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
    /// list of another width; make them durable first, where the backend is durable. Empty where it is neither durable nor
    /// [`Properties::WANTS_FRESH`]. If
    /// some of them are gone, publish nothing and name them: [`absent`](crate::absent). Without a manifest, only make them durable.
    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome>;

    /// The manifest under a name, or `None`.
    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>>;

    /// Remove a manifest; that there was none is success. Chunks stay.
    fn delete_manifest(&mut self, name: &str) -> Result<()>;
}

/// What the host should know about the store just opened, the same from every instance but for `label`. The default is for a
/// backend that keeps its data elsewhere: as many instances as the host likes, no limits known, not durable, not shared,
/// buffered. **One that keeps data in itself must set [`Properties::HOLDS_DATA`]**, or each instance has a part of it.
#[derive(Clone, Debug, Default)]
pub struct Features {
    /// What was reached, for a log line: `Redis 7.2 at cache.svc:6379/3`.
    pub label: String,
    /// What is true of the store: `Properties::SHARED | Properties::DURABLE`.
    pub properties: Properties,
    /// How many instances may serve this URI in one process; `None`: no limit known, as in the limits that follow.
    pub max_instances: Option<u32>,
    /// Items per batch that suit the backend.
    pub batch_items: Option<u32>,
    /// Bytes per batch that suit the backend; a single chunk may still exceed it.
    pub batch_bytes: Option<u64>,
    /// The longest chunk or manifest, in bytes, that would not be refused.
    pub max_value_bytes: Option<u64>,
    /// Further facts by name, which later versions of the contract define.
    pub more: Vec<(String, String)>,
}

impl Default for Properties {
    /// None of them.
    fn default() -> Self {
        Properties::empty()
    }
}

impl Properties {
    /// These where the condition holds, or else none: `Properties::SHARED | Properties::DURABLE.when(durable)`.
    pub fn when(self, condition: bool) -> Self {
        if condition { self } else { Properties::empty() }
    }
}

impl From<Features> for store::Features {
    fn from(features: Features) -> Self {
        let Features { label, properties, max_instances, batch_items, batch_bytes, max_value_bytes, more } = features;
        store::Features { label, properties, max_instances, batch_items, batch_bytes, max_value_bytes, more }
    }
}

/// Where an instance keeps its backend. Implemented by [`export!`](crate::export).
pub trait Instance: 'static {
    type Backend: Backend;
    fn slot() -> &'static LocalKey<RefCell<Option<Self::Backend>>>;
}

pub(crate) fn with<I: Instance, T>(call: impl FnOnce(&mut I::Backend) -> Result<T>) -> Result<T> {
    I::slot().with_borrow_mut(|slot| match slot {
        Some(backend) => call(backend),
        None => Err(Error::invalid("the store was not opened: call `open` first")),
    })
}

/// A panic traps, and the host says only that. What it was about goes to the host's log first.
fn log_panics() {
    #[cfg(target_family = "wasm")]
    std::panic::set_hook(Box::new(|panic| crate::system::log(crate::system::Level::Error, &panic.to_string())));
}

impl<I: Instance> Guest for I {
    fn open(uri: String, options: Vec<(String, String)>) -> Result<store::Features> {
        log_panics();
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
