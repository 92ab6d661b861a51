//! Sequences straight between an engine's paged KV cache and a store.
//!
//! [`Save`] gathers a sequence's tokens out of the pages into payload memory, hashes them on the way, puts them as chunks,
//! and publishes a manifest. [`Restore`] fetches and checks the chunks, and scatters them into pages straight from the
//! memory that they were received in. There is no copy between: each byte is moved once by the kernels of `kvx`, or by a
//! save not by them but by the backend, where one that is written through can be lent the pages as they lie.
//!
//! Invariant: no page is written before all that is about to be written has been fetched and checked.
//!
//! Chunks are told apart by 128 bits of XXH3 of their content: the lower half is the key in the store, so that any reader
//! that knows content keys can check them, and the manifest has the upper half, so that two chunks that share a key by
//! accident are told apart. That is enough against accident, not against somebody who can write to the store:
//! `docs/kvx-manifest.md` has the numbers, and what to do about it.

mod geometry;
mod manifest;
mod restore;
mod save;

use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::Buffer;
use crate::store::{Damage, TimedStore};
use crate::threads::Lent;
use manifest::{ChunkId, Manifest};

pub use geometry::{Layer, Order};
pub use restore::{Restore, RestoreError, Restored};
pub use save::{Save, Saved};

/// What a restore may convert. Where nothing is asked for, what differs is a mismatch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Convert {
    /// Into a cache of another layout than the one that was saved from. It costs nothing: chunks have no layout.
    pub layout: bool,
    /// Into an FP8 cache what was saved as F16, BF16 or F32, with the cache's scales.
    pub dtype: bool,
}

impl Convert {
    /// Convert the layout, or the dtype, or both.
    pub fn new(layout: bool, dtype: bool) -> Self {
        Convert { layout, dtype }
    }
}

/// What is in the store of a sequence's chunks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// Chunks that are there as they were saved.
    pub sound: usize,
    /// The numbers of those that are not there.
    pub missing: Vec<usize>,
    /// The numbers of those that were damaged, and why each was not removed, if it was not. What was removed is stored
    /// again by the next save of it.
    pub damaged: Vec<(usize, Option<String>)>,
    /// The numbers of those under whose key another chunk is, sound in itself.
    pub foreign: Vec<usize>,
}

/// What was saved under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// Tokens of the sequence.
    pub tokens: u32,
    /// Tokens of each chunk but the last.
    pub chunk_tokens: u32,
    /// Tokens of a block where it was saved.
    pub block_size: u32,
    /// Bytes of all chunks together.
    pub bytes: u64,
    /// What the layers are; at least one.
    pub layers: Vec<Layer>,
    /// The keys of the chunks in the store, in the order of their tokens.
    pub chunk_keys: Vec<[u8; 8]>,
    /// What else is known of their content: the upper halves of the XXH3-128.
    pub chunk_checks: Vec<[u8; 8]>,
    /// What the values belong to, as the saver said.
    pub model: Vec<u8>,
}

impl Description {
    /// How many of the chunks the store has. Their content is not looked at.
    pub fn chunks_present(&self, store: &crate::store::Store) -> Result<usize, Error> {
        let present = store.within(None).has_chunks(&self.chunk_keys)?;
        Ok(present.into_iter().filter(|present| *present).count())
    }

    /// Reads all chunks, a few MiB at a time, and compares them with what was saved. A damaged chunk is treated as by a
    /// restore.
    pub fn check_chunks(&self, store: &crate::store::Store) -> Result<Checked, Error> {
        let store = store.within(None);
        let Description { layers, tokens, chunk_tokens, .. } = self;
        let sequence = geometry::Sequence::new(layers.clone(), *tokens, *chunk_tokens)?;
        let ids = self.chunk_keys.iter().zip(&self.chunk_checks);
        let ids: Vec<ChunkId> = ids.map(|(key, check)| ChunkId { key: *key, check: *check }).collect();
        let mut checked = Checked::default();
        let numbers: Vec<u32> = (0..ids.len() as u32).collect();
        for batch in restore::parts(&sequence, &numbers, limits::KV_BATCH_BYTES) {
            let ids: Vec<(u32, &ChunkId)> =
                batch.iter().filter_map(|chunk| Some((*chunk, ids.get(*chunk as usize)?))).collect();
            let keys: Vec<[u8; 8]> = ids.iter().map(|(_, id)| id.key).collect();
            for ((chunk, id), data) in ids.into_iter().zip(store.get_buffers(&keys)?) {
                let number = chunk as usize;
                match data.map(|data| examine(store, &sequence, chunk, id, data)).transpose()? {
                    None => checked.missing.push(number),
                    Some(ExaminedChunk::Sound(_)) => checked.sound += 1,
                    Some(ExaminedChunk::Removed) => checked.damaged.push((number, None)),
                    Some(ExaminedChunk::Damaged(why)) => checked.damaged.push((number, Some(why.to_string()))),
                    Some(ExaminedChunk::Foreign) => checked.foreign.push(number),
                }
            }
        }
        Ok(checked)
    }
}

/// What was saved under a name; none if there is nothing.
///
/// `Corrupt`: the manifest is damaged, or of another kind. `Version`: it is of a later version.
pub fn describe(store: &crate::store::Store, name: &str) -> Result<Option<Description>, Error> {
    let Some(bytes) = store.get_manifest(name)? else { return Ok(None) };
    let Manifest { model, block_size, sequence, chunks } = Manifest::parse(&bytes)?;
    Ok(Some(Description {
        tokens: sequence.tokens,
        chunk_tokens: sequence.chunk_tokens,
        block_size,
        bytes: (0..sequence.chunks()).map(|chunk| sequence.chunk_bytes(chunk)).sum(),
        layers: sequence.layers,
        chunk_keys: chunks.iter().map(|chunk| chunk.key).collect(),
        chunk_checks: chunks.iter().map(|chunk| chunk.check).collect(),
        model,
    }))
}

fn check_model(model: &[u8]) -> Result<(), Error> {
    if model.len() > limits::MAX_KV_MODEL_BYTES {
        let most = limits::MAX_KV_MODEL_BYTES;
        return Err(Error::invalid(format!("the model's name has {} bytes, at most {most} are kept", model.len())));
    }
    Ok(())
}

/// Scales are for all layers or for none.
fn check_scales(scales: &[Option<kvx::KvScales<'_>>], layers: usize) -> Result<(), Error> {
    if !scales.is_empty() && scales.len() != layers {
        return Err(Error::invalid(format!("there are scales for {} of {layers} layers", scales.len())));
    }
    Ok(())
}

/// A layer of a cache, with the type of its values in the store.
fn layer_of(
    shape: kvx::CacheShape,
    cache: kvx::DType,
    [k, v]: [kvx::Layout; 2],
    stored: kvx::DType,
) -> Result<Layer, Error> {
    let orders = [Order::new(k)?, Order::new(v)?];
    Ok(Layer { heads: shape.num_kv_heads, head_dim: shape.head_dim, stored, cache, orders })
}

/// What bytes that were fetched under a chunk's key are.
enum ExaminedChunk {
    /// The chunk, as it was saved.
    Sound(Arc<Buffer>),
    /// They were damaged, and the chunk is removed: the next save of it, by whichever process, stores it again.
    Removed,
    /// They are damaged, and the chunk is still there: the next save by this process replaces it. Why.
    Damaged(Error),
    /// What matches its key is sound, whatever a manifest expects: somebody else's chunk, and not to be removed.
    Foreign,
}

fn examine(
    store: TimedStore<'_>,
    sequence: &geometry::Sequence,
    chunk: u32,
    id: &ChunkId,
    data: Arc<Buffer>,
) -> Result<ExaminedChunk, Error> {
    let (mut found, mut data) = (id_of(&data), data);
    if found.key != id.key {
        data = match store.found_damaged(&id.key, &data, &|again| id_of(again).key == id.key)? {
            Damage::Passing(again) => again,
            Damage::Removed => return Ok(ExaminedChunk::Removed),
            Damage::Stays(why) => return Ok(ExaminedChunk::Damaged(why)),
        };
        found = id_of(&data);
    }
    let same = found == *id && data.len() as u64 == sequence.chunk_bytes(chunk);
    Ok(if same { ExaminedChunk::Sound(data) } else { ExaminedChunk::Foreign })
}

fn id_of(bytes: &[u8]) -> ChunkId {
    let mut hash = Xxh3::new();
    hash.update(bytes);
    chunk_id(&hash)
}

fn chunk_id(hash: &Xxh3) -> ChunkId {
    // Of long content the lower half of the 128 bits is the 64-bit hash; of up to 240 bytes it is another one.
    ChunkId { key: hash.digest().to_le_bytes(), check: ((hash.digest128() >> 64) as u64).to_le_bytes() }
}

fn of_layer(layer: usize, error: kvx::Error) -> Error {
    let kind = match error.kind() {
        kvx::ErrorKind::InvalidArgument | kvx::ErrorKind::OutOfRange => ErrorKind::Invalid,
        kvx::ErrorKind::Unsupported => ErrorKind::Unsupported,
        _ => ErrorKind::Other,
    };
    Error::new(kind, format!("layer {layer}: {error}"))
}

/// Run `work(0)` to `work(jobs - 1)` on this thread and on helpers, on `threads` together at most. The first failure ends it: jobs
/// that have not begun are left out.
fn spread(
    pool: Lent<'_>,
    threads: usize,
    jobs: usize,
    work: impl Fn(usize) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let failure = OnceLock::new();
    pool.side_by_side(threads, jobs, &|job| {
        if failure.get().is_none()
            && let Err(error) = work(job)
        {
            let _ = failure.set(error);
        }
    });
    failure.into_inner().map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a chunk is found by and told apart by, in manifests that other processes wrote. Computed with Python's xxhash.
    #[test]
    fn golden_chunk_ids() {
        let long: Vec<u8> = (0..1000).map(|n| (n * 7) as u8).collect();
        for (content, key, check) in
            [(&b"short"[..], "0a0dd26074d52ab4", "921725952605de5a"), (&long, "30c826442630ad10", "6dd7dada9c22eeab")]
        {
            let id = id_of(content);
            assert_eq!(
                (hex::encode(id.key).as_str(), hex::encode(id.check).as_str()),
                (key, check),
                "{} bytes",
                content.len()
            );
        }
    }
}

#[cfg(test)]
mod stored_tests;
