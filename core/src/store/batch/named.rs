//! The chunks that the items of a batch name.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::unanswered;
use crate::backend::ChunkHash;
use crate::descriptor::Described;
use crate::error::Error;

/// Each chunk of a batch once, in the order in which they are first named.
pub(super) struct Named {
    pub chunks: Vec<ChunkHash>,
    /// Of each item which of them it names, or why it names none.
    items: Vec<Result<usize, Error>>,
}

impl Named {
    /// The chunks of these hashes, under a descriptor.
    pub fn of(hashes: &[&[u8]], described: Described) -> Self {
        let mut seen: HashMap<&[u8], usize, foldhash::fast::RandomState> =
            HashMap::with_capacity_and_hasher(hashes.len(), foldhash::fast::RandomState::default());
        let (mut chunks, mut items) = (Vec::with_capacity(hashes.len()), Vec::with_capacity(hashes.len()));
        for hash in hashes {
            items.push(match seen.entry(hash) {
                Entry::Occupied(first) => Ok(*first.get()),
                Entry::Vacant(first) => ChunkHash::new(hash).map(|chunk| {
                    chunks.push(chunk.described_as(described));
                    *first.insert(chunks.len() - 1)
                }),
            });
        }
        Named { chunks, items }
    }

    /// The answer of each item, from those of the chunks.
    pub fn answers<T: Clone>(self, of_chunks: Vec<Result<T, Error>>) -> Vec<Result<T, Error>> {
        let Named { chunks, items } = self;
        if items.len() == chunks.len() {
            // Each item names a chunk that no other names.
            return of_chunks;
        }
        let answer = |item: Result<usize, Error>| of_chunks.get(item?).cloned().unwrap_or_else(|| Err(unanswered()));
        items.into_iter().map(answer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn each_item_has_the_answer_of_the_chunk_that_it_names() {
        let long = [7; 65];
        for (hashes, chunks, expected) in [
            (&[&b"a"[..], b"b", b"c"][..], 3, &[Some(0), Some(1), Some(2)][..]),
            (&[b"a", b"b", b"a", b"b", b"c"], 3, &[Some(0), Some(1), Some(0), Some(1), Some(2)]),
            (&[b"", b"a", &long, b"a", b""], 1, &[None, Some(0), None, Some(0), None]),
            (&[], 0, &[]),
        ] {
            let named = Named::of(hashes, Described::NOT);
            assert_eq!(named.chunks.len(), chunks);
            let answers = named.answers((0..chunks).map(Ok).collect());
            let found: Vec<Option<usize>> = answers.iter().map(|answer| answer.as_ref().ok().copied()).collect();
            assert_eq!(found, expected);
            assert!(
                answers.iter().flat_map(|answer| answer.as_ref().err()).all(|error| error.kind() == ErrorKind::Invalid)
            );
        }
    }
}
