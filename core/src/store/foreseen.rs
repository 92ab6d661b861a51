//! Chunks of which the backend has said that it has them before they were put. Where a save begins as an earlier one did,
//! as it does when a conversation has grown, one `exists` asks for all that is likely to come.

use std::time::Instant;

use super::open_store::OpenStore;
use crate::backend::{ChunkHash, ChunkMap};
use crate::limits::CONFIRMED_FOR;

#[derive(Default)]
pub(super) struct ConfirmedAhead {
    confirmed: ChunkMap<Confirmed>,
    /// The last chunk that was put.
    last: Option<ChunkHash>,
}

/// That the backend has a chunk.
#[derive(Clone, Copy)]
pub(super) struct Confirmed {
    /// When it was asked.
    pub at: Instant,
    /// Of its data, when it was asked.
    pub generation: u64,
}

impl ConfirmedAhead {
    /// A chunk was put; the next save that puts the one before it may expect it.
    pub(super) fn follow(&mut self, store: &OpenStore, hash: ChunkHash) {
        if let Some(before) = self.last.replace(hash) {
            store.followed.add(before, hash);
        }
    }

    /// The backend said that it has a chunk.
    pub(super) fn confirm(&mut self, hash: ChunkHash, asked: Confirmed) {
        self.confirmed.insert(hash, asked);
    }

    /// When the backend said that it has a chunk, if that was a moment ago.
    pub(super) fn take(&mut self, hash: &ChunkHash, now: impl Fn() -> Instant) -> Option<Confirmed> {
        self.confirmed.remove(hash).filter(|asked| now().saturating_duration_since(asked.at) < CONFIRMED_FOR)
    }

    pub(super) fn forget(&mut self) {
        self.confirmed.clear();
    }
}
