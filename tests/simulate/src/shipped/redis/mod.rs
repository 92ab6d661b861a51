//! The redis-server of a history: the crate `redis-server` has what it does, and here is when. It carries out one command at a time,
//! whatever connection it comes on, and while it stands still nobody's.
//!
//! A server that is gone is followed by one that has lost all, or is as old as its replica or its snapshot; it loads first, and its clock
//! is another one.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};

use kv_platform::sync::Mutex;
use memkv_server::os::Peer;
use redis_server::db::{Db, Keys, Session};
use redis_server::{resp, script};

use super::calendar::Calendar;
use super::net::Far;
use super::server::{self, Serves, Stage, Value};
use crate::names::Stored;
use crate::plan::Redis as Setup;
use crate::planted;
use crate::sim::Sim;
use crate::threads::{MILLISECOND, Moment};
use crate::world::{Origin, Request};
use chance::Dice;

pub use redis_server::db::{Policy, Room};

pub const PASSWORD: &str = "of the history";

/// Bugs that may be planted, and the script that each is in.
const LATE: &[(&str, &str)] = &[
    ("store: a script of redis sets what comes late", "set"),
    ("store: a script of redis renames what comes late", "rename"),
    ("store: a script of redis removes what comes late", "delete"),
];

pub struct Redis {
    sim: Weak<Sim>,
    /// Of the places.
    keys: Arc<Vec<Vec<u8>>>,
    clock: Calendar,
    state: Mutex<State>,
}

struct State {
    db: Db,
    /// What it had, and from when. Kept where something older may come back.
    past: Vec<(Moment, Keys)>,
    /// It stands still until then.
    busy_until: Moment,
    loads_until: Moment,
    dice: Dice,
}

/// `kv:` is what the backend's keys begin with.
fn key_of(place: &[u8]) -> Vec<u8> {
    match place.split_first() {
        Some((b'm', manifest)) => [b"kv:m:", manifest].concat(),
        Some((_, hash)) => [b"kv:c:", hash].concat(),
        None => Vec::new(),
    }
}

/// The first one of a history.
pub fn start(sim: &Arc<Sim>, setup: Setup, places: &[Stored], dice: &mut Dice) -> Arc<dyn Serves> {
    let keys = places.iter().map(|place| key_of(place)).collect();
    let clock = Calendar::drawn(dice);
    let mut db = Db::new(setup.password.then_some(PASSWORD));
    db.room = setup.room;
    db.carries_out_late = LATE.iter().find(|(bug, _)| planted::is(bug)).map(|(_, script)| *script);
    Arc::new(Redis::with(Arc::downgrade(sim), Arc::new(keys), clock, db, dice.clone(), 0))
}

impl Redis {
    fn with(sim: Weak<Sim>, keys: Arc<Vec<Vec<u8>>>, clock: Calendar, db: Db, dice: Dice, loads_until: Moment) -> Self {
        let state = State { db, past: Vec::new(), busy_until: 0, loads_until, dice };
        Redis { sim, keys, clock, state: Mutex::new(state) }
    }

    /// Serve a connection until it is over.
    fn attend(&self, far: &Far) {
        let mut session = Session::default();
        // `timeout`: connections that are idle for longer are closed.
        let idle = server::idle(&mut self.state.lock().dice);
        server::converse(&self.sim, far, idle, |sim, came| {
            while let Some(command) =
                resp::take(came).unwrap_or_else(|wrong| panic!("the backend sends no RESP: {wrong}"))
            {
                let origin = server::origin(sim);
                if !server::is_calm(sim, origin) {
                    self.wait_for_turn(sim, origin);
                }
                let reply = self.carry_out(sim, far, &mut session, command, origin);
                if far.write(&reply).is_err() {
                    return false;
                }
            }
            true
        });
    }

    /// Until the server does nothing else.
    fn wait_for_turn(&self, sim: &Sim, origin: Origin) {
        let Some(running) = &sim.server else { return };
        let mut asked = false;
        loop {
            let now = sim.threads.moment();
            let frozen = sim.world().frozen_until;
            let until = self.state.lock().busy_until.max(frozen);
            if until > now {
                sim.threads.pause(until - now);
            } else if asked {
                return;
            } else {
                asked = true;
                let (long, stops) = running.stands_still(sim);
                self.state.lock().busy_until = now + long;
                if stops {
                    server::stood(sim, origin, long);
                }
            }
        }
    }

    /// One step.
    fn carry_out(
        &self,
        sim: &Sim,
        far: &Far,
        session: &mut Session,
        mut command: Vec<Vec<u8>>,
        origin: Origin,
    ) -> Vec<u8> {
        let now = sim.threads.moment();
        let micros = self.clock.at(now);
        self.expire(sim, now);
        self.spoil(sim, far, &mut command, origin);
        let mut state = self.state.lock();
        let State { db, loads_until, dice, .. } = &mut *state;
        db.loads = *loads_until > now && !server::is_calm(sim, origin);
        if sim.world().calm {
            // The operator has given it more.
            db.room = None;
        }
        let evicts = db.make_room(session, &command, &mut |len| dice.index(len));
        drop(state);
        if evicts {
            // No command asked for that, not even a removal.
            server::changed_by_itself(sim);
        }
        let mut state = self.state.lock();
        let State { db, dice, .. } = &mut *state;
        let mut reply = db.answer(session, &command, micros);
        if reply.starts_with(b"-LOADING") {
            sim.world().faulty.insert(origin.operation);
        }
        let is_read = matches!(command[0].as_slice(), b"GET" | b"MGET");
        if is_read && far.wire.takes_flip(false) {
            flip_a_value(&mut reply, dice);
        }
        let is_change = matches!(command[0].as_slice(), b"SET" | b"EVAL" | b"EVALSHA" | b"EXPIRE" | b"DEL");
        if is_change && sim.plan.fails_over() {
            let keys = (*state.db.keys).clone();
            state.past.push((now, keys));
        }
        drop(state);
        sim.say(|| {
            format!("  redis carries out {} for {}: {}", shown(&command), origin.operation, shown_reply(&reply))
        });
        server::settled(sim);
        reply
    }

    /// What expires is gone by itself.
    fn expire(&self, sim: &Sim, now: Moment) {
        let mut state = self.state.lock();
        let before = state.db.keys.len();
        state.db.pass(self.clock.at(now));
        let expired = state.db.keys.len() < before;
        drop(state);
        if expired {
            server::changed_by_itself(sim);
        }
    }

    /// A chunk's bytes may have changed on their way: the longest argument is its value.
    fn spoil(&self, sim: &Sim, far: &Far, command: &mut [Vec<u8>], origin: Origin) {
        let is_put = || matches!(server::request(sim, origin.call).as_deref(), Some(Request::Put { .. }));
        let stores = matches!(command[0].as_slice(), b"SET" | b"EVALSHA");
        if stores && is_put() && far.wire.takes_flip(true) {
            let at = if command[0] == b"SET" { 2 } else { 5 };
            let dice = &mut self.state.lock().dice;
            if let Some(value) = command.get_mut(at).filter(|value| value.len() > 16) {
                let byte = dice.index(value.len() - 16);
                value[byte] ^= 1 << dice.below(8);
            }
        }
    }
}

/// One bit of the first value of a reply, but not of its last 16 bytes, changes.
fn flip_a_value(reply: &mut [u8], dice: &mut Dice) {
    let mut at = 0;
    while let Some(end) = reply[at..].windows(2).position(|two| two == b"\r\n") {
        let line = &reply[at..at + end];
        let len = line.strip_prefix(b"$").and_then(|len| std::str::from_utf8(len).ok()?.parse::<usize>().ok());
        at += end + 2;
        if let Some(len) = len.filter(|len| *len > 16) {
            let byte = at + dice.index(len - 16);
            reply[byte] ^= 1 << dice.below(8);
            return;
        }
    }
}

/// For people.
fn shown(command: &[Vec<u8>]) -> String {
    let short = |argument: &Vec<u8>| String::from_utf8_lossy(&argument[..argument.len().min(24)]).into_owned();
    let named = |argument: &Vec<u8>| script::of_name(argument).map(|script| script.name.to_owned());
    let argument = |argument: &Vec<u8>| named(argument).unwrap_or_else(|| short(argument));
    command.iter().map(argument).collect::<Vec<_>>().join(" ").escape_debug().to_string()
}

fn shown_reply(reply: &[u8]) -> String {
    String::from_utf8_lossy(&reply[..reply.len().min(48)]).escape_debug().to_string()
}

impl Serves for Redis {
    fn peek(&self) -> Vec<Option<Value>> {
        let state = self.state.lock();
        self.keys.iter().map(|key| state.db.string(key).cloned()).collect()
    }

    fn stage(&self) -> Option<Stage> {
        Some((0, 0, self.state.lock().db.keys.times()))
    }

    fn admit(self: Arc<Self>, _: u64, far: Far) -> Option<Box<dyn FnOnce() + Send>> {
        Some(Box::new(move || self.attend(&far)))
    }

    fn evict_one(&self, dice: &mut Dice) {
        let policy = if dice.met(500) { Policy::EvictAny } else { Policy::EvictLeastUsed };
        self.state.lock().db.evict(policy, &mut |len| dice.index(len));
    }

    fn evict_many(&self, per_mille: u64, dice: &mut Dice) {
        let count = self.state.lock().db.keys.len() as u64 * per_mille / 1000;
        for _ in 0..count {
            self.state.lock().db.evict(Policy::EvictAny, &mut |len| dice.index(len));
        }
    }

    fn remove(&self, place: usize) {
        if let Some(key) = self.keys.get(place) {
            self.state.lock().db.remove(key);
        }
    }

    fn successor(&self, sim: &Sim, back: Moment, dice: &mut Dice) -> Arc<dyn Serves> {
        let now = sim.threads.moment();
        let state = self.state.lock();
        // In memory alone; or as a replica or a snapshot has it.
        let from = if dice.met(300) { None } else { now.checked_sub(back) };
        let older = |from: Moment| state.past.iter().take_while(|(at, _)| *at <= from).last();
        let past: Vec<(Moment, Keys)> = from.and_then(older).cloned().into_iter().collect();
        let keys = past.last().map(|(_, keys)| keys.clone()).unwrap_or_default();
        // A clock behind the former one is not promised anything of generations.
        let behind = dice.met(300);
        let clock = self.clock.set_on(match behind {
            true => -(dice.below(2_000_000) as i64),
            false => dice.below(1_000_000) as i64,
        });
        sim.world().generations_fall |= behind;
        let loads_until = now + dice.below(1000 * MILLISECOND);
        let db = state.db.succeed(keys);
        let next = Redis::with(self.sim.clone(), self.keys.clone(), clock, db, dice.clone(), loads_until);
        next.state.lock().past = past;
        Arc::new(next)
    }
}
