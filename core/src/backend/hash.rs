//! A chunk's hash: 1 to 64 bytes of any value, kept without an allocation.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use crate::descriptor::Described;
use crate::error::Error;
use crate::limits::MAX_HASH_BYTES;
use crate::recent::RecentMap;

/// By chunks. A put looks some ten times into such maps, and the standard library's hasher would be most of it; the keys are
/// the consumer's own, who has no reason to have them collide.
pub type ChunkMap<T> = HashMap<ChunkHash, T, foldhash::fast::RandomState>;
pub(crate) type RecentChunks<T> = RecentMap<ChunkHash, T, foldhash::fast::RandomState>;
pub type ChunkSet = HashSet<ChunkHash, foldhash::fast::RandomState>;

/// A key of so many bytes can be the hash of its content, and components take it for one.
pub const CONTENT_KEY_BYTES: usize = 8;

/// How a chunk lies in the backend: `docs/envelope.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Layout 1: the value, under the hash.
    #[default]
    Plain,
    /// Layout 2: the value in an envelope, under a key that is made of the hash.
    Enveloped,
}

impl Layout {
    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Layout::Plain => Layout::Enveloped,
            Layout::Enveloped => Layout::Plain,
        }
    }
}

/// The hash of a chunk: 1 to 64 bytes that are not looked into. And where it is meant to lie: the same hash in two layouts is two
/// chunks. In an envelope, the same hash under two descriptors is two chunks too, of which the backend has one at most.
#[derive(Clone, Copy)]
pub struct ChunkHash {
    len: u8,
    layout: Layout,
    described: Described,
    bytes: [u8; MAX_HASH_BYTES],
}

impl PartialEq for ChunkHash {
    fn eq(&self, other: &Self) -> bool {
        let same_meaning = self.described == other.described || !self.is_enveloped();
        self.len == other.len && self.layout == other.layout && same_meaning && self.bytes == other.bytes
    }
}

impl Eq for ChunkHash {}

impl ChunkHash {
    /// A hash of 1 to 64 bytes.
    pub fn new(hash: &[u8]) -> Result<Self, Error> {
        let mut bytes = [0; MAX_HASH_BYTES];
        match bytes.get_mut(..hash.len()) {
            Some(head) if !hash.is_empty() => head.copy_from_slice(hash),
            _ => return Err(bad_length(hash.len())),
        }
        Ok(ChunkHash { len: hash.len() as u8, layout: Layout::Plain, described: Described::NOT, bytes })
    }

    /// A new hash: this one's bytes, and some behind them. `None`: there is no room.
    pub fn followed_by<const N: usize>(&self, suffix: &[u8; N]) -> Option<Self> {
        let (len, mut bytes) = (usize::from(self.len), self.bytes);
        *bytes.get_mut(len..)?.first_chunk_mut()? = *suffix;
        Some(ChunkHash { len: (len + N) as u8, layout: Layout::Plain, described: Described::NOT, bytes })
    }

    /// Whether it can be the hash of its content, as far as its length tells.
    pub fn may_be_of_content(&self) -> bool {
        self.as_slice().len() == CONTENT_KEY_BYTES
    }

    /// The same hash in a layout. A new one is in layout 1.
    #[must_use]
    pub fn lying(self, layout: Layout) -> Self {
        ChunkHash { layout, ..self }
    }

    /// The same hash, asked for under a descriptor. It tells only in an envelope.
    #[must_use]
    pub fn described_as(self, described: Described) -> Self {
        ChunkHash { described, ..self }
    }

    /// Under which descriptor it is asked for.
    pub fn described(&self) -> Described {
        self.described
    }

    /// Where it is meant to lie.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Whether it is meant to lie in an envelope.
    pub fn is_enveloped(&self) -> bool {
        self.layout == Layout::Enveloped
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

/// By what is there, and not by the room for it. Few are in both layouts.
impl Hash for ChunkHash {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write(self.as_slice());
    }
}

pub fn bad_length(len: usize) -> Error {
    Error::invalid(format!("a hash has 1 to {MAX_HASH_BYTES} bytes, this one {len}"))
}

impl std::fmt::Debug for ChunkHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::fmt::Display for ChunkHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&hex::encode(self.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::{Descriptor, Descriptors, Field};

    #[test]
    fn descriptors_tell_hashes_apart_only_in_envelopes() {
        let descriptors = Descriptors::default();
        let digest = |text| Descriptor::default().with(Field::Model, text).unwrap().digest();
        let [one, two] = ["a", "b"].map(|text| descriptors.number(digest(text)).unwrap());
        let hash = ChunkHash::new(b"key").unwrap();
        assert_eq!(hash.described_as(one), hash.described_as(two));
        let enveloped = |described| hash.described_as(described).lying(Layout::Enveloped);
        assert!(enveloped(one) != enveloped(two) && enveloped(one) == enveloped(one));
        assert_eq!(enveloped(one).lying(Layout::Plain), hash, "what is known of a key by itself is found");
    }
}
