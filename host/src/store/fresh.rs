//! The chunks put on a handle since its last manifest, which the next manifest hands to a backend that is durable, or asks.
//!
//! A chunk leaves the list only when a manifest that named it has succeeded. So two manifests at once both name what was
//! put before either, and after a failure the next manifest names it again.

use std::sync::{Mutex, MutexGuard};

use super::hash::{ChunkHash, ChunkMap};
use crate::error::{Error, ErrorKind};
use crate::limits;

pub(super) struct Fresh {
    /// A backend that is not durable, and does not ask, has no use for it.
    wanted: bool,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    chunks: ChunkMap<Chunk>,
    puts: u64,
    /// How many instances the store had lost when the first chunk since the last manifest was put. Where an instance
    /// holds the data, those chunks are gone if more are lost now.
    lost_before: Option<u64>,
    /// How often that was noted.
    notes: u64,
}

/// A moment in the list's life.
#[derive(Clone, Copy)]
pub(super) struct Mark {
    puts: u64,
    notes: u64,
}

struct Chunk {
    /// When it was put last, in puts.
    put: u64,
    bytes: u64,
}

/// What making a chunk durable costs at least, in bytes written: for the time that a manifest is given.
const LEAST_BYTES: u64 = 64 << 10;

pub(super) fn too_many() -> Error {
    let message = format!("{} chunks and no manifest: publish one first", limits::MAX_FRESH_CHUNKS);
    Error::new(ErrorKind::Exhausted, message)
}

impl Fresh {
    pub(super) fn new(wanted: bool) -> Self {
        Fresh { wanted, list: Mutex::default() }
    }

    /// Refuse a put before it is made, where the list is full.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        if self.wanted && self.lock().chunks.len() >= limits::MAX_FRESH_CHUNKS {
            return Err(too_many());
        }
        Ok(())
    }

    pub(super) fn add(&self, hash: ChunkHash, bytes: usize) {
        if self.wanted {
            let mut list = self.lock();
            list.puts += 1;
            let put = list.puts;
            list.chunks.insert(hash, Chunk { put, bytes: bytes as u64 });
        }
    }

    /// The chunks so far in the order of their puts, a mark for [`Fresh::settle`], and the bytes that they come to.
    pub(super) fn snapshot(&self) -> (Vec<ChunkHash>, Mark, u64) {
        let list = self.lock();
        let bytes = list.chunks.values().map(|chunk| chunk.bytes.max(LEAST_BYTES)).sum();
        let mut chunks: Vec<_> = list.chunks.iter().map(|(hash, chunk)| (chunk.put, *hash)).collect();
        chunks.sort_unstable_by_key(|(put, _)| *put);
        (chunks.into_iter().map(|(_, hash)| hash).collect(), Mark { puts: list.puts, notes: list.notes }, bytes)
    }

    /// What was in the list at the mark, and was not put again since, is durable.
    pub(super) fn settle(&self, mark: Mark) {
        let mut list = self.lock();
        if list.notes == mark.notes {
            list.lost_before = None;
        }
        list.chunks.retain(|_, chunk| chunk.put > mark.puts);
    }

    /// A chunk that is not there any more.
    pub(super) fn forget(&self, hash: &ChunkHash) {
        self.lock().chunks.remove(hash);
    }

    /// A chunk is about to be put, and so many instances were lost before.
    pub(super) fn note_instance(&self, lost: u64) {
        let mut list = self.lock();
        list.notes += 1;
        list.lost_before.get_or_insert(lost);
    }

    /// Whether an instance was lost since the first put of which no manifest followed. Told once.
    pub(super) fn lost_instance(&self, lost: u64) -> bool {
        let mut list = self.lock();
        let gone = list.lost_before.is_some_and(|before| before != lost);
        if gone {
            list.lost_before = None;
        }
        gone
    }

    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u8) -> ChunkHash {
        ChunkHash::new(&[n]).unwrap()
    }

    #[test]
    fn what_is_put_during_a_manifest_stays_for_the_next() {
        let fresh = Fresh::new(true);
        fresh.add(hash(1), 10);
        fresh.add(hash(2), 10);
        let (chunks, mark, bytes) = fresh.snapshot();
        assert_eq!((chunks.len(), bytes), (2, 2 * LEAST_BYTES));
        fresh.add(hash(2), 10);
        fresh.add(hash(3), 1 << 20);
        fresh.settle(mark);
        let left: Vec<_> = fresh.snapshot().0.iter().map(|hash| hash.as_slice().to_vec()).collect();
        assert_eq!(left, [[2], [3]]);
    }

    #[test]
    fn the_list_is_bounded() {
        let fresh = Fresh::new(true);
        for n in 0..limits::MAX_FRESH_CHUNKS as u32 {
            fresh.check_room().unwrap();
            fresh.add(ChunkHash::new(&n.to_le_bytes()).unwrap(), 1);
        }
        assert_eq!(fresh.check_room().unwrap_err().kind(), ErrorKind::Exhausted);
    }
}
