//! One save: chunks that are put and then committed, with the I/O that its [`Ledger`] asks for.
//!
//! Each handle of `kv_store_v1` has one implicit save, which its threads share. Where the backend is not write-through, the
//! chunks of an implicit save wait in memory for the next manifest, so that many travel in one batch; one copy is made of
//! what the consumer only lends, and none of what the backend has already. Where much waits, a helper stores it early.

use std::sync::Arc;
use std::time::Instant;

use kv_platform::sync::Mutex;

use super::Put;
use super::batches::BatchOutcomes;
use super::foreseen::{Confirmed, ConfirmedAhead};
use super::ledger::{self, Admission, Ledger, Mark};
use super::open_store::OpenStore;
use crate::backend::{Bytes, Committed};
use crate::backend::{ChunkHash, Layout};
use crate::counters::Event;
use crate::directory::UnderWay;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::one_at_a_time::OneAtATime;
use crate::payload::Buffer;
use crate::process::Clock;
use crate::until::Until;

pub(super) struct SaveState {
    state: Mutex<SaveProgress>,
    /// A commit waits for a flush that another thread began.
    flushing: OneAtATime,
}

#[derive(Default)]
struct SaveProgress {
    /// Tells who evicts from the store's directory that chunks were put which no manifest names yet.
    under_way: Option<Arc<UnderWay>>,
    /// Puts that are running: what they are about is not in the ledger yet.
    putting: usize,
    ledger: Ledger<Arc<Buffer>>,
    foreseen: ConfirmedAhead,
    /// Write buffer taken for chunks that are being copied.
    reserved: usize,
    /// Bytes put since the last flush began.
    unflushed: usize,
    /// An early flush is running or has failed; do not start another before the next manifest.
    flushing_early: bool,
    /// `exists` failed; skip it until the next manifest.
    exists_failed: bool,
}

/// A put for a save is running.
pub(super) struct Putting<'a>(&'a SaveState);

impl Drop for Putting<'_> {
    fn drop(&mut self) {
        self.0.state.lock().putting -= 1;
    }
}

impl SaveState {
    /// A save with nothing in it. `clock`: by which its threads wait for each other.
    pub(super) fn new(clock: &Clock) -> Self {
        SaveState { state: Mutex::default(), flushing: OneAtATime::new(clock) }
    }

    /// A put for this save begins, before the backend is asked for anything: what it answers as existing must stay.
    pub(super) fn begin_put(&self, store: &OpenStore) -> Putting<'_> {
        let under_way = {
            let mut state = self.state.lock();
            state.putting += 1;
            state.under_way.clone()
        };
        let putting = Putting(self);
        // Not under the lock, which other calls take: the file system may not answer.
        match (under_way, &store.reach.directory) {
            (Some(under_way), _) => under_way.goes_on(),
            (None, Some(directory)) => {
                let begun = directory.begin_save().map(Arc::new);
                // Of two that began at once one is enough: both have begun before their puts ask for anything.
                let second = match &mut self.state.lock().under_way {
                    Some(_) => begun,
                    under_way => std::mem::replace(under_way, begun),
                };
                drop(second);
            }
            (None, None) => {}
        }
        putting
    }

    /// Put a chunk that a manifest will name.
    pub(super) fn put(
        self: &Arc<Self>,
        store: &Arc<OpenStore>,
        hash: ChunkHash,
        data: Bytes<'_>,
        until: &Until,
    ) -> Result<Put, Error> {
        let _putting = self.begin_put(store);
        let held = self.admit(store, &hash, until)?;
        let cost = ledger::cost(data.len());
        if store.features.properties.write_through || cost > limits::WRITE_BUFFER_BYTES {
            return self.put_now(store, hash, data, until);
        }
        if held {
            return Ok(Put::Existed);
        }
        let known = store.is_known(&hash);
        if self.is_foreseen(store, hash, data.len(), known, until) {
            return Ok(Put::Existed);
        }
        // The backend may have been asked, and may not have it any more.
        let known = known && store.is_known(&hash);
        if !self.reserve(store, cost) {
            self.flush(store, until)?;
            if !self.reserve(store, cost) {
                // The buffers of other handles have filled the process's share; this chunk does not wait for them.
                return self.put_now(store, hash, data, until);
            }
        }
        let len = data.len();
        let data = store.keep(data).inspect_err(|_| {
            self.state.lock().reserved -= cost;
            store.release_buffer(cost);
        })?;
        let damaged = store.is_damaged(&hash);
        let (freed, flush_early) = {
            let mut state = self.state.lock();
            state.reserved -= cost;
            let freed = state.ledger.wait(hash, data, len, damaged);
            state.foreseen.follow(store, hash);
            state.unflushed += cost;
            let much = state.unflushed >= limits::EARLY_FLUSH_BYTES && !state.flushing_early && store.hands() > 1;
            state.flushing_early |= much;
            (freed, much)
        };
        store.release_buffer(freed);
        if flush_early {
            self.flush_early(store, until.end());
        }
        Ok(if known { Put::Existed } else { Put::New })
    }

    /// Whether a chunk is held already, so that its bytes are not needed. Makes room in the ledger for one that is not.
    fn admit(&self, store: &OpenStore, hash: &ChunkHash, until: &Until) -> Result<bool, Error> {
        let damaged = store.is_damaged(hash);
        let admit = || self.state.lock().ledger.admit(hash, damaged, store.now());
        let mut admission = admit()?;
        if matches!(admission, Admission::Full) {
            self.commit_oldest(store, until)?;
            admission = admit()?;
        }
        match admission {
            Admission::Held => Ok(true),
            Admission::New => Ok(false),
            Admission::Full => Err(too_many()),
        }
    }

    /// Store a chunk at once, from the caller's memory.
    fn put_now(&self, store: &OpenStore, hash: ChunkHash, data: Bytes<'_>, until: &Until) -> Result<Put, Error> {
        let (generation, confirmed) = (store.generation_of_data(), store.now());
        let put = store.put_one(&hash, data, until)?;
        let freed = self.state.lock().ledger.stored(hash, data.len(), confirmed, generation);
        store.release_buffer(freed);
        Ok(put)
    }

    /// Whether the backend has said a moment ago that it has a chunk. `known`: it had it once, so it is worth asking.
    /// Not of a damaged chunk: what was said before the damage was found does not hold.
    fn is_foreseen(&self, store: &OpenStore, hash: ChunkHash, len: usize, known: bool, until: &Until) -> bool {
        if store.is_damaged(&hash) || store.is_unsettled(&hash) {
            return false;
        }
        let found = |state: &mut SaveProgress| {
            let Confirmed { at, generation } = state.foreseen.take(&hash, || store.now())?;
            if store.was_removed(&hash, at) {
                return None;
            }
            // Another thread may have put it since it was admitted: its copy waits no more.
            store.release_buffer(state.ledger.stored(hash, len, at, generation));
            state.foreseen.follow(store, hash);
            Some(())
        };
        if found(&mut self.state.lock()).is_some() {
            return true;
        }
        if !known || self.state.lock().exists_failed {
            return false;
        }
        // What may still be removed is believed by nobody who puts it when that is over.
        let mut likely = store.likely_after(hash);
        likely.retain(|hash| !store.is_unsettled(hash));
        let asked = Confirmed { at: store.now(), generation: store.generation_of_data() };
        let answers = store.exists(&likely, until);
        let mut state = self.state.lock();
        let Ok(answers) = answers else {
            // The manifest will say what is wrong.
            state.exists_failed = true;
            return false;
        };
        for (hash, present) in likely.iter().zip(answers) {
            if present {
                state.foreseen.confirm(*hash, asked);
            } else {
                store.saw_absent(hash);
            }
        }
        found(&mut state).is_some()
    }

    /// Tell which of these chunks wait here, for whichever layout: their places among them, and their bytes.
    pub(super) fn each_waiting<'a>(
        &self,
        hashes: impl Iterator<Item = &'a ChunkHash>,
        mut waits: impl FnMut(usize, &Arc<Buffer>),
    ) {
        let state = self.state.lock();
        if state.ledger.is_empty() {
            return;
        }
        for (at, hash) in hashes.enumerate() {
            let in_layout = |layout| state.ledger.data(&hash.lying(layout));
            if let Some(data) = in_layout(Layout::Plain).or_else(|| in_layout(Layout::Enveloped)) {
                waits(at, data);
            }
        }
    }

    /// The bytes of a chunk that waits here, for whichever layout.
    pub(super) fn waiting(&self, hash: &ChunkHash) -> Option<Arc<Buffer>> {
        let mut found = None;
        self.each_waiting(std::iter::once(hash), |_, data| found = Some(data.clone()));
        found
    }

    pub(super) fn holds(&self, hash: &ChunkHash) -> bool {
        self.waiting(hash).is_some()
    }

    /// Have a helper store what waits, while the consumer goes on. `end`: that of the caller's operation, which waits for it.
    fn flush_early(self: &Arc<Self>, store: &Arc<OpenStore>, end: Option<Instant>) {
        let (save, of_helper) = (self.clone(), store.clone());
        let handed = store.helpers().spawn_job(move || {
            // What failed for a passing reason stays for the manifest; what failed for good is in the ledger.
            if save.flush(&of_helper, &of_helper.until_by(end)).is_ok() {
                save.state.lock().flushing_early = false;
            }
        });
        if !handed {
            self.state.lock().flushing_early = false;
        }
    }

    /// Store every chunk that waits, in the order of the puts, after a flush that another thread began. A chunk that the backend
    /// refuses for good is lost; one that failed for a passing reason stays.
    pub(super) fn flush(&self, store: &OpenStore, until: &Until) -> Result<(), Error> {
        let _alone = self.flushing.enter(until, |_| flushed_by_another())?;
        let chunks = {
            let mut state = self.state.lock();
            state.unflushed = 0;
            state.ledger.waiting()
        };
        if chunks.is_empty() {
            return Ok(());
        }
        let generation = store.generation_of_data();
        let batch: Vec<_> = chunks.iter().map(|(hash, data)| (*hash, Bytes::Buffered(data))).collect();
        let confirmed = store.now();
        let BatchOutcomes { items, mut failure } = store.batches().put_all(&batch, false, until);
        for ((hash, data), outcome) in chunks.iter().zip(items) {
            let freed = match outcome {
                Some(Ok(_)) => self.state.lock().ledger.stored(*hash, data.len(), confirmed, generation),
                Some(Err(error)) if error.is_permanent() => self.state.lock().ledger.refused(*hash, error),
                Some(Err(error)) => {
                    store.counters.count(Event::Retried);
                    failure = Some(error);
                    0
                }
                None => 0,
            };
            store.release_buffer(freed);
        }
        chunks.into_iter().for_each(|(_, data)| store.spare.keep(data));
        failure.map_or(Ok(()), Err)
    }

    /// Publish a manifest, after every chunk that was put before.
    pub(super) fn put_manifest(&self, store: &OpenStore, name: &str, data: &[u8], until: &Until) -> Result<(), Error> {
        let looked = loop {
            let flushed = self.flush(store, until);
            {
                let mut state = self.state.lock();
                (state.flushing_early, state.exists_failed) = (false, false);
                state.foreseen.forget();
            }
            flushed?;
            let looked = self.find_losses(store, until)?;
            self.check_losses(store)?;
            // Another thread may have put again what was damaged, or was lost and is not told yet.
            if !self.state.lock().ledger.owes_what_waits() {
                break looked;
            }
        };
        match self.publish(store, Some((name, data)), looked, until)? {
            Committed::Published => Ok(()),
            // Where another thread has put them again since, the next manifest publishes them.
            Committed::Absent(gone) => {
                self.check_losses(store).and_then(|()| gone.first().map_or(Ok(()), |hash| Err(vanished(hash))))
            }
        }
    }

    /// End an explicit save: make its chunks durable where the backend can, then publish a manifest, if there is one. Nothing
    /// is published while chunks are lost; the answer names them.
    pub(super) fn commit(
        &self,
        store: &OpenStore,
        manifest: Option<(&str, &[u8])>,
        until: &Until,
    ) -> Result<Committed, Error> {
        let looked = self.find_losses(store, until)?;
        let lost: Vec<ChunkHash> = self.state.lock().ledger.lost().copied().collect();
        if !lost.is_empty() {
            return Ok(Committed::Absent(lost));
        }
        self.publish(store, manifest, looked, until)
    }

    /// Have the backend commit every stored chunk, and lose those that it does not have any more. What was stored since `looked` is the next
    /// commit's too: nobody has looked whether it is still there.
    fn publish(
        &self,
        store: &OpenStore,
        manifest: Option<(&str, &[u8])>,
        looked: Mark,
        until: &Until,
    ) -> Result<Committed, Error> {
        let unnamed = self.state.lock().ledger.unnamed();
        let fresh = if store.wants_fresh() { unnamed.hashes.as_slice() } else { &[] };
        let committed = store.commit(manifest, fresh, unnamed.bytes, until)?;
        let mut state = self.state.lock();
        match &committed {
            Committed::Published => state.ledger.named(looked),
            Committed::Absent(gone) => gone.iter().for_each(|hash| self.lose(store, &mut state, *hash)),
        }
        let over = (state.putting == 0 && state.ledger.is_empty()).then(|| state.under_way.take());
        drop(state);
        drop(over);
        Ok(committed)
    }

    fn lose(&self, store: &OpenStore, state: &mut SaveProgress, hash: ChunkHash) {
        store.saw_absent(&hash);
        store.release_buffer(state.ledger.lose(hash, vanished(&hash)));
    }

    /// A chunk was put for this save, and stored.
    pub(super) fn stored(&self, store: &OpenStore, hash: ChunkHash, len: usize, confirmed: Instant, generation: u64) {
        store.release_buffer(self.state.lock().ledger.stored(hash, len, confirmed, generation));
    }

    /// Ask again for chunks of which the backend said too long ago that it has them. (A backend that wants to know what a
    /// manifest names looks for it itself.) And lose those that lived in an instance that is gone, or that a change of this process
    /// may remove yet. Answers when that began.
    fn find_losses(&self, store: &OpenStore, until: &Until) -> Result<Mark, Error> {
        let began = self.state.lock().ledger.mark();
        if store.holds_data() {
            let message = "the instance that held the chunks is gone, and they with it: put them again";
            let gone = Error::new(ErrorKind::Component, message);
            self.state.lock().ledger.lose_other_generations(store.generation_of_data(), &gone);
        }
        if store.changes.holds() {
            let mut state = self.state.lock();
            let unsettled = state.ledger.stored_of(|hash| store.is_unsettled(hash));
            unsettled.into_iter().for_each(|hash| self.lose(store, &mut state, hash));
        }
        if store.wants_fresh() {
            return Ok(began);
        }
        let was_removed = |hash: &ChunkHash, confirmed| store.was_removed(hash, confirmed);
        let unconfirmed = self.state.lock().ledger.unconfirmed(store.now(), was_removed);
        self.lose_absent(store, &unconfirmed, until).map(|()| began)
    }

    /// Ask the backend for chunks, and lose those that it does not have.
    fn lose_absent(&self, store: &OpenStore, chunks: &[ChunkHash], until: &Until) -> Result<(), Error> {
        for batch in chunks.chunks(store.batch_items()) {
            let asked = store.now();
            let answers = store.exists(batch, until)?;
            let mut state = self.state.lock();
            for (hash, present) in batch.iter().zip(answers) {
                if present {
                    state.ledger.confirm(hash, asked);
                } else {
                    self.lose(store, &mut state, *hash);
                }
            }
        }
        Ok(())
    }

    /// Why no manifest may be published: chunks that were accepted are lost.
    pub(super) fn check_losses(&self, store: &OpenStore) -> Result<(), Error> {
        self.state.lock().ledger.loss_error(store.now()).map_or(Ok(()), Err)
    }

    /// The ledger is full: commit the half that was stored first, without a manifest.
    fn commit_oldest(&self, store: &OpenStore, until: &Until) -> Result<(), Error> {
        self.flush(store, until)?;
        let oldest = self.state.lock().ledger.oldest_half();
        let committed = match store.wants_fresh() {
            true => store.commit(None, &oldest.hashes, oldest.bytes, until)?,
            false => Committed::Published,
        };
        let mut state = self.state.lock();
        match committed {
            Committed::Published => state.ledger.named(oldest.mark),
            // They make room, and the next manifest says that they are lost.
            Committed::Absent(gone) => gone.iter().for_each(|hash| self.lose(store, &mut state, *hash)),
        }
        Ok(())
    }

    /// Forget what waits. Returns how many chunks that were.
    pub(super) fn discard(&self, store: &OpenStore) -> usize {
        let (under_way, (chunks, freed)) = {
            let mut state = self.state.lock();
            (state.under_way.take(), state.ledger.discard())
        };
        drop(under_way);
        store.release_buffer(freed);
        chunks
    }

    /// Take room in this save's write buffer and in the process's.
    fn reserve(&self, store: &OpenStore, bytes: usize) -> bool {
        let mut state = self.state.lock();
        let own = state.ledger.waiting_bytes() + state.reserved + bytes;
        if own > limits::WRITE_BUFFER_BYTES || !store.reserve_buffer(bytes) {
            return false;
        }
        state.reserved += bytes;
        true
    }
}

fn vanished(hash: &ChunkHash) -> Error {
    let message = format!("the backend has lost chunk {hash} since it was put; put it again");
    Error::new(ErrorKind::Unavailable, message)
}

fn too_many() -> Error {
    let most = limits::MAX_FRESH_CHUNKS;
    let message = format!("{most} chunks were put without a manifest: publish one before you put more");
    Error::new(ErrorKind::Exhausted, message)
}

fn flushed_by_another() -> Error {
    Error::busy(
        "not done: another call has been storing chunks of the same save for as long as this one may wait (deadline_ms); try again",
    )
}
