//! What a store holds, as it is listed, counted and evicted.

use crate::backend::ChunkHash;
use crate::envelope::reduced_key;

/// A part of a listing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page<T> {
    /// May be empty before the last page.
    pub entries: Vec<T>,
    /// What to ask for the next page with. None: this was the last one.
    pub next: Option<String>,
}

/// A chunk in a listing. Times are nanoseconds since 1970-01-01 UTC; none where the backend does not know.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChunkEntry {
    /// The hash that it was put under.
    pub hash: Vec<u8>,
    /// How long it is, without an envelope.
    pub bytes: Option<u64>,
    /// When it was stored.
    pub stored: Option<u64>,
    /// When it was last used.
    pub used: Option<u64>,
    /// 1: it lies plain. 2: in an envelope. One that is in both is listed twice.
    pub layout: u8,
}

/// A manifest in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ManifestEntry {
    /// Begins with NUL where the backend has only a digest of a long name; it can be fetched and removed by that.
    pub name: String,
    /// How long it is.
    pub bytes: Option<u64>,
    /// When it was stored.
    pub stored: Option<u64>,
    /// When it was last used.
    pub used: Option<u64>,
    /// 1: it lies plain. 2: in an envelope. One that is in both is listed twice.
    pub layout: u8,
}

/// What a store holds. None where only a listing would tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Of chunks and manifests, with their envelopes.
    pub bytes: Option<u64>,
    /// How many chunks.
    pub chunks: Option<u64>,
    /// How many manifests.
    pub manifests: Option<u64>,
    /// Bytes that the storage system may hold, what is not the store's included.
    pub capacity: Option<u64>,
}

/// What is to be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Eviction {
    /// At least so many bytes, the least recently used first.
    pub bytes: u64,
    /// And all that was last used before: nanoseconds since 1970-01-01 UTC.
    pub unused_since: Option<u64>,
    /// But no chunk that was stored or used after this.
    pub keep_since: u64,
}

impl ChunkEntry {
    /// The hash that a chunk in an envelope is listed with: its own, or a digest of one that has no room for the suffix of its
    /// key. It can be fetched and removed by either.
    #[must_use]
    pub fn listed_hash(hash: &[u8]) -> Vec<u8> {
        let hash = ChunkHash::new(hash).map(|hash| reduced_key(&hash).as_slice().to_vec());
        hash.unwrap_or_default()
    }
}

/// What runs a component makes these.
#[doc(hidden)]
impl ChunkEntry {
    pub fn new(hash: Vec<u8>, bytes: Option<u64>, stored: Option<u64>, used: Option<u64>) -> Self {
        ChunkEntry { hash, bytes, stored, used, layout: 1 }
    }
}

#[doc(hidden)]
impl ManifestEntry {
    pub fn new(name: String, bytes: Option<u64>, stored: Option<u64>, used: Option<u64>) -> Self {
        ManifestEntry { name, bytes, stored, used, layout: 1 }
    }
}

#[doc(hidden)]
impl<T> Page<T> {
    pub fn new(entries: Vec<T>, next: Option<String>) -> Self {
        Page { entries, next }
    }
}

#[doc(hidden)]
impl Usage {
    pub fn new(bytes: Option<u64>, chunks: Option<u64>, manifests: Option<u64>, capacity: Option<u64>) -> Self {
        Usage { bytes, chunks, manifests, capacity }
    }
}

#[doc(hidden)]
impl Evicted {
    pub fn new(bytes: u64, chunks: u64, manifests: u64, more: bool) -> Self {
        Evicted { bytes, chunks, manifests, more }
    }
}

impl Eviction {
    /// Evict so many bytes, and all that was last used before a moment, but no chunk that was stored or used after another.
    pub fn new(bytes: u64, unused_since: Option<u64>, keep_since: u64) -> Self {
        Eviction { bytes, unused_since, keep_since }
    }
}

/// What was evicted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evicted {
    /// Bytes of the chunks and manifests that are gone.
    pub bytes: u64,
    /// How many chunks.
    pub chunks: u64,
    /// How many manifests.
    pub manifests: u64,
    /// Call again for the rest.
    pub more: bool,
}
