//! The way of saves into one tier: a bounded queue, the thread that works on it, and the saves that are on their way.
//!
//! Each tier has a lane of its own, so that a slow disk delays no save to memory.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use kv_platform::sync::{Condvar, Mutex, MutexGuard};

use crate::config::QueueConfig;
use crate::counters::{add, add_since};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{Identity, Key};
use crate::log;
use crate::payload::Payload;
use crate::request::Save;
use crate::row::{NewRow, SaveReason};
use crate::tier::{Shared, Stored, Tier};

pub(crate) struct Lane {
    pub tier: Arc<Tier>,
    pub shared: Arc<Shared>,
    host: Arc<str>,
    limits: QueueConfig,
    queue: Mutex<Queue>,
    /// Saves in the queue, and the one that is being worked on.
    queued: AtomicU64,
    note_uses: Duration,
    changed: Condvar,
    /// Saves that are queued or being written. Lookups look here for their parent's, without a lock.
    flights: papaya::HashMap<Key, Arc<Flight>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    bytes: u64,
    running: bool,
    closed: bool,
}

struct Job {
    key: Key,
    save: OwnedSave,
    flight: OwnFlight,
}

/// What the lane's thread has to do.
enum Due {
    Save(Box<Job>),
    Note,
}

/// A save that the queue owns.
pub(crate) struct OwnedSave {
    identity: Identity,
    tokens: Box<[u32]>,
    payload: Box<[u8]>,
    reason: SaveReason,
    context_size: u32,
    quant_bits: u8,
    prompt: Box<str>,
    detail: Box<str>,
}

impl OwnedSave {
    pub fn of(save: Save<'_>) -> OwnedSave {
        OwnedSave {
            identity: *save.identity,
            tokens: save.tokens.into(),
            reason: save.reason.saved_as(),
            payload: save.payload.into_box(),
            context_size: save.context_size,
            quant_bits: save.quant_bits,
            prompt: save.prompt.into(),
            detail: save.detail.into(),
        }
    }

    fn bytes(&self) -> u64 {
        (self.payload.len() + self.tokens.len() * 4 + self.prompt.len() + self.detail.len()) as u64
    }
}

/// How a save ended.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Stored(Stored),
    Failed(ErrorKind, String),
}

pub(crate) enum Enqueued {
    Queued,
    Known,
    Full,
}

/// A save on its way, for those who wait for it.
pub(crate) struct Flight {
    pub tokens: usize,
    outcome: Mutex<Option<Outcome>>,
    landed: Condvar,
}

impl Flight {
    /// Wait for the end of the save; `None` where it does not end in time.
    pub fn wait(&self, timeout: Duration) -> Option<Outcome> {
        let outcome = self.outcome.lock();
        let waited = self.landed.wait_timeout_while(outcome, timeout, |outcome| outcome.is_none());
        waited.clone()
    }

    fn finish(&self, outcome: Outcome) {
        self.outcome.lock().get_or_insert(outcome);
        self.landed.notify_all();
    }
}

/// A flight in the lane's list, which it leaves when this is dropped; whoever waits is told by then.
pub(crate) struct OwnFlight {
    lane: Arc<Lane>,
    key: Key,
    flight: Arc<Flight>,
    /// Another flight of this key was in the list before.
    listed: bool,
}

impl Drop for OwnFlight {
    fn drop(&mut self) {
        if self.listed {
            self.lane.flights.pin().remove(&self.key);
        }
        self.flight.finish(Outcome::Failed(ErrorKind::Closed, "the save was dropped".into()));
    }
}

impl Lane {
    /// Store a row in this thread, and count it. A writer that was overtaken by the time of its reservation tries once more:
    /// it finds the other's row, or has the key to itself.
    pub(crate) fn store(&self, key: Key, row: &NewRow<'_>, payload: &mut Payload<'_>) -> Result<Stored> {
        let counters = &self.shared.counters;
        let start = Instant::now();
        let mut stored = self.tier.store(key, row, payload);
        if let Ok(Stored::Abandoned) = stored {
            stored = self.tier.store(key, row, payload);
        }
        add_since(&counters.pack_nanos, start);
        match &stored {
            Ok(Stored::Done) => counters.saved(row.reason),
            Ok(Stored::Present | Stored::Taken) => {}
            Ok(Stored::Abandoned) | Err(_) => add(&counters.saves_failed, 1),
        }
        stored
    }

    /// A lane with its thread, and what is disconnected when that has let go of the lane.
    pub fn start(
        tier: Tier,
        limits: QueueConfig,
        note_uses: Duration,
        shared: Arc<Shared>,
        host: Arc<str>,
    ) -> io::Result<(Arc<Lane>, Receiver<()>)> {
        let lane = Arc::new(Lane {
            tier: Arc::new(tier),
            shared,
            host,
            limits,
            queue: Mutex::default(),
            queued: AtomicU64::new(0),
            note_uses,
            changed: Condvar::new(),
            flights: papaya::HashMap::new(),
        });
        let worker = lane.clone();
        let (alive, gone) = channel::<()>();
        crate::threads::start("kv-cache-save", move || {
            worker.work();
            drop(worker);
            drop(alive);
        })?;
        Ok((lane, gone))
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// The save of this key that is on its way.
    pub fn flight(&self, key: &Key) -> Option<Arc<Flight>> {
        self.flights.pin().get(key).cloned()
    }

    pub fn begin_flight(self: &Arc<Self>, key: Key, tokens: usize) -> OwnFlight {
        let flight = Arc::new(Flight { tokens, outcome: Mutex::default(), landed: Condvar::new() });
        let listed = self.flights.pin().try_insert(key, flight.clone()).is_ok();
        OwnFlight { lane: self.clone(), key, flight, listed }
    }

    /// Wait until the save of this key that is not ours has ended. False where it does not.
    pub fn wait_for_other(&self, key: &Key, ours: &OwnFlight, timeout: Duration) -> bool {
        match self.flight(key) {
            Some(other) if !Arc::ptr_eq(&other, &ours.flight) => other.wait(timeout).is_some(),
            _ => {
                // It is not in the list: it ended just now, or it is the one that ours is listed for.
                std::thread::sleep(Duration::from_millis(1).min(timeout));
                true
            }
        }
    }

    /// Queue a save, if there is room and the row is neither there nor on its way.
    pub fn enqueue(self: &Arc<Self>, key: Key, save: Save<'_>) -> Result<Enqueued> {
        if self.tier.tokens_of(&key).is_some() {
            return Ok(Enqueued::Known);
        }
        // Not copied for nothing.
        if self.has_no_room(&*self.open_queue()?) {
            return Ok(Enqueued::Full);
        }
        let flight = self.begin_flight(key, save.tokens.len());
        if !flight.listed {
            return Ok(Enqueued::Known);
        }
        let save = OwnedSave::of(save);
        let mut queue = self.open_queue()?;
        let bytes = save.bytes();
        if self.has_no_room(&queue) || bytes > self.limits.bytes.0.saturating_sub(queue.bytes) {
            return Ok(Enqueued::Full);
        }
        queue.bytes += bytes;
        queue.jobs.push_back(Job { key, save, flight });
        add(&self.queued, 1);
        drop(queue);
        self.changed.notify_all();
        Ok(Enqueued::Queued)
    }

    /// Put a save before all others, whatever the bounds: its caller waits for it.
    pub fn enqueue_first(self: &Arc<Self>, key: Key, save: OwnedSave) -> Result<Arc<Flight>> {
        let own = self.begin_flight(key, save.tokens.len());
        let flight = own.flight.clone();
        let mut queue = self.open_queue()?;
        queue.bytes += save.bytes();
        queue.jobs.push_front(Job { key, save, flight: own });
        add(&self.queued, 1);
        drop(queue);
        self.changed.notify_all();
        Ok(flight)
    }

    fn open_queue(&self) -> Result<MutexGuard<'_, Queue>> {
        let queue = self.queue();
        if queue.closed {
            return Err(Error::new(ErrorKind::Closed, "the cache is closed"));
        }
        Ok(queue)
    }

    fn has_no_room(&self, queue: &Queue) -> bool {
        queue.jobs.len() >= self.limits.saves || queue.bytes >= self.limits.bytes.0
    }

    pub fn queued(&self) -> u64 {
        self.queued.load(Relaxed)
    }

    /// Wait until nothing is queued. False where that takes too long.
    pub fn flush(&self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        let busy = |queue: &mut Queue| queue.running || !queue.jobs.is_empty();
        let mut waited = self.changed.wait_timeout_while(self.queue(), left, busy);
        !busy(&mut waited)
    }

    /// Take no more saves, and drop those that are still queued. How many.
    pub fn close(&self) -> u64 {
        let mut queue = self.queue();
        queue.closed = true;
        let dropped = std::mem::take(&mut queue.jobs);
        queue.bytes = 0;
        drop(queue);
        self.changed.notify_all();
        let n = dropped.len() as u64;
        self.queued.fetch_sub(n, Relaxed);
        add(&self.shared.counters.saves_dropped, n);
        n
    }

    /// The lane's thread: stores the queued saves, and notes the order of use every `note_uses` and at the end. Whoever waits for it has
    /// a timeout, so a stalled disk blocks this thread alone.
    fn work(&self) {
        let mut noted = Instant::now();
        while let Some(due) = self.next(noted + self.note_uses) {
            match due {
                Due::Save(job) => {
                    self.run(*job);
                    self.queue().running = false;
                    self.queued.fetch_sub(1, Relaxed);
                    self.changed.notify_all();
                }
                Due::Note => {
                    self.tier.note_uses();
                    noted = Instant::now();
                }
            }
        }
        self.tier.note_uses();
    }

    /// Wait for what is to be done next; `None` at the end.
    fn next(&self, note: Instant) -> Option<Due> {
        let mut queue = self.queue();
        loop {
            let left = note.saturating_duration_since(Instant::now());
            if self.tier.has_files() && left.is_zero() && !queue.closed {
                return Some(Due::Note);
            }
            if let Some(job) = queue.jobs.pop_front() {
                queue.bytes = queue.bytes.saturating_sub(job.save.bytes());
                queue.running = true;
                return Some(Due::Save(Box::new(job)));
            }
            if queue.closed {
                return None;
            }
            queue = match self.tier.has_files() {
                true => self.changed.wait_timeout(queue, left),
                false => self.changed.wait(queue),
            };
        }
    }

    fn run(&self, job: Job) {
        let Job { key, save, flight } = job;
        let row = NewRow {
            identity: save.identity,
            tokens: &save.tokens,
            reason: save.reason,
            detail: &save.detail,
            quant_bits: save.quant_bits,
            context_size: save.context_size,
            created: self.shared.clock.wall().as_secs(),
            prompt: &save.prompt,
            host: &self.host,
            payload_bytes: save.payload.len() as u64,
            descriptor: self.shared.descriptor,
        };
        let mut payload = Payload::Owned(save.payload);
        // A test's hook may panic; the lane goes on.
        let stored = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.store(key, &row, &mut payload)));
        flight.flight.finish(match stored {
            Ok(Ok(stored)) => Outcome::Stored(stored),
            Ok(Err(error)) => {
                log::warn(format_args!("a {:?} save failed: {error}", save.reason));
                Outcome::Failed(error.kind(), error.to_string())
            }
            Err(_) => Outcome::Failed(ErrorKind::Internal, "a save panicked".into()),
        });
    }
}
