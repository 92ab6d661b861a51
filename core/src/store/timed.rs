//! The calls of an operation that is made of several: of whoever has payload memory of the host's own, and checks by itself what it
//! fetches. The operation may have an end, which its calls share.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::open_store::Item;
use super::save::SaveState;
use super::suspects::{self, Judge};
use super::{Damage, Opened, Put, Store, found_bytes, owned};
use crate::backend::{Backend, Bytes, ChunkHash, ChunkMap, ChunkSet};
use crate::counters::Operation;
use crate::error::Error;
use crate::limits;
use crate::payload::{Buffer, spare as spare_memory};
use crate::threads::Lent;
use crate::until::Until;

/// A store, and when the caller's operation must be over.
#[derive(Clone, Copy)]
pub(crate) struct TimedStore<'a> {
    store: &'a Store,
    /// None: each call has the operator's deadline and no other.
    end: Option<Instant>,
}

impl Store {
    /// The calls of an operation that must be over when so much time has passed. None: whenever it is.
    pub(crate) fn within(&self, timeout: Option<Duration>) -> TimedStore<'_> {
        let now = self.opened.shared.process.clock.now();
        TimedStore { store: self, end: timeout.and_then(|timeout| now.checked_add(timeout)) }
    }

    /// Publish a manifest after the chunks of a save.
    pub(super) fn publish(&self, save: &SaveState, name: &str, data: &[u8], end: Option<Instant>) -> Result<(), Error> {
        self.counted(Operation::PutManifest, |opened| {
            let shared = &opened.shared;
            let name = opened.full_name(name)?;
            shared.check_manifest_len(data.len())?;
            let until = shared.until_by(end).describing(opened.described()?);
            save.put_manifest(shared, &name, data, &until)?;
            shared.supersede(&name);
            shared.moved_in(data.len() as u64);
            Ok(())
        })
    }

    pub(super) fn get_manifest_within(&self, name: &str, end: Option<Instant>) -> Result<Option<Buffer>, Error> {
        self.counted_or(
            Operation::GetManifest,
            |_| {
                self.opened.shared.refused(1);
                Ok(None)
            },
            |opened| {
                let shared = &opened.shared;
                let name = opened.full_name(name).inspect_err(|_| shared.refused(1))?;
                let Some(described) = opened.asks_as(1) else { return Ok(None) };
                let until = shared.until_by(end).describing(described);
                until.expect(shared.max_manifest_bytes());
                let found = shared.backend.get_manifest(&name, &until).and_then(|found| found.map(owned).transpose());
                shared.answered(Item::Manifest(&name), found_bytes(&found), &until);
                found
            },
        )
    }
}

impl<'a> TimedStore<'a> {
    fn opened(&self) -> Result<(&Opened, Until), Error> {
        let opened = self.store.usable()?;
        Ok((opened, opened.shared.until_by(self.end)))
    }

    /// As [`Store::get_manifest`].
    pub(crate) fn get_manifest(&self, name: &str) -> Result<Option<Buffer>, Error> {
        self.store.get_manifest_within(name, self.end)
    }

    /// The threads that gather and scatter.
    pub(crate) fn threads(&self) -> Lent<'a> {
        let shared = &self.store.opened.shared;
        shared.process.threads.paged.lent(&shared.reach.whose)
    }

    /// Whether chunks go to the backend at once.
    pub(crate) fn is_write_through(&self) -> bool {
        self.store.info().write_through
    }

    /// Begin the save of this operation.
    pub(crate) fn begin_save(self) -> OperationSave<'a> {
        OperationSave { store: self, state: Arc::new(SaveState::new(&self.store.opened.shared.process.clock)) }
    }

    /// [`TimedStore::get_buffers`] of chunks whose lengths are known, into memory that [`TimedStore::keep_buffers`] has kept.
    pub(crate) fn get_buffers_of(
        &self,
        hashes: &[[u8; 8]],
        lens: impl Iterator<Item = usize>,
    ) -> Result<Vec<Option<Arc<Buffer>>>, Error> {
        let ready = self.opened()?.0.shared.spare.take(lens);
        let (found, left) = spare_memory::with_ready(ready, || self.get_buffers(hashes));
        self.keep_buffers(left.into_iter().map(Arc::new));
        found
    }

    /// Keep memory that nobody else holds, for the next chunks.
    pub(crate) fn keep_buffers(&self, buffers: impl Iterator<Item = Arc<Buffer>>) {
        if let Ok((opened, _)) = self.opened() {
            buffers.for_each(|buffer| opened.shared.spare.keep(buffer));
        }
    }

    /// Fetch chunks, each as the backend answers it, unchecked and without a copy.
    pub(crate) fn get_buffers(&self, hashes: &[[u8; 8]]) -> Result<Vec<Option<Arc<Buffer>>>, Error> {
        let misses = |_| {
            self.store.opened.shared.refused(hashes.len());
            Ok(vec![None; hashes.len()])
        };
        self.store.counted_or(Operation::GetMany, misses, |opened| {
            let shared = &opened.shared;
            if opened.asks_as(hashes.len()).is_none() {
                return Ok(vec![None; hashes.len()]);
            }
            let until = shared.until_by(self.end);
            let asked: Vec<ChunkHash> = hashes.iter().map(|hash| ChunkHash::new(hash)).collect::<Result<_, _>>()?;
            let found = opened.buffers(&asked, &until);
            for (at, hash) in asked.iter().enumerate() {
                let came = found.as_ref().map(|found| Some(found.get(at)?.as_ref()?.len() as u64));
                shared.answered(Item::Chunk(hash), came, &until);
            }
            found
        })
    }

    /// Which chunks there are.
    pub(crate) fn has_chunks(&self, hashes: &[[u8; 8]]) -> Result<Vec<bool>, Error> {
        self.store.counted(Operation::ExistsMany, |opened| opened.present(hashes, &opened.shared.until_by(self.end)))
    }

    /// A chunk that [`TimedStore::get_buffers`] has answered has wrong bytes, unless a further read brings right ones.
    pub(crate) fn found_damaged(
        &self,
        hash: &[u8],
        damaged: &[u8],
        is_sound: &dyn Fn(&[u8]) -> bool,
    ) -> Result<Damage, Error> {
        let (opened, until) = self.opened()?;
        let judge = Judge { is_sound, removable: true };
        Ok(opened.shared.found_damaged(&ChunkHash::new(hash)?, suspects::damaged(damaged), &judge, &until))
    }

    /// Refuse a name or a length that a put would refuse.
    pub(crate) fn check(&self, name: &str, largest: usize) -> Result<(), Error> {
        let (opened, _) = self.opened()?;
        opened.full_name(name)?;
        opened.shared.check_manifest_len(largest)
    }
}

/// The save of one operation. It has a ledger of its own: it neither fails for chunks that others put on the handle, nor publishes
/// them. Dropped without a manifest, it forgets what waits.
pub(crate) struct OperationSave<'a> {
    store: TimedStore<'a>,
    state: Arc<SaveState>,
}

impl OperationSave<'_> {
    /// Store a chunk without a copy of its bytes; where the backend is not written through, it waits for the manifest. The
    /// detection of what keys are is skipped, because other users of the store may key their chunks differently.
    pub(crate) fn put_buffer(&self, hash: &[u8], data: &Arc<Buffer>) -> Result<Put, Error> {
        self.put(hash, Bytes::Buffered(data))
    }

    /// As [`OperationSave::put_buffer`], of a chunk that lies in several pieces. Where the backend is not written through, they
    /// are copied into one.
    pub(crate) fn put_pieces(&self, hash: &[u8], pieces: &[&[u8]]) -> Result<Put, Error> {
        self.put(hash, Bytes::Scattered(pieces))
    }

    fn put(&self, hash: &[u8], data: Bytes<'_>) -> Result<Put, Error> {
        self.store.store.counted(Operation::PutChunk, |opened| {
            opened.described()?;
            opened.shared.check_len(data.len())?;
            opened.put(&self.state, ChunkHash::new(hash)?, data, &opened.shared.until_by(self.store.end))
        })
    }

    /// Publish a manifest after the chunks of this save, as durable as [`Store::put_manifest`] makes them.
    pub(crate) fn publish(self, name: &str, data: &[u8]) -> Result<(), Error> {
        self.store.store.publish(&self.state, name, data, self.store.end)
    }
}

impl Drop for OperationSave<'_> {
    fn drop(&mut self) {
        if let Ok((opened, _)) = self.store.opened() {
            self.state.discard(&opened.shared);
        }
    }
}

impl Opened {
    fn buffers(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<Option<Arc<Buffer>>>, Error> {
        let Opened { shared, save, prefetched, .. } = self;
        let mut found = ChunkMap::default();
        let mut absent = Vec::new();
        for hash in hashes {
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

    fn present(&self, hashes: &[[u8; 8]], until: &Until) -> Result<Vec<bool>, Error> {
        let Opened { shared, save, .. } = self;
        let hashes: Vec<ChunkHash> = hashes.iter().map(|hash| ChunkHash::new(hash)).collect::<Result<_, _>>()?;
        let mut distinct = ChunkSet::default();
        let unknown = |hash: &ChunkHash| !save.holds(hash) && distinct.insert(*hash);
        let distinct: Vec<ChunkHash> = hashes.iter().copied().filter(unknown).collect();
        let mut absent = ChunkSet::default();
        for batch in distinct.chunks(shared.batch_items()) {
            let stored = shared.exists(batch, until)?.into_iter();
            absent.extend(batch.iter().zip(stored).filter(|(_, stored)| !stored).map(|(hash, _)| *hash));
        }
        Ok(hashes.iter().map(|hash| !absent.contains(hash)).collect())
    }
}
