//! Chunks that wait for the next manifest, for backends that are not write-through. One copy is made here, because the
//! consumer's memory is only borrowed.
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
    chunks: HashMap<ChunkHash, Arc<Buffer>>,
    bytes: usize,
}

impl WriteBuffer {
    /// Accept a chunk. Where it does not fit, what waits is flushed first.
    pub(super) fn put(&self, shared: &Shared, fresh: &Fresh, hash: ChunkHash, data: &[u8]) -> Result<Put, Error> {
        if self.holds(&hash) {
            return Ok(Put::Existed);
        }
        if data.len() > limits::WRITE_BUFFER_BYTES {
            fresh.check_room()?;
            let put = shared.put_one(&hash, Bytes::Borrowed(data))?;
            fresh.add(hash);
            return Ok(put);
        }
        if !self.reserve(shared, data.len()) {
            self.flush(shared, fresh)?;
            if !self.reserve(shared, data.len()) {
                let message =
                    "the write buffers of this process are full; publish a manifest on another handle, or close it";
                return Err(Error::new(ErrorKind::Exhausted, message));
            }
        }
        let known = shared.known.holds(&hash);
        let inserted = Buffer::concat(&[data]).map(|copy| self.lock().chunks.insert(hash, Arc::new(copy)));
        match inserted {
            Ok(None) => {}
            // Another thread put the same chunk in the meantime.
            Ok(Some(former)) => self.release(shared, former.len()),
            Err(error) => {
                self.release(shared, data.len());
                return Err(error);
            }
        }
        Ok(if known { Put::Existed } else { Put::New })
    }

    pub(super) fn holds(&self, hash: &ChunkHash) -> bool {
        self.lock().chunks.contains_key(hash)
    }

    pub(super) fn get(&self, hash: &ChunkHash) -> Option<Arc<Buffer>> {
        self.lock().chunks.get(hash).cloned()
    }

    /// Hand everything that waits to the backend.
    pub(super) fn flush(&self, shared: &Shared, fresh: &Fresh) -> Result<(), Error> {
        if shared.features.write_through {
            return Ok(());
        }
        let _alone = self.flushing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let waiting: Vec<(ChunkHash, Arc<Buffer>)> =
            self.lock().chunks.iter().map(|(hash, data)| (*hash, data.clone())).collect();
        if waiting.is_empty() {
            return Ok(());
        }
        fresh.check_room()?;
        let mut first_error = None;
        shared.put_missing(&waiting, |hash, result| {
            match result {
                Ok(_) => fresh.add(*hash),
                Err(error) => {
                    let permanent = error.is_permanent();
                    first_error.get_or_insert(error);
                    if !permanent {
                        return;
                    }
                }
            }
            self.remove(shared, hash);
        })?;
        first_error.map_or(Ok(()), Err)
    }

    /// Forget what waits; answers how many chunks that were.
    pub(super) fn discard(&self, shared: &Shared) -> usize {
        let waiting = std::mem::take(&mut *self.lock());
        shared.release_buffer(waiting.bytes);
        waiting.chunks.len()
    }

    fn remove(&self, shared: &Shared, hash: &ChunkHash) {
        let removed = self.lock().chunks.remove(hash);
        if let Some(data) = removed {
            self.release(shared, data.len());
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
