//! One history: its threads, its storage system, its engines, and what befalls them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_platform::sync::{Mutex, MutexGuard};
use kv_store_core::config::{Config, Source};
use kv_store_core::process::{Clock, Random, Spawn};
use kv_store_core::store::{Process, ProcessParts, Setup};

use crate::calls::Fate;
use crate::engine;
use crate::guest::Guest;
use crate::hashed::HashMap;
use crate::oracle::{Violation, ms};
use crate::plan::{Backend, Event, Less, Plan, S3};
use crate::shipped;
use crate::shipped::files::{self, Files};
use crate::shipped::server::{self, Running};
use crate::threads::{Ended, MILLISECOND, Moment, SECOND, Stacks, Task, Threads};
use crate::world::World;
use chance::Dice;

pub struct Sim {
    pub plan: Plan,
    pub less: Less,
    pub threads: Arc<Threads>,
    world: Mutex<World>,
    /// The server of a shipped backend.
    pub server: Option<Running>,
    /// The files of one that has some.
    pub files: Option<Files>,
    /// What each operation does, for the coverage.
    actions: HashMap<u32, &'static str>,
    covered: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    trace: Option<Mutex<Vec<(Moment, String)>>>,
}

/// What came of a history.
pub struct History {
    pub violation: Option<Violation>,
    /// What served its store.
    pub backend: Backend,
    /// The same for the same seed.
    pub digest: u64,
    pub operations: u64,
    pub covered: BTreeMap<(&'static str, &'static str), u64>,
    pub trace: Vec<String>,
    pub time: Moment,
    /// Times that a thread went on.
    pub steps: u64,
}

/// The longest history.
const AT_MOST: Moment = 3600 * SECOND;

impl Sim {
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// Count that something of an operation met a fault.
    pub fn cover(&self, operation: u32, fate: Fate) {
        let name = fate.name();
        let action = self.actions.get(&operation).copied().unwrap_or("open, end");
        let mut covered = self.covered.lock();
        *covered.entry((action, name)).or_default() += 1;
        if fate != Fate::Well {
            drop(covered);
            self.say(|| format!("  call of {operation}: {name}"));
        }
    }

    /// Count that an event came while operations ran, those of queues among them.
    fn cover_event(&self, name: &'static str) {
        let operations = self.threads.operations();
        let mut covered = self.covered.lock();
        for action in operations.iter().filter_map(|operation| self.actions.get(operation)) {
            *covered.entry((*action, name)).or_default() += 1;
        }
    }

    /// Add a line to what is told of a history that is looked at.
    pub fn say(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            let now = self.threads.moment();
            let line = format!("{:>14}  {}", ms(now), line());
            trace.lock().push((now, line));
        }
    }

    pub fn has_failed(&self) -> bool {
        !self.world().oracle.violations.is_empty()
    }
}

/// Run the history of a plan, or a part of it.
pub fn run(plan: &Plan, less: &Less, stacks: &mut Stacks, traced: bool) -> History {
    let threads = Threads::new(plan.seed);
    let actions = plan.steps().map(|step| (step.number, step.action.name())).collect();
    let world = World::new(plan);
    let sim = Arc::new(Sim {
        server: Running::of(plan, world.keys.keys()),
        files: Files::of(plan, world.keys.keys()),
        world: Mutex::new(world),
        plan: plan.clone(),
        less: less.clone(),
        threads: threads.clone(),
        actions,
        covered: Mutex::default(),
        trace: traced.then(Mutex::default),
    });
    server::start(&sim);
    files::start(&sim);
    for planned in plan.events.iter().filter(|planned| less.keeps(planned.number)) {
        let (own, event, number) = (sim.clone(), planned.event.clone(), planned.number);
        threads.at(planned.at, move || befall(&own, &event, number));
    }
    for number in 0..plan.engines.len() {
        let own = sim.clone();
        let task = Task { process: number, operation: 0 };
        threads.start(task, true, Box::new(move || engine::run(&own, number)));
    }
    // What is given up ends soon after its deadline; stores without a handle are kept for a while, and would be for ever.
    let after = 2000 * SECOND;
    let ended = threads.run(stacks, AT_MOST, after);
    server::end(&sim);
    files::end(&sim);
    let mut world = sim.world();
    let now = threads.moment();
    match ended {
        Ended::Done => {}
        Ended::Panicked(text) => world.oracle.violated("panic", text, now),
        Ended::Stuck | Ended::Late => {
            let running: Vec<String> = threads.operations().iter().map(u32::to_string).collect();
            let text = format!("operations that never end: {}", running.join(", "));
            world.oracle.violated("stuck", text, now);
        }
    }
    let violation = world.oracle.violations.first().cloned();
    let operations = world.operations;
    drop(world);
    let covered = std::mem::take(&mut *sim.covered.lock());
    // What came after a violation explains nothing.
    let end = violation.as_ref().map_or(Moment::MAX, |violation| violation.at);
    let told = sim.trace.iter().flat_map(|trace| std::mem::take(&mut *trace.lock()));
    let trace = told.filter(|(at, _)| *at <= end).map(|(_, line)| line).collect();
    let (digest, steps) = (threads.digest(), threads.steps());
    let backend = plan.shape.backend;
    History { violation, backend, digest, operations, covered, trace, time: threads.done(), steps }
}

/// Have an event come.
fn befall(sim: &Arc<Sim>, event: &Event, number: u32) {
    let now = sim.threads.moment();
    sim.say(|| format!("event {number}: {event:?}"));
    sim.cover_event(event.name());
    let mut dice = Dice::of(sim.plan.seed, &[3, u64::from(number)]);
    let calm = sim.world().calm;
    if calm || server::befall(sim, event, &mut dice) || files::befall(sim, event, &mut dice) {
        return;
    }
    let mut world = sim.world();
    match event {
        Event::Evict(key) | Event::Remove(key) => world.evict(*key, now),
        Event::EvictMany(per_mille) => world.evict_many(*per_mille, &mut dice, now),
        Event::Failover(back) => world.fail_over(*back, now),
        Event::PowerLoss => {
            world.dead_until(now);
            world.lose_power(&mut dice, now);
        }
        Event::Kill(process) => {
            if sim.plan.shape.holds_data {
                return;
            }
            if let Some(dead) = world.dead.get_mut(*process) {
                *dead = true;
            }
        }
        Event::Freeze(long) => world.frozen_until = world.frozen_until.max(now + long),
        Event::Partition(process, long) => {
            world.partitioned.insert(*process, now + long);
        }
        Event::Rot(key) => world.rot(*key, &mut dice, now),
        Event::WallJump(by) => {
            world.wall_jumps = true;
            world.wall_went_back |= *by < 0;
            sim.threads.jump_wall(*by);
        }
        Event::NoThreads(long) => world.no_threads_until = now + long,
        Event::Retire => world.retire(now),
        Event::NodeLost(..) => {}
    }
}

/// A process of its own for an engine, and what opens stores in it.
pub fn setup(sim: &Arc<Sim>, process: usize) -> Setup {
    let own = sim.clone();
    let spawn = Spawn::of(move |_, job| {
        let now = own.threads.moment();
        if own.world().no_threads_until > now {
            return false;
        }
        own.threads.start(Task { process, operation: 0 }, false, job);
        true
    })
    .on_cores(4);
    let filled = AtomicU64::new(0);
    let seed = sim.plan.seed;
    let random = Random::of(move |bytes| {
        let mut dice = Dice::of(seed, &[4, process as u64, filled.fetch_add(1, Relaxed)]);
        bytes.iter_mut().for_each(|byte| *byte = dice.next() as u8);
        Ok(())
    });
    let clock = Clock::of(sim.threads.clone());
    let parts = ProcessParts { clock, spawn, random, forks: || 0 };
    let config = Config::given(&config(sim)).expect("the config of a history is one");
    Setup {
        config: Source::Given(config),
        components: Arc::new(Guest { sim: sim.clone(), process }),
        layers: Vec::new(),
        clock: None,
        must_exist: false,
        process: Process::new(parts),
    }
}

fn scheme(plan: &Plan) -> &'static str {
    match plan.shape.backend {
        Backend::Contract => "sim",
        Backend::Memkv { .. } => "memkv",
        Backend::Redis(_) => "redis",
        Backend::S3(S3 { tls: true, .. }) => "s3",
        Backend::S3(_) => "s3+http",
        Backend::Mooncake(_) => "mooncake",
        Backend::LocalFs { .. } => "local-fs",
        Backend::Segments { .. } => "segments",
    }
}

/// What engines open.
pub fn uri(plan: &Plan) -> String {
    if matches!(plan.shape.backend, Backend::LocalFs { .. } | Backend::Segments { .. }) {
        return files::uri(scheme(plan));
    }
    if let Backend::S3(s3) = plan.shape.backend {
        return format!("{}://{}", scheme(plan), shipped::s3::place(s3.gateways));
    }
    // Redis has numbers for names.
    let name = if matches!(plan.shape.backend, Backend::Redis(_)) { "0" } else { "one" };
    format!("{}://{}/{name}", scheme(plan), server::AUTHORITY)
}

fn config(sim: &Sim) -> String {
    let shape = &sim.plan.shape;
    let near =
        shape.near_ttl_s.map_or(String::new(), |ttl| format!("near = {{ memory_bytes = 1048576, ttl_s = {ttl} }}\n"));
    let verify = if shape.verifies { "xxh3" } else { "auto" };
    let layout1 = if shape.layout1 { "read" } else { "off" };
    let name = shape.backend.name();
    let table = if name == "contract" { scheme(&sim.plan) } else { name };
    let options = shape.backend.options();
    format!(
        "[backend.{table}]\n{options}layout1 = \"{layout1}\"\nverify = \"{verify}\"\n{near}limits = {{ deadline_ms = {}, call_ms = 60000, patience_ms = {}, breaker_failures = {}, breaker_ms = 200, damaged_ms = {} }}\n",
        shape.deadline / MILLISECOND,
        shape.patience / MILLISECOND,
        shape.breaker_failures,
        shape.damaged_ms
    )
}
