//! A store as the far level of the block cache: `kv_blocks` over the batches of the Rust API.
//!
//! Blocks are written and read straight from and to the slots of the cache. Each call has the time that the cache gives it, and
//! never more than the operator's deadlines.

use std::sync::Arc;
use std::time::Duration;

pub use kv_blocks::{Acquired, Cache, Config, Dtype, Error as BlockError, Layout, Spec};
use kv_blocks::{Blocking, Features, GetItem, Outcome, PutItem, Workers};

use crate::error::{Error, ErrorKind};
use crate::store::{BatchOptions, Fetch, Fetched, Memory, NewChunk, Presence, Store};

/// A store, as the cache calls it.
pub struct StoreFar(Arc<Store>);

impl StoreFar {
    /// A far level of so many threads over a store.
    pub fn start(store: Arc<Store>, threads: usize) -> Result<Workers<StoreFar>, Error> {
        Ok(Workers::start(StoreFar(store), threads)?)
    }
}

impl From<kv_blocks::Error> for Error {
    fn from(error: kv_blocks::Error) -> Self {
        use kv_blocks::ErrorKind as Kind;
        let kind = match error.kind() {
            Kind::NotFound => ErrorKind::Missing,
            Kind::Invalid => ErrorKind::Invalid,
            Kind::OutOfMemory => ErrorKind::Exhausted,
            Kind::Timeout | Kind::Denied => ErrorKind::Unavailable,
            Kind::Cancelled => ErrorKind::Cancelled,
            Kind::Corrupt => ErrorKind::Corrupt,
            _ => ErrorKind::Other,
        };
        Error::new(kind, error.to_string())
    }
}

fn failed(error: &Error) -> Outcome {
    use kv_blocks::ErrorKind as Kind;
    Outcome::Failed(match error.kind() {
        ErrorKind::Denied | ErrorKind::Exhausted => Kind::Denied,
        ErrorKind::Invalid | ErrorKind::Unsupported => Kind::Invalid,
        ErrorKind::Corrupt => Kind::Corrupt,
        ErrorKind::Cancelled => Kind::Cancelled,
        _ => Kind::Error,
    })
}

/// A time of nothing is one that nobody waits for: the operator's deadlines hold.
fn options(timeout: Duration) -> BatchOptions {
    let options = BatchOptions::default();
    if timeout.is_zero() { options } else { options.with_timeout(timeout) }
}

/// An outcome for each item, or the failure of the whole call for each.
fn each<T>(
    answers: Result<Vec<Result<T, Error>>, Error>,
    items: usize,
    outcome: impl Fn(T) -> Outcome,
) -> Vec<Outcome> {
    match answers {
        Ok(answers) => answers.into_iter().map(|answer| answer.map_or_else(|error| failed(&error), &outcome)).collect(),
        Err(error) => vec![failed(&error); items],
    }
}

impl Blocking for StoreFar {
    fn features(&self) -> Features {
        let deletes = self.0.opened().is_ok_and(|opened| opened.batch_info().deletes);
        if deletes { Features::default() } else { Features::default().without_deletes() }
    }

    fn put_many(&self, items: &[PutItem], timeout: Duration) -> Vec<Outcome> {
        let pieces: Vec<[&[u8]; 2]> = items.iter().map(PutItem::pieces).collect();
        let items_and_pieces = items.iter().zip(&pieces);
        let chunks: Vec<NewChunk<'_>> =
            items_and_pieces.map(|(item, pieces)| NewChunk::new(item.key(), pieces)).collect();
        each(self.0.put_many(&chunks, &options(timeout), None), items.len(), |_| Outcome::Done)
    }

    fn get_many(&self, items: &mut [GetItem], timeout: Duration) -> Vec<Outcome> {
        let count = items.len();
        let (hashes, mut rooms): (Vec<&[u8]>, Vec<[&mut [u8]; 2]>) = items.iter_mut().map(GetItem::parts).unzip();
        let fetch = |(hash, room)| Fetch::new(hash, Memory::Pieces(room));
        let mut fetches: Vec<Fetch<'_>> =
            hashes.into_iter().zip(rooms.iter_mut().map(|room| room.as_mut_slice())).map(fetch).collect();
        each(self.0.get_many(&mut fetches, &options(timeout)), count, |found| match found {
            Some(Fetched::Placed(len) | Fetched::TooLong(len)) => Outcome::Found(len),
            // Nobody has asked for a buffer.
            Some(Fetched::Buffer(_)) | None => Outcome::Missing,
        })
    }

    fn exists_many(&self, keys: &[Vec<u8>], timeout: Duration) -> Vec<Outcome> {
        let hashes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        each(self.0.exists_many(&hashes, &options(timeout)), keys.len(), |presence| match presence {
            Presence::Present(_) => Outcome::Done,
            Presence::Absent => Outcome::Missing,
        })
    }

    fn delete_many(&self, keys: &[Vec<u8>], _timeout: Duration) -> Vec<Outcome> {
        let hashes: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        each(self.0.delete_many(&hashes), keys.len(), |()| Outcome::Done)
    }
}
