//! Out of the pages, into the store.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kv_platform::sync::Mutex;
use kvx::{BlockTable, DType, Gather, IndexSlice, KvCache, KvScales, KvTokensUninit};
use xxhash_rust::xxh3::Xxh3;

use super::geometry::Sequence;
use super::manifest::{ChunkId, Manifest};
use super::{ExaminedChunk, check_model, check_scales, chunk_id, examine, layer_of, of_layer, spread};
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::{Buffer, Filling};
use crate::store::{Put, Store, TimedStore};

/// A save of one sequence, all layers of it.
///
/// ```no_run
/// # use kv_store_core as kv_store_wasm;
/// # fn example(store: &kv_store_wasm::Store) -> Result<(), Box<dyn std::error::Error>> {
/// use kv_store_wasm::paged::Save;
/// use kvx::{CacheShape, DType, KvCache, Layout};
/// let shape = CacheShape { num_blocks: 64, block_size: 16, num_kv_heads: 8, head_dim: 128 };
/// let pool = vec![0; 64 * 16 * 8 * 128 * 2];
/// let layer = KvCache::new(shape, DType::F16, [Layout::Nhd; 2], &pool, &pool)?;
/// let layers = [layer; 2];
/// let mut save = Save::new("conversation-7", &layers, [5, 9, 2][..].into(), 40);
/// save.model = b"some-model/revision/rank 0 of 2";
/// let saved = save.run(store)?;
/// assert_eq!(saved.chunks, 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Save<'a> {
    /// The manifest's name.
    pub name: &'a str,
    /// What the values belong to: the model and its revision, the rank where it is split, whatever makes values of the
    /// same shape others. A restore that says otherwise is refused. At most 256 bytes.
    pub model: &'a [u8],
    /// The layers' caches, of one block size.
    pub layers: &'a [KvCache<'a>],
    /// The sequence's blocks in order, the same in every layer: token `t` is token `t % block_size` of block
    /// `blocks[t / block_size]`. What is more than `tokens` need is not looked at.
    pub blocks: IndexSlice<'a>,
    /// Tokens of the sequence.
    pub tokens: u32,
    /// Tokens of a chunk, a multiple of the block size; 0: the multiple that is 256 or the next above. Sequences share
    /// the chunks of a common prefix if they were saved with the same number.
    pub chunk_tokens: u32,
    /// Store values of FP8 caches as this type, by their scales. `None`: as the cache has them.
    pub stored: Option<DType>,
    /// Of each layer that `stored` has dequantised, and `None` of the others; empty: of none.
    pub scales: &'a [Option<KvScales<'a>>],
    /// The most threads that the call may use, the caller's own included; 0 counts as 1.
    pub threads: usize,
    /// Read the chunks that the store has already, and store again those that are damaged. Otherwise what is there is taken to
    /// be sound.
    pub verify: bool,
    /// How long the backend may take, all calls together; `None`: each call has the operator's deadline.
    pub timeout: Option<Duration>,
}

/// What a save came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Saved {
    /// Chunks of the sequence.
    pub chunks: u32,
    /// How many of them the store had already, as far as it is known.
    pub existed: u32,
    /// Bytes of all chunks together.
    pub bytes: u64,
}

impl<'a> Save<'a> {
    /// A save of the first `tokens` of a sequence that lies in these blocks. What else can be said is as where nothing is: no
    /// model, chunks of the default length, values as the cache has them, one thread, the operator's deadlines.
    pub fn new(name: &'a str, layers: &'a [KvCache<'a>], blocks: IndexSlice<'a>, tokens: u32) -> Self {
        Save {
            name,
            model: &[],
            layers,
            blocks,
            tokens,
            chunk_tokens: 0,
            stored: None,
            scales: &[],
            threads: 1,
            verify: false,
            timeout: None,
        }
    }
}

impl Save<'_> {
    /// Save the sequence. When it returns, the chunks and the manifest are as durable as after [`Store::put_manifest`]. It is a
    /// save of its own: it does not publish what was put on this handle before, nor fail for it. Nothing is published if it fails.
    ///
    /// # Errors
    /// `Invalid`: what was passed contradicts itself, or a chunk is larger than the store takes. `Corrupt`, of a save that
    /// verifies: another chunk lies under a key. Whatever a put can come to.
    pub fn run(&self, store: &Store) -> Result<Saved, Error> {
        self.run_within(store.within(self.timeout)).map_err(|error| error.during("kvx_save"))
    }

    fn run_within(&self, store: TimedStore<'_>) -> Result<Saved, Error> {
        let (sequence, block_size) = self.plan()?;
        let largest = sequence.chunk_bytes(0).max(Manifest::len(&sequence, self.model) as u64);
        store.check(self.name, usize::try_from(largest).unwrap_or(usize::MAX))?;

        let chunks = sequence.chunks();
        let ids: Vec<OnceLock<ChunkId>> = (0..chunks).map(|_| OnceLock::new()).collect();
        let existed = AtomicU32::new(0);
        let spare = Mutex::new(Vec::new());
        let take_spare = || spare.lock().pop();
        let lend = store.is_write_through() && self.lends(&sequence, block_size);
        let save = store.begin_save();
        spread(store.threads(), self.threads, chunks as usize, |chunk| {
            let pieces = if lend { self.pieces(&sequence, block_size, chunk as u32) } else { None };
            let (id, put) = if let Some(pieces) = pieces {
                let mut hash = Xxh3::new();
                pieces.iter().for_each(|piece| hash.update(piece));
                let id = chunk_id(&hash);
                self.verify(store, &sequence, chunk as u32, &id)?;
                (id, save.put_pieces(&id.key, &pieces)?)
            } else {
                let (id, data) = self.gather(&sequence, block_size, chunk as u32, take_spare())?;
                self.verify(store, &sequence, chunk as u32, &id)?;
                let put = save.put_buffer(&id.key, &data)?;
                // Where the backend has taken the bytes and kept no handle, the memory serves the next chunk, still warm.
                if let Ok(buffer) = Arc::try_unwrap(data) {
                    spare.lock().push(buffer);
                }
                (id, put)
            };
            if put == Put::Existed {
                existed.fetch_add(1, Relaxed);
            }
            if let Some(place) = ids.get(chunk) {
                let _ = place.set(id);
            }
            Ok(())
        })?;

        let bytes = (0..chunks).map(|chunk| sequence.chunk_bytes(chunk)).sum();
        let chunks_of = ids.into_iter().filter_map(OnceLock::into_inner).collect();
        let manifest = Manifest { model: self.model.to_vec(), block_size, sequence, chunks: chunks_of };
        save.publish(self.name, &manifest.to_bytes())?;
        Ok(Saved { chunks, existed: existed.into_inner(), bytes })
    }

    /// Look at a chunk that the store has already, where that is asked for. If it is damaged, the put that follows stores it
    /// again.
    fn verify(&self, store: TimedStore<'_>, sequence: &Sequence, chunk: u32, id: &ChunkId) -> Result<(), Error> {
        if !self.verify {
            return Ok(());
        }
        let Some(data) = store.get_buffers(&[id.key])?.pop().flatten() else { return Ok(()) };
        match examine(store, sequence, chunk, id, data)? {
            ExaminedChunk::Sound(_) | ExaminedChunk::Removed | ExaminedChunk::Damaged(_) => Ok(()),
            ExaminedChunk::Foreign => {
                let what = format!("chunk {chunk} cannot be stored: its key is that of a chunk with other content");
                Err(Error::new(ErrorKind::Corrupt, what))
            }
        }
    }

    /// What will be saved, and the block size; everything is checked that can be before a byte moves.
    fn plan(&self) -> Result<(Sequence, u32), Error> {
        check_model(self.model)?;
        check_scales(self.scales, self.layers.len())?;
        let first = self.layers.first().ok_or_else(|| Error::invalid("there are no layers"))?;
        let block_size = first.shape().block_size;
        if self.layers.iter().any(|layer| layer.shape().block_size != block_size) {
            return Err(Error::invalid(
                "the layers differ in block_size, so one list of blocks can not serve them all",
            ));
        }
        let chunk_tokens = match self.chunk_tokens {
            0 => limits::DEFAULT_KV_CHUNK_TOKENS.checked_next_multiple_of(block_size).unwrap_or(block_size),
            set => set,
        };
        if !chunk_tokens.is_multiple_of(block_size) {
            return Err(Error::invalid(format!(
                "chunk_tokens is {chunk_tokens}, no multiple of block_size {block_size}"
            )));
        }
        let layers = self
            .layers
            .iter()
            .map(|layer| layer_of(layer.shape(), layer.dtype(), layer.layouts(), self.stored.unwrap_or(layer.dtype())));
        let sequence = Sequence::new(layers.collect::<Result<_, _>>()?, self.tokens, chunk_tokens)?;
        let needed = self.tokens.div_ceil(block_size) as usize;
        if self.blocks.len() < needed {
            let have = self.blocks.len();
            return Err(Error::invalid(format!("{} tokens need {needed} blocks, there are {have}", self.tokens)));
        }
        let fewest = self.layers.iter().map(|layer| layer.shape().num_blocks).min().unwrap_or(0);
        for i in 0..needed {
            let block = self.blocks.get(i);
            if block < 0 || block >= i64::from(fewest) {
                return Err(Error::invalid(format!("block {i} of the sequence is {block}; the caches have {fewest}")));
            }
        }
        // A gather of nothing checks types and scales.
        for (index, cache) in self.layers.iter().enumerate() {
            let out = &mut KvTokensUninit { key: &mut [], value: &mut [], dtype: self.stored.unwrap_or(cache.dtype()) };
            self.gather_layer(index, 0..0, 0).run_uninit(cache, out).map_err(|error| of_layer(index, error))?;
        }
        Ok((sequence, block_size))
    }

    fn gather_layer(&self, layer: usize, blocks: std::ops::Range<usize>, tokens: u32) -> Gather<'_> {
        Gather {
            table: BlockTable::Packed { max_blocks_per_seq: blocks.len() as u32, indices: self.blocks.slice(blocks) },
            seq_lens: LENGTH[..].into(),
            max_seq_len: tokens,
            scales: self.scales.get(layer).copied().flatten(),
            // Threads that have no chunk of their own.
            threads: self.threads / self.tokens.div_ceil(tokens.max(1)).max(1) as usize,
        }
    }

    /// Whether chunks may be lent as they lie in the pages: stored as they are, and in pieces that are worth a write each.
    fn lends(&self, sequence: &Sequence, block_size: u32) -> bool {
        let mut layers = self.layers.iter().zip(&sequence.layers);
        layers.all(|(cache, layer)| {
            layer.stored == cache.dtype() && layer.side_bytes(block_size as usize) >= LEAST_PIECE_BYTES
        })
    }

    /// A chunk as it lies in the pages, in order; none where a token's bytes are not those of the chunk.
    fn pieces(&self, sequence: &Sequence, block_size: u32, chunk: u32) -> Option<Vec<&[u8]>> {
        let tokens = sequence.tokens_of(chunk);
        let blocks = (tokens.start / block_size) as usize..tokens.end.div_ceil(block_size) as usize;
        let mut pieces = Vec::with_capacity(2 * blocks.len() * self.layers.len());
        for cache in self.layers {
            for side in [0, 1] {
                for index in blocks.clone() {
                    let block = u32::try_from(self.blocks.get(index)).ok()?;
                    let count = block_size.min(tokens.end - index as u32 * block_size);
                    pieces.push(*cache.dense_tokens(block, count)?.get(side)?);
                }
            }
        }
        Some(pieces)
    }

    /// A chunk in memory of its own, hashed while it is still in the caches.
    fn gather(
        &self,
        sequence: &Sequence,
        block_size: u32,
        chunk: u32,
        spare: Option<Buffer>,
    ) -> Result<(ChunkId, Arc<Buffer>), Error> {
        let tokens = sequence.tokens_of(chunk);
        let blocks = (tokens.start / block_size) as usize..tokens.end.div_ceil(block_size) as usize;
        let len = sequence.chunk_bytes(chunk);
        let mut filling = match spare {
            Some(buffer) if buffer.len() as u64 == len => Filling::again(buffer),
            _ => Filling::aligned(len)?,
        };
        let mut hash = Xxh3::new();
        for (index, (cache, layer)) in self.layers.iter().zip(&sequence.layers).enumerate() {
            let side = layer.side_bytes(tokens.len());
            let rest = filling.rest();
            let (key, rest) = rest.split_at_mut_checked(side).ok_or_else(too_short)?;
            let value = rest.get_mut(..side).ok_or_else(too_short)?;
            let out = &mut KvTokensUninit { key, value, dtype: layer.stored };
            let gather = self.gather_layer(index, blocks.clone(), tokens.len() as u32);
            gather.run_uninit(cache, out).map_err(|error| of_layer(index, error))?;
            let done = filling.filled().len();
            // SAFETY: the table has a block for every token, `plan` found none negative, and the length is that of the
            // output; so both sides have been written as a whole.
            unsafe { filling.advance(2 * side) };
            hash.update(filling.filled().get(done..).unwrap_or_default());
        }
        Ok((chunk_id(&hash), Arc::new(filling.finish()?)))
    }
}

/// Of pages in smaller pieces a gather makes one: a page of the kernel.
const LEAST_PIECE_BYTES: usize = 4096;

/// More than any chunk has; `max_seq_len` is what bounds a gather.
const LENGTH: [i64; 1] = [i64::MAX];

fn too_short() -> Error {
    Error::invalid("a chunk is longer than its parts")
}
