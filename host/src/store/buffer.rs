//! Chunks that wait for the next manifest, for backends that are not write-through. One copy is made here of what
//! the consumer only lends, and none of what the backend says it has: it is asked at the first such chunk, for all that
//! followed it in an earlier save. Where much waits, a helper begins to store it while the consumer puts more.
//!
//! A chunk leaves the buffer when the backend has it, or when it failed for good: what can never be stored must not
//! fail every later manifest. What failed for a passing reason stays for the next one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::Put;
use super::fresh::Fresh;
use super::hash::ChunkHash;
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
    chunks: HashMap<ChunkHash, Chunk>,
    bytes: usize,
    /// Chunks that were accepted and failed for good, or that the backend has lost since.
    losses: Losses,
    /// Chunks accepted so far.
    accepted: u64,
    /// When the backend last said of chunks that it has them, since the last manifest.
    confirmed: HashMap<ChunkHash, Instant>,
    /// What was put last.
    last: Option<ChunkHash>,
    /// Bytes since the last flush began.
    unflushed: usize,
    /// A helper is at it, or was in vain: the rest is for the manifest.
    ahead: bool,
    /// The backend could not be asked: not again before the manifest.
    mute: bool,
}

struct Chunk {
    data: Data,
    /// Its place in the order of the puts.
    place: u64,
    /// How often it was put: what was put again during a flush is not dropped for that flush's failure, of which its
    /// caller would never hear.
    puts: u64,
}

#[derive(Clone)]
enum Data {
    Here(Arc<Buffer>),
    /// The backend had it at that moment, or stored it then; so many bytes.
    There(Instant, usize),
}

/// Memory that a waiting chunk takes, beside its bytes: a small one takes mostly that.
const ENTRY_BYTES: usize = 256;

impl Data {
    fn len(&self) -> usize {
        match self {
            Data::Here(data) => data.len(),
            Data::There(_, len) => *len,
        }
    }

    fn cost(&self) -> usize {
        match self {
            Data::Here(data) => data.len() + ENTRY_BYTES,
            Data::There(..) => ENTRY_BYTES,
        }
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
        {
            let mut waiting = self.lock();
            waiting.losses.saw_put();
            if let Some(chunk) = waiting.chunks.get_mut(&hash) {
                chunk.puts += 1;
                // What is there and was found wrong since is to be replaced by this.
                if matches!(chunk.data, Data::Here(_)) || !shared.damaged.holds(&hash) {
                    return Ok(Put::Existed);
                }
            }
        }
        fresh.check_room()?;
        if data.len() + ENTRY_BYTES > limits::WRITE_BUFFER_BYTES {
            let put = shared.put_one(&hash, data)?;
            fresh.add(hash, data.len());
            return Ok(put);
        }
        let known = shared.known.holds(&hash);
        let confirmed = if known { self.confirm(shared, hash) } else { None };
        let cost = if confirmed.is_some() { ENTRY_BYTES } else { data.len() + ENTRY_BYTES };
        if !self.reserve(shared, cost) {
            self.write_out(shared, fresh, false)?;
            if !self.reserve(shared, cost) {
                let message =
                    "the write buffers of this process are full; publish a manifest on another handle, or close it";
                return Err(Error::new(ErrorKind::Exhausted, message));
            }
        }
        let data = match confirmed {
            Some(moment) => Data::There(moment, data.len()),
            None => Data::Here(shared.keep(data).inspect_err(|_| self.release(shared, cost))?),
        };
        let (former, follows, flush_ahead) = {
            let mut waiting = self.lock();
            let puts = waiting.chunks.get(&hash).map_or(0, |chunk| chunk.puts) + 1;
            waiting.accepted += 1;
            let place = waiting.accepted;
            let former = waiting.chunks.insert(hash, Chunk { data, place, puts });
            waiting.unflushed += cost;
            let much = waiting.unflushed >= limits::EARLY_FLUSH_BYTES && !waiting.ahead && shared.hands() > 1;
            waiting.ahead |= much;
            (former, waiting.last.replace(hash), much)
        };
        if let Some(former) = former {
            // Another thread put the same chunk in the meantime.
            self.release(shared, former.data.cost());
        }
        if let Some(before) = follows {
            shared.followed.add(before, hash);
        }
        if flush_ahead {
            self.flush_ahead(shared, fresh);
        }
        Ok(if known { Put::Existed } else { Put::New })
    }

    /// The bytes of a chunk that waits here.
    pub(super) fn get(&self, hash: &ChunkHash) -> Option<Arc<Buffer>> {
        match &self.lock().chunks.get(hash)?.data {
            Data::Here(data) => Some(data.clone()),
            Data::There(..) => None,
        }
    }

    pub(super) fn holds(&self, hash: &ChunkHash) -> bool {
        matches!(self.lock().chunks.get(hash), Some(Chunk { data: Data::Here(_), .. }))
    }

    /// When the backend said that it has a chunk, not long ago: asked now, if need be, for this one and for those that
    /// came after it the last time.
    fn confirm(&self, shared: &Shared, hash: ChunkHash) -> Option<Instant> {
        let recent = |moment: &&Instant| moment.elapsed() < limits::CONFIRMED_FOR;
        {
            let waiting = self.lock();
            if let Some(moment) = waiting.confirmed.get(&hash).filter(recent) {
                return Some(*moment);
            }
            if waiting.mute {
                return None;
            }
        }
        let mut likely = shared.followed.from(hash, shared.batch_items());
        likely.retain(|hash| shared.known.holds(hash));
        let asked = Instant::now();
        let there = shared.exists(&likely);
        let mut waiting = self.lock();
        match there {
            Ok(there) => {
                for (hash, there) in likely.iter().zip(there) {
                    if there {
                        waiting.confirmed.insert(*hash, asked);
                    } else {
                        shared.known.forget(hash);
                    }
                }
            }
            // The manifest will say what is wrong.
            Err(_) => waiting.mute = true,
        }
        waiting.confirmed.get(&hash).filter(recent).copied()
    }

    /// Have a helper store what waits, while the consumer goes on.
    fn flush_ahead(self: &Arc<Self>, shared: &Arc<Shared>, fresh: &Arc<Fresh>) {
        let (buffer, of_helper, fresh) = (self.clone(), shared.clone(), fresh.clone());
        shared.pool.helpers().hand(move || {
            // What failed stays for the manifest, or is remembered as lost.
            if buffer.write_out(&of_helper, &fresh, false).is_ok() {
                buffer.lock().ahead = false;
            }
        });
    }

    /// Hand everything that waits to the backend.
    pub(super) fn flush(&self, shared: &Shared, fresh: &Fresh) -> Result<(), Error> {
        if shared.features.write_through {
            return Ok(());
        }
        self.write_out(shared, fresh, false)?;
        self.lock().losses.news().map_or(Ok(()), Err)
    }

    /// Hand everything that waits to the backend, for a manifest: an error if a chunk that was accepted since the last one
    /// is not stored.
    pub(super) fn flush_for_manifest(&self, shared: &Shared, fresh: &Fresh) -> Result<(), Error> {
        if shared.features.write_through {
            return Ok(());
        }
        let written = self.write_out(shared, fresh, true);
        let mut waiting = self.lock();
        (waiting.ahead, waiting.mute) = (false, false);
        waiting.confirmed = HashMap::new();
        let lost = waiting.losses.tell();
        written.and(lost.map_or(Ok(()), Err))
    }

    /// Hand everything that waits to the backend, in the order of the puts. What failed for good is dropped and remembered
    /// as lost. What the backend said it has is left for the manifest, which must be the one that fails if it was lost since.
    fn write_out(&self, shared: &Shared, fresh: &Fresh, for_manifest: bool) -> Result<(), Error> {
        let _alone = self.flushing.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut waiting = self.lock();
        waiting.unflushed = 0;
        let puts: HashMap<_, _> = waiting.chunks.iter().map(|(hash, chunk)| (*hash, chunk.puts)).collect();
        let mut in_order: Vec<_> = waiting.chunks.iter().collect();
        in_order.sort_unstable_by_key(|(_, chunk)| chunk.place);
        let (mut chunks, mut there) = (Vec::new(), Vec::new());
        for (hash, chunk) in in_order {
            match &chunk.data {
                Data::Here(data) => chunks.push((*hash, data.clone())),
                Data::There(moment, _) if for_manifest => there.push((*hash, *moment)),
                Data::There(..) => {}
            }
        }
        drop(waiting);
        self.confirm_again(shared, fresh, there)?;
        let passing = Mutex::new(None);
        let report = |hash: &ChunkHash, result: Result<Put, Error>| match result {
            Ok(_) if for_manifest || shared.wants_fresh() => self.settle(shared, fresh, hash),
            Ok(_) => self.stored_early(shared, hash),
            Err(error) if error.is_permanent() => {
                let mut waiting = self.lock();
                let put_again = waiting.chunks.get(hash).is_some_and(|chunk| puts.get(hash) != Some(&chunk.puts));
                let dropped = if put_again { None } else { waiting.chunks.remove(hash) };
                waiting.losses.add(error);
                drop(waiting);
                if let Some(chunk) = dropped {
                    self.release(shared, chunk.data.cost());
                }
            }
            Err(error) => {
                shared.counters.count(Event::Retried);
                *passing.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(error);
            }
        };
        let outcome = shared.put_missing(&chunks, &report);
        chunks.into_iter().for_each(|(_, data)| shared.spare.keep(data));
        outcome?;
        passing.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).map_or(Ok(()), Err)
    }

    /// Ask again for chunks of which the backend said too long ago that it has them. One that it lost since cannot be
    /// stored, for it was not copied, or is not any more: the manifest fails, and the consumer's next put of it is.
    fn confirm_again(&self, shared: &Shared, fresh: &Fresh, there: Vec<(ChunkHash, Instant)>) -> Result<(), Error> {
        let (recent, old): (Vec<_>, Vec<_>) =
            there.into_iter().partition(|(_, moment)| moment.elapsed() < limits::CONFIRMED_FOR);
        recent.iter().for_each(|(hash, _)| self.settle(shared, fresh, hash));
        let old: Vec<ChunkHash> = old.into_iter().map(|(hash, _)| hash).collect();
        for batch in old.chunks(shared.batch_items()) {
            for (hash, there) in batch.iter().zip(shared.exists(batch)?) {
                if there {
                    self.settle(shared, fresh, hash);
                } else {
                    shared.known.forget(hash);
                    self.remove(shared, hash);
                    let message = format!("the backend has lost chunk {hash} since it was put; put it again");
                    self.lock().losses.add(Error::new(ErrorKind::Unavailable, message));
                }
            }
        }
        Ok(())
    }

    /// The backend has a chunk, and what comes next is the manifest, or it is asked for the chunk with that.
    fn settle(&self, shared: &Shared, fresh: &Fresh, hash: &ChunkHash) {
        let len = self.lock().chunks.get(hash).map_or(0, |chunk| chunk.data.len());
        fresh.add(*hash, len);
        self.remove(shared, hash);
    }

    /// The backend has a chunk, and may lose it before the manifest comes.
    fn stored_early(&self, shared: &Shared, hash: &ChunkHash) {
        let mut waiting = self.lock();
        let Some(chunk) = waiting.chunks.get_mut(hash) else { return };
        let there = Data::There(Instant::now(), chunk.data.len());
        let freed = chunk.data.cost() - there.cost();
        chunk.data = there;
        drop(waiting);
        self.release(shared, freed);
    }

    /// Forget what waits; answers how many chunks are stored nowhere now.
    pub(super) fn discard(&self, shared: &Shared) -> usize {
        let waiting = std::mem::take(&mut *self.lock());
        shared.release_buffer(waiting.bytes);
        waiting.chunks.values().filter(|chunk| matches!(chunk.data, Data::Here(_))).count()
    }

    fn remove(&self, shared: &Shared, hash: &ChunkHash) {
        let removed = self.lock().chunks.remove(hash);
        if let Some(chunk) = removed {
            self.release(shared, chunk.data.cost());
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
