//! Puts of a batch: stored at once, from the caller's memory.

use super::super::verify::is_xxh3;
use super::super::{Opened, Put};
use super::{BatchOptions, NewChunk, Save, distinct, unanswered};
use crate::backend::{Answers, Bytes, CONTENT_KEY_BYTES, ChunkHash, Committed, Layout};
use crate::counters::{Event, Operation};
use crate::descriptor::Described;
use crate::error::{Error, ErrorKind};
use crate::until::Until;

impl Opened {
    /// As [`Store::put_many`](super::super::Store::put_many).
    pub fn put_many(
        &self,
        chunks: &[NewChunk<'_>],
        options: &BatchOptions,
        save: Option<&Save>,
        until: &Until,
    ) -> Answers<Put> {
        self.counted(Operation::PutMany, || self.put_admitted(chunks, options, save, until))
    }

    fn put_admitted(
        &self,
        chunks: &[NewChunk<'_>],
        options: &BatchOptions,
        save: Option<&Save>,
        until: &Until,
    ) -> Answers<Put> {
        let (shared, described) = (&self.shared, self.described()?);
        if options.durable && !shared.features.properties.durable {
            let message = "durable puts: this backend does not survive a restart of its storage system";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if save.is_some_and(|save| !save.is_of(shared)) {
            return Err(Error::invalid("the save belongs to another store"));
        }
        let lens: Vec<usize> = chunks.iter().map(|chunk| chunk.pieces.iter().map(|piece| piece.len()).sum()).collect();
        let hashes = self.places_of(chunks, &lens, options, described);
        // A chunk that is named twice is put once.
        let (distinct, first_of) = distinct(hashes.iter().map(|hash| hash.as_ref().ok()));
        let pieces = |index: usize| chunks.get(index).map_or(&[][..], |chunk| chunk.pieces);
        let batch: Vec<(ChunkHash, Bytes<'_>)> =
            distinct.iter().map(|(index, hash)| (*hash, Bytes::Scattered(pieces(*index)))).collect();
        let _putting = save.map(Save::begin_put);
        let (generation, confirmed) = (shared.generation_of_data(), shared.now());
        let mut outcomes = shared.batches().put_all(&batch, options.replace, until).each();
        if options.replace {
            self.remove_replaced(&batch, &mut outcomes, options, until);
        }
        if options.durable {
            let stored = || batch.iter().zip(&outcomes).filter(|(_, outcome)| outcome.is_ok());
            let (fresh, bytes) = (stored().map(|((hash, _), _)| *hash).collect::<Vec<_>>(), stored());
            let bytes = bytes.map(|((_, data), _)| data.len() as u64).sum();
            let failure = match shared.commit(None, &fresh, bytes, until) {
                Ok(Committed::Published) => None,
                Ok(Committed::Absent(_)) => Some(Error::new(
                    ErrorKind::Unavailable,
                    "the backend lost a chunk while it was stored: put it again",
                )),
                Err(error) => Some(error),
            };
            if let Some(error) = failure {
                outcomes.iter_mut().filter(|outcome| outcome.is_ok()).for_each(|outcome| *outcome = Err(error.clone()));
            }
        }
        for ((hash, data), outcome) in batch.iter().zip(&outcomes) {
            if let Ok(put) = outcome {
                shared.note_len(data.len());
                shared.moved_in(data.len() as u64);
                shared.counters.add(Event::Duplicates, u64::from(*put == Put::Existed));
                if let Some(save) = save {
                    save.stored(*hash, data.len(), confirmed, generation);
                }
            }
        }
        let of = |(hash, first): (Result<ChunkHash, Error>, Option<usize>)| {
            hash.and_then(|_| first.and_then(|first| outcomes.get(first).cloned()).unwrap_or_else(|| Err(unanswered())))
        };
        Ok(hashes.into_iter().zip(first_of).map(of).collect())
    }

    /// Where each chunk goes.
    fn places_of(
        &self,
        chunks: &[NewChunk<'_>],
        lens: &[usize],
        options: &BatchOptions,
        described: Described,
    ) -> Vec<Result<ChunkHash, Error>> {
        let shared = &self.shared;
        let place = |(chunk, len): &(&NewChunk<'_>, &usize)| {
            let hash = ChunkHash::new(chunk.hash)?.described_as(described);
            let matches = || is_xxh3(&hash, chunk.pieces);
            let hash = hash.lying(shared.layout_of_new(&hash, options, matches));
            shared.check_stored_len(&hash, **len).map(|()| hash)
        };
        let items: Vec<_> = chunks.iter().zip(lens).collect();
        let looked_at = items.iter().filter(|(chunk, _)| chunk.hash.len() == CONTENT_KEY_BYTES).map(|(_, len)| **len);
        shared.hashed(looked_at.fold(0, usize::saturating_add), &items, &place)
    }

    /// What was replaced may lie in the other layout too, from where it would be answered again.
    fn remove_replaced(
        &self,
        batch: &[(ChunkHash, Bytes<'_>)],
        outcomes: &mut [Result<Put, Error>],
        options: &BatchOptions,
        until: &Until,
    ) {
        let shared = &self.shared;
        let other = |(at, (hash, _)): (usize, &(ChunkHash, Bytes<'_>))| {
            let other = hash.layout().other();
            let waived = options.checks_itself || options.xxh3_keys || (other == Layout::Enveloped && options.sealed);
            let may_lie = !waived && shared.layouts_of_removed(hash, options).any(|layout| layout == other);
            let stored = outcomes.get(at).is_some_and(Result::is_ok);
            (may_lie && stored).then(|| (at, hash.lying(other)))
        };
        let (places, others): (Vec<usize>, Vec<ChunkHash>) = batch.iter().enumerate().filter_map(other).unzip();
        if others.is_empty() {
            return;
        }
        for (at, removed) in places.into_iter().zip(shared.batches().delete_all(&others, &|_| (), until).each()) {
            match (removed, outcomes.get_mut(at)) {
                (Err(error), Some(outcome)) if error.kind() != ErrorKind::Unsupported => *outcome = Err(error),
                _ => {}
            }
        }
    }
}
