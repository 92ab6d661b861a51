//! Exists, delete and flush.

use std::sync::Arc;
use std::time::Instant;

use super::Cache;
use super::flights::Latch;
use crate::error::{Error, ErrorKind, Result};
use crate::far::{Outcome, Work};
use crate::key::Key;
use crate::metrics::{Level, Op};

/// A batch of questions that is under way.
type Asked = Option<Arc<Latch<Vec<Outcome>>>>;

impl Cache {
    /// How many leading tokens of a query are in either level. Nothing is fetched, and this is no use of them.
    pub fn exists(&self, prefix: &[i32], query: &[i32]) -> Result<usize> {
        let inner = &self.inner;
        let timer = inner.timer();
        let wanted = inner.wanted(Op::Exists, prefix, query, usize::MAX)?;
        let mut found = inner.near_run(&wanted);
        inner.done(Level::L1, Op::Exists, wanted.keys.len(), found, timer);
        while inner.far.is_some() && found < wanted.keys.len() {
            let end = wanted.keys.len().min(found + inner.pass);
            // A block may be near behind one that is only far.
            let near: Vec<bool> = (found..end).map(|index| inner.is_near(&wanted, index)).collect();
            let keys = wanted.keys.get(found..end).unwrap_or_default();
            let elsewhere: Vec<Key> = keys.iter().zip(&near).filter(|(_, near)| !**near).map(|(key, _)| *key).collect();
            let deadline = Instant::now() + inner.config.l2.time_for(inner.tokens(elsewhere.len()));
            let asked = self.ask_all(Op::Exists, &elsewhere, Work::Exists, deadline);
            let mut far = self.leading(Op::Exists, asked, deadline);
            let is_there = |near: &&bool| {
                let is_far = far > 0;
                far -= usize::from(!**near && is_far);
                **near || is_far
            };
            let run = near.iter().take_while(is_there).count();
            found += run;
            if run < near.len() {
                break;
            }
        }
        inner.done(Level::Cache, Op::Exists, wanted.keys.len(), found, timer);
        Ok(inner.tokens(found))
    }

    /// Remove the blocks of a query from both levels. Returns how many leading tokens are gone from both; that there were none is
    /// success. A block that is acquired stays valid for who has it.
    ///
    /// What the far level is asked for, or is being given, while this runs does not bring a block back.
    pub fn delete(&self, prefix: &[i32], query: &[i32]) -> Result<usize> {
        let inner = &self.inner;
        let timer = inner.timer();
        let wanted = inner.wanted(Op::Delete, prefix, query, usize::MAX)?;
        let keys = &wanted.keys;
        let deadline = Instant::now() + inner.config.l2.time_for(inner.tokens(keys.len()));

        let mut writes: Vec<Arc<Latch<()>>> = Vec::new();
        let mut table = inner.flights.table.lock();
        inner.flights.next_epoch();
        for key in keys {
            table.fetching.remove(key);
            *table.deleting.entry(*key).or_default() += 1;
            writes.extend(table.writing.get(key).map(|writing| writing.done.clone()));
        }
        drop(table);
        let mut near = 0;
        for key in keys {
            near += usize::from(inner.near.as_ref().is_some_and(|level| level.remove(key).is_some()));
        }
        inner.done(Level::L1, Op::Delete, keys.len(), near, timer);

        // A write that ends after the removal would bring the block back.
        let all_ended = writes.iter().all(|write| write.wait(deadline).is_some());
        let mut gone = keys.len();
        if inner.far.is_some() {
            let asked = match inner.features.deletes {
                true => self.ask_all(Op::Delete, keys, Work::Delete, deadline),
                false => vec![None],
            };
            gone = self.leading(Op::Delete, asked, deadline);
        }
        let mut table = inner.flights.table.lock();
        inner.flights.next_epoch();
        for (index, key) in keys.iter().enumerate() {
            // What was asked for meanwhile may have been answered before the removal.
            table.fetching.remove(key);
            if let Some(count) = table.deleting.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    table.deleting.remove(key);
                }
            }
            if let Some(writing) = table.writing.get_mut(key).filter(|_| !all_ended) {
                writing.doomed = true;
                gone = gone.min(index);
            }
        }
        drop(table);
        inner.done(Level::Cache, Op::Delete, keys.len(), gone, timer);
        Ok(inner.tokens(gone))
    }

    /// Wait for the writes to the far level that are under way. `Timeout`: they were not done in the time for their tokens.
    pub fn flush(&self) -> Result<()> {
        let inner = &self.inner;
        inner.is_open()?;
        let writes: Vec<Arc<Latch<()>>> =
            inner.flights.table.lock().writing.values().map(|writing| writing.done.clone()).collect();
        let deadline = Instant::now() + inner.config.l2.time_for(inner.tokens(writes.len()));
        if writes.iter().all(|write| write.wait(deadline).is_some()) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Timeout,
            format!("{} writes did not finish in time (l2.per_token_timeout_ms)", writes.len()),
        ))
    }

    /// Ask the far level about keys, in batches.
    fn ask_all(&self, op: Op, keys: &[Key], work: impl Fn(Vec<Vec<u8>>) -> Work, deadline: Instant) -> Vec<Asked> {
        let inner = &self.inner;
        let far = |keys: &[Key]| keys.iter().map(|key| inner.keys.far(key)).collect();
        keys.chunks(inner.batch()).map(|keys| inner.ask(op, work(far(keys)), deadline)).collect()
    }

    /// How many leading items of batches are done.
    fn leading(&self, op: Op, asked: Vec<Asked>, deadline: Instant) -> usize {
        let mut run = 0;
        for batch in asked {
            let Some(outcomes) = batch.and_then(|batch| {
                let answered = batch.wait(deadline);
                self.inner.metrics.failed(Level::Cache, op, ErrorKind::Timeout, usize::from(answered.is_none()));
                answered
            }) else {
                break;
            };
            let done =
                outcomes.iter().take_while(|outcome| matches!(outcome, Outcome::Done | Outcome::Found(_))).count();
            run += done;
            if done < outcomes.len() {
                break;
            }
        }
        run
    }
}
