//! Batches for engines: many chunks a call, in the engine's own memory, and saves of which each has its own ledger.
//!
//! A batch stores at once: what it answers as stored or existed is readable by every client of the store. Each item has an
//! outcome of its own. A batch never settles what the keys of a store are (`verify = "auto"`): its keys may be anything.

mod get;
mod named;
mod put;
mod save;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

pub use get::FetchItem;
pub use save::SubmittedPut;
pub use save::{Save, SaveOutcome};

use named::Named;

use super::seal::SEAL_BYTES;
use super::{Opened, Put, Store};
use crate::backend::{Answers, Backend, ChunkHash, Presence};
use crate::counters::Operation;
use crate::descriptor::Described;
use crate::error::{Error, ErrorKind};
use crate::payload::Buffer;
use crate::until::Until;

/// How a batch is carried out.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct BatchOptions {
    /// Put: a chunk is answered only when it survives a power loss. `Unsupported` where the backend is not durable.
    pub durable: bool,
    /// Put: store also what exists.
    pub replace: bool,
    /// Values lie in an envelope whatever their keys are: wrong bytes are a miss. Others than those whose key of 8 bytes is the
    /// hash of their content lie in one without it.
    pub sealed: bool,
    /// Keys of 8 bytes are XXH3-64 of the content, in either byte order. Get: other bytes are a miss. Put: they are not held against
    /// it.
    pub xxh3_keys: bool,
    /// Values check themselves, and lie as they are.
    pub(crate) checks_itself: bool,
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

    /// Values check themselves, as those of the block cache do: no checksum is added, and no other layout is asked for.
    #[doc(hidden)]
    #[must_use]
    pub fn with_values_that_check_themselves(self) -> Self {
        BatchOptions { checks_itself: true, ..self }
    }

    /// The time for the batch.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        BatchOptions { timeout: Some(timeout), ..self }
    }
}

/// A chunk to put: its bytes lie in pieces, one after another.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct NewChunk<'a> {
    /// 1 to 64 bytes.
    pub hash: &'a [u8],
    /// The value.
    pub pieces: &'a [&'a [u8]],
}

impl<'a> NewChunk<'a> {
    /// A chunk under a hash, whose bytes lie in pieces.
    pub fn new(hash: &'a [u8], pieces: &'a [&'a [u8]]) -> Self {
        NewChunk { hash, pieces }
    }
}

/// A chunk to get.
#[derive(Debug)]
#[non_exhaustive]
pub struct Fetch<'a> {
    /// 1 to 64 bytes.
    pub hash: &'a [u8],
    /// Where its bytes go.
    pub memory: Memory<'a>,
}

impl<'a> Fetch<'a> {
    /// The chunk under a hash, into some memory.
    pub fn new(hash: &'a [u8], memory: Memory<'a>) -> Self {
        Fetch { hash, memory }
    }
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

impl Fetched {
    /// Bytes that the caller has.
    fn bytes(&self) -> u64 {
        match self {
            Fetched::Placed(len) => *len as u64,
            Fetched::Buffer(data) => data.len() as u64,
            Fetched::TooLong(_) => 0,
        }
    }
}

impl Store {
    /// Begin a save. It keeps the store open.
    pub fn begin_save(&self) -> Result<Save, Error> {
        self.usable()?;
        Ok(Save::begin(Arc::clone(&self.opened)))
    }

    /// Store chunks at once, from the caller's memory. An outcome for each; a chunk that is named twice is stored once.
    ///
    /// Without a save a put is in no ledger: it is visible, and no manifest waits for it.
    ///
    /// # Errors
    /// Of the whole call: the store was opened before a fork, the save is another store's, `durable` is not supported, or a quota
    /// of the config is used up.
    pub fn put_many(
        &self,
        chunks: &[NewChunk<'_>],
        options: &BatchOptions,
        save: Option<&Save>,
    ) -> Result<Vec<Result<Put, Error>>, Error> {
        let opened = self.usable().map_err(|error| error.during(Operation::PutMany.name()))?;
        opened.put_many(chunks, options, save, &opened.until(options.timeout))
    }

    /// Fetch chunks. `None`: there is none, or what is there is not what was put.
    ///
    /// # Errors
    /// Of the whole call: the store was opened before a fork. Over a quota of the config each item is a miss.
    pub fn get_many(
        &self,
        items: &mut [Fetch<'_>],
        options: &BatchOptions,
    ) -> Result<Vec<Result<Option<Fetched>, Error>>, Error> {
        let opened = self.usable().map_err(|error| error.during(Operation::GetMany.name()))?;
        let wanted: Vec<FetchItem> = items.iter_mut().map(|item| FetchItem::new(item.hash, &mut item.memory)).collect();
        // SAFETY: the targets are the caller's exclusive slices, which outlive the call.
        unsafe { opened.get_many(&wanted, options, &opened.until(options.timeout)) }
    }

    /// Remove chunks; that there was none is success. A manifest that names one of them stays.
    ///
    /// # Errors
    /// Of the whole call: the store was opened before a fork, or a quota of the config is used up.
    pub fn delete_many(&self, hashes: &[&[u8]]) -> Result<Vec<Result<(), Error>>, Error> {
        self.delete_many_with(hashes, &BatchOptions::default())
    }

    /// As [`Store::delete_many`], with the options that the chunks were put with.
    #[doc(hidden)]
    pub fn delete_many_with(&self, hashes: &[&[u8]], options: &BatchOptions) -> Result<Vec<Result<(), Error>>, Error> {
        let opened = self.usable().map_err(|error| error.during(Operation::DeleteMany.name()))?;
        opened.delete_many_with(hashes, options, &opened.until(options.timeout))
    }

    /// Which chunks exist.
    ///
    /// # Errors
    /// Of the whole call: the store was opened before a fork, or a quota of the config is used up.
    pub fn exists_many(&self, hashes: &[&[u8]], options: &BatchOptions) -> Result<Vec<Result<Presence, Error>>, Error> {
        let opened = self.usable().map_err(|error| error.during(Operation::ExistsMany.name()))?;
        opened.exists_many(hashes, options, &opened.until(options.timeout))
    }
}

/// What an engine wants to know of a store.
pub struct BatchInfo {
    pub durable: bool,
    pub shared: bool,
    pub deletes: bool,
    pub write_through: bool,
    pub max_value_bytes: u64,
    pub batch_items: u64,
    pub batch_bytes: u64,
}

impl Opened {
    /// What an engine wants to know of the store.
    pub fn batch_info(&self) -> BatchInfo {
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

    /// The time of a call that begins now.
    pub fn until(&self, timeout: Option<Duration>) -> Until {
        let own = timeout.and_then(|timeout| self.shared.process.clock.now().checked_add(timeout));
        self.shared.until_by(own)
    }

    /// The layers, for tests of what lies below them.
    #[doc(hidden)]
    pub fn backend(&self) -> &dyn Backend {
        &self.shared.backend
    }

    /// The store's own URI, for messages.
    pub fn uri(&self) -> &str {
        &self.shared.uri
    }

    /// As [`Store::delete_many`].
    pub fn delete_many(&self, hashes: &[&[u8]], until: &Until) -> Answers<()> {
        self.delete_many_with(hashes, &BatchOptions::default(), until)
    }

    fn delete_many_with(&self, hashes: &[&[u8]], options: &BatchOptions, until: &Until) -> Answers<()> {
        self.counted(Operation::DeleteMany, || Ok(self.delete_admitted(hashes, options, until)))
    }

    fn delete_admitted(&self, hashes: &[&[u8]], options: &BatchOptions, until: &Until) -> Vec<Result<(), Error>> {
        let named = Named::of(hashes, Described::NOT);
        // Wherever each may lie.
        let places = |(number, hash): (usize, &ChunkHash)| {
            let hash = *hash;
            let layouts = self.shared.layouts_of_removed(&hash, options);
            layouts.map(move |layout| (number, hash.lying(layout))).collect::<Vec<_>>()
        };
        let (numbers, places): (Vec<usize>, Vec<ChunkHash>) = named.chunks.iter().enumerate().flat_map(places).unzip();
        let mut answers: Vec<Option<Result<(), Error>>> = named.chunks.iter().map(|_| None).collect();
        // Said twice: what is put meanwhile is asked for again, for the removal may have come after it. The second time of each call by
        // itself: a save may end before the others do.
        self.shared.removing(&places);
        let removed = |places: &[ChunkHash]| self.shared.removing(places);
        let deleted = self.shared.batches().delete_all(&places, &removed, until).each();
        for (number, answer) in numbers.into_iter().zip(deleted) {
            if let Some(whole) = answers.get_mut(number) {
                *whole = Some(whole.take().unwrap_or(Ok(())).and(answer));
            }
        }
        named.answers(answers.into_iter().map(|whole| whole.unwrap_or_else(|| Err(unanswered()))).collect())
    }

    /// As [`Store::exists_many`].
    pub fn exists_many(&self, hashes: &[&[u8]], options: &BatchOptions, until: &Until) -> Answers<Presence> {
        self.counted(Operation::ExistsMany, || Ok(self.exists_admitted(hashes, options, until)))
    }

    fn exists_admitted(&self, hashes: &[&[u8]], options: &BatchOptions, until: &Until) -> Vec<Result<Presence, Error>> {
        let Opened { shared, save, .. } = self;
        let Ok(described) = self.described() else { return hashes.iter().map(|_| Ok(Presence::Absent)).collect() };
        let named = Named::of(hashes, described);
        let mut answers: Vec<Result<Presence, Error>> = named.chunks.iter().map(|_| Ok(Presence::Absent)).collect();
        save.each_waiting(named.chunks.iter(), |at, data| {
            if let Some(answer) = answers.get_mut(at) {
                *answer = Ok(Presence::Present(Some(data.len() as u64)));
            }
        });
        for turn in 0..2 {
            let (mut numbers, mut asked) = (Vec::with_capacity(answers.len()), Vec::with_capacity(answers.len()));
            for (number, (hash, answer)) in named.chunks.iter().zip(&answers).enumerate() {
                if let Ok(Presence::Absent) = answer
                    && let Some(layout) = shared.lookup_of(hash, options).layout(turn)
                {
                    numbers.push(number);
                    asked.push(hash.lying(layout));
                }
            }
            if asked.is_empty() {
                continue;
            }
            // What an earlier version has sealed has its seal behind it.
            let seal = if options.sealed && turn > 0 { SEAL_BYTES as u64 } else { 0 };
            for (number, answer) in numbers.into_iter().zip(shared.batches().exists_all(&asked, until)) {
                let presence = |presence| match presence {
                    Presence::Absent => Presence::Absent,
                    Presence::Present(len) => Presence::Present(len.and_then(|stored| stored.checked_sub(seal))),
                };
                if let Some(place) = answers.get_mut(number) {
                    *place = answer.map(presence);
                }
            }
        }
        named.answers(answers)
    }
}

/// The hashes of a batch, each once, with the place of its first item; and of each item, which of those it is.
pub(super) fn distinct<'a>(
    hashes: impl Iterator<Item = Option<&'a ChunkHash>>,
) -> (Vec<(usize, ChunkHash)>, Vec<Option<usize>>) {
    let count = hashes.size_hint().0;
    let mut seen: HashMap<&ChunkHash, usize, foldhash::fast::RandomState> =
        HashMap::with_capacity_and_hasher(count, foldhash::fast::RandomState::default());
    let mut distinct = Vec::with_capacity(count);
    let first_of = hashes.enumerate().map(|(index, hash)| {
        let hash = hash?;
        Some(*seen.entry(hash).or_insert_with(|| {
            distinct.push((index, *hash));
            distinct.len() - 1
        }))
    });
    let first_of = first_of.collect();
    (distinct, first_of)
}

pub(super) fn unanswered() -> Error {
    Error::new(ErrorKind::Other, "the item was not answered")
}
