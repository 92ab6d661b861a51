//! Chunks that wait for the next manifest, for backends that are not write-through. One copy is made here of what
//! the consumer only lends, and none of what the backend says it has: it is asked at the first such chunk, for all that
//! followed it in an earlier save. Where much waits, a helper begins to store it while the consumer puts more.
//!
//! A chunk leaves the buffer when the backend has it, or when it failed for good: what can never be stored must not
//! fail every later manifest. What failed for a passing reason stays for the next one.

use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::Put;
use super::fresh::{self, Fresh};
use super::hash::{ChunkHash, ChunkMap};
use super::losses::Losses;
use super::shared::{Bytes, Shared};
use crate::counters::Event;
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
    chunks: ChunkMap<Chunk>,
    /// What they take.
    bytes: usize,
    /// Chunks that need not wait: the backend has them.
    there: ChunkMap<There>,
    /// How many of those were put.
    put: usize,
    losses: Losses,
    /// Chunks accepted so far.
    accepted: u64,
    /// What was put last.
    last: Option<ChunkHash>,
    /// Bytes since the last flush began.
    unflushed: usize,
    /// A helper is at it, or was in vain: the rest is for the manifest.
    ahead: bool,
    /// The backend could not be asked: not again before the manifest.
    mute: bool,
}

/// A chunk that waits.
#[derive(Clone)]
struct Chunk {
    data: Arc<Buffer>,
    /// Its place in the order of the puts; another one for a chunk that came back.
    place: u64,
    /// How often it was put: what was put again during a flush is not dropped for that flush's failure, of which its
    /// caller would never hear.
    puts: u64,
}

/// The backend's word for a chunk, since the last manifest.
#[derive(Clone, Copy)]
struct There {
    /// When the backend said that it has it, or stored it.
    since: Instant,
    /// It was put, and not only foreseen.
    put: bool,
}

impl There {
    fn is_recent(&self) -> bool {
        self.since.elapsed() < limits::CONFIRMED_FOR
    }
}

/// Memory that a waiting chunk takes, beside its bytes: a small one takes mostly that.
const ENTRY_BYTES: usize = 256;

fn cost(data: &Buffer) -> usize {
    data.len() + ENTRY_BYTES
}

impl Waiting {
    /// Take out the chunk that came at a place; answers the bytes that are free now.
    fn remove(&mut self, hash: &ChunkHash, place: u64) -> usize {
        match self.chunks.entry(*hash) {
            Entry::Occupied(entry) if entry.get().place == place => {
                let freed = cost(&entry.remove().data);
                self.bytes -= freed;
                freed
            }
            _ => 0,
        }
    }

    /// A chunk that was put is there, as was said at a moment.
    fn is_there(&mut self, hash: ChunkHash, since: Instant) {
        let former = self.there.insert(hash, There { since, put: true });
        self.put += usize::from(!former.is_some_and(|there| there.put));
    }

    fn forget_there(&mut self, hash: &ChunkHash) {
        self.put -= usize::from(self.there.remove(hash).is_some_and(|there| there.put));
    }
}

impl WriteBuffer {
    /// Accept a chunk. Where it does not fit, what waits is flushed first.
    pub(super) fn put(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        fresh: &Arc<Fresh>,
        hash: ChunkHash,
        data: Bytes<'_>,
    ) -> Result<Put, Error> {
        if self.put_again(shared, fresh, hash, data.len())? {
            return Ok(Put::Existed);
        }
        let cost = data.len() + ENTRY_BYTES;
        if cost > limits::WRITE_BUFFER_BYTES {
            let put = shared.put_one(&hash, data)?;
            fresh.add(hash, data.len());
            return Ok(put);
        }
        let known = shared.known.holds(&hash);
        if known && self.ask(shared, hash) && self.put_again(shared, fresh, hash, data.len())? {
            return Ok(Put::Existed);
        }
        if !self.reserve(shared, cost) {
            self.write_out(shared, fresh)?;
            if !self.reserve(shared, cost) {
                let message =
                    "the write buffers of this process are full; publish a manifest on another handle, or close it";
                return Err(Error::new(ErrorKind::Exhausted, message));
            }
        }
        let data = shared.keep(data).inspect_err(|_| {
            self.lock().bytes -= cost;
            shared.release_buffer(cost);
        })?;
        let (freed, follows, flush_ahead) = {
            let mut waiting = self.lock();
            waiting.accepted += 1;
            let place = waiting.accepted;
            // Another thread may have put the same chunk in the meantime.
            let former = waiting.chunks.insert(hash, Chunk { data, place, puts: 1 });
            let freed = former.map_or(0, |former| self::cost(&former.data));
            waiting.bytes -= freed;
            waiting.unflushed += cost;
            let much = waiting.unflushed >= limits::EARLY_FLUSH_BYTES && !waiting.ahead && shared.hands() > 1;
            waiting.ahead |= much;
            (freed, waiting.last.replace(hash), much)
        };
        shared.release_buffer(freed);
        if let Some(before) = follows {
            shared.followed.add(before, hash);
        }
        if flush_ahead {
            self.flush_ahead(shared, fresh);
        }
        Ok(if known { Put::Existed } else { Put::New })
    }

    /// Accept a chunk of which nothing need be kept: it waits already, or the backend has it. False: it is neither, and there
    /// is room for one more.
    fn put_again(&self, shared: &Shared, fresh: &Fresh, hash: ChunkHash, len: usize) -> Result<bool, Error> {
        let mut waiting = self.lock();
        if let Some(chunk) = waiting.chunks.get_mut(&hash) {
            chunk.puts += 1;
            return Ok(true);
        }
        // What was found wrong since is to be replaced.
        let holds = |there: &There| (there.put || there.is_recent()) && !shared.damaged.holds(&hash);
        let there = waiting.there.get(&hash).copied().filter(holds);
        if there.is_some_and(|there| there.put) {
            return Ok(true);
        }
        if waiting.put + waiting.chunks.len() >= limits::MAX_FRESH_CHUNKS {
            return Err(fresh::too_many());
        }
        fresh.check_room()?;
        waiting.forget_there(&hash);
        let Some(There { since, .. }) = there else { return Ok(false) };
        waiting.is_there(hash, since);
        let follows = waiting.last.replace(hash);
        drop(waiting);
        fresh.add(hash, len);
        if let Some(before) = follows {
            shared.followed.add(before, hash);
        }
        Ok(true)
    }

    /// The bytes of a chunk that waits here.
    pub(super) fn get(&self, hash: &ChunkHash) -> Option<Arc<Buffer>> {
        self.lock().chunks.get(hash).map(|chunk| chunk.data.clone())
    }

    pub(super) fn holds(&self, hash: &ChunkHash) -> bool {
        self.lock().chunks.contains_key(hash)
    }

    /// Ask the backend for a chunk, and for those that came after it the last time. False: it could not be asked.
    fn ask(&self, shared: &Shared, hash: ChunkHash) -> bool {
        if self.lock().mute {
            return false;
        }
        let mut likely = shared.followed.from(hash, shared.batch_items());
        likely.retain(|hash| shared.known.holds(hash));
        let since = Instant::now();
        let there = shared.exists(&likely);
        let mut waiting = self.lock();
        let Ok(there) = there else {
            // The manifest will say what is wrong.
            waiting.mute = true;
            return false;
        };
        for (hash, there) in likely.iter().zip(there) {
            if there {
                waiting.there.entry(*hash).or_insert(There { since, put: false }).since = since;
            } else {
                shared.known.forget(hash);
            }
        }
        true
    }

    /// Have a helper store what waits, while the consumer goes on.
    fn flush_ahead(self: &Arc<Self>, shared: &Arc<Shared>, fresh: &Arc<Fresh>) {
        let (buffer, of_helper, fresh) = (self.clone(), shared.clone(), fresh.clone());
        let handed = shared.pool.helpers().hand(move || {
            // What failed stays for the manifest, or is remembered as lost.
            if buffer.write_out(&of_helper, &fresh).is_ok() {
                buffer.lock().ahead = false;
            }
        });
        if !handed {
            self.lock().ahead = false;
        }
    }

    /// Hand everything that waits to the backend.
    pub(super) fn flush(&self, shared: &Shared, fresh: &Fresh) -> Result<(), Error> {
        if shared.features.write_through {
            return Ok(());
        }
        self.write_out(shared, fresh)?;
        self.lock().losses.news().map_or(Ok(()), Err)
    }

    /// Hand everything that waits to the backend, and ask for what it had before: a manifest is next.
    pub(super) fn flush_for_manifest(&self, shared: &Shared, fresh: &Fresh) -> Result<(), Error> {
        if shared.features.write_through {
            return Ok(());
        }
        let written = self.write_out(shared, fresh);
        {
            let mut waiting = self.lock();
            (waiting.ahead, waiting.mute) = (false, false);
        }
        written?;
        self.ask_again(shared)
    }

    /// Remember that chunks which were accepted are lost.
    pub(super) fn lose(&self, error: Error) {
        self.lock().losses.add(error);
    }

    /// Why the calling thread's manifest must not be published though all is written out: what was lost before.
    pub(super) fn tell_losses(&self) -> Result<(), Error> {
        self.lock().losses.tell().map_or(Ok(()), Err)
    }

    /// Hand everything that waits to the backend, in the order of the puts. What failed for good is dropped and remembered
    /// as lost.
    fn write_out(&self, shared: &Shared, fresh: &Fresh) -> Result<(), Error> {
        let _alone = self.flushing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let taken: ChunkMap<Chunk> = {
            let mut waiting = self.lock();
            waiting.unflushed = 0;
            waiting.chunks.clone()
        };
        let mut in_order: Vec<_> = taken.iter().collect();
        in_order.sort_unstable_by_key(|(_, chunk)| chunk.place);
        let chunks: Vec<_> = in_order.into_iter().map(|(hash, chunk)| (*hash, chunk.data.clone())).collect();
        let passing = Mutex::new(None);
        let report = |hash: &ChunkHash, result: Result<Put, Error>| {
            let Some(Chunk { data, place, puts }) = taken.get(hash) else { return };
            let mut waiting = self.lock();
            let freed = match result {
                Ok(_) => {
                    fresh.add(*hash, data.len());
                    waiting.is_there(*hash, Instant::now());
                    waiting.remove(hash, *place)
                }
                Err(error) if error.is_permanent() => {
                    waiting.losses.add(error);
                    let put_again = waiting.chunks.get(hash).is_some_and(|chunk| chunk.puts != *puts);
                    if put_again { 0 } else { waiting.remove(hash, *place) }
                }
                Err(error) => {
                    shared.counters.count(Event::Retried);
                    *passing.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(error);
                    0
                }
            };
            drop(waiting);
            shared.release_buffer(freed);
        };
        let outcome = shared.put_missing(&chunks, &report);
        drop(taken);
        chunks.into_iter().for_each(|(_, data)| shared.spare.keep(data));
        outcome?;
        passing.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map_or(Ok(()), Err)
    }

    /// Ask again for chunks of which the backend said too long ago that it has them; the manifest is next. (A backend that
    /// wants to be told what is fresh looks for it itself.) One that it lost since cannot be stored, for it was not copied, or is
    /// not any more: the manifest fails, and the consumer's next put of it is.
    fn ask_again(&self, shared: &Shared) -> Result<(), Error> {
        let old: Vec<ChunkHash> = {
            let mut waiting = self.lock();
            waiting.put = 0;
            let there = std::mem::take(&mut waiting.there);
            let old = |there: &There| there.put && !there.is_recent() && !shared.wants_fresh();
            there.into_iter().filter(|(_, there)| old(there)).map(|(hash, _)| hash).collect()
        };
        for batch in old.chunks(shared.batch_items()) {
            for (hash, there) in batch.iter().zip(shared.exists(batch)?) {
                if !there {
                    shared.known.forget(hash);
                    let message = format!("the backend has lost chunk {hash} since it was put; put it again");
                    self.lose(Error::new(ErrorKind::Unavailable, message));
                }
            }
        }
        Ok(())
    }

    /// Forget what waits; answers how many chunks that were.
    pub(super) fn discard(&self, shared: &Shared) -> usize {
        let waiting = std::mem::take(&mut *self.lock());
        shared.release_buffer(waiting.bytes);
        waiting.chunks.len()
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

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
