//! Writes to the far level, and the bound on those that are under way: what comes on top is dropped and counted.

use std::sync::Arc;
use std::time::Instant;

use super::flights::{Latch, Table, Writing};
use super::{Inner, Left};
use crate::config::Ingestion;
use crate::error::ErrorKind;
use crate::far::{Outcome, PutItem, Request, Work};
use crate::key::Key;
use crate::metrics::{Count, Level, Op, Stage};
use crate::slab::Block;

/// A batch of writes that is waited for: how many leading blocks of it are in the far level.
type Written = Arc<Latch<Vec<bool>>>;

impl Inner {
    /// Whether hot blocks are written.
    pub(super) fn ingests_hot(&self) -> bool {
        self.far.is_some() && self.config.l2.ingestion_type == Ingestion::Hot
    }

    /// Write blocks that the near level gave up since `epoch`.
    pub(super) fn ingest_left(self: &Arc<Self>, op: Op, left: Vec<Left>, epoch: u64, may_wait: bool) {
        let (known, unknown): (Vec<Left>, Vec<Left>) = left.into_iter().partition(|left| left.in_far);
        self.metrics.count(Count::Spared, known.len());
        let unknown = unknown.into_iter().map(|left| (left.key, left.block)).collect();
        self.ingest(op, unknown, Some(epoch), may_wait);
    }

    /// Write blocks. Where writes are synchronous and the caller may wait, it waits for them, in the time for their tokens.
    /// Returns how many leading ones are written, or on their way. `epoch`: when they were taken from the near level; what was
    /// deleted since is not written.
    pub(super) fn ingest(
        self: &Arc<Self>,
        op: Op,
        blocks: Vec<(Key, Block)>,
        epoch: Option<u64>,
        may_wait: bool,
    ) -> usize {
        if blocks.is_empty() || self.far.is_none() {
            return 0;
        }
        let timer = self.stage_timer();
        let deadline = Instant::now() + self.config.l2.time_for(self.tokens(blocks.len()));
        let mut admitted = Vec::with_capacity(blocks.len());
        let mut batches: Vec<Written> = Vec::new();
        let mut blocks = blocks.into_iter().peekable();
        let (mut batch, mut keys, mut done) = (Vec::new(), Vec::new(), Arc::default());
        while let Some((key, block)) = blocks.next() {
            let admission = self.admit(&key, &block, epoch, &done, deadline);
            admitted.push(admission);
            if admission == Admitted::Yes {
                batch.push(PutItem::new(self.keys.far(&key), block.clone(), self.shape));
                keys.push((key, block));
            }
            if batch.len() == self.batch() || (blocks.peek().is_none() && !batch.is_empty()) {
                let (batch, keys) = (std::mem::take(&mut batch), std::mem::take(&mut keys));
                batches.push(self.write(batch, keys, std::mem::take(&mut done), deadline));
            }
        }
        let waits = may_wait && self.config.l2.ingestion_max_inflight_tokens == 0;
        let mut written = Vec::new();
        for batch in batches.iter().filter(|_| waits) {
            match batch.wait(deadline) {
                Some(outcomes) => written.extend(outcomes),
                None => {
                    self.metrics.failed(Level::Cache, op, ErrorKind::Timeout, 1);
                    break;
                }
            }
        }
        let mut written = written.into_iter();
        let is_done = |admission: &&Admitted| match admission {
            Admitted::Yes => !waits || written.next() == Some(true),
            Admitted::Spared => true,
            Admitted::Dropped => false,
        };
        let run = admitted.iter().take_while(is_done).count();
        self.stage_done(op, Stage::Ingest, timer);
        run
    }

    fn admit(
        &self,
        key: &Key,
        block: &Block,
        epoch: Option<u64>,
        done: &Arc<Latch<()>>,
        deadline: Instant,
    ) -> Admitted {
        let mut table = self.flights.table.lock();
        let near = self.near.as_ref();
        if let Some(writing) = table.writing.get_mut(key) {
            writing.outdated |= writing.block.bytes() != block.bytes();
            self.metrics.count(Count::Spared, 1);
            return Admitted::Spared;
        }
        if near.is_some_and(|near| near.in_far(key)) {
            self.metrics.count(Count::Spared, 1);
            return Admitted::Spared;
        }
        let deleted = epoch.is_some_and(|epoch| {
            let changed = self.flights.epoch() != epoch;
            table.deleting.contains_key(key) || (changed && !near.is_some_and(|near| near.holds(key, block)))
        });
        if deleted || self.is_full(&table) {
            self.metrics.count(Count::Dropped, 1);
            return Admitted::Dropped;
        }
        let writing = Writing { done: done.clone(), block: block.clone(), deadline, outdated: false, doomed: false };
        table.writing.insert(*key, writing);
        Admitted::Yes
    }

    /// Whether as much is under way as may be. Synchronous writes are bounded by who waits for them, and those that nobody
    /// waits for any more by the same number.
    fn is_full(&self, table: &Table) -> bool {
        if table.writing.len() < self.most_writing {
            return false;
        }
        let now = Instant::now();
        self.config.l2.ingestion_max_inflight_tokens > 0
            || table.writing.values().filter(|writing| writing.deadline <= now).count() >= self.most_writing
    }

    fn write(
        self: &Arc<Self>,
        items: Vec<PutItem>,
        keys: Vec<(Key, Block)>,
        done: Arc<Latch<()>>,
        deadline: Instant,
    ) -> Written {
        let written = Written::default();
        let Some(far) = &self.far else { return written };
        let (inner, latch, begun) = (self.clone(), written.clone(), self.timer());
        far.submit(Request::new(Work::Put(items), deadline, move |_, outcomes| {
            let (mut doomed, mut newer) = (Vec::new(), Vec::new());
            let epoch = inner.flights.epoch();
            let mut stored = Vec::with_capacity(keys.len());
            for ((key, block), outcome) in keys.iter().zip(outcomes) {
                let ok = matches!(outcome, Outcome::Done);
                if let Outcome::Failed(kind) = outcome {
                    inner.metrics.failed(Level::L2, Op::Put, kind, 1);
                }
                stored.push(ok);
                if let Some(near) = inner.near.as_ref().filter(|_| ok) {
                    near.note_in_far(key, block);
                }
                let writing = inner.flights.table.lock().writing.remove(key);
                let Some(Writing { outdated, doomed: deleted, .. }) = writing else { continue };
                let near = inner.near.as_ref().filter(|_| outdated && !deleted).and_then(|near| near.peek(key));
                match near {
                    Some(block) => newer.push((*key, block)),
                    None if outdated || deleted => doomed.push(inner.keys.far(key)),
                    None => {}
                }
            }
            inner.done(Level::L2, Op::Put, keys.len(), stored.iter().filter(|stored| **stored).count(), begun);
            // The blocks are free before anybody goes on.
            drop(keys);
            done.set(());
            latch.set(stored);
            inner.ingest(Op::Put, newer, Some(epoch), false);
            if !doomed.is_empty() {
                let deadline = Instant::now() + inner.config.l2.time_for(inner.tokens(doomed.len()));
                inner.ask(Op::Delete, Work::Delete(doomed), deadline);
            }
        }));
        written
    }
}

/// Whether a block is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Admitted {
    Yes,
    /// It need not be.
    Spared,
    /// Too many are under way.
    Dropped,
}
