//! A process with one instance of the shipped component, which makes one change after the other.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_store_core::backend::ChangeKey;
use kv_store_models::history::{Number, Phase};
use kv_store_sdk::native::system::Level;
use kv_store_sdk::native::{Host, Opened, Stream, over};
use kv_store_sdk::{Error, Manifest, Result};

use super::server::{Line, MASTER};
use crate::actors::{Actor, Stop, stop};
use crate::table::Table;
use crate::{MANIFEST, TICK, value};

/// Where the random number of a change says how it is ordered among others.
pub const RANK_SHIFT: u32 = 56;

/// The time of a walk, and the end of a call, in nanoseconds.
#[derive(Clone)]
pub struct Clock {
    now: Arc<AtomicU64>,
    end: Rc<Cell<u64>>,
}

impl Clock {
    fn remaining(&self) -> u64 {
        self.end.get().saturating_sub(self.now.load(Relaxed))
    }

    fn wall(&self) -> u64 {
        self.now.load(Relaxed) + TICK
    }

    fn check(&self) -> Result<()> {
        match self.remaining() {
            0 => Err(Error::unavailable("the deadline of the call has passed")),
            _ => Ok(()),
        }
    }
}

struct Process {
    clock: Clock,
    /// The connection that it made last: one request is under way at any time.
    line: RefCell<Rc<Line>>,
    item: RefCell<Rc<[u8]>>,
    rank: Cell<u8>,
    drawn: Cell<u64>,
    token: RefCell<Vec<u8>>,
    table: Table,
    /// Until when it sleeps, in nanoseconds.
    sleeps: Cell<Option<u64>>,
}

impl Host for Process {
    fn item(&self, _: u32) -> Option<Rc<[u8]>> {
        Some(self.item.borrow().clone())
    }

    fn connect(&self, authority: &str, _: Option<&str>) -> Result<(Box<dyn Stream>, bool)> {
        self.clock.check()?;
        let line = Rc::new(Line { authority: authority.to_owned(), ..Line::default() });
        self.line.replace(line.clone());
        Ok((Box::new(Near { line, clock: self.clock.clone() }), false))
    }

    /// None is kept: what was sent on one that was closed would be sent again.
    fn park(&self, _: &str, _: Option<&str>, _: Box<dyn Stream>) {}

    fn ready(&self, streams: &[&dyn Stream], _: Option<u64>) -> Result<Vec<usize>> {
        loop {
            let near = streams.iter().map(|stream| (*stream as &dyn Any).downcast_ref::<Near>().expect("of this host"));
            let ready: Vec<usize> = near.enumerate().filter(|(_, near)| near.is_ready()).map(|(at, _)| at).collect();
            if !ready.is_empty() {
                return Ok(ready);
            }
            self.clock.check()?;
            stop(Stop::Reads);
        }
    }

    fn secret(&self, _: &str) -> Result<Option<String>> {
        Ok(None)
    }

    fn fact(&self, _: &str) -> Option<String> {
        None
    }

    fn wall(&self) -> u64 {
        self.clock.wall()
    }

    fn monotonic(&self) -> u64 {
        1_000_000_007 + self.clock.wall()
    }

    fn remaining(&self) -> u64 {
        self.clock.remaining()
    }

    fn sleep(&self, nanoseconds: u64) -> Result<()> {
        // A pause between two looks is over within a tick.
        let until = if nanoseconds < TICK { 0 } else { self.clock.wall() + nanoseconds };
        self.sleeps.set(Some(until));
        stop(Stop::Waits);
        self.sleeps.set(None);
        self.clock.check()
    }

    fn random(&self) -> u64 {
        self.drawn.set(self.drawn.get() + 1);
        u64::from(self.rank.get()) << RANK_SHIFT
            | self.drawn.get().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - RANK_SHIFT)
    }

    fn log(&self, _: Level, _: &str) {}

    fn begin(&self, items: &[u32], token: &[u8]) -> Vec<Vec<u8>> {
        self.token.replace(token.to_vec());
        self.table.begin(items, token)
    }

    fn not_done(&self, items: &[u32]) {
        self.table.not_done(items);
    }
}

/// The component's end of a connection.
struct Near {
    line: Rc<Line>,
    clock: Clock,
}

impl Near {
    fn is_ready(&self) -> bool {
        self.line.lost.get() || !self.line.at_client.borrow().is_empty()
    }
}

impl Stream for Near {
    fn send(&self, bytes: &[u8]) -> Result<()> {
        self.clock.check()?;
        self.line.sent.borrow_mut().extend(bytes);
        Ok(())
    }

    fn receive(&self, limit: usize) -> Result<Vec<u8>> {
        loop {
            if self.line.lost.get() {
                return Err(Error::unavailable("the connection was reset"));
            }
            self.clock.check()?;
            let mut came = self.line.at_client.borrow_mut();
            if !came.is_empty() {
                let count = came.len().min(limit);
                return Ok(came.drain(..count).collect());
            }
            drop(came);
            stop(Stop::Reads);
        }
    }

    fn set_patience(&self, _: u64) {}
}

type Instance = Rc<RefCell<Option<Box<dyn Opened>>>>;

pub struct Client {
    process: Rc<Process>,
    instance: Instance,
    run: Option<(Actor, Rc<Cell<Option<Phase>>>)>,
}

impl Client {
    /// One that opens its store. `number`: of the client.
    pub fn open(now: &Arc<AtomicU64>, number: u8) -> Self {
        let clock = Clock { now: now.clone(), end: Rc::new(Cell::new(u64::MAX)) };
        let process = Rc::new(Process {
            clock,
            line: RefCell::default(),
            item: RefCell::new(Rc::from([])),
            rank: Cell::new(0),
            drawn: Cell::new(u64::from(number) << 32),
            token: RefCell::default(),
            table: Table::new(now, true),
            sleeps: Cell::new(None),
        });
        let mut client = Client { process, instance: Rc::default(), run: None };
        let (instance, host) = (client.instance.clone(), client.process.clone());
        client.does(move || {
            let open = || mooncake::open(&format!("mooncake://{MASTER}/one"), Vec::new());
            instance.replace(Some(over(host, open).expect("nothing is in its way").0));
            Phase::Acknowledged
        });
        client
    }

    fn does(&mut self, what: impl FnOnce() -> Phase + 'static) {
        let told = Rc::new(Cell::new(None));
        let tells = told.clone();
        self.run = Some((Actor::new(move || tells.set(Some(what()))), told));
    }

    /// A change that is about to be made. `end`: of its call, in nanoseconds.
    pub fn begin(&mut self, number: Number, deletes: bool, rank: u8, end: u64) {
        let process = &self.process;
        process.clock.end.set(end);
        process.item.replace(value(number).into());
        process.rank.set(rank);
        assert!(process.table.take(ChangeKey::Manifest(MANIFEST.into()), process.clock.remaining()));
        let (instance, host) = (self.instance.clone(), self.process.clone());
        self.does(move || {
            let mut instance = instance.borrow_mut();
            let instance = instance.as_mut().expect("it is open");
            let made = over(host.clone(), || match deletes {
                true => instance.delete_manifest(MANIFEST),
                false => {
                    let manifest = Manifest { name: MANIFEST, len: value(number).len() as u64 };
                    instance.commit(&[], Some(manifest)).map(drop)
                }
            });
            host.table.told(made.map(|()| Phase::Acknowledged))
        });
    }

    pub fn is_at_work(&self) -> bool {
        self.run.is_some()
    }

    /// Its last connection.
    pub fn line(&self) -> Rc<Line> {
        self.process.line.borrow().clone()
    }

    /// As whom it makes its change.
    pub fn token(&self) -> Vec<u8> {
        self.process.token.borrow().clone()
    }

    /// Whether it sleeps, and for longer.
    pub fn sleeps(&self) -> Option<bool> {
        self.process.sleeps.get().map(|until| self.process.clock.wall() < until)
    }

    /// It goes on until it stops. Answers what its caller is told, if its change has ended.
    pub fn resume(&mut self) -> Option<Phase> {
        let (actor, told) = self.run.as_mut().expect("it is at work");
        if actor.resume().is_some() {
            return None;
        }
        let told = told.get().expect("it has ended");
        self.run = None;
        Some(told)
    }
}
