//! The file system of a history over local-fs: `core` makes its system calls on it, from several processes, and the backend what the contract's
//! `files` lets it do over `core`. What lies under the path of a chunk or a manifest is noted for the rules, and what a power loss would leave of
//! it.

mod faults;
mod kernel;
mod records;
mod said;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use kv_platform::sync::Mutex;
use kv_store_core::segments::SegmentStore;
use kv_store_sdk::key::{escape_listed, hex_behind};
pub use simulated_files::{Calls, Share, told};
use simulated_files::{Disk, tree};

use self::kernel::Kernel;
pub use self::records::{OpenStore, Records};
use self::said::{Known, RecordKey};
use crate::names::{self, Key, Stored};
use crate::plan::{Backend, Event, Plan};
use crate::sim::Sim;
use crate::threads::Moment;
use crate::world::{Entry, Origin, Removal, Request, World};
use chance::Dice;

/// Where the file system is mounted.
const PLACE: &str = "/simulated";
/// The directory of the store.
const STORE: &str = "store";

/// The URI of the store.
pub fn uri(scheme: &str) -> String {
    format!("{scheme}://{PLACE}/{STORE}")
}

/// The files of a history, and who has them open.
pub struct Files {
    state: Mutex<State>,
}

struct State {
    disk: Disk,
    dice: Dice,
    /// Until when others have filled the disk.
    full_until: Moment,
    /// An operation of which no further system call fails: it has lost a file that other processes may sync as well.
    spared: Option<u32>,
    /// What the running calls of the backend are about, by their threads.
    calls: BTreeMap<usize, (Origin, Request)>,
    /// The places of the chunks and manifests of the history.
    places: Vec<Stored>,
    /// Where they lie: directories, each with what lies in it, in their order.
    paths: Vec<(String, Vec<String>)>,
    /// The same in a store of records.
    record_keys: Vec<RecordKey>,
    known: Known,
    /// What lay at each place when it was last looked at, as far as the rules have it.
    last: Vec<Lies>,
    /// The segments that there were when that was last looked at.
    segments: BTreeSet<u32>,
    /// The store of records that each process opened last.
    opened: BTreeMap<usize, Weak<SegmentStore>>,
}

impl Files {
    /// For the places of a history. None: its backend has no files.
    pub fn of<'a>(plan: &Plan, places: impl Iterator<Item = &'a Stored>) -> Option<Self> {
        let has_records = plan.shape.backend.has_records();
        if !matches!(plan.shape.backend, Backend::LocalFs { .. }) && !has_records {
            return None;
        }
        let mut places: Vec<Stored> = places.cloned().collect();
        places.sort();
        let record_keys = places.iter().filter(|_| has_records).map(|place| record_of(place)).collect();
        let mut paths: Vec<(String, Vec<String>)> = Vec::new();
        for path in places.iter().filter(|_| !has_records).map(|place| path_of(place)) {
            let (directory, name) = path.rsplit_once('/').unwrap_or(("", &path));
            match paths.last_mut().filter(|(last, _)| last == directory) {
                Some((_, names)) => names.push(name.to_owned()),
                None => paths.push((directory.to_owned(), vec![name.to_owned()])),
            }
        }
        let state = State {
            disk: Disk::new(PLACE),
            dice: Dice::of(plan.seed, &[10]),
            full_until: 0,
            spared: None,
            calls: BTreeMap::new(),
            places,
            paths,
            record_keys,
            known: Known::default(),
            last: Vec::new(),
            segments: BTreeSet::new(),
            opened: BTreeMap::new(),
        };
        Some(Files { state: Mutex::new(state) })
    }

    /// Whether the store that a process has open now is another one than before. Several threads may have opened it at once.
    pub fn is_opened_anew(&self, process: usize, store: &Arc<SegmentStore>) -> bool {
        let now = Arc::downgrade(store);
        let before = self.state.lock().opened.insert(process, now.clone());
        !before.is_some_and(|before| before.ptr_eq(&now))
    }
}

/// As `docs/backends.md` has the layout.
fn path_of(place: &[u8]) -> String {
    match place.split_first() {
        Some((b'm', name)) => format!("{STORE}/{}", escape_listed(&String::from_utf8_lossy(name))),
        Some((_, hash)) => {
            let digit = hash.first().map_or(0, |byte| byte >> 4);
            hex_behind(&format!("{STORE}/chunks/{digit:x}/"), hash)
        }
        None => STORE.to_owned(),
    }
}

/// The same of a segment store.
fn record_of(place: &[u8]) -> RecordKey {
    match place.split_first() {
        Some((b'm', name)) => (1, escape_listed(&String::from_utf8_lossy(name)).into_bytes()),
        Some((_, hash)) => (0, hash.to_vec()),
        None => (0, Vec::new()),
    }
}

/// Have the files of this thread be those of the history, where it has any.
pub fn start(sim: &Arc<Sim>) {
    if sim.files.is_some() {
        rustix::enter(Some(Rc::new(Kernel(Arc::downgrade(sim)))));
    }
}

pub fn end(sim: &Sim) {
    if sim.files.is_some() {
        rustix::enter(None);
    }
}

/// A call of the backend begins on the running thread.
pub fn called(sim: &Sim, origin: Origin, request: &Request) {
    if let (Some(files), Some(thread)) = (&sim.files, sim.threads.current()) {
        files.state.lock().calls.insert(thread, (origin, request.clone()));
    }
}

pub fn returned(sim: &Sim) {
    if let (Some(files), Some(thread)) = (&sim.files, sim.threads.current()) {
        files.state.lock().calls.remove(&thread);
    }
}

/// What lies at a place, and what a power loss leaves of it: the bytes, and whether they are damaged.
type Lies = (Option<(Arc<Vec<u8>>, bool)>, Option<(Arc<Vec<u8>>, bool)>);

fn is_same(one: &Lies, other: &Lies) -> bool {
    let same = |one: &Option<(Arc<Vec<u8>>, bool)>, other: &Option<(Arc<Vec<u8>>, bool)>| match (one, other) {
        (Some((one, damaged)), Some((other, others))) => Arc::ptr_eq(one, other) && damaged == others,
        (one, other) => one.is_none() && other.is_none(),
    };
    same(&one.0, &other.0) && same(&one.1, &other.1)
}

impl State {
    fn lies(&self) -> Vec<Lies> {
        let mut lies = Vec::with_capacity(self.places.len());
        for (directory, names) in &self.paths {
            let now = self.disk.tree.resolve(tree::ROOT, directory);
            let certain = self.disk.tree.certain_directory(directory);
            lies.extend(names.iter().map(|name| {
                let there = now.and_then(|directory| self.disk.tree.look(directory, name));
                let there = there.and_then(|node| self.disk.tree.file(node)).ok();
                // The oldest. What is damaged is as durable as it is.
                let oldest = certain.and_then(|directory| self.disk.tree.certain_oldest(directory, name));
                (there.map(|file| (file.bytes(), file.damaged)), oldest)
            }));
        }
        lies
    }
}

/// Note for the rules what the index log says now, and whether a segment was evicted though there was room for another one.
fn look_at_records(sim: &Sim, files: &Files, world: &mut World, by: Option<&(Origin, Request)>) -> Vec<Lies> {
    let state = &mut *files.state.lock();
    let holds = said::holds(&state.disk.tree, &state.record_keys, &mut state.known);
    let most = sim.plan.shape.backend.segments();
    let evicted: Vec<u32> = state.segments.difference(&holds.segments).copied().collect();
    if let Some((origin, _)) = by.filter(|(origin, _)| {
        !evicted.is_empty() && state.segments.len() < most && !world.faulty.contains(&origin.operation)
    }) {
        let (operation, had) = (origin.operation, state.segments.len());
        let text = format!("operation {operation} evicts a segment of {had}, and there may be {most}");
        world.oracle.violated("evicted-early", text, sim.threads.moment());
    }
    state.segments = holds.segments;
    world.log_unsynced_by = holds.log_unsynced_by;
    let mut lies = Vec::with_capacity(state.places.len());
    for (place, held) in state.places.iter().zip(holds.of) {
        let slot = world.slot_mut(place);
        slot.unsynced_by = held.unsynced_by;
        let since = slot.without_file.unwrap_or(sim.threads.moment());
        slot.without_file = held.without_file.then_some(since);
        let known = slot.visible.as_ref();
        let shared = |(bytes, damaged): (Arc<Vec<u8>>, bool)| {
            // What was copied elsewhere is what it was.
            let same = known.filter(|known| *known.bytes == *bytes && known.sound != damaged);
            (same.map_or(bytes, |known| known.bytes.clone()), damaged)
        };
        lies.push((held.visible.map(shared), held.durable.map(shared)));
    }
    lies
}

/// Note for the rules what lies at each place now, of which each difference is by this call, or by nobody.
fn look(sim: &Sim, files: &Files, by: Option<&(Origin, Request)>) {
    let now = sim.threads.moment();
    let mut world = sim.world();
    let all = match sim.plan.shape.backend.has_records() {
        true => look_at_records(sim, files, &mut world, by),
        false => files.state.lock().lies(),
    };
    let mut state = files.state.lock();
    let last = std::mem::take(&mut state.last);
    let mut publishes = None;
    for (at, (place, lies)) in state.places.iter().zip(&all).enumerate() {
        if last.get(at).is_some_and(|last| is_same(last, lies)) {
            continue;
        }
        let (there, certain) = lies;
        let known = world.slots.get(place).and_then(|slot| slot.visible.clone());
        let is_new = |bytes: &Arc<Vec<u8>>| known.as_ref().is_none_or(|known| !Arc::ptr_eq(&known.bytes, bytes));
        let entry = |bytes: &Arc<Vec<u8>>, damaged: bool| {
            let entry = world.entry(place, bytes);
            let sound = !damaged && entry.version.is_some();
            Entry { sound, version: entry.version.filter(|_| sound), ..entry }
        };
        let visible = there.as_ref().map(|(bytes, damaged)| entry(bytes, *damaged));
        let certain = certain.as_ref().map(|(bytes, damaged)| entry(bytes, *damaged));
        match (there, visible) {
            (Some((bytes, damaged)), Some(entry)) if is_new(bytes) => {
                publishes = publishes.or(by.filter(|(_, request)| request.publishes(place)));
                world.found_in_file(place, entry, by, now);
                if *damaged && let Some(slot) = world.slots.get_mut(place) {
                    slot.rotted = Some(now);
                }
                if *damaged && sim.plan.shape.backend.has_records() {
                    // A record that does not hold is none.
                    let key = world.keys.get(place).copied();
                    key.into_iter().for_each(|key| world.oracle.touches(key));
                }
            }
            (None, _) if known.is_some() => {
                let asked = by.filter(|(_, request)| request.removes(place)).map(|(origin, _)| *origin);
                world.missed(place, asked, now);
            }
            _ => {}
        }
        let slot = world.slot_mut(place);
        if slot.durable.is_some() && certain.is_none() {
            slot.durable_until = Some(now);
        }
        slot.durable = certain;
    }
    state.last = all;
    if let Some((origin, Request::Commit { fresh, .. })) = publishes.filter(|_| sim.plan.shape.backend.has_records()) {
        world.published_in_log(*origin, fresh, now);
    }
}

/// Have an event come that is about files. False: more is to be done.
pub fn befall(sim: &Arc<Sim>, event: &Event, dice: &mut Dice) -> bool {
    let Some(files) = &sim.files else { return false };
    let now = sim.threads.moment();
    if sim.plan.shape.backend.has_records() && befall_records(sim, files, event, dice) {
        look(sim, files, None);
        return true;
    }
    match event {
        Event::Evict(key) => files.state.lock().remove(sim, *key),
        Event::Remove(key) if dice.met(700) => files.state.lock().remove(sim, *key),
        // Whole directories go, with what is in them.
        Event::Remove(_) => files.state.lock().remove_directory(dice),
        Event::EvictMany(per_mille) => {
            let mut state = files.state.lock();
            let paths: Vec<String> = state.places.iter().map(|place| path_of(place)).collect();
            paths.iter().filter(|_| dice.met(*per_mille)).for_each(|path| state.unlink(path));
        }
        Event::Rot(key) => {
            let mut state = files.state.lock();
            for place in names::places(sim.plan.shape.lengths, *key) {
                let Ok(node) = state.disk.tree.resolve(tree::ROOT, &path_of(place)) else { continue };
                let Ok(bytes) = state.disk.tree.file(node).map(|file| file.bytes()) else { continue };
                state.disk.tree.spoil(node, dice.spoilt(&bytes));
            }
        }
        Event::PowerLoss | Event::Failover(_) => {
            sim.world().dead_until(now);
            // Mostly new, mostly old, or anything.
            let (bias, rare) = (dice.below(3), dice.within(2, 14));
            let mut state = files.state.lock();
            state.disk.lose_power(&mut |options| match bias {
                0 if dice.below(rare) > 0 => options - 1,
                1 if dice.below(rare) > 0 => 0,
                _ => dice.index(options),
            });
            state.start_machine();
            sim.world().failovers.push(now);
        }
        Event::Kill(process) => {
            files.state.lock().disk.ended(*process);
            return false;
        }
        _ => return false,
    }
    look(sim, files, None);
    true
}

/// The same of what is otherwise in a segment store. False: it is as in any other directory.
fn befall_records(sim: &Sim, files: &Files, event: &Event, dice: &mut Dice) -> bool {
    let mut state = files.state.lock();
    let key = match event {
        Event::Rot(key) | Event::Remove(key) => *key,
        // It evicts by itself alone.
        Event::Evict(_) | Event::EvictMany(_) => return true,
        _ => return false,
    };
    if matches!(event, Event::Remove(_)) && dice.met(300) {
        // Somebody clears the directory.
        let names = state.disk.tree.resolve(tree::ROOT, STORE).and_then(|node| state.disk.tree.list(node));
        names.unwrap_or_default().iter().for_each(|name| state.unlink(&format!("{STORE}/{name}")));
        // What somebody is about to say in the log is gone with it.
        let (mut world, at) = (sim.world(), sim.threads.moment());
        for place in &state.places {
            world.slot_mut(place).removals.push(Removal { at, by: None });
            let key = world.keys.get(place).copied();
            key.into_iter().for_each(|key| world.oracle.touches(key));
        }
        return true;
    }
    for place in names::places(sim.plan.shape.lengths, key) {
        let Some((path, range)) = said::place_of(&state.disk.tree, &record_of(place)) else { continue };
        if matches!(event, Event::Remove(_)) {
            state.unlink(&path);
            continue;
        }
        let Ok(node) = state.disk.tree.resolve(tree::ROOT, &path) else { continue };
        let Ok(mut bytes) = state.disk.tree.file(node).map(|file| (*file.bytes()).clone()) else { continue };
        if let Some(value) = bytes.get_mut(range) {
            let spoilt = dice.spoilt(value);
            value.iter_mut().zip(spoilt.into_iter().chain(std::iter::repeat(0))).for_each(|(to, from)| *to = from);
        }
        state.disk.tree.spoil(node, bytes);
    }
    true
}

impl State {
    /// What was counted in another run of the machine says so: `core` asks the real one which run it is, and that goes on.
    fn start_machine(&mut self) {
        for count in [".kv-usage", ".kv-files"] {
            let Ok(node) = self.disk.tree.resolve(tree::ROOT, &format!("{STORE}/{count}")) else { continue };
            let Ok(mut bytes) = self.disk.tree.file(node).map(|file| (*file.bytes()).clone()) else { continue };
            if let Some(run) = bytes.get_mut(24..32) {
                run.fill(1);
                self.disk.tree.spoil(node, bytes);
            }
        }
    }

    fn unlink(&mut self, path: &str) {
        let found = self.disk.tree.parent(tree::ROOT, path).and_then(|(parent, name)| {
            self.disk.tree.look(parent, name)?;
            Ok((parent, name.to_owned()))
        });
        if let Ok((parent, name)) = found {
            let _ = self.disk.tree.enter(parent, &name, None);
        }
    }

    fn remove(&mut self, sim: &Sim, key: Key) {
        for place in names::places(sim.plan.shape.lengths, key) {
            self.unlink(&path_of(place));
        }
    }

    fn remove_directory(&mut self, dice: &mut Dice) {
        let digit = dice.below(16);
        let directory = match dice.below(4) {
            0 => format!("{STORE}/.kv-tmp"),
            1 => format!("{STORE}/chunks"),
            _ => format!("{STORE}/chunks/{digit:x}"),
        };
        self.clear(&directory);
    }

    fn clear(&mut self, path: &str) {
        let names = self.disk.tree.resolve(tree::ROOT, path).and_then(|node| self.disk.tree.list(node));
        for name in names.unwrap_or_default() {
            self.clear(&format!("{path}/{name}"));
        }
        self.unlink(path);
    }
}
