//! The chunks of a state: their names, the batches in which they are moved, and the threads that move them.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use twox_hash::{XxHash3_64, XxHash3_128};

use crate::record::{ChunkHash, NAME_BYTES};

/// Bytes of a batch: what is hashed is still in a cache of the processor when it is copied.
pub const BATCH_BYTES: usize = 4 << 20;
/// Threads that share the batches of a state, at most; one for each so many bytes.
const MOST_THREADS: usize = 4;
const BYTES_A_THREAD: usize = 16 << 20;
/// Chunks of a state that are moved together.
pub type ChunkBatch<'a> = (&'a [Vec<Range<usize>>], Range<usize>);

/// Memory of which threads fill parts that do not overlap.
#[derive(Clone, Copy)]
pub struct Whole {
    pub start: *mut u8,
    pub len: usize,
}

// SAFETY: it is only an address; the caller of `part` answers for what is done with it.
unsafe impl Sync for Whole {}

impl Whole {
    /// # Safety
    /// No other reference to these bytes is in use, and the memory outlives the answer.
    pub unsafe fn part<'a>(&self, range: &Range<usize>) -> &'a mut [u8] {
        if range.start > range.end || range.end > self.len {
            return &mut [];
        }
        // SAFETY: it lies in the memory; the rest by this function's own condition.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}

/// A chunk's name in the store.
pub fn name_of(hash: &ChunkHash) -> &[u8] {
    hash.get(..NAME_BYTES).unwrap_or_default()
}

pub fn pieces<'a>(state: &'a [u8], chunk: &[Range<usize>]) -> Vec<&'a [u8]> {
    chunk.iter().filter_map(|range| state.get(range.clone())).collect()
}

pub fn hash(pieces: &[&[u8]]) -> ChunkHash {
    /// Of more bytes than this the lower half of XXH3-128 is XXH3-64.
    const SHORT: usize = 240;
    let both = match pieces {
        [one] => XxHash3_128::oneshot(one),
        pieces => {
            let mut hash = XxHash3_128::new();
            pieces.iter().for_each(|piece| hash.write(piece));
            hash.finish_128()
        }
    };
    let short = pieces.iter().map(|piece| piece.len()).sum::<usize>() <= SHORT;
    let name = if short { XxHash3_64::oneshot(&pieces.concat()) } else { both as u64 };
    (u128::from(name) << 64 | both >> 64).to_be_bytes()
}

/// Chunks in batches of about [`BATCH_BYTES`], each with the numbers of its chunks.
pub fn batches(chunks: &[Vec<Range<usize>>]) -> Vec<ChunkBatch<'_>> {
    let mut batches = Vec::new();
    let mut begin = 0;
    let mut bytes = 0;
    for (index, chunk) in chunks.iter().enumerate() {
        bytes += chunk.iter().map(ExactSizeIterator::len).sum::<usize>();
        if bytes >= BATCH_BYTES || index + 1 == chunks.len() {
            batches.push((chunks.get(begin..=index).unwrap_or_default(), begin..index + 1));
            (begin, bytes) = (index + 1, 0);
        }
    }
    batches
}

/// Do something with each batch, on more than one thread where there is enough. The answers are in the batches' order.
pub fn side_by_side<T: Send>(
    batches: &[ChunkBatch<'_>],
    work: impl Fn(&ChunkBatch<'_>) -> Result<T, String> + Sync,
) -> impl Iterator<Item = Result<T, String>> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = (batches.len() * BATCH_BYTES).div_ceil(BYTES_A_THREAD);
    let threads = wanted.min(cores).clamp(1, MOST_THREADS);
    let next = AtomicUsize::new(0);
    let run = || {
        let mut done = Vec::new();
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(batch) = batches.get(index) else { return done };
            let answer = work(batch);
            if answer.is_err() {
                // The others end after what they are at.
                next.store(batches.len(), Relaxed);
            }
            done.push((index, answer));
        }
    };
    let mut done = std::thread::scope(|scope| {
        // A thread that cannot be had is done without.
        let others: Vec<_> =
            (1..threads).filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, run).ok()).collect();
        let mut done = run();
        for other in others {
            match other.join() {
                Ok(more) => done.extend(more),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        done
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, answer)| answer)
}

#[cfg(test)]
#[path = "chunks_tests.rs"]
mod tests;
