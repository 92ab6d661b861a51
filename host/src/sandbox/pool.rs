//! The instances of one store. Each serves one call at a time, on the caller's thread; a caller takes an idle one, makes
//! one if there is room, or waits. No lock is held while a guest runs.
//!
//! A trap, a missed deadline or an answer that breaks the contract ends the instance, and the caller gets an error; the next call gets another one.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::Instant;

use kv_platform::sync::{Condvar, Mutex, MutexGuard};
use wasmtime::component::ResourceTableError;
use wasmtime::{Store, Trap, UpdateDeadline};

use crate::budget::Idle;
use crate::contract::bindings::exports::kv_store::backend::store::Guest;
use crate::contract::bindings::kv_store::backend::store_types::{Features, Properties};
use crate::contract::bindings::{Backend, maintained};
use crate::contract::{Access, State};
use crate::counters::Event;
use crate::engine::{self, Runtime};
use crate::error::{Error, ErrorKind, contract_violation};
use crate::loader::Loaded;
use crate::log::{self, Level};
use crate::signals::{files_are_bounded, keeping_signal_stack, without_signal};
use crate::suggest::suggestion;
use crate::until::Until;
use crate::{limits, sandbox_traits};

/// What an instance is made of and how many there may be.
pub(crate) struct Pool {
    runtime: &'static Runtime,
    component: Arc<Loaded>,
    access: Arc<Access>,
    uri: String,
    options: Vec<(String, String)>,
    max_instances: usize,
    /// The one instance is the store.
    holds_data: bool,
    /// What the first instance answered.
    promised: Option<Promised>,
    /// The component may write files through WASI, and the process has a bound on their length (RLIMIT_FSIZE): a write past
    /// it would raise SIGXFSZ. The contract's own writes keep it away by themselves.
    wasi_writes_bounded: bool,
    slots: Mutex<Slots>,
    freed: Condvar,
    /// Instances that ended in a trap, an answer that breaks the contract or a panic, or were retired.
    lost: AtomicU64,
    /// An instance beside those that serve consumers, for maintenance.
    apart: Mutex<Option<Instance>>,
}

#[derive(Default)]
struct Slots {
    idle: Vec<Instance>,
    /// Idle, at work, or being made.
    live: usize,
    /// Callers that wait for one.
    waiting: u64,
}

struct Instance {
    store: Store<State>,
    backend: Backend,
    maintenance: Option<maintained::Guest>,
}

/// A running call's view of its instance.
pub(crate) struct Call<'a> {
    pub store: &'a mut Store<State>,
    pub guest: &'a Guest,
}

/// The same of a call that lists or cleans.
pub(crate) struct Upkeep<'a> {
    pub store: &'a mut Store<State>,
    pub guest: &'a maintained::Guest,
}

/// What a guest's call comes to: a trap, or the guest's own answer.
pub(crate) type Outcome<T> = wasmtime::Result<Result<T, Error>>;

impl Pool {
    /// Make the first instance, which opens the store, and learn what the backend says of itself.
    pub(crate) fn open(
        component: Arc<Loaded>,
        access: Arc<Access>,
        uri: String,
        options: Vec<(String, String)>,
        until: &Until,
    ) -> Result<(Self, Features), Error> {
        let mut pool = Pool {
            runtime: engine::runtime()?,
            max_instances: access.reach.limits.max_instances(),
            holds_data: false,
            promised: None,
            wasi_writes_bounded: component.uses_wasi_files && access.reach.may_write_files() && files_are_bounded(),
            component,
            access,
            uri,
            options,
            slots: Mutex::default(),
            freed: Condvar::new(),
            lost: AtomicU64::new(0),
            apart: Mutex::default(),
        };
        let (first, features) = pool.instantiate(until)?;
        // What is in an instance is in no other.
        pool.holds_data = features.properties.contains(Properties::HOLDS_DATA);
        let wanted = match pool.holds_data {
            true => Some(1),
            false => features.max_instances,
        };
        if let Some(wanted) = wanted {
            pool.max_instances = pool.max_instances.min(wanted.max(1) as usize);
        }
        pool.promised = Some(promised(&features));
        *pool.slots() = Slots { idle: vec![first], live: 1, waiting: 0 };
        Ok((pool, features))
    }

    /// How many instances there may be at once.
    pub(crate) fn max_instances(&self) -> usize {
        self.max_instances
    }

    /// How many instances have been lost so far, with what they held.
    pub(crate) fn instances_lost(&self) -> u64 {
        self.lost.load(Acquire)
    }

    /// Whether the component can list what it stores, and clean it.
    pub(crate) fn is_maintained(&self) -> bool {
        self.component.maintenance.is_some()
    }

    /// Run one call of the component's `maintenance`: in an instance of its own, so that no consumer waits for it, unless one
    /// instance has to serve all.
    pub(crate) fn maintain<T>(
        &self,
        until: &Until,
        call: impl AsyncFnOnce(&mut Upkeep<'_>) -> Outcome<T>,
    ) -> Result<T, Error> {
        if self.holds_data {
            let mut slot = self.acquire(until)?;
            let instance = match slot.instance.take() {
                Some(idle) => idle,
                None => self.instantiate(until)?.0,
            };
            let (instance, outcome) = self.maintain_in(instance, until, call);
            slot.instance = instance;
            return outcome;
        }
        let kept = self.apart().take();
        let instance = match kept {
            Some(idle) => idle,
            None => self.instantiate(until)?.0,
        };
        let (instance, outcome) = self.maintain_in(instance, until, call);
        *self.apart() = instance;
        outcome
    }

    fn maintain_in<T>(
        &self,
        mut instance: Instance,
        until: &Until,
        call: impl AsyncFnOnce(&mut Upkeep<'_>) -> Outcome<T>,
    ) -> (Option<Instance>, Result<T, Error>) {
        let Instance { store, maintenance, .. } = &mut instance;
        let Some(guest) = maintenance else {
            let message =
                "the component does not export kv-store:backend/maintenance: it can be neither listed nor cleaned";
            return (Some(instance), Err(Error::new(ErrorKind::Unsupported, message)));
        };
        self.access.reach.counters.count(Event::GuestCalls);
        match self.drive(store, until, async |store| call(&mut Upkeep { store, guest }).await) {
            Ok(Err(error)) if error.kind() == ErrorKind::Component => {
                self.access.reach.counters.count(Event::ContractViolations);
                (None, Err(error))
            }
            Ok(answer) => (Some(instance), answer),
            Err(trap) => (None, Err(self.explain(trap, until))),
        }
    }

    fn apart(&self) -> MutexGuard<'_, Option<Instance>> {
        self.apart.lock()
    }

    /// Run one call of the guest, within the time of the consumer's call.
    pub(crate) fn call<T>(
        &self,
        until: &Until,
        call: impl AsyncFnOnce(&mut Call<'_>) -> Outcome<T>,
    ) -> Result<T, Error> {
        // Given back, as gone, if anything on the way fails or panics.
        let mut slot = self.acquire(until)?;
        let mut instance = match slot.instance.take() {
            Some(idle) => idle,
            None => self.instantiate(until)?.0,
        };
        let Instance { store, backend, .. } = &mut instance;
        let guest = backend.kv_store_backend_store();
        self.access.reach.counters.count(Event::GuestCalls);
        let outcome = self.drive(store, until, async |store| call(&mut Call { store, guest }).await);
        store.data_mut().items().end();
        match outcome {
            Ok(answer) => {
                let lied = matches!(&answer, Err(error) if error.kind() == ErrorKind::Component);
                if lied {
                    self.access.reach.counters.count(Event::ContractViolations);
                }
                if !lied && !self.is_to_be_replaced(&instance) {
                    slot.instance = Some(instance);
                }
                answer
            }
            Err(trap) => Err(self.explain(trap, until)),
        }
    }

    /// Whether an instance holds so much between calls that it would soon fail them. One that is the store keeps what it has.
    fn is_to_be_replaced(&self, instance: &Instance) -> bool {
        let Some(held) = instance.store.data().left_over().filter(|_| !self.holds_data) else { return false };
        let text = format!(
            "{}: an instance was replaced that held {held} after a call: it does not drop what it is lent",
            self.uri
        );
        log::component_line(Level::Warn, &self.access.reach.name, &text, &self.access.log);
        true
    }

    /// End an idle instance, if there is one.
    pub(crate) fn retire_idle(&self) {
        let retired = self.slots().idle.pop();
        if retired.is_some() {
            drop(Slot { pool: self, instance: None });
        }
    }

    /// Close the connections that no call uses, so that what comes next goes over others.
    pub(crate) fn close_idle_connections(&self) {
        self.access.parked.close();
    }

    /// Run guest code on this thread, within a deadline.
    fn drive<T>(
        &self,
        store: &mut Store<State>,
        until: &Until,
        work: impl AsyncFnOnce(&mut Store<State>) -> wasmtime::Result<T>,
    ) -> wasmtime::Result<T> {
        let _ticking = self.runtime.ticker.tick();
        store.data_mut().start_call(until.clone());
        store.set_epoch_deadline(1);
        // Guest code is stopped by epochs, at the same time; that `block_on` ends then is for a host function that waits.
        let run = || keeping_signal_stack(|| self.runtime.driver.block_on(|| until.stop_at(), work(store)));
        let outcome = if self.wasi_writes_bounded { without_signal(libc::SIGXFSZ, run) } else { run() };
        store.data_mut().end_call();
        outcome.unwrap_or_else(|| Err(DeadlineMissed.into()))
    }

    fn instantiate(&self, until: &Until) -> Result<(Instance, Features), Error> {
        let state = State::new(self.access.clone(), self.component.instance_bytes)?;
        self.access.reach.counters.count(Event::Instances);
        let mut store = Store::new(&self.runtime.engine, state);
        store.limiter(State::limiter);
        // wasmtime's own bound traps; ours, which is reached first, is an error that the guest can answer.
        let counted = usize::try_from(self.access.reach.limits.memory_bytes).unwrap_or(usize::MAX) / limits::SLOT_BYTES;
        store.set_max_component_handles(limits::MAX_HANDLES.min(counted) + limits::MAX_BATCH_ITEMS);
        store.set_hostcall_fuel(limits::HOSTCALL_BYTES);
        store.epoch_deadline_callback(|mut context| {
            context.data_mut().ran_for(limits::EPOCH_TICK);
            match Instant::now() < context.data().stop_at() {
                true => Ok(UpdateDeadline::Continue(1)),
                false => Err(DeadlineMissed.into()),
            }
        });
        let opened = self.drive(&mut store, until, async |store| {
            let Loaded { pre, backend, maintenance, .. } = &*self.component;
            let instance = pre.instantiate_async(&mut *store).await?;
            let backend = backend.load(&mut *store, &instance)?;
            let maintenance = maintenance.as_ref().map(|guest| guest.load(&mut *store, &instance)).transpose()?;
            let features = backend.kv_store_backend_store().call_open(store, &self.uri, &self.options).await?;
            Ok((backend, maintenance, features))
        });
        let (backend, maintenance, features) = opened.map_err(|trap| self.explain(trap, until))?;
        let features = features.map_err(Error::from).map_err(|error| {
            let meant = suggestion(&error.to_string());
            let error = if meant.is_empty() { error } else { error.with_note(&meant) };
            self.access.missing.explain(error, &self.access.reach.grants)
        })?;
        store.data_mut().heed(&features.more);
        if self.promised.is_some_and(|first| first != promised(&features)) {
            self.access.reach.counters.count(Event::ContractViolations);
            return Err(contract_violation("answered other features than the first instance of this URI"));
        }
        Ok((Instance { store, backend, maintenance }, features))
    }

    fn acquire(&self, until: &Until) -> Result<Slot<'_>, Error> {
        let mut slots = self.slots();
        loop {
            if let Some(instance) = slots.idle.pop() {
                return Ok(Slot { pool: self, instance: Some(instance) });
            }
            if slots.live < self.max_instances {
                slots.live += 1;
                return Ok(Slot { pool: self, instance: None });
            }
            let busy = |message: String| {
                self.access.reach.counters.count(Event::Busy);
                Err(Error::busy(message))
            };
            let (most, instances) = (self.access.reach.limits.waiting, self.max_instances);
            if slots.waiting >= most {
                return busy(format!(
                    "busy: all {instances} instances are in use, and {most} callers wait already: make fewer calls at once, or \
                     raise limits.waiting (or limits.instances, if the backend allows more)"
                ));
            }
            let left = until.deadline().saturating_duration_since(Instant::now());
            if left.is_zero() {
                return busy(format!(
                    "busy: all {instances} instances were in use until the deadline: make fewer calls at once, or raise \
                     limits.deadline_ms (or limits.instances, if the backend allows more)"
                ));
            }
            slots.waiting += 1;
            slots = self.freed.wait_timeout(slots, left);
            slots.waiting -= 1;
        }
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock()
    }

    /// Why a call ended without an answer, for an operator.
    fn explain(&self, trap: wasmtime::Error, until: &Until) -> Error {
        log::line(Level::Debug, format_args!("{}: {trap:?}", self.access.reach.name));
        if trap.downcast_ref::<DeadlineMissed>().is_some() {
            self.access.reach.counters.count(Event::Timeouts);
            let late = Instant::now().saturating_duration_since(until.deadline());
            let (late, ended_by) = (late.as_millis(), until.ended_by());
            let message = format!("did not answer by its deadline and was stopped {late} ms after it ({ended_by})");
            return Error::new(ErrorKind::Unavailable, message);
        }
        self.access.reach.counters.count(Event::Traps);
        let why = match (trap.downcast_ref::<Trap>(), trap.downcast_ref::<ResourceTableError>()) {
            (Some(trap), _) => trap.to_string(),
            (_, Some(ResourceTableError::Full)) => "it holds more handles than a component may".to_owned(),
            _ => trap.root_cause().to_string(),
        };
        Error::new(ErrorKind::Component, format!("trapped: {why}"))
    }
}

/// What the host counts on: of all features those that it uses, but for the label.
type Promised = (Properties, [Option<u64>; 4]);

fn promised(features: &Features) -> Promised {
    let Features { properties, max_instances, batch_items, batch_bytes, max_value_bytes, .. } = features;
    (*properties, [max_instances.map(u64::from), batch_items.map(u64::from), *batch_bytes, *max_value_bytes])
}

/// An instance's place in its pool. Dropped with an instance it gives it back; without one, the place is free.
struct Slot<'a> {
    pool: &'a Pool,
    instance: Option<Instance>,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let instance = self.instance.take();
        let mut slots = self.pool.slots();
        match instance {
            Some(instance) => slots.idle.push(instance),
            None => {
                slots.live -= 1;
                self.pool.lost.fetch_add(1, Release);
            }
        }
        let waited_for = slots.waiting > 0;
        drop(slots);
        // A system call, whether anybody waits or not.
        if waited_for {
            self.pool.freed.notify_one();
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the deadline has passed")]
struct DeadlineMissed;

impl From<Features> for sandbox_traits::Features {
    fn from(features: Features) -> Self {
        let Features { label, properties, max_instances, batch_items, batch_bytes, max_value_bytes, more } = features;
        let properties = sandbox_traits::Properties {
            durable: properties.contains(Properties::DURABLE),
            shared: properties.contains(Properties::SHARED),
            cheap_repeat: properties.contains(Properties::CHEAP_REPEAT),
            write_through: properties.contains(Properties::WRITE_THROUGH),
            holds_data: properties.contains(Properties::HOLDS_DATA),
            wants_fresh: properties.contains(Properties::WANTS_FRESH),
            evicts: properties.contains(Properties::EVICTS),
            settles: properties.contains(Properties::SETTLES),
        };
        sandbox_traits::Features { label, properties, max_instances, batch_items, batch_bytes, max_value_bytes, more }
    }
}
