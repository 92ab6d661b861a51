//! Which changes of a store may still be carried out though nobody was told how they ended.
//!
//! A *change* is the publication or removal of a manifest, the removal or replacement of a chunk, and a put of a chunk whose key is not the
//! hash of its content. One that its caller gave up may reach the storage system until its end, the deadline of the call that made it. Until
//! then the next change of that key waits, unless the component settles former ones by itself.
//!
//! A change takes its place **before** it is made and gives it back when its end is known; while no place is free nothing is changed, and
//! everything is read. A table that is filled only once an end is unknown, and then has to forget, holds nothing.
//!
//! Invariants, within this process and as far as the storage system refuses a change after its end: "an acknowledged change is not undone",
//! "a refused change is not there". `tests/models/src/hold.rs` is the model.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use kv_platform::sync::{Mutex, MutexGuard};

use super::ChunkHash;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::process::{Clock, Condition};
use crate::until::Until;

/// What a change is of.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum ChangeKey {
    Chunk(ChunkHash),
    Manifest(Box<str>),
}

/// The table of one store in this process, for all its handles and instances.
pub struct Changes {
    clock: Clock,
    table: Mutex<ChangeTable>,
    /// A place was given back.
    freed: Condition,
    /// Those of `ChangeTable::unknown`, readable without the lock.
    unknown: AtomicUsize,
    /// The component has said once which changes it sends.
    tells: AtomicBool,
}

#[derive(Default)]
struct ChangeTable {
    held: HashMap<ChangeKey, Vec<Held>, foldhash::fast::RandomState>,
    taken: usize,
    /// How many of those taken are of changes that ended unknown.
    unknown: usize,
    numbered: u64,
}

/// One place.
struct Held {
    number: u64,
    /// Until when it may be carried out. None: it is under way.
    end: Option<Instant>,
    token: Box<[u8]>,
}

/// The changes of one call of the component, by the numbers of its items.
pub struct Change {
    of: Arc<Changes>,
    places: Mutex<Vec<ChangedItem>>,
    /// The component settles former changes that ended unknown.
    settles: bool,
    /// Bytes were sent during the call.
    sent: AtomicBool,
}

struct ChangedItem {
    key: ChangeKey,
    number: u64,
    /// The component said that it sends it, and not that it was not carried out.
    begun: bool,
    token: Box<[u8]>,
    /// Former ones that it was told of.
    former: Vec<u64>,
}

/// How the change of one item ended, as far as its call said.
#[derive(Clone, Copy)]
pub enum End<'a> {
    Done,
    /// It was done without a change: nothing was published.
    NotDone,
    Failed(&'a Error),
    /// The call went well and answered less than it was asked.
    Unanswered,
    /// Nothing is known, not even of the call.
    Lost,
}

impl Changes {
    pub fn new(clock: Clock) -> Self {
        let (table, unknown, tells) = Default::default();
        Changes { freed: Condition::new(&clock), clock, table, unknown, tells }
    }

    /// Take places for changes of some of these keys, from the first on: at least one. `settles`: former changes that ended unknown are the
    /// component's to settle; otherwise it waits for the end of those of the first key. A manifest is changed by one call at a time: those of
    /// several threads would only meet at the storage system, which lets all but one try again.
    pub fn take(self: &Arc<Self>, keys: Vec<ChangeKey>, settles: bool, until: &Until) -> Result<Arc<Change>, Error> {
        let Some(first) = keys.first() else { return Ok(Arc::new(Change::of(self, settles, Vec::new()))) };
        let mut table = self.wait(first, !settles, true, until)?;
        let now = table.time(&self.clock);
        let room = limits::MAX_CHANGES.saturating_sub(table.taken).min(limits::MAX_CHANGES_OF_A_CALL);
        let free = keys.into_iter().take(room).take_while(|key| settles || table.held_until(key, now).is_none());
        // The borrow of the table ends before it is written.
        let free: Vec<ChangeKey> = free.collect();
        let places = free.into_iter().map(|key| {
            let number = table.enter(key.clone());
            ChangedItem { key, number, begun: false, token: Box::default(), former: Vec::new() }
        });
        let places = places.collect();
        Ok(Arc::new(Change::of(self, settles, places)))
    }

    /// How many of these keys, from the first on, have no change that ended unknown; waits until it is one at least.
    pub fn free<'k>(&self, keys: impl Iterator<Item = &'k ChunkHash>, until: &Until) -> Result<usize, Error> {
        let mut keys = keys.map(|hash| ChangeKey::Chunk(*hash));
        // Nearly always, and then a put whose key is the hash of its content pays no lock.
        if self.unknown.load(Relaxed) == 0 {
            return Ok(keys.count());
        }
        let Some(first) = keys.next() else { return Ok(0) };
        let table = self.wait(&first, true, false, until)?;
        let now = table.time(&self.clock);
        Ok(1 + keys.take_while(|key| table.held_until(key, now).is_none()).count())
    }

    /// Whether a change of a chunk ended unknown and may still be carried out: that the chunk is there says nothing then.
    pub fn is_unsettled(&self, hash: &ChunkHash) -> bool {
        self.unknown.load(Relaxed) > 0 && {
            let table = self.table.lock();
            table.held_until(&ChangeKey::Chunk(*hash), table.time(&self.clock)).is_some()
        }
    }

    /// Whether a change may still be carried out that ended unknown.
    pub fn holds(&self) -> bool {
        self.unknown.load(Relaxed) > 0 && {
            let mut table = self.table.lock();
            table.forget_over(self.clock.now());
            self.unknown.store(table.unknown, Relaxed);
            table.unknown > 0
        }
    }

    /// Wait until no former change of a key may be carried out any more (`holds`), and (`takes`) there is a free place and no other change of
    /// the same manifest is under way.
    fn wait(
        &self,
        key: &ChangeKey,
        holds: bool,
        takes: bool,
        until: &Until,
    ) -> Result<MutexGuard<'_, ChangeTable>, Error> {
        let mut table = self.table.lock();
        loop {
            let held = if holds { table.held_until(key, table.time(&self.clock)) } else { None };
            let runs = takes && matches!(key, ChangeKey::Manifest(_)) && table.is_under_way(key);
            if takes && table.taken >= limits::MAX_CHANGES {
                table.forget_over(self.clock.now());
                self.unknown.store(table.unknown, Relaxed);
            }
            let full = takes && table.taken >= limits::MAX_CHANGES;
            match held {
                None if !full && !runs => return Ok(table),
                None if !runs && table.unknown == table.taken => return Err(full_table()),
                _ => {}
            }
            let (now, deadline) = (self.clock.now(), until.deadline());
            if let Err(error) = until.check() {
                return Err(match held {
                    _ if error.kind() == ErrorKind::Cancelled => error,
                    Some(end) => held_too_long(end.saturating_duration_since(now).as_millis()),
                    None if runs => under_way_too_long(),
                    None => full_table(),
                });
            }
            // A clock that is handed in, and a caller that cancels, wake nobody.
            let next = held.map_or(deadline, |end| end.min(deadline)).saturating_duration_since(now);
            let next = next.min(limits::HELD_CHANGE_LOOK);
            table = self.freed.wait_timeout(&self.table, table, next);
        }
    }
}

fn held_too_long(ms: u128) -> Error {
    let message = format!(
        "not done: a former change of the same key ended unknown and may be carried out for {ms} ms more, which is longer than this call may \
         wait (deadline_ms); try again after that"
    );
    Error::busy(message)
}

fn under_way_too_long() -> Error {
    Error::busy(
        "not done: another call has been changing the same manifest for as long as this one may wait (deadline_ms); try again",
    )
}

fn full_table() -> Error {
    let message = format!(
        "not done: {} changes of this store are under way or ended unknown, which is the most that are remembered until their deadlines \
         (deadline_ms); reads go on, try again later",
        limits::MAX_CHANGES
    );
    Error::new(ErrorKind::Exhausted, message)
}

impl ChangeTable {
    fn enter(&mut self, key: ChangeKey) -> u64 {
        self.numbered += 1;
        self.taken += 1;
        self.held.entry(key).or_default().push(Held { number: self.numbered, end: None, token: Box::default() });
        self.numbered
    }

    /// The time, if there is a change that ended unknown: nearly never, and the clock is not read otherwise.
    fn time(&self, clock: &Clock) -> Option<Instant> {
        (self.unknown > 0).then(|| clock.now())
    }

    fn is_under_way(&self, key: &ChangeKey) -> bool {
        self.held.get(key).into_iter().flatten().any(|held| held.end.is_none())
    }

    /// Until when a change of a key may be carried out that ended unknown. `now`: of [`Self::time`].
    fn held_until(&self, key: &ChangeKey, now: Option<Instant>) -> Option<Instant> {
        self.unknown_of(key, now).filter_map(|held| held.end).max()
    }

    fn unknown_of(&self, key: &ChangeKey, now: Option<Instant>) -> impl Iterator<Item = &Held> {
        let held = now.and_then(|_| self.held.get(key)).into_iter().flatten();
        held.filter(move |held| held.end.zip(now).is_some_and(|(end, now)| now < end))
    }

    /// Give back those places of a key that are not to be kept.
    fn retain(&mut self, key: &ChangeKey, keep: impl Fn(&Held) -> bool) {
        let Some(held) = self.held.get_mut(key) else { return };
        held.retain(|held| {
            let kept = keep(held);
            self.taken -= usize::from(!kept);
            self.unknown -= usize::from(!kept && held.end.is_some());
            kept
        });
        if held.is_empty() {
            self.held.remove(key);
        }
    }

    /// Give back the places of those that cannot be carried out any more.
    fn forget_over(&mut self, now: Instant) {
        let ChangeTable { held, taken, unknown, .. } = self;
        held.retain(|_, held| {
            held.retain(|held| {
                let over = held.end.is_some_and(|end| end <= now);
                *taken -= usize::from(over);
                *unknown -= usize::from(over);
                !over
            });
            !held.is_empty()
        });
    }
}

impl Change {
    fn of(of: &Arc<Changes>, settles: bool, places: Vec<ChangedItem>) -> Self {
        Change { of: of.clone(), places: Mutex::new(places), settles, sent: AtomicBool::new(false) }
    }

    /// How many items it has.
    #[allow(clippy::len_without_is_empty, reason = "it has one at least")]
    pub fn len(&self) -> usize {
        self.places().len()
    }

    /// The component is about to send the changes of some items, each once or again. What settles them later is the token. Answers the
    /// tokens of former changes of the same keys that ended unknown, each once. Items that the call has not are passed over.
    pub fn begin(&self, items: &[u32], token: &[u8]) -> Vec<Vec<u8>> {
        self.of.tells.store(true, Relaxed);
        let mut places = self.places();
        let table = self.of.table.lock();
        let now = table.time(&self.of.clock);
        let mut tokens = BTreeSet::new();
        for item in items {
            let Some(place) = places.get_mut(*item as usize) else { continue };
            place.begun = true;
            place.token = token.into();
            place.former.clear();
            for held in table.unknown_of(&place.key, now) {
                place.former.push(held.number);
                if !tokens.contains(&*held.token) {
                    tokens.insert(held.token.to_vec());
                }
            }
        }
        tokens.into_iter().collect()
    }

    /// The component knows that the changes of some items were not carried out, and will not be.
    pub fn not_done(&self, items: &[u32]) {
        self.of.tells.store(true, Relaxed);
        let mut places = self.places();
        for item in items {
            if let Some(place) = places.get_mut(*item as usize) {
                place.begun = false;
            }
        }
    }

    /// Bytes are sent during the call: what a component that never says which changes it sends may have sent is all of them.
    pub fn sending(&self) {
        self.sent.store(true, Relaxed);
    }

    /// The call is over. Those of its changes whose end is not known are held until the end of the call's time. Answers how many they are.
    pub fn end<'e>(&self, end: impl Fn(usize) -> End<'e>, until: &Until) -> usize {
        let tells = self.of.tells.load(Relaxed);
        let guessed = !tells && self.sent.load(Relaxed);
        let mut places = self.places();
        if places.is_empty() {
            return 0;
        }
        let mut table = self.of.table.lock();
        let latest = until.latest();
        let mut lost = 0;
        for (item, place) in places.drain(..).enumerate() {
            let end = end(item);
            if end.is_unknown(place.begun, guessed) {
                lost += 1;
                table.unknown += 1;
                let held = table.held.get_mut(&place.key).into_iter().flatten();
                for held in held.filter(|held| held.number == place.number) {
                    held.end = Some(latest);
                    held.token = place.token.clone();
                }
            } else {
                let settles = self.settles && matches!(end, End::Done);
                let settled = |held: &Held| settles && place.former.contains(&held.number);
                table.retain(&place.key, |held| held.number != place.number && !settled(held));
            }
        }
        self.of.unknown.store(table.unknown, Relaxed);
        drop(table);
        self.of.freed.notify_all();
        lost
    }

    fn places(&self) -> MutexGuard<'_, Vec<ChangedItem>> {
        self.places.lock()
    }
}

impl End<'_> {
    /// Whether a change may still be carried out. `guessed`: the component never says which it sends, and bytes were sent.
    fn is_unknown(self, begun: bool, guessed: bool) -> bool {
        match self {
            End::Done | End::NotDone => false,
            End::Lost => begun || guessed,
            End::Unanswered => begun,
            End::Failed(error) => begun || (guessed && !is_refusal(error)),
        }
    }
}

/// What a storage system answers that has understood a change and does not make it.
fn is_refusal(error: &Error) -> bool {
    use ErrorKind::{Denied, Exhausted, Invalid, Unsupported};
    error.is_busy() || matches!(error.kind(), Denied | Exhausted | Invalid | Unsupported)
}
