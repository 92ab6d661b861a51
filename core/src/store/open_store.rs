//! What all handles on one URI share, and single calls of the backend. Whole batches are `batches`.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kv_platform::sync::{Mutex, MutexGuard};

use super::StoreInfo;
use super::batches::Batches;
use super::followed::Successors;
use super::lookup::Lookup;
use super::process::Process;
use super::spare::Spare;
use super::suspects::{Damage, Suspects};
use super::upkeep::BoundedStore;
use super::verify::Verifier;
use crate::backend::{Backend, Bytes, Changes, ChunkHash, Committed, Got, KnownChunks, Put, Remembering, Removed};
use crate::breaker::Breaker;
use crate::counters::{Answer, Counters, Event, Unanswered};
use crate::descriptor::{Described, Descriptor, DescriptorDigest};
use crate::envelope::{Enveloped, RecentNames, TAIL_BYTES, stored_key};
use crate::error::{Error, contract_violation};
use crate::limits;
use crate::log::{self, Level};
use crate::near::NearLayer;
use crate::payload::Buffer;
use crate::process::Clock;
use crate::quota::Quota;
use crate::sandbox::{Features, Instances, Properties, Reach};
use crate::threads::Lent;
use crate::until::Until;

/// What the consumer asks for.
#[derive(Clone, Copy)]
pub(super) enum Item<'a> {
    Chunk(&'a ChunkHash),
    Manifest(&'a str),
}

impl fmt::Display for Item<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Item::Chunk(hash) => write!(f, "chunk {hash}"),
            Item::Manifest(name) => write!(f, "manifest {name:?}"),
        }
    }
}

pub struct OpenStore {
    /// The instances, with the layers around them.
    pub backend: Remembering,
    /// The layer of them that makes and opens envelopes.
    pub enveloped: Arc<Enveloped>,
    pub breaker: Arc<Breaker>,
    /// Changes that may still be carried out though they ended unknown.
    pub changes: Arc<Changes>,
    pub instances: Arc<dyn Instances>,
    /// What they may reach.
    pub reach: Arc<Reach>,
    pub component_digest: [u8; 32],
    pub features: Features,
    /// The layer of them that keeps copies on this machine.
    pub near: Option<Arc<NearLayer>>,
    pub verifier: Arc<Verifier>,
    /// What the operator says of its values.
    pub said: SaidByOperator,
    /// Chunks that were found damaged.
    pub suspects: Suspects,
    /// Manifests whose names in layout 1 were removed, or are about to be.
    pub superseded: RecentNames,
    /// What was put after what, from which a save that is saved again is foreseen.
    pub followed: Successors,
    /// Memory for chunks that wait.
    pub spare: Spare,
    /// What its handles have removed a moment ago.
    pub removed: Mutex<Removed>,
    /// The backend has said that it removes no chunks.
    pub keeps_all: AtomicBool,
    pub uri: String,
    /// Where it is open.
    pub process: Arc<Process>,
    /// By this it is known how long ago the backend said something.
    pub clock: Clock,
    pub counters: Arc<Counters>,
    /// What is known of a store that is bounded.
    pub kept: OnceLock<Arc<BoundedStore>>,
    pub tenant: Option<String>,
    pub quota: Quota,
}

/// What the operator says of the values of a store.
pub(super) struct SaidByOperator {
    pub descriptor: Descriptor,
    /// Who leaves a field unset is refused.
    pub required: bool,
    /// Of which descriptors one line was logged.
    pub told: Mutex<HashSet<Option<DescriptorDigest>>>,
}

/// What became of one chunk that was asked for.
pub(super) type ChunkAnswer = Result<Option<Arc<Buffer>>, Error>;

impl Answer for Committed {}

impl OpenStore {
    /// The time of a call of the consumer that begins now.
    pub(super) fn until(&self) -> Until {
        self.until_by(None)
    }

    /// The time of a call that begins now, and whose caller wants it to be over at a moment.
    pub(super) fn until_by(&self, end: Option<Instant>) -> Until {
        Until::with(&self.process.clock, &self.reach.limits, end, None)
    }

    pub(super) fn info(&self) -> StoreInfo {
        let grants = &self.reach.grants;
        StoreInfo {
            uri: self.uri.clone(),
            component_sha256: hex::encode(self.component_digest),
            label: log::clean(&self.features.label),
            directory: grants.directory.clone(),
            server: (!grants.servers.is_empty()).then(|| grants.servers.join(",")),
            durable: self.features.properties.durable,
            shared: self.features.properties.shared,
            max_value_bytes: self.max_value_bytes(),
            write_through: self.features.properties.write_through,
            wants_fresh: self.wants_fresh(),
            replaces_in_steps: self.features.replaces_in_steps(),
        }
    }

    /// Count what a chunk or a manifest came to that the consumer asked for: a hit, or one reason why it is not answered.
    pub(super) fn answered(&self, what: Item<'_>, found: Result<Option<u64>, &Error>, until: &Until) {
        let why = match (found, what) {
            (Ok(Some(bytes)), _) => return self.hit(bytes),
            (Ok(None), Item::Chunk(hash)) => until.why_no_chunk(hash),
            (Ok(None), Item::Manifest(_)) => until.why_no_manifest(),
            (Err(error), _) => Unanswered::of(error, until),
        };
        self.counters.add(Event::Misses, u64::from(found.is_ok()));
        self.counters.unanswered(why, 1);
        log::line(Level::Debug, format_args!("{}: {what}: {}", self.uri, why.text()));
    }

    /// Count chunks or manifests that were not asked for of the backend: a quota is used up, or no chunk can have such a hash.
    pub(super) fn refused(&self, items: usize) {
        self.counters.unanswered(Unanswered::Refused, items as u64);
    }

    /// Count bytes that were put.
    pub(super) fn moved_in(&self, bytes: u64) {
        self.counters.add(Event::BytesPut, bytes);
        if self.quota.is_metered() {
            self.reach.meters.put(bytes);
        }
    }

    /// Count what was asked for and answered.
    pub(super) fn hit(&self, bytes: u64) {
        self.counters.count(Event::Hits);
        self.counters.add(Event::BytesGot, bytes);
        if self.quota.is_metered() {
            self.reach.meters.got(bytes);
        }
    }

    /// Whether an instance is the store: what it held is gone with it.
    pub(super) fn holds_data(&self) -> bool {
        self.features.properties.holds_data
    }

    /// Whether the backend is to be told which chunks come with a manifest.
    pub(super) fn wants_fresh(&self) -> bool {
        let Properties { durable, evicts, wants_fresh, .. } = self.features.properties;
        durable || evicts || wants_fresh
    }

    /// By this it is known how long ago the backend said something.
    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Tells the data of one instance from that of the next, where [`OpenStore::holds_data`]; otherwise always 0.
    pub(super) fn generation_of_data(&self) -> u64 {
        if self.holds_data() { self.instances.lost() } else { 0 }
    }

    /// Chunks are about to be removed, or were: no save counts any more on what was said of them before.
    pub(super) fn removing<'a>(&self, hashes: impl IntoIterator<Item = &'a ChunkHash>) {
        let now = self.now();
        let mut removed = self.removed.lock();
        // Whoever's it was.
        hashes.into_iter().for_each(|hash| removed.note(hash.described_as(Described::NOT), now));
    }

    /// Whether a chunk that the backend had at `confirmed` may have been removed by this process since.
    pub(super) fn was_removed(&self, hash: &ChunkHash, confirmed: Instant) -> bool {
        let hash = hash.described_as(Described::NOT);
        self.removed.lock().is_since(&hash, confirmed)
    }

    /// Whether a change of a chunk, of this process, may still be carried out though it ended unknown. It may be a removal.
    pub(super) fn is_unsettled(&self, hash: &ChunkHash) -> bool {
        self.changes.holds() && self.changes.is_unsettled(&stored_key(hash))
    }

    pub(super) fn known(&self) -> MutexGuard<'_, KnownChunks> {
        self.backend.known()
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

    /// Refuse what the backend would refuse, before it is copied. `len`: of what is stored.
    pub(super) fn check_len(&self, len: usize) -> Result<(), Error> {
        let limit = self.max_stored_bytes();
        if len as u64 > limit {
            let message =
                format!("value too long: {len} bytes, the limit of this backend is {limit}: store smaller chunks");
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

    /// The longest value that can be stored whatever its key is.
    pub(super) fn max_value_bytes(&self) -> u64 {
        self.max_stored_bytes().saturating_sub(TAIL_BYTES as u64)
    }

    /// The longest value of the backend.
    pub(super) fn max_stored_bytes(&self) -> u64 {
        let limit = self.reach.limits.max_value_bytes.min(limits::MAX_VALUE_BYTES as u64);
        self.features.max_value_bytes.map_or(limit, |backend| backend.min(limit))
    }

    /// The longest manifest, as the backend has it.
    pub(super) fn max_manifest_bytes(&self) -> u64 {
        self.max_stored_bytes().min(self.reach.limits.longest_manifest())
    }

    /// Items of one batch that suit the backend.
    pub(super) fn batch_items(&self) -> usize {
        let suits = |wanted: u32| (wanted as usize).clamp(1, limits::MAX_BATCH_ITEMS);
        self.features.batch_items.map_or(limits::DEFAULT_BATCH_ITEMS, suits)
    }

    pub(super) fn note_len(&self, len: usize) {
        self.backend.note_len(len);
    }

    /// How many chunks may be asked for at once, if they are as long as the longest of late, for the answers to have so many
    /// bytes.
    pub(super) fn items_within(&self, bytes: usize) -> usize {
        let longest = match self.backend.longest() {
            0 => limits::ASSUMED_CHUNK_BYTES,
            seen => seen,
        };
        (bytes / longest).max(1)
    }

    pub(super) fn batch_bytes(&self) -> u64 {
        self.features.batch_bytes.unwrap_or(limits::DEFAULT_BATCH_BYTES)
    }

    /// Store one chunk; over what is there, if that was found damaged.
    pub(super) fn put_one(&self, hash: &ChunkHash, data: Bytes<'_>, until: &Until) -> Result<Put, Error> {
        let answers = self.backend.put(&[(*hash, data)], self.is_damaged(hash), until)?;
        answers.into_iter().next().unwrap_or_else(|| Err(contract_violation("answered no outcome")))
    }

    /// The calls that take a batch of any size.
    pub(super) fn batches(&self) -> Batches<'_> {
        Batches {
            backend: &self.backend,
            changes: &self.changes,
            items: self.batch_items(),
            bytes: self.batch_bytes(),
            asks_first: !self.features.properties.cheap_repeat,
            helpers: (self.hands() > 1).then(|| (self.helpers(), self.hands())),
        }
    }

    /// Threads that can work beside the caller's.
    pub(super) fn helpers(&self) -> Lent<'_> {
        self.process.threads.helpers.lent(&self.reach.whose)
    }

    /// Refuse to be used in another process than the one that opened it.
    pub(super) fn check_process(&self) -> Result<(), Error> {
        self.process.check()
    }

    /// How many threads can work on a call's batches.
    pub(super) fn hands(&self) -> usize {
        // Those without an instance would only wait for one, against the deadline.
        self.helpers().hands().clamp(1, self.instances.max_instances().max(1))
    }

    /// What `hash` makes of each item, side by side where that pays: they have so many bytes in all.
    pub(super) fn hashed<T: Sync, R: Send>(
        &self,
        bytes: usize,
        items: &[T],
        hash: &(dyn Fn(&T) -> R + Sync),
    ) -> Vec<R> {
        let helpers = self.helpers();
        match bytes as u64 >= limits::LEAST_BATCH_BYTES {
            true => helpers.map(helpers.hands(), items, hash),
            false => items.iter().map(hash).collect(),
        }
    }

    /// Which chunks the backend has; one answer for each hash.
    pub(super) fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<bool>, Error> {
        self.batches().exists(hashes, until)
    }

    /// Fetch chunks with one call, into buffers: see [`OpenStore::chunk_of`].
    pub(super) fn get_answers(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<ChunkAnswer>, Error> {
        let answers = self.backend.get(hashes, &mut [], until)?;
        Ok(hashes.iter().zip(answers).map(|(hash, answer)| self.chunk_of(hash, answer, until)).collect())
    }

    /// What the backend itself has, without what is near.
    pub(super) fn far(&self) -> &dyn Backend {
        match &self.near {
            Some(near) => near.far(),
            None => &self.backend,
        }
    }

    /// Fetch one chunk; what does not match its hash is a miss.
    pub(super) fn get_one(&self, hash: &ChunkHash, until: &Until) -> Result<Option<Arc<Buffer>>, Error> {
        let lookup = self.lookup_of_chunk(hash);
        let mut place = hash.lying(lookup.first);
        let mut found = self.get_from(&place, until)?;
        let elsewhere = found.is_none() && !self.is_damaged(&place) && !until.is_others(&place);
        if let Some(then) = lookup.then.filter(|_| elsewhere) {
            place = hash.lying(then);
            found = self.get_from(&place, until)?;
            self.saw_layout1(&place, found.is_some());
        }
        Ok(found.and_then(|data| self.check(&place, data, until)))
    }

    /// Fetch one chunk from where it may lie, unchecked.
    fn get_from(&self, hash: &ChunkHash, until: &Until) -> ChunkAnswer {
        let answer = self.backend.get(std::slice::from_ref(hash), &mut [], until)?.into_iter().next();
        let found =
            self.chunk_of(hash, answer.unwrap_or_else(|| Err(contract_violation("answered no outcome"))), until);
        self.learn(std::slice::from_ref(hash), std::slice::from_ref(&found));
        found
    }

    /// The chunk that a backend has answered into a buffer. What came damaged out of its envelope is a miss.
    fn chunk_of(&self, hash: &ChunkHash, answer: Result<Option<Got>, Error>, until: &Until) -> ChunkAnswer {
        match answer? {
            None => Ok(None),
            Some(Got::Buffer(data)) => Ok(Some(data)),
            Some(Got::Damaged(damaged)) => match self.found_damaged_envelope(hash, *damaged, until) {
                Damage::Passing(sound) => Ok(Some(sound)),
                Damage::Removed | Damage::Stays(_) => Ok(None),
            },
            // There is no memory that it could be in, or be too small.
            Some(Got::Placed(_) | Got::TooLong(_)) => Err(contract_violation("answered bytes that are nowhere")),
        }
    }

    /// Fetch chunks: an answer for some of them, from the first on. What failed is a miss here.
    pub(super) fn get_some(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<Option<Arc<Buffer>>>, Error> {
        let answers = self.get_looked_up(hashes, until)?;
        let checked = |(hash, answer): (ChunkHash, ChunkAnswer)| {
            answer.ok().flatten().and_then(|data| self.check(&hash, data, until))
        };
        Ok(answers.into_iter().map(checked).collect())
    }

    /// Fetch chunks where `get_chunk` looks for them: an answer for some of them, from the first on, and where each was found. One
    /// call, and one more for those that may be in another layout.
    fn get_looked_up(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<(ChunkHash, ChunkAnswer)>, Error> {
        let lookups: Vec<Lookup> = hashes.iter().map(|hash| self.lookup_of_chunk(hash)).collect();
        let first: Vec<ChunkHash> =
            hashes.iter().zip(&lookups).map(|(hash, lookup)| hash.lying(lookup.first)).collect();
        let answers = self.get_answers(&first, until)?;
        self.learn(&first, &answers);
        let mut found: Vec<(ChunkHash, ChunkAnswer)> = first.into_iter().zip(answers).collect();
        let then = |((hash, answer), lookup): (&(ChunkHash, ChunkAnswer), &Lookup)| {
            let elsewhere = matches!(answer, Ok(None)) && !self.is_damaged(hash) && !until.is_others(hash);
            let then = lookup.then.filter(|_| elsewhere)?;
            Some(hash.lying(then))
        };
        let asked: Vec<Option<ChunkHash>> = found.iter().zip(&lookups).map(then).collect();
        let mut rest: Vec<ChunkHash> = asked.iter().flatten().copied().collect();
        let mut places = asked.iter().enumerate().filter(|(_, asked)| asked.is_some()).map(|(at, _)| at);
        while !rest.is_empty() {
            let answers = self.get_answers(&rest, until)?;
            self.learn(&rest, &answers);
            let left = rest.split_off(answers.len().min(rest.len()));
            for ((hash, answer), at) in std::mem::replace(&mut rest, left).into_iter().zip(answers).zip(&mut places) {
                self.saw_layout1(&hash, matches!(answer, Ok(Some(_))));
                if let Some(place) = found.get_mut(at) {
                    *place = (hash, answer);
                }
            }
        }
        Ok(found)
    }

    /// Count a chunk that was found where earlier versions put it.
    pub(super) fn saw_layout1(&self, hash: &ChunkHash, found: bool) {
        self.counters.add(Event::Layout1Reads, u64::from(found && !hash.is_enveloped()));
    }

    fn learn(&self, hashes: &[ChunkHash], answers: &[ChunkAnswer]) {
        let found = hashes.iter().zip(answers).filter_map(|(hash, answer)| match answer {
            Ok(Some(data)) if !hash.is_enveloped() => Some((hash, &data[..])),
            _ => None,
        });
        self.verifier.saw_fetched(found);
    }

    /// Let the next put of a chunk mend it. Answers whether that is news.
    pub(super) fn mark_damaged(&self, hash: &ChunkHash) -> bool {
        self.known().found_damaged(*hash)
    }

    /// Make `fresh` durable, where the backend is, and publish a manifest, if there is one.
    ///
    /// A failure may leave it unknown whether the manifest is there: `tests/models/src/hold.rs` has the table that such keys need.
    pub(super) fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error> {
        self.backend.commit(manifest, fresh, bytes, until)
    }

    /// Take room for buffered bytes in the process, of the store's share.
    pub(super) fn reserve_buffer(&self, bytes: usize) -> bool {
        self.reach.shares.write_buffers.take(bytes as u64).is_ok()
    }

    pub(super) fn release_buffer(&self, bytes: usize) {
        self.reach.shares.write_buffers.give_back(bytes as u64);
    }
}
