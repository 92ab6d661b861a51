//! Whole batches over calls that may answer less: a guest may answer only the first items of a batch, and a batch may be
//! too large for one call. Here each item gets its outcome; large batches are cut and run side by side.

use super::Put;
use super::hash::ChunkHash;
use super::shared::{Bytes, Shared};
use super::target::Target;
use crate::bindings::exports::kv_store::backend::store::Presence;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::Got;
use crate::until::Until;

/// A chunk to put.
pub(super) type NewChunk<'a> = (ChunkHash, Bytes<'a>);

/// What became of a batch.
pub(super) struct Outcomes<T> {
    /// The outcome of each item in order. `None`: nothing is known of it, because the whole call failed.
    pub items: Vec<Option<Result<T, Error>>>,
    /// Why a call failed.
    pub failure: Option<Error>,
}

impl<T> Outcomes<T> {
    fn unknown(len: usize) -> Self {
        Outcomes { items: std::iter::repeat_with(|| None).take(len).collect(), failure: None }
    }

    fn join(parts: Vec<Self>) -> Self {
        let mut joined = Outcomes { items: Vec::new(), failure: None };
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

impl Shared {
    /// Store what the backend does not have, side by side where it allows that. `replace`: store also what it has.
    pub(super) fn put_all(&self, chunks: &[NewChunk<'_>], replace: bool, until: &Until) -> Outcomes<Put> {
        let hands = self.hands();
        let bytes: u64 = chunks.iter().map(|(_, data)| data.len() as u64).sum();
        let share = (bytes / (2 * hands as u64)).max(limits::LEAST_BATCH_BYTES);
        let most = if hands > 1 { self.batch_bytes().min(share) } else { self.batch_bytes() };
        let mut batches = Vec::new();
        let mut rest = chunks;
        while !rest.is_empty() {
            let (batch, behind) = rest.split_at(one_batch(rest, self.batch_items(), most));
            batches.push(batch);
            rest = behind;
        }
        Outcomes::join(self.side_by_side(&batches, &|batch| self.put_batch(batch, replace, until)))
    }

    /// Store what the backend does not have of one batch.
    fn put_batch(&self, chunks: &[NewChunk<'_>], replace: bool, until: &Until) -> Outcomes<Put> {
        let mut outcomes = Outcomes::unknown(chunks.len());
        outcomes.failure = self.try_put_batch(chunks, replace, until, &mut outcomes).err();
        outcomes
    }

    fn try_put_batch(
        &self,
        chunks: &[NewChunk<'_>],
        replace: bool,
        until: &Until,
        outcomes: &mut Outcomes<Put>,
    ) -> Result<(), Error> {
        let numbered = || chunks.iter().enumerate();
        let (damaged, mut missing): (Vec<_>, Vec<_>) = {
            let known = self.known();
            numbered().partition(|(_, (hash, _))| known.is_damaged(hash))
        };
        if !self.features.cheap_repeat && !replace && !missing.is_empty() {
            let hashes: Vec<ChunkHash> = missing.iter().map(|(_, (hash, _))| *hash).collect();
            let mut present = self.exists(&hashes, until)?.into_iter();
            missing.retain(|(index, (hash, _))| {
                let present = present.next().unwrap_or(false);
                if present {
                    self.known().stored(*hash);
                    outcomes.set(*index, Ok(Put::Existed));
                }
                !present
            });
        }
        for (chunks, replace) in [(missing, replace), (damaged, true)] {
            let mut rest = chunks.as_slice();
            // How many of the rest go one by one, because a batch of them was too much for the guest.
            let mut singly = 0_usize;
            while !rest.is_empty() {
                let items: Vec<NewChunk<'_>> = rest.iter().take(self.batch_items()).map(|(_, chunk)| **chunk).collect();
                let count = if singly > 0 { 1 } else { one_batch(&items, self.batch_items(), self.batch_bytes()) };
                let batch = items.get(..count).unwrap_or(&items);
                let answers = match self.put_some(batch, replace, until) {
                    Err(error) if error.kind() == ErrorKind::Component && batch.len() > 1 => {
                        singly = batch.len();
                        continue;
                    }
                    Err(error) if error.kind() == ErrorKind::Component => vec![Err(error)],
                    answers => answers?,
                };
                let answered = answers.len();
                singly = singly.saturating_sub(answered);
                for ((index, (hash, _)), answer) in rest.iter().zip(answers) {
                    if answer.is_ok() {
                        self.known().stored(*hash);
                    }
                    outcomes.set(*index, answer);
                }
                rest = rest.get(answered..).unwrap_or_default();
            }
        }
        Ok(())
    }

    /// Fetch chunks, each to its target as the backend answers it, unchecked; side by side where the backend allows that.
    pub(super) fn get_all(&self, hashes: &[ChunkHash], targets: &[Target<'_>], until: &Until) -> Outcomes<Option<Got>> {
        let most = self.batch_items().min(hashes.len().div_ceil(2 * self.hands()).max(limits::LEAST_BATCH_ITEMS));
        let batches: Vec<_> = hashes.chunks(most).zip(targets.chunks(most)).collect();
        Outcomes::join(self.side_by_side(&batches, &|(hashes, targets)| {
            let mut targets = targets.to_vec();
            let mut outcomes = Outcomes::unknown(hashes.len());
            let mut done = 0;
            while let (Some(rest @ [_, ..]), Some(targets)) = (hashes.get(done..), targets.get_mut(done..)) {
                match self.get_into(rest, targets, until) {
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

    /// Remove chunks.
    pub(super) fn delete_all(&self, hashes: &[ChunkHash], until: &Until) -> Outcomes<()> {
        let batches: Vec<&[ChunkHash]> = hashes.chunks(self.batch_items()).collect();
        Outcomes::join(self.side_by_side(&batches, &|batch| {
            let mut outcomes = Outcomes::unknown(batch.len());
            let mut done = 0;
            while let Some(rest) = batch.get(done..).filter(|rest| !rest.is_empty()) {
                let answers = match self.delete_some(rest, until) {
                    Ok(answers) => answers,
                    Err(error) => {
                        outcomes.failure = Some(error);
                        break;
                    }
                };
                for (hash, answer) in rest.iter().zip(answers) {
                    if answer.is_ok() {
                        self.saw_absent(hash);
                    }
                    outcomes.set(done, answer);
                    done += 1;
                }
            }
            outcomes
        }))
    }

    /// Which chunks the backend has, with the lengths that it knows.
    pub(super) fn exists_all(&self, hashes: &[ChunkHash], until: &Until) -> Outcomes<Presence> {
        let batches: Vec<&[ChunkHash]> = hashes.chunks(self.batch_items()).collect();
        Outcomes::join(self.side_by_side(&batches, &|batch| match self.presence(batch, until) {
            Ok(present) => {
                Outcomes { items: present.into_iter().map(|present| Some(Ok(present))).collect(), failure: None }
            }
            Err(error) => Outcomes { failure: Some(error), ..Outcomes::unknown(batch.len()) },
        }))
    }
}

/// How many chunks, from the first, go into one call: at least one.
fn one_batch(chunks: &[NewChunk<'_>], items: usize, limit: u64) -> usize {
    let mut bytes = 0;
    let fits = |(_, data): &&NewChunk<'_>| {
        bytes += data.len() as u64;
        bytes <= limit
    };
    chunks.iter().take(items).take_while(fits).count().max(1).min(chunks.len())
}
