//! A process with the shipped component over core's `directory`, as the host has it, and a client that makes one change after the other.

use std::cell::{Cell, RefCell};
use std::path::Path;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Instant;

use kv_store_core::directory::{Directory, Shared};
use kv_store_core::limits::Limits;
use kv_store_core::process::{Clock as OfCore, Random, Spawn};
use kv_store_core::reads::Readers;
use kv_store_core::threads::Threads;
use kv_store_core::until::Until;
use kv_store_models::history::{Number, Phase};
use kv_store_sdk::native::files::Granted;
use kv_store_sdk::native::system::Level;
use kv_store_sdk::native::{Host, Opened, Stream, over};
use kv_store_sdk::{Error, Manifest, Result};
use simulated_files::{Calls, Share};

use super::machine::{Clock, DIRECTORY, Machine};
use crate::actors::Actor;
use crate::{MANIFEST, value};

pub struct Process {
    pub number: usize,
    clock: OfCore,
    directory: Arc<Directory>,
    durable: bool,
}

impl Process {
    /// `started`: how many processes there were before. `threads`: several clients are of this process.
    pub fn start(machine: &Arc<Machine>, started: u64, threads: bool, number: usize, durable: bool) -> Rc<Self> {
        let clock = OfCore::of(Arc::new(Clock { machine: machine.clone(), stops: !threads }));
        let random = Random::of(move |bytes| {
            bytes.iter_mut().zip(started.to_ne_bytes()).for_each(|(byte, number)| *byte = number);
            Ok(())
        });
        // Nobody lends a hand.
        let spawn = Spawn::of(|_, _| false).on_cores(1);
        let helpers = Threads::new(&clock, &spawn).helpers;
        let readers = Readers::new(&clock, &spawn, &helpers);
        let shared = Arc::new(Shared::new(clock.clone(), random, helpers, readers));
        let directory = Directory::open(Path::new(DIRECTORY), &shared).expect("nothing is in its way");
        Rc::new(Process { number, clock, directory: Arc::new(directory), durable })
    }

    /// An instance of the component.
    pub fn instance(&self) -> Instance {
        let durability = if self.durable { "full" } else { "rename" };
        let options = vec![("durability".to_owned(), durability.to_owned())];
        let call = Call::new(self, None, None);
        let open = || local_fs::open(&format!("local-fs://{DIRECTORY}"), options);
        Rc::new(RefCell::new(over(call, open).expect("nothing is in its way").0))
    }
}

pub type Instance = Rc<RefCell<Box<dyn Opened>>>;

/// One call of a component.
struct Call {
    until: Until,
    item: Option<Rc<[u8]>>,
    directory: Arc<Directory>,
    own: Weak<Call>,
}

impl Call {
    fn new(of: &Process, item: Option<Rc<[u8]>>, end: Option<Instant>) -> Rc<Self> {
        let until = Until::with(&of.clock, &Limits::default(), end, None);
        let directory = of.directory.clone();
        Rc::new_cyclic(|own| Call { until, item, directory, own: own.clone() })
    }
}

impl Calls for Call {
    fn until(&self) -> &Until {
        &self.until
    }

    fn goes_on(&self) {}
}

impl Host for Call {
    fn item(&self, _: u32) -> Option<Rc<[u8]>> {
        self.item.clone()
    }

    fn directory(&self, _: &str) -> Result<Rc<dyn Granted>> {
        let call = self.own.upgrade().expect("it is under way");
        Ok(Rc::new(Share { call, directory: self.directory.clone() }))
    }

    fn connect(&self, _: &str, _: Option<&str>) -> Result<(Box<dyn Stream>, bool)> {
        Err(Error::denied("it has no server"))
    }

    fn park(&self, _: &str, _: Option<&str>, _: Box<dyn Stream>) {}

    fn secret(&self, _: &str) -> Result<Option<String>> {
        Ok(None)
    }

    fn fact(&self, _: &str) -> Option<String> {
        None
    }

    fn wall(&self) -> u64 {
        self.until.clock().wall_ns()
    }

    fn monotonic(&self) -> u64 {
        unreachable!("no change looks at it")
    }

    fn remaining(&self) -> u64 {
        unreachable!("no change looks at it")
    }

    fn sleep(&self, _: u64) -> Result<()> {
        Err(Error::other("no change waits by itself"))
    }

    fn random(&self) -> u64 {
        unreachable!("no change draws anything")
    }

    fn log(&self, _: Level, _: &str) {}

    fn begin(&self, _: &[u32], _: &[u8]) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn not_done(&self, _: &[u32]) {}
}

/// A change that is being made.
pub struct Run {
    actor: Actor,
    told: Rc<Cell<Option<Phase>>>,
}

impl Run {
    /// Begin a change, which has a deadline. It makes no system call before it is told to go on.
    pub fn begin(of: &Rc<Process>, instance: &Instance, number: Number, deletes: bool, end: Instant) -> Self {
        let told = Rc::new(Cell::new(None));
        let (of, instance, tells) = (of.clone(), instance.clone(), told.clone());
        let actor = Actor::new(move || {
            let call = Call::new(&of, Some(value(number).into()), Some(end));
            let made = over(call, || make(&mut **instance.borrow_mut(), number, deletes));
            tells.set(Some(phase(made)));
        });
        Run { actor, told }
    }

    /// Go on to the next system call. Answers what the caller is told, if it has ended.
    pub fn go_on(&mut self) -> Option<Phase> {
        match self.actor.resume() {
            Some(_) => None,
            None => Some(self.told.get().expect("it has ended")),
        }
    }
}

pub fn make(instance: &mut dyn Opened, number: Number, deletes: bool) -> Result<()> {
    match deletes {
        true => instance.delete_manifest(MANIFEST),
        false => instance.commit(&[], Some(Manifest { name: MANIFEST, len: value(number).len() as u64 })).map(drop),
    }
}

/// What a caller is told of a change: one that was not done is said to be that.
fn phase(made: Result<()>) -> Phase {
    match made {
        Ok(()) => Phase::Acknowledged,
        Err(error) if error.message.starts_with("not done") => Phase::Refused,
        Err(_) => Phase::Unknown,
    }
}

/// Put something to begin with.
pub fn put_first(of: &Process, instance: &Instance) {
    let call = Call::new(of, Some(value(0).into()), None);
    over(call, || make(&mut **instance.borrow_mut(), 0, false)).expect("nothing is in its way");
}
