//! Requests to the far level, and what is done when they come back.

use std::sync::Arc;
use std::time::Instant;

use super::flights::{Flight, Latch, Table};
use super::{Inner, Wanted};
use crate::error::ErrorKind;
use crate::far::{DamagedItem, GetItem, Outcome, Request, Work};
use crate::key::Key;
use crate::limits;
use crate::metrics::{Count, Level, Op};
use crate::slab::{Block, Slot};

/// Where a block that was asked for comes from.
pub(super) enum Coming {
    /// It is here.
    Here(Block),
    /// It is on its way.
    Flight(Arc<Flight>),
}

/// A block that is to be asked for.
struct Led {
    key: Key,
    flight: Arc<Flight>,
    slot: Slot,
}

impl Inner {
    /// Ask for the leading blocks of a range. Fewer come where the bounds of what may be under way are reached.
    pub(super) fn ask_for(
        self: &Arc<Self>,
        op: Op,
        wanted: &Wanted,
        range: std::ops::Range<usize>,
        deadline: Instant,
    ) -> Vec<Coming> {
        let (mut coming, mut led) = (Vec::with_capacity(range.len()), Vec::new());
        let now = Instant::now();
        let mut table = self.flights.table.lock();
        for index in range {
            let Some(key) = wanted.keys.get(index) else { break };
            if let Some(flight) = table.fetching.get(key) {
                if flight.deadline <= now {
                    // It is late: who waited for it has gone, and nobody else begins to.
                    break;
                }
                self.metrics.count(Count::Joined, 1);
                coming.push(Coming::Flight(flight.clone()));
            } else if let Some(block) = self.near.as_ref().and_then(|near| near.peek(key)) {
                coming.push(Coming::Here(block));
            } else {
                match self.lead(&mut table, key, wanted.proof(index), deadline) {
                    Ok(one) => {
                        coming.push(Coming::Flight(one.flight.clone()));
                        led.push(one);
                    }
                    Err(kind) => {
                        self.metrics.failed(Level::L2, op, kind, 1);
                        break;
                    }
                }
            }
        }
        drop(table);
        self.fetch(op, led, deadline);
        coming
    }

    fn lead(&self, table: &mut Table, key: &Key, proof: Option<&[u8]>, deadline: Instant) -> Result<Led, ErrorKind> {
        if table.fetches >= self.most_fetching {
            return Err(ErrorKind::Denied);
        }
        let slot = self.slab.take().ok_or(ErrorKind::OutOfMemory)?;
        let flight = Flight::new(deadline, proof);
        table.fetches += 1;
        table.fetching.insert(*key, flight.clone());
        Ok(Led { key: *key, flight, slot })
    }

    /// Keys of one request.
    pub(super) fn batch(&self) -> usize {
        if self.features.batches { self.config.l2.op_batch } else { 1 }
    }

    fn fetch(self: &Arc<Self>, op: Op, led: Vec<Led>, deadline: Instant) {
        let Some(far) = &self.far else { return };
        let mut led = led.into_iter().peekable();
        while led.peek().is_some() {
            let (mut items, mut flights) = (Vec::new(), Vec::new());
            for Led { key, flight, slot } in led.by_ref().take(self.batch()) {
                items.push(GetItem::new(self.keys.far(&key), slot));
                flights.push((key, flight));
            }
            let inner = self.clone();
            let begun = self.timer();
            far.submit(Request::new(Work::Get(items), deadline, move |work, outcomes| {
                inner.fetched(op, work, &outcomes, flights, begun);
            }));
        }
    }

    /// The far level has answered a fetch.
    fn fetched(
        self: &Arc<Self>,
        op: Op,
        work: Work,
        outcomes: &[Outcome],
        flights: Vec<(Key, Arc<Flight>)>,
        begun: Option<Instant>,
    ) {
        let Work::Get(items) = work else { return };
        let (asked, mut found, mut damaged, mut left) = (items.len(), 0, Vec::new(), Vec::new());
        let epoch = self.flights.epoch();
        let mut landing = Vec::with_capacity(asked);
        for ((item, outcome), (key, flight)) in items.into_iter().zip(outcomes).zip(flights) {
            let (slot, tail) = item.value();
            let block = match outcome {
                Outcome::Found(len) if !self.shape.is_sound(item.key(), slot, tail, *len) => {
                    self.metrics.failed(Level::L2, op, ErrorKind::Corrupt, 1);
                    damaged.push(DamagedItem::new(item.key().to_vec(), self.shape));
                    None
                }
                Outcome::Found(_) if !self.shape.proves(slot, flight.proof.as_deref()) => {
                    self.metrics.count(Count::Collisions, 1);
                    None
                }
                Outcome::Found(_) => Some(item.into_slot().share()),
                Outcome::Failed(kind) => {
                    self.metrics.failed(Level::L2, op, *kind, 1);
                    None
                }
                Outcome::Missing => None,
                Outcome::Done => {
                    self.metrics.failed(Level::L2, op, ErrorKind::Error, 1);
                    None
                }
            };
            found += usize::from(block.is_some());
            landing.push((key, flight, block));
        }
        let late = landing.iter().filter(|(_, flight, block)| block.is_some() && flight.deadline <= Instant::now());
        self.metrics.count(Count::Late, late.count());
        self.done(Level::L2, op, asked, found, begun);
        self.metrics.count(Count::Damaged, damaged.len());
        self.look_at_damaged(damaged);
        // All at once: who finds no flight of a block finds the block.
        let mut table = self.flights.table.lock();
        for (key, flight, block) in &landing {
            if table.end_fetch(key, flight)
                && let Some(block) = block
            {
                self.keep(*key, block.pin(), true, &mut left);
            }
        }
        drop(table);
        landing.into_iter().for_each(|(_, flight, block)| flight.finish(block));
        self.ingest_left(op, left, epoch, false);
    }

    /// Have the far level look at what came damaged. It is a miss meanwhile, and the next put replaces it.
    fn look_at_damaged(self: &Arc<Self>, items: Vec<DamagedItem>) {
        if items.is_empty() {
            return;
        }
        let deadline = Instant::now() + self.config.l2.time_for(self.tokens(items.len()));
        self.ask(Op::Delete, Work::Damaged(items), deadline);
    }

    /// Ask a question, or for a removal. The outcomes come to the latch; `None`: too many are not answered.
    pub(super) fn ask(self: &Arc<Self>, op: Op, work: Work, deadline: Instant) -> Option<Arc<Latch<Vec<Outcome>>>> {
        let far = self.far.as_ref()?;
        {
            let mut table = self.flights.table.lock();
            if table.asking >= limits::MAX_ASKING {
                self.metrics.failed(Level::L2, op, ErrorKind::Denied, work.len());
                return None;
            }
            table.asking += 1;
        }
        let answered = Arc::new(Latch::default());
        let (inner, latch, begun, asked) = (self.clone(), answered.clone(), self.timer(), work.len());
        far.submit(Request::new(work, deadline, move |_, outcomes| {
            inner.flights.table.lock().asking -= 1;
            let mut done = 0;
            for outcome in &outcomes {
                match outcome {
                    Outcome::Done | Outcome::Found(_) => done += 1,
                    Outcome::Failed(kind) => inner.metrics.failed(Level::L2, op, *kind, 1),
                    Outcome::Missing => {}
                }
            }
            inner.done(Level::L2, op, asked, done, begun);
            latch.set(outcomes);
        }));
        Some(answered)
    }
}
