//! A process with one instance of the shipped component, which makes one change after the other.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_store_models::history::{Number, Phase};
use kv_store_models::sessions::Kind;
use kv_store_sdk::native::system::Level;
use kv_store_sdk::native::{Host, Opened, Stream, over};
use kv_store_sdk::{CommitOutcome, DeleteOutcome, Error, Hashes, Manifest, PutOutcome, Result};

use crate::actors::{Actor, Stop, is_one, stop};
use crate::wire::{Near, Wire};
use crate::{CHUNK, KEY, MANIFEST, TICK, value};

/// What the clocks of components are ahead of the walk's.
const AHEAD: u64 = 1_000_000_007;

/// The time of a component, with the deadline of its call.
pub struct Clock {
    now: Arc<AtomicU64>,
    deadline: AtomicU64,
}

impl Clock {
    pub fn remaining(&self) -> u64 {
        self.deadline.load(Relaxed).saturating_sub(self.now.load(Relaxed))
    }

    pub fn check(&self) -> Result<()> {
        match self.remaining() {
            0 => Err(Error::unavailable("the deadline of the call has passed")),
            _ => Ok(()),
        }
    }
}

/// How a change goes, as the host of a component knows it.
#[derive(Default)]
struct Change {
    item: RefCell<Option<Rc<[u8]>>>,
    begun: Cell<bool>,
    not_done: Cell<bool>,
    token: RefCell<Vec<u8>>,
    /// Of former changes whose end is unknown.
    former: RefCell<Vec<Vec<u8>>>,
}

/// What connects a client: makes a wire to the server.
pub type Connects = Rc<dyn Fn() -> Arc<Wire>>;

struct Process {
    clock: Arc<Clock>,
    connects: Connects,
    parked: RefCell<Option<Box<dyn Stream>>>,
    change: Change,
    random: RefCell<fastrand::Rng>,
}

impl Host for Process {
    fn item(&self, _: u32) -> Option<Rc<[u8]>> {
        self.change.item.borrow().clone()
    }

    fn connect(&self, _: &str, session: Option<&str>) -> Result<(Box<dyn Stream>, bool)> {
        if let Some(parked) = session.and_then(|_| self.parked.take()) {
            return Ok((parked, true));
        }
        stop(Stop::Connects);
        self.clock.check()?;
        Ok((Box::new(Near { wire: (self.connects)(), clock: self.clock.clone() }), false))
    }

    fn park(&self, _: &str, _: Option<&str>, stream: Box<dyn Stream>) {
        self.parked.replace(Some(stream));
    }

    fn secret(&self, _: &str) -> Result<Option<String>> {
        Ok(Some(KEY.to_owned()))
    }

    fn fact(&self, _: &str) -> Option<String> {
        None
    }

    fn wall(&self) -> u64 {
        2_000_000_000_000_000_000 + self.monotonic()
    }

    fn monotonic(&self) -> u64 {
        AHEAD + self.clock.now.load(Relaxed)
    }

    fn remaining(&self) -> u64 {
        self.clock.remaining()
    }

    fn sleep(&self, _: u64) -> Result<()> {
        Err(Error::other("no change waits by itself"))
    }

    fn random(&self) -> u64 {
        self.random.borrow_mut().u64(..)
    }

    fn log(&self, _: Level, _: &str) {}

    fn begin(&self, _: &[u32], token: &[u8]) -> Vec<Vec<u8>> {
        self.change.begun.set(true);
        self.change.not_done.set(false);
        self.change.token.replace(token.to_vec());
        self.change.former.borrow().clone()
    }

    fn not_done(&self, _: &[u32]) {
        self.change.not_done.set(true);
    }
}

/// A change that is being made, or was.
struct Run {
    actor: Actor,
    stopped: Option<Stop>,
    told: Rc<Cell<Option<Phase>>>,
}

pub struct Client {
    process: Rc<Process>,
    instance: Rc<RefCell<Box<dyn Opened>>>,
    run: Option<Run>,
    /// The last of its connections.
    pub wire: usize,
    /// Those that it has made since it was last looked at.
    pub made: Rc<RefCell<VecDeque<usize>>>,
}

impl Client {
    /// `made`: filled by `connects`.
    pub fn open(now: &Arc<AtomicU64>, connects: Connects, made: Rc<RefCell<VecDeque<usize>>>, seed: u64) -> Opening {
        let clock = Arc::new(Clock { now: now.clone(), deadline: AtomicU64::new(u64::MAX) });
        let random = RefCell::new(fastrand::Rng::with_seed(seed));
        let (parked, change) = Default::default();
        let process = Rc::new(Process { clock, connects, parked, change, random });
        let (host, opened) = (process.clone(), Rc::new(RefCell::new(None)));
        let into = opened.clone();
        let actor = Actor::new(move || {
            let open = || memkv::open("memkv://server:1/one", Vec::new());
            into.replace(Some(over(host, open).expect("it is answered").0));
        });
        Opening { process, actor, opened, made }
    }

    pub fn stopped(&self) -> Option<Stop> {
        self.run.as_ref().and_then(|run| run.stopped)
    }

    /// Begin a change, and go on with it until it stops.
    pub fn begin(&mut self, number: Number, kind: Kind, of_chunk: bool, deadline: u64) -> Option<Phase> {
        let Process { clock, change, .. } = &*self.process;
        clock.deadline.store(deadline, Relaxed);
        change.item.replace(Some(value(number).into()));
        change.begun.set(false);
        change.not_done.set(false);
        let told = Rc::new(Cell::new(None));
        let (host, instance, tells) = (self.process.clone(), self.instance.clone(), told.clone());
        let actor = Actor::new(move || {
            let mut instance = instance.borrow_mut();
            let made = over(host.clone(), || make(&mut **instance, number, kind, of_chunk));
            tells.set(Some(host.change.told(made)));
        });
        self.run = Some(Run { actor, stopped: None, told });
        self.resume()
    }

    /// Go on with a change. Answers what its caller is told, if it has ended.
    pub fn resume(&mut self) -> Option<Phase> {
        assert!(!is_one());
        let run = self.run.as_mut().expect("a change is being made");
        run.stopped = run.actor.resume();
        if run.stopped.is_some() {
            return None;
        }
        let told = run.told.get().expect("it has ended");
        self.run = None;
        Some(told)
    }
}

impl Change {
    /// What a caller is told of a change that was answered so.
    fn told(&self, made: Result<Phase>) -> Phase {
        let told = match made {
            Ok(told) => told,
            Err(_) if self.begun.get() && !self.not_done.get() => Phase::Unknown,
            Err(_) => Phase::Refused,
        };
        match told {
            Phase::Unknown => self.former.borrow_mut().push(self.token.take()),
            // What came before it is settled.
            Phase::Acknowledged | Phase::Existed => self.former.borrow_mut().clear(),
            _ => {}
        }
        told
    }
}

fn make(instance: &mut dyn Opened, number: Number, kind: Kind, of_chunk: bool) -> Result<Phase> {
    let (hashes, len) = (Hashes::new(CHUNK.len(), CHUNK), value(number).len() as u64);
    Ok(match (kind, of_chunk) {
        (Kind::Put | Kind::PutNew, true) => match instance.put_chunks(hashes, &[len], kind == Kind::Put)?.remove(0) {
            PutOutcome::Stored => Phase::Acknowledged,
            PutOutcome::Existed => Phase::Existed,
            PutOutcome::Failed(error) => return Err(error),
        },
        (Kind::Delete, true) => match instance.delete_chunks(hashes)?.remove(0) {
            DeleteOutcome::Gone => Phase::Acknowledged,
            DeleteOutcome::Failed(error) => return Err(error),
        },
        (Kind::Put | Kind::PutNew, false) => match instance.commit(&[], Some(Manifest { name: MANIFEST, len }))? {
            CommitOutcome::Published => Phase::Acknowledged,
            CommitOutcome::Absent(_) => return Err(Error::other("it names no chunks")),
        },
        (Kind::Delete, false) => instance.delete_manifest(MANIFEST).map(|()| Phase::Acknowledged)?,
    })
}

/// A component that is being opened.
pub struct Opening {
    process: Rc<Process>,
    actor: Actor,
    opened: Rc<RefCell<Option<Box<dyn Opened>>>>,
    made: Rc<RefCell<VecDeque<usize>>>,
}

impl Opening {
    /// Go on. Some: it is open.
    pub fn resume(&mut self) -> Option<Client> {
        if self.actor.resume().is_some() {
            return None;
        }
        let instance = Rc::new(RefCell::new(self.opened.take().expect("it was opened")));
        let wire = self.made.borrow_mut().pop_front().expect("it has connected");
        Some(Client { process: self.process.clone(), instance, run: None, wire, made: self.made.clone() })
    }
}

/// When a call that must be over by a tick is over.
pub fn deadline(end: u8) -> u64 {
    u64::from(end) * TICK
}
