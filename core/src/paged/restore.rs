//! Out of the store, into the pages.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kv_platform::sync::Mutex;
use kvx::{KvCacheMut, KvScales, KvTokens, Slots, Write};

use super::geometry::{Layer, Sequence};
use super::manifest::Manifest;
use super::{Convert, ExaminedChunk, check_model, check_scales, examine, layer_of, of_layer, spread};
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::log;
use crate::payload::Buffer;
use crate::store::{Store, TimedStore};

/// A restore of one sequence, or of its first tokens, all layers of it.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Restore<'a> {
    /// The manifest's name.
    pub name: &'a str,
    /// What the values must belong to: what the saver said.
    pub model: &'a [u8],
    /// Where each token goes, from the first on; at most as many as were saved. Tokens without a slot are left out, and
    /// chunks of which no token has one are not fetched.
    pub slots: Slots<'a>,
    /// What may be converted on the way.
    pub convert: Convert,
    /// Of each layer whose FP8 cache is to be quantised, and `None` of the others; empty: of none.
    pub scales: &'a [Option<KvScales<'a>>],
    /// The most payload bytes to hold at once; 0: 256 MiB. A sequence that needs no more is restored as a whole or not at
    /// all. A larger one is restored in parts of at most so many bytes (one chunk at least), each as a whole or not at all,
    /// after it was found that all chunks are there.
    pub max_bytes: u64,
    /// The most threads that the call may use, the caller's own included; 0 counts as 1.
    pub threads: usize,
    /// How long the backend may take, all calls together; `None`: each call has the operator's deadline.
    pub timeout: Option<Duration>,
}

/// What a restore came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// Tokens that were asked for, all of which are in their slots now.
    pub tokens: u32,
    /// Tokens that were saved under the name.
    pub saved: u32,
    /// Chunks that were fetched.
    pub chunks: u32,
    /// Bytes of these.
    pub bytes: u64,
}

/// A restore that failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct RestoreError {
    /// `Missing`: nothing was saved under the name, or a chunk is not there any more. `Mismatch`: what was saved is of
    /// another model, geometry, layout or dtype. `Corrupt`: manifest or chunk are damaged. `Invalid`: what was passed
    /// contradicts itself. Whatever a get can come to.
    pub error: Error,
    /// How many tokens, from the first on, are in their slots in all layers. The slots of all others are as they were.
    pub tokens: u32,
}

impl From<Error> for RestoreError {
    fn from(error: Error) -> Self {
        RestoreError { error, tokens: 0 }
    }
}

/// A chunk that has been fetched and checked, and its number.
type FetchedChunk = (u32, Arc<Buffer>);

impl<'a> Restore<'a> {
    /// A restore into these slots. What else can be said is as where nothing is: no model, nothing converted, one thread, the
    /// default bound of memory, the operator's deadlines.
    pub fn new(name: &'a str, slots: Slots<'a>) -> Self {
        let convert = Convert::default();
        Restore { name, model: &[], slots, convert, scales: &[], max_bytes: 0, threads: 1, timeout: None }
    }
}

impl Restore<'_> {
    /// Restore the sequence into the layers' caches, which must not share memory.
    ///
    /// # Errors
    /// See [`RestoreError`].
    pub fn run(&self, store: &Store, layers: &mut [KvCacheMut<'_>]) -> Result<Restored, RestoreError> {
        let during = |failed: RestoreError| RestoreError { error: failed.error.during("kvx_restore"), ..failed };
        self.run_within(store.within(self.timeout), layers).map_err(during)
    }

    fn run_within(&self, store: TimedStore<'_>, layers: &mut [KvCacheMut<'_>]) -> Result<Restored, RestoreError> {
        check_apart(layers)?;
        check_model(self.model)?;
        check_scales(self.scales, layers.len())?;
        let missing = || Error::new(ErrorKind::Missing, format!("nothing was saved as {}", log::clean(self.name)));
        let manifest = Manifest::parse(&store.get_manifest(self.name)?.ok_or_else(missing)?)?;
        let sequence = &manifest.sequence;
        let tokens = self.check(&manifest, layers)?;
        let needed: Vec<u32> = self.needed(sequence, tokens);
        let bytes = needed.iter().map(|chunk| sequence.chunk_bytes(*chunk)).sum();
        let most = if self.max_bytes == 0 { limits::KV_RESTORE_BYTES } else { self.max_bytes };
        let parts = parts(sequence, &needed, most);
        if parts.len() > 1 {
            let keys: Vec<_> = needed.iter().filter_map(|chunk| manifest.chunks.get(*chunk as usize)).collect();
            let present = store.has_chunks(&keys.iter().map(|id| id.key).collect::<Vec<_>>())?;
            if let Some((chunk, _)) = needed.iter().zip(present).find(|(_, present)| !present) {
                return Err(gone(*chunk).into());
            }
        }
        for part in parts {
            let failed =
                |error| RestoreError { error, tokens: sequence.tokens_of(part.first().copied().unwrap_or(0)).start };
            let fetched = self.fetch(store, &manifest, part).map_err(failed)?;
            self.scatter(store, sequence, &fetched, bytes, tokens, layers).map_err(failed)?;
            store.keep_buffers(fetched.into_iter().map(|(_, data)| data));
        }
        Ok(Restored { tokens, saved: sequence.tokens, chunks: needed.len() as u32, bytes })
    }

    /// Everything that can be checked without the chunks; how many tokens are asked for.
    fn check(&self, manifest: &Manifest, layers: &[KvCacheMut<'_>]) -> Result<u32, Error> {
        let Manifest { model, sequence, .. } = manifest;
        let mismatch = |what: String| Error::new(ErrorKind::Mismatch, what);
        if model != self.model {
            let [saved, asked] = [model, self.model].map(|model| log::clean(&String::from_utf8_lossy(model)));
            return Err(mismatch(format!("saved from the model {saved:?}, to be restored into {asked:?}")));
        }
        if sequence.layers.len() != layers.len() {
            let (saved, asked) = (sequence.layers.len(), layers.len());
            return Err(mismatch(format!("saved with {saved} layers, to be restored into {asked}")));
        }
        let slots = self.slots.slots;
        let tokens = u32::try_from(slots.len()).ok().filter(|tokens| *tokens <= sequence.tokens);
        let tokens = tokens
            .ok_or_else(|| mismatch(format!("saved with {} tokens, {} are asked for", sequence.tokens, slots.len())))?;
        for (index, (saved, cache)) in sequence.layers.iter().zip(layers).enumerate() {
            let shared = cache.shared();
            let own = layer_of(shared.shape(), shared.dtype(), shared.layouts(), saved.stored)?;
            if let Some(what) = saved.mismatch(&own, self.convert) {
                return Err(mismatch(format!("layer {index}: {what}")));
            }
            let write = self.write(index, 0..slots.len(), 1);
            write.check(cache, saved.stored).map_err(|error| of_layer(index, error))?;
        }
        Ok(tokens)
    }

    fn write(&self, layer: usize, tokens: Range<usize>, threads: usize) -> Write<'_> {
        let Slots { slots, invalid_slot } = self.slots;
        let slots = Slots { slots: slots.slice(tokens), invalid_slot };
        Write { slots, scales: self.scales.get(layer).copied().flatten(), threads }
    }

    /// The chunks of which a token has a slot.
    fn needed(&self, sequence: &Sequence, tokens: u32) -> Vec<u32> {
        let Slots { slots, invalid_slot } = self.slots;
        let has_slot =
            |token: u32| Some(slots.get(token as usize)).is_some_and(|slot| slot >= 0 && slot != invalid_slot);
        (0..sequence.chunks())
            .filter(|chunk| {
                let Range { start, end } = sequence.tokens_of(*chunk);
                (start..end.min(tokens)).any(has_slot)
            })
            .collect()
    }

    /// Fetch chunks and check them, all or none.
    fn fetch(&self, store: TimedStore<'_>, manifest: &Manifest, chunks: &[u32]) -> Result<Vec<FetchedChunk>, Error> {
        let batches = parts(&manifest.sequence, chunks, limits::KV_BATCH_BYTES);
        let fetched = Mutex::new(Vec::with_capacity(chunks.len()));
        spread(store.threads(), self.threads, batches.len(), |batch| {
            let Some(batch) = batches.get(batch) else { return Ok(()) };
            let ids: Vec<_> = batch.iter().filter_map(|chunk| manifest.chunks.get(*chunk as usize)).collect();
            let keys: Vec<_> = ids.iter().map(|id| id.key).collect();
            let lens = batch.iter().filter_map(|chunk| usize::try_from(manifest.sequence.chunk_bytes(*chunk)).ok());
            let mut checked = Vec::with_capacity(batch.len());
            for ((chunk, id), data) in batch.iter().zip(ids).zip(store.get_buffers_of(&keys, lens)?) {
                let data = data.ok_or_else(|| gone(*chunk))?;
                let corrupt = |what: String| Error::new(ErrorKind::Corrupt, format!("chunk {chunk} {what}"));
                let data = match examine(store, &manifest.sequence, *chunk, id, data)? {
                    ExaminedChunk::Sound(data) => data,
                    ExaminedChunk::Removed => {
                        return Err(corrupt(
                            "was damaged, and is removed; the next save of the sequence stores it".into(),
                        ));
                    }
                    ExaminedChunk::Damaged(why) => {
                        let what = "is damaged, and was not removed; the next save by this process replaces it";
                        return Err(corrupt(format!("{what} ({why})")));
                    }
                    ExaminedChunk::Foreign => {
                        return Err(corrupt("is not there: its key is that of a chunk with other content".into()));
                    }
                };
                checked.push((*chunk, data));
            }
            fetched.lock().append(&mut checked);
            Ok(())
        })?;
        let mut fetched = fetched.into_inner();
        fetched.sort_unstable_by_key(|(chunk, _)| *chunk);
        Ok(fetched)
    }

    /// Put chunks into their slots. A thread has a layer, so that where a slot comes twice the later token stays.
    fn scatter(
        &self,
        store: TimedStore<'_>,
        sequence: &Sequence,
        fetched: &[FetchedChunk],
        all: u64,
        tokens: u32,
        layers: &mut [KvCacheMut<'_>],
    ) -> Result<(), Error> {
        let per_layer = self.threads / layers.len().max(1);
        let starts = sequence.layers.iter().scan(0, |end: &mut usize, layer| {
            // In units of what one token has of K, or of V.
            let start = *end;
            *end += layer.side_bytes(1);
            Some(start)
        });
        let jobs = layers.len();
        let queue = Mutex::new(layers.iter_mut().zip(&sequence.layers).zip(starts).enumerate());
        spread(store.threads(), self.threads, jobs, |_| {
            let next = queue.lock().next();
            let Some((index, ((cache, layer), start))) = next else { return Ok(()) };
            for (chunk, data) in fetched {
                let held = sequence.tokens_of(*chunk);
                let wanted = held.start as usize..held.end.min(tokens) as usize;
                let tokens = sides(data, layer, 2 * start * held.len(), held.len(), wanted.len());
                let tokens = tokens.ok_or_else(|| Error::new(ErrorKind::Corrupt, "a chunk is cut short"))?;
                let write = self.write(index, wanted, per_layer);
                write.run_of(all, cache, &tokens).map_err(|error| of_layer(index, error))?;
            }
            Ok(())
        })
    }
}

/// A restore writes into all layers: none may lie in the memory of another one.
fn check_apart(layers: &[KvCacheMut<'_>]) -> Result<(), Error> {
    for (index, layer) in layers.iter().enumerate() {
        let others = layers.get(index + 1..).unwrap_or_default();
        if let Some(at) = others.iter().position(|other| layer.shares_memory(other)) {
            let other = index + 1 + at;
            return Err(Error::invalid(format!("layers {index} and {other} share memory: a restore writes both")));
        }
    }
    Ok(())
}

/// The first `wanted` of the tokens that a chunk holds of a layer, whose part of the chunk begins at `start`.
fn sides<'a>(data: &'a [u8], layer: &Layer, start: usize, held: usize, wanted: usize) -> Option<KvTokens<'a>> {
    let [held, wanted] = [held, wanted].map(|tokens| layer.side_bytes(tokens));
    let side = |start: usize| data.get(start..)?.get(..wanted);
    Some(KvTokens { key: side(start)?, value: side(start + held)?, dtype: layer.stored })
}

/// Chunks in runs of at most so many bytes, one chunk at least.
pub(super) fn parts<'a>(sequence: &Sequence, chunks: &'a [u32], most: u64) -> Vec<&'a [u32]> {
    let mut bytes = 0;
    chunks
        .chunk_by(|chunk, next| {
            bytes += sequence.chunk_bytes(*chunk);
            let fits = bytes + sequence.chunk_bytes(*next) <= most;
            if !fits {
                bytes = 0;
            }
            fits
        })
        .collect()
}

fn gone(chunk: u32) -> Error {
    Error::new(ErrorKind::Missing, format!("chunk {chunk} is not there any more"))
}
