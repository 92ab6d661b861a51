//! Connections that wait for a next call: those that a guest parked for any instance of its store, and those that the guest
//! of an idle instance holds. Both are closed when nobody has used them for `idle_ms`, on the driver's thread.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;

use super::Place;
use super::link::Link;
use crate::budget::Idle;
use crate::engine;
use crate::limits::{self, Limits};

/// The idle connections of a store.
pub(crate) struct IdleConnections {
    /// How long one is kept.
    idle: Duration,
    links: Mutex<Links>,
}

#[derive(Default)]
struct Links {
    /// Each with the moment when it is closed, the latest last.
    by_place: HashMap<Place, Vec<(Link, Instant)>, foldhash::fast::RandomState>,
    /// Those of instances that are idle, or were when it was last looked.
    held: Vec<Weak<Held>>,
    /// A task is there that closes them.
    swept: bool,
}

/// The connections that the guest of one instance holds.
#[derive(Default)]
pub(crate) struct Held(Mutex<HeldLinks>);

#[derive(Default)]
struct HeldLinks {
    by_number: HashMap<u64, Link, foldhash::fast::RandomState>,
    last: u64,
    /// Since when no call runs; none: one does.
    idle_since: Option<Instant>,
    /// The store's [`IdleConnections`] has it in its list.
    listed: bool,
}

impl Held {
    /// Hold a connection, under a number that is not used again.
    pub(super) fn add(&self, link: Link) -> u64 {
        let mut held = self.0.lock();
        held.last += 1;
        let number = held.last;
        held.by_number.insert(number, link);
        number
    }

    pub(super) fn take(&self, number: u64) -> Option<Link> {
        self.0.lock().by_number.remove(&number)
    }

    pub(super) fn put(&self, number: u64, link: Link) {
        self.0.lock().by_number.insert(number, link);
    }

    /// A call begins.
    pub(crate) fn begin(&self) {
        self.0.lock().idle_since = None;
    }

    /// Close them if they were idle for so long; answers when they will have been. None: there is nothing to close.
    fn close_old(&self, idle: Duration, now: Instant) -> Option<Instant> {
        let mut held = self.0.lock();
        let until = held.idle_since.filter(|_| !held.by_number.is_empty()).map(|since| since + idle);
        if until.is_some_and(|until| now < until) {
            return until;
        }
        if until.is_some() {
            held.by_number.clear();
        }
        held.listed = false;
        None
    }
}

impl IdleConnections {
    pub(crate) fn new(limits: &Limits) -> Self {
        IdleConnections { idle: Duration::from_millis(limits.idle_ms), links: Mutex::default() }
    }

    pub(in crate::contract) fn take(&self, place: &Place) -> Option<Link> {
        let mut parked = self.links.lock();
        let links = parked.by_place.get_mut(place)?;
        let now = Instant::now();
        let found = std::iter::from_fn(|| links.pop())
            .find_map(|(mut link, until)| (now < until && link.is_silent()).then_some(link));
        if links.is_empty() {
            parked.by_place.remove(place);
        }
        found
    }

    /// Keep one for the next call, without memory: those that wait count for nobody's.
    pub(in crate::contract) fn keep(self: &Arc<Self>, place: Place, mut link: Link) {
        if !link.empty() {
            return;
        }
        let mut parked = self.links.lock();
        if self.idle.is_zero() || parked.by_place.values().map(Vec::len).sum::<usize>() >= limits::MAX_IDLE_CONNECTIONS
        {
            return;
        }
        parked.by_place.entry(place).or_default().push((link, Instant::now() + self.idle));
        self.sweep(&mut parked);
    }

    /// An instance is idle, and its guest holds these.
    pub(crate) fn idle(self: &Arc<Self>, held: &Arc<Held>) {
        {
            let mut links = held.0.lock();
            links.idle_since = Some(Instant::now());
            if self.idle.is_zero() {
                links.by_number.clear();
            }
            if links.by_number.is_empty() || std::mem::replace(&mut links.listed, true) {
                return;
            }
        }
        let mut parked = self.links.lock();
        parked.held.push(Arc::downgrade(held));
        self.sweep(&mut parked);
    }

    /// Have idle connections closed by and by.
    fn sweep(self: &Arc<Self>, parked: &mut Links) {
        if !parked.swept
            && let Ok(runtime) = engine::runtime()
        {
            parked.swept = true;
            runtime.driver.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Close what has been idle for too long; answers when the next one will have been. None: there are no more.
    fn close_old(&self) -> Option<Instant> {
        let mut parked = self.links.lock();
        let now = Instant::now();
        parked.by_place.retain(|_, links| {
            links.retain(|(_, until)| now < *until);
            !links.is_empty()
        });
        let mut next = parked.by_place.values().filter_map(|links| links.first()).map(|(_, until)| *until).min();
        parked.held.retain(|held| {
            let until = held.upgrade().and_then(|held| held.close_old(self.idle, now));
            next = next.into_iter().chain(until).min();
            until.is_some()
        });
        parked.swept = next.is_some();
        next
    }
}

impl Idle for IdleConnections {
    fn close(&self) {
        let mut parked = self.links.lock();
        parked.by_place.clear();
        let held: Vec<Arc<Held>> = parked.held.iter().filter_map(Weak::upgrade).collect();
        drop(parked);
        for held in held {
            let mut links = held.0.lock();
            if links.idle_since.is_some() {
                links.by_number.clear();
            }
        }
    }
}

/// Close idle connections by and by, until there are none or their store is gone.
async fn sweep(parked: Weak<IdleConnections>) {
    while let Some(next) = parked.upgrade().and_then(|parked| parked.close_old()) {
        tokio::time::sleep_until(next.into()).await;
    }
}
