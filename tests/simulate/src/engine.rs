//! One engine: a process with its handles, saves and a queue, whose threads do what the plan says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use kv_platform::sync::{Mutex, MutexGuard};
use kv_store_core::store::Setup;
use kv_store_core::{BatchOptions, Error, NewChunk, RequestQueue, Save, SaveOutcome, Store};

use crate::names::{Key, Kind, Version};
use crate::oracle::{Ledger, Operation};
use crate::plan::{Backend, How, SAVES};
use crate::queued::Queued;
use crate::shape::{Redis, SAVE_GRACE_S};
use crate::sim::{self, Sim};
use crate::threads::{MILLISECOND, Moment, SECOND, Task};
use chance::Dice;

/// What the end of a history waits for the circuit breaker.
const RECOVERY: Moment = 40 * SECOND;

pub struct Engine {
    pub sim: Arc<Sim>,
    pub process: usize,
    setup: Setup,
    // Before the handles, so that the last of those leaves a store that nobody uses.
    pub saves: Vec<Save>,
    pub queue: RequestQueue,
    handles: Vec<Mutex<Handle>>,
    opened: AtomicUsize,
    /// What was submitted and not drained.
    pub queued: Mutex<BTreeMap<u64, Queued>>,
    left: AtomicUsize,
}

#[derive(Clone)]
pub struct Handle {
    pub store: Arc<Store>,
    pub number: usize,
}

/// The life of the engine of a plan.
pub fn run(sim: &Arc<Sim>, process: usize) {
    let Some(planned) = sim.plan.engines.get(process).cloned() else { return };
    sim.threads.pause(planned.start);
    let opened = Engine::open(sim, process, planned.handles);
    let Some(engine) = opened else {
        sim.world().finished += 1;
        return;
    };
    engine.left.store(planned.threads.len(), Relaxed);
    for steps in planned.threads {
        let own = engine.clone();
        let job = move || {
            for step in steps.iter().filter(|step| own.sim.less.keeps(step.number)) {
                own.sim.threads.pause(step.wait);
                if own.is_dead() || own.sim.has_failed() {
                    break;
                }
                own.act(step);
            }
            own.left.fetch_sub(1, Relaxed);
        };
        sim.threads.start(Task { process, operation: 0 }, true, Box::new(job));
    }
    while engine.left.load(Relaxed) > 0 {
        sim.threads.pause(10 * MILLISECOND);
    }
    engine.drain_all();
    sim.world().finished += 1;
    while sim.world().finished < sim.plan.engines.len() {
        sim.threads.pause(50 * MILLISECOND);
    }
    sim.world().calm = true;
    if !sim.has_failed() && !engine.is_dead() {
        sim.threads.pause(RECOVERY);
        engine.recover();
    }
}

impl Engine {
    /// None: its process has ended meanwhile.
    fn open(sim: &Arc<Sim>, process: usize, handles: usize) -> Option<Arc<Self>> {
        let setup = sim::setup(sim, process);
        let uri = sim::uri(&sim.plan);
        let stores = (0..handles).map(|_| Store::open_with(&uri, &setup).map(Arc::new)).collect::<Result<Vec<_>, _>>();
        let stores: Vec<Arc<Store>> = match stores {
            Err(_) if sim.world().dead.get(process).copied().unwrap_or(true) => return None,
            stores => stores.expect("a simulated store opens"),
        };
        let first = stores.first().expect("an engine has a handle");
        let saves = (0..SAVES).map(|_| first.begin_save().expect("a save begins")).collect();
        let depth = Dice::of(sim.plan.seed, &[5, process as u64]).within(4, 64) as usize;
        let queue = RequestQueue::open(first, depth).expect("a queue opens");
        let handle = |(number, store)| Mutex::new(Handle { store, number });
        Some(Arc::new(Engine {
            sim: sim.clone(),
            process,
            handles: stores.into_iter().enumerate().map(handle).collect(),
            opened: AtomicUsize::new(handles),
            setup,
            saves,
            queue,
            queued: Mutex::default(),
            left: AtomicUsize::new(0),
        }))
    }

    pub fn is_dead(&self) -> bool {
        self.sim.world().dead.get(self.process).copied().unwrap_or(true)
    }

    pub fn now(&self) -> Moment {
        self.sim.threads.moment()
    }

    fn place(&self, handle: usize) -> MutexGuard<'_, Handle> {
        let place = &self.handles[handle % self.handles.len()];
        place.lock()
    }

    pub fn handle(&self, handle: usize) -> Handle {
        self.place(handle).clone()
    }

    /// Close a handle, and open another.
    pub fn reopen(&self, handle: usize) {
        let Ok(store) = Store::open_with(&sim::uri(&self.sim.plan), &self.setup) else { return };
        let number = self.opened.fetch_add(1, Relaxed);
        let former = std::mem::replace(&mut *self.place(handle), Handle { store: Arc::new(store), number });
        // The queue and the saves keep the first one open.
        if former.number > 0 {
            let ledger = Ledger::Handle { process: self.process, handle: former.number };
            self.sim.world().oracle.forget(ledger, self.now());
        }
    }

    pub fn begin(&self, number: u32, ledger: Ledger, queued: bool) -> Operation {
        let start = self.now();
        self.sim.threads.set_task(Task { process: self.process, operation: number });
        Operation { number, process: self.process, ledger, start, queued }
    }

    /// An operation has ended: not later than its time.
    pub fn end(&self, op: &Operation, how: How, bounded: bool) {
        let now = self.now();
        self.sim.threads.set_task(Task { process: self.process, operation: 0 });
        let mut world = self.sim.world();
        let deadline = world.shape.deadline;
        let allowed = if how.timeout > 0 { deadline.min(how.timeout * MILLISECOND) } else { deadline };
        let moving = if world.shape.lengths.big { SECOND } else { 0 };
        // The simulated component answers by the deadline.
        let grace = 60 * MILLISECOND + moving + world.held_up(self.process, op.start, now);
        let dead = world.dead.get(self.process).copied().unwrap_or(true);
        if bounded && !dead && now - op.start > allowed + grace {
            let text = format!(
                "operation {} took {} ms, and had {} ms",
                op.number,
                (now - op.start) / MILLISECOND,
                allowed / MILLISECOND
            );
            world.oracle.violated("late", text, now);
        }
    }

    /// The value that a step puts under a key.
    pub fn version(key: Key, number: u32) -> Version {
        match key.kind {
            Kind::Content | Kind::Opaque => 0,
            Kind::Register | Kind::Manifest => u64::from(number),
        }
    }

    pub fn value(&self, key: Key, number: u32) -> Vec<u8> {
        self.sim.plan.shape.lengths.value(key, Self::version(key, number))
    }

    pub fn hash(&self, key: Key) -> &'static [u8] {
        self.sim.plan.shape.lengths.hash(key)
    }

    /// With nothing wrong any more, all works again, and what is there is what may be.
    fn recover(&self) {
        let mut works = self.works_again();
        if works.is_err() && self.sim.files.is_some() {
            // What a process could neither sync nor remove is told to be lost when it is put and committed.
            works = self.works_again();
        }
        let (met, pause): (&[&str], _) = match self.sim.plan.shape.backend {
            // Another engine may put the same at the same time, or replace it in steps where it is damaged.
            Backend::Mooncake(_) => (&["is being written by another client", "has lost what it has put"], SECOND),
            // What was there expires between the put and the commit; or others have removed the segment in which it lies, and the one that is being
            // filled.
            Backend::Redis(Redis { ttl_s: Some(_), .. }) | Backend::Segments { .. } => {
                (&["has lost what it has put"], 0)
            }
            // Another engine's save is under way, and it has just used all that there is.
            Backend::LocalFs { max_bytes: Some(_), .. } => (&["the store is full"], (SAVE_GRACE_S + 1) * SECOND),
            _ => (&[], 0),
        };
        for _ in 0..3 {
            if !works.as_ref().is_err_and(|what| met.iter().any(|met| what.contains(met))) {
                break;
            }
            self.sim.threads.pause(pause * (1 + self.process as Moment));
            works = self.works_again();
        }
        if let Err(what) = works {
            let now = self.now();
            let text = format!("process {}: {RECOVERY} ns after the last fault {what}", self.process);
            self.sim.world().oracle.violated("no-recovery", text, now);
        }
        let ledger = Ledger::Handle { process: self.process, handle: self.handle(0).number };
        let keys = self.sim.plan.shape.keys;
        for kind in [Kind::Content, Kind::Opaque, Kind::Register, Kind::Manifest] {
            for number in 0..keys[kind as usize] {
                let key = Key { kind, number };
                let op = self.begin(0, ledger, false);
                match kind {
                    Kind::Manifest => self.read_manifest(&op, 0, key),
                    _ => self.get_many(&op, 0, &[key], How::default()),
                }
                self.end(&op, How::default(), true);
            }
        }
    }

    fn works_again(&self) -> Result<(), String> {
        let store = self.handle(0).store;
        let key = Key { kind: Kind::Content, number: 0 };
        let (hash, value) = (self.hash(key), self.value(key, 0));
        let pieces = [value.as_slice()];
        let chunks = [NewChunk::new(hash, &pieces)];
        let save = store.begin_save().map_err(|error| error.to_string())?;
        let options = BatchOptions::default();
        let told = |error: Error| format!("a put fails: {error}");
        let put = store.put_many(&chunks, &options, Some(&save)).map_err(told)?;
        put.into_iter().collect::<Result<Vec<_>, Error>>().map_err(told)?;
        match save.commit(None) {
            Ok(SaveOutcome::Published) => Ok(()),
            Ok(SaveOutcome::Lost(_)) => Err("a save has lost what it has put a moment ago".to_owned()),
            Err(error) => Err(format!("a commit fails: {error}")),
        }
    }

    /// Which key a hash is of.
    pub fn key_of(&self, hash: &[u8]) -> Option<Key> {
        let shape = &self.sim.plan.shape;
        [Kind::Content, Kind::Opaque, Kind::Register]
            .into_iter()
            .flat_map(|kind| (0..shape.keys[kind as usize]).map(move |number| Key { kind, number }))
            .find(|key| shape.lengths.hash(*key) == hash)
    }

    /// The options of a batch, as the library has them.
    pub fn options(&self, how: How) -> BatchOptions {
        let mut options = BatchOptions::default();
        if !self.sim.plan.shape.verifies {
            options = options.with_xxh3_keys();
        }
        if how.durable {
            options = options.with_durable();
        }
        if how.replace {
            options = options.with_replace();
        }
        if how.timeout > 0 {
            options = options.with_timeout(Duration::from_millis(how.timeout));
        }
        options
    }
}
