//! The server of a history, whichever backend it is of. What is in it is noted for the rules whenever it may have changed, before anybody else
//! goes on.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kv_platform::sync::Mutex;
use memkv_server::os::Peer;

use super::net::{Far, Wire};
use super::{memkv, mooncake, redis, s3};
use crate::calls::Fate;
use crate::hashed::HashMap;
use crate::names::Stored;
use crate::plan::{Backend, Event, Plan};
use crate::sim::Sim;
use crate::threads::{MICROSECOND, MILLISECOND, Moment, Task};
use crate::world::{Origin, Request};
use chance::Dice;

pub const AUTHORITY: &str = "store:1";
/// Threads of servers work for nobody's process.
const NOBODY: usize = usize::MAX;
/// Whom a thread of the server works for that has read nothing yet.
const IDLE: Origin = Origin { process: NOBODY, operation: 0, call: 0 };

/// Bytes as they lie. Each time that something is stored it is another one.
pub type Value = Arc<Vec<u8>>;

/// How often a server has changed.
pub type Stage = (u64, u64, u64);

/// What a server of any backend does.
pub trait Serves: Send + Sync {
    /// What lies under each of the places, in their order.
    fn peek(&self) -> Vec<Option<Value>>;

    /// What it counts of changes: while that is the same, so is what lies there. None: it counts nothing.
    fn stage(&self) -> Option<Stage> {
        None
    }

    /// What serves a connection, on a thread of its own. None: it is closed.
    fn admit(self: Arc<Self>, number: u64, far: Far) -> Option<Box<dyn FnOnce() + Send>>;

    fn evict_one(&self, dice: &mut Dice);

    fn evict_many(&self, per_mille: u64, dice: &mut Dice);

    /// Somebody else removes what lies under a place.
    fn remove(&self, place: usize);

    /// Whether a connection to this authority ends when it is restarted, and none is taken there for a while.
    fn restarts_at(&self, _: &str) -> bool {
        true
    }

    /// Whether nobody listens there.
    fn is_gone(&self, _: &str) -> bool {
        false
    }

    /// A node of it dies, and comes back after so long. Whom its connections led to.
    fn lose_node(self: Arc<Self>, _: &Arc<Sim>, _: usize, _: Moment, _: &mut Dice) -> Vec<String> {
        Vec::new()
    }

    /// Whether what lies there changes by itself.
    fn may_rot(&self) -> bool {
        false
    }

    /// Bytes that lie under a place change. False: there are none.
    fn spoil(&self, _: usize, _: &mut Dice) -> bool {
        false
    }

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
    requests: HashMap<u64, (Arc<Request>, bool)>,
    /// Until when the changes of a call may be carried out, as it has told.
    changes_until: HashMap<u64, Moment>,
    /// What it had under each place when it was last looked at. A manifest whose chunk is missing keeps its value here.
    seen: BTreeMap<Stored, Value>,
    /// The same of all places, and what the server had counted then. None: the rules know of something that is not the server's.
    last: Option<(Option<Stage>, Vec<Option<Value>>)>,
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
        if !matches!(
            plan.shape.backend,
            Backend::Memkv { .. } | Backend::Redis(_) | Backend::S3(_) | Backend::Mooncake(_)
        ) {
            return None;
        }
        let mut places: Vec<Stored> = places.cloned().collect();
        places.sort();
        let state = State {
            server: None,
            down_until: 0,
            serving: BTreeMap::new(),
            requests: HashMap::default(),
            changes_until: HashMap::default(),
            seen: BTreeMap::new(),
            last: None,
            wires: Vec::new(),
            numbered: 0,
            dice: Dice::of(plan.seed, &[8]),
            stands_until: 0,
            looks: false,
        };
        Some(Running { places, state: Mutex::new(state) })
    }

    /// Its connections are gone, and for a while it takes none.
    fn restarts(&self, now: Moment, dice: &mut Dice) {
        let mut state = self.state.lock();
        state.down_until = now + dice.below(500 * MILLISECOND);
        let (wires, server) = (state.wires.iter().filter_map(Weak::upgrade).collect::<Vec<_>>(), state.server.clone());
        drop(state);
        let restarts = |wire: &&Arc<Wire>| server.as_ref().is_none_or(|server| server.restarts_at(&wire.authority));
        wires.iter().filter(restarts).for_each(|wire| wire.cut(now));
    }

    fn server(&self) -> Option<Arc<dyn Serves>> {
        self.state.lock().server.clone()
    }

    /// Whether the running thread is one of a server's.
    fn serves(&self, sim: &Sim) -> bool {
        sim.threads.current().is_some_and(|thread| self.state.lock().serving.contains_key(&thread))
    }

    /// How long the running thread stands still before its next step, and whether that is out of the ordinary.
    pub fn stands_still(&self, sim: &Sim) -> (Moment, bool) {
        let shape = &sim.plan.shape;
        let mut state = self.state.lock();
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
    let looks = running.state.lock().looks;
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
    let mut state = running.state.lock();
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
        Backend::S3(setup) => s3::start(sim, setup, &running.places, dice),
        Backend::Mooncake(setup) => mooncake::start(sim, setup, &running.places, dice),
    };
    running.state.lock().server = Some(server);
}

/// End it, and with it what it holds of the history.
pub fn end(sim: &Sim) {
    let Some(running) = &sim.server else { return };
    let former = running.state.lock().server.take();
    drop(former);
    memkv::end();
}

/// The backend makes a call.
pub fn called(sim: &Sim, call: u64, request: Request, calm: bool) {
    if let Some(running) = &sim.server {
        running.state.lock().requests.insert(call, (Arc::new(request), calm));
    }
}

/// A call says that its changes end then.
pub fn changes_until(sim: &Sim, call: u64, end: Moment) {
    if let Some(running) = &sim.server {
        running.state.lock().changes_until.insert(call, end);
    }
}

/// Whether the call of a change may still be waited for, by itself or by others.
pub fn waits(sim: &Sim, call: u64) -> bool {
    let end = sim.server.as_ref().and_then(|running| running.state.lock().changes_until.get(&call).copied());
    end.is_none_or(|end| sim.threads.moment() < end)
}

/// What a call asks for.
pub fn request(sim: &Sim, call: u64) -> Option<Arc<Request>> {
    sim.server.as_ref().and_then(|running| running.state.lock().requests.get(&call).map(|(request, _)| request.clone()))
}

pub fn is_down(sim: &Sim, authority: &str) -> bool {
    let Some(running) = &sim.server else { return false };
    let down_until = running.state.lock().down_until;
    down_until > sim.threads.moment() && running.server().is_none_or(|server| server.restarts_at(authority))
}

/// Whether nobody listens there any more.
pub fn is_gone(sim: &Sim, authority: &str) -> bool {
    let server = sim.server.as_ref().and_then(Running::server);
    server.is_some_and(|server| server.is_gone(authority))
}

/// Until when a thread of the server stood still, or will.
pub fn stood_still(sim: &Sim) -> Moment {
    sim.server.as_ref().map_or(0, |running| running.state.lock().stands_until)
}

/// How long a connection may be idle before the server closes it. None: for ever.
pub fn idle(dice: &mut Dice) -> Option<Duration> {
    dice.met(200).then(|| Duration::from_nanos(dice.within(30 * MILLISECOND, 3000 * MILLISECOND)))
}

/// Take what comes on a connection until it is over, or idle for too long. `serve` has what came, and takes the requests out of it that are
/// whole. False: it closes the connection.
pub fn converse(
    sim: &Weak<Sim>,
    far: &Far,
    idle: Option<Duration>,
    mut serve: impl FnMut(&Arc<Sim>, &mut Vec<u8>) -> bool,
) {
    // Nothing goes wrong any more.
    let is_over = || sim.upgrade().is_some_and(|sim| sim.world().calm);
    let (mut came, mut piece) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match far.read(&mut piece, idle) {
            Ok(count) if count > 0 => came.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock && is_over() => continue,
            _ => return,
        }
        let Some(sim) = sim.upgrade() else { return };
        if !serve(&sim, &mut came) {
            return;
        }
    }
}

/// Connect a process to the server, which has a thread for it.
pub fn serve(sim: &Arc<Sim>, process: usize, authority: &str) -> Arc<Wire> {
    let running = sim.server.as_ref().expect("only a backend with a server connects");
    let mut state = running.state.lock();
    state.numbered += 1;
    let number = state.numbered;
    let wire = Wire::new(sim, process, authority, number);
    state.wires.retain(|wire| wire.strong_count() > 0);
    state.wires.push(Arc::downgrade(&wire));
    let server = state.server.clone().expect("it runs as long as its history");
    drop(state);
    if let Some(attend) = server.admit(number, Far { sim: Arc::downgrade(sim), wire: wire.clone() }) {
        let own = Arc::downgrade(sim);
        let job = move || {
            let Some(sim) = own.upgrade() else { return };
            let (Some(running), Some(thread)) = (&sim.server, sim.threads.current()) else { return };
            running.state.lock().serving.insert(thread, IDLE);
            attend();
            settled(&sim);
            running.state.lock().serving.remove(&thread);
        };
        sim.threads.start(Task { process: NOBODY, operation: 0 }, false, Box::new(job));
    }
    wire
}

/// Have a thread of the server's do something for a call after a while.
pub fn later(sim: &Arc<Sim>, origin: Origin, long: Moment, what: impl FnOnce(&Sim) + Send + 'static) {
    let own = Arc::downgrade(sim);
    let job = move || {
        let Some(sim) = own.upgrade() else { return };
        sim.threads.pause(long);
        let (Some(running), Some(thread)) = (&sim.server, sim.threads.current()) else { return };
        running.state.lock().serving.insert(thread, origin);
        what(&sim);
        settled(&sim);
        running.state.lock().serving.remove(&thread);
    };
    sim.threads.start(Task { process: NOBODY, operation: 0 }, false, Box::new(job));
}

/// The running thread of the server has read bytes of a call.
pub fn works_for(sim: &Sim, origin: Origin) {
    let (Some(running), Some(thread)) = (&sim.server, sim.threads.current()) else { return };
    running.state.lock().serving.insert(thread, origin);
}

/// Whom the running thread of the server works for.
pub fn origin(sim: &Sim) -> Origin {
    let (Some(running), Some(thread)) = (&sim.server, sim.threads.current()) else { return IDLE };
    running.state.lock().serving.get(&thread).copied().unwrap_or(IDLE)
}

/// Whether nothing may befall a call: its own wish, or the history's end.
pub fn is_calm(sim: &Sim, origin: Origin) -> bool {
    let own =
        sim.server.as_ref().and_then(|running| running.state.lock().requests.get(&origin.call).map(|(_, calm)| *calm));
    own.unwrap_or(false) || sim.world().calm
}

/// The running thread of the server may have changed something, and others go on now.
pub fn settled(sim: &Sim) {
    let Some(running) = &sim.server else { return };
    let origin = origin(sim);
    let changes = |(request, _): &(Arc<Request>, bool)| (!request.is_read()).then(|| request.clone());
    let request = running.state.lock().requests.get(&origin.call).and_then(changes);
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

/// Bytes that lie under a place have changed by themselves.
pub fn rots(sim: &Sim, place: usize, now: Moment) {
    if let Some(place) = sim.server.as_ref().and_then(|running| running.places.get(place)) {
        sim.world().has_rotted(place, now);
    }
}

/// Note for the rules what the server has now, of which each difference is by this request, or by nobody.
fn look(sim: &Sim, running: &Running, by: Option<(&Request, Origin)>) {
    let mut state = running.state.lock();
    let Some(server) = state.server.clone() else { return };
    let stage = server.stage();
    if stage.is_some() && state.last.as_ref().is_some_and(|(last, _)| *last == stage) {
        return;
    }
    state.looks = true;
    drop(state);
    let there = server.peek();
    let now = sim.threads.moment();
    let mut state = running.state.lock();
    state.looks = false;
    let same = |(one, other): (&Option<Value>, &Option<Value>)| match (one, other) {
        (Some(one), Some(other)) => Arc::ptr_eq(one, other),
        (one, other) => one.is_none() && other.is_none(),
    };
    let is_known = state.last.as_ref().is_some_and(|(_, last)| last.iter().zip(&there).all(same));
    state.last = Some((stage, there.clone()));
    if is_known {
        return;
    }
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
    let server = running.state.lock().server.clone();
    let Some(server) = server else { return false };
    let now = sim.threads.moment();
    // A tombstone, which nobody sees, may go as well.
    sim.world().tombstones_go |= matches!(event, Event::Evict(_) | Event::EvictMany(_) | Event::Remove(_));
    match event {
        Event::Evict(_) => server.evict_one(dice),
        Event::EvictMany(per_mille) => server.evict_many(*per_mille, dice),
        Event::Remove(key) => {
            let places = crate::names::places(sim.plan.shape.lengths, *key);
            let at = places.iter().filter_map(|place| running.places.binary_search(place).ok());
            at.for_each(|place| server.remove(place));
        }
        Event::Rot(key) if server.may_rot() => {
            for place in crate::names::places(sim.plan.shape.lengths, *key) {
                let at = running.places.binary_search(place).ok();
                if at.is_some_and(|at| server.spoil(at, dice)) {
                    look(sim, running, None);
                    sim.world().has_rotted(place, now);
                }
            }
        }
        Event::Failover(back) => {
            let successor = server.successor(sim, *back, dice);
            let mut state = running.state.lock();
            (state.server, state.last) = (Some(successor), None);
            drop(state);
            running.restarts(now, dice);
            sim.world().failovers.push(now);
        }
        Event::NodeLost(number, long) => {
            let lost = server.lose_node(sim, *number, *long, dice);
            let wires: Vec<Arc<Wire>> = running.state.lock().wires.iter().filter_map(Weak::upgrade).collect();
            wires.iter().filter(|wire| lost.contains(&wire.authority)).for_each(|wire| wire.cut(now));
        }
        // What a durable server has acknowledged is there afterwards.
        Event::PowerLoss => {
            sim.world().dead_until(now);
            running.restarts(now, dice);
        }
        Event::Kill(process) => {
            let wires: Vec<Arc<Wire>> = running.state.lock().wires.iter().filter_map(Weak::upgrade).collect();
            wires.iter().filter(|wire| wire.process == *process).for_each(|wire| wire.leave(now));
            return false;
        }
        // What comes over the storage system itself is seen when the server is looked at again.
        _ => {
            running.state.lock().last = None;
            return false;
        }
    }
    look(sim, running, None);
    true
}
