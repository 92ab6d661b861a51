//! The chunks put on a handle since its last manifest, which the next manifest hands to a durable backend.
//!
//! A chunk leaves the list only when a manifest that named it has succeeded. So two manifests at once both name what was
//! put before either, and after a failure the next manifest names it again.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use super::hash::ChunkHash;
use crate::error::{Error, ErrorKind};
use crate::limits;

pub(super) struct Fresh {
    /// A backend that is not durable makes nothing durable.
    wanted: bool,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    /// When each was put last, in puts.
    chunks: HashMap<ChunkHash, u64>,
    puts: u64,
}

impl Fresh {
    pub(super) fn new(wanted: bool) -> Self {
        Fresh { wanted, list: Mutex::default() }
    }

    /// Refuse a put before it is made, where the list is full.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        if self.wanted && self.lock().chunks.len() >= limits::MAX_FRESH_CHUNKS {
            let message = format!("{} chunks and no manifest: publish one first", limits::MAX_FRESH_CHUNKS);
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        Ok(())
    }

    pub(super) fn add(&self, hash: ChunkHash) {
        if self.wanted {
            let mut list = self.lock();
            list.puts += 1;
            let put = list.puts;
            list.chunks.insert(hash, put);
        }
    }

    /// The chunks so far, and a mark for [`Fresh::settle`].
    pub(super) fn snapshot(&self) -> (Vec<ChunkHash>, u64) {
        let list = self.lock();
        (list.chunks.keys().copied().collect(), list.puts)
    }

    /// What was in the list at the mark, and was not put again since, is durable.
    pub(super) fn settle(&self, mark: u64) {
        self.lock().chunks.retain(|_, put| *put > mark);
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
        fresh.add(hash(1));
        fresh.add(hash(2));
        let (chunks, mark) = fresh.snapshot();
        assert_eq!(chunks.len(), 2);
        fresh.add(hash(2));
        fresh.add(hash(3));
        fresh.settle(mark);
        let mut left: Vec<_> = fresh.snapshot().0.iter().map(|hash| hash.as_slice().to_vec()).collect();
        left.sort();
        assert_eq!(left, [[2], [3]]);
    }

    #[test]
    fn the_list_is_bounded() {
        let fresh = Fresh::new(true);
        for n in 0..limits::MAX_FRESH_CHUNKS as u32 {
            fresh.check_room().unwrap();
            fresh.add(ChunkHash::new(&n.to_le_bytes()).unwrap());
        }
        assert_eq!(fresh.check_room().unwrap_err().kind(), ErrorKind::Exhausted);
    }
}
