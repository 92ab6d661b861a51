//! The contract's `net` interface: connections that the host makes, to the server that the URI names.
//!
//! Names are checked before they are resolved, addresses after. Every wait ends at the deadline of the call. A connection
//! that failed, or that a cancelled call left at an unknown place, serves nobody again.

mod link;
mod tls;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use wasmtime::component::Resource;

use super::payload::slices;
use super::{State, answered};
use crate::bindings::kv_store::backend::net::{Host, HostConnection};
use crate::bindings::kv_store::backend::payload::Part;
use crate::bindings::kv_store::backend::types;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::log;
use crate::payload::{Buffer, Filling, Payload};
use crate::policy;
use link::{Link, Socket, Stream};
pub(crate) use tls::Tls;

type Answer<T> = wasmtime::Result<Result<T, types::Error>>;

/// What a guest's handle to a connection stands for.
pub struct Connection {
    /// Taken while it is at work; gone for good once it has failed.
    link: Option<Link>,
    place: Place,
    resumed: bool,
}

/// Where a connection leads, and what was said on it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Place {
    authority: String,
    tls: bool,
    session: Option<String>,
}

/// Idle connections of a store, kept for its next calls.
#[derive(Default)]
pub(crate) struct Parked(Mutex<HashMap<Place, Vec<(Link, Instant)>>>);

impl Parked {
    fn take(&self, place: &Place) -> Option<Link> {
        let mut parked = self.lock();
        let links = parked.get_mut(place)?;
        let found = std::iter::from_fn(|| links.pop())
            .find_map(|(mut link, since)| (since.elapsed() < limits::PARKED_FOR && link.is_silent()).then_some(link));
        if links.is_empty() {
            parked.remove(place);
        }
        found
    }

    fn keep(&self, place: Place, link: Link) {
        let mut parked = self.lock();
        parked.retain(|_, links| {
            links.retain(|(_, since)| since.elapsed() < limits::PARKED_FOR);
            !links.is_empty()
        });
        if parked.values().map(Vec::len).sum::<usize>() < limits::MAX_PARKED {
            parked.entry(place).or_default().push((link, Instant::now()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Place, Vec<(Link, Instant)>>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Wait for something of the network, no longer than to the deadline.
async fn within<T>(deadline: Instant, what: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = || Error::new(ErrorKind::Unavailable, "the server did not answer by the deadline");
    tokio::time::timeout_at(deadline.into(), what).await.unwrap_or_else(|_| Err(late()))
}

/// Connect to a server that the component was granted, over TLS where that is given.
async fn connect(authority: &str, tls: Option<&Tls>, deadline: Instant) -> Result<Link, Error> {
    let (host, port) = policy::split_port(authority);
    let port = port.ok_or_else(|| Error::invalid(format!("{authority} names no port")))?;
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let resolving = async {
        let unresolved = |error| Error::new(ErrorKind::Unavailable, format!("cannot resolve {host}: {error}"));
        tokio::net::lookup_host((name, port)).await.map(Vec::from_iter).map_err(unresolved)
    };
    let resolved = within(deadline, resolving).await?;
    let (allowed, refused): (Vec<_>, Vec<_>) = resolved.into_iter().partition(|at| policy::allows_address(at.ip()));
    let mut failure = match refused.first() {
        Some(address) => Error::new(ErrorKind::Denied, format!("{host} is {}, which is never reached", address.ip())),
        None => Error::new(ErrorKind::Unavailable, format!("{host} has no address")),
    };
    for address in allowed {
        let patience = deadline.min(Instant::now() + limits::CONNECT_TIMEOUT);
        let connecting = async {
            let socket = within(patience, Socket::connect(address)).await?;
            let Some(tls) = tls else { return Ok(Stream::Plain(socket)) };
            let shaken = within(patience, tls.handshake(name, socket)).await;
            shaken.map(|stream| Stream::Tls(Box::new(stream))).map_err(|error| error.context("the TLS handshake"))
        };
        match connecting.await {
            Ok(stream) => return Ok(Link::new(stream)),
            Err(error) => failure = error.context(format_args!("cannot connect to {address}")),
        }
    }
    Err(failure)
}

impl State {
    /// Take the link of a connection, for as long as it is at work. If the call ends meanwhile, it is gone.
    fn take_link(&mut self, handle: &Resource<Connection>) -> wasmtime::Result<Result<Link, Error>> {
        let failed = || Error::new(ErrorKind::Unavailable, "this connection has failed; drop it and connect again");
        Ok(self.table.get_mut(handle)?.link.take().ok_or_else(failed))
    }

    /// Give it back, unless it failed: whatever fails, but for want of room, leaves it at an unknown place.
    fn give_back<T>(&mut self, handle: &Resource<Connection>, link: Link, outcome: Result<T, Error>) -> Answer<T> {
        if !matches!(&outcome, Err(error) if error.kind() != ErrorKind::Exhausted) {
            self.table.get_mut(handle)?.link = Some(link);
        }
        answered(outcome)
    }
}

impl Host for State {
    async fn connect(&mut self, authority: String, tls: bool, session: Option<String>) -> Answer<Resource<Connection>> {
        if !self.access.grants.allows_server(&authority) {
            let granted = self.access.grants.server.as_deref().unwrap_or("no server");
            let message = format!("{} is not granted: the URI names {granted}", log::clean(&authority));
            return answered(Err(Error::new(ErrorKind::Denied, message)));
        }
        if session.as_ref().is_some_and(|session| session.len() > limits::MAX_SESSION_BYTES) {
            return answered(Err(Error::invalid("the session text is too long")));
        }
        if self.connections >= limits::MAX_CONNECTIONS {
            let message = format!("an instance may have {} connections", limits::MAX_CONNECTIONS);
            return answered(Err(Error::new(ErrorKind::Exhausted, message)));
        }
        let place = Place { authority: policy::canonical(&authority), tls, session };
        let parked = place.session.is_some().then(|| self.access.parked.take(&place)).flatten();
        let resumed = parked.is_some();
        let link = match parked {
            Some(link) => link,
            None => match connect(&place.authority, tls.then_some(&self.access.tls), self.deadline).await {
                Ok(link) => link,
                Err(error) => return answered(Err(error)),
            },
        };
        let handle = self.table.push(Connection { link: Some(link), place, resumed });
        self.connections += usize::from(handle.is_ok());
        answered(handle.map_err(|_| Error::new(ErrorKind::Exhausted, "too many handles")))
    }

    async fn park(&mut self, handle: Resource<Connection>) -> wasmtime::Result<()> {
        let connection = self.table.delete(handle)?;
        self.connections -= 1;
        if let (Some(link), Some(_)) = (connection.link, &connection.place.session) {
            self.access.parked.keep(connection.place, link);
        }
        Ok(())
    }
}

/// Do something with the link of a connection, within the deadline of the call.
macro_rules! on_link {
    ($state:ident, $handle:ident, $link:ident => $work:expr) => {{
        let mut $link = match $state.take_link(&$handle)? {
            Ok(link) => link,
            Err(error) => return answered(Err(error)),
        };
        let outcome = within($state.deadline, $work).await;
        $state.give_back(&$handle, $link, outcome)
    }};
}

impl HostConnection for State {
    async fn send(&mut self, handle: Resource<Connection>, parts: Vec<Part>) -> Answer<()> {
        let mut link = match self.take_link(&handle)? {
            Ok(link) => link,
            Err(error) => return answered(Err(error)),
        };
        let outcome = match slices(&self.table, &parts)? {
            Ok(slices) => within(self.deadline, link.send(&slices)).await,
            // Nothing was sent.
            Err(error) => {
                self.table.get_mut(&handle)?.link = Some(link);
                return answered(Err(error));
            }
        };
        self.give_back(&handle, link, outcome)
    }

    async fn receive_exact(&mut self, handle: Resource<Connection>, len: u32) -> Answer<Vec<u8>> {
        on_link!(self, handle, link => async { link.receive_exact(check_copy(len)?).await })
    }

    async fn receive_until(&mut self, handle: Resource<Connection>, delimiter: Vec<u8>, limit: u32) -> Answer<Vec<u8>> {
        if delimiter.is_empty() || delimiter.len() > limits::MAX_DELIMITER_BYTES {
            return answered(Err(Error::invalid("a delimiter has 1 to 16 bytes")));
        }
        on_link!(self, handle, link => async { link.receive_until(&delimiter, check_copy(limit)?).await })
    }

    async fn receive_some(&mut self, handle: Resource<Connection>, limit: u32) -> Answer<Vec<u8>> {
        if limit == 0 {
            return answered(Err(Error::invalid("a limit of 0 could not be told from the end")));
        }
        on_link!(self, handle, link => link.receive_some(limit as usize))
    }

    async fn receive_payload(&mut self, handle: Resource<Connection>, len: u64) -> Answer<Resource<Payload>> {
        let filling = match self.check_room(len).and_then(|()| Filling::new(len)) {
            Ok(filling) => filling,
            Err(error) => return answered(Err(error)),
        };
        let received: Answer<Buffer> = on_link!(self, handle, link => link.receive_buffer(filling));
        match received? {
            Ok(buffer) => answered(self.give(Payload::Owned(Arc::new(buffer)))),
            Err(error) => Ok(Err(error)),
        }
    }

    async fn skip(&mut self, handle: Resource<Connection>, len: u64) -> Answer<()> {
        on_link!(self, handle, link => link.skip(len))
    }

    async fn resumed(&mut self, handle: Resource<Connection>) -> wasmtime::Result<bool> {
        Ok(self.table.get(&handle)?.resumed)
    }

    async fn drop(&mut self, handle: Resource<Connection>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        self.connections -= 1;
        Ok(())
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
