//! The storage system of a history: what is visible, what survives a power loss, and what was taken away, when and by whom.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kv_store_core::backend::{Presence, Put};

use crate::hashed::{HashMap, HashSet};
use crate::names::{self, Key, Kind, Stored, Version};
use crate::oracle::Oracle;
use crate::plan::{Event, Plan, Shape};
use crate::planted;
use crate::threads::Moment;
use chance::Dice;

/// A value as it lies.
#[derive(Clone)]
pub struct Entry {
    pub bytes: Arc<Vec<u8>>,
    /// It is what was put.
    pub sound: bool,
    pub version: Option<Version>,
}

/// A place for a value.
#[derive(Clone, Default)]
pub struct Slot {
    pub visible: Option<Entry>,
    pub durable: Option<Entry>,
    /// When a file ceased to have it for certain.
    pub durable_until: Option<Moment>,
    /// What was visible, and from when.
    pub past: Vec<(Moment, Option<Entry>)>,
    pub removals: Vec<Removal>,
    /// When bytes in it last changed by themselves.
    pub rotted: Option<Moment>,
    /// The process that alone knows that the file in which it lies is not synced, others of which take it for synced.
    pub unsynced_by: Option<usize>,
    /// Since when the file is gone in which it lies.
    pub without_file: Option<Moment>,
}

type Lay = Option<Entry>;

impl Slot {
    /// Since when what is visible lies there.
    pub fn visible_since(&self) -> Moment {
        self.past.last().map_or(0, |(at, _)| *at)
    }

    /// What lay there just before a time, if that is known, and what came from then on until another one.
    fn past_between(&self, from: Moment, until: Moment) -> (Option<&Lay>, impl Iterator<Item = &Lay>) {
        let before = self.past.iter().rev().find(|(at, _)| *at < from).map(|(_, entry)| entry);
        let within = self.past.iter().filter(move |(at, _)| (from..=until).contains(at)).map(|(_, entry)| entry);
        (before, within)
    }

    /// Whether there was nothing at any time, as far back as was asked. What changed in that moment may have been seen before.
    pub fn lacked_all_the_time(&self, from: Moment, until: Moment) -> bool {
        let (before, mut within) = self.past_between(from, until);
        before.is_none_or(Option::is_none) && within.all(Option::is_none)
    }
}

/// Something was taken away.
#[derive(Clone, Copy, Debug)]
pub struct Removal {
    pub at: Moment,
    /// None: by nobody's call.
    pub by: Option<Origin>,
}

/// Whose call asks for something.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    pub process: usize,
    pub operation: u32,
    pub call: u64,
}

/// What a component asks of the storage system.
#[derive(Clone)]
pub enum Request {
    Exists(Vec<Stored>),
    Put { chunks: Vec<(Stored, Arc<Vec<u8>>)>, replace: bool },
    Get(Vec<Stored>),
    Delete(Vec<Stored>),
    Commit { fresh: Vec<Stored>, manifest: Option<(Stored, Arc<Vec<u8>>)> },
    GetManifest(Stored),
    DeleteManifest(Stored),
}

pub enum Reply {
    Exists(Vec<Presence>),
    Put(Vec<Put>),
    Get(Vec<Option<Arc<Vec<u8>>>>),
    Delete(usize),
    /// The places of the chunks that are absent.
    Commit(Vec<usize>),
    Manifest(Option<Arc<Vec<u8>>>),
    Done,
}

/// A request that nobody waits for any more, which the storage system may still carry out.
pub struct Pending {
    pub process: usize,
    pub token: Vec<u8>,
    pub revoked: bool,
}

pub struct World {
    pub shape: Shape,
    pub slots: BTreeMap<Stored, Slot>,
    /// Which key a place is of.
    pub keys: HashMap<Stored, Key>,
    pub pending: HashMap<u64, Pending>,
    pub calls: u64,
    /// When a call returned to its process.
    pub returned: HashMap<u64, Moment>,
    /// Calls of each operation.
    pub calls_of: HashMap<u32, u64>,
    /// Of puts by queues: their keys.
    pub keys_of: HashMap<u32, Vec<Key>>,
    /// Operations that do not say what their keys are.
    pub unchecked: HashSet<u32>,
    /// Operations that met a fault.
    pub faulty: HashSet<u32>,
    pub dead: Vec<bool>,
    /// Engines whose threads have ended.
    pub finished: usize,
    /// When each engine begins.
    pub begun: Vec<Moment>,
    pub frozen_until: Moment,
    pub partitioned: HashMap<usize, Moment>,
    /// Processes that a system call held up: from when to when.
    pub stood_still: Vec<(usize, Moment, Moment)>,
    pub no_threads_until: Moment,
    /// The process that alone knows that the index log of a store of records is not synced.
    pub log_unsynced_by: Option<usize>,
    /// No call meets a fault from now on.
    pub calm: bool,
    pub failovers: Vec<Moment>,
    pub wall_jumps: bool,
    pub wall_went_back: bool,
    /// Processes whose backend was opened without conditions, though the server may honour them: it could not find out.
    pub unfenced: BTreeSet<usize>,
    /// Outsiders have removed something of a server: it may have been what the removal of a manifest left.
    pub tombstones_go: bool,
    /// Outsiders remove chunks and manifests.
    pub outsiders_remove: bool,
    /// Generations of manifests may be lower than former ones.
    pub generations_fall: bool,
    /// Instances lost.
    pub lost: u64,
    generation: u64,
    pub oracle: Oracle,
    /// Requests that reached the storage system, by items.
    pub operations: u64,
}

impl World {
    pub fn new(plan: &Plan) -> Self {
        let shape = plan.shape.clone();
        let mut keys = HashMap::default();
        for kind in [Kind::Content, Kind::Opaque, Kind::Register, Kind::Manifest] {
            for number in 0..shape.keys[kind as usize] {
                let key = Key { kind, number };
                keys.extend(names::places(shape.lengths, key).iter().map(|place| (place.clone(), key)));
            }
        }
        World {
            keys,
            slots: BTreeMap::new(),
            pending: HashMap::default(),
            calls: 0,
            returned: HashMap::default(),
            calls_of: HashMap::default(),
            faulty: HashSet::default(),
            unchecked: HashSet::default(),
            keys_of: HashMap::default(),
            dead: vec![false; plan.engines.len()],
            finished: 0,
            begun: plan.engines.iter().map(|engine| engine.start).collect(),
            frozen_until: 0,
            partitioned: HashMap::default(),
            stood_still: Vec::new(),
            no_threads_until: 0,
            log_unsynced_by: None,
            calm: false,
            failovers: Vec::new(),
            wall_jumps: false,
            wall_went_back: false,
            unfenced: BTreeSet::new(),
            tombstones_go: false,
            outsiders_remove: plan.events.iter().any(|planned| matches!(planned.event, Event::Remove(_))),
            generations_fall: false,
            lost: 0,
            generation: 0,
            oracle: Oracle::new(),
            operations: 0,
            shape,
        }
    }

    pub fn set(&mut self, place: &Stored, entry: Option<Entry>, now: Moment) {
        let slot = self.slots.entry(place.clone()).or_default();
        slot.past.push((now, entry.clone()));
        slot.visible = entry;
    }

    pub fn remove(&mut self, place: &Stored, by: Option<Origin>, now: Moment) {
        let had = self.slots.get(place).is_some_and(|slot| slot.visible.is_some());
        if had {
            self.set(place, None, now);
        }
        let slot = self.slots.entry(place.clone()).or_default();
        slot.removals.push(Removal { at: now, by });
        if slot.durable.is_some() && !had {
            slot.durable = None;
        }
        if let Some(key) = self.keys.get(place) {
            let returned = by.and_then(|by| self.returned.get(&by.call).copied());
            self.oracle.removed(*key, by, returned, had, now);
        }
    }

    /// While a removal, or a put that may replace, can still be carried out, its process does not count on the chunk.
    pub fn may_end_unknown(&mut self, request: &Request) {
        let of_any_kind = match request {
            Request::Put { replace, .. } => *replace,
            Request::Delete(_) => true,
            _ => return,
        };
        for key in request.places().iter().filter_map(|place| self.keys.get(place)) {
            if of_any_kind || key.kind != Kind::Content {
                self.oracle.touches(*key);
            }
        }
    }

    /// Carry out a request.
    pub fn apply(&mut self, request: &Request, by: Origin, now: Moment) -> Reply {
        match request {
            Request::Exists(places) => {
                self.operations += places.len() as u64;
                Reply::Exists(places.iter().map(|place| self.presence(place)).collect())
            }
            Request::Put { chunks, replace } => {
                self.operations += chunks.len() as u64;
                Reply::Put(chunks.iter().map(|(place, bytes)| self.put(place, bytes, *replace, by, now)).collect())
            }
            Request::Get(places) => {
                self.operations += places.len() as u64;
                Reply::Get(places.iter().map(|place| self.read(place)).collect())
            }
            Request::Delete(places) => {
                self.operations += places.len() as u64;
                places.iter().for_each(|place| self.remove(place, Some(by), now));
                Reply::Delete(places.len())
            }
            Request::Commit { fresh, manifest } => {
                self.operations += 1 + fresh.len() as u64;
                Reply::Commit(self.commit(fresh, manifest.as_ref(), by, now))
            }
            Request::GetManifest(place) => {
                self.operations += 1;
                Reply::Manifest(self.read(place))
            }
            Request::DeleteManifest(place) => {
                self.operations += 1;
                self.remove(place, Some(by), now);
                self.slots.entry(place.clone()).or_default().durable = None;
                Reply::Done
            }
        }
    }

    fn presence(&self, place: &Stored) -> Presence {
        match self.slots.get(place).and_then(|slot| slot.visible.as_ref()) {
            Some(entry) => Presence::Present(Some(entry.bytes.len() as u64)),
            None => Presence::Absent,
        }
    }

    fn read(&self, place: &Stored) -> Option<Arc<Vec<u8>>> {
        Some(self.slots.get(place)?.visible.as_ref()?.bytes.clone())
    }

    pub fn entry(&self, place: &Stored, bytes: &Arc<Vec<u8>>) -> Entry {
        let version = self.keys.get(place).and_then(|key| names::stored_version(self.shape.lengths, *key, bytes));
        Entry { bytes: bytes.clone(), sound: true, version }
    }

    fn put(&mut self, place: &Stored, bytes: &Arc<Vec<u8>>, replace: bool, by: Origin, now: Moment) -> Put {
        let exists = self.slots.get(place).is_some_and(|slot| slot.visible.is_some());
        if exists && !replace {
            return Put::Existed;
        }
        let entry = self.entry(place, bytes);
        if let Some(key) = self.keys.get(place).copied() {
            self.oracle.applied(key, entry.version, by, now);
            if replace {
                self.oracle.mended(by.process, key);
            }
        }
        self.set(place, Some(entry), now);
        Put::New
    }

    fn commit(
        &mut self,
        fresh: &[Stored],
        manifest: Option<&(Stored, Arc<Vec<u8>>)>,
        by: Origin,
        now: Moment,
    ) -> Vec<usize> {
        let mut absent = Vec::new();
        for (at, place) in fresh.iter().enumerate() {
            if self.presence(place) == Presence::Absent {
                absent.push(at);
            }
        }
        if !absent.is_empty() && !planted::is("store: a commit publishes over chunks that are absent") {
            return absent;
        }
        if self.shape.durable && !planted::is("store: a commit syncs nothing") {
            for place in fresh {
                let slot = self.slots.entry(place.clone()).or_default();
                slot.durable = slot.visible.clone();
            }
        }
        if let Some((place, bytes)) = manifest {
            self.publish(place, bytes, by, now);
        }
        Vec::new()
    }

    fn publish(&mut self, place: &Stored, bytes: &Arc<Vec<u8>>, by: Origin, now: Moment) {
        let mut entry = self.entry(place, bytes);
        self.generation += 1;
        let mut bytes = (**bytes).clone();
        if let Some(zeros) = bytes.last_chunk_mut::<16>() {
            let moment = 1_000_000 + now / 1000;
            zeros[..8].copy_from_slice(&moment.to_le_bytes());
            // Of two in one microsecond the second is the greater one.
            zeros[8..].copy_from_slice(&self.generation.to_be_bytes());
        }
        entry.bytes = Arc::new(bytes);
        if let Some(key) = self.keys.get(place).copied() {
            self.oracle.applied(key, entry.version, by, now);
        }
        self.set(place, Some(entry), now);
        if self.shape.durable && !planted::is("store: a manifest is not synced") {
            let slot = self.slots.entry(place.clone()).or_default();
            slot.durable = slot.visible.clone();
        }
    }

    /// Take away what is there, by nobody's call.
    pub fn evict(&mut self, key: Key, now: Moment) {
        for place in names::places(self.shape.lengths, key) {
            self.remove(place, None, now);
            self.slots.entry(place.clone()).or_default().durable = None;
        }
    }

    pub fn evict_many(&mut self, per_mille: u64, dice: &mut Dice, now: Moment) {
        let mut keys: Vec<Key> = self.keys.values().copied().collect();
        keys.sort_unstable();
        keys.dedup();
        keys.into_iter().filter(|_| dice.met(per_mille)).for_each(|key| self.evict(key, now));
    }

    /// Go on with what was there a while ago.
    pub fn fail_over(&mut self, back: Moment, now: Moment) {
        self.failovers.push(now);
        let then = now.saturating_sub(back);
        let places: Vec<Stored> = self.slots.keys().cloned().collect();
        for place in places {
            let Some(slot) = self.slots.get(&place) else { continue };
            let former = slot.past.iter().rev().find(|(from, _)| *from <= then).and_then(|(_, entry)| entry.clone());
            if former.is_none() {
                self.remove(&place, None, now);
            } else {
                self.set(&place, former, now);
            }
        }
    }

    /// Each engine that has begun ends.
    pub fn dead_until(&mut self, now: Moment) {
        for (dead, begun) in self.dead.iter_mut().zip(&self.begun) {
            *dead |= *begun <= now;
        }
    }

    /// Lose what was not synced, or keep it, or a part of it.
    pub fn lose_power(&mut self, dice: &mut Dice, now: Moment) {
        self.pending.values_mut().for_each(|pending| pending.revoked = true);
        let places: Vec<Stored> = self.slots.keys().cloned().collect();
        for place in places {
            let Some(slot) = self.slots.get(&place) else { continue };
            let is_manifest = place.first() == Some(&b'm');
            let left = match (dice.below(3), &slot.visible) {
                (0, visible) => visible.clone(),
                // A part of its bytes was written.
                (1, Some(entry)) if !is_manifest && slot.durable.is_none() => Some(torn(entry, dice)),
                _ => slot.durable.clone(),
            };
            if left.is_none() {
                self.remove(&place, None, now);
            } else {
                self.set(&place, left.clone(), now);
            }
            if let Some(slot) = self.slots.get_mut(&place) {
                slot.durable = left;
            }
        }
        self.failovers.push(now);
    }

    /// The instance that is the store is gone.
    pub fn retire(&mut self, now: Moment) {
        if !self.shape.holds_data {
            return;
        }
        self.lost += 1;
        self.keys.values().for_each(|key| self.oracle.touches(*key));
        let places: Vec<Stored> = self.slots.keys().cloned().collect();
        places.iter().for_each(|place| self.remove(place, None, now));
        self.pending.values_mut().for_each(|pending| pending.revoked = true);
        self.failovers.push(now);
    }

    /// Bytes of the first chunk of a put are not stored as they came.
    pub fn spoil(&mut self, request: &Request, dice: &mut Dice, now: Moment) {
        let Request::Put { chunks, .. } = request else { return };
        if let Some(key) = chunks.first().and_then(|(place, _)| self.keys.get(place)).copied() {
            self.rot(key, dice, now);
        }
    }

    /// Bytes that are stored change. Who finds that has them removed, and may not learn whether they were.
    pub fn rot(&mut self, key: Key, dice: &mut Dice, now: Moment) {
        self.oracle.touches(key);
        for place in names::places(self.shape.lengths, key) {
            let Some(slot) = self.slots.get_mut(place) else { continue };
            let Some(entry) = slot.visible.as_ref() else { continue };
            let rotten = torn(entry, dice);
            slot.rotted = Some(now);
            if slot.durable.is_some() {
                slot.durable = Some(rotten.clone());
            }
            self.set(place, Some(rotten), now);
        }
    }

    /// Whether nothing reaches the storage system at a moment, and until when.
    pub fn unreachable_until(&self, process: usize, now: Moment) -> Option<Moment> {
        let partition = self.partitioned.get(&process).copied().unwrap_or(0);
        Some(self.frozen_until.max(partition)).filter(|until| *until > now)
    }

    /// What lies under a key, with what is sound first.
    pub fn lying(&self, key: Key) -> impl Iterator<Item = &Slot> {
        names::places(self.shape.lengths, key).iter().filter_map(|place| self.slots.get(place))
    }

    /// Whether a slot had something sound all the time.
    pub fn had_all_the_time(&self, key: Key, from: Moment, until: Moment) -> bool {
        self.lying(key).any(|slot| {
            let (before, mut within) = slot.past_between(from, until);
            let is_sound = |entry: &Option<Entry>| entry.as_ref().is_some_and(|entry| entry.sound);
            before.is_some_and(is_sound) && within.all(is_sound)
        })
    }
}

/// Bytes of which a part is missing or others.
fn torn(entry: &Entry, dice: &mut Dice) -> Entry {
    let bytes = Arc::new(dice.spoilt(&entry.bytes));
    Entry { bytes, sound: false, version: None }
}
