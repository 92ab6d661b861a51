//! What an instance sees of the host: one module for each interface of the contract, and the [`State`] that they share.
//!
//! Invariants: whatever a guest passes is checked here before it is used; a lent payload is readable only while the call
//! that lent it runs; what a guest holds is bounded by [`Limits`], and what all of them hold by [`Budgets`].

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
pub(crate) use net::{Parked, Tls};

pub(crate) use convert::answered;
use limiter::Limiter;

use crate::budget::Budgets;
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
    pub budgets: &'static Budgets,
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
    /// Connections that the guest holds.
    connections: u64,
    /// Made when the guest first uses it.
    wasi: Option<Box<wasi::Wasi>>,
}

impl State {
    pub(crate) fn new(access: Arc<Access>) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(limits::MAX_HANDLES);
        State {
            table,
            limiter: Limiter::new(usize::try_from(access.limits.memory_bytes).unwrap_or(usize::MAX)),
            access,
            born: Instant::now(),
            deadline: Instant::now(),
            payload_bytes: 0,
            held: HashMap::new(),
            lent: Vec::new(),
            leaked: 0,
            connections: 0,
            wasi: None,
        }
    }

    pub(crate) fn limiter(&mut self) -> &mut dyn wasmtime::ResourceLimiter {
        &mut self.limiter
    }

    /// Begin a call whose waits end at `deadline`; answers when its guest code is stopped.
    pub(crate) fn start_call(&mut self, deadline: Instant) -> Instant {
        self.deadline = deadline;
        self.stop_at()
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

    /// Refuse, before they are made, payload bytes that the guest has no room for.
    fn check_room(&self, bytes: u64) -> Result<(), Error> {
        let (held, limit) = (self.payload_bytes, self.access.limits.payload_bytes);
        if bytes > limit.saturating_sub(held) {
            let message = format!("{bytes} bytes more than the {held} held are over the limit payload_bytes = {limit}");
            return Err(Error::new(ErrorKind::Exhausted, message));
        }
        let process = &self.access.budgets.payload_bytes;
        if bytes > process.limit().saturating_sub(process.used()) {
            return Err(process_is_full(bytes));
        }
        Ok(())
    }

    /// A handle for the guest to a payload of the host. Counts what the guest then holds.
    fn give(&mut self, payload: Payload) -> Result<Resource<Payload>, Error> {
        let owned = owned(&payload);
        // Several handles to one buffer count once.
        let bytes = owned.filter(|(buffer, _)| !self.held.contains_key(buffer)).map_or(0, |(_, bytes)| bytes);
        self.check_room(bytes)?;
        if !self.access.budgets.payload_bytes.take(bytes) {
            return Err(process_is_full(bytes));
        }
        let handle = self.table.push(payload).map_err(|_| {
            self.access.budgets.payload_bytes.give_back(bytes);
            let message = format!("a component may hold {} handles", limits::MAX_HANDLES);
            Error::new(ErrorKind::Exhausted, message)
        })?;
        self.payload_bytes += bytes;
        if let Some((buffer, _)) = owned {
            *self.held.entry(buffer).or_default() += 1;
        }
        Ok(handle)
    }

    /// A handle to a payload is gone.
    fn release(&mut self, payload: &Payload) {
        let Some((buffer, bytes)) = owned(payload) else { return };
        if let Entry::Occupied(mut handles) = self.held.entry(buffer) {
            *handles.get_mut() -= 1;
            if *handles.get() == 0 {
                handles.remove();
                self.payload_bytes = self.payload_bytes.saturating_sub(bytes);
                self.access.budgets.payload_bytes.give_back(bytes);
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
        let handle = self.give(payload)?;
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
        self.access.budgets.payload_bytes.give_back(self.payload_bytes);
    }
}

fn process_is_full(bytes: u64) -> Error {
    let limit = limits::PROCESS_PAYLOAD_BYTES;
    let message = format!("{bytes} bytes more are over what all stores of the process may hold as payloads ({limit})");
    Error::new(ErrorKind::Exhausted, message)
}

/// What tells an owned buffer from others while there is a handle to it, and its length.
fn owned(payload: &Payload) -> Option<(usize, u64)> {
    match payload {
        Payload::Owned(buffer) => Some((Arc::as_ptr(buffer).addr(), buffer.len() as u64)),
        Payload::Lent(_) | Payload::Ended => None,
    }
}

/// The component broke the contract.
pub(crate) fn lie(what: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Component, format!("broke the contract: it {what}"))
}

#[cfg(test)]
mod tests;
