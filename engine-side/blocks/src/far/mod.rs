//! What the cache asks of a far level, whatever that is.
//!
//! A far level is handed requests that own all that they need: keys, and slots of the cache's memory to read or fill. A request
//! comes back when it is completed, or dropped. So an answer that comes late fills the near level, and never memory of a
//! caller who has gone on; and a far level that hangs holds what it was handed and nothing else.

mod noop;
mod workers;

use std::time::{Duration, Instant};

pub use noop::Noop;
pub use workers::{Blocking, Workers};

use crate::error::ErrorKind;
use crate::slab::{Block, Slot};
use crate::value::{Shape, TAIL_BYTES};

/// A far level.
///
/// Every request is to be completed, or dropped, sooner or later: until then the blocks that it asks for are misses, and are not
/// asked for again. Completing a request after its deadline is welcome.
pub trait Far: Send + Sync + 'static {
    /// What it can do.
    fn features(&self) -> Features;

    /// Carry out a request. Does not wait for I/O, and does not complete the request before it returns if that can take long:
    /// completing runs the cache's part of the work.
    fn submit(&self, request: Request);
}

/// What a far level can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// Requests of many items are better than many requests. Otherwise each request has one item.
    pub batches: bool,
    /// [`Work::Delete`] removes. Otherwise nothing is asked to be removed, and a delete says that it was not done.
    pub deletes: bool,
    /// Blocks can be prefetched: asking for what nobody waits for is worth it.
    pub prefetches: bool,
}

impl Default for Features {
    fn default() -> Self {
        Features { batches: true, deletes: true, prefetches: true }
    }
}

impl Features {
    /// Without batches.
    #[must_use]
    pub fn without_batches(self) -> Self {
        Features { batches: false, ..self }
    }

    /// Without removal.
    #[must_use]
    pub fn without_deletes(self) -> Self {
        Features { deletes: false, ..self }
    }

    /// Without prefetches.
    #[must_use]
    pub fn without_prefetches(self) -> Self {
        Features { prefetches: false, ..self }
    }
}

/// What is to be done, for each item.
pub enum Work {
    /// Store values, in place of what is there under their keys.
    Put(Vec<PutItem>),
    /// Fetch values.
    Get(Vec<GetItem>),
    /// Ask which keys exist: 1 to 64 bytes each.
    Exists(Vec<Vec<u8>>),
    /// Remove keys; that there was none is success.
    Delete(Vec<Vec<u8>>),
    /// Values of these keys came damaged. Whoever answered wrong bytes once need not do so always: [`Outcome::Done`] says that a value is
    /// removed, [`Outcome::Missing`] that it is left as it is. The next put replaces it.
    Damaged(Vec<DamagedItem>),
}

impl Work {
    /// How many items it has.
    pub fn len(&self) -> usize {
        match self {
            Work::Put(items) => items.len(),
            Work::Get(items) => items.len(),
            Work::Exists(keys) | Work::Delete(keys) => keys.len(),
            Work::Damaged(items) => items.len(),
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A value to store.
pub struct PutItem {
    key: Vec<u8>,
    block: Block,
    tail: [u8; TAIL_BYTES],
}

impl PutItem {
    pub(crate) fn new(key: Vec<u8>, block: Block, shape: Shape) -> Self {
        let tail = shape.tail(&key, block.bytes());
        PutItem { key, block, tail }
    }

    /// 1 to 64 bytes.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value: two pieces, one after another.
    pub fn pieces(&self) -> [&[u8]; 2] {
        [self.block.bytes(), &self.tail]
    }
}

/// A value to fetch.
pub struct GetItem {
    key: Vec<u8>,
    slot: Slot,
    tail: [u8; TAIL_BYTES],
}

impl GetItem {
    pub(crate) fn new(key: Vec<u8>, slot: Slot) -> Self {
        GetItem { key, slot, tail: [0; TAIL_BYTES] }
    }

    /// 1 to 64 bytes.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The key, and where the value is to be put: two pieces, one after another, together exactly as long as the value.
    pub fn parts(&mut self) -> (&[u8], [&mut [u8]; 2]) {
        (&self.key, [self.slot.bytes_mut(), &mut self.tail])
    }

    /// What was put there, and what stands behind it.
    pub(crate) fn value(&self) -> (&[u8], &[u8; TAIL_BYTES]) {
        (self.slot.bytes(), &self.tail)
    }

    pub(crate) fn into_slot(self) -> Slot {
        self.slot
    }
}

/// A value that came damaged.
pub struct DamagedItem {
    key: Vec<u8>,
    shape: Shape,
}

impl DamagedItem {
    pub(crate) fn new(key: Vec<u8>, shape: Shape) -> Self {
        DamagedItem { key, shape }
    }

    /// 1 to 64 bytes.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Whether these bytes are a whole value of this key.
    pub fn is_sound(&self, value: &[u8]) -> bool {
        value.split_last_chunk().is_some_and(|(slot, tail)| {
            slot.len() == self.shape.slot() && self.shape.is_sound(&self.key, slot, tail, value.len())
        })
    }
}

/// What became of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Put, delete: it is done. Exists: it is there.
    Done,
    /// Get: so many bytes were placed in the item's slot.
    Found(usize),
    /// Get, exists: there is none.
    Missing,
    /// It failed.
    Failed(ErrorKind),
}

type Complete = Box<dyn FnOnce(Work, Vec<Outcome>) + Send>;

/// Work, and the way back.
pub struct Request {
    inner: Option<(Work, Complete)>,
    deadline: Instant,
}

impl Request {
    pub(crate) fn new(
        work: Work,
        deadline: Instant,
        complete: impl FnOnce(Work, Vec<Outcome>) + Send + 'static,
    ) -> Self {
        Request { inner: Some((work, Box::new(complete))), deadline }
    }

    /// What is to be done.
    pub fn work(&mut self) -> Option<&mut Work> {
        self.inner.as_mut().map(|(work, _)| work)
    }

    /// The time that is left. After it nobody waits for the answer.
    pub fn time_left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// It is done; an outcome for each item. Items without one have failed.
    pub fn complete(mut self, outcomes: Vec<Outcome>) {
        self.finish(outcomes);
    }

    /// All of it failed.
    pub fn fail(mut self, kind: ErrorKind) {
        let items = self.inner.as_ref().map_or(0, |(work, _)| work.len());
        self.finish(vec![Outcome::Failed(kind); items]);
    }

    fn finish(&mut self, mut outcomes: Vec<Outcome>) {
        if let Some((work, complete)) = self.inner.take() {
            outcomes.resize(work.len(), Outcome::Failed(ErrorKind::Error));
            complete(work, outcomes);
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let items = self.inner.as_ref().map_or(0, |(work, _)| work.len());
        self.finish(vec![Outcome::Failed(ErrorKind::Cancelled); items]);
    }
}
