//! Looks after stores that are bounded: counts what they hold, and has what is over evicted. On a few threads of its own, so that no
//! put waits for a walk of a directory; they take no signals, and nobody joins them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use super::bound::{Bound, Pressure};
use super::maintenance::Eviction;
use super::open_store::OpenStore;
use crate::directory::{Directory, Guard, Tally};
use crate::error::Error;
use crate::limits;
use crate::log::{self, Level};
use crate::process::{Clock, Spawn};

/// How soon a store is looked at again that is over its bound, and in which nothing may go yet.
const RETRIED: Duration = Duration::from_secs(1);

/// How long a store is looked after in one go, and one call more. Others wait for their turn meanwhile.
const UPKEEP_PASS: Duration = Duration::from_secs(10);

/// Looks after the bounded stores of a process.
pub(crate) struct Upkeep {
    clock: Clock,
    spawn: Spawn,
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    stores: Vec<Place>,
    threads: usize,
    last: u64,
}

/// A store that is looked after.
struct Place {
    number: u64,
    store: Weak<Kept>,
    due: Option<Instant>,
    /// A thread is at it.
    busy: bool,
}

/// What is kept of a store beside it.
pub(super) struct Kept {
    number: u64,
    bound: Bound,
    directory: Arc<Directory>,
    shared: Weak<OpenStore>,
    pressure: Mutex<Pressure>,
    /// When the operator was last told that it is over its bound, and cannot help it.
    told: Mutex<Option<Instant>>,
}

/// Bound a store that was just opened. `None`: it is not in a directory that it may write to.
pub(super) fn begin(shared: &Arc<OpenStore>, bound: Bound) -> Result<Option<Arc<Kept>>, Error> {
    let directory = shared.reach.directory.clone().filter(|directory| !directory.is_read_only());
    let Some(directory) = directory else { return Ok(None) };
    let upkeep = &shared.process.upkeep;
    let number = {
        let mut state = upkeep.lock();
        state.last += 1;
        state.last
    };
    let mut bound = bound;
    let tally = match (bound.evicts || bound.quota.is_some()) && shared.is_maintained() {
        true => Tally::open(&directory, bound.max_bytes.unwrap_or(u64::MAX)).inspect_err(|errno| {
            let uri = &shared.uri;
            log::line(
                Level::Warn,
                format_args!("{uri}: not bounded: .kv-usage in its directory cannot be used: {errno}"),
            );
        }),
        false => Err(rustix::io::Errno::NOSYS),
    };
    bound.evicts &= tally.is_ok();
    if bound.evicts {
        directory.note_uses_after(bound.save_grace);
    }
    let counted = tally.is_ok();
    if let Some(bytes) = bound.quota.filter(|_| !counted) {
        let what = match shared.is_maintained() {
            true => "what the directory holds cannot be counted",
            false => "the component has no `maintenance`, so what it stores cannot be counted",
        };
        return Err(Error::invalid(format!("the config's quota stored_bytes = {bytes} cannot be held: {what}")));
    }
    let limits = [("max_bytes", bound.max_bytes), ("the quota stored_bytes", bound.quota)];
    let least = limits.into_iter().filter_map(|(name, limit)| Some((limit?, name))).min();
    let woken = upkeep.clone();
    directory.set_guard(Guard::new(&upkeep.clock, bound.keep_free, least, tally.ok(), move || woken.wake(number)));
    if let (Some(guard), Ok(space)) = (directory.guard(), directory.space()) {
        guard.look(space.available);
    }
    let kept = Arc::new(Kept {
        number,
        bound,
        directory,
        shared: Arc::downgrade(shared),
        pressure: Mutex::default(),
        told: Mutex::default(),
    });
    if counted {
        upkeep.add(&kept);
    }
    Ok(Some(kept))
}

impl Upkeep {
    pub(crate) fn new(clock: Clock, spawn: Spawn) -> Self {
        Upkeep { clock, spawn, state: Mutex::default(), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn add(self: &Arc<Self>, kept: &Arc<Kept>) {
        let mut state = self.lock();
        state.stores.retain(|place| place.store.strong_count() > 0 || place.busy);
        let place =
            Place { number: kept.number, store: Arc::downgrade(kept), due: Some(self.clock.now()), busy: false };
        state.stores.push(place);
        if state.threads < state.stores.len().min(limits::MAX_UPKEEP_THREADS) {
            let own = self.clone();
            state.threads += usize::from(self.spawn.start("kv-store-upkeep", move || own.serve()));
        }
        drop(state);
        self.wake.notify_one();
    }

    fn wake(&self, number: u64) {
        if let Some(place) = self.lock().stores.iter_mut().find(|place| place.number == number) {
            place.due = Some(self.clock.now());
        }
        self.wake.notify_one();
    }

    fn serve(&self) {
        let mut state = self.lock();
        loop {
            state.stores.retain(|place| place.busy || place.store.strong_count() > 0);
            let now = self.clock.now();
            // The one that has waited for longest: none holds up the others for more than a pass.
            let waiting =
                state.stores.iter_mut().filter(|place| !place.busy && place.due.is_some_and(|due| due <= now));
            let due = waiting.min_by_key(|place| place.due);
            if let Some(place) = due {
                place.busy = true;
                place.due = None;
                let (number, store) = (place.number, place.store.upgrade());
                drop(state);
                let next = store.as_ref().and_then(|store| {
                    let tended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.tend()));
                    tended.unwrap_or(Some(limits::UPKEEP_PERIOD))
                });
                drop(store);
                state = self.lock();
                if let Some(place) = state.stores.iter_mut().find(|place| place.number == number) {
                    place.busy = false;
                    let next = next.map(|period| self.clock.now() + period);
                    // Or sooner, if it was woken meanwhile.
                    place.due = place.due.into_iter().chain(next).min();
                }
                continue;
            }
            let next = state.stores.iter().filter(|place| !place.busy).filter_map(|place| place.due).min();
            let wait = next.map_or(limits::IDLE_STORE_FOR, |due| due.saturating_duration_since(now));
            state = self.wake.wait_timeout(state, wait).unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Kept {
    /// What the store holds, as far as is known.
    pub(super) fn stored_bytes(&self) -> Option<u64> {
        self.directory.tally().map(Tally::total)
    }

    /// Do what is to be done now. When to look again.
    fn tend(&self) -> Option<Duration> {
        let shared = self.shared.upgrade()?;
        let (guard, tally) = self.directory.guard().and_then(|guard| Some((guard, guard.tally.as_ref()?)))?;
        guard.begin_upkeep();
        tally.write_down();
        if shared.process.clock.wall_ns().saturating_sub(tally.counted()) > nanoseconds(limits::COUNTED_FOR) {
            self.count(&shared, tally);
        }
        if !self.bound.evicts {
            guard.set_hopeless(true);
        } else if let Err(error) = self.evict(&shared, guard, tally) {
            self.tell(&shared, format_args!("cannot evict: {error}"));
        }
        guard.made_room();
        match guard.hold_if_hopeless() {
            true => Some(RETRIED),
            false => self.bound.period(),
        }
    }

    /// Count the files anew.
    fn count(&self, shared: &OpenStore, tally: &Tally) {
        let before = tally.total();
        match shared.usage() {
            Ok(usage) => tally.set(usage.bytes.unwrap_or(before), before),
            Err(error) => self.tell(shared, format_args!("cannot count what it holds: {error}")),
        }
    }

    fn evict(&self, shared: &OpenStore, guard: &Guard, tally: &Tally) -> Result<(), Error> {
        let (bound, clock) = (&self.bound, &shared.process.clock);
        let mut expires = bound.ttl.map(|ttl| clock.wall_ns().saturating_sub(nanoseconds(ttl)));
        let begun = clock.now();
        for _ in 0..limits::MAX_EVICTIONS {
            if clock.since(begun) > UPKEEP_PASS {
                return Ok(());
            }
            let used = tally.total();
            let available = self.directory.space()?.available;
            let mut pressure = self.pressure.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            let bytes = bound.over(used).max(pressure.over(bound, used, available));
            let spent = pressure.is_spent(used);
            drop(pressure);
            if spent {
                let (keep_free, half) = (bound.keep_free, used);
                self.tell(
                    shared,
                    format_args!(
                        "{available} bytes of the disk are free, keep_free = {keep_free}: others fill it. The store has evicted half \
                         of what it had and keeps the remaining {half} bytes; puts are refused until there is space"
                    ),
                );
            }
            if bytes == 0 && expires.is_none() {
                return Ok(());
            }
            let keep_since = clock.wall_ns().saturating_sub(nanoseconds(bound.save_grace));
            let removed = tally.removed();
            let mut evicted = shared.evict(&Eviction::new(bytes, expires, keep_since))?;
            if evicted.bytes > 0 && tally.removed() == removed {
                // It would be asked again and again.
                let said = evicted.bytes;
                self.tell(shared, format_args!("the component says that it evicted {said} bytes, and removed no file"));
                evicted.bytes = 0;
            }
            guard.set_hopeless(evicted.bytes == 0 && bytes > 0);
            guard.made_room();
            if !evicted.more {
                expires = None;
            }
            if evicted.bytes == 0 {
                if bytes > 0 && tally.total() > bound.max_bytes.unwrap_or(u64::MAX) {
                    let max = bound.max_bytes.unwrap_or(0);
                    self.tell(
                        shared,
                        format_args!("over max_bytes = {max}, and all of it was stored or used within save_grace_s: puts are refused"),
                    );
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Tell the operator something that may be so for long, a line a minute.
    fn tell(&self, shared: &OpenStore, what: std::fmt::Arguments<'_>) {
        let mut told = self.told.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if told.is_none_or(|told| shared.process.clock.since(told) >= limits::LOSS_TOLD_FOR) {
            *told = Some(shared.process.clock.now());
            log::line(Level::Warn, format_args!("{}: {what}", shared.uri));
        }
    }
}
