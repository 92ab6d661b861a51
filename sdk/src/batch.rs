//! What comes in with a call: hashes as they lie in one byte string, and items by number, whose bytes stay in the host.

use std::slice::ChunksExact;

use crate::bindings::kv_store::backend::store_types as store;
use crate::payloads::{ItemRange, Part, Range};
use crate::{CommitOutcome, ErrorKind, GetOutcome, Payload, Presence, Result};

/// Hashes of one length, 1 to 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashes<'a> {
    width: usize,
    bytes: &'a [u8],
}

impl<'a> Hashes<'a> {
    pub(crate) fn of(hashes: &'a store::Hashes) -> Self {
        // The host has no hashes of width 0.
        Hashes::new(hashes.width as usize, &hashes.bytes)
    }

    /// Hashes of one width, one after another.
    pub fn new(width: usize, bytes: &'a [u8]) -> Self {
        Hashes { width: width.max(1), bytes }
    }

    /// A key by itself.
    pub fn one(key: &'a [u8]) -> Self {
        Hashes::new(key.len(), key)
    }

    /// How many there are.
    pub fn len(self) -> usize {
        self.bytes.len() / self.width
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The hashes, in the order of the items.
    pub fn iter(self) -> ChunksExact<'a, u8> {
        self.bytes.chunks_exact(self.width)
    }

    /// The same, as [`records`](crate::records) takes keys.
    pub fn keys(self) -> store::Hashes {
        store::Hashes { width: self.width as u32, bytes: self.bytes.to_vec() }
    }

    /// The first ones, `count` at most: a batch may be answered in part.
    pub fn first(self, count: usize) -> Self {
        let end = count.saturating_mul(self.width);
        Hashes { bytes: self.bytes.get(..end).unwrap_or(self.bytes), ..self }
    }

    /// The same hashes, `count` at a time.
    pub fn batches(self, count: usize) -> impl Iterator<Item = Hashes<'a>> {
        let width = self.width;
        self.bytes.chunks(count.max(1).saturating_mul(width)).map(move |bytes| Hashes { width, bytes })
    }
}

impl<'a> IntoIterator for Hashes<'a> {
    type Item = &'a [u8];
    type IntoIter = ChunksExact<'a, u8>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// A chunk to put: an item of the running call.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// 1 to 64 bytes of any value.
    pub hash: &'a [u8],
    /// Its number in the running call.
    pub item: u32,
    /// Bytes.
    pub len: u64,
}

impl Chunk<'_> {
    /// The hashes of chunks of one batch, as [`records`](crate::records) takes keys.
    pub fn keys(chunks: &[Chunk]) -> store::Hashes {
        let width = chunks.first().map_or(1, |chunk| chunk.hash.len());
        store::Hashes { width: width as u32, bytes: chunks.iter().flat_map(|chunk| chunk.hash).copied().collect() }
    }

    /// Its bytes, to be written, sent or hashed. Valid while the call runs.
    pub fn part(&self) -> Part<'static> {
        Part::Item(self.item)
    }

    /// `len` of its bytes, from `offset`.
    pub fn range(&self, offset: u64, len: u64) -> Part<'static> {
        Part::ItemRange(ItemRange { item: self.item, offset, len })
    }

    /// Its bytes, to keep. One copy, of what is the consumer's memory.
    pub fn keep(&self) -> Result<Payload> {
        Payload::from_parts(&[self.part()])
    }
}

/// A manifest to publish. It is item 0 of the running call.
#[derive(Clone, Copy, Debug)]
pub struct Manifest<'a> {
    /// 1 to 4096 bytes.
    pub name: &'a str,
    /// Bytes of its content.
    pub len: u64,
}

impl Manifest<'_> {
    /// Its content, to be written, sent or hashed. Valid while the call runs.
    pub fn part(&self) -> Part<'static> {
        Part::Item(0)
    }

    /// `len` bytes of its content, from `offset`.
    pub fn range(&self, offset: u64, len: u64) -> Part<'static> {
        Part::ItemRange(ItemRange { item: 0, offset, len })
    }

    /// Its content, to keep.
    pub fn keep(&self) -> Result<Payload> {
        Payload::from_parts(&[self.part()])
    }
}

impl Clone for Part<'_> {
    /// Bytes are copied; a payload or an item is only named again.
    fn clone(&self) -> Self {
        match self {
            Part::Bytes(bytes) => Part::Bytes(bytes.clone()),
            Part::Payload(payload) => Part::Payload(payload),
            Part::Range(range) => Part::Range(Range { ..*range }),
            Part::Item(item) => Part::Item(*item),
            Part::ItemRange(range) => Part::ItemRange(ItemRange { ..*range }),
        }
    }
}

pub(crate) fn chunks<'a>(hashes: Hashes<'a>, lens: &[u64]) -> Vec<Chunk<'a>> {
    (0..).zip(hashes).zip(lens).map(|((item, hash), len)| Chunk { hash, item, len: *len }).collect()
}

/// The outcome of a commit that finds fresh chunks gone; `None`: none of them is. Only who has published says so.
pub fn absent<'a>(hashes: impl IntoIterator<Item = &'a [u8]>) -> Option<CommitOutcome> {
    let mut lists: Vec<store::Hashes> = Vec::new();
    for hash in hashes {
        let width = hash.len() as u32;
        match lists.iter_mut().find(|list| list.width == width) {
            Some(list) => list.bytes.extend_from_slice(hash),
            None => lists.push(store::Hashes { width, bytes: hash.to_vec() }),
        }
    }
    (!lists.is_empty()).then_some(CommitOutcome::Absent(lists))
}

/// The answers of a `get_chunks`, out of what became of each chunk; none: there is no such chunk. They end before the first chunk after
/// one that was answered for which the host had no room (`exhausted`): the host then asks again for it and for what follows.
pub fn get_outcomes(values: impl IntoIterator<Item = Result<Option<Payload>>>) -> Vec<GetOutcome> {
    let mut outcomes = Vec::new();
    for value in values {
        outcomes.push(match value {
            Ok(Some(payload)) => GetOutcome::Found(payload),
            Ok(None) => GetOutcome::Missing,
            Err(error) if error.kind == ErrorKind::Exhausted && !outcomes.is_empty() => break,
            Err(error) => GetOutcome::Failed(error),
        });
    }
    outcomes
}

impl From<bool> for Presence {
    /// Present, of unknown length, or absent.
    fn from(present: bool) -> Self {
        if present { Presence::Present(None) } else { Presence::Absent }
    }
}

impl From<Option<u64>> for Presence {
    /// Present with its length, or absent.
    fn from(len: Option<u64>) -> Self {
        len.map_or(Presence::Absent, |len| Presence::Present(Some(len)))
    }
}

impl Presence {
    /// Whether the chunk is there.
    pub fn is_present(&self) -> bool {
        matches!(self, Presence::Present(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    fn hashes(width: u32, bytes: &[u8]) -> store::Hashes {
        store::Hashes { width, bytes: bytes.to_vec() }
    }

    #[test]
    fn hashes_come_one_by_one_and_in_batches() {
        let given = hashes(2, b"aabbcc");
        let all = Hashes::of(&given);
        assert_eq!(all.iter().collect::<Vec<_>>(), [b"aa", b"bb", b"cc"]);
        assert_eq!((all.first(2).len(), all.first(9), all.is_empty()), (2, all, false));
        assert_eq!(all.batches(2).map(|batch| batch.len()).collect::<Vec<_>>(), [2, 1]);
        let chunks = chunks(all, &[5, 0, 7]);
        let shown: Vec<_> = chunks.iter().map(|chunk| (chunk.hash, chunk.item, chunk.len)).collect();
        assert_eq!(shown, [(&b"aa"[..], 0, 5), (b"bb", 1, 0), (b"cc", 2, 7)]);
        let none = hashes(0, b"");
        assert!(Hashes::of(&none).is_empty());
    }

    #[test]
    fn what_the_host_has_no_room_for_ends_the_answers_but_is_an_answer_where_it_comes_first() {
        let full = || Err(Error::exhausted("no room"));
        let shown = |values: Vec<Result<Option<Payload>>>| -> Vec<&str> {
            let name = |outcome: &GetOutcome| match outcome {
                GetOutcome::Found(_) => "found",
                GetOutcome::Missing => "missing",
                GetOutcome::Failed(_) => "failed",
            };
            get_outcomes(values).iter().map(name).collect()
        };
        assert_eq!(shown(vec![Ok(None), Err(Error::corrupt("x")), Ok(None)]), ["missing", "failed", "missing"]);
        assert_eq!(shown(vec![Ok(None), full(), Ok(None)]), ["missing"]);
        assert_eq!(shown(vec![full(), Ok(None), full(), Ok(None)]), ["failed", "missing"]);
        assert!(shown(vec![]).is_empty());
    }

    #[test]
    fn absent_hashes_are_listed_by_width() {
        let gone: [&[u8]; 3] = [b"aa", b"c", b"bb"];
        let Some(CommitOutcome::Absent(lists)) = absent(gone) else { panic!("some are gone") };
        let lists: Vec<_> = lists.iter().map(|list| (list.width, list.bytes.as_slice())).collect();
        assert_eq!(lists, [(2, &b"aabb"[..]), (1, b"c")]);
        assert!(absent([]).is_none());
    }
}
