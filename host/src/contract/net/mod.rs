//! The contract's `net` interface: connections that the host makes, to the servers that the operator granted.
//!
//! Names are checked before they are resolved, addresses after. Every wait ends when no byte has moved for the patience of that wait,
//! or at the deadline of the call. A connection that failed, or that a cancelled call left at an unknown place, serves nobody again.
//! One that is idle for `idle_ms` is closed, whether it is parked or the guest of an idle instance holds it.

mod connect;
mod idle;
mod link;
mod resolve;
mod side_by_side;
mod socket;
mod tls;

use std::time::Duration;

use wasmtime::component::Resource;

use super::GuestAnswer;
use super::payload::{passed_bytes, slices};
use super::{State, answered};
use crate::contract::bindings::kv_store::backend::net::{
    ConnectRequest, Host, HostConnectOptions, HostConnection, Message,
};
use crate::contract::bindings::kv_store::backend::payloads::Part;
use crate::contract::bindings::kv_store::backend::types;
use crate::engine::before_it_is;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::Payload;
use crate::until::Until;
pub use connect::ConnectOptions;
pub(super) use connect::{OPTIONS_BYTES, Wanted};
pub(crate) use idle::{Held, IdleConnections};
pub(super) use link::{Link, OpenLink};
pub(crate) use resolve::Lookups;
pub(super) use side_by_side::all;
pub(crate) use tls::Tls;

/// What a guest's handle to a connection stands for.
pub struct Connection {
    /// Its link among those that the instance holds.
    number: u64,
    place: Place,
    resumed: bool,
    /// What the guest asked for.
    patience: Option<Duration>,
}

/// Where a connection leads, and what was said on it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    authority: String,
    tls: bool,
    /// Where it is another than that of the authority.
    server_name: Option<String>,
    session: Option<String>,
    /// Requests over HTTP are made on it, and no guest has it.
    http: bool,
}

impl Place {
    /// The server, as `host:port`.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }
}

/// What a connection counts for in `memory_bytes`: its handle, and what is received before it is asked for.
pub(super) const CONNECTION_BYTES: usize = limits::HANDLE_BYTES + 2 * limits::RECEIVE_BUFFER_BYTES;

/// Wait for something of the network, no longer than to the end of the call, which moves while bytes arrive.
pub(super) async fn in_call<T>(until: &Until, what: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let outcome = before_it_is(|| until.deadline(), what).await.unwrap_or_else(|| Err(late(until)));
    outcome.inspect_err(|error| note_if_late(until, error))
}

/// Have the call know of a wait that ran out.
pub(super) fn note_if_late(until: &Until, error: &Error) {
    if let Some(patience) = error.waited() {
        until.note_timeout(patience);
    }
}

/// Have the call know that a server does not answer, if that is what failed.
pub(super) fn note_if_unreachable(until: &Until, place: &Place, error: &Error) {
    if error.kind() == ErrorKind::Unavailable {
        until.met(&place.authority, false);
    }
}

fn late(until: &Until) -> Error {
    let message = match until.ends_by_patience() {
        true => {
            "a server was waited for in vain before, and what was left of the call has had as much time again (patience_ms)"
        }
        false => {
            return Error::new(
                ErrorKind::Unavailable,
                format!("the server did not answer by the deadline ({})", until.ended_by()),
            );
        }
    };
    Error::new(ErrorKind::Unavailable, message)
}

impl State {
    /// Take the link of a connection, for as long as it is at work. If the call ends meanwhile, it is gone.
    fn take_link(&self, handle: &Resource<Connection>) -> wasmtime::Result<Result<Link, Error>> {
        let failed = || {
            let message = "this connection has failed, or was idle for too long; drop it and connect again";
            Error::new(ErrorKind::Unavailable, message)
        };
        let connection = self.table.get(handle)?;
        let mut taken = self.held_links.take(connection.number).ok_or_else(failed);
        if let Ok(link) = &mut taken {
            link.begin(Some(self.patience(connection)));
        }
        Ok(taken)
    }

    /// How long a wait of this connection may last.
    fn patience(&self, connection: &Connection) -> Duration {
        self.access.patience(connection.patience, &self.until)
    }

    /// Give it back, unless it failed: whatever fails, but for want of room, leaves it at an unknown place.
    fn give_back<T>(&mut self, handle: &Resource<Connection>, link: Link, outcome: Result<T, Error>) -> GuestAnswer<T> {
        self.put_back(self.table.get(handle)?, link, &outcome);
        answered(outcome)
    }

    fn put_back<T>(&self, connection: &Connection, link: Link, outcome: &Result<T, Error>) {
        match outcome {
            Err(error) if error.kind() != ErrorKind::Exhausted => {
                note_if_unreachable(&self.until, &connection.place, error)
            }
            Err(_) if link.is_broken() => {}
            _ => self.held_links.put(connection.number, link),
        }
    }

    /// Have the call know that a server answered, if it did.
    fn note_if_answered<T>(
        &self,
        handle: &Resource<Connection>,
        link: &Link,
        outcome: &Result<T, Error>,
    ) -> wasmtime::Result<()> {
        // The end of a connection is received like anything else.
        if outcome.is_ok() && !link.is_closed() {
            self.until.met(&self.table.get(handle)?.place.authority, true);
        }
        Ok(())
    }

    /// A handle to a connection is gone; what it stood for.
    fn release_connection(&mut self, handle: Resource<Connection>) -> wasmtime::Result<(Place, Option<Link>)> {
        let connection = self.table.delete(handle)?;
        self.connections -= 1;
        self.dropped(CONNECTION_BYTES);
        Ok((connection.place, self.held_links.take(connection.number)))
    }
}

impl Host for State {
    async fn connect(
        &mut self,
        authority: String,
        options: Option<Resource<ConnectOptions>>,
    ) -> GuestAnswer<Resource<Connection>> {
        answered(self.connect_one(&authority, options).await?)
    }

    async fn connect_all(
        &mut self,
        requests: Vec<ConnectRequest>,
    ) -> wasmtime::Result<Vec<Result<Resource<Connection>, types::Error>>> {
        Ok(each_answered(self.connect_several(&requests).await?))
    }

    async fn send_all(&mut self, messages: Vec<Message>) -> wasmtime::Result<Vec<Result<(), types::Error>>> {
        Ok(each_answered(self.send_several(&messages).await?))
    }

    async fn ready(&mut self, connections: Vec<Resource<Connection>>, patience: Option<u64>) -> GuestAnswer<Vec<u32>> {
        answered(self.readable(&connections, patience).await?)
    }

    async fn park(&mut self, handle: Resource<Connection>) -> wasmtime::Result<()> {
        let (place, link) = self.release_connection(handle)?;
        if let (Some(link), Some(_)) = (link, &place.session) {
            self.access.parked.keep(place, link);
        }
        Ok(())
    }
}

impl HostConnectOptions for State {
    async fn new(&mut self) -> wasmtime::Result<Resource<ConnectOptions>> {
        // A constructor has no error to answer.
        Ok(self.push(ConnectOptions::default(), OPTIONS_BYTES)?)
    }

    async fn set_tls(&mut self, handle: Resource<ConnectOptions>, tls: bool) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.tls = tls;
        Ok(())
    }

    async fn set_server_name(&mut self, handle: Resource<ConnectOptions>, name: String) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.set_server_name(name);
        Ok(())
    }

    async fn set_session(&mut self, handle: Resource<ConnectOptions>, session: String) -> GuestAnswer<()> {
        answered(self.table.get_mut(&handle)?.set_session(session))
    }

    async fn set_patience(&mut self, handle: Resource<ConnectOptions>, patience: u64) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.patience = Some(Duration::from_nanos(patience));
        Ok(())
    }

    async fn drop(&mut self, handle: Resource<ConnectOptions>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        self.memory.give_back(OPTIONS_BYTES);
        Ok(())
    }
}

fn each_answered<T>(outcomes: Vec<Result<T, Error>>) -> Vec<Result<T, types::Error>> {
    outcomes.into_iter().map(|outcome| outcome.map_err(types::Error::from)).collect()
}

/// Do something with the link of a connection, within the deadline of the call.
macro_rules! on_link {
    ($state:ident, $handle:ident, $link:ident => $work:expr) => {{
        let mut $link = match $state.take_link(&$handle)? {
            Ok(link) => link,
            Err(error) => return answered(Err(error)),
        };
        let outcome = in_call(&$state.until, $work).await;
        $state.note_if_answered(&$handle, &$link, &outcome)?;
        $state.give_back(&$handle, $link, outcome)
    }};
}

impl HostConnection for State {
    async fn send(&mut self, handle: Resource<Connection>, parts: Vec<Part>) -> GuestAnswer<()> {
        let _passed = match self.reserve(passed_bytes(parts.iter())) {
            Ok(passed) => passed,
            Err(error) => return answered(Err(error)),
        };
        let mut link = match self.take_link(&handle)? {
            Ok(link) => link,
            Err(error) => return answered(Err(error)),
        };
        let outcome = match slices(&self.table, &self.items, &parts)? {
            Ok(slices) => {
                self.until.sending();
                in_call(&self.until, link.send(&slices)).await
            }
            // Nothing was sent.
            Err(error) => {
                self.held_links.put(self.table.get(&handle)?.number, link);
                return answered(Err(error));
            }
        };
        self.give_back(&handle, link, outcome)
    }

    async fn receive_exact(&mut self, handle: Resource<Connection>, len: u32) -> GuestAnswer<Vec<u8>> {
        on_link!(self, handle, link => async { link.receive_exact(check_copy(len)?, &self.memory).await })
    }

    async fn receive_until(
        &mut self,
        handle: Resource<Connection>,
        delimiter: Vec<u8>,
        limit: u32,
    ) -> GuestAnswer<Vec<u8>> {
        if delimiter.is_empty() || delimiter.len() > limits::MAX_DELIMITER_BYTES {
            return answered(Err(Error::invalid("a delimiter has 1 to 16 bytes")));
        }
        on_link!(self, handle, link => async { link.receive_until(&delimiter, check_copy(limit)?, &self.memory).await })
    }

    async fn receive_some(&mut self, handle: Resource<Connection>, limit: u32) -> GuestAnswer<Vec<u8>> {
        if limit == 0 {
            return answered(Err(Error::invalid("the limit of receive-some must be at least 1")));
        }
        on_link!(self, handle, link => link.receive_some(limit as usize))
    }

    async fn receive_payload(
        &mut self,
        handle: Resource<Connection>,
        len: u64,
        item: Option<u32>,
    ) -> GuestAnswer<Resource<Payload>> {
        let mut link = match self.take_link(&handle)? {
            Ok(link) => link,
            Err(error) => return answered(Err(error)),
        };
        let mut incoming = match self.incoming(len, item, &mut 0) {
            Ok(incoming) => incoming,
            // Nothing was taken.
            Err(error) => return self.give_back(&handle, link, Err(error)),
        };
        let received = in_call(&self.until, link.receive_into(&mut incoming.destination, &self.until)).await;
        self.note_if_answered(&handle, &link, &received)?;
        let connection = self.table.get(&handle)?;
        match &received {
            Ok(()) => self.held_links.put(connection.number, link),
            Err(error) => note_if_unreachable(&self.until, &connection.place, error),
        }
        answered(self.settle(incoming, received))
    }

    async fn skip(&mut self, handle: Resource<Connection>, len: u64) -> GuestAnswer<()> {
        on_link!(self, handle, link => link.skip(len))
    }

    async fn set_patience(&mut self, handle: Resource<Connection>, patience: u64) -> wasmtime::Result<()> {
        self.table.get_mut(&handle)?.patience = Some(Duration::from_nanos(patience));
        Ok(())
    }

    async fn resumed(&mut self, handle: Resource<Connection>) -> wasmtime::Result<bool> {
        Ok(self.table.get(&handle)?.resumed)
    }

    async fn drop(&mut self, handle: Resource<Connection>) -> wasmtime::Result<()> {
        self.release_connection(handle).map(drop)
    }
}

fn check_copy(len: u32) -> Result<usize, Error> {
    let len = len as usize;
    if len <= limits::MAX_GUEST_COPY_BYTES {
        return Ok(len);
    }
    let message = format!("{len} bytes at once into the component; take at most {}", limits::MAX_GUEST_COPY_BYTES);
    Err(Error::new(ErrorKind::Exhausted, message))
}
