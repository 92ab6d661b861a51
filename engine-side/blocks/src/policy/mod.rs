//! Which entry a bounded cache gives up: S3-FIFO, LRU or FIFO, counted in bytes.
//!
//! A policy orders entries by number; the cache that owns the entries numbers them from 0, densely, and uses a number for one
//! entry at a time. A policy holds no values and no locks, so the same module serves a memory of fixed blocks and a folder
//! of files of any length.
//!
//! Rules for an implementation: [`Policy::victim`] names each entry at most once, and none that is pinned; after
//! [`Policy::remove`] or [`Policy::victim`] the number is unknown until the next [`Policy::insert`]; every operation but
//! `victim` takes constant time, and `victim` takes time in proportion to the entries that it passes over.

mod fifo;
mod ghost;
mod links;
mod lru;
mod s3fifo;

use serde::Deserialize;

pub use fifo::Fifo;
pub use lru::Lru;
pub use s3fifo::S3Fifo;

/// The order in which entries are given up.
pub trait Policy: Send {
    /// An entry has come. `fingerprint` recognises it when it comes again; `bytes` is what it takes. Returns whether that it
    /// comes is a hot access: it was given up not long ago.
    fn insert(&mut self, entry: u32, fingerprint: u64, bytes: u64) -> bool;

    /// An entry was used. Returns whether this is its hot access: the one that keeps it from being given up first. There is at
    /// most one while it stays.
    fn access(&mut self, entry: u32) -> bool;

    /// Forget an entry that was removed for another reason.
    fn remove(&mut self, entry: u32);

    /// Take out the entry to give up. `None`: there is none that is not pinned.
    fn victim(&mut self, pinned: &mut dyn FnMut(u32) -> bool) -> Option<u32>;

    /// Bytes of all entries.
    fn bytes(&self) -> u64;
}

/// A policy by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum PolicyKind {
    /// [`S3Fifo`].
    #[default]
    #[serde(rename = "S3FIFO")]
    S3Fifo,
    /// [`Lru`].
    #[serde(rename = "LRU")]
    Lru,
    /// [`Fifo`].
    #[serde(rename = "FIFO")]
    Fifo,
}

/// The parameters of [`S3Fifo`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct S3FifoOptions {
    /// How many accesses an entry needs in the small queue to be moved to the main one: 1 to 3.
    pub promotion: u8,
    /// The share of the bytes that the small queue may have: above 0, below 1.
    pub small_ratio: f64,
}

impl Default for S3FifoOptions {
    fn default() -> Self {
        S3FifoOptions { promotion: 1, small_ratio: 0.3 }
    }
}

impl PolicyKind {
    /// A policy for so many bytes.
    pub fn build(self, capacity: u64, s3fifo: S3FifoOptions) -> Box<dyn Policy> {
        match self {
            PolicyKind::S3Fifo => Box::new(S3Fifo::new(capacity, s3fifo)),
            PolicyKind::Lru => Box::new(Lru::default()),
            PolicyKind::Fifo => Box::new(Fifo::default()),
        }
    }
}

#[cfg(test)]
mod tests;
