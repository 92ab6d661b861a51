//! Chunks fetched before they are asked for: bounded, each handed over once.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use kv_platform::sync::Mutex;

use super::open_store::OpenStore;
use crate::backend::{ChunkHash, ChunkMap, ChunkSet};
use crate::counters::Event;
use crate::error::Error;
use crate::limits;
use crate::payload::Buffer;
use crate::until::Until;

#[derive(Default)]
pub(super) struct Prefetched(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    chunks: ChunkMap<PrefetchedChunk>,
    /// In the order of their coming, each with the prefetch that brought it; some have been taken since.
    order: VecDeque<(ChunkHash, u64)>,
    bytes: usize,
    prefetches: u64,
}

struct PrefetchedChunk {
    data: Arc<Buffer>,
    /// It came before anything was known of the store's keys, and is judged when it is taken.
    unjudged: bool,
}

impl Prefetched {
    /// Take a chunk out. None too if it turns out not to be what its hash says.
    pub(super) fn take(&self, shared: &OpenStore, hash: &ChunkHash, until: &Until) -> Option<Arc<Buffer>> {
        let PrefetchedChunk { data, unjudged } = self.0.lock().remove(hash)?;
        if unjudged { shared.check(hash, data, until) } else { Some(data) }
    }

    /// Fetch what is wanted and not here, until there is no room. What earlier prefetches brought and nobody asked for
    /// makes room for it.
    pub(super) fn fill(&self, shared: &OpenStore, wanted: impl Iterator<Item = ChunkHash>) -> Result<(), Error> {
        let (missing, prefetch) = {
            let mut cache = self.0.lock();
            cache.prefetches += 1;
            let mut distinct = ChunkSet::default();
            let new = |hash: &ChunkHash| !cache.chunks.contains_key(hash) && distinct.insert(*hash);
            (wanted.filter(new).take(limits::PREFETCH_CHUNKS).collect::<Vec<_>>(), cache.prefetches)
        };
        let until = &shared.until();
        until.expect(limits::PREFETCH_BYTES as u64);
        let hands = shared.hands();
        let share = missing.len().div_ceil(2 * hands).max(limits::LEAST_BATCH_ITEMS);
        let most = if hands > 1 { shared.batch_items().min(share) } else { shared.batch_items() };
        let batches: Vec<&[ChunkHash]> = missing.chunks(most).collect();
        let full = AtomicBool::new(false);
        let fetched = shared.batches().side_by_side(&batches, &|batch| {
            let mut rest = *batch;
            while !rest.is_empty() && !full.load(Relaxed) {
                let unjudged = shared.verifier.is_unsettled();
                // What is on its way is not in the cache yet, nor in its bound.
                let asked = rest.len().min(shared.items_within(limits::PREFETCH_BYTES / hands));
                let found = shared.get_some(rest.get(..asked).unwrap_or(rest), until)?;
                let mut cache = self.0.lock();
                for (hash, data) in rest.iter().zip(&found) {
                    if let Some(data) = data {
                        if !cache.keep(*hash, PrefetchedChunk { data: data.clone(), unjudged }, prefetch) {
                            full.store(true, Relaxed);
                            return Ok(());
                        }
                        shared.counters.count(Event::Prefetched);
                    }
                }
                rest = rest.get(found.len()..).unwrap_or_default();
            }
            Ok(())
        });
        fetched.into_iter().collect()
    }
}

impl Cache {
    /// Keep a chunk, in place of older ones if need be. False: no room.
    fn keep(&mut self, hash: ChunkHash, kept: PrefetchedChunk, prefetch: u64) -> bool {
        let len = kept.data.len();
        while self.bytes + len > limits::PREFETCH_BYTES || self.order.len() >= limits::PREFETCH_CHUNKS {
            match self.order.front() {
                Some((oldest, of)) if *of < prefetch || !self.chunks.contains_key(oldest) => {
                    let oldest = *oldest;
                    self.order.pop_front();
                    self.remove(&oldest);
                }
                _ => return false,
            }
        }
        self.bytes += len;
        self.order.push_back((hash, prefetch));
        if let Some(former) = self.chunks.insert(hash, kept) {
            self.bytes -= former.data.len();
        }
        true
    }

    fn remove(&mut self, hash: &ChunkHash) -> Option<PrefetchedChunk> {
        let kept = self.chunks.remove(hash)?;
        self.bytes -= kept.data.len();
        if self.chunks.is_empty() {
            self.order.clear();
        }
        Some(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(n: u32) -> (ChunkHash, PrefetchedChunk) {
        let data = Arc::new(Buffer::concat(&[&[0; 1000]]).unwrap());
        (ChunkHash::new(&n.to_le_bytes()).unwrap(), PrefetchedChunk { data, unjudged: false })
    }

    #[test]
    fn a_chunk_is_handed_over_once() {
        let cache = Prefetched::default();
        let (hash, data) = chunk(1);
        assert!(cache.0.lock().keep(hash, data, 1));
        assert!(cache.0.lock().remove(&hash).is_some());
        assert!(cache.0.lock().remove(&hash).is_none());
        assert_eq!(cache.0.lock().bytes, 0);
    }

    #[test]
    fn older_prefetches_make_room_and_the_same_one_does_not() {
        let mut cache = Cache::default();
        let kept = |cache: &mut Cache, prefetch, from: u32| {
            (from..from + limits::PREFETCH_CHUNKS as u32 + 5)
                .filter(|n| {
                    let (hash, data) = chunk(*n);
                    cache.keep(hash, data, prefetch)
                })
                .count()
        };
        assert_eq!(kept(&mut cache, 1, 0), limits::PREFETCH_CHUNKS);
        assert_eq!(kept(&mut cache, 2, 1 << 20), limits::PREFETCH_CHUNKS);
        assert!(cache.chunks.len() <= limits::PREFETCH_CHUNKS && cache.order.len() <= limits::PREFETCH_CHUNKS);
        assert_eq!(cache.bytes, cache.chunks.len() * 1000);
    }
}
