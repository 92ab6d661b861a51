//! Chunks that wait for the next manifest, for backends that are not write-through. One copy is made here of what
//! the consumer only lends.
//!
//! A chunk leaves the buffer when the backend has it, or when it failed for good: what can never be stored must not
//! fail every later manifest. What failed for a passing reason stays for the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use super::Put;
use super::fresh::Fresh;
use super::hash::ChunkHash;
use super::shared::{Bytes, Shared};
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::Buffer;

#[derive(Default)]
pub(super) struct WriteBuffer {
    waiting: Mutex<Waiting>,
    /// Held during a flush, so that a manifest waits for a flush that another thread began.
    flushing: Mutex<()>,
}

#[derive(Default)]
struct Waiting {
    chunks: HashMap<ChunkHash, Chunk>,
    bytes: usize,
    /// A chunk that was accepted failed for good in a flush before the manifest: the next manifest must fail.
    lost: Option<Error>,
}

struct Chunk {
    data: Arc<Buffer>,
    /// How often it was put: what was put again during a flush is not dropped for that flush's failure, of which its
    /// caller would never hear.
    puts: u64,
}

/// Memory that a waiting chunk takes, beside its bytes: a small one takes mostly that.
const ENTRY_BYTES: usize = 256;

impl Chunk {
    fn cost(&self) -> usize {
        self.data.len() + ENTRY_BYTES
    }
}

impl WriteBuffer {
    /// Accept a chunk. Where it does not fit, what waits is flushed first.
    pub(super) fn put(&self, shared: &Shared, fresh: &Fresh, hash: ChunkHash, data: Bytes<'_>) -> Result<Put, Error> {
        if let Some(chunk) = self.lock().chunks.get_mut(&hash) {
            chunk.puts += 1;
            return Ok(Put::Existed);
        }
        fresh.check_room()?;
        let cost = data.len() + ENTRY_BYTES;
        if cost > limits::WRITE_BUFFER_BYTES {
            let put = shared.put_one(&hash, data)?;
            fresh.add(hash, data.len());
            return Ok(put);
        }
        if !self.reserve(shared, cost) {
            self.write_out(shared, fresh)?;
            if !self.reserve(shared, cost) {
                let message =
                    "the write buffers of this process are full; publish a manifest on another handle, or close it";
                return Err(Error::new(ErrorKind::Exhausted, message));
            }
        }
        let known = shared.known.holds(&hash);
        let data = data.keep().inspect_err(|_| self.release(shared, cost))?;
        let former = {
            let mut waiting = self.lock();
            let puts = waiting.chunks.get(&hash).map_or(0, |chunk| chunk.puts) + 1;
            waiting.chunks.insert(hash, Chunk { data, puts })
        };
        if let Some(former) = former {
            // Another thread put the same chunk in the meantime.
            self.release(shared, former.cost());
        }
        Ok(if known { Put::Existed } else { Put::New })
    }

    pub(super) fn holds(&self, hash: &ChunkHash) -> bool {
        self.lock().chunks.contains_key(hash)
    }

    pub(super) fn get(&self, hash: &ChunkHash) -> Option<Arc<Buffer>> {
        self.lock().chunks.get(hash).map(|chunk| chunk.data.clone())
    }

    /// Hand everything that waits to the backend, for a manifest: an error if a chunk that was accepted since the last one
    /// is not stored.
    pub(super) fn flush(&self, shared: &Shared, fresh: &Fresh) -> Result<(), Error> {
        if shared.features.write_through {
            return Ok(());
        }
        self.write_out(shared, fresh)?;
        self.lock().lost.take().map_or(Ok(()), Err)
    }

    /// Hand everything that waits to the backend. What failed for good is dropped and remembered as lost.
    fn write_out(&self, shared: &Shared, fresh: &Fresh) -> Result<(), Error> {
        let _alone = self.flushing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let waiting = self.lock();
        let chunks: Vec<_> = waiting.chunks.iter().map(|(hash, chunk)| (*hash, chunk.data.clone())).collect();
        let puts: HashMap<_, _> = waiting.chunks.iter().map(|(hash, chunk)| (*hash, chunk.puts)).collect();
        drop(waiting);
        if chunks.is_empty() {
            return Ok(());
        }
        let mut passing = None;
        shared.put_missing(&chunks, |hash, result| match result {
            Ok(_) => {
                fresh.add(*hash, self.get(hash).map_or(0, |data| data.len()));
                self.remove(shared, hash);
            }
            Err(error) if error.is_permanent() => {
                let mut waiting = self.lock();
                let put_again = waiting.chunks.get(hash).is_some_and(|chunk| puts.get(hash) != Some(&chunk.puts));
                waiting.lost = Some(error);
                drop(waiting);
                if !put_again {
                    self.remove(shared, hash);
                }
            }
            Err(error) => passing = Some(error),
        })?;
        passing.map_or(Ok(()), Err)
    }

    /// Forget what waits; answers how many chunks that were.
    pub(super) fn discard(&self, shared: &Shared) -> usize {
        let waiting = std::mem::take(&mut *self.lock());
        shared.release_buffer(waiting.bytes);
        waiting.chunks.len()
    }

    fn remove(&self, shared: &Shared, hash: &ChunkHash) {
        let removed = self.lock().chunks.remove(hash);
        if let Some(chunk) = removed {
            self.release(shared, chunk.cost());
        }
    }

    /// Take room in this handle's buffer and in the process's.
    fn reserve(&self, shared: &Shared, bytes: usize) -> bool {
        let mut waiting = self.lock();
        if waiting.bytes + bytes > limits::WRITE_BUFFER_BYTES || !shared.reserve_buffer(bytes) {
            return false;
        }
        waiting.bytes += bytes;
        true
    }

    fn release(&self, shared: &Shared, bytes: usize) {
        self.lock().bytes -= bytes;
        shared.release_buffer(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
