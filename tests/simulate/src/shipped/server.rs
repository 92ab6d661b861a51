//! The memkv-server of a history: the shipped sources, by a clock of its own, with threads that stand still where locks are taken. What is in
//! it is noted for the rules whenever it may have changed, before anybody else goes on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use memkv_server::os::{System, TcpStream, enter};
use memkv_server::{Bounds, Name, Server, Store, Value, name};
use memkv_wire::Key;
use memkv_wire::fields::{Evict, Kind};

use super::net::{Far, Wire};
use crate::calls::Fate;
use crate::chance::Dice;
use crate::names::Stored;
use crate::plan::{Backend, Event, Plan};
use crate::sim::Sim;
use crate::threads::{MICROSECOND, MILLISECOND, Moment, SECOND, Task};
use crate::world::{Origin, Request};

pub const AUTHORITY: &str = "store:1";
pub const KEY: &str = "0707070707070707070707070707070707070707070707070707070707070707";
const NAMESPACE: &str = "one";
/// Threads of servers work for nobody's process.
const NOBODY: usize = usize::MAX;
/// Whom a thread of the server works for that has read nothing yet.
const IDLE: Origin = Origin { process: NOBODY, operation: 0, call: 0 };

/// The server that runs, and what is known of it.
pub struct Running {
    state: Mutex<State>,
}

struct State {
    server: Option<Arc<Server>>,
    down_until: Moment,
    /// Which threads serve, and whom.
    serving: BTreeMap<usize, Origin>,
    requests: BTreeMap<u64, (Request, bool)>,
    /// What it had under each place when it was last looked at. A manifest whose chunk is missing keeps its value here.
    seen: BTreeMap<Stored, Value>,
    names: Vec<(Stored, Name)>,
    wires: Vec<Weak<Wire>>,
    numbered: u64,
    dice: Dice,
    /// Until when a thread stands still that may hold up others.
    stands_until: Moment,
    /// It is being looked at.
    looks: bool,
}

struct Os {
    sim: Weak<Sim>,
    /// Of a million nanoseconds, so many more or fewer.
    drift: i64,
    dice: Mutex<Dice>,
}

impl System for Os {
    fn steady(&self) -> u64 {
        let now = self.sim.upgrade().map_or(0, |sim| sim.threads.moment()) as i64;
        (5000 * SECOND as i64 + now + now / 1_000_000 * self.drift) as u64
    }

    fn wall(&self) -> u64 {
        2_000_000_000 * SECOND + self.steady()
    }

    fn fill(&self, bytes: &mut [u8]) {
        let mut dice = self.dice.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        bytes.iter_mut().for_each(|byte| *byte = dice.next() as u8);
    }

    fn turn(&self, _: &'static str) {
        let Some(sim) = self.sim.upgrade() else { return };
        let Some(running) = &sim.memkv else { return };
        // What is dropped while a history ends waits for nobody.
        let looks = running.state().looks;
        if std::thread::panicking() || looks || !running.serves(&sim) {
            return;
        }
        settled(&sim);
        let origin = origin(&sim);
        if is_calm(&sim, origin) {
            return;
        }
        let frozen = sim.world().frozen_until;
        let now = sim.threads.moment();
        if frozen > now {
            sim.threads.pause(frozen - now);
        }
        let (long, stops) = running.stands_still(&sim);
        if stops {
            let mut state = running.state();
            state.stands_until = state.stands_until.max(sim.threads.moment() + long);
            drop(state);
            sim.world().faulty.insert(origin.operation);
            sim.cover(origin.operation, Fate::Stopped);
        }
        if long > 0 {
            sim.threads.pause(long);
        }
    }

    fn wait(&self, long: Duration) {
        if let Some(sim) = self.sim.upgrade() {
            sim.threads.pause(long.as_nanos() as Moment);
        }
    }
}

impl Running {
    /// For the places of a history. None: its backend has no server.
    pub fn of<'a>(plan: &Plan, places: impl Iterator<Item = &'a Stored>) -> Option<Self> {
        if !matches!(plan.shape.backend, Backend::Memkv { .. }) {
            return None;
        }
        let mut names: Vec<(Stored, Name)> = places.map(|place| (place.clone(), name_of(place))).collect();
        names.sort();
        let state = State {
            server: None,
            down_until: 0,
            serving: BTreeMap::new(),
            requests: BTreeMap::new(),
            seen: BTreeMap::new(),
            names,
            wires: Vec::new(),
            numbered: 0,
            dice: Dice::of(plan.seed, &[8]),
            stands_until: 0,
            looks: false,
        };
        Some(Running { state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Whether the running thread is one of a server's.
    fn serves(&self, sim: &Sim) -> bool {
        sim.threads.current().is_some_and(|thread| self.state().serving.contains_key(&thread))
    }

    /// How long the running thread stands still before it takes a lock, and whether that is out of the ordinary.
    fn stands_still(&self, sim: &Sim) -> (Moment, bool) {
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

fn name_of(place: &[u8]) -> Name {
    match place.split_first() {
        Some((b'm', manifest)) => name(NAMESPACE, Kind::Manifest, &[b"n", manifest].concat()),
        Some((_, hash)) => name(NAMESPACE, Kind::Chunk, hash),
        None => name(NAMESPACE, Kind::Chunk, &[]),
    }
}

/// Start the server of a history, where it has one.
pub fn start(sim: &Arc<Sim>) {
    let Some(running) = &sim.memkv else { return };
    let dice = &mut Dice::of(sim.plan.seed, &[9]);
    let drift = dice.within(0, 1000) as i64 - 500;
    enter(Some(Arc::new(Os { sim: Arc::downgrade(sim), drift, dice: Mutex::new(dice.clone()) })));
    running.state().server = Some(fresh(sim));
}

/// End it, and with it what it holds of the history.
pub fn end(sim: &Sim) {
    let Some(running) = &sim.memkv else { return };
    let former = running.state().server.take();
    drop(former);
    enter(None);
}

fn fresh(sim: &Sim) -> Arc<Server> {
    let Backend::Memkv { memory } = sim.plan.shape.backend else { unreachable!("it has a memkv-server") };
    let store = Store::open(memory, None).expect("a store without files opens");
    let bounds = Bounds { memory, max_value: None, connections: 256, idle: Duration::from_secs(300) };
    Arc::new(Server::new(Key::from_hex(KEY).expect("a key"), store, &bounds))
}

/// The backend makes a call.
pub fn called(sim: &Sim, call: u64, request: Request, calm: bool) {
    if let Some(running) = &sim.memkv {
        running.state().requests.insert(call, (request, calm));
    }
}

pub fn is_down(sim: &Sim) -> bool {
    sim.memkv.as_ref().is_some_and(|running| running.state().down_until > sim.threads.moment())
}

/// Until when a thread of the server stood still, or will.
pub fn stood_still(sim: &Sim) -> Moment {
    sim.memkv.as_ref().map_or(0, |running| running.state().stands_until)
}

/// Connect a process to the server, which has a thread for it.
pub fn serve(sim: &Arc<Sim>, process: usize) -> Arc<Wire> {
    let running = sim.memkv.as_ref().expect("only a backend with a server connects");
    let mut state = running.state();
    state.numbered += 1;
    let number = state.numbered;
    let wire = Wire::new(sim, process, number);
    state.wires.retain(|wire| wire.strong_count() > 0);
    state.wires.push(Arc::downgrade(&wire));
    let server = state.server.clone().expect("it runs as long as its history");
    drop(state);
    let stream = Arc::new(TcpStream::over(Box::new(Far { sim: Arc::downgrade(sim), wire: wire.clone() })));
    if server.meet(number, &stream) {
        let own = Arc::downgrade(sim);
        let job = move || {
            let Some(sim) = own.upgrade() else { return };
            let (Some(running), Some(thread)) = (&sim.memkv, sim.threads.current()) else { return };
            running.state().serving.insert(thread, IDLE);
            server.attend(number, &stream);
            settled(&sim);
            running.state().serving.remove(&thread);
        };
        sim.threads.start(Task { process: NOBODY, operation: 0 }, false, Box::new(job));
    }
    wire
}

/// The running thread of the server has read bytes of a call.
pub fn works_for(sim: &Sim, origin: Origin) {
    let (Some(running), Some(thread)) = (&sim.memkv, sim.threads.current()) else { return };
    running.state().serving.insert(thread, origin);
}

/// Whom the running thread of the server works for.
pub fn origin(sim: &Sim) -> Origin {
    let (Some(running), Some(thread)) = (&sim.memkv, sim.threads.current()) else { return IDLE };
    running.state().serving.get(&thread).copied().unwrap_or(IDLE)
}

/// Whether nothing may befall a call: its own wish, or the history's end.
pub fn is_calm(sim: &Sim, origin: Origin) -> bool {
    let own = sim.memkv.as_ref().and_then(|running| running.state().requests.get(&origin.call).map(|(_, calm)| *calm));
    own.unwrap_or(false) || sim.world().calm
}

/// The running thread of the server may have changed something, and others go on now.
pub fn settled(sim: &Sim) {
    let Some(running) = &sim.memkv else { return };
    let origin = origin(sim);
    let changes = |(request, _): &(Request, bool)| (!request.is_read()).then(|| request.clone());
    let request = running.state().requests.get(&origin.call).and_then(changes);
    if let Some(request) = request {
        look(sim, running, Some((&request, origin)));
    }
}

/// Note for the rules what the server has now, of which each difference is by this request, or by nobody.
fn look(sim: &Sim, running: &Running, by: Option<(&Request, Origin)>) {
    let mut state = running.state();
    let Some(server) = state.server.clone() else { return };
    state.looks = true;
    let names: Vec<Name> = state.names.iter().map(|(_, name)| name.clone()).collect();
    drop(state);
    let there = server.store.peek(&names);
    let now = sim.threads.moment();
    let mut state = running.state();
    state.looks = false;
    let State { names, seen, .. } = &mut *state;
    let mut world = sim.world();
    for ((place, _), value) in names.iter().zip(there) {
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
    let Some(running) = &sim.memkv else { return false };
    let server = running.state().server.clone();
    let Some(server) = server else { return false };
    let now = sim.threads.moment();
    let evict = |bytes| {
        let what = Evict { bytes, unused_since: 0, keep_since: u64::MAX };
        server.store.evict(Some(NAMESPACE), &what);
    };
    match event {
        Event::Evict(_) => evict(1),
        Event::EvictMany(per_mille) => evict(server.store.usage(NAMESPACE).bytes * per_mille / 1000),
        Event::Remove(key) => {
            for place in crate::names::places(sim.plan.shape.lengths, *key) {
                server.store.delete(&name_of(&place), 0);
            }
        }
        Event::Failover(_) => {
            let mut state = running.state();
            state.down_until = now + dice.below(500 * MILLISECOND);
            state.server = Some(fresh(sim));
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
