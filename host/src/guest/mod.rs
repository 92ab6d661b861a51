//! What an instance sees of the host: one module for each interface of the contract, and the [`State`] that they share.
//!
//! Invariants: whatever a guest passes is checked here before it is used; a lent payload is readable only while the call
//! that lent it runs; what a guest holds is bounded by [`Limits`], what a store holds by its [`Shares`], and bytes are taken
//! from those before they are read or received.

mod convert;
mod files;
mod limiter;
mod net;
mod payload;
mod system;
pub(crate) mod wasi;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use wasmtime::component::{Resource, ResourceTable, ResourceTableError};

pub use files::OpenDirectory;
pub use net::Connection;
pub(crate) use net::{Lookups, Parked, Tls};

pub(crate) use convert::answered;
use limiter::Limiter;
use net::Held;

use crate::budget::Shares;
use crate::counters::Counters;
use crate::directory::Directory;
use crate::error::{Error, ErrorKind};
use crate::fault::Faults;
use crate::limits::{self, Limits};
use crate::log::Rate;
use crate::payload::{Buffer, Payload};
use crate::policy::Grants;

/// What one store's instances may reach, opened.
pub(crate) struct Access {
    /// The scheme, for messages.
    pub name: String,
    pub grants: Grants,
    pub limits: Limits,
    /// The one that the URI names.
    pub directory: Option<Arc<Directory>>,
    /// Those that the config grants, by name.
    pub folders: BTreeMap<String, Arc<Directory>>,
    pub parked: Arc<Parked>,
    /// What the component may log.
    pub log: Rate,
    pub shares: Shares,
    pub lookups: Lookups,
    /// The granted directories as WASI has them, made when a component first asks.
    pub roots: wasi::Roots,
    pub counters: &'static Counters,
    pub tls: Tls,
    /// What goes wrong on purpose.
    pub faults: Option<Faults>,
}

impl Access {
    /// Whether there is a directory that the component may change.
    pub(crate) fn may_write_files(&self) -> bool {
        self.directory.iter().chain(self.folders.values()).any(|directory| !directory.is_read_only())
    }
}

/// The host's side of one instance.
pub(crate) struct State {
    access: Arc<Access>,
    table: ResourceTable,
    limiter: Limiter,
    born: Instant,
    /// When waits end with `unavailable`.
    deadline: Instant,
    payload_bytes: u64,
    /// Handles to each buffer.
    held: HashMap<usize, usize>,
    /// The numbers of the payloads lent for the running call.
    lent: Vec<u32>,
    /// Ended payloads that the guest has not dropped.
    leaked: usize,
    /// Connections that the guest holds, and how many.
    held_links: Arc<Held>,
    connections: u64,
    /// Made when the guest first uses it.
    wasi: Option<Box<wasi::Wasi>>,
}

impl State {
    /// `instance_bytes`: what the instance costs before it has run.
    pub(crate) fn new(access: Arc<Access>, instance_bytes: u64) -> Result<Self, Error> {
        let mut limiter = Limiter::new(access.clone());
        limiter.take(usize::try_from(instance_bytes).unwrap_or(usize::MAX)).map_err(|error| {
            error.context("it cannot be instantiated: its functions, globals and tables take too much memory")
        })?;
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits::MAX_HANDLES);
        Ok(State {
            table,
            limiter,
            access,
            born: Instant::now(),
            deadline: Instant::now(),
            payload_bytes: 0,
            held: HashMap::new(),
            lent: Vec::new(),
            leaked: 0,
            held_links: Arc::default(),
            connections: 0,
            wasi: None,
        })
    }

    pub(crate) fn limiter(&mut self) -> &mut dyn wasmtime::ResourceLimiter {
        &mut self.limiter
    }

    /// Begin a call whose waits end at `deadline`; answers when its guest code is stopped.
    pub(crate) fn start_call(&mut self, deadline: Instant) -> Instant {
        self.deadline = deadline;
        if self.connections > 0 {
            self.held_links.begin();
        }
        self.stop_at()
    }

    /// The call is over, and the instance is idle until the next one.
    pub(crate) fn end_call(&mut self) {
        if self.connections > 0 {
            self.access.parked.idle(&self.held_links);
        }
        if let Some(wasi) = &mut self.wasi {
            wasi.forget_closed();
        }
    }

    /// When guest code of the running call is stopped.
    pub(crate) fn stop_at(&self) -> Instant {
        self.deadline + limits::DEADLINE_GRACE
    }

    /// Time until the deadline of the call.
    fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Whether the guest keeps handles that it was told to drop.
    pub(crate) fn leaks(&self) -> bool {
        self.leaked > limits::MAX_LEAKED_HANDLES
    }

    /// Take room for payload bytes before they are made.
    fn reserve(&self, bytes: u64) -> Result<Reserved, Error> {
        let (held, limit) = (self.payload_bytes, self.access.limits.payload_bytes);
        if bytes > limit.saturating_sub(held) {
            let message = format!("{bytes} bytes more than the {held} held are over the limit payload_bytes = {limit}");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        self.access.shares.payload_bytes.take(bytes)?;
        Ok(Reserved { access: self.access.clone(), bytes })
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
        self.limiter.take(bytes)?;
        self.table.push(entry).map_err(|_| {
            self.limiter.give_back(bytes);
            let message = format!("a component may hold {} handles", limits::MAX_HANDLES);
            Error::new(ErrorKind::Exhausted, message)
        })
    }

    /// A handle to a payload is gone.
    fn release(&mut self, payload: &Payload) {
        let Payload::Owned(buffer) = payload else { return };
        self.limiter.give_back(limits::HANDLE_BYTES);
        if let Entry::Occupied(mut handles) = self.held.entry(Arc::as_ptr(buffer).addr()) {
            *handles.get_mut() -= 1;
            if *handles.get() == 0 {
                handles.remove();
                let bytes = buffer.len() as u64;
                self.payload_bytes = self.payload_bytes.saturating_sub(bytes);
                self.access.shares.payload_bytes.give_back(bytes);
            }
        }
    }

    /// Take back a payload that the guest answered.
    pub(crate) fn take(&mut self, handle: Resource<Payload>) -> Result<Arc<Buffer>, Error> {
        let payload = self.table.delete(handle).map_err(|error| lie(format!("answered no payload: {error}")))?;
        self.release(&payload);
        match payload {
            Payload::Owned(buffer) => Ok(buffer),
            Payload::Lent(_) | Payload::Ended => Err(lie("answered a payload that was only lent to it")),
        }
    }

    /// A handle for the guest to memory that it may use during the coming call only.
    pub(crate) fn lend(&mut self, payload: Payload) -> Result<Resource<Payload>, Error> {
        // Bounded by the items of a batch, and by the leaks that an instance outlives.
        let handle = self.table.push(payload).map_err(|_| {
            let message = format!("a component may hold {} handles", limits::MAX_HANDLES);
            Error::new(ErrorKind::Exhausted, message)
        })?;
        self.lent.push(handle.rep());
        Ok(handle)
    }

    /// End the payloads that were lent for the call that is over.
    pub(crate) fn end_lent(&mut self) {
        for number in self.lent.drain(..) {
            // The guest may have dropped it, and the number may stand for something of its own by now.
            if let Ok(payload @ Payload::Lent(_)) = self.table.get_mut(&Resource::<Payload>::new_borrow(number)) {
                *payload = Payload::Ended;
                self.leaked += 1;
            }
        }
    }

    fn drop_payload(&mut self, handle: Resource<Payload>) -> Result<(), ResourceTableError> {
        let payload = self.table.delete(handle)?;
        self.release(&payload);
        if matches!(payload, Payload::Ended) {
            self.leaked = self.leaked.saturating_sub(1);
        }
        Ok(())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.access.shares.payload_bytes.give_back(self.payload_bytes);
    }
}

/// Payload bytes that are on their way: taken, and given back if they do not come.
struct Reserved {
    access: Arc<Access>,
    bytes: u64,
}

impl Reserved {
    /// So many bytes, which somebody else gives back.
    fn keep(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.access.shares.payload_bytes.give_back(self.bytes);
    }
}

/// The component broke the contract.
pub(crate) fn lie(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Component, format!("broke the contract: it {what}"))
}

#[cfg(test)]
mod tests;
