//! Batches for engines: many chunks a call, in the engine's own memory, and saves of which each has its own ledger.
//!
//! A batch stores at once: what it answers as stored or existed is readable by every client of the store. Each item has an
//! outcome of its own. A batch never settles what the keys of a store are (`verify = "auto"`): its keys may be anything.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::hash::{ChunkHash, ChunkMap};
use super::save::SaveState;
use super::seal::{SEAL_BYTES, seal, unsealed};
use super::shared::{Bytes, Committed, Shared};
use super::until::Until;
use super::verify::is_xxh3;
use super::{Damage, Opened, Put, Store};
use crate::counters::{Event, Operation};
use crate::error::{Error, ErrorKind};
use crate::payload::Buffer;

/// How a batch is carried out.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct BatchOptions {
    /// Put: a chunk is answered only when it survives a power loss. `Unsupported` where the backend is not durable.
    pub durable: bool,
    /// Put: store also what exists.
    pub replace: bool,
    /// Values have a seal behind them, which tells wrong bytes under a key that is not their content hash. Put and get must
    /// agree. A sealed value takes 16 bytes more in the store.
    pub sealed: bool,
    /// Get: the keys are XXH3-64 of the content, in either byte order; other bytes are a miss.
    pub xxh3_keys: bool,
    /// The time for the batch. `None`: the deadlines of its calls.
    pub timeout: Option<Duration>,
}

impl BatchOptions {
    /// Answer a put only when it survives a power loss.
    #[must_use]
    pub fn with_durable(self) -> Self {
        BatchOptions { durable: true, ..self }
    }

    /// Store also what exists.
    #[must_use]
    pub fn with_replace(self) -> Self {
        BatchOptions { replace: true, ..self }
    }

    /// Seal values.
    #[must_use]
    pub fn with_sealed(self) -> Self {
        BatchOptions { sealed: true, ..self }
    }

    /// Keys are XXH3-64 of the content.
    #[must_use]
    pub fn with_xxh3_keys(self) -> Self {
        BatchOptions { xxh3_keys: true, ..self }
    }

    /// The time for the batch.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        BatchOptions { timeout: Some(timeout), ..self }
    }
}

/// A chunk to put: its bytes lie in pieces, one after another.
#[derive(Clone, Copy, Debug)]
pub struct NewChunk<'a> {
    /// 1 to 64 bytes.
    pub hash: &'a [u8],
    /// The value.
    pub pieces: &'a [&'a [u8]],
}

/// A chunk to get.
#[derive(Debug)]
pub struct Fetch<'a> {
    /// 1 to 64 bytes.
    pub hash: &'a [u8],
    /// Where its bytes go.
    pub memory: Memory<'a>,
}

/// Where the bytes of a fetched chunk go.
#[derive(Debug)]
pub enum Memory<'a> {
    /// Into the caller's memory, one piece after another. If the chunk is not found, or longer than the pieces, what is in
    /// them afterwards is undefined.
    Pieces(&'a mut [&'a mut [u8]]),
    /// Into memory that is allocated for it.
    Allocate,
}

/// A chunk that was found.
#[derive(Debug)]
pub enum Fetched {
    /// So many bytes were placed in the caller's memory.
    Placed(usize),
    /// The chunk has so many bytes, more than the caller's memory.
    TooLong(usize),
    /// The chunk, where memory was to be allocated.
    Buffer(Buffer),
}

/// Whether a chunk exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Presence {
    /// It does not.
    Absent,
    /// It does; with its length, where the backend knows it.
    Present(Option<u64>),
}

/// A save with a ledger of its own: two of them on one handle never fail for each other's chunks.
///
/// ```no_run
/// # fn main() -> Result<(), kv_store_wasm::Error> {
/// use kv_store_wasm::{BatchOptions, NewChunk, SaveOutcome, Store};
/// let store = Store::open("local-fs:///var/cache/kv")?;
/// let save = store.begin_save()?;
/// let chunks = [NewChunk { hash: b"key of one", pieces: &[b"the ", b"value"] }];
/// let outcomes = store.put_many(&chunks, &BatchOptions::default(), Some(&save))?;
/// assert!(outcomes.iter().all(Result::is_ok));
/// assert_eq!(save.commit(Some(("prompt-1", b"one chunk")))?, SaveOutcome::Published);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Save(Arc<Begun>);

struct Begun {
    opened: Arc<Opened>,
    state: SaveState,
    submitted: Submitted,
}

/// The puts of a save that wait in queues or run there.
#[derive(Default)]
struct Submitted {
    unfinished: Mutex<(u64, BTreeSet<u64>)>,
    finished: Condvar,
}

/// A put that was submitted for a save. A commit that begins later waits for it to be dropped.
pub(crate) struct SubmittedPut {
    save: Save,
    number: u64,
}

impl Drop for SubmittedPut {
    fn drop(&mut self) {
        let submitted = &self.save.0.submitted;
        submitted.lock().1.remove(&self.number);
        submitted.finished.notify_all();
    }
}

impl Submitted {
    fn lock(&self) -> MutexGuard<'_, (u64, BTreeSet<u64>)> {
        self.unfinished.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Wait for all that were submitted before this moment.
    fn wait(&self) {
        let mut unfinished = self.lock();
        let mark = unfinished.0;
        while unfinished.1.first().is_some_and(|first| *first <= mark) {
            unfinished = self.finished.wait(unfinished).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

/// What a commit came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// The chunks of the save are durable where the backend can make them so, and the manifest is published.
    Published,
    /// Nothing was published: the store does not have the chunks under these hashes any more. Put them again.
    Lost(Vec<Vec<u8>>),
}

impl Store {
    /// Begin a save. It keeps the store open.
    pub fn begin_save(&self) -> Result<Save, Error> {
        self.usable()?;
        let opened = Arc::clone(&self.opened);
        Ok(Save(Arc::new(Begun { opened, state: SaveState::default(), submitted: Submitted::default() })))
    }

    /// Store chunks at once, from the caller's memory. An outcome for each; a chunk that is named twice is stored once.
    ///
    /// Without a save a put is in no ledger: it is visible, and no manifest waits for it.
    ///
    /// # Errors
    /// Of the whole call: the store was opened before a fork, the save is another store's, or `durable` is not supported.
    pub fn put_many(
        &self,
        chunks: &[NewChunk<'_>],
        options: &BatchOptions,
        save: Option<&Save>,
    ) -> Result<Vec<Result<Put, Error>>, Error> {
        self.counted(Operation::PutMany, |opened| {
            opened.put_many(chunks, options, save, &Until::timeout(options.timeout))
        })
    }

    /// Fetch chunks. `None`: there is none, or what is there is not what was put.
    ///
    /// # Errors
    /// Of the whole call: the store was opened before a fork.
    pub fn get_many(
        &self,
        items: &mut [Fetch<'_>],
        options: &BatchOptions,
    ) -> Result<Vec<Result<Option<Fetched>, Error>>, Error> {
        self.counted(Operation::GetMany, |opened| {
            let wanted = |item: &mut Fetch<'_>| Wanted::new(item.hash, Target::new(&mut item.memory));
            let wanted: Vec<Wanted> = items.iter_mut().map(wanted).collect();
            // SAFETY: the targets are the caller's exclusive slices, which outlive the call.
            Ok(unsafe { opened.get_many(&wanted, options, &Until::timeout(options.timeout)) })
        })
    }

    /// Remove chunks; that there was none is success. A manifest that names one of them stays.
    ///
    /// # Errors
    /// Of the whole call: the store was opened before a fork.
    pub fn delete_many(&self, hashes: &[&[u8]]) -> Result<Vec<Result<(), Error>>, Error> {
        self.counted(Operation::DeleteMany, |opened| Ok(opened.delete_many(hashes, &Until::default())))
    }

    /// Which chunks exist.
    ///
    /// # Errors
    /// Of the whole call: the store was opened before a fork.
    pub fn exists_many(&self, hashes: &[&[u8]], options: &BatchOptions) -> Result<Vec<Result<Presence, Error>>, Error> {
        self.counted(Operation::ExistsMany, |opened| {
            Ok(opened.exists_many(hashes, options, &Until::timeout(options.timeout)))
        })
    }
}

impl Save {
    /// Note a put that is about to wait in a queue.
    pub(crate) fn submit(&self) -> SubmittedPut {
        let mut unfinished = self.0.submitted.lock();
        unfinished.0 += 1;
        let number = unfinished.0;
        unfinished.1.insert(number);
        SubmittedPut { save: self.clone(), number }
    }

    /// Make the chunks of this save durable where the backend can, then publish a manifest; without one this is a barrier.
    /// A `put_manifest` of the handle does not cover them. Waits for the puts that were submitted for it before.
    pub fn commit(&self, manifest: Option<(&str, &[u8])>) -> Result<SaveOutcome, Error> {
        let Begun { opened, state, submitted } = &*self.0;
        opened.check_process()?;
        submitted.wait();
        let committed = (|| {
            let name = manifest.map(|(name, _)| opened.full_name(name)).transpose()?;
            if let Some((_, data)) = manifest {
                opened.shared.check_len(data.len())?;
            }
            let manifest = name.as_deref().zip(manifest.map(|(_, data)| data));
            state.commit(&opened.shared, manifest)
        })();
        opened.shared.counters.call(Operation::Commit, &committed);
        Ok(match committed? {
            Committed::Published => SaveOutcome::Published,
            Committed::Absent(lost) => SaveOutcome::Lost(lost.iter().map(|hash| hash.as_slice().to_vec()).collect()),
        })
    }
}

/// The caller's memory for one fetched chunk.
pub(crate) enum Target {
    Pieces(Vec<(*mut u8, usize)>),
    Allocate,
}

impl Target {
    fn new(memory: &mut Memory<'_>) -> Self {
        match memory {
            Memory::Pieces(pieces) => {
                Target::Pieces(pieces.iter_mut().map(|piece| (piece.as_mut_ptr(), piece.len())).collect())
            }
            Memory::Allocate => Target::Allocate,
        }
    }

    /// Copy a value to where it belongs.
    ///
    /// # Safety
    /// The pieces are valid for writes, and nobody else uses them.
    unsafe fn deliver(&self, value: &[u8]) -> Result<Fetched, Error> {
        let Target::Pieces(pieces) = self else { return Buffer::concat(&[value]).map(Fetched::Buffer) };
        if pieces.iter().map(|(_, len)| len).sum::<usize>() < value.len() {
            return Ok(Fetched::TooLong(value.len()));
        }
        let mut rest = value;
        for (data, len) in pieces {
            let (now, later) = rest.split_at_checked(*len).unwrap_or((rest, &[]));
            // SAFETY: by this function's own condition; `now` has at most `len` bytes and is not in memory of the caller's.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), *data, now.len()) };
            rest = later;
        }
        Ok(Fetched::Placed(value.len()))
    }
}

/// An item of a get.
pub(crate) struct Wanted {
    hash: Result<ChunkHash, Error>,
    target: Target,
}

impl Wanted {
    pub(crate) fn new(hash: &[u8], target: Target) -> Self {
        Wanted { hash: ChunkHash::new(hash), target }
    }
}

/// What an engine wants to know of a store.
pub(crate) struct BatchInfo {
    pub durable: bool,
    pub shared: bool,
    pub deletes: bool,
    pub write_through: bool,
    pub max_value_bytes: u64,
    pub batch_items: u64,
    pub batch_bytes: u64,
}

impl Opened {
    pub(crate) fn batch_info(&self) -> BatchInfo {
        let info = self.shared.info();
        BatchInfo {
            durable: info.durable,
            shared: info.shared,
            deletes: !self.shared.keeps_all.load(Relaxed),
            write_through: info.write_through,
            max_value_bytes: info.max_value_bytes,
            batch_items: self.shared.batch_items() as u64,
            batch_bytes: self.shared.batch_bytes(),
        }
    }

    /// The store's own URI, for messages.
    pub(crate) fn uri(&self) -> &str {
        &self.shared.uri
    }

    pub(crate) fn delete_many(&self, hashes: &[&[u8]], until: &Until) -> Vec<Result<(), Error>> {
        let hashes: Vec<Result<ChunkHash, Error>> = hashes.iter().map(|hash| ChunkHash::new(hash)).collect();
        let (distinct, first_of) = distinct(hashes.iter().map(|hash| hash.as_ref().ok()));
        let distinct: Vec<ChunkHash> = distinct.into_iter().map(|(_, hash)| hash).collect();
        let answers = self.shared.delete_all(&distinct, until).each();
        let of = |(hash, first): (Result<ChunkHash, Error>, Option<usize>)| {
            hash.and_then(|_| first.and_then(|first| answers.get(first).cloned()).unwrap_or_else(|| Err(unanswered())))
        };
        hashes.into_iter().zip(first_of).map(of).collect()
    }

    pub(crate) fn put_many(
        &self,
        chunks: &[NewChunk<'_>],
        options: &BatchOptions,
        save: Option<&Save>,
        until: &Until,
    ) -> Result<Vec<Result<Put, Error>>, Error> {
        let shared = &self.shared;
        if options.durable && !shared.features.durable {
            let message = "durable puts: this backend does not survive a restart of its storage system";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if save.is_some_and(|save| !Arc::ptr_eq(&save.0.opened.shared, shared)) {
            return Err(Error::invalid("the save belongs to another store"));
        }
        let lens: Vec<usize> = chunks.iter().map(|chunk| chunk.pieces.iter().map(|piece| piece.len()).sum()).collect();
        let hashes: Vec<Result<ChunkHash, Error>> = chunks
            .iter()
            .zip(&lens)
            .map(|(chunk, len)| {
                let stored = if options.sealed { len.saturating_add(SEAL_BYTES) } else { *len };
                shared.check_len(stored).and_then(|()| ChunkHash::new(chunk.hash))
            })
            .collect();
        // A chunk that is named twice is put once.
        let (distinct, first_of) = distinct(hashes.iter().map(|hash| hash.as_ref().ok()));
        let of_first =
            |index: usize| (chunks.get(index).map_or(&[][..], |chunk| chunk.pieces), lens.get(index).copied());
        let seals: Vec<Option<[u8; SEAL_BYTES]>> = distinct
            .iter()
            .map(|(index, hash)| {
                let (pieces, len) = of_first(*index);
                options.sealed.then(|| seal(hash, len.unwrap_or(0), pieces.iter().copied()))
            })
            .collect();
        let pieces: Vec<Vec<&[u8]>> = distinct
            .iter()
            .zip(&seals)
            .map(|((index, _), seal)| {
                of_first(*index).0.iter().copied().chain(seal.as_ref().map(|seal| &seal[..])).collect()
            })
            .collect();
        let batch: Vec<(ChunkHash, Bytes<'_>)> =
            distinct.iter().zip(&pieces).map(|((_, hash), pieces)| (*hash, Bytes::Scattered(pieces))).collect();
        let (generation, confirmed) = (shared.generation_of_data(), Instant::now());
        let mut outcomes = shared.put_all(&batch, options.replace, until).each();
        if options.durable {
            let stored = || batch.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
            let (fresh, bytes) = (stored().map(|((hash, _), _)| *hash).collect::<Vec<_>>(), stored());
            let bytes = bytes.map(|((_, data), _)| data.len() as u64).sum();
            let failure = match shared.commit(None, &fresh, bytes) {
                Ok(Committed::Published) => None,
                Ok(Committed::Absent(_)) => {
                    Some(Error::new(ErrorKind::Unavailable, "a chunk vanished while it was stored"))
                }
                Err(error) => Some(error),
            };
            if let Some(error) = failure {
                outcomes.iter_mut().filter(|outcome| outcome.is_ok()).for_each(|outcome| *outcome = Err(error.clone()));
            }
        }
        for ((hash, data), outcome) in batch.iter().zip(&outcomes) {
            if let Ok(put) = outcome {
                shared.saw_len(data.len());
                shared.counters.add(Event::BytesPut, data.len() as u64);
                shared.counters.add(Event::Duplicates, u64::from(*put == Put::Existed));
                if let Some(save) = save {
                    save.0.state.stored(*hash, data.len(), confirmed, generation);
                }
            }
        }
        let of = |(hash, first): (Result<ChunkHash, Error>, Option<usize>)| {
            hash.and_then(|_| first.and_then(|first| outcomes.get(first).cloned()).unwrap_or_else(|| Err(unanswered())))
        };
        Ok(hashes.into_iter().zip(first_of).map(of).collect())
    }

    /// # Safety
    /// The pieces of the targets are valid for writes until this returns, and nobody else uses them.
    pub(crate) unsafe fn get_many(
        &self,
        items: &[Wanted],
        options: &BatchOptions,
        until: &Until,
    ) -> Vec<Result<Option<Fetched>, Error>> {
        let Opened { shared, save, .. } = self;
        let (distinct, first_of) = distinct(items.iter().map(|item| item.hash.as_ref().ok()));
        let mut found: Vec<Result<Option<Arc<Buffer>>, Error>> = Vec::with_capacity(distinct.len());
        let mut absent = Vec::new();
        for (n, (_, hash)) in distinct.iter().enumerate() {
            let waits = save.waiting(hash);
            if waits.is_none() {
                absent.push((n, *hash));
            }
            found.push(Ok(waits));
        }
        let hashes: Vec<ChunkHash> = absent.iter().map(|(_, hash)| *hash).collect();
        let fetched = shared.get_all(&hashes, until).each();
        for ((n, _), answer) in absent.iter().zip(fetched) {
            if let Some(place) = found.get_mut(*n) {
                *place = answer;
            }
        }
        let deliver = |item: &Wanted, first: Option<usize>| {
            let hash = item.hash.as_ref().map_err(Clone::clone)?;
            let stored =
                first.and_then(|first| found.get(first)).ok_or_else(unanswered)?.as_ref().map_err(Clone::clone)?;
            let Some((stored, len)) = stored.as_ref().and_then(|stored| shared.checked(hash, stored, options)) else {
                shared.counters.count(Event::Misses);
                return Ok(None);
            };
            let value = stored.get(..len).unwrap_or_default();
            shared.counters.add(Event::BytesGot, value.len() as u64);
            // SAFETY: by this function's own condition.
            unsafe { item.target.deliver(value) }.map(Some)
        };
        items.iter().zip(first_of).map(|(item, first)| deliver(item, first)).collect()
    }

    pub(crate) fn exists_many(
        &self,
        hashes: &[&[u8]],
        options: &BatchOptions,
        until: &Until,
    ) -> Vec<Result<Presence, Error>> {
        let Opened { shared, save, .. } = self;
        let hashes: Vec<Result<ChunkHash, Error>> = hashes.iter().map(|hash| ChunkHash::new(hash)).collect();
        let (distinct, _) = distinct(hashes.iter().map(|hash| hash.as_ref().ok()));
        let mut answers: ChunkMap<Result<Presence, Error>> = ChunkMap::default();
        let mut absent = Vec::new();
        for (_, hash) in &distinct {
            match save.waiting(hash) {
                // What waits was put without a seal.
                Some(data) => {
                    answers.insert(*hash, Ok(Presence::Present((!options.sealed).then_some(data.len() as u64))));
                }
                None => absent.push(*hash),
            }
        }
        let asked = shared.exists_all(&absent, until).each();
        for (hash, answer) in absent.iter().zip(asked) {
            let presence = answer.map(|present| if present { Presence::Present(None) } else { Presence::Absent });
            answers.insert(*hash, presence);
        }
        hashes.into_iter().map(|hash| answers.get(&hash?).cloned().unwrap_or_else(|| Err(unanswered()))).collect()
    }
}

impl Shared {
    /// What was stored under a hash and the length of its value, if it is what was put as far as that can be known. What is
    /// not is removed, so that the next put stores it again.
    fn checked(&self, hash: &ChunkHash, stored: &Arc<Buffer>, options: &BatchOptions) -> Option<(Arc<Buffer>, usize)> {
        let value_len = |stored: &[u8]| {
            if options.sealed {
                return unsealed(hash, stored).map(<[u8]>::len);
            }
            let content_keyed = options.xxh3_keys || self.verifier.insists();
            (!content_keyed || is_xxh3(hash, stored)).then_some(stored.len())
        };
        if let Some(len) = value_len(stored) {
            return Some((stored.clone(), len));
        }
        match self.remove_damaged(hash, stored, &|again| value_len(again).is_some()) {
            Damage::Passing(sound) => value_len(&sound).map(|len| (sound, len)),
            Damage::Removed | Damage::Stays(_) => None,
        }
    }
}

/// The hashes of a batch, each once, with the place of its first item; and of each item, which of those it is.
fn distinct<'a>(hashes: impl Iterator<Item = Option<&'a ChunkHash>>) -> (Vec<(usize, ChunkHash)>, Vec<Option<usize>>) {
    let mut seen: HashMap<ChunkHash, usize, foldhash::fast::RandomState> = HashMap::default();
    let mut distinct = Vec::new();
    let first_of = hashes.enumerate().map(|(index, hash)| {
        let hash = hash?;
        Some(*seen.entry(*hash).or_insert_with(|| {
            distinct.push((index, *hash));
            distinct.len() - 1
        }))
    });
    let first_of = first_of.collect();
    (distinct, first_of)
}

fn unanswered() -> Error {
    Error::new(ErrorKind::Other, "the item was not answered")
}
