//! Whole batches over calls that may answer less: a backend may answer only the first items of a batch, and a batch may be
//! too large for one call. Here each item gets its outcome; large batches are cut and run side by side.

use crate::backend::{Backend, Changes, ChunkHash, ChunkToPut, Got, Presence, Put, Remembering, Target};
use crate::envelope::stored_key;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::threads::Lent;
use crate::until::Until;

/// The calls of a backend that take a batch of any size.
#[derive(Clone, Copy)]
pub(super) struct Batches<'a> {
    pub backend: &'a Remembering,
    /// Those that ended unknown and may still be carried out.
    pub changes: &'a Changes,
    /// What suits one call.
    pub items: usize,
    pub bytes: u64,
    /// A put is preceded by the question which chunks exist.
    pub asks_first: bool,
    /// Threads beside the caller's, and how many may work at once with it.
    pub helpers: Option<(Lent<'a>, usize)>,
}

/// A chunk to put, and which of the call's it is.
type Numbered<'a> = (usize, &'a ChunkToPut<'a>);

/// What became of a batch.
pub(super) struct BatchOutcomes<T> {
    /// The outcome of each item in order. `None`: nothing is known of it, because the whole call failed.
    pub items: Vec<Option<Result<T, Error>>>,
    /// Why a call failed.
    pub failure: Option<Error>,
}

impl<T> BatchOutcomes<T> {
    fn unknown(len: usize) -> Self {
        BatchOutcomes { items: std::iter::repeat_with(|| None).take(len).collect(), failure: None }
    }

    fn join(parts: Vec<Self>) -> Self {
        let mut parts = parts.into_iter();
        let mut joined = parts.next().unwrap_or_else(|| BatchOutcomes::unknown(0));
        for part in parts {
            joined.items.extend(part.items);
            joined.failure = joined.failure.or(part.failure);
        }
        joined
    }

    fn set(&mut self, index: usize, outcome: Result<T, Error>) {
        if let Some(place) = self.items.get_mut(index) {
            *place = Some(outcome);
        }
    }

    /// An outcome for each item, where it does not matter whether the item failed or the whole call.
    pub(super) fn each(self) -> Vec<Result<T, Error>> {
        let failure = self.failure.unwrap_or_else(|| Error::new(ErrorKind::Other, "the call was not made"));
        self.items.into_iter().map(|item| item.unwrap_or_else(|| Err(failure.clone()))).collect()
    }
}

impl Batches<'_> {
    /// Run `work` on each of several batches, with the help of other threads where the backend can serve them. The results
    /// are in the order of the batches.
    pub(super) fn side_by_side<T: Sync, R: Send>(&self, batches: &[T], work: &(dyn Fn(&T) -> R + Sync)) -> Vec<R> {
        match self.helpers {
            Some((helpers, hands)) if batches.len() > 1 => helpers.map(hands, batches, work),
            _ => batches.iter().map(work).collect(),
        }
    }

    fn hands(&self) -> usize {
        self.helpers.map_or(1, |(_, hands)| hands)
    }

    /// Store what the backend does not have, side by side where it allows that. `replace`: store also what it has.
    pub(super) fn put_all(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> BatchOutcomes<Put> {
        let mut outcomes = BatchOutcomes::unknown(chunks.len());
        let (damaged, mut missing): (Vec<_>, Vec<_>) = {
            let known = self.backend.known();
            chunks.iter().enumerate().partition(|(_, (hash, _))| known.is_damaged(hash))
        };
        let mut unsettled = Vec::new();
        if self.asks_first && !replace {
            // One that is there may be about to go: its put waits for that, or settles it.
            if self.changes.holds() {
                let is_unsettled = |(_, (hash, _)): &Numbered<'_>| self.changes.is_unsettled(&stored_key(hash));
                (unsettled, missing) = missing.into_iter().partition(is_unsettled);
            }
            // Of all of them at once: most batches are there as a whole, or not at all.
            let hashes: Vec<ChunkHash> = missing.iter().map(|(_, (hash, _))| *hash).collect();
            let BatchOutcomes { items, failure } = self.present_for_put(&hashes, until);
            outcomes.failure = failure;
            let mut items = items.into_iter();
            missing.retain(|(index, (hash, _))| match items.next().flatten() {
                Some(Ok(Presence::Present(_))) => {
                    self.backend.known().existed(*hash);
                    outcomes.set(*index, Ok(Put::Existed));
                    false
                }
                Some(Ok(Presence::Absent)) => true,
                Some(Err(error)) => {
                    outcomes.set(*index, Err(error));
                    false
                }
                None => false,
            });
        }
        for (chunks, replace) in [(missing, replace), (unsettled, replace), (damaged, true)] {
            let batches = self.cut(&chunks);
            let parts = self.side_by_side(&batches, &|batch| self.put_batch(batch, replace, until));
            let BatchOutcomes { items, failure } = BatchOutcomes::join(parts);
            outcomes.failure = outcomes.failure.or(failure);
            for ((index, _), outcome) in chunks.iter().zip(items) {
                if let Some(outcome) = outcome {
                    outcomes.set(*index, outcome);
                }
            }
        }
        outcomes
    }

    /// Chunks in batches that keep all hands busy.
    fn cut<'c, 'd>(&self, mut rest: &'c [Numbered<'d>]) -> Vec<&'c [Numbered<'d>]> {
        let hands = self.hands();
        let bytes: u64 = rest.iter().map(|(_, (_, data))| data.len() as u64).sum();
        let share = (bytes / (2 * hands as u64)).max(limits::LEAST_BATCH_BYTES);
        let most = if hands > 1 { self.bytes.min(share) } else { self.bytes };
        let mut batches = Vec::new();
        while !rest.is_empty() {
            let (batch, behind) = rest.split_at(one_batch(rest, self.items, most));
            batches.push(batch);
            rest = behind;
        }
        batches
    }

    /// Store one batch, with as many calls as it takes.
    fn put_batch(&self, mut rest: &[Numbered<'_>], replace: bool, until: &Until) -> BatchOutcomes<Put> {
        let mut outcomes = BatchOutcomes::unknown(rest.len());
        let mut done = 0;
        // How many of the rest go one by one, because a batch of them was too much for the guest.
        let mut singly = 0_usize;
        while !rest.is_empty() {
            let count = if singly > 0 { 1 } else { one_batch(rest, self.items, self.bytes) };
            let batch: Vec<ChunkToPut<'_>> = rest.iter().take(count).map(|(_, chunk)| **chunk).collect();
            let answers = match self.backend.put(&batch, replace, until) {
                Err(error) if error.kind() == ErrorKind::Component && batch.len() > 1 => {
                    singly = batch.len();
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Component => vec![Err(error)],
                Err(error) => {
                    outcomes.failure = Some(error);
                    break;
                }
                Ok(answers) => answers,
            };
            let answered = answers.len();
            singly = singly.saturating_sub(answered);
            for answer in answers {
                outcomes.set(done, answer);
                done += 1;
            }
            rest = rest.get(answered..).unwrap_or_default();
        }
        outcomes
    }

    /// Fetch chunks, each to its target as the backend answers it; side by side where the backend allows that. `judge` looks at what
    /// one call has fetched as soon as it is there, because then it is still in a cache of the processor.
    pub(super) fn get_all<T: Send>(
        &self,
        hashes: &[ChunkHash],
        targets: &[Target<'_>],
        judge: &(dyn Fn(&ChunkHash, &Target<'_>, &Got) -> T + Sync),
        until: &Until,
    ) -> BatchOutcomes<Option<(Got, T)>> {
        let most = self.items.min(hashes.len().div_ceil(self.hands()).max(limits::LEAST_BATCH_ITEMS));
        let batches: Vec<_> = hashes.chunks(most).zip(targets.chunks(most)).collect();
        BatchOutcomes::join(self.side_by_side(&batches, &|(hashes, targets)| {
            let mut targets = targets.to_vec();
            let mut outcomes = BatchOutcomes::unknown(hashes.len());
            let mut done = 0;
            while let (Some(rest @ [_, ..]), Some(targets)) = (hashes.get(done..), targets.get_mut(done..)) {
                match self.backend.get(rest, targets, until) {
                    Ok(answers) => {
                        for ((hash, target), answer) in rest.iter().zip(targets).zip(answers) {
                            let judged = |got| {
                                let judged = judge(hash, target, &got);
                                (got, judged)
                            };
                            outcomes.set(done, answer.map(|got| got.map(judged)));
                            done += 1;
                        }
                    }
                    Err(error) => {
                        outcomes.failure = Some(error);
                        break;
                    }
                }
            }
            outcomes
        }))
    }

    /// Remove chunks.
    /// `removed` is told of the chunks of each call when that has ended, however it ended.
    pub(super) fn delete_all(
        &self,
        hashes: &[ChunkHash],
        removed: &(dyn Fn(&[ChunkHash]) + Sync),
        until: &Until,
    ) -> BatchOutcomes<()> {
        let batches: Vec<&[ChunkHash]> = hashes.chunks(self.items).collect();
        BatchOutcomes::join(self.side_by_side(&batches, &|batch| {
            let mut outcomes = BatchOutcomes::unknown(batch.len());
            let mut done = 0;
            while let Some(rest) = batch.get(done..).filter(|rest| !rest.is_empty()) {
                let deleted = self.backend.delete(rest, until);
                removed(rest);
                let answers = match deleted {
                    Ok(answers) => answers,
                    Err(error) => {
                        outcomes.failure = Some(error);
                        break;
                    }
                };
                for (hash, answer) in rest.iter().zip(answers) {
                    if answer.is_ok() {
                        self.backend.known().absent(hash);
                    }
                    outcomes.set(done, answer);
                    done += 1;
                }
            }
            outcomes
        }))
    }

    /// Which chunks of one batch the backend has, so that they need not be put; one answer for each hash.
    pub(super) fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<bool>, Error> {
        let mut known = Vec::with_capacity(hashes.len());
        while let Some(rest) = hashes.get(known.len()..).filter(|rest| !rest.is_empty()) {
            for answer in self.backend.exists_for_put(rest, until)? {
                known.push(match answer {
                    Ok(presence) => matches!(presence, Presence::Present(_)),
                    // A put of it is refused.
                    Err(error) if error.kind() == ErrorKind::Mismatch => false,
                    Err(error) => return Err(error),
                });
            }
        }
        Ok(known)
    }

    /// Which chunks need not be put; one that lies under another descriptor is `Mismatch`.
    fn present_for_put(&self, hashes: &[ChunkHash], until: &Until) -> BatchOutcomes<Presence> {
        let batches: Vec<&[ChunkHash]> = hashes.chunks(self.items).collect();
        BatchOutcomes::join(self.side_by_side(&batches, &|batch| {
            let mut outcomes = BatchOutcomes::unknown(batch.len());
            let mut done = 0;
            while let Some(rest) = batch.get(done..).filter(|rest| !rest.is_empty()) {
                match self.backend.exists_for_put(rest, until) {
                    Ok(answers) => {
                        for answer in answers {
                            outcomes.set(done, answer);
                            done += 1;
                        }
                    }
                    Err(error) => {
                        outcomes.failure = Some(error);
                        break;
                    }
                }
            }
            outcomes
        }))
    }

    /// Which chunks of one batch the backend has. Where an item failed, or a whole call, nothing is known of the batch.
    fn presence(&self, hashes: &[ChunkHash], until: &Until) -> Result<Vec<Result<Presence, Error>>, Error> {
        let mut known = self.backend.exists(hashes, until)?;
        while let Some(rest) = hashes.get(known.len()..).filter(|rest| !rest.is_empty()) {
            known.append(&mut self.backend.exists(rest, until)?);
        }
        match known.iter().find_map(|answer| answer.as_ref().err()) {
            Some(error) => Err(error.clone()),
            None => Ok(known),
        }
    }

    /// Which chunks the backend has, with the lengths that it knows: an outcome for each.
    pub(super) fn exists_all(&self, hashes: &[ChunkHash], until: &Until) -> Vec<Result<Presence, Error>> {
        let batches: Vec<&[ChunkHash]> = hashes.chunks(self.items).collect();
        let mut parts = self.side_by_side(&batches, &|batch| {
            self.presence(batch, until).unwrap_or_else(|error| batch.iter().map(|_| Err(error.clone())).collect())
        });
        match parts.as_mut_slice() {
            [whole] => std::mem::take(whole),
            parts => parts.iter_mut().flat_map(std::mem::take).collect(),
        }
    }
}

/// How many chunks, from the first, go into one call: at least one.
fn one_batch(chunks: &[Numbered<'_>], items: usize, limit: u64) -> usize {
    let mut bytes = 0;
    let fits = |(_, (_, data)): &&Numbered<'_>| {
        bytes += data.len() as u64;
        bytes <= limit
    };
    chunks.iter().take(items).take_while(fits).count().max(1).min(chunks.len())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::{Arc, LazyLock};

    use super::*;
    use crate::backend::Bytes;
    use crate::backend::fake::{Fake, hashes};
    use crate::limits::Limits;
    use crate::process::Clock;

    const DATA: &[u8] = b"0123456789";

    fn around(fake: &Arc<Fake>) -> (Remembering, Until) {
        (Remembering::new(fake.clone()), Until::new(&Limits::default()))
    }

    fn batches(backend: &Remembering) -> Batches<'_> {
        static CHANGES: LazyLock<Changes> = LazyLock::new(|| Changes::new(Clock::default()));
        Batches { backend, changes: &CHANGES, items: 4, bytes: 25, asks_first: false, helpers: None }
    }

    fn chunks(count: usize) -> Vec<ChunkToPut<'static>> {
        hashes(count).into_iter().map(|hash| (hash, Bytes::Borrowed(DATA))).collect()
    }

    #[test]
    fn each_item_has_its_outcome_however_little_a_call_answers() {
        for most in [1, 2, 3, 0] {
            let fake = Arc::new(Fake::default());
            fake.most_answered.store(most, Relaxed);
            let (backend, until) = around(&fake);
            let batches = batches(&backend);
            let outcomes = batches.put_all(&chunks(9), false, &until).each();
            assert!(outcomes.len() == 9 && outcomes.iter().all(|outcome| matches!(outcome, Ok(Put::New))));
            // Two of 10 bytes are in 25.
            assert!(fake.calls() >= 5);
            let targets = vec![Target::ALLOCATE; 10];
            let judge = |hash: &ChunkHash, _: &Target<'_>, _: &Got| *hash;
            let got = batches.get_all(&hashes(10), &targets, &judge, &until).each();
            for (got, hash) in got[..9].iter().zip(hashes(9)) {
                assert!(
                    matches!(got, Ok(Some((Got::Buffer(data), judged))) if data[..] == *DATA && *judged == hash),
                    "{got:?}"
                );
            }
            assert!(matches!(got[9], Ok(None)));
            let present = batches.exists_all(&hashes(10), &until);
            assert!(present[..9].iter().all(|present| matches!(present, Ok(Presence::Present(Some(10))))));
            assert!(matches!(present[9], Ok(Presence::Absent)));
            assert!(batches.delete_all(&hashes(9), &|_| (), &until).each().iter().all(Result::is_ok));
            assert_eq!(batches.exists(&hashes(9), &until).unwrap(), [false; 9]);
        }
    }

    #[test]
    fn a_batch_that_is_too_much_for_the_component_goes_one_by_one() {
        let fake = Arc::new(Fake::default());
        fake.too_many.store(2, Relaxed);
        let (backend, until) = around(&fake);
        let outcomes = batches(&backend).put_all(&chunks(4), false, &until).each();
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    }

    #[test]
    fn an_item_that_is_too_much_by_itself_fails_alone() {
        let fake = Arc::new(Fake::default());
        fake.too_many.store(1, Relaxed);
        let (backend, until) = around(&fake);
        let BatchOutcomes { items, failure } = batches(&backend).put_all(&chunks(3), false, &until);
        let of_component =
            |put: &Option<Result<Put, Error>>| matches!(put, Some(Err(error)) if error.kind() == ErrorKind::Component);
        assert!(failure.is_none() && items.iter().all(of_component), "{items:?}");
        assert!(fake.calls() >= 3, "each was tried");
    }

    #[test]
    fn what_exists_is_not_put_and_what_is_damaged_is_replaced() {
        let fake = Arc::new(Fake::default());
        let (backend, until) = around(&fake);
        let batches = Batches { asks_first: true, ..batches(&backend) };
        assert!(batches.put_all(&chunks(2), false, &until).each().iter().all(Result::is_ok));
        backend.known().found_damaged(hashes(1)[0]);
        let again = batches.put_all(&chunks(2), false, &until).each();
        assert!(matches!(again[..], [Ok(Put::New), Ok(Put::Existed)]), "{again:?}");
        // However many bytes they have, one question tells that all are there.
        let before = fake.calls();
        let batches = Batches { items: 100, ..batches };
        assert!(batches.put_all(&chunks(9), false, &until).each().iter().all(Result::is_ok));
        let of_nine = fake.calls() - before;
        assert!(batches.put_all(&chunks(9), false, &until).each().iter().all(|put| matches!(put, Ok(Put::Existed))));
        assert!(of_nine > 2 && fake.calls() - before == of_nine + 1);
    }

    #[test]
    fn a_call_that_failed_leaves_what_was_answered_before() {
        let fake = Arc::new(Fake::default());
        let (backend, until) = around(&fake);
        let batches = batches(&backend);
        fake.fail_calls(Some(Error::new(ErrorKind::Unavailable, "away")));
        let BatchOutcomes { items, failure } = batches.put_all(&chunks(9), false, &until);
        assert!(items.len() == 9 && items.iter().all(Option::is_none) && failure.is_some());
        let got = batches.get_all(&hashes(3), &[Target::ALLOCATE; 3], &|_, _, _| (), &until).each();
        assert!(got.iter().all(Result::is_err));
        let present = batches.exists_all(&hashes(9), &until);
        assert!(present.len() == 9 && present.iter().all(Result::is_err));
    }
}
