//! A backend's calls, and the layers around them.
//!
//! [`Backend`] is one blocking trait: a batch in, an outcome for each item out. The pool of instances implements it
//! (`instances`); around it lie, from the inside, faults that a test injects ([`BackendLayer`]), the circuit breaker (`with_breaker`), changes
//! that may still be carried out (`holding`), and what is learnt of chunks (`remembering`). The store makes whole batches of it. Each layer knows only the trait, so a
//! test puts a fake inside.

mod changes;
mod hash;
mod holding;
mod known;
mod layer;
mod lengths;
mod remembering;
mod removed;
mod target;
mod with_breaker;

#[cfg(test)]
pub mod fake;

use std::sync::Arc;

pub use changes::{Change, ChangeKey, Changes, End};
pub(crate) use hash::RecentChunks;
pub use hash::{CONTENT_KEY_BYTES, ChunkHash, ChunkMap, ChunkSet, Layout, bad_length};
pub use holding::Holding;
pub use layer::{BackendLayer, Opening, Wrap, check_fault};
pub use remembering::{KnownChunks, Remembering};
pub use removed::Removed;
pub use target::{Target, capacity};
pub use with_breaker::WithBreaker;

use crate::counters::Answer;
use crate::error::{Error, contract_violation};
pub use crate::payload::Got;
use crate::payload::{Buffer, ItemSource, ValueMemory};
use crate::until::Until;

/// The outcomes of a batch: for some of its items, from the first on, and at least one.
pub type Answers<T> = Result<Vec<Result<T, Error>>, Error>;

/// What a store asks of its backend. Each call ends at its deadline, or soon after, and retries nothing.
///
/// Where the whole call failed, nothing is known of any item. Batches are not empty.
pub trait Backend: Send + Sync {
    /// Which chunks the backend has.
    fn exists(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence>;

    /// Which chunks need not be put: the backend has them, and they are what a put of this caller would store. An item that is
    /// there under another descriptor is `Mismatch`. A layer around another one asks that one.
    fn exists_for_put(&self, hashes: &[ChunkHash], until: &Until) -> Answers<Presence> {
        self.exists(hashes, until)
    }

    /// Store chunks; `replace`: also those that the backend has.
    fn put(&self, chunks: &[ChunkToPut<'_>], replace: bool, until: &Until) -> Answers<Put>;

    /// Fetch chunks, unchecked. Chunk n goes to target n, and to a buffer where there are fewer targets. What is then in the
    /// memory of a chunk that is missing, failed or too long is undefined.
    fn get(&self, hashes: &[ChunkHash], targets: &mut [Target<'_>], until: &Until) -> Answers<Option<Got>>;

    /// Remove chunks; that there was none is success.
    fn delete(&self, hashes: &[ChunkHash], until: &Until) -> Answers<()>;

    /// Make chunks durable, where the backend is, and publish a manifest, if there is one. `bytes`: what a durable backend may
    /// have to write out first.
    fn commit(
        &self,
        manifest: Option<(&str, &[u8])>,
        fresh: &[ChunkHash],
        bytes: u64,
        until: &Until,
    ) -> Result<Committed, Error>;

    /// Fetch a manifest; `None` if there is none.
    fn get_manifest(&self, name: &str, until: &Until) -> Result<Option<Arc<Buffer>>, Error>;

    /// Remove a manifest; that there was none is success.
    fn delete_manifest(&self, name: &str, until: &Until) -> Result<(), Error>;

    /// End an idle instance, with what it holds, as a trap does.
    fn retire(&self) {}

    /// Make calls that begin later use other connections than those that are there, so that what was read over one is not read
    /// over it again. Nothing where there are none.
    fn drop_connections(&self) {}
}

/// What a put came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// Accepted; new as far as is known.
    New,
    /// It was there already.
    Existed,
}

impl Answer for Put {}

/// Whether a chunk exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Presence {
    /// It does not.
    Absent,
    /// It does; with its length, where the backend knows it.
    Present(Option<u64>),
}

/// What a commit came to.
#[derive(Debug)]
pub enum Committed {
    /// The chunks are durable, where the backend is, and the manifest is published.
    Published,
    /// Nothing was published: these chunks, one or more, are not in the store any more.
    Absent(Vec<ChunkHash>),
}

/// A chunk to put.
pub type ChunkToPut<'a> = (ChunkHash, Bytes<'a>);

/// The bytes of a chunk on their way to the backend.
#[derive(Clone, Copy)]
pub enum Bytes<'a> {
    /// The consumer's memory.
    Borrowed(&'a [u8]),
    /// The same, in pieces that make one chunk.
    Scattered(&'a [&'a [u8]]),
    /// Memory of the host's own.
    Buffered(&'a Arc<Buffer>),
}

impl<'a> Bytes<'a> {
    /// Bytes of the value.
    #[allow(clippy::len_without_is_empty, reason = "a chunk of no bytes is as good as any")]
    pub fn len(&self) -> usize {
        match self {
            Bytes::Borrowed(bytes) => bytes.len(),
            Bytes::Scattered(pieces) => pieces.iter().map(|piece| piece.len()).sum(),
            Bytes::Buffered(buffer) => buffer.len(),
        }
    }

    /// The bytes, piece by piece.
    pub fn pieces(self) -> Vec<&'a [u8]> {
        match self {
            Bytes::Borrowed(bytes) => vec![bytes],
            Bytes::Scattered(pieces) => pieces.to_vec(),
            Bytes::Buffered(buffer) => vec![&buffer[..]],
        }
    }

    /// The bytes as an item of a call.
    ///
    /// # Safety
    /// `self` must stay valid until the call is over.
    pub unsafe fn source(&self) -> ItemSource {
        match self {
            // SAFETY: by this function's own condition.
            Bytes::Borrowed(bytes) => unsafe { ItemSource::borrowed(ValueMemory::of(bytes)) },
            // SAFETY: as above.
            Bytes::Scattered(pieces) => unsafe { ItemSource::borrowed(ValueMemory::of_pieces(pieces)) },
            Bytes::Buffered(buffer) => ItemSource::buffer(buffer),
        }
    }
}

/// A batch's answer: for some of the items, from the first on, and at least one.
pub fn expect_some<T>(answers: Vec<T>, asked: usize) -> Result<Vec<T>, Error> {
    match answers.len() {
        0 => Err(contract_violation("answered nothing to a batch")),
        more if more > asked => Err(contract_violation(format_args!("answered {more} items to a batch of {asked}"))),
        _ => Ok(answers),
    }
}
