//! The contract's `net` interface: connections that the host makes, to the servers that the operator granted.
//!
//! Names are checked before they are resolved, addresses after. Every wait ends at the deadline of the call. A connection
//! that failed, or that a cancelled call left at an unknown place, serves nobody again.

mod link;
mod socket;
mod tls;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

use wasmtime::component::Resource;

use super::payload::slices;
use super::{Access, State, answered};
use crate::bindings::kv_store::backend::net::{Host, HostConnection};
use crate::bindings::kv_store::backend::payload::Part;
use crate::bindings::kv_store::backend::types;
use crate::counters::Event;
use crate::engine::before;
use crate::error::{Error, ErrorKind};
use crate::limits::{self, Limits};
use crate::payload::{Buffer, Filling, Payload};
use crate::policy::{self, GrantedServer, Server};
use link::{Link, Stream};
use socket::Socket;
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

/// Idle connections of a store, kept for its next calls and closed when nobody has used them for a while.
pub(crate) struct Parked {
    /// How long one is kept.
    idle: Duration,
    links: Mutex<Links>,
}

#[derive(Default)]
struct Links {
    /// Each with the moment when it is closed, the latest last.
    by_place: HashMap<Place, Vec<(Link, Instant)>>,
    /// A task is there that closes them.
    swept: bool,
}

impl Parked {
    pub(crate) fn new(limits: &Limits) -> Self {
        Parked { idle: Duration::from_millis(limits.idle_ms), links: Mutex::default() }
    }

    fn take(&self, place: &Place) -> Option<Link> {
        let mut parked = self.lock();
        let links = parked.by_place.get_mut(place)?;
        let now = Instant::now();
        let found = std::iter::from_fn(|| links.pop())
            .find_map(|(mut link, until)| (now < until && link.is_silent()).then_some(link));
        if links.is_empty() {
            parked.by_place.remove(place);
        }
        found
    }

    fn keep(self: &Arc<Self>, place: Place, link: Link) {
        let mut parked = self.lock();
        if self.idle.is_zero() || parked.by_place.values().map(Vec::len).sum::<usize>() >= limits::MAX_PARKED {
            return;
        }
        parked.by_place.entry(place).or_default().push((link, Instant::now() + self.idle));
        if !parked.swept {
            parked.swept = true;
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Close what has been idle for too long; answers when the next one will have been. None: there are no more.
    fn close_old(&self) -> Option<Instant> {
        let mut parked = self.lock();
        let now = Instant::now();
        parked.by_place.retain(|_, links| {
            links.retain(|(_, until)| now < *until);
            !links.is_empty()
        });
        let next = parked.by_place.values().filter_map(|links| links.first()).map(|(_, until)| *until).min();
        parked.swept = next.is_some();
        next
    }

    fn lock(&self) -> MutexGuard<'_, Links> {
        self.links.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

/// Close idle connections by and by, until there are none or their store is gone.
async fn sweep(parked: Weak<Parked>) {
    while let Some(next) = parked.upgrade().and_then(|parked| parked.close_old()) {
        tokio::time::sleep_until(next.into()).await;
    }
}

/// Wait for something of the network, no longer than to the deadline.
async fn within<T>(deadline: Instant, what: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let late = || Error::new(ErrorKind::Unavailable, "the server did not answer by the deadline");
    before(deadline, what).await.unwrap_or_else(|| Err(late()))
}

impl Access {
    /// Connect to a server that the component was granted, over TLS where that is wanted.
    async fn connect(&self, granted: &GrantedServer, tls: bool, deadline: Instant) -> Result<Link, Error> {
        let full = || {
            let message = format!("the process may have {} connections", limits::PROCESS_CONNECTIONS);
            Error::new(ErrorKind::Exhausted, message)
        };
        let permit = self.budgets.connections.permit().ok_or_else(full)?;
        let Server { host, port } = &granted.server;
        // As a resolver and a certificate have it, without brackets.
        let name = match host {
            policy::Host::Name(name) => name.clone(),
            policy::Host::Address(address) => address.to_string(),
        };
        let resolving = async {
            let unresolved = |error| Error::new(ErrorKind::Unavailable, format!("cannot resolve {host}: {error}"));
            tokio::net::lookup_host((name.as_str(), *port)).await.map(Vec::from_iter).map_err(unresolved)
        };
        let mut failure = Error::new(ErrorKind::Unavailable, format!("{host} has no address"));
        for address in within(deadline, resolving).await? {
            if let Err(refused) = self.grants.check_address(granted, address.ip()) {
                failure = refused;
                continue;
            }
            let patience = deadline.min(Instant::now() + Duration::from_millis(self.limits.connect_ms));
            let connecting = async {
                let socket = within(patience, Socket::connect(address)).await?;
                if !tls {
                    return Ok(Stream::Plain(socket));
                }
                let shaken = within(patience, self.tls.handshake(&name, socket)).await;
                shaken.map(|stream| Stream::Tls(Box::new(stream))).map_err(|error| error.context("the TLS handshake"))
            };
            match connecting.await {
                Ok(stream) => return Ok(Link::new(stream, permit)),
                Err(error) => failure = error.context(format_args!("cannot connect to {address}")),
            }
        }
        Err(failure)
    }
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
        let granted = match self.access.grants.server(&authority) {
            Ok(granted) => granted,
            Err(refused) => return answered(Err(refused)),
        };
        if session.as_ref().is_some_and(|session| session.len() > limits::MAX_SESSION_BYTES) {
            return answered(Err(Error::invalid("the session text is too long")));
        }
        let most = self.access.limits.connections;
        if self.connections >= most {
            let message = format!("an instance may have {most} connections (connections in the config)");
            return answered(Err(Error::new(ErrorKind::Exhausted, message)));
        }
        let place = Place { authority: granted.server.to_string(), tls, session };
        let parked = place.session.is_some().then(|| self.access.parked.take(&place)).flatten();
        let resumed = parked.is_some();
        let link = match parked {
            Some(link) => link,
            // Boxed: a call that finds a connection does not carry about what it takes to make one.
            None => match Box::pin(self.access.connect(&granted, tls, self.deadline)).await {
                Ok(link) => link,
                Err(error) => return answered(Err(error)),
            },
        };
        self.access.counters.count(if resumed { Event::Resumed } else { Event::Connected });
        let handle = self.table.push(Connection { link: Some(link), place, resumed });
        self.connections += u64::from(handle.is_ok());
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
