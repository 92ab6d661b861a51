//! The Mooncake Store of a history: `mooncake-server` has what its master and its nodes do, and here is when. Each connection has a
//! thread of its own, which may stand still before a request is carried out, in the middle of one about several objects, and before it is
//! answered.
//!
//! A removal of a chunk may come until the end of its call, and so may bytes for memory where the same chunk lies anew. Of what comes later
//! nothing is promised, nor of the first sending of what was sent again (`docs/backends.md`), and so here nothing of it comes.
//!
//! Memory is used again as soon as the master has given it up: who reads or writes late meets another object's bytes. A master that is gone is
//! followed by one that knows nothing, to which the nodes come back. A node that is gone comes back empty, at the same place or elsewhere.

mod serve;
mod shown;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use kv_platform::sync::Mutex;
use mooncake_server::coro::{self, Answer, Ask, Item};
use mooncake_server::master::{Master, Segment};
use mooncake_server::node::Node;

use self::shown::{Places, Seen};
use super::net::Far;
use super::server::{self, Serves, Stage, Value};
use crate::names::Stored;
use crate::oracle::End;
use crate::plan::Mooncake as Setup;
use crate::planted;
use crate::sim::Sim;
use crate::threads::{MILLISECOND, Moment};
use crate::world::Origin;
use chance::Dice;

/// How long nodes take to come to a master that does not know them.
const COMES_WITHIN: Moment = 1500 * MILLISECOND;
/// What a node lends when nothing goes wrong any more.
const PLENTY: u64 = 64 << 20;

pub struct Mooncake {
    sim: Weak<Sim>,
    places: Arc<Places>,
    setup: Setup,
    /// Which master it is.
    term: u64,
    state: Arc<Mutex<State>>,
}

struct State {
    master: Master,
    nodes: Vec<Node>,
    term: u64,
    seen: Seen,
    /// Counts changes of memory.
    written: u64,
    segments: u64,
    /// Changes of chunks, by their calls.
    carried_out: BTreeSet<(u64, Change)>,
    /// Where the objects of each call were placed last, and how long they are.
    placed: BTreeMap<(u64, String), Vec<(u64, u64)>>,
    dice: Dice,
}

/// A change of a chunk that nothing stops once it was sent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Change {
    Removal(String),
    /// Bytes for the memory that begins here.
    Write(u64),
}

/// The first one of a history.
pub fn start(sim: &Arc<Sim>, setup: Setup, places: &[Stored], dice: &mut Dice) -> Arc<dyn Serves> {
    let nodes = (0..setup.nodes).map(|number| Node::new(number, setup.memory)).collect();
    let mut state = State {
        master: Master::new(setup.lease),
        nodes,
        term: 0,
        seen: Seen::default(),
        written: 0,
        segments: 0,
        carried_out: BTreeSet::new(),
        placed: BTreeMap::new(),
        dice: dice.clone(),
    };
    (0..setup.nodes).for_each(|node| state.mount(node, 0));
    let places = Arc::new(Places::of(places));
    Arc::new(Mooncake { sim: Arc::downgrade(sim), places, setup, term: 0, state: Arc::new(Mutex::new(state)) })
}

impl State {
    /// A node comes to the master.
    fn mount(&mut self, node: usize, at: Moment) {
        self.segments += 1;
        let lends = &self.nodes[node];
        let segment = Segment::new(self.segments, node, &lends.endpoint(), lends.base(), lends.size, at);
        self.master.segments.push(segment);
    }

    /// What an object has, as who reads it finds it: in the first of its replicas that answers.
    fn look(&mut self, places: &Places, now: Moment) -> Vec<Option<Value>> {
        let State { master, nodes, seen, written, term, .. } = self;
        let moment = (*term, master.changed, *written);
        if let Some(known) = seen.at(moment) {
            return known;
        }
        seen.retain(|key| master.objects.get(key).is_some_and(|object| object.complete));
        for (key, object) in master.objects.iter().filter(|(_, object)| object.complete) {
            seen.note(key, object.client, (*written, object.replicas.len()), || {
                object.replicas.iter().find_map(|replica| {
                    let living = nodes.iter().filter(|node| node.lives(now));
                    living.filter_map(|node| node.read(replica.address, object.size)).next()
                })
            });
        }
        seen.values(places, moment)
    }

    /// One object of a request.
    fn carry_out(&mut self, ask: &Ask, at: usize, now: Moment) -> Item {
        self.master.carry_out(ask, at, now, &mut self.dice)
    }

    /// In which order objects of a request are looked at: keys are spread over shards, and one that is asked for twice is looked at once and at
    /// once again.
    fn order(&mut self, ask: &Ask) -> Vec<usize> {
        let mut order: Vec<usize> = (0..ask.keys().len()).collect();
        if matches!(ask, Ask::Locate { .. } | Ask::Exist { .. } | Ask::Remove { .. }) {
            let begins = self.dice.next();
            order.sort_by_cached_key(|at| {
                twox_hash::XxHash3_64::oneshot(ask.keys()[*at].as_bytes()).wrapping_sub(begins)
            });
        }
        order
    }
}

impl Mooncake {
    /// What came about by itself until now.
    fn passes(&self, sim: &Arc<Sim>) {
        let (now, calm) = (sim.threads.moment(), sim.world().calm);
        let mut state = self.state.lock();
        if calm {
            // The operator has given it more.
            state.nodes.iter_mut().for_each(|node| node.size = PLENTY);
            state.master.grow(PLENTY);
        }
        let State { master, dice, .. } = &mut *state;
        let gone = master.passes(now, dice);
        drop(state);
        if gone {
            server::changed_by_itself(sim);
        }
    }

    /// The answer to a request. None: another master is there meanwhile.
    fn carry_out(&self, sim: &Arc<Sim>, ask: &Ask, calm: bool) -> Option<Answer> {
        match ask {
            Ask::Ready => return Some(Answer::Version(coro::PROTOCOL.to_owned())),
            Ask::Other => return Some(coro::NOT_REGISTERED),
            _ => {}
        }
        let mut state = self.state.lock();
        let order = state.order(ask);
        let stops = (!calm && state.dice.met(200)).then(|| state.dice.index(order.len().max(1)));
        drop(state);
        let mut items = vec![Item::Done; order.len()];
        for (nth, at) in order.into_iter().enumerate() {
            if stops == Some(nth) && nth > 0 {
                server::turn(sim);
            }
            self.passes(sim);
            let now = sim.threads.moment();
            let state = self.state.lock();
            if state.term != self.term {
                return None;
            }
            drop(state);
            let key = &ask.keys()[at];
            let origin = server::origin(sim);
            let too_late = match ask {
                Ask::Remove { .. } if shown::is_chunk(key) => !self.may_come(sim, origin, Change::Removal(key.clone())),
                Ask::Remove { .. } => self.is_another_since(sim, origin, key),
                Ask::End { .. } if !shown::is_chunk(key) => self.may_be_seen(sim, origin, key),
                _ => false,
            };
            items[at] = match too_late {
                true => Item::Failed(coro::INTERNAL),
                false => self.state.lock().carry_out(ask, at, now),
            };
            match (&items[at], ask) {
                (Item::Placed(replicas), _) => {
                    let lie = replicas.iter().map(|replica| (replica.address, replica.size)).collect();
                    self.state.lock().placed.insert((origin.call, key.clone()), lie);
                }
                (_, Ask::Revoke { .. }) => {
                    self.state.lock().placed.remove(&(origin.call, key.clone()));
                }
                _ => {}
            }
        }
        Some(Answer::Items(items))
    }

    /// Places whose objects have bytes here, but for those that a request is about.
    fn others(&self, address: u64, len: u64, keys: &[String]) -> Vec<usize> {
        let state = self.state.lock();
        let objects = state.master.objects.iter().filter(|(key, object)| object.complete && !keys.contains(key));
        let here = objects.filter(|(_, object)| object.lies_in(address, len));
        let mut places: Vec<usize> = here.filter_map(|(key, _)| self.places.by_key.get(key).copied()).collect();
        places.dedup();
        places
    }

    /// Whether a change of a chunk may still come, by what is promised of it. The next one waits by the calendar, which may have jumped.
    fn may_come(&self, sim: &Sim, origin: Origin, change: Change) -> bool {
        let has_returned = sim.world().returned.contains_key(&origin.call);
        let is_waited_for = server::waits(sim, origin.call) && !sim.world().wall_jumps;
        let mut state = self.state.lock();
        // What was given back is where the first sending went.
        let is_last = match &change {
            Change::Write(address) => {
                let mut own = state.placed.range((origin.call, String::new())..(origin.call + 1, String::new()));
                own.any(|(_, lie)| lie.iter().any(|(at, len)| (*at..at + len).contains(address)))
            }
            Change::Removal(_) => true,
        };
        let is_first = state.carried_out.insert((origin.call, change)) && is_last;
        drop(state);
        !has_returned || (is_first && is_waited_for) || planted::is("store: a mooncake store changes chunks late")
    }

    /// Whether a version of a manifest that is ended after the end of its call may be seen, because there is none that is whole: what was there is
    /// removed, or is about to be, evicted or damaged. Until the end of the call the next change takes back what it has begun.
    fn may_be_seen(&self, sim: &Sim, origin: Origin, key: &str) -> bool {
        let is_over = sim.world().returned.contains_key(&origin.call) && !server::waits(sim, origin.call);
        let state = self.state.lock();
        let slots = self.places.by_key.get(key).map_or(&[][..], |place| self.places.keys(*place));
        let is_there = |slot: &String| state.master.objects.get(slot).is_some_and(|object| object.complete);
        let is_empty = !slots.iter().any(is_there);
        drop(state);
        let world = sim.world();
        let place = self.places.of_object(key);
        let slot = place.and_then(|place| world.slots.get(place));
        let name = place.and_then(|place| world.keys.get(place));
        let mut changes = name.and_then(|name| world.oracle.changes.get(name)).into_iter().flatten();
        let is_removed = changes.any(|change| change.version.is_none() && change.end == End::Running);
        let is_spoilt = slot.is_some_and(|slot| slot.rotted.is_some());
        // Nothing orders what began before a clock was set back and what was published after that, once all was removed.
        let is_alone = is_empty || is_removed || world.wall_went_back || is_spoilt;
        is_over && is_alone && !planted::is("store: a mooncake store changes chunks late")
    }

    /// Whether what a slot has was put after a call that wants it removed was over, and no change waits for that any more: removal is by key.
    fn is_another_since(&self, sim: &Sim, origin: Origin, key: &str) -> bool {
        let waits = server::waits(sim, origin.call);
        let begun = self.state.lock().master.objects.get(key).map(|object| object.started);
        let world = sim.world();
        let Some((returned, begun)) = world.returned.get(&origin.call).copied().zip(begun) else { return false };
        let of = self.places.of_object(key).and_then(|place| world.keys.get(place));
        let mut changes = of.and_then(|key| world.oracle.changes.get(key)).into_iter().flatten();
        // Once a later one was acknowledged, the next is not told of it.
        let is_followed = changes.any(|change| {
            let ended = matches!(change.end, End::Acknowledged(at) if at <= begun);
            ended && change.process == origin.process && change.start >= returned
        });
        begun > returned && (!waits || is_followed)
    }

    /// Whether one of these objects lies here, whole or begun: of a chunk, or, where the call is over (`manifests`), a slot of a manifest.
    fn has_own(&self, address: u64, len: u64, keys: &[String], manifests: bool) -> bool {
        let state = self.state.lock();
        let keys = keys.iter().filter(|key| manifests || shown::is_chunk(key));
        let objects = keys.filter_map(|key| state.master.objects.get(key));
        objects.into_iter().any(|object| object.lies_in(address, len))
    }

    /// Bytes that lie under these places are others now, by nobody's call.
    fn are_overwritten(&self, sim: &Arc<Sim>, places: &[usize]) {
        if places.is_empty() {
            return;
        }
        server::changed_by_itself(sim);
        let now = sim.threads.moment();
        for place in places {
            server::rots(sim, *place, now);
        }
    }

    /// Bytes of versions of manifests, whole ones or what is being written, are others now: one of those is damaged, beside others that are not.
    fn is_damaged_beside(&self, sim: &Sim, origin: Origin, address: u64, len: u64) {
        let state = self.state.lock();
        let is_own = |key: &String| state.placed.contains_key(&(origin.call, key.clone()));
        let here = state.master.objects.iter().filter(|(_, object)| object.lies_in(address, len));
        let others = here.filter(|(key, _)| !shown::is_chunk(key) && !is_own(key));
        let places: Vec<&Stored> = others.filter_map(|(key, _)| self.places.of_object(key)).collect();
        drop(state);
        let mut world = sim.world();
        for place in places {
            world.slot_mut(place).rotted = Some(sim.threads.moment());
        }
    }

    /// A node is there again.
    fn is_back(&self, sim: &Arc<Sim>, number: usize) {
        let now = sim.threads.moment();
        let mut state = self.state.lock();
        if !state.nodes[number].lives(now) {
            return;
        }
        let elsewhere = state.dice.met(500);
        let node = &mut state.nodes[number];
        node.comes_back(elsewhere);
        let (base, size) = (node.base(), node.size);
        state.written += 1;
        // The master takes no memory twice.
        let forgets =
            state.master.segments.iter().filter(|segment| segment.base == base).filter_map(|old| old.unmounts);
        let from = forgets.max().unwrap_or(now).max(now) + state.dice.below(COMES_WITHIN / 3);
        state.mount(number, from);
        drop(state);
        self.are_overwritten(sim, &self.others(base, size, &[]));
    }
}

impl Serves for Mooncake {
    fn peek(&self) -> Vec<Option<Value>> {
        let mut state = self.state.lock();
        let now = self.sim.upgrade().map_or(0, |sim| sim.threads.moment());
        state.look(&self.places, now)
    }

    fn stage(&self) -> Option<Stage> {
        let State { master, written, term, .. } = &*self.state.lock();
        Some((*term, master.changed, *written))
    }

    fn admit(self: Arc<Self>, _: u64, far: Far) -> Option<Box<dyn FnOnce() + Send>> {
        if far.wire.authority == server::AUTHORITY {
            return Some(Box::new(move || self.attend(&far)));
        }
        let state = self.state.lock();
        let number = state.nodes.iter().position(|node| node.endpoint() == far.wire.authority);
        let data = state.nodes.iter().position(|node| node.data() == far.wire.authority);
        drop(state);
        match (number, data) {
            (Some(number), _) => Some(Box::new(move || self.shake_hands(&far, number))),
            (_, Some(number)) => Some(Box::new(move || self.transfer(&far, number))),
            _ => None,
        }
    }

    fn restarts_at(&self, authority: &str) -> bool {
        authority == server::AUTHORITY
    }

    fn is_gone(&self, authority: &str) -> bool {
        let now = self.sim.upgrade().map_or(0, |sim| sim.threads.moment());
        let state = self.state.lock();
        let mut listens = state.nodes.iter().filter(|node| node.lives(now));
        authority != server::AUTHORITY && !listens.any(|node| node.endpoint() == authority || node.data() == authority)
    }

    fn lose_node(self: Arc<Self>, sim: &Arc<Sim>, number: usize, long: Moment, dice: &mut Dice) -> Vec<String> {
        let now = sim.threads.moment();
        let mut state = self.state.lock();
        let number = number % state.nodes.len();
        let node = &mut state.nodes[number];
        let names = vec![node.endpoint(), node.data()];
        node.dies(now + long);
        state.written += 1;
        let forgets = now + self.setup.forgets + dice.below(self.setup.forgets / 4);
        for segment in state.master.segments.iter_mut().filter(|segment| segment.node == number) {
            segment.unmounts.get_or_insert(forgets);
        }
        drop(state);
        let (own, of) = (self.clone(), Arc::downgrade(sim));
        sim.threads.at(now + long, move || {
            if let Some(sim) = of.upgrade() {
                own.is_back(&sim, number);
            }
        });
        names
    }

    fn evict_one(&self, dice: &mut Dice) {
        let now = self.sim.upgrade().map_or(0, |sim| sim.threads.moment());
        self.state.lock().master.evict(now, Some(dice));
    }

    fn evict_many(&self, per_mille: u64, dice: &mut Dice) {
        let count = self.state.lock().master.objects.len() as u64 * per_mille / 1000;
        (0..count).for_each(|_| self.evict_one(dice));
    }

    fn remove(&self, place: usize) {
        let now = self.sim.upgrade().map_or(0, |sim| sim.threads.moment());
        let mut state = self.state.lock();
        for key in self.places.keys(place) {
            let _ = state.master.remove(key, true, now);
        }
    }

    fn may_rot(&self) -> bool {
        true
    }

    /// One bit of one of its objects.
    fn spoil(&self, place: usize, dice: &mut Dice) -> bool {
        let mut state = self.state.lock();
        let State { master, nodes, written, .. } = &mut *state;
        let objects: Vec<_> = self
            .places
            .keys(place)
            .iter()
            .filter_map(|key| master.objects.get(key))
            .filter(|object| object.complete)
            .collect();
        let Some(object) = dice.pick(&objects) else { return false };
        *written += 1;
        for replica in &object.replicas {
            let at = replica.address + dice.below(object.size);
            for node in nodes.iter_mut() {
                if let Some(byte) = node.read(at, 1) {
                    node.write(at, &[byte[0] ^ (1 << dice.below(8))]);
                }
            }
        }
        true
    }

    /// It knows nothing of what was.
    fn successor(&self, sim: &Sim, _: Moment, dice: &mut Dice) -> Arc<dyn Serves> {
        let now = sim.threads.moment();
        let mut state = self.state.lock();
        state.term += 1;
        state.master = Master::new(self.setup.lease);
        for node in 0..state.nodes.len() {
            if state.nodes[node].lives(now) {
                state.mount(node, now + dice.below(COMES_WITHIN));
            }
        }
        let term = state.term;
        drop(state);
        let Mooncake { sim, places, setup, state, .. } = self;
        Arc::new(Mooncake { sim: sim.clone(), places: places.clone(), setup: *setup, term, state: state.clone() })
    }
}
