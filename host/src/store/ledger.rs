//! The ledger of one save: what is known of each chunk that was put and that no manifest names yet.
//!
//! Pure: no I/O, no locks, no clock. Who does the I/O asks the ledger what to do next and tells it what happened.
//!
//! A chunk is in one place. It *waits* in memory until the backend has it; it is *stored*, confirmed by the backend at some
//! moment; or it is *lost*: its put was accepted, and it is not in the store. A stored chunk leaves the ledger when a commit has
//! named it. A lost chunk fails every commit until it is put again, or until [`LOSS_TOLD_FOR`] has passed since the loss was
//! first told; so each of several threads that share a save hears of it. Where the backend refused the chunk for good, a put
//! of it in that time is refused too: what is not accepted is not lost.

use std::time::Instant;

use super::hash::{ChunkHash, ChunkMap};
use crate::error::Error;
use crate::limits::{CONFIRMED_FOR, LOSS_TOLD_FOR, MAX_FRESH_CHUNKS};

/// `D`: the bytes of a waiting chunk.
pub(super) struct Ledger<D> {
    chunks: ChunkMap<Place<D>>,
    lost: ChunkMap<Loss>,
    /// Numbers the events, so that chunks are handed on in the order of the puts and a commit settles only what it named.
    events: u64,
    /// What the waiting chunks take, by [`cost`].
    waiting_bytes: usize,
}

enum Place<D> {
    Waiting {
        data: D,
        len: usize,
        order: u64,
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
    /// It was put again, and refused: whoever needs it knows, and it fails no commit any more.
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
                loss.told.get_or_insert(now);
                loss.put_again = true;
                return Err(loss.why.clone());
            }
            _ => {}
        }
        Ok(match self.chunks.get(hash) {
            Some(Place::Waiting { .. }) => Admission::Held,
            Some(Place::Stored { .. }) if !damaged => Admission::Held,
            Some(Place::Stored { .. }) => Admission::New,
            None if self.chunks.len() + self.lost.len() >= MAX_FRESH_CHUNKS => Admission::Full,
            None => Admission::New,
        })
    }

    /// A chunk was accepted and waits. Returns the memory of a former one, which is free now.
    pub(super) fn wait(&mut self, hash: ChunkHash, data: D, len: usize) -> usize {
        self.lost.remove(&hash);
        let order = self.next();
        self.waiting_bytes += cost(len);
        let former = self.chunks.insert(hash, Place::Waiting { data, len, order });
        self.freed(former)
    }

    /// The backend has a chunk, as it said at `confirmed`. Returns the memory of its waiting bytes, which is free now.
    pub(super) fn stored(&mut self, hash: ChunkHash, len: usize, confirmed: Instant, generation: u64) -> usize {
        self.lost.remove(&hash);
        let order = self.next();
        let former = self.chunks.insert(hash, Place::Stored { len, order, confirmed, generation });
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
        let gone = |place: &Place<D>| matches!(place, Place::Stored { generation, .. } if *generation != current);
        for (hash, _) in self.chunks.extract_if(|_, place| gone(place)) {
            self.lost.insert(hash, Loss { why: why.clone(), refused: false, put_again: false, told: None });
        }
    }

    /// The bytes of a chunk that waits.
    pub(super) fn data(&self, hash: &ChunkHash) -> Option<&D> {
        match self.chunks.get(hash) {
            Some(Place::Waiting { data, .. }) => Some(data),
            _ => None,
        }
    }

    /// The chunks that wait, in the order of the puts.
    pub(super) fn waiting(&self) -> Vec<(ChunkHash, D)> {
        let mut waiting: Vec<_> = self
            .chunks
            .iter()
            .filter_map(|(hash, place)| match place {
                Place::Waiting { data, order, .. } => Some((*order, *hash, data)),
                Place::Stored { .. } => None,
            })
            .collect();
        waiting.sort_unstable_by_key(|(order, ..)| *order);
        waiting.into_iter().map(|(_, hash, data)| (hash, data.clone())).collect()
    }

    pub(super) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Stored chunks that the backend confirmed so long ago that a commit asks again.
    pub(super) fn unconfirmed(&self, now: Instant) -> Vec<ChunkHash> {
        let old = |confirmed: Instant| now.saturating_duration_since(confirmed) >= CONFIRMED_FOR;
        let stale = |place: &Place<D>| matches!(place, Place::Stored { confirmed, .. } if old(*confirmed));
        self.chunks.iter().filter(|(_, place)| stale(place)).map(|(hash, _)| *hash).collect()
    }

    /// The backend still had a chunk at a moment.
    pub(super) fn confirm(&mut self, hash: &ChunkHash, now: Instant) {
        if let Some(Place::Stored { confirmed, .. }) = self.chunks.get_mut(hash) {
            *confirmed = now;
        }
    }

    /// Why nothing may be committed: chunks were lost. Whoever asks is told.
    pub(super) fn tell(&mut self, now: Instant) -> Option<Error> {
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
                Place::Stored { order, len, .. } => Some((*order, *hash, *len as u64)),
                Place::Waiting { .. } => None,
            })
            .collect();
        stored.sort_unstable_by_key(|(order, ..)| *order);
        stored.truncate(count);
        let bytes = stored.iter().map(|(.., len)| (*len).max(LEAST_BYTES)).sum();
        let mark = Mark(stored.last().map_or(0, |(order, ..)| *order));
        Unnamed { hashes: stored.into_iter().map(|(_, hash, _)| hash).collect(), bytes, mark }
    }

    /// A commit has named every chunk that was stored up to a mark.
    pub(super) fn named(&mut self, mark: Mark) {
        self.chunks.retain(|_, place| !matches!(place, Place::Stored { order, .. } if *order <= mark.0));
    }

    /// Forget everything. Returns how many chunks waited and their memory, which is free now.
    pub(super) fn discard(&mut self) -> (usize, usize) {
        let waiting = self.chunks.values().filter(|place| matches!(place, Place::Waiting { .. })).count();
        let freed = std::mem::take(self).waiting_bytes;
        (waiting, freed)
    }

    fn next(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    fn freed(&mut self, former: Option<Place<D>>) -> usize {
        let Some(Place::Waiting { len, .. }) = former else { return 0 };
        self.waiting_bytes -= cost(len);
        cost(len)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;

    fn hash(n: u8) -> ChunkHash {
        ChunkHash::new(&[n]).unwrap()
    }

    fn hashes(numbers: &[u8]) -> Vec<ChunkHash> {
        numbers.iter().map(|n| hash(*n)).collect()
    }

    fn gone() -> Error {
        Error::new(ErrorKind::Unavailable, "gone")
    }

    #[test]
    fn a_loss_is_told_to_everybody_until_its_window_ends() {
        let (mut ledger, start) = (Ledger::<()>::default(), Instant::now());
        ledger.stored(hash(1), 10, start, 0);
        ledger.lose(hash(1), gone());
        let told = start + Duration::from_secs(3600);
        assert!(ledger.tell(told).is_some(), "a loss that nobody was told of does not pass");
        assert!(ledger.tell(told + LOSS_TOLD_FOR - Duration::from_millis(1)).is_some());
        assert!(ledger.tell(told + LOSS_TOLD_FOR).is_none());
    }

    #[test]
    fn a_chunk_that_is_put_again_is_not_lost() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.lose(hash(1), gone());
        ledger.lose(hash(2), gone());
        assert!(ledger.tell(now).unwrap().to_string().contains("2 chunks are lost"));
        ledger.wait(hash(1), (), 10);
        assert!(ledger.tell(now).is_some());
        ledger.stored(hash(2), 10, now, 0);
        assert!(ledger.tell(now).is_none());
    }

    #[test]
    fn a_chunk_that_was_refused_for_good_is_refused_again_for_the_window() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.wait(hash(1), (), 10);
        assert_eq!(ledger.refused(hash(1), Error::invalid("too large")), cost(10));
        assert!(ledger.admit(&hash(1), false, now).is_err());
        assert!(ledger.tell(now).is_none(), "who put it again knows that it is not there");
        assert!(ledger.admit(&hash(1), false, now + LOSS_TOLD_FOR / 2).is_err());
        assert!(matches!(ledger.admit(&hash(1), false, now + LOSS_TOLD_FOR), Ok(Admission::New)));
        assert!(ledger.tell(now + LOSS_TOLD_FOR).is_none());
    }

    #[test]
    fn what_is_stored_during_a_commit_stays_for_the_next() {
        let (mut ledger, now) = (Ledger::<()>::default(), Instant::now());
        ledger.stored(hash(1), 10, now, 0);
        ledger.stored(hash(2), 10, now, 0);
        let unnamed = ledger.unnamed();
        assert_eq!((unnamed.hashes, unnamed.bytes), (hashes(&[1, 2]), 2 * LEAST_BYTES));
        ledger.stored(hash(2), 10, now, 0);
        ledger.stored(hash(3), 1 << 20, now, 0);
        ledger.named(unnamed.mark);
        assert!(ledger.unnamed().hashes == hashes(&[2, 3]));
    }

    #[test]
    fn data_of_a_lost_instance_is_lost_and_what_waits_is_not() {
        let (mut ledger, now) = (Ledger::default(), Instant::now());
        ledger.stored(hash(1), 10, now, 0);
        ledger.stored(hash(2), 10, now, 1);
        ledger.wait(hash(3), (), 10);
        ledger.lose_other_generations(1, &gone());
        assert!(ledger.lost().eq([&hash(1)]));
        assert_eq!(ledger.waiting().len(), 1);
    }

    #[test]
    fn a_full_ledger_lets_go_of_its_oldest_half() {
        let (mut ledger, now) = (Ledger::<()>::default(), Instant::now());
        let nth = |n: u32| ChunkHash::new(&n.to_le_bytes()).unwrap();
        for n in 0..MAX_FRESH_CHUNKS as u32 {
            assert!(matches!(ledger.admit(&nth(n), false, now), Ok(Admission::New)));
            ledger.stored(nth(n), 1, now, 0);
        }
        let next = nth(MAX_FRESH_CHUNKS as u32);
        assert!(matches!(ledger.admit(&next, false, now), Ok(Admission::Full)));
        let oldest = ledger.oldest_half();
        assert_eq!((oldest.hashes.len(), oldest.hashes[0] == nth(0)), (MAX_FRESH_CHUNKS / 2, true));
        ledger.named(oldest.mark);
        assert!(matches!(ledger.admit(&next, false, now), Ok(Admission::New)));
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Put(u8),
        Store(u8),
        Refuse(u8),
        Lose(u8),
        Tell,
        Commit,
        Sleep(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        let chunk = 0..6_u8;
        prop_oneof![
            3 => chunk.clone().prop_map(Step::Put),
            3 => chunk.clone().prop_map(Step::Store),
            1 => chunk.clone().prop_map(Step::Refuse),
            1 => chunk.prop_map(Step::Lose),
            2 => Just(Step::Tell),
            2 => Just(Step::Commit),
            1 => (0..3000_u64).prop_map(Step::Sleep),
        ]
    }

    struct Lost {
        told: Option<u64>,
        refused: bool,
        put_again: bool,
    }

    /// The rules, told as plainly as can be.
    #[derive(Default)]
    struct Oracle {
        waiting: BTreeSet<u8>,
        stored: Vec<u8>,
        lost: BTreeMap<u8, Lost>,
        now: u64,
    }

    impl Oracle {
        fn is_over(&self, lost: &Lost) -> bool {
            lost.told.is_some_and(|told| self.now - told >= LOSS_TOLD_FOR.as_millis() as u64)
        }

        /// Whether a put is refused.
        fn put(&mut self, chunk: u8) -> bool {
            if self.lost.get(&chunk).is_some_and(|lost| self.is_over(lost)) {
                self.lost.remove(&chunk);
            }
            let now = self.now;
            let Some(lost) = self.lost.get_mut(&chunk).filter(|lost| lost.refused) else { return false };
            (lost.told, lost.put_again) = (lost.told.or(Some(now)), true);
            true
        }

        fn lose(&mut self, chunk: u8, refused: bool) {
            self.waiting.remove(&chunk);
            self.stored.retain(|stored| *stored != chunk);
            self.lost.insert(chunk, Lost { told: None, refused, put_again: false });
        }

        fn tell(&mut self) -> bool {
            let now = self.now;
            let over: Vec<u8> = self.lost.iter().filter(|(_, lost)| self.is_over(lost)).map(|(n, _)| *n).collect();
            self.lost.retain(|n, _| !over.contains(n));
            let failing = self.lost.values().any(|lost| !lost.put_again);
            self.lost.values_mut().filter(|lost| !lost.put_again).for_each(|lost| lost.told = lost.told.or(Some(now)));
            failing
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_the_rules(steps in prop::collection::vec(step(), 0..200)) {
            let (mut ledger, mut oracle, start) = (Ledger::default(), Oracle::default(), Instant::now());
            for step in steps {
                let now = start + Duration::from_millis(oracle.now);
                match step {
                    Step::Put(n) => {
                        let admitted = ledger.admit(&hash(n), false, now);
                        let refused = oracle.put(n);
                        prop_assert_eq!(admitted.is_err(), refused);
                        if refused {
                            continue;
                        }
                        let held = oracle.waiting.contains(&n) || oracle.stored.contains(&n);
                        prop_assert_eq!(matches!(admitted, Ok(Admission::Held)), held);
                        if !held {
                            ledger.wait(hash(n), n, 10);
                            oracle.waiting.insert(n);
                            oracle.lost.remove(&n);
                        }
                    }
                    Step::Store(n) => {
                        let freed = ledger.stored(hash(n), 10, now, 0);
                        prop_assert_eq!(freed > 0, oracle.waiting.remove(&n));
                        oracle.stored.retain(|stored| *stored != n);
                        oracle.stored.push(n);
                        oracle.lost.remove(&n);
                    }
                    Step::Refuse(n) => {
                        ledger.refused(hash(n), gone());
                        oracle.lose(n, true);
                    }
                    Step::Lose(n) => {
                        ledger.lose(hash(n), gone());
                        oracle.lose(n, false);
                    }
                    Step::Tell => prop_assert_eq!(ledger.tell(now).is_some(), oracle.tell()),
                    Step::Commit => {
                        let unnamed = ledger.unnamed();
                        prop_assert!(unnamed.hashes == hashes(&oracle.stored));
                        ledger.named(unnamed.mark);
                        oracle.stored.clear();
                    }
                    Step::Sleep(millis) => oracle.now += millis,
                }
                let waiting: BTreeSet<u8> = ledger.waiting().iter().map(|(_, n)| *n).collect();
                prop_assert_eq!(&waiting, &oracle.waiting);
                prop_assert_eq!(ledger.waiting_bytes(), waiting.len() * cost(10));
            }
        }
    }
}
