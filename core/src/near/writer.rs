//! The thread that writes to the disk tiers of the process, so that no call of a consumer waits for a disk.
//!
//! What waits is bounded; what comes on top is dropped and counted. The thread is made when it is first wanted, takes no signals,
//! and nobody joins it.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use super::level::Level;
use super::memory::Moved;
use crate::counters::Event;
use crate::limits;
use crate::process::Spawn;

pub(super) struct Writer {
    spawn: Spawn,
    queue: Mutex<Queue>,
    wake: Condvar,
    idle: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<(Arc<Level>, Moved)>,
    bytes: usize,
    /// A thread is there; and it writes.
    running: bool,
    writing: bool,
}

impl Writer {
    pub(super) fn new(spawn: Spawn) -> Self {
        Writer { spawn, queue: Mutex::default(), wake: Condvar::new(), idle: Condvar::new() }
    }

    /// Have a copy written that the memory has given up.
    pub(super) fn hand(self: &Arc<Self>, level: &Arc<Level>, moved: Moved) {
        let len = moved.copy.data.len();
        let mut queue = self.lock();
        if !queue.running {
            let own = self.clone();
            queue.running = self.spawn.start("kv-store-near", move || own.serve());
        }
        if !queue.running || queue.bytes.saturating_add(len) > limits::NEAR_WRITING_BYTES {
            level.count(Event::NearDropped, 1);
            return;
        }
        queue.bytes += len;
        queue.jobs.push_back((level.clone(), moved));
        drop(queue);
        self.wake.notify_one();
    }

    /// Wait until all is written that was handed over.
    #[cfg(test)]
    pub(super) fn settle(&self) {
        let mut queue = self.lock();
        while queue.writing || !queue.jobs.is_empty() {
            queue = self.idle.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn serve(&self) {
        let mut queue = self.lock();
        loop {
            let Some((level, moved)) = queue.jobs.pop_front() else {
                self.idle.notify_all();
                queue = self.wake.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            queue.writing = true;
            drop(queue);
            let len = moved.copy.data.len();
            // A panic ends this write and not the tier.
            let work = std::panic::AssertUnwindSafe(|| write(&level, &moved));
            let written = std::panic::catch_unwind(work).unwrap_or(false);
            level.count(if written { Event::NearWritten } else { Event::NearDropped }, 1);
            drop((level, moved));
            queue = self.lock();
            queue.writing = false;
            queue.bytes -= len;
        }
    }
}

fn write(level: &Level, moved: &Moved) -> bool {
    let Moved { key, copy, deletes, .. } = moved;
    let Some(disk) = level.disk() else { return false };
    disk.count();
    disk.write(key, copy, || level.deleted(key) == *deletes)
}
