//! Explicit saves: each has its own ledger, and ends in a commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use kv_platform::sync::Mutex;

use super::super::Opened;
use super::super::open_store::OpenStore;
use super::super::save::{Putting, SaveState};
use crate::backend::ChunkHash;
use crate::backend::Committed;
use crate::counters::Operation;
use crate::error::Error;
use crate::process::{Clock, Condition};

/// A save with a ledger of its own: two of them on one handle never fail for each other's chunks.
///
/// ```no_run
/// # use kv_store_core as kv_store_wasm;
/// # fn example(store: &kv_store_wasm::Store) -> Result<(), kv_store_wasm::Error> {
/// use kv_store_wasm::{BatchOptions, NewChunk, SaveOutcome};
/// let save = store.begin_save()?;
/// let chunks = [NewChunk::new(b"key of one", &[b"the ", b"value"])];
/// let outcomes = store.put_many(&chunks, &BatchOptions::default(), Some(&save))?;
/// assert!(outcomes.iter().all(Result::is_ok));
/// assert_eq!(save.commit(Some(("prompt-1", b"one chunk")))?, SaveOutcome::Published);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Save(Arc<BegunSave>);

struct BegunSave {
    opened: Arc<Opened>,
    state: SaveState,
    submitted: Submitted,
}

/// The puts of a save that wait in queues or run there.
struct Submitted {
    unfinished: Mutex<(u64, BTreeSet<u64>)>,
    finished: Condition,
}

/// A put that was submitted for a save. A commit that begins later waits for it to be dropped.
pub struct SubmittedPut {
    save: Save,
    number: u64,
}

impl Drop for SubmittedPut {
    fn drop(&mut self) {
        let submitted = &self.save.0.submitted;
        submitted.unfinished.lock().1.remove(&self.number);
        submitted.finished.notify_all();
    }
}

impl Submitted {
    fn new(clock: &Clock) -> Self {
        Submitted { unfinished: Mutex::default(), finished: Condition::new(clock) }
    }

    /// Wait for all that were submitted before this moment.
    fn wait(&self) {
        let mut unfinished = self.unfinished.lock();
        let mark = unfinished.0;
        while unfinished.1.first().is_some_and(|first| *first <= mark) {
            unfinished = self.finished.wait(&self.unfinished, unfinished);
        }
    }
}

/// What a commit came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SaveOutcome {
    /// The chunks of the save are durable where the backend can make them so, and the manifest is published.
    Published,
    /// Nothing was published: the store does not have the chunks under these hashes any more. Put them again.
    Lost(Vec<Vec<u8>>),
}

impl Save {
    pub(super) fn begin(opened: Arc<Opened>) -> Self {
        let clock = &opened.shared.process.clock;
        let (state, submitted) = (SaveState::new(clock), Submitted::new(clock));
        Save(Arc::new(BegunSave { opened, state, submitted }))
    }

    /// Whether it is a save of this store.
    pub(super) fn is_of(&self, store: &Arc<OpenStore>) -> bool {
        Arc::ptr_eq(&self.0.opened.shared, store)
    }

    /// A put for this save begins.
    pub(super) fn begin_put(&self) -> Putting<'_> {
        self.0.state.begin_put(&self.0.opened.shared)
    }

    /// A chunk was put for this save, and stored.
    pub(super) fn stored(&self, hash: ChunkHash, len: usize, confirmed: Instant, generation: u64) {
        self.0.state.stored(&self.0.opened.shared, hash, len, confirmed, generation);
    }

    /// Note a put that is about to wait in a queue.
    #[doc(hidden)]
    pub fn submit(&self) -> SubmittedPut {
        let mut unfinished = self.0.submitted.unfinished.lock();
        unfinished.0 += 1;
        let number = unfinished.0;
        unfinished.1.insert(number);
        SubmittedPut { save: self.clone(), number }
    }

    /// Make the chunks of this save durable where the backend can, then publish a manifest; without one this is a barrier.
    /// A `put_manifest` of the handle does not cover them. Waits for the puts that were submitted for it before.
    pub fn commit(&self, manifest: Option<(&str, &[u8])>) -> Result<SaveOutcome, Error> {
        self.commit_within(manifest, None)
    }

    /// As [`Save::commit`], by a moment.
    pub(in super::super) fn commit_within(
        &self,
        manifest: Option<(&str, &[u8])>,
        end: Option<Instant>,
    ) -> Result<SaveOutcome, Error> {
        let BegunSave { opened, state, submitted } = &*self.0;
        opened.check_process()?;
        submitted.wait();
        let committed = opened.counted(Operation::Commit, || {
            let name = manifest.map(|(name, _)| opened.full_name(name)).transpose()?;
            if let Some((_, data)) = manifest {
                opened.shared.check_manifest_len(data.len())?;
            }
            let named = name.as_deref().zip(manifest.map(|(_, data)| data));
            let until = opened.shared.until_by(end).describing(opened.described()?);
            let committed = state.commit(&opened.shared, named, &until)?;
            if let (Committed::Published, Some((name, data))) = (&committed, named) {
                opened.shared.supersede(name);
                opened.shared.moved_in(data.len() as u64);
            }
            Ok(committed)
        });
        Ok(match committed? {
            Committed::Published => SaveOutcome::Published,
            Committed::Absent(lost) => SaveOutcome::Lost(lost.iter().map(|hash| hash.as_slice().to_vec()).collect()),
        })
    }
}
