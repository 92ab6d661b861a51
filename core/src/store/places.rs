//! Where the stores of the process are while they are open: one place for all opens of the same, in which one opens it and
//! the others wait, each no longer than its own deadline. A store without a handle stays for the next open, within bounds of
//! number, bytes and time.
//!
//! Invariant: no store is torn down under a lock of this module. What a component left to be torn down may take long.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;

use crate::backend::Changes;
use crate::breaker::Breaker;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::process::{Clock, Condition};
use crate::threads::Helpers;

/// What is open, by what makes two opens the same.
pub(super) struct StoreTable<K, S> {
    entries: Mutex<HashMap<K, SlotEntry<S>>>,
    /// Groups of stores that are being torn down.
    leaving: Arc<Leaving>,
    /// What stores without a handle may hold together.
    most_idle_bytes: u64,
    /// A task is there that looks for stores that are idle for too long; and one for those of which that is soon.
    timed: AtomicBool,
    timed_soon: AtomicBool,
    clock: Clock,
    helpers: Arc<Helpers>,
}

struct Leaving {
    groups: Mutex<usize>,
    done: Condition,
}

/// Stores that are torn down when it is dropped, by whomever.
struct Group<S> {
    stores: Vec<Arc<StoreSlot<S>>>,
    leaving: Arc<Leaving>,
}

struct SlotEntry<S> {
    place: Arc<StoreSlot<S>>,
    /// Since when it has no handle, as far as it was looked.
    idle_since: Option<Instant>,
}

/// Where one store is.
pub(super) struct StoreSlot<S> {
    opening: Mutex<OpeningState<S>>,
    done: Condition,
    clock: Clock,
    /// Opens that fail are calls that fail.
    pub breaker: Arc<Breaker>,
    /// Of every store that was open here: a change may be carried out after the store was closed.
    pub changes: Arc<Changes>,
}

struct OpeningState<S> {
    store: Option<Arc<S>>,
    under_way: bool,
}

/// What a store is to this module.
pub trait SharedStore: Send + Sync + 'static {
    /// It is still what an open would make.
    fn is_current(&self) -> bool;
    /// What it costs while nobody uses it.
    fn bytes(&self) -> u64;
    /// How long it is kept while nobody uses it.
    fn kept_for(&self) -> Duration {
        limits::IDLE_STORE_FOR
    }
}

/// What an open finds.
pub(super) enum OpenTurn<'a, S> {
    /// Somebody has opened it.
    Open(Arc<S>),
    /// It is the caller's to open.
    Mine(Opener<'a, S>),
}

/// Leave to open a store. Dropped, it is the next one's.
pub(super) struct Opener<'a, S>(&'a StoreSlot<S>);

impl<K, S> StoreTable<K, S> {
    /// `most_idle_bytes`: what stores without a handle may hold together.
    pub(super) fn new(most_idle_bytes: u64, clock: Clock, helpers: Arc<Helpers>) -> Self {
        let (entries, timed, timed_soon) = Default::default();
        let leaving = Arc::new(Leaving { groups: Mutex::default(), done: Condition::new(&clock) });
        StoreTable { entries, leaving, most_idle_bytes, timed, timed_soon, clock, helpers }
    }
}

impl<K: Clone + Eq + Hash + Send + 'static, S: SharedStore> StoreTable<K, S> {
    /// The place of a store; `breaker` makes that of a new one.
    pub(super) fn place(&self, key: &K, breaker: impl FnOnce() -> Breaker) -> Arc<StoreSlot<S>> {
        let mut entries = self.entries.lock();
        let idle = if entries.contains_key(key) {
            Vec::new()
        } else {
            take_idle(&mut entries, 1, self.most_idle_bytes, self.clock.now())
        };
        let new = || SlotEntry {
            place: Arc::new(StoreSlot {
                opening: Mutex::new(OpeningState { store: None, under_way: false }),
                done: Condition::new(&self.clock),
                clock: self.clock.clone(),
                breaker: Arc::new(breaker()),
                changes: Arc::new(Changes::new(self.clock.clone())),
            }),
            idle_since: None,
        };
        let entry = entries.entry(key.clone()).or_insert_with(new);
        entry.idle_since = None;
        let place = entry.place.clone();
        drop(entries);
        self.tear_down(idle);
        place
    }

    /// Tear down the idle ones of these stores, and wait for others that leave, until a deadline. Answers whether there were any.
    pub(super) fn make_room(&self, of: impl Fn(&K) -> bool, deadline: Instant) -> bool {
        let mut entries = self.entries.lock();
        let is_idle = |entry: &SlotEntry<S>| Arc::strong_count(&entry.place) == 1 && entry.place.idle_bytes() > Some(0);
        let idle: Vec<K> =
            entries.iter().filter(|(key, entry)| of(key) && is_idle(entry)).map(|(key, _)| key.clone()).collect();
        let idle: Vec<_> = idle.iter().filter_map(|key| entries.remove(key)).collect();
        drop(entries);
        let mut any = !idle.is_empty();
        drop(idle);
        let mut groups = self.leaving.groups.lock();
        while *groups > 0 {
            let left = deadline.saturating_duration_since(self.clock.now());
            if left.is_zero() {
                break;
            }
            any = true;
            groups = self.leaving.done.wait_timeout(&self.leaving.groups, groups, left);
        }
        any
    }

    /// On a helper, or here where there is none.
    fn tear_down(&self, idle: Vec<Arc<StoreSlot<S>>>) {
        if idle.is_empty() {
            return;
        }
        *self.leaving.groups.lock() += 1;
        let group = Group { stores: idle, leaving: self.leaving.clone() };
        self.helpers.spawn_job(move || drop(group));
    }

    /// A handle was closed. `held`: bytes that the stores of the process hold, those with a handle included.
    pub(super) fn closed(self: &Arc<Self>, held: u64) {
        // From now on it is idle. Those that keep something in use, as a mounted file system, go soon.
        let left = self.sweep();
        if held <= self.most_idle_bytes && left.is_none() {
            return;
        }
        self.sweep_later();
        if left.is_some_and(|left| left <= limits::IDLE_DIRECTORY_FOR) {
            self.sweep_soon();
        }
    }

    /// Look for the stores that are not kept for long, until none is idle.
    fn sweep_soon(self: &Arc<Self>) {
        if self.timed_soon.swap(true, SeqCst) {
            return;
        }
        let own = Arc::downgrade(self);
        let handed = self.helpers.hand_later(limits::IDLE_DIRECTORY_FOR, move || {
            let Some(own) = own.upgrade() else { return };
            own.timed_soon.store(false, SeqCst);
            if own.sweep().is_some_and(|left| left <= limits::IDLE_DIRECTORY_FOR) {
                own.sweep_soon();
            }
        });
        if !handed {
            self.timed_soon.store(false, SeqCst);
        }
    }

    /// Look for stores that are idle for too long, again and again, until none is idle.
    fn sweep_later(self: &Arc<Self>) {
        if self.timed.swap(true, SeqCst) {
            return;
        }
        let own = Arc::downgrade(self);
        let handed = self.helpers.hand_later(limits::IDLE_STORE_FOR / 2, move || {
            let Some(own) = own.upgrade() else { return };
            own.timed.store(false, SeqCst);
            // Whoever closes from here on asks for it too.
            if own.sweep().is_some() {
                own.sweep_later();
            }
        });
        // The next close tries again.
        if !handed {
            self.timed.store(false, SeqCst);
        }
    }

    /// Drop idle stores that are over a bound. Answers how long the next of the others is kept, if any is idle.
    fn sweep(&self) -> Option<Duration> {
        let mut entries = self.entries.lock();
        let idle = take_idle(&mut entries, 0, self.most_idle_bytes, self.clock.now());
        let left = entries.values().filter(|entry| entry.idle_since.is_some());
        let left = left.map(|entry| entry.place.kept_for()).min();
        drop(entries);
        self.tear_down(idle);
        left
    }
}

/// Take out what is idle and over a bound, with room for so many more.
fn take_idle<K: Clone + Eq + Hash, S: SharedStore>(
    entries: &mut HashMap<K, SlotEntry<S>>,
    more: usize,
    most_bytes: u64,
    now: Instant,
) -> Vec<Arc<StoreSlot<S>>> {
    let mut idle = Vec::new();
    for (key, entry) in entries.iter_mut() {
        match entry.place.idle_bytes().filter(|_| Arc::strong_count(&entry.place) == 1) {
            Some(bytes) => {
                let (since, kept_for) = (*entry.idle_since.get_or_insert(now), entry.place.kept_for());
                idle.push(IdleStore { key: key.clone(), since, kept_for, bytes });
            }
            None => entry.idle_since = None,
        }
    }
    let too_many = (entries.len() + more).saturating_sub(limits::MAX_IDLE_STORES);
    let over = over(idle, too_many, most_bytes, now);
    over.into_iter().filter_map(|key| entries.remove(&key)).map(|entry| entry.place).collect()
}

/// A store without a handle.
struct IdleStore<K> {
    key: K,
    since: Instant,
    kept_for: Duration,
    bytes: u64,
}

/// Which of the idle stores go: what is idle for too long; and so many in any case, and as many as are over the bound in bytes, the one
/// that is idle for longest first.
fn over<K>(mut idle: Vec<IdleStore<K>>, too_many: usize, most_bytes: u64, now: Instant) -> Vec<K> {
    idle.sort_by_key(|store| store.since);
    let mut bytes: u64 = idle.iter().map(|store| store.bytes).fold(0, u64::saturating_add);
    let late = |store: &IdleStore<K>| now.saturating_duration_since(store.since) >= store.kept_for;
    let (late, rest): (Vec<_>, Vec<_>) = idle.into_iter().partition(late);
    late.iter().for_each(|store| bytes = bytes.saturating_sub(store.bytes));
    let mut gone = late.len();
    let goes = |store: &IdleStore<K>| {
        let goes = gone < too_many || bytes > most_bytes;
        gone += 1;
        bytes = bytes.saturating_sub(store.bytes);
        goes
    };
    let over: Vec<_> = rest.into_iter().take_while(goes).collect();
    late.into_iter().chain(over).map(|store| store.key).collect()
}

impl<S> Drop for Group<S> {
    fn drop(&mut self) {
        self.stores.clear();
        *self.leaving.groups.lock() -= 1;
        self.leaving.done.notify_all();
    }
}

impl<S: SharedStore> StoreSlot<S> {
    /// The store, if it is open and nobody is in the way.
    pub(super) fn current(&self) -> Option<Arc<S>> {
        self.opening.lock().current()
    }

    /// Wait for the store, or for the turn to open it, until a deadline.
    pub(super) fn turn(&self, deadline: Instant) -> Result<OpenTurn<'_, S>, Error> {
        let mut opening = self.opening.lock();
        loop {
            if let Some(store) = opening.current() {
                return Ok(OpenTurn::Open(store));
            }
            if !opening.under_way {
                opening.under_way = true;
                return Ok(OpenTurn::Mine(Opener(self)));
            }
            let left = deadline.saturating_duration_since(self.clock.now());
            if left.is_zero() {
                let message = "busy: another open of the same store was under way until the deadline";
                return Err(Error::new(ErrorKind::Unavailable, message));
            }
            opening = self.done.wait_timeout(&self.opening, opening, left);
        }
    }

    /// What it costs, if it has no handle, nobody opens it, and none of its changes may still be carried out.
    fn idle_bytes(&self) -> Option<u64> {
        let opening = self.opening.lock();
        match &opening.store {
            _ if opening.under_way || self.changes.holds() => None,
            Some(store) => (Arc::strong_count(store) == 1).then(|| store.bytes()),
            None => Some(0),
        }
    }

    /// How long it is kept while nobody uses it.
    fn kept_for(&self) -> Duration {
        self.opening.lock().store.as_ref().map_or(limits::IDLE_STORE_FOR, |store| store.kept_for())
    }
}

impl<S: SharedStore> OpeningState<S> {
    fn current(&self) -> Option<Arc<S>> {
        self.store.as_ref().filter(|store| store.is_current()).cloned()
    }
}

impl<S: SharedStore> Opener<'_, S> {
    /// It is open.
    pub(super) fn opened(self, store: Arc<S>) {
        let former = self.0.opening.lock().store.replace(store);
        // Not under the lock.
        drop(former);
    }
}

impl<S> Drop for Opener<'_, S> {
    fn drop(&mut self) {
        self.0.opening.lock().under_way = false;
        self.0.done.notify_all();
    }
}

#[cfg(test)]
#[path = "places_tests.rs"]
mod tests;
