//! What all handles on one URI share, and the calls of the guest but for gets: each checks the shape of what the guest answers.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};

use super::followed::Followed;
use super::hash::ChunkHash;
use super::hashes::{from_guest, of_one_width, to_guest, to_guest_by_width};
use super::known::KnownChunks;
use super::lengths::Lengths;
use super::spare::Spare;
use super::verify::Verifier;
use super::{Put, StoreInfo};
use crate::bindings::exports::kv_store::backend::store::{
    CommitOutcome, DeleteOutcome, Features, Manifest, Presence, PutOutcome,
};
use crate::counters::{Counters, Event};
use crate::error::Error;
use crate::guest::lie;
use crate::limits;
use crate::log;
use crate::payload::{Buffer, Memory, Source};
use crate::pool::{Call, Pool};
use crate::until::Until;

pub(super) struct Shared {
    pub pool: Pool,
    pub features: Features,
    pub verifier: Verifier,
    pub known: Mutex<KnownChunks>,
    /// What was put after what, from which a save that is saved again is foreseen.
    pub followed: Followed,
    /// Memory for chunks that wait.
    pub spare: Spare,
    /// The backend has said that it removes no chunks.
    pub keeps_all: AtomicBool,
    pub uri: String,
    /// The process state that it belongs to.
    pub generation: u64,
    pub lengths: Lengths,
    /// Bytes in the write buffers of all handles of the process.
    pub buffered: &'static AtomicUsize,
    pub counters: &'static Counters,
}

/// What became of one chunk that was asked for.
pub(super) type Fetched = Result<Option<Arc<Buffer>>, Error>;

/// What a commit came to.
#[derive(Debug)]
pub(super) enum Committed {
    Published,
    /// Nothing was published: these chunks, one or more, are not in the store any more.
    Absent(Vec<ChunkHash>),
}

/// The bytes of a chunk on their way to the guest.
#[derive(Clone, Copy)]
pub(super) enum Bytes<'a> {
    /// The consumer's memory.
    Borrowed(&'a [u8]),
    /// The same, in pieces that make one chunk.
    Scattered(&'a [&'a [u8]]),
    Buffered(&'a Arc<Buffer>),
}

impl Bytes<'_> {
    pub(super) fn len(&self) -> usize {
        match self {
            Bytes::Borrowed(bytes) => bytes.len(),
            Bytes::Scattered(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            Bytes::Buffered(buffer) => buffer.len(),
        }
    }

    /// The bytes as an item of a call.
    ///
    /// # Safety
    /// `self` must stay valid until the call is over.
    unsafe fn source(&self) -> Source {
        match self {
            // SAFETY: by this function's own condition.
            Bytes::Borrowed(bytes) => unsafe { Source::borrowed(Memory::of(bytes)) },
            // SAFETY: as above.
            Bytes::Scattered(pieces) => unsafe { Source::borrowed(Memory::of_pieces(pieces)) },
            Bytes::Buffered(buffer) => Source::buffer(buffer),
        }
    }
}

impl Shared {
    /// The time of a call of the consumer that begins now.
    pub(super) fn until(&self) -> Until {
        Until::new(&self.pool.access().limits)
    }

    pub(super) fn info(&self) -> StoreInfo {
        let grants = &self.pool.access().grants;
        StoreInfo {
            uri: self.uri.clone(),
            component_sha256: self.pool.component_digest(),
            label: log::clean(&self.features.label),
            directory: grants.directory.clone(),
            server: grants.server.clone(),
            durable: self.features.durable,
            shared: self.features.shared,
            max_value_bytes: self.max_value_bytes(),
            write_through: self.features.write_through,
        }
    }

    /// Count what is answered to the consumer, or that nothing is.
    pub(super) fn got(&self, found: Option<Buffer>) -> Option<Buffer> {
        match &found {
            Some(data) => self.counters.add(Event::BytesGot, data.len() as u64),
            None => self.counters.count(Event::Misses),
        }
        found
    }

    /// Whether an instance is the store: what it held is gone with it.
    pub(super) fn holds_data(&self) -> bool {
        self.features.max_instances == 1
    }

    /// Whether the backend is to be told which chunks come with a manifest.
    pub(super) fn wants_fresh(&self) -> bool {
        let Features { durable, more, .. } = &self.features;
        *durable || more.iter().any(is_fresh_wanted)
    }

    /// Tells the data of one instance from that of the next, where [`Shared::holds_data`]; otherwise always 0.
    pub(super) fn generation_of_data(&self) -> u64 {
        if self.holds_data() { self.pool.instances_lost() } else { 0 }
    }

    pub(super) fn known(&self) -> MutexGuard<'_, KnownChunks> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether the backend had a chunk when it was last heard of.
    pub(super) fn is_known(&self, hash: &ChunkHash) -> bool {
        self.known().is_present(hash)
    }

    /// Whether the stored bytes of a chunk were found wrong, so that the next put replaces them.
    pub(super) fn is_damaged(&self, hash: &ChunkHash) -> bool {
        self.known().is_damaged(hash)
    }

    /// The backend has said that it does not have a chunk.
    pub(super) fn saw_absent(&self, hash: &ChunkHash) {
        self.known().absent(hash);
    }

    /// A chunk and those that came after it in an earlier save, as far as the backend is known to have them.
    pub(super) fn likely_after(&self, hash: ChunkHash) -> Vec<ChunkHash> {
        let mut likely = self.followed.from(hash, self.batch_items());
        let known = self.known();
        likely.retain(|hash| known.is_present(hash));
        likely
    }

    /// Refuse what the backend would refuse, before it is copied.
    pub(super) fn check_len(&self, len: usize) -> Result<(), Error> {
        let limit = self.max_value_bytes();
        if len as u64 > limit {
            let message = format!("{len} bytes are more than a chunk or manifest may have here ({limit})");
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// The bytes of a chunk, to keep. Copies only what is not the host's.
    pub(super) fn keep(&self, data: Bytes<'_>) -> Result<Arc<Buffer>, Error> {
        Ok(match data {
            Bytes::Borrowed(bytes) => Arc::new(self.spare.copy(bytes)?),
            Bytes::Scattered(pieces) => Arc::new(Buffer::concat(pieces)?),
            Bytes::Buffered(buffer) => Arc::clone(buffer),
        })
    }

    pub(super) fn max_value_bytes(&self) -> u64 {
        match self.features.max_value_bytes {
            0 => limits::MAX_VALUE_BYTES as u64,
            backend => backend.min(limits::MAX_VALUE_BYTES as u64),
        }
    }

    /// Items of one batch that suit the backend.
    pub(super) fn batch_items(&self) -> usize {
        match self.features.max_batch_items {
            0 => limits::DEFAULT_BATCH_ITEMS,
            wanted => (wanted as usize).min(limits::MAX_BATCH_ITEMS),
        }
    }

    pub(super) fn saw_len(&self, len: usize) {
        self.lengths.saw(len);
    }

    /// How many chunks may be asked for at once, if they are as long as the longest of late, for the answers to have so many
    /// bytes.
    pub(super) fn items_within(&self, bytes: usize) -> usize {
        let longest = match self.lengths.longest() {
            0 => limits::ASSUMED_CHUNK_BYTES,
            seen => seen,
        };
        (bytes / longest).max(1)
    }

    pub(super) fn batch_bytes(&self) -> u64 {
        match self.features.max_batch_bytes {
            0 => limits::DEFAULT_BATCH_BYTES,
            wanted => wanted,
        }
    }

    /// Store one chunk; over what is there, if that was found damaged.
    pub(super) fn put_one(&self, hash: &ChunkHash, data: Bytes<'_>, until: &Until) -> Result<Put, Error> {
        let answers = self.put_some(&[(*hash, data)], self.is_damaged(hash), until)?;
        let put = answers.into_iter().next().unwrap_or_else(|| Err(lie("answered no outcome")))?;
        self.known().stored(*hash);
        Ok(put)
    }

    /// Run `work` on each of several batches, with the help of other threads where the backend can serve them. The results
    /// are in the order of the batches.
    pub(super) fn side_by_side<T: Sync, R: Send>(&self, batches: &[T], work: &(dyn Fn(&T) -> R + Sync)) -> Vec<R> {
        if batches.len() < 2 || self.hands() < 2 {
            return batches.iter().map(work).collect();
        }
        self.pool.helpers().map(self.hands(), batches, work)
    }

    /// How many threads can work on a call's batches.
    pub(super) fn hands(&self) -> usize {
        // Those without an instance would only wait for one, against the deadline.
        self.pool.helpers().hands().clamp(1, self.pool.max_instances().max(1))
    }

    /// One call of `put-chunks`. The answer may be shorter than the batch, not empty.
    pub(super) fn put_some(
        &self,
        chunks: &[(ChunkHash, Bytes<'_>)],
        replace: bool,
        until: &Until,
    ) -> Result<Vec<Result<Put, Error>>, Error> {
        let Some((first, _)) = chunks.first() else { return Ok(Vec::new()) };
        let width = first.as_slice().len();
        let same = chunks.iter().take_while(|(hash, _)| hash.as_slice().len() == width).count();
        let chunks = chunks.get(..same).unwrap_or(chunks);
        let lens: Vec<u64> = chunks.iter().map(|(_, data)| data.len() as u64).collect();
        let hashes = to_guest(chunks.iter().map(|(hash, _)| hash));
        until.grant(lens.iter().sum());
        self.pool.call(until, async |call: &mut Call<'_>| {
            // SAFETY: the pool ends the items before `call` returns, and if this unwinds the instance, with them, is dropped on
            // the way; `chunks` lives longer than both.
            let sources = chunks.iter().map(|(_, data)| unsafe { data.source() });
            call.store.data_mut().items().begin_put(sources.collect());
            let answers = match call.guest.call_put_chunks(&mut *call.store, &hashes, &lens, replace).await? {
                Ok(answers) => answers,
                Err(error) => return Ok(Err(error.into())),
            };
            let answers = match expect_some(answers, chunks.len()) {
                Ok(answers) => answers,
                Err(lie) => return Ok(Err(lie)),
            };
            let outcome = |answer| match answer {
                PutOutcome::Stored => Ok(Put::New),
                PutOutcome::Existed if replace => Err(lie("answered `existed` to a chunk that it was to replace")),
                PutOutcome::Existed => Ok(Put::Existed),
                PutOutcome::Failed(error) => Err(Error::from(error)),
            };
            Ok(Ok(answers.into_iter().map(outcome).collect()))
        })
    }

    /// Which chunks the backend has; one answer for each hash.
    pub(super) fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<bool>, Error> {
        let presence = self.presence(hashes, until)?;
        Ok(presence.iter().map(|presence| matches!(presence, Presence::Present(_))).collect())
    }

    /// Which chunks the backend has, with the lengths that it knows; one answer for each hash.
    pub(super) fn presence(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<Presence>, Error> {
        let mut known = Vec::with_capacity(hashes.len());
        while let Some(rest) = hashes.get(known.len()..).filter(|rest| !rest.is_empty()) {
            let asked = of_one_width(rest);
            let list = to_guest(asked.iter());
            known.extend(self.pool.call(until, async |call: &mut Call<'_>| {
                let answers = call.guest.call_exists(&mut *call.store, &list).await?;
                Ok(answers.map_err(Error::from).and_then(|answers| expect_some(answers, asked.len())))
            })?);
        }
        Ok(known)
    }

    /// Fetch one chunk; what does not match its hash is a miss.
    pub(super) fn get_one(&self, hash: &ChunkHash, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        let mut answers = self.get_answers(std::slice::from_ref(hash), until)?;
        self.learn(std::slice::from_ref(hash), &answers);
        match answers.pop() {
            Some(Ok(found)) => Ok(found.and_then(|data| self.check(hash, data, until))),
            Some(Err(error)) => Err(error),
            None => Err(lie("answered no outcome")),
        }
    }

    /// Fetch chunks with one call: an answer for some of them, from the first on. What failed is a miss here.
    pub(super) fn get_some(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<Option<Arc<Buffer>>>, Error> {
        let answers = self.get_answers(hashes, until)?;
        self.learn(hashes, &answers);
        let checked = |(hash, answer): (&ChunkHash, Fetched)| {
            answer.ok().flatten().and_then(|data| self.check(hash, data, until))
        };
        Ok(hashes.iter().zip(answers).map(checked).collect())
    }

    fn learn(&self, hashes: &[ChunkHash], answers: &[Fetched]) {
        let found = hashes.iter().zip(answers).filter_map(|(hash, answer)| match answer {
            Ok(Some(data)) => Some((hash, &data[..])),
            _ => None,
        });
        self.verifier.saw_fetched(found);
    }

    /// Let the next put of a chunk mend it. Answers whether that is news.
    pub(super) fn mark_damaged(&self, hash: &ChunkHash) -> bool {
        self.known().found_damaged(*hash)
    }

    /// Make `fresh` durable, where the backend is, and publish a manifest, if there is one. `bytes`: what a durable backend may
    /// have to write out first.
    pub(super) fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        let list = to_guest_by_width(fresh);
        let data = manifest.map(|(_, data)| data);
        let manifest = manifest.map(|(name, data)| Manifest { name: name.to_owned(), len: data.len() as u64 });
        let bytes = bytes.saturating_add(manifest.as_ref().map_or(0, |manifest| manifest.len));
        until.grant(bytes);
        let outcome = self.pool.call(until, async |call: &mut Call<'_>| {
            // SAFETY: as in `put_some`; `data` lives longer than the call.
            let sources = data.iter().map(|data| unsafe { Bytes::Borrowed(data).source() });
            call.store.data_mut().items().begin_put(sources.collect());
            let answer = call.guest.call_commit(&mut *call.store, &list, manifest.as_ref()).await?;
            Ok(answer.map_err(Error::from).and_then(|outcome| match outcome {
                CommitOutcome::Published => Ok(Committed::Published),
                CommitOutcome::Absent(named) => match from_guest(&named, fresh)? {
                    absent if absent.is_empty() => Err(lie("answered `absent` and named no chunk")),
                    absent => Ok(Committed::Absent(absent)),
                },
            }))
        })?;
        if let Committed::Absent(absent) = &outcome {
            absent.iter().for_each(|hash| self.saw_absent(hash));
        }
        Ok(outcome)
    }

    /// Remove chunks with one call: an answer for some of them, from the first on.
    pub(super) fn delete_some(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<Result<(), Error>>, Error> {
        let asked = of_one_width(hashes);
        let list = to_guest(asked.iter());
        let answers = self.pool.call(until, async |call: &mut Call<'_>| {
            let answers = call.guest.call_delete_chunks(&mut *call.store, &list).await?;
            Ok(answers.map_err(Error::from).and_then(|answers| expect_some(answers, asked.len())))
        })?;
        let outcome = |answer| match answer {
            DeleteOutcome::Gone => Ok(()),
            DeleteOutcome::Failed(error) => Err(error.into()),
        };
        Ok(answers.into_iter().map(outcome).collect())
    }

    pub(super) fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        self.pool.call(until, async |call: &mut Call<'_>| {
            let answer = call.guest.call_get_manifest(&mut *call.store, name).await?;
            let state = call.store.data_mut();
            Ok(answer
                .map_err(Error::from)
                .and_then(|found| found.map(|payload| state.take_buffer(payload)).transpose()))
        })
    }

    pub(super) fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error> {
        self.pool.call(until, async |call: &mut Call<'_>| {
            let answer = call.guest.call_delete_manifest(&mut *call.store, name).await?;
            Ok(answer.map_err(Error::from))
        })
    }

    /// Take room for buffered bytes in the process.
    pub(super) fn reserve_buffer(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|used| *used <= limits::PROCESS_WRITE_BUFFER_BYTES);
        self.buffered.try_update(Relaxed, Relaxed, fits).is_ok()
    }

    pub(super) fn release_buffer(&self, bytes: usize) {
        self.buffered.fetch_sub(bytes, Relaxed);
    }
}

/// The only fact of a backend that is known beside its features.
pub(super) fn is_fresh_wanted((fact, value): &(String, String)) -> bool {
    fact == "fresh" && value == "wanted"
}

/// A batch's answer: for some of the items, from the first on, and at least one.
pub(super) fn expect_some<T>(answers: Vec<T>, asked: usize) -> Result<Vec<T>, Error> {
    match answers.len() {
        0 => Err(lie("answered nothing to a batch")),
        more if more > asked => Err(lie(format_args!("answered {more} items to a batch of {asked}"))),
        _ => Ok(answers),
    }
}
