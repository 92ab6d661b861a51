//! The queue of the Rust API: requests own their memory, and come back with it.

use std::os::fd::RawFd;

use super::batch::FetchItem;
use super::queue::{Queue, QueueTask};
use super::{BatchOptions, Fetched, Memory, NewChunk, Opened, Presence, Put, Save, Store, SubmittedPut};
use crate::error::Error;
use crate::until::Until;

/// Requests that are carried out while the caller goes on.
///
/// ```no_run
/// # use kv_store_core as kv_store_wasm;
/// # fn example(store: &kv_store_wasm::Store) -> Result<(), kv_store_wasm::Error> {
/// use kv_store_wasm::{BatchOptions, Request, RequestQueue};
/// let queue = RequestQueue::open(store, 64)?;
/// let request = Request::put(vec![(b"key".to_vec(), vec![0; 4096])], None);
/// queue.submit(7, request, &BatchOptions::default()).map_err(|(_, error)| error)?;
/// // ... until the descriptor of `queue` is readable.
/// for done in queue.drain(16)? {
///     assert_eq!(done.cookie, 7);
///     done.outcome?;
/// }
/// # Ok(())
/// # }
/// ```
pub struct RequestQueue(Queue<Owned>);

/// What a queue carries out, with the memory that it needs.
pub struct Request {
    work: Work,
    /// Of each item, once the request is done.
    outcomes: Outcomes,
}

enum Work {
    Put { chunks: Vec<(Vec<u8>, Vec<u8>)>, save: Option<Save> },
    Get { items: Vec<(Vec<u8>, Vec<u8>)> },
    Exists { hashes: Vec<Vec<u8>> },
    Delete { hashes: Vec<Vec<u8>> },
}

/// What became of each item of a request.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum Outcomes {
    /// The request was not carried out.
    #[default]
    None,
    /// Of a put.
    Put(Vec<Result<Put, Error>>),
    /// Of a get; `None`: there is none.
    Get(Vec<Result<Option<Fetched>, Error>>),
    /// Of a question which chunks exist.
    Exists(Vec<Result<Presence, Error>>),
    /// Of a removal.
    Delete(Vec<Result<(), Error>>),
}

/// A request that is done.
#[non_exhaustive]
pub struct Done {
    /// As it was submitted.
    pub cookie: u64,
    /// The request, with its memory.
    pub request: Request,
    /// Why it was not carried out. Items have outcomes of their own.
    pub outcome: Result<(), Error>,
}

impl Request {
    fn new(work: Work) -> Self {
        Request { work, outcomes: Outcomes::None }
    }

    /// Store values under their hashes.
    pub fn put(chunks: Vec<(Vec<u8>, Vec<u8>)>, save: Option<Save>) -> Self {
        Request::new(Work::Put { chunks, save })
    }

    /// Fetch values into memory: of each item a hash, and a buffer that is as long as the value may be.
    pub fn get(items: Vec<(Vec<u8>, Vec<u8>)>) -> Self {
        Request::new(Work::Get { items })
    }

    /// Ask which chunks exist.
    pub fn exists(hashes: Vec<Vec<u8>>) -> Self {
        Request::new(Work::Exists { hashes })
    }

    /// Remove chunks.
    pub fn delete(hashes: Vec<Vec<u8>>) -> Self {
        Request::new(Work::Delete { hashes })
    }

    /// What became of each item.
    pub fn outcomes(&self) -> &Outcomes {
        &self.outcomes
    }

    /// The hashes and the memory of a put or a get.
    pub fn into_memory(self) -> Vec<(Vec<u8>, Vec<u8>)> {
        match self.work {
            Work::Put { chunks: items, .. } | Work::Get { items } => items,
            Work::Exists { hashes } | Work::Delete { hashes } => {
                hashes.into_iter().map(|hash| (hash, Vec::new())).collect()
            }
        }
    }
}

struct Owned {
    request: Request,
    options: BatchOptions,
    put: Option<SubmittedPut>,
}

impl QueueTask for Owned {
    fn run(&mut self, store: &Opened, until: &Until) -> Result<(), Error> {
        self.request.outcomes = match &mut self.request.work {
            Work::Put { chunks, save } => {
                let pieces: Vec<[&[u8]; 1]> = chunks.iter().map(|(_, value)| [value.as_slice()]).collect();
                let chunks: Vec<NewChunk<'_>> =
                    chunks.iter().zip(&pieces).map(|((hash, _), pieces)| NewChunk::new(hash, pieces)).collect();
                Outcomes::Put(store.put_many(&chunks, &self.options, save.as_ref(), until)?)
            }
            Work::Get { items } => {
                let wanted = |(hash, memory): &mut (Vec<u8>, Vec<u8>)| {
                    FetchItem::new(hash, &mut Memory::Pieces(&mut [memory.as_mut_slice()]))
                };
                let wanted: Vec<FetchItem> = items.iter_mut().map(wanted).collect();
                // SAFETY: the memory is this request's own, and nobody else uses it until this returns.
                Outcomes::Get(unsafe { store.get_many(&wanted, &self.options, until)? })
            }
            Work::Exists { hashes } => {
                let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
                Outcomes::Exists(store.exists_many(&hashes, &self.options, until)?)
            }
            Work::Delete { hashes } => {
                let hashes: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
                Outcomes::Delete(store.delete_many(&hashes, until)?)
            }
        };
        self.put = None;
        Ok(())
    }

    fn give_up(&mut self, _why: &Error) {
        self.put = None;
    }
}

impl RequestQueue {
    /// A queue for at most `depth` requests that are not drained. It keeps the store open.
    pub fn open(store: &Store, depth: usize) -> Result<Self, Error> {
        Queue::open(store, depth).map(RequestQueue)
    }

    /// Have a request carried out; never waits for I/O. Gives it back where it is not accepted: `Exhausted` where the queue is
    /// full.
    pub fn submit(&self, cookie: u64, request: Request, options: &BatchOptions) -> Result<(), (Request, Error)> {
        let put = match &request.work {
            Work::Put { save: Some(save), .. } => Some(save.submit()),
            _ => None,
        };
        let job = Owned { request, options: *options, put };
        self.0.submit(cookie, job, options.timeout).map_err(|(job, error)| (job.request, error))
    }

    /// Take at most `most` requests that are done; does not wait.
    pub fn drain(&self, most: usize) -> Result<Vec<Done>, Error> {
        let drained = self.0.drain(most)?;
        let done = |done: super::queue::Completion<Owned>| Done {
            cookie: done.cookie,
            request: done.job.request,
            outcome: done.outcome,
        };
        Ok(drained.into_iter().map(done).collect())
    }

    /// Cancel the requests of a cookie. Returns how many there were.
    pub fn cancel(&self, cookie: u64) -> Result<usize, Error> {
        self.0.cancel(cookie)
    }

    /// The descriptor that is readable while requests wait to be drained.
    pub fn event(&self) -> Result<RawFd, Error> {
        self.0.event()
    }
}
