//! The contract's `net` interface: connections that the host makes, to the servers that the operator granted.
//!
//! Names are checked before they are resolved, addresses after. Every wait ends at the deadline of the call. A connection
//! that failed, or that a cancelled call left at an unknown place, serves nobody again. One that is idle for `idle_ms` is
//! closed, whether it is parked or the guest of an idle instance holds it.

mod idle;
mod link;
mod resolve;
mod socket;
mod tls;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use wasmtime::component::Resource;

use super::payload::slices;
use super::{Access, State, answered};
use crate::bindings::kv_store::backend::net::{Host, HostConnection};
use crate::bindings::kv_store::backend::payload::Part;
use crate::bindings::kv_store::backend::types;
use crate::counters::Event;
use crate::engine::{before, before_it_is};
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::Payload;
use crate::policy::{self, GrantedServer, Server};
use crate::until::Until;
pub(crate) use idle::{Held, Parked};
use link::{Link, Stream};
pub(crate) use resolve::Lookups;
use socket::Socket;
pub(crate) use tls::Tls;

type Answer<T> = wasmtime::Result<Result<T, types::Error>>;

/// What a guest's handle to a connection stands for.
pub struct Connection {
    /// Its link among those that the instance holds.
    number: u64,
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

/// What a connection counts for in `memory_bytes`: its handle, and what is received before it is asked for.
const CONNECTION_BYTES: usize = limits::HANDLE_BYTES + 2 * limits::RECEIVE_BUFFER_BYTES;

/// Wait for something of the network, no longer than to the deadline.
async fn within<T>(deadline: Instant, what: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    before(deadline, what).await.unwrap_or_else(|| Err(late()))
}

/// Wait for something of the network, no longer than to the end of the call, which moves while bytes arrive.
async fn in_call<T>(until: &Until, what: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    before_it_is(|| until.deadline(), what).await.unwrap_or_else(|| Err(late()))
}

fn late() -> Error {
    Error::new(ErrorKind::Unavailable, "the server did not answer by the deadline")
}

impl Access {
    /// Connect to a server that the component was granted, over TLS where that is wanted.
    async fn connect(&self, granted: &GrantedServer, tls: bool, deadline: Instant) -> Result<Link, Error> {
        let permit = self.shares.connection()?;
        let Server { host, port } = &granted.server;
        // As a resolver and a certificate have it, without brackets.
        let name = match host {
            policy::Host::Name(name) => name.clone(),
            policy::Host::Address(address) => address.to_string(),
        };
        let resolved = before(deadline, self.lookups.resolve(&name)).await.unwrap_or_else(|| {
            let message = format!("the name {host} could not be resolved by the deadline");
            Err(Error::new(ErrorKind::Unavailable, message))
        });
        let mut failure = Error::new(ErrorKind::Unavailable, format!("{host} has no address"));
        for ip in resolved? {
            let address = SocketAddr::new(ip, *port);
            if let Err(refused) = self.grants.check_address(granted, ip) {
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
        let failed = || {
            let message = "this connection has failed, or was idle for too long; drop it and connect again";
            Error::new(ErrorKind::Unavailable, message)
        };
        Ok(self.held_links.take(self.table.get(handle)?.number).ok_or_else(failed))
    }

    /// Give it back, unless it failed: whatever fails, but for want of room, leaves it at an unknown place.
    fn give_back<T>(&mut self, handle: &Resource<Connection>, link: Link, outcome: Result<T, Error>) -> Answer<T> {
        if !matches!(&outcome, Err(error) if error.kind() != ErrorKind::Exhausted) {
            self.held_links.put(self.table.get(handle)?.number, link);
        }
        answered(outcome)
    }

    /// A handle to a connection is gone; what it stood for.
    fn release_connection(&mut self, handle: Resource<Connection>) -> wasmtime::Result<(Place, Option<Link>)> {
        let connection = self.table.delete(handle)?;
        self.connections -= 1;
        self.limiter.give_back(CONNECTION_BYTES);
        Ok((connection.place, self.held_links.take(connection.number)))
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
            None => match Box::pin(self.access.connect(&granted, tls, self.until.deadline())).await {
                Ok(link) => link,
                Err(error) => return answered(Err(error)),
            },
        };
        self.access.counters.count(if resumed { Event::Resumed } else { Event::Connected });
        let number = self.held_links.add(link);
        let handle = self.push(Connection { number, place, resumed }, CONNECTION_BYTES);
        match &handle {
            Ok(_) => self.connections += 1,
            Err(_) => drop(self.held_links.take(number)),
        }
        answered(handle)
    }

    async fn park(&mut self, handle: Resource<Connection>) -> wasmtime::Result<()> {
        let (place, link) = self.release_connection(handle)?;
        if let (Some(link), Some(_)) = (link, &place.session) {
            self.access.parked.keep(place, link);
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
        let outcome = in_call(&$state.until, $work).await;
        $state.give_back(&$handle, $link, outcome)
    }};
}

impl HostConnection for State {
    async fn send(&mut self, handle: Resource<Connection>, parts: Vec<Part>) -> Answer<()> {
        let mut link = match self.take_link(&handle)? {
            Ok(link) => link,
            Err(error) => return answered(Err(error)),
        };
        let outcome = match slices(&self.table, &self.items, &parts)? {
            Ok(slices) => in_call(&self.until, link.send(&slices)).await,
            // Nothing was sent.
            Err(error) => {
                self.held_links.put(self.table.get(&handle)?.number, link);
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

    async fn receive_payload(
        &mut self,
        handle: Resource<Connection>,
        len: u64,
        item: Option<u32>,
    ) -> Answer<Resource<Payload>> {
        let mut link = match self.take_link(&handle)? {
            Ok(link) => link,
            Err(error) => return answered(Err(error)),
        };
        let mut incoming = match self.incoming(len, item) {
            Ok(incoming) => incoming,
            // Nothing was taken.
            Err(error) => return self.give_back(&handle, link, Err(error)),
        };
        let received = in_call(&self.until, link.receive_into(&mut incoming.destination, &self.until)).await;
        if received.is_ok() {
            self.held_links.put(self.table.get(&handle)?.number, link);
        }
        answered(self.settle(incoming, received))
    }

    async fn skip(&mut self, handle: Resource<Connection>, len: u64) -> Answer<()> {
        on_link!(self, handle, link => link.skip(len))
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
