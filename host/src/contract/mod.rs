//! What an instance sees of the host: one module for each interface of the contract, and the [`State`] that they share.
//!
//! Invariants: whatever a guest passes is checked here before it is used; items, and payloads that lie in the memory of one,
//! can be read only while their call runs; what a guest holds is bounded by [`Limits`], what a store holds by its [`Shares`], and
//! bytes are taken from those before they are read or received.

pub(crate) mod bindings;
mod changes;
mod convert;
mod cpu;
pub(crate) mod files;
mod http;
mod limiter;
mod memory;
mod missing;
mod net;
mod payload;
mod records;
mod system;
pub(crate) mod wasi;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use wasmtime::component::{Resource, ResourceTable, ResourceTableError};

pub use files::OpenDirectory;
pub use http::RequestOptions;
pub use net::{ConnectOptions, Connection};
pub(crate) use net::{IdleConnections, Lookups, Tls};
pub use records::{RecordOptions, RecordStore};

pub(crate) use convert::{GuestAnswer, answered};
use cpu::Cpu;
use limiter::Limiter;
use memory::Memory;
pub(crate) use missing::Missing;
use net::Held;

use crate::counters::Event;
use crate::engine;
use crate::error::{Error, ErrorKind, contract_violation};
use crate::limits::{self, Limits};
use crate::log::Rate;
use crate::payload::{Buffer, Destination, Filling, Got, Items, Payload};
use crate::sandbox_traits::Reach;
use crate::until::Until;

/// The fact in `more` of how many connections to one server requests over HTTP may take at once: a whole number, 1 at least.
const HTTP_CONNECTIONS: &str = "http-connections";

/// What one store's instances may reach, opened.
pub(crate) struct Access {
    pub reach: Arc<Reach>,
    pub parked: Arc<IdleConnections>,
    /// What the component may log.
    pub log: Rate,
    pub lookups: Lookups,
    /// The secrets that the component has asked for in vain.
    pub missing: Missing,
    /// The granted directories as WASI has them, made when a component first asks.
    pub roots: wasi::Roots,
    pub tls: Tls,
    /// Only the URI and the options are checked: no connection is made.
    pub rehearsal: Option<Rehearsal>,
}

/// Whether a component that is only to check its URI and options went on to connect, which it does when it has found them good.
#[derive(Default)]
pub(crate) struct Rehearsal(AtomicBool);

impl Rehearsal {
    pub(crate) fn went_on(&self) -> bool {
        self.0.load(Relaxed)
    }

    pub(in crate::contract) fn refuse(&self) -> Error {
        self.0.store(true, Relaxed);
        Error::new(ErrorKind::Unavailable, "no connection is made: only the URI and the options are checked")
    }
}

impl Access {
    pub(crate) fn of(reach: Arc<Reach>) -> Self {
        let parked = Arc::new(IdleConnections::new(&reach.limits));
        let idle: Weak<IdleConnections> = Arc::downgrade(&parked);
        reach.shares.budgets.idle.add(&reach.shares.descriptors, idle);
        Access {
            parked,
            log: Rate::of_one(),
            lookups: Lookups::of(&reach.owner),
            missing: Missing::default(),
            roots: wasi::Roots::default(),
            tls: Tls::new(reach.tls.clone()),
            rehearsal: None,
            reach,
        }
    }
}

/// What a guest answered for an item of a batch: a payload, nothing, or why not.
type ItemAnswer = Result<Option<Resource<Payload>>, Error>;

/// The host's side of one instance.
pub(crate) struct State {
    access: Arc<Access>,
    table: ResourceTable,
    limiter: Limiter,
    /// What it has of `memory_bytes`.
    memory: Arc<Memory>,
    born: Instant,
    /// The time of the running call.
    until: Until,
    payload_bytes: u64,
    /// The longest value that the running call may fetch.
    longest: u64,
    /// Connections that the component wants to one server for its requests over HTTP, at most.
    http_connections: u64,
    /// Handles that the guest holds.
    handles: u64,
    /// Handles to each buffer.
    held: HashMap<usize, usize, foldhash::fast::RandomState>,
    /// What the guest addresses by number during the running call.
    items: Items,
    /// What a quota counts of the calls' CPU time.
    cpu: Cpu,
    /// Connections that the guest holds, and how many.
    held_links: Arc<Held>,
    connections: u64,
    /// Made when the guest first uses it.
    wasi: Option<Box<wasi::Wasi>>,
}

impl State {
    /// `instance_bytes`: what the instance costs before it has run.
    pub(crate) fn new(access: Arc<Access>, instance_bytes: u64) -> Result<Self, Error> {
        let memory = Memory::new(access.clone());
        memory.take(usize::try_from(instance_bytes).unwrap_or(usize::MAX)).map_err(|error| {
            error.context("it cannot be instantiated: its functions, globals and tables take too much memory")
        })?;
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits::MAX_HANDLES);
        Ok(State {
            table,
            limiter: Limiter::new(memory.clone()),
            memory,
            until: Until::new(&access.reach.limits),
            cpu: Cpu::new(access.reach.cpu_quota),
            longest: access.reach.limits.max_value_bytes,
            access,
            http_connections: u64::MAX,
            born: Instant::now(),
            payload_bytes: 0,
            handles: 0,
            held: HashMap::default(),
            items: Items::default(),
            held_links: Arc::default(),
            connections: 0,
            wasi: None,
        })
    }

    pub(crate) fn limiter(&mut self) -> &mut dyn wasmtime::ResourceLimiter {
        &mut self.limiter
    }

    /// Begin a call.
    pub(crate) fn start_call(&mut self, until: Until) {
        self.until = until;
        self.longest = self.access.reach.limits.max_value_bytes;
        self.cpu.begin();
        if self.connections > 0 {
            self.held_links.begin();
        }
    }

    /// What the component says of itself in `more` that its own calls are held to.
    pub(crate) fn heed(&mut self, more: &[(String, String)]) {
        let said = more.iter().find(|(fact, _)| fact == HTTP_CONNECTIONS);
        if let Some(most) = said.and_then(|(_, value)| value.parse::<u64>().ok()) {
            self.http_connections = most.max(1);
        }
    }

    /// The running call fetches a manifest.
    pub(crate) fn expect_manifest(&mut self) {
        self.longest = self.access.reach.limits.longest_manifest();
    }

    /// The call is over, and the instance is idle until the next one.
    pub(crate) fn end_call(&mut self) {
        self.charge_cpu();
        if self.connections > 0 {
            self.access.parked.idle(&self.held_links);
        }
        if let Some(wasi) = &mut self.wasi {
            // What goes through sockets of WASI is not looked at.
            if wasi.has_sockets() {
                self.until.sending();
            }
            wasi.forget_closed();
        }
    }

    /// Guest code was found at work at a tick of the clock: a sample of its CPU time. One that waited meanwhile is not. Where a quota bounds
    /// that time it is measured instead, with what the host does for the guest.
    pub(crate) fn ran_for(&mut self, tick: Duration) {
        if self.cpu.measures() {
            self.charge_cpu();
        } else if !engine::has_waited() {
            self.access.reach.counters.add(Event::GuestCpu, u64::try_from(tick.as_millis()).unwrap_or(0));
        }
    }

    /// Count what the call has taken of this thread since it was last counted.
    fn charge_cpu(&mut self) {
        let (microseconds, milliseconds) = self.cpu.take();
        if microseconds > 0 {
            self.access.reach.meters.ran(microseconds);
            self.access.reach.counters.add(Event::GuestCpu, milliseconds);
        }
    }

    /// When guest code of the running call is stopped.
    pub(crate) fn stop_at(&self) -> Instant {
        self.until.stop_at()
    }

    /// Time until the deadline of the call.
    fn remaining(&self) -> Duration {
        self.until.deadline().saturating_duration_since(Instant::now())
    }

    /// The items of the call that is about to begin.
    pub(crate) fn items(&mut self) -> &mut Items {
        &mut self.items
    }

    /// Take room for payload bytes before they are made.
    fn reserve(&self, bytes: u64) -> Result<Reserved, Error> {
        Reserved::take(&self.access, self.payload_bytes, bytes)
    }

    /// A handle for the guest to bytes for which room was taken.
    fn give(&mut self, buffer: Arc<Buffer>, mut reserved: Reserved) -> Result<Resource<Payload>, Error> {
        let (key, len) = (Arc::as_ptr(&buffer).addr(), buffer.len() as u64);
        // Several handles to one buffer count once.
        let bytes = if self.held.contains_key(&key) { 0 } else { len };
        if bytes > reserved.bytes {
            let more = self.reserve(bytes - reserved.bytes)?;
            reserved.bytes += more.keep();
        }
        let handle = self.push(Payload::Owned(buffer), limits::HANDLE_BYTES)?;
        // What is over goes back.
        reserved.bytes -= bytes;
        self.payload_bytes += bytes;
        *self.held.entry(key).or_default() += 1;
        Ok(handle)
    }

    /// A handle that counts for so many bytes of the instance's memory.
    fn push<T: Send + 'static>(&mut self, entry: T, bytes: usize) -> Result<Resource<T>, Error> {
        let full = |most: u64| {
            let message =
                format!("handle limit exceeded: an instance may hold {most}; drop those that are not needed any more");
            Err(Error::new(ErrorKind::Exhausted, message))
        };
        let most = limits::MAX_HANDLES as u64;
        if self.items.puts() {
            let most = most - most / limits::READ_FRACTION;
            if self.handles >= most {
                return full(most);
            }
            self.memory.take_to_put(bytes)?;
        } else {
            self.memory.take(bytes)?;
        }
        let Ok(handle) = self.table.push(entry) else {
            self.memory.give_back(bytes);
            return full(most);
        };
        self.handles += 1;
        Ok(handle)
    }

    /// A handle is gone that counted for so many bytes.
    fn dropped(&mut self, bytes: usize) {
        self.handles = self.handles.saturating_sub(1);
        self.memory.give_back(bytes);
    }

    /// What the guest holds now that its call is over, if that is so much that it must have forgotten to drop it.
    pub(crate) fn left_over(&self) -> Option<String> {
        let Limits { memory_bytes, payload_bytes, .. } = &self.access.reach.limits;
        let handle_bytes = self.handles.saturating_mul(limits::HANDLE_BYTES as u64);
        let much = handle_bytes > memory_bytes / limits::LEFT_OVER_FRACTION
            || self.payload_bytes > payload_bytes / limits::LEFT_OVER_FRACTION;
        much.then(|| format!("{} handles and {} payload bytes", self.handles, self.payload_bytes))
    }

    /// A handle to a payload is gone.
    fn release(&mut self, payload: &Payload) {
        self.dropped(limits::HANDLE_BYTES);
        let Payload::Owned(buffer) = payload else { return };
        if let Entry::Occupied(mut handles) = self.held.entry(Arc::as_ptr(buffer).addr()) {
            *handles.get_mut() -= 1;
            if *handles.get() == 0 {
                handles.remove();
                let bytes = buffer.len() as u64;
                self.payload_bytes = self.payload_bytes.saturating_sub(bytes);
                self.access.reach.shares.payload_bytes.give_back(bytes);
            }
        }
    }

    /// Take back a payload that the guest answered.
    pub(crate) fn take(&mut self, handle: Resource<Payload>) -> Result<Payload, Error> {
        let payload =
            self.table.delete(handle).map_err(|error| contract_violation(format!("answered no payload: {error}")))?;
        self.release(&payload);
        Ok(payload)
    }

    /// Put what the guest answered for each item where the item belongs.
    pub(crate) fn place_answers(
        &mut self,
        answers: impl IntoIterator<Item = ItemAnswer, IntoIter: ExactSizeIterator>,
    ) -> Result<Vec<Result<Option<Got>, Error>>, Error> {
        /// On its way: bytes, or how many lie in the item's memory already.
        enum Arrived {
            Bytes(Arc<Buffer>),
            Placed(usize),
        }
        // Before anything is written: bytes that lie in the memory of another item than the one that they answer.
        let answers = answers.into_iter();
        let mut arrived = Vec::with_capacity(answers.len());
        for (at, answer) in answers.enumerate() {
            let found = match answer {
                Ok(Some(handle)) => self.take(handle)?,
                Ok(None) => {
                    arrived.push(Ok(None));
                    continue;
                }
                Err(error) => {
                    arrived.push(Err(error));
                    continue;
                }
            };
            let placed = match &found {
                Payload::Placed(placed) => placed.in_call(&self.items),
                Payload::Owned(_) => None,
            };
            arrived.push(match (found, placed) {
                (Payload::Owned(buffer), _) => Ok(Some(Arrived::Bytes(buffer))),
                (_, Some((item, len))) if item as usize == at => Ok(Some(Arrived::Placed(len))),
                (found, _) => match self.items.bytes_of(&found) {
                    Ok(bytes) => Buffer::concat(&bytes.pieces().collect::<Vec<_>>())
                        .map(|buffer| Some(Arrived::Bytes(Arc::new(buffer)))),
                    Err(_) => return Err(contract_violation("answered a payload of a call that is over")),
                },
            });
        }
        let mut land = |(at, arrived): (usize, Result<Option<Arrived>, Error>)| match arrived? {
            None => Ok(None),
            Some(Arrived::Placed(len)) => Ok(Some(Got::Placed(len))),
            Some(Arrived::Bytes(buffer)) => self.items.place_buffer(at as u32, buffer).map(Some),
        };
        Ok(arrived.into_iter().enumerate().map(&mut land).collect())
    }

    /// Take back a payload that the guest answered to a call without items.
    pub(crate) fn take_buffer(&mut self, handle: Resource<Payload>) -> Result<Arc<Buffer>, Error> {
        match self.take(handle)? {
            Payload::Owned(buffer) => Ok(buffer),
            Payload::Placed(_) => Err(contract_violation("answered a payload of a call that is over")),
        }
    }

    /// Memory for so many bytes that the guest receives or reads: that of the item that they answer, if it is there and free,
    /// or else of the host's own, for which room is taken before the first byte comes: several that receive at once have no
    /// more together than is there. `on_way`: the bytes for which the same call has taken room, and not handed on yet.
    fn incoming(&mut self, len: u64, item: Option<u32>, on_way: &mut u64) -> Result<Incoming, Error> {
        if let Some(placing) = item.and_then(|item| self.items.claim(item, len)) {
            return Ok(Incoming { destination: Destination::Item(placing), room: None });
        }
        if len > self.longest {
            let most = self.longest;
            let message = format!(
                "value too long: {len} bytes are announced, and the config allows {most} (max_value_bytes, max_manifest_bytes)"
            );
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        let room = Some(Reserved::take(&self.access, self.payload_bytes.saturating_add(*on_way), len)?);
        *on_way += len;
        Filling::new(len).map(|filling| Incoming { destination: Destination::Buffer(filling), room })
    }

    /// A handle to what was received or read. `received`: whether that went well.
    fn settle(&mut self, incoming: Incoming, received: Result<(), Error>) -> Result<Resource<Payload>, Error> {
        match incoming.destination {
            Destination::Buffer(filling) => {
                received?;
                let room = incoming.room.map_or_else(|| self.reserve(0), Ok)?;
                self.give(Arc::new(filling.finish()?), room)
            }
            Destination::Item(placing) => {
                let placed = self.items.settle(placing);
                received?;
                self.push(Payload::Placed(placed?), limits::HANDLE_BYTES)
            }
        }
    }

    fn drop_payload(&mut self, handle: Resource<Payload>) -> Result<(), ResourceTableError> {
        let payload = self.table.delete(handle)?;
        self.release(&payload);
        if let Payload::Placed(placed) = &payload {
            self.items.release(placed);
        }
        Ok(())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.access.reach.shares.payload_bytes.give_back(self.payload_bytes);
    }
}

/// Bytes that are received or read, and the room that was taken for them.
struct Incoming {
    destination: Destination,
    room: Option<Reserved>,
}

/// Payload bytes that are on their way: taken, and given back if they do not come.
struct Reserved {
    access: Arc<Access>,
    bytes: u64,
}

impl Reserved {
    /// Take room for bytes of an instance that holds so many.
    fn take(access: &Arc<Access>, held: u64, bytes: u64) -> Result<Self, Error> {
        let limit = access.reach.limits.payload_bytes;
        if bytes > limit.saturating_sub(held) {
            let message = format!("payload limit exceeded: {held} held + {bytes} requested > payload_bytes = {limit}");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        access.reach.shares.payload_bytes.take(bytes)?;
        Ok(Reserved { access: access.clone(), bytes })
    }

    /// Both at once.
    fn add(&mut self, more: Self) {
        self.bytes += more.keep();
    }

    /// So many bytes, which somebody else gives back.
    fn keep(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.access.reach.shares.payload_bytes.give_back(self.bytes);
    }
}

#[cfg(test)]
mod item_tests;
#[cfg(test)]
mod record_tests;
#[cfg(test)]
mod tests;
