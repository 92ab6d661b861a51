//! A process with one instance of the shipped component, which makes one change after the other.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_store_core::backend::{ChangeKey, ChunkHash};
use kv_store_models::history::{Number, Phase};
use kv_store_models::sessions::Kind;
use kv_store_sdk::native::http::{Message, Reply};
use kv_store_sdk::native::system::Level;
use kv_store_sdk::native::{Host, Opened, Stream, over};
use kv_store_sdk::{CommitOutcome, DeleteOutcome, Error, Hashes, Manifest, PutOutcome, Result};

use crate::actors::{Actor, Stop, is_one, stop};
use crate::server::Component;
use crate::table::Table;
use crate::wire::{Near, Wire};
use crate::{CHUNK, MANIFEST, Subject, TICK};

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

/// What connects a client: makes a wire to the server.
pub type Connects = Rc<dyn Fn() -> Arc<Wire>>;
/// The same to a node of a cluster, by its authority.
pub type ConnectsTo = Rc<dyn Fn(&str) -> Arc<Wire>>;
/// Or what makes its requests.
pub type Exchanges = Rc<dyn Fn(&Clock, Message) -> Result<Reply>>;

/// How a component reaches its server.
#[derive(Clone)]
pub enum Reach {
    Connects(Connects),
    Cluster(ConnectsTo),
    Exchanges(Exchanges),
}

/// To whom, and about what.
type Parked = (String, String);

fn parked_under(authority: &str, session: &str) -> Parked {
    (authority.to_owned(), session.to_owned())
}

struct Process {
    subject: Subject,
    clock: Arc<Clock>,
    reach: Reach,
    secret: fn(&str) -> Option<&'static str>,
    parked: RefCell<BTreeMap<Parked, Box<dyn Stream>>>,
    item: RefCell<Option<Rc<[u8]>>>,
    table: Table,
    random: RefCell<fastrand::Rng>,
}

impl Host for Process {
    fn item(&self, _: u32) -> Option<Rc<[u8]>> {
        self.item.borrow().clone()
    }

    fn connect(&self, authority: &str, session: Option<&str>) -> Result<(Box<dyn Stream>, bool)> {
        let kept = session.and_then(|session| self.parked.borrow_mut().remove(&parked_under(authority, session)));
        if let Some(parked) = kept {
            return Ok((parked, true));
        }
        stop(Stop::Connects);
        self.clock.check()?;
        let wire = match &self.reach {
            Reach::Connects(connects) => connects(),
            Reach::Cluster(connects) => connects(authority),
            Reach::Exchanges(_) => return Err(Error::other("it makes requests")),
        };
        Ok((Box::new(Near { wire, clock: self.clock.clone() }), false))
    }

    fn exchange(&self, requests: Vec<Message>) -> Vec<Result<Reply>> {
        let answer = |request| match &self.reach {
            Reach::Exchanges(exchanges) => exchanges(&self.clock, request),
            Reach::Connects(_) | Reach::Cluster(_) => Err(Error::other("it connects")),
        };
        requests.into_iter().map(answer).collect()
    }

    fn park(&self, authority: &str, session: Option<&str>, stream: Box<dyn Stream>) {
        self.parked.borrow_mut().extend(session.map(|session| (parked_under(authority, session), stream)));
    }

    fn secret(&self, name: &str) -> Result<Option<String>> {
        Ok((self.secret)(name).map(str::to_owned))
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
        // Time passes when the walk says so.
        match self.reach {
            Reach::Exchanges(_) | Reach::Cluster(_) => self.clock.check(),
            Reach::Connects(_) => Err(Error::other("no change waits by itself")),
        }
    }

    fn random(&self) -> u64 {
        self.random.borrow_mut().u64(..)
    }

    fn log(&self, _: Level, _: &str) {}

    fn begin(&self, items: &[u32], token: &[u8]) -> Vec<Vec<u8>> {
        self.table.begin(items, token)
    }

    fn not_done(&self, items: &[u32]) {
        self.table.not_done(items);
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
    /// The last of its connections, if it has any.
    pub wire: usize,
    /// Those that it has made since it was last looked at.
    pub made: Rc<RefCell<VecDeque<usize>>>,
}

impl Client {
    /// `made`: filled by `connects`.
    pub fn open<C: Component>(
        subject: Subject,
        now: &Arc<AtomicU64>,
        reach: Reach,
        made: Rc<RefCell<VecDeque<usize>>>,
        seed: u64,
    ) -> Opening {
        let clock = Arc::new(Clock { now: now.clone(), deadline: AtomicU64::new(u64::MAX) });
        let (parked, item) = Default::default();
        let process = Rc::new(Process {
            subject,
            clock,
            reach,
            secret: C::secret,
            parked,
            item,
            table: Table::new(now, C::SETTLES),
            random: RefCell::new(fastrand::Rng::with_seed(seed)),
        });
        let (host, opened) = (process.clone(), Rc::new(RefCell::new(None)));
        let into = opened.clone();
        let actor = Actor::new(move || {
            into.replace(Some(over(host, C::open).expect("it is answered").0));
        });
        Opening { process, actor, opened, made }
    }

    pub fn stopped(&self) -> Option<Stop> {
        self.run.as_ref().and_then(|run| run.stopped)
    }

    /// Have a change that must be over by then take its place. False: a former one may still be carried out. A call would wait for that.
    pub fn is_let(&mut self, deadline: u64) -> bool {
        let Process { subject, clock, table, .. } = &*self.process;
        let key = match subject.is_chunk {
            true => ChangeKey::Chunk(ChunkHash::new(CHUNK).expect("it is as long as a hash")),
            false => ChangeKey::Manifest(MANIFEST.into()),
        };
        let left = deadline.saturating_sub(clock.now.load(Relaxed));
        let taken = table.take(key, left);
        if taken {
            clock.deadline.store(deadline, Relaxed);
        }
        taken
    }

    /// Begin a change that has its place, and go on with it until it stops.
    pub fn begin(&mut self, number: Number, kind: Kind) -> Option<Phase> {
        let Process { subject, item, .. } = &*self.process;
        item.replace(Some(subject.value(number).into()));
        let told = Rc::new(Cell::new(None));
        let (host, instance, tells) = (self.process.clone(), self.instance.clone(), told.clone());
        let actor = Actor::new(move || {
            let mut instance = instance.borrow_mut();
            let len = host.subject.value(number).len() as u64;
            let made = over(host.clone(), || make(&mut **instance, kind, host.subject.is_chunk, len));
            tells.set(Some(host.table.told(made)));
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

fn make(instance: &mut dyn Opened, kind: Kind, is_chunk: bool, len: u64) -> Result<Phase> {
    let hashes = Hashes::new(CHUNK.len(), CHUNK);
    Ok(match (kind, is_chunk) {
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
        let wire = self.made.borrow_mut().pop_front().unwrap_or(usize::MAX);
        Some(Client { process: self.process.clone(), instance, run: None, wire, made: self.made.clone() })
    }
}

/// When a call that must be over by a tick is over.
pub fn deadline(end: u8) -> u64 {
    u64::from(end) * TICK
}
