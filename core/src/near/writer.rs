//! Writes to the disk tiers of the process, so that no call of a consumer waits for a disk.
//!
//! Each level has a line of copies that wait, of which one is written at a time, on threads that all levels share: a disk that hangs holds up
//! the copies of its own level ([`turns`](crate::threads)). What waits is bounded, for the process and for each level; what comes on top
//! is dropped and counted.

use std::collections::VecDeque;
use std::sync::Arc;

use kv_platform::sync::{Condvar, Mutex};

use super::memory::Moved;
use crate::counters::{Counters, Event};
use crate::limits;
use crate::threads::{Helpers, Whose};

/// What the writer needs of a level.
pub(super) trait WrittenLevel: Send + Sync + 'static {
    /// What of it waits.
    fn line(&self) -> &Line;
    /// Whose work a write is.
    fn whose(&self) -> &Whose;
    fn counters(&self) -> &Counters;
    /// Write a copy to its disk. False: it was not written.
    fn write_copy(&self, moved: &Moved) -> bool;
}

pub(super) struct Writer {
    pool: Arc<Helpers>,
    waiting: Mutex<Waiting>,
    idle: Condvar,
}

/// Copies of all levels that were handed over and are not written.
#[derive(Default)]
struct Waiting {
    copies: usize,
    bytes: usize,
}

/// What waits of one level.
#[derive(Default)]
pub(super) struct Line(Mutex<Copies>);

#[derive(Default)]
struct Copies {
    waiting: VecDeque<Moved>,
    bytes: usize,
    /// A thread writes one of them, or was asked for.
    served: bool,
}

impl Writer {
    pub(super) fn new(pool: Arc<Helpers>) -> Self {
        Writer { pool, waiting: Mutex::default(), idle: Condvar::new() }
    }

    /// Have a copy written that the memory has given up.
    pub(super) fn queue_copy(self: &Arc<Self>, level: &Arc<impl WrittenLevel>, moved: Moved) {
        let len = moved.copy.data.len();
        let mut copies = level.line().0.lock();
        let of_level = copies.bytes.saturating_add(len);
        let fits = copies.bytes == 0 || of_level <= limits::NEAR_WRITING_BYTES / limits::OWNER_FRACTION as usize;
        if !fits || !self.take(len) {
            drop(copies);
            level.counters().add(Event::NearDropped, 1);
            return;
        }
        copies.bytes = of_level;
        copies.waiting.push_back(moved);
        if !std::mem::replace(&mut copies.served, true) {
            drop(copies);
            self.ask(level);
        }
    }

    /// Wait until all is written that was handed over.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        let waiting = self.waiting.lock();
        drop(self.idle.wait_while(waiting, |waiting| waiting.copies > 0));
    }

    /// Ask for a thread to write one copy of a level.
    fn ask(self: &Arc<Self>, level: &Arc<impl WrittenLevel>) {
        let (own, of) = (self.clone(), level.clone());
        if self.pool.lent(level.whose()).spawn_job(move || own.serve(&of)) {
            return;
        }
        let mut copies = level.line().0.lock();
        copies.served = false;
        copies.bytes = 0;
        let dropped = std::mem::take(&mut copies.waiting);
        drop(copies);
        level.counters().add(Event::NearDropped, dropped.len() as u64);
        dropped.iter().for_each(|moved| self.give_back(moved.copy.data.len()));
    }

    fn serve(self: &Arc<Self>, level: &Arc<impl WrittenLevel>) {
        let mut copies = level.line().0.lock();
        let Some(moved) = copies.waiting.pop_front() else {
            copies.served = false;
            return;
        };
        drop(copies);
        let len = moved.copy.data.len();
        // A panic ends this write and not the tier.
        let work = std::panic::AssertUnwindSafe(|| level.write_copy(&moved));
        let written = std::panic::catch_unwind(work).unwrap_or(false);
        level.counters().add(if written { Event::NearWritten } else { Event::NearDropped }, 1);
        drop(moved);
        let mut copies = level.line().0.lock();
        copies.bytes = copies.bytes.saturating_sub(len);
        copies.served = !copies.waiting.is_empty();
        let goes_on = copies.served;
        drop(copies);
        self.give_back(len);
        if goes_on {
            // Behind those of other levels.
            self.ask(level);
        }
    }

    /// Count a copy as waiting. False: too much waits already.
    fn take(&self, len: usize) -> bool {
        let mut waiting = self.waiting.lock();
        let bytes = waiting.bytes.saturating_add(len);
        let fits = bytes <= limits::NEAR_WRITING_BYTES;
        if fits {
            *waiting = Waiting { copies: waiting.copies + 1, bytes };
        }
        fits
    }

    fn give_back(&self, len: usize) {
        let mut waiting = self.waiting.lock();
        *waiting = Waiting { copies: waiting.copies.saturating_sub(1), bytes: waiting.bytes.saturating_sub(len) };
        if waiting.copies == 0 {
            self.idle.notify_all();
        }
    }
}

impl Line {
    /// Copies of which no write has begun.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.0.lock().waiting.len()
    }
}
