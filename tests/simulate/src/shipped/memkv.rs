//! The memkv-server of a history: the shipped sources, by a clock of its own, with threads that stand still where locks are taken.

use std::sync::{Arc, Weak};
use std::time::Duration;

use kv_platform::sync::Mutex;
use memkv_server::os::{System, TcpStream, enter};
use memkv_server::{Bounds, Name, Server, Store, name};
use memkv_wire::Key;
use memkv_wire::fields::{Evict, Kind};

use super::net::Far;
use super::server::{self, Serves, Value};
use crate::names::Stored;
use crate::sim::Sim;
use crate::threads::{Moment, SECOND};
use chance::Dice;

pub const KEY: &str = "0707070707070707070707070707070707070707070707070707070707070707";
const NAMESPACE: &str = "one";

pub struct Memkv {
    server: Server,
    memory: u64,
    /// Of the places.
    names: Arc<Vec<Name>>,
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
        let mut dice = self.dice.lock();
        bytes.iter_mut().for_each(|byte| *byte = dice.next() as u8);
    }

    fn turn(&self, _: &'static str) {
        if let Some(sim) = self.sim.upgrade() {
            server::turn(&sim);
        }
    }

    fn wait(&self, long: Duration) {
        if let Some(sim) = self.sim.upgrade() {
            sim.threads.pause(long.as_nanos() as Moment);
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

/// The first one of a history.
pub fn start(sim: &Arc<Sim>, memory: u64, places: &[Stored], dice: &mut Dice) -> Arc<dyn Serves> {
    let drift = dice.within(0, 1000) as i64 - 500;
    enter(Some(Arc::new(Os { sim: Arc::downgrade(sim), drift, dice: Mutex::new(dice.clone()) })));
    fresh(memory, Arc::new(places.iter().map(|place| name_of(place)).collect()))
}

/// No server of the history runs any more.
pub fn end() {
    enter(None);
}

fn fresh(memory: u64, names: Arc<Vec<Name>>) -> Arc<dyn Serves> {
    let store = Store::open(memory, None).expect("a store without files opens");
    let bounds = Bounds { memory, max_value: None, connections: 256, idle: Duration::from_secs(300) };
    let server = Server::new(Key::from_hex(KEY).expect("a key"), store, &bounds);
    Arc::new(Memkv { server, memory, names })
}

impl Memkv {
    fn evict(&self, bytes: u64) {
        let what = Evict { bytes, unused_since: 0, keep_since: u64::MAX };
        self.server.store.evict(Some(NAMESPACE), &what);
    }
}

impl Serves for Memkv {
    fn peek(&self) -> Vec<Option<Value>> {
        self.server.store.peek(&self.names)
    }

    fn admit(self: Arc<Self>, number: u64, far: Far) -> Option<Box<dyn FnOnce() + Send>> {
        let stream = Arc::new(TcpStream::over(Box::new(far)));
        let admitted = self.server.meet(number, &stream);
        admitted.then(|| Box::new(move || self.server.attend(number, &stream)) as Box<dyn FnOnce() + Send>)
    }

    fn evict_one(&self, _: &mut Dice) {
        self.evict(1);
    }

    fn evict_many(&self, per_mille: u64, _: &mut Dice) {
        self.evict(self.server.store.usage(NAMESPACE).bytes * per_mille / 1000);
    }

    fn remove(&self, place: usize) {
        if let Some(name) = self.names.get(place) {
            self.server.store.delete(name, 0);
        }
    }

    /// It has lost all.
    fn successor(&self, _: &Sim, _: Moment, _: &mut Dice) -> Arc<dyn Serves> {
        fresh(self.memory, self.names.clone())
    }
}
