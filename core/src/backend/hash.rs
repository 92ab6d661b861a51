//! A chunk's hash: 1 to 64 bytes of any value, kept without an allocation.

use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};

use crate::error::Error;
use crate::limits::MAX_HASH_BYTES;

/// By chunks. A put looks some ten times into such maps, and the standard library's hasher would be most of it; the keys are
/// the consumer's own, who has no reason to have them collide.
pub type ChunkMap<T> = HashMap<ChunkHash, T, foldhash::fast::RandomState>;
pub type ChunkSet = HashSet<ChunkHash, foldhash::fast::RandomState>;

/// The hash of a chunk: 1 to 64 bytes that are not looked into.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ChunkHash {
    len: u8,
    bytes: [u8; MAX_HASH_BYTES],
}

impl ChunkHash {
    /// A hash of 1 to 64 bytes.
    pub fn new(hash: &[u8]) -> Result<Self, Error> {
        let mut bytes = [0; MAX_HASH_BYTES];
        match bytes.get_mut(..hash.len()) {
            Some(head) if !hash.is_empty() => head.copy_from_slice(hash),
            _ => return Err(bad_length(hash.len())),
        }
        Ok(ChunkHash { len: hash.len() as u8, bytes })
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(..self.len.into()).unwrap_or_default()
    }
}

/// By what is there, and not by the room for it.
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
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
