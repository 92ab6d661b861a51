//! The server of a history, whichever backend it is of. What is in it is noted for the rules whenever it may have changed, before anybody else
//! goes on.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use kv_platform::sync::{Mutex, MutexGuard};

use super::net::{Far, Wire};
use super::{memkv, redis};
use crate::calls::Fate;
use crate::chance::Dice;
use crate::names::Stored;
use crate::plan::{Backend, Event, Plan};
use crate::sim::Sim;
use crate::threads::{MICROSECOND, MILLISECOND, Moment, Task};
use crate::world::{Origin, Request};

pub const AUTHORITY: &str = "store:1";
/// Threads of servers work for nobody's process.
const NOBODY: usize = usize::MAX;
/// Whom a thread of the server works for that has read nothing yet.
const IDLE: Origin = Origin { process: NOBODY, operation: 0, call: 0 };

/// Bytes as they lie. Each time that something is stored it is another one.
pub type Value = Arc<Vec<u8>>;

/// What a server of any backend does.
pub trait Serves: Send + Sync {
    /// What lies under each of the places, in their order.
    fn peek(&self) -> Vec<Option<Value>>;

    /// What serves a connection, on a thread of its own. None: it is closed.
    fn admit(self: Arc<Self>, number: u64, far: Far) -> Option<Box<dyn FnOnce() + Send>>;

    fn evict_one(&self, dice: &mut Dice);

    fn evict_many(&self, per_mille: u64, dice: &mut Dice);

    /// Somebody else removes what lies under a place.
    fn remove(&self, place: usize);

    /// What serves in its place from now on, when it is gone. `back`: how old it may be.
    fn successor(&self, sim: &Sim, back: Moment, dice: &mut Dice) -> Arc<dyn Serves>;
}

/// The server that runs, and what is known of it.
pub struct Running {
    places: Vec<Stored>,
    state: Mutex<State>,
}

struct State {
    server: Option<Arc<dyn Serves>>,
    down_until: Moment,
    /// Which threads serve, and whom.
    serving: BTreeMap<usize, Origin>,
    requests: BTreeMap<u64, (Request, bool)>,
    /// What it had under each place when it was last looked at. A manifest whose chunk is missing keeps its value here.
    seen: BTreeMap<Stored, Value>,
    wires: Vec<Weak<Wire>>,
    numbered: u64,
    dice: Dice,
    /// Until when a thread stands still that may hold up others.
    stands_until: Moment,
    /// It is being looked at.
    looks: bool,
}

impl Running {
    /// For the places of a history. None: its backend has no server.
    pub fn of<'a>(plan: &Plan, places: impl Iterator<Item = &'a Stored>) -> Option<Self> {
        if !matches!(plan.shape.backend, Backend::Memkv { .. } | Backend::Redis(_)) {
            return None;
        }
        let mut places: Vec<Stored> = places.cloned().collect();
        places.sort();
        let state = State {
            server: None,
            down_until: 0,
            serving: BTreeMap::new(),
            requests: BTreeMap::new(),
            seen: BTreeMap::new(),
            wires: Vec::new(),
            numbered: 0,
            dice: Dice::of(plan.seed, &[8]),
            stands_until: 0,
            looks: false,
        };
        Some(Running { places, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Whether the running thread is one of a server's.
    fn serves(&self, sim: &Sim) -> bool {
        sim.threads.current().is_some_and(|thread| self.state().serving.contains_key(&thread))
    }

    /// How long the running thread stands still before its next step, and whether that is out of the ordinary.
    pub fn stands_still(&self, sim: &Sim) -> (Moment, bool) {
        let shape = &sim.plan.shape;
        let mut state = self.state();
        let dice = &mut state.dice;
        match dice.below(100) {
            0..60 => (0, false),
            60..98 => (dice.within(MICROSECOND, 30 * MICROSECOND), false),
            _ if dice.met(shape.trouble) => (dice.within(0, 2 * shape.deadline), true),
            _ => (dice.within(30 * MICROSECOND, 3 * MILLISECOND), false),
        }
    }
}

/// The running thread, which serves, is about to take its next step: it may have to wait, or stand still.
pub fn turn(sim: &Sim) {
    let Some(running) = &sim.server else { return };
    // What is dropped while a history ends waits for nobody.
    let looks = running.state().looks;
    if std::thread::panicking() || looks || !running.serves(sim) {
        return;
    }
    settled(sim);
    let origin = origin(sim);
    if is_calm(sim, origin) {
        return;
    }
    let frozen = sim.world().frozen_until;
    let now = sim.threads.moment();
    if frozen > now {
        sim.threads.pause(frozen - now);
    }
    let (long, stops) = running.stands_still(sim);
    if stops {
        stood(sim, origin, long);
    }
    if long > 0 {
        sim.threads.pause(long);
    }
}

/// A thread of the server stands still for so long from now on, out of the ordinary, and with it what it does for a call.
pub fn stood(sim: &Sim, origin: Origin, long: Moment) {
    let Some(running) = &sim.server else { return };
    let mut state = running.state();
    state.stands_until = state.stands_until.max(sim.threads.moment() + long);
    drop(state);
    sim.world().faulty.insert(origin.operation);
    sim.cover(origin.operation, Fate::Stopped);
}

/// Start the server of a history, where it has one.
pub fn start(sim: &Arc<Sim>) {
    let Some(running) = &sim.server else { return };
    let dice = &mut Dice::of(sim.plan.seed, &[9]);
    let server = match sim.plan.shape.backend {
        Backend::Contract | Backend::LocalFs { .. } | Backend::Segments { .. } => return,
        Backend::Memkv { memory } => memkv::start(sim, memory, &running.places, dice),
        Backend::Redis(setup) => redis::start(sim, setup, &running.places, dice),
    };
    running.state().server = Some(server);
}

/// End it, and with it what it holds of the history.
pub fn end(sim: &Sim) {
    let Some(running) = &sim.server else { return };
    let former = running.state().server.take();
    drop(former);
    memkv::end();
}

/// The backend makes a call.
pub fn called(sim: &Sim, call: u64, request: Request, calm: bool) {
    if let Some(running) = &sim.server {
        running.state().requests.insert(call, (request, calm));
    }
}

/// What a call asks for.
pub fn request(sim: &Sim, call: u64) -> Option<Request> {
    sim.server.as_ref().and_then(|running| running.state().requests.get(&call).map(|(request, _)| request.clone()))
}

pub fn is_down(sim: &Sim) -> bool {
    sim.server.as_ref().is_some_and(|running| running.state().down_until > sim.threads.moment())
}

/// Until when a thread of the server stood still, or will.
pub fn stood_still(sim: &Sim) -> Moment {
    sim.server.as_ref().map_or(0, |running| running.state().stands_until)
}

/// Connect a process to the server, which has a thread for it.
pub fn serve(sim: &Arc<Sim>, process: usize) -> Arc<Wire> {
    let running = sim.server.as_ref().expect("only a backend with a server connects");
    let mut state = running.state();
    state.numbered += 1;
    let number = state.numbered;
    let wire = Wire::new(sim, process, number);
    state.wires.retain(|wire| wire.strong_count() > 0);
    state.wires.push(Arc::downgrade(&wire));
    let server = state.server.clone().expect("it runs as long as its history");
    drop(state);
    if let Some(attend) = server.admit(number, Far { sim: Arc::downgrade(sim), wire: wire.clone() }) {
        let own = Arc::downgrade(sim);
        let job = move || {
            let Some(sim) = own.upgrade() else { return };
            let (Some(running), Some(thread)) = (&sim.server, sim.threads.current()) else { return };
            running.state().serving.insert(thread, IDLE);
            attend();
            settled(&sim);
            running.state().serving.remove(&thread);
        };
        sim.threads.start(Task { process: NOBODY, operation: 0 }, false, Box::new(job));
    }
    wire
}

/// The running thread of the server has read bytes of a call.
pub fn works_for(sim: &Sim, origin: Origin) {
    let (Some(running), Some(thread)) = (&sim.server, sim.threads.current()) else { return };
    running.state().serving.insert(thread, origin);
}

/// Whom the running thread of the server works for.
pub fn origin(sim: &Sim) -> Origin {
    let (Some(running), Some(thread)) = (&sim.server, sim.threads.current()) else { return IDLE };
    running.state().serving.get(&thread).copied().unwrap_or(IDLE)
}

/// Whether nothing may befall a call: its own wish, or the history's end.
pub fn is_calm(sim: &Sim, origin: Origin) -> bool {
    let own = sim.server.as_ref().and_then(|running| running.state().requests.get(&origin.call).map(|(_, calm)| *calm));
    own.unwrap_or(false) || sim.world().calm
}

/// The running thread of the server may have changed something, and others go on now.
pub fn settled(sim: &Sim) {
    let Some(running) = &sim.server else { return };
    let origin = origin(sim);
    let changes = |(request, _): &(Request, bool)| (!request.is_read()).then(|| request.clone());
    let request = running.state().requests.get(&origin.call).and_then(changes);
    if let Some(request) = request {
        look(sim, running, Some((&request, origin)));
    }
}

/// Something was changed by nobody's call.
pub fn changed_by_itself(sim: &Sim) {
    if let Some(running) = &sim.server {
        look(sim, running, None);
    }
}

/// Note for the rules what the server has now, of which each difference is by this request, or by nobody.
fn look(sim: &Sim, running: &Running, by: Option<(&Request, Origin)>) {
    let mut state = running.state();
    let Some(server) = state.server.clone() else { return };
    state.looks = true;
    drop(state);
    let there = server.peek();
    let now = sim.threads.moment();
    let mut state = running.state();
    state.looks = false;
    let State { seen, .. } = &mut *state;
    let mut world = sim.world();
    for (place, value) in running.places.iter().zip(there) {
        let known = seen.get(place);
        match &value {
            Some(value) => {
                let is_new = known.is_none_or(|known| !Arc::ptr_eq(known, value));
                world.found(place, value, by.filter(|_| is_new), now);
                if is_new {
                    seen.insert(place.clone(), value.clone());
                }
            }
            None if known.is_some() => {
                let asked = by.filter(|(request, _)| request.removes(place)).map(|(_, origin)| origin);
                world.missed(place, asked, now);
            }
            None => {}
        }
    }
}

/// Have an event come that is the server's. False: it is not.
pub fn befall(sim: &Arc<Sim>, event: &Event, dice: &mut Dice) -> bool {
    let Some(running) = &sim.server else { return false };
    let server = running.state().server.clone();
    let Some(server) = server else { return false };
    let now = sim.threads.moment();
    match event {
        Event::Evict(_) => server.evict_one(dice),
        Event::EvictMany(per_mille) => server.evict_many(*per_mille, dice),
        Event::Remove(key) => {
            let places = crate::names::places(sim.plan.shape.lengths, *key);
            let places = places.iter().filter_map(|place| running.places.binary_search(place).ok());
            places.for_each(|place| server.remove(place));
        }
        Event::Failover(back) => {
            let mut state = running.state();
            state.down_until = now + dice.below(500 * MILLISECOND);
            state.server = Some(server.successor(sim, *back, dice));
            let wires: Vec<Arc<Wire>> = state.wires.drain(..).filter_map(|wire| wire.upgrade()).collect();
            drop(state);
            wires.iter().for_each(|wire| wire.cut(now));
            sim.world().failovers.push(now);
        }
        Event::Kill(process) => {
            let wires: Vec<Arc<Wire>> = running.state().wires.iter().filter_map(Weak::upgrade).collect();
            wires.iter().filter(|wire| wire.process == *process).for_each(|wire| wire.leave(now));
            return false;
        }
        _ => return false,
    }
    look(sim, running, None);
    true
}
