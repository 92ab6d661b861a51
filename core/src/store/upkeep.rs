//! Looks after stores that are bounded: counts what they hold, and has what is over evicted. On a few threads of its own, so that no
//! put waits for a walk of a directory; they take no signals, and nobody joins them.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;

use super::bound::{Bound, Pressure};
use super::contents::{Evicted, Eviction, Usage};
use crate::directory::{Directory, Guard, Space, Tally, tally};
use crate::error::Error;
use crate::limits;
use crate::log::{self, Level};
use crate::process::{Clock, Condition, Spawn};
use crate::threads::{Turns, Whose};

/// How soon a store is looked at again that is over its bound, and in which nothing may go yet.
const RETRIED: Duration = Duration::from_secs(1);

/// From when on a count is made again though nothing may go: what it says need not be there any more.
const COUNT_DOUBTED: Duration = Duration::from_secs(10);

/// How long a store is looked after in one go, and one call more. Others wait for their turn meanwhile.
const UPKEEP_PASS: Duration = Duration::from_secs(10);

/// Looks after the bounded stores of a process.
pub(crate) struct Evictor {
    clock: Clock,
    spawn: Spawn,
    state: Mutex<EvictorState>,
    wake: Condition,
}

struct EvictorState {
    turns: Turns,
    stores: Vec<ScheduledStore>,
    threads: usize,
    last: u64,
}

/// A store that is looked after.
struct ScheduledStore {
    number: u64,
    whose: Whose,
    store: Weak<BoundedStore>,
    due: Option<Instant>,
    /// A thread is at it.
    busy: bool,
}

/// What is asked of a store that is looked after.
pub(super) trait MaintainedStore: Send + Sync {
    fn uri(&self) -> &str;
    /// Whether its component can count what it holds, and evict.
    fn is_maintained(&self) -> bool;
    fn usage(&self) -> Result<Usage, Error>;
    fn evict(&self, what: &Eviction) -> Result<Evicted, Error>;
}

/// What is kept of a store beside it.
pub(super) struct BoundedStore {
    number: u64,
    bound: Bound,
    directory: Arc<Directory>,
    store: Weak<dyn MaintainedStore>,
    clock: Clock,
    pressure: Mutex<Pressure>,
    /// When the operator was last told that it is over its bound, and cannot help it.
    told: Mutex<Option<Instant>>,
}

/// Bound a store that was just opened in a directory that it may write to.
pub(super) fn begin(
    upkeep: &Arc<Evictor>,
    store: &Arc<dyn MaintainedStore>,
    (whose, directory): (&Whose, Arc<Directory>),
    bound: Bound,
) -> Result<Arc<BoundedStore>, Error> {
    let number = {
        let mut state = upkeep.state.lock();
        state.last += 1;
        state.last
    };
    let mut bound = bound;
    let tally = match (bound.evicts || bound.quota.is_some()) && store.is_maintained() {
        true => Tally::open(&directory, bound.max_bytes.unwrap_or(u64::MAX)).inspect_err(|errno| {
            let uri = store.uri();
            log::line(
                Level::Warn,
                format_args!("{uri}: not bounded: .kv-usage in its directory cannot be used: {errno}"),
            );
        }),
        false => Err(rustix::io::Errno::NOSYS),
    };
    bound.evicts &= tally.is_ok();
    if bound.evicts {
        directory.note_uses_within(bound.save_grace);
    }
    // Another process may evict where this one does not.
    if bound.evicts || Tally::is_kept(&directory) {
        directory.announce_saves(bound.save_grace);
    }
    let counted = tally.is_ok();
    if let Some(bytes) = bound.quota.filter(|_| !counted) {
        let what = match store.is_maintained() {
            true => "what the directory holds cannot be counted",
            false => "the component has no `maintenance`, so what it stores cannot be counted",
        };
        return Err(Error::invalid(format!("the config's quota stored_bytes = {bytes} cannot be held: {what}")));
    }
    let limits = [("max_bytes", bound.max_bytes), ("the quota stored_bytes", bound.quota)];
    let least = limits.into_iter().filter_map(|(name, limit)| Some((limit?, name))).min();
    let woken = upkeep.clone();
    let mut guard = Guard::new(&upkeep.clock, bound.keep_free, least, tally.ok(), move || woken.wake(number));
    if let Some(max) = bound.max_entries.filter(|_| bound.evicts) {
        match Tally::open_as(tally::FILES, &directory, max) {
            Ok(entries) => guard = guard.with_entries(max, entries),
            Err(errno) => {
                let uri = store.uri();
                log::line(
                    Level::Warn,
                    format_args!("{uri}: max_entries is not held: .kv-files cannot be used: {errno}"),
                );
            }
        }
    }
    directory.set_guard(if bound.evicts { guard.evicting() } else { guard });
    if let (Some(guard), Ok(space)) = (directory.guard(), directory.space()) {
        guard.look(space.available);
    }
    let kept = Arc::new(BoundedStore {
        number,
        bound,
        directory,
        store: Arc::downgrade(store),
        clock: upkeep.clock.clone(),
        pressure: Mutex::default(),
        told: Mutex::default(),
    });
    if counted {
        upkeep.add(&kept, whose);
    }
    Ok(kept)
}

impl Evictor {
    pub(crate) fn new(clock: Clock, spawn: Spawn) -> Self {
        let turns = Turns::new(limits::MAX_UPKEEP_THREADS, limits::MAX_EXTRA_THREADS);
        let state = EvictorState { turns, stores: Vec::new(), threads: 0, last: 0 };
        Evictor { wake: Condition::new(&clock), clock, spawn, state: Mutex::new(state) }
    }

    fn add(self: &Arc<Self>, kept: &Arc<BoundedStore>, whose: &Whose) {
        let mut state = self.state.lock();
        state.stores.retain(|place| place.store.strong_count() > 0 || place.busy);
        state.stores.push(ScheduledStore {
            number: kept.number,
            whose: whose.clone(),
            store: Arc::downgrade(kept),
            due: Some(self.clock.now()),
            busy: false,
        });
        self.have_threads(&mut state);
        drop(state);
        self.wake.notify_one();
    }

    /// Start a thread if there are too few. Where the system has none now, the next who needs room tries it again.
    fn have_threads(self: &Arc<Self>, state: &mut EvictorState) {
        if state.threads < state.stores.len().min(state.turns.places()) {
            let own = self.clone();
            state.threads += usize::from(self.spawn.start("kv-store-upkeep", move || own.serve()));
        }
    }

    /// Have a store looked after now. False: there is no thread to do it.
    fn wake(self: &Arc<Self>, number: u64) -> bool {
        let mut state = self.state.lock();
        if let Some(place) = state.stores.iter_mut().find(|place| place.number == number) {
            place.due = Some(self.clock.now());
        }
        self.have_threads(&mut state);
        let served = state.threads > 0;
        drop(state);
        self.wake.notify_one();
        served
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        loop {
            state.stores.retain(|place| place.busy || place.store.strong_count() > 0);
            let now = self.clock.now();
            if let Some((number, whose, store)) = state.next(now) {
                drop(state);
                let next = store.as_ref().and_then(|store| {
                    let tended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.run_pass()));
                    tended.unwrap_or(Some(limits::UPKEEP_PERIOD))
                });
                drop(store);
                state = self.state.lock();
                state.turns.end(&whose);
                if let Some(place) = state.stores.iter_mut().find(|place| place.number == number) {
                    place.busy = false;
                    let next = next.map(|period| self.clock.now() + period);
                    // Or sooner, if it was woken meanwhile.
                    place.due = place.due.into_iter().chain(next).min();
                }
                continue;
            }
            // What is due and may not start is looked at by the thread whose end lets it.
            let next = state
                .stores
                .iter()
                .filter(|place| !place.busy)
                .filter_map(|place| place.due)
                .filter(|due| *due > now)
                .min();
            let wait = next.map_or(limits::IDLE_STORE_FOR, |due| due.saturating_duration_since(now));
            state = self.wake.wait_timeout(&self.state, state, wait);
        }
    }
}

impl EvictorState {
    /// Begin with a store that is due: of the owner that has the least under way, the one that has waited for longest.
    fn next(&mut self, now: Instant) -> Option<(u64, Whose, Option<Arc<BoundedStore>>)> {
        let due = |place: &ScheduledStore| place.due.filter(|due| *due <= now && !place.busy);
        let mut waiting: Vec<(Instant, usize)> =
            self.stores.iter().enumerate().filter_map(|(at, place)| Some((due(place)?, at))).collect();
        waiting.sort_unstable();
        let waiting = waiting.into_iter().filter_map(|(_, at)| Some((at, &self.stores.get(at)?.whose)));
        let at = self.turns.next(waiting)?;
        let place = self.stores.get_mut(at)?;
        (place.busy, place.due) = (true, None);
        let whose = place.whose.clone();
        self.turns.begin(&whose);
        Some((place.number, whose, place.store.upgrade()))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl BoundedStore {
    /// What the store holds, as far as is known.
    /// Whether something is evicted for its bounds.
    pub(super) fn evicts(&self) -> bool {
        self.bound.evicts
    }

    pub(super) fn stored_bytes(&self) -> Option<u64> {
        self.directory.tally().map(Tally::total)
    }

    /// Do what is to be done now. When to look again.
    fn run_pass(&self) -> Option<Duration> {
        let store = self.store.upgrade()?;
        let (guard, tally) = self.directory.guard().and_then(|guard| Some((guard, guard.tally.as_ref()?)))?;
        guard.begin_upkeep();
        tally.write_down();
        let entries = guard.entries();
        entries.into_iter().for_each(Tally::write_down);
        if tally.is_count_due() || entries.is_some_and(Tally::is_count_due) {
            self.count(&*store, tally, entries);
        }
        if !self.bound.evicts {
            guard.set_cannot_free(true);
        } else if let Err(error) = self.evict(&*store, guard, tally) {
            self.warn_rarely(&*store, format_args!("cannot evict: {error}"));
            // Or those who wait for room would have it tried again at once, again and again.
            guard.set_cannot_free(true);
        }
        guard.made_room();
        match guard.hold_if_cannot_free() {
            true => Some(RETRIED),
            false => self.bound.period(),
        }
    }

    /// Count the files anew.
    fn count(&self, store: &dyn MaintainedStore, tally: &Tally, entries: Option<&Tally>) {
        let (before, files_before) = (tally.total(), entries.map_or(0, Tally::total));
        match store.usage() {
            Ok(usage) => {
                tally.set(usage.bytes.unwrap_or(before), before);
                if let (Some(entries), Some(chunks), Some(manifests)) = (entries, usage.chunks, usage.manifests) {
                    entries.set(chunks.saturating_add(manifests), files_before);
                }
            }
            Err(error) => self.warn_rarely(store, format_args!("cannot count what it holds: {error}")),
        }
    }

    fn evict(&self, store: &dyn MaintainedStore, guard: &Guard, tally: &Tally) -> Result<(), Error> {
        let (bound, clock) = (&self.bound, &self.clock);
        let mut expires = bound.ttl.map(|ttl| clock.wall_ns().saturating_sub(nanoseconds(ttl)));
        let mut recounted = false;
        let begun = clock.now();
        for _ in 0..limits::MAX_EVICTIONS {
            if clock.since(begun) > UPKEEP_PASS {
                return Ok(());
            }
            let (used, reckoned) = (tally.total(), tally.reckoned());
            let Space { available, files, .. } = self.directory.space()?;
            // So few inodes that they are gone before it is looked again.
            let few = files.is_some_and(|(all, left)| left < all / 200);
            let mut pressure = self.pressure.lock();
            let average = guard.entries().map_or(0, |entries| (used / entries.total().max(1)).max(1));
            let ran_out = guard.take_ran_out() || few;
            let counted = bound
                .over(reckoned)
                .max(guard.take_awaited(reckoned))
                .max(guard.entries_over().saturating_mul(average));
            let for_disk = pressure.over(bound, used, available);
            let for_files = if ran_out { pressure.ran_out(used) } else { 0 };
            let bytes = counted.max(for_disk).max(for_files);
            let spent = pressure.is_spent(used);
            drop(pressure);
            if spent {
                let (keep_free, half) = (bound.keep_free, used);
                self.warn_rarely(
                    store,
                    format_args!(
                        "{available} bytes of the disk are free, keep_free = {keep_free}: others fill it. The store has evicted half \
                         of what it had and keeps the remaining {half} bytes; puts are refused until there is space"
                    ),
                );
            }
            if bytes == 0 && expires.is_none() {
                // Who waits for room on a full disk gets none; all others may ask again.
                guard.set_cannot_free(ran_out);
                return Ok(());
            }
            let keep_since = self.directory.unnamed_before(bound.save_grace);
            let removed = tally.removed();
            let mut evicted = store.evict(&Eviction::new(bytes, expires, keep_since))?;
            if evicted.bytes > 0 && tally.removed() == removed {
                // It would be asked again and again.
                let said = evicted.bytes;
                self.warn_rarely(
                    store,
                    format_args!("the component says that it evicted {said} bytes, and removed no file"),
                );
                evicted.bytes = 0;
            }
            let age = clock.wall_ns().saturating_sub(tally.counted());
            if evicted.bytes == 0 && counted > 0 && !recounted && age >= nanoseconds(COUNT_DOUBTED) {
                // Others may have removed it, or counted it before it was written down.
                recounted = true;
                self.count(store, tally, guard.entries());
                continue;
            }
            guard.set_cannot_free(evicted.bytes == 0 && bytes > 0);
            guard.made_room();
            if !evicted.more {
                expires = None;
            }
            if evicted.bytes == 0 {
                if bytes > 0 && tally.reckoned() > bound.max_bytes.unwrap_or(u64::MAX) {
                    let max = bound.max_bytes.unwrap_or(0);
                    self.warn_rarely(
                        store,
                        format_args!(
                            "over max_bytes = {max}, and saves that are under way need all of it: puts are refused"
                        ),
                    );
                }
                return Ok(());
            }
        }
        Ok(())
    }

    /// Tell the operator something that may be so for long, a line a minute.
    fn warn_rarely(&self, store: &dyn MaintainedStore, what: std::fmt::Arguments<'_>) {
        let mut told = self.told.lock();
        if told.is_none_or(|told| self.clock.since(told) >= limits::LOSS_TOLD_FOR) {
            *told = Some(self.clock.now());
            log::line(Level::Warn, format_args!("{}: {what}", store.uri()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

    /// Its files are gone, whatever was counted.
    struct Cleared {
        counts: AtomicUsize,
    }

    impl MaintainedStore for Cleared {
        fn uri(&self) -> &str {
            "test://cleared"
        }

        fn is_maintained(&self) -> bool {
            true
        }

        fn usage(&self) -> Result<Usage, Error> {
            self.counts.fetch_add(1, Relaxed);
            Ok(Usage { bytes: Some(0), ..Usage::default() })
        }

        fn evict(&self, _: &Eviction) -> Result<Evicted, Error> {
            Ok(Evicted::default())
        }
    }

    /// A clock of the calendar that begins when files are long counted.
    struct Calendar(AtomicU64);

    impl crate::process::Time for Calendar {
        fn now(&self) -> Instant {
            Instant::now()
        }

        fn wall(&self) -> std::time::SystemTime {
            std::time::UNIX_EPOCH + Duration::from_secs(self.0.load(Relaxed))
        }
    }

    #[test]
    fn where_nothing_may_go_it_is_counted_whether_there_is_anything() {
        const FILLED: i64 = 900_000;
        let calendar = Arc::new(Calendar(AtomicU64::new(1_000_000)));
        let clock = Clock::of(calendar.clone());
        let scratch = tempfile::tempdir().unwrap();
        let shared = Arc::new(crate::directory::Shared::of_test(clock.clone()));
        let directory = Arc::new(Directory::open(scratch.path(), &shared).unwrap());
        let upkeep = Arc::new(Evictor::new(clock, Spawn::of(|_, _| false)));
        let cleared = Arc::new(Cleared { counts: AtomicUsize::new(0) });
        let store: Arc<dyn MaintainedStore> = cleared.clone();
        let bound = Bound { max_bytes: Some(1 << 20), evicts: true, ..Bound::default() };
        let kept = begin(&upkeep, &store, (&Whose::default(), directory.clone()), bound).unwrap();
        directory.tally().unwrap().add(FILLED);
        let refused = || directory.admit(300_000, None).is_err();
        // Each is what one who needs room does, and then who looks after the store.
        for (after, refuses, counts) in [(0, true, 0), (9, true, 0), (10, false, 1), (10, false, 1)] {
            calendar.0.store(1_000_000 + after, Relaxed);
            refused();
            kept.run_pass();
            assert_eq!((refused(), cleared.counts.load(Relaxed)), (refuses, counts), "after {after} s");
        }
        // What is there and may not go is not counted at each look.
        directory.tally().unwrap().add(FILLED);
        refused();
        kept.run_pass();
        assert_eq!((refused(), cleared.counts.load(Relaxed)), (true, 1));
    }

    #[test]
    fn who_needs_room_has_a_thread_started_that_could_not_be_had_before() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        // None can be had twice.
        let spawn = Spawn::of(move |_, _| counted.fetch_add(1, Relaxed) >= 2);
        let evictor = Arc::new(Evictor::new(Clock::default(), spawn));
        let place = ScheduledStore { number: 1, whose: Whose::default(), store: Weak::new(), due: None, busy: false };
        evictor.state.lock().stores.push(place);
        for threads in [0, 0, 1, 1] {
            assert_eq!(evictor.wake(1), threads > 0);
            assert_eq!(evictor.state.lock().threads, threads);
        }
        assert_eq!(asked.load(Relaxed), 3, "one is enough");
        assert!(evictor.state.lock().stores.iter().all(|place| place.due.is_some()));
    }
}
