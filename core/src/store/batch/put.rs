//! Puts of a batch: stored at once, from the caller's memory.

use super::super::seal::{SEAL_BYTES, seal};
use super::super::{Opened, Put};
use super::{BatchOptions, NewChunk, Save, distinct, unanswered};
use crate::backend::{Answers, Bytes, ChunkHash, Committed};
use crate::counters::{Event, Operation};
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
        let shared = &self.shared;
        if options.durable && !shared.features.properties.durable {
            let message = "durable puts: this backend does not survive a restart of its storage system";
            return Err(Error::new(ErrorKind::Unsupported, message));
        }
        if save.is_some_and(|save| !save.is_of(shared)) {
            return Err(Error::invalid("the save belongs to another store"));
        }
        let lens: Vec<usize> = chunks.iter().map(|chunk| chunk.pieces.iter().map(|piece| piece.len()).sum()).collect();
        let hashes: Vec<Result<ChunkHash, Error>> = chunks
            .iter()
            .zip(&lens)
            .map(|(chunk, len)| {
                let stored = if options.sealed { len.saturating_add(SEAL_BYTES) } else { *len };
                shared.check_len(stored).and_then(|()| ChunkHash::new(chunk.hash))
            })
            .collect();
        // A chunk that is named twice is put once.
        let (distinct, first_of) = distinct(hashes.iter().map(|hash| hash.as_ref().ok()));
        let of_first =
            |index: usize| (chunks.get(index).map_or(&[][..], |chunk| chunk.pieces), lens.get(index).copied());
        let seals = match options.sealed {
            true => shared.hashed(lens.iter().copied().fold(0, usize::saturating_add), &distinct, &|(index, hash)| {
                let (pieces, len) = of_first(*index);
                Some(seal(hash, len.unwrap_or(0), pieces.iter().copied()))
            }),
            false => vec![None; distinct.len()],
        };
        let pieces: Vec<Vec<&[u8]>> = distinct
            .iter()
            .zip(&seals)
            .map(|((index, _), seal)| {
                of_first(*index).0.iter().copied().chain(seal.as_ref().map(|seal| &seal[..])).collect()
            })
            .collect();
        let batch: Vec<(ChunkHash, Bytes<'_>)> =
            distinct.iter().zip(&pieces).map(|((_, hash), pieces)| (*hash, Bytes::Scattered(pieces))).collect();
        let (generation, confirmed) = (shared.generation_of_data(), shared.now());
        let mut outcomes = shared.batches().put_all(&batch, options.replace, until).each();
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
                shared.saw_len(data.len());
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
}
