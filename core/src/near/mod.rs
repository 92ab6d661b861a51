//! The near level of a store: copies of chunks in this machine's memory, and in a bounded directory, before the backend.
//!
//! Only chunks whose key is the hash of their content are kept, so a copy is never other than the chunk; what may be wrong about it
//! is only that the chunk was deleted meanwhile. Invariants: a read of a chunk that is near asks the backend nothing; what is told
//! of existence, and what a commit names, comes from the backend alone; a delete of this process is seen at once, one of another
//! process after `ttl_s` at the latest.
//!
//! A [`NearLevel`] belongs to one backend and tenant, and all their stores in the process share its bounds. A [`Scope`] keeps the stores
//! in it apart: component, URI, tenant and grants, as open stores are told apart. [`NearLayer`] is the level around a backend.

mod copies;
mod disk;
mod layer;
mod level;
mod memory;
mod writer;

#[cfg(test)]
mod tests;

pub use disk::check_directory;
pub use layer::{ContentKeys, NearLayer};
pub use level::{NearLevel, NearLevels};

use sha2::{Digest, Sha256};

/// Which store a copy is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scope([u8; 16]);

/// A copy's place: the store and the chunk's hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct CopyKey {
    scope: Scope,
    hash: [u8; 8],
}

impl Scope {
    /// The scope of all that hashes alike. The same in each process of one build.
    pub fn of(what: &impl std::hash::Hash) -> Self {
        let mut hasher = Hasher(Sha256::new());
        what.hash(&mut hasher);
        let digest: [u8; 32] = hasher.0.finalize().into();
        let mut scope = [0; 16];
        scope.iter_mut().zip(digest).for_each(|(to, from)| *to = from);
        Scope(scope)
    }
}

impl CopyKey {
    /// What S3-FIFO remembers of it.
    fn fingerprint(&self) -> u64 {
        let Scope(scope) = self.scope;
        let [low, _] = scope.as_chunks().0 else { return 0 };
        u64::from_le_bytes(self.hash) ^ u64::from_le_bytes(*low)
    }
}

/// Feeds a cryptographic hash, so that nobody can choose a URI that has the scope of another.
struct Hasher(Sha256);

impl std::hash::Hasher for Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not asked for: the digest is longer.
    fn finish(&self) -> u64 {
        0
    }
}
