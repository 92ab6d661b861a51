//! The ledger of one save: what is known of each chunk that was put and that no manifest names yet.
//!
//! Pure: no I/O, no locks, no clock. Who does the I/O asks the ledger what to do next and tells it what happened.
//!
//! A chunk is in one place. It *waits* in memory until the backend has it; it is *stored*, confirmed by the backend at some
//! moment; or it is *lost*: its put was accepted, and it is not in the store. A stored chunk leaves the ledger when a commit has
//! named it. A lost chunk fails every commit until it is put again, or until [`LOSS_TOLD_FOR`] has passed since the loss was
//! first told; so each of several threads that share a save hears of it. Where the backend refused the chunk for good, a put
//! of it in that time is refused too: what is not accepted is not lost, once the loss was told.

use std::time::Instant;

use crate::backend::{ChunkHash, ChunkMap};
use crate::error::Error;
use crate::limits::{CONFIRMED_FOR, LOSS_TOLD_FOR, MAX_FRESH_CHUNKS};

/// `D`: the bytes of a waiting chunk.
pub(super) struct Ledger<D> {
    chunks: ChunkMap<ChunkStatus<D>>,
    lost: ChunkMap<Loss>,
    /// Numbers the events, so that chunks are handed on in the order of the puts and a commit settles only what it named.
    events: u64,
    /// What the waiting chunks take, by [`cost`].
    waiting_bytes: usize,
}

enum ChunkStatus<D> {
    Waiting {
        data: D,
        len: usize,
        order: u64,
        /// It was stored or lost before: a manifest that is being published may be over it.
        owed: bool,
    },
    Stored {
        len: usize,
        order: u64,
        /// When the backend said that it has it.
        confirmed: Instant,
        /// The instance generation in which it was stored; see [`Ledger::lose_other_generations`].
        generation: u64,
    },
}

struct Loss {
    why: Error,
    /// The backend refused the chunk for good, so another put of it is refused too.
    refused: bool,
    /// It was put again after it had been told, and refused: whoever needs it knows, and it fails no commit any more.
    put_again: bool,
    told: Option<Instant>,
}

impl Loss {
    fn is_over(&self, now: Instant) -> bool {
        self.told.is_some_and(|told| now.saturating_duration_since(told) >= LOSS_TOLD_FOR)
    }
}

/// What a put of a chunk needs.
pub(super) enum Admission {
    /// Nothing: it waits already, or the backend has it.
    Held,
    /// Its bytes.
    New,
    /// Room in the ledger: commit the oldest half first.
    Full,
}

/// The stored chunks at one moment, for a commit to name.
pub(super) struct Unnamed {
    /// In the order in which they were stored.
    pub hashes: Vec<ChunkHash>,
    /// Their bytes, each counted as a page at least: what a durable backend may have to write out.
    pub bytes: u64,
    pub mark: Mark,
}

/// Tells what was stored before a moment from what was stored after it.
#[derive(Clone, Copy)]
pub(super) struct Mark(u64);

/// Memory that a waiting chunk takes beside its bytes. A small chunk takes mostly that.
const ENTRY_BYTES: usize = 256;
/// Making a file durable writes one page at least.
const LEAST_BYTES: u64 = 4096;

/// The memory that a waiting chunk of `len` bytes takes.
pub(super) fn cost(len: usize) -> usize {
    len + ENTRY_BYTES
}

impl<D> Default for Ledger<D> {
    fn default() -> Self {
        Ledger { chunks: ChunkMap::default(), lost: ChunkMap::default(), events: 0, waiting_bytes: 0 }
    }
}

impl<D: Clone> Ledger<D> {
    /// Whether a chunk may be put. `damaged`: its stored bytes were found wrong, so that the backend has it does not count.
    ///
    /// # Errors
    /// The reason, where the backend refused the chunk for good a moment ago.
    pub(super) fn admit(&mut self, hash: &ChunkHash, damaged: bool, now: Instant) -> Result<Admission, Error> {
        match self.lost.get_mut(hash) {
            Some(loss) if loss.is_over(now) => {
                self.lost.remove(hash);
            }
            Some(loss) if loss.refused => {
                // The first to be told may be another thread than the one that publishes.
                loss.put_again |= loss.told.is_some();
                loss.told.get_or_insert(now);
                return Err(loss.why.clone());
            }
            _ => {}
        }
        let (newest, full) = (self.next(), self.chunks.len() + self.lost.len() >= MAX_FRESH_CHUNKS);
        Ok(match self.chunks.get_mut(hash) {
            Some(ChunkStatus::Waiting { .. }) => Admission::Held,
            Some(ChunkStatus::Stored { order, .. }) if !damaged => {
                // A commit that is under way settles what was put before it, and this put came after.
                *order = newest;
                Admission::Held
            }
            Some(ChunkStatus::Stored { .. }) => Admission::New,
            None if full => Admission::Full,
            None => Admission::New,
        })
    }

    /// A chunk was accepted and waits. Returns the memory of a former one, which is free now. One that another thread has stored since it was
    /// admitted stays as it is, and what is returned is its own: a manifest that is being published counts on it, and would neither flush
    /// nor name what waits. `damaged`: as of [`Ledger::admit`].
    pub(super) fn wait(&mut self, hash: ChunkHash, data: D, len: usize, damaged: bool) -> usize {
        let was_lost = self.lost.remove(&hash).is_some();
        let order = self.next();
        let owed = match self.chunks.get_mut(&hash) {
            Some(ChunkStatus::Stored { order: stored, .. }) if !damaged => {
                *stored = order;
                return cost(len);
            }
            Some(ChunkStatus::Stored { .. }) => true,
            Some(ChunkStatus::Waiting { owed, .. }) => *owed,
            None => was_lost,
        };
        self.waiting_bytes += cost(len);
        let former = self.chunks.insert(hash, ChunkStatus::Waiting { data, len, order, owed });
        self.freed(former)
    }

    /// Whether something waits that a manifest is over whose flush may have been before.
    pub(super) fn owes_what_waits(&self) -> bool {
        // As a rule nothing waits any more.
        self.waiting_bytes > 0
            && self.chunks.values().any(|place| matches!(place, ChunkStatus::Waiting { owed: true, .. }))
    }

    /// The backend has a chunk, as it said at `confirmed`. Returns the memory of its waiting bytes, which is free now.
    pub(super) fn stored(&mut self, hash: ChunkHash, len: usize, confirmed: Instant, generation: u64) -> usize {
        self.lost.remove(&hash);
        let order = self.next();
        let former = self.chunks.insert(hash, ChunkStatus::Stored { len, order, confirmed, generation });
        self.freed(former)
    }

    /// The backend has refused a waiting chunk for good. Returns its memory, which is free now.
    pub(super) fn refused(&mut self, hash: ChunkHash, why: Error) -> usize {
        self.remove(hash, why, true)
    }

    /// A chunk that was accepted is not in the store any more. Returns the memory that is free now.
    pub(super) fn lose(&mut self, hash: ChunkHash, why: Error) -> usize {
        self.remove(hash, why, false)
    }

    fn remove(&mut self, hash: ChunkHash, why: Error, refused: bool) -> usize {
        let former = self.chunks.remove(&hash);
        self.lost.insert(hash, Loss { why, refused, put_again: false, told: None });
        self.freed(former)
    }

    /// The data lived in instances and one was lost: every chunk stored in another generation is lost.
    pub(super) fn lose_other_generations(&mut self, current: u64, why: &Error) {
        let gone =
            |place: &ChunkStatus<D>| matches!(place, ChunkStatus::Stored { generation, .. } if *generation != current);
        for (hash, _) in self.chunks.extract_if(|_, place| gone(place)) {
            self.lost.insert(hash, Loss { why: why.clone(), refused: false, put_again: false, told: None });
        }
    }

    /// The bytes of a chunk that waits.
    pub(super) fn data(&self, hash: &ChunkHash) -> Option<&D> {
        match self.chunks.get(hash) {
            Some(ChunkStatus::Waiting { data, .. }) => Some(data),
            _ => None,
        }
    }

    /// The chunks that wait, in the order of the puts.
    pub(super) fn waiting(&self) -> Vec<(ChunkHash, D)> {
        let mut waiting: Vec<_> = self
            .chunks
            .iter()
            .filter_map(|(hash, place)| match place {
                ChunkStatus::Waiting { data, order, .. } => Some((*order, *hash, data)),
                ChunkStatus::Stored { .. } => None,
            })
            .collect();
        waiting.sort_unstable_by_key(|(order, ..)| *order);
        waiting.into_iter().map(|(_, hash, data)| (hash, data.clone())).collect()
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Stored chunks that the backend confirmed so long ago that a commit asks again, or that were perhaps removed since; in the order in
    /// which they were stored.
    pub(super) fn unconfirmed(
        &self,
        now: Instant,
        was_removed: impl Fn(&ChunkHash, Instant) -> bool,
    ) -> Vec<ChunkHash> {
        let old = |confirmed: Instant| now.saturating_duration_since(confirmed) >= CONFIRMED_FOR;
        let stale = |(hash, place): (&ChunkHash, &ChunkStatus<D>)| match place {
            ChunkStatus::Stored { confirmed, order, .. } if old(*confirmed) || was_removed(hash, *confirmed) => {
                Some((*order, *hash))
            }
            _ => None,
        };
        let mut stale: Vec<(u64, ChunkHash)> = self.chunks.iter().filter_map(stale).collect();
        stale.sort_unstable_by_key(|(order, _)| *order);
        stale.into_iter().map(|(_, hash)| hash).collect()
    }

    /// Those of the stored chunks of which something holds.
    pub(super) fn stored_of(&self, holds: impl Fn(&ChunkHash) -> bool) -> Vec<ChunkHash> {
        let stored = self.chunks.iter().filter(|(_, place)| matches!(place, ChunkStatus::Stored { .. }));
        stored.map(|(hash, _)| *hash).filter(|hash| holds(hash)).collect()
    }

    /// The backend still had a chunk at a moment.
    pub(super) fn confirm(&mut self, hash: &ChunkHash, now: Instant) {
        if let Some(ChunkStatus::Stored { confirmed, .. }) = self.chunks.get_mut(hash) {
            *confirmed = now;
        }
    }

    /// Why nothing may be committed: chunks were lost. Whoever asks is told.
    pub(super) fn loss_error(&mut self, now: Instant) -> Option<Error> {
        self.lost.retain(|_, loss| !loss.is_over(now));
        let mut first = None;
        let mut count = 0;
        for loss in self.lost.values_mut().filter(|loss| !loss.put_again) {
            loss.told.get_or_insert(now);
            first.get_or_insert(&loss.why);
            count += 1;
        }
        let why = first?.clone();
        Some(match count {
            1 => why,
            _ => why.context(format_args!("{count} chunks are lost; one of them")),
        })
    }

    /// The lost chunks, for a caller that can put them again.
    pub(super) fn lost(&self) -> impl Iterator<Item = &ChunkHash> {
        self.lost.keys()
    }

    /// All stored chunks.
    pub(super) fn unnamed(&self) -> Unnamed {
        self.unnamed_among(usize::MAX)
    }

    /// The half of the stored chunks that was stored first.
    pub(super) fn oldest_half(&self) -> Unnamed {
        self.unnamed_among(self.chunks.len().div_ceil(2))
    }

    fn unnamed_among(&self, count: usize) -> Unnamed {
        let mut stored: Vec<_> = self
            .chunks
            .iter()
            .filter_map(|(hash, place)| match place {
                ChunkStatus::Stored { order, len, .. } => Some((*order, *hash, *len as u64)),
                ChunkStatus::Waiting { .. } => None,
            })
            .collect();
        stored.sort_unstable_by_key(|(order, ..)| *order);
        stored.truncate(count);
        let bytes = stored.iter().map(|(.., len)| (*len).max(LEAST_BYTES)).sum();
        let mark = Mark(stored.last().map_or(0, |(order, ..)| *order));
        Unnamed { hashes: stored.into_iter().map(|(_, hash, _)| hash).collect(), bytes, mark }
    }

    /// What was stored until now.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.events)
    }

    /// A commit has named every chunk that was stored up to a mark.
    pub(super) fn named(&mut self, mark: Mark) {
        self.chunks.retain(|_, place| !matches!(place, ChunkStatus::Stored { order, .. } if *order <= mark.0));
    }

    /// Whether no chunk waits or is stored without a manifest that names it.
    pub(super) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Forget everything. Returns how many chunks waited and their memory, which is free now.
    pub(super) fn discard(&mut self) -> (usize, usize) {
        let waiting = self.chunks.values().filter(|place| matches!(place, ChunkStatus::Waiting { .. })).count();
        let freed = std::mem::take(self).waiting_bytes;
        (waiting, freed)
    }

    fn next(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    fn freed(&mut self, former: Option<ChunkStatus<D>>) -> usize {
        let Some(ChunkStatus::Waiting { len, .. }) = former else { return 0 };
        self.waiting_bytes -= cost(len);
        cost(len)
    }
}

#[cfg(test)]
mod tests;
