//! Making connections: to servers that were granted, one or several at once.
//!
//! Names are resolved before any socket is waited for, because the answer to a name comes from another thread, which a thread that
//! waits for sockets hears late.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use wasmtime::component::Resource;

use super::link::{Link, OpenLink, Stream};
use super::side_by_side::{all, too_many};
use super::socket::Socket;
use super::{CONNECTION_BYTES, Connection, Place, in_call, note_if_unreachable};
use crate::budget::ConnectionPermit;
use crate::contract::bindings::kv_store::backend::net::ConnectRequest;
use crate::contract::{Access, State};
use crate::counters::Event;
use crate::engine::before;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::policy::{GrantedServer, Host, Server};
use crate::until::Until;

/// What a guest's handle to options stands for.
#[derive(Default)]
pub struct ConnectOptions {
    pub(in crate::contract) tls: bool,
    /// As the guest gave it; empty where that was too long for any name.
    pub(super) server_name: Option<String>,
    pub(super) session: Option<String>,
    pub(in crate::contract) patience: Option<Duration>,
}

/// What options count for in `memory_bytes`.
pub(in crate::contract) const OPTIONS_BYTES: usize =
    limits::HANDLE_BYTES + limits::MAX_SESSION_BYTES + MAX_SERVER_NAME_BYTES;

/// The longest name, from DNS.
const MAX_SERVER_NAME_BYTES: usize = 253;

impl ConnectOptions {
    pub(in crate::contract) fn set_server_name(&mut self, name: String) {
        self.server_name = Some(if name.len() <= MAX_SERVER_NAME_BYTES { name } else { String::new() });
    }

    pub(super) fn set_session(&mut self, session: String) -> Result<(), Error> {
        if session.len() > limits::MAX_SESSION_BYTES {
            return Err(Error::invalid("the session text is too long"));
        }
        self.session = Some(session);
        Ok(())
    }
}

/// A connection that a guest may have.
pub(in crate::contract) struct Wanted {
    pub(in crate::contract) granted: GrantedServer,
    /// The name that TLS asks for; empty without TLS.
    name: String,
    pub(in crate::contract) place: Place,
    /// That of the guest.
    pub(in crate::contract) own_patience: Option<Duration>,
    /// That of making the connection.
    patience: Duration,
}

/// A connection that is about to be made.
struct Begun {
    permit: ConnectionPermit,
    addresses: Vec<IpAddr>,
}

/// A host as a resolver and a certificate have it, without brackets.
fn bare(host: &Host) -> String {
    match host {
        Host::Name(name) => name.clone(),
        Host::Address(address) => address.to_string(),
    }
}

/// The answer of the resolver. It is not the server that has not answered, where it comes too late.
async fn resolved_by(
    end: Instant,
    host: &Host,
    lookup: impl Future<Output = Result<Vec<IpAddr>, Error>>,
) -> Result<Vec<IpAddr>, Error> {
    before(end, lookup).await.unwrap_or_else(|| {
        let message = format!("still resolving the name {host}: no answer from DNS in time (patience_ms, deadline_ms)");
        Err(Error::new(ErrorKind::Unavailable, message))
    })
}

impl Access {
    /// What a guest asks for, if it was granted.
    fn wanted(&self, authority: &str, options: Option<&ConnectOptions>) -> Result<Wanted, Error> {
        let default = ConnectOptions::default();
        let ConnectOptions { tls, server_name, session, patience } = options.unwrap_or(&default);
        let granted = self.reach.grants.server(authority)?;
        if let Some(rehearsal) = &self.rehearsal {
            return Err(rehearsal.refuse());
        }
        let name = match server_name {
            Some(name) => {
                let invalid = || Error::invalid(format!("{:?} is no server's name", crate::log::clean(name)));
                let host = Host::parse(name).ok_or_else(invalid)?;
                let server = Server { host, port: granted.server.port };
                bare(&self.reach.grants.server(&server.to_string())?.server.host)
            }
            None if *tls => bare(&granted.server.host),
            None => String::new(),
        };
        let place = Place {
            authority: granted.server.to_string(),
            tls: *tls,
            server_name: server_name.is_some().then(|| name.clone()),
            session: session.clone(),
            http: false,
        };
        let most = self.reach.limits.patience();
        Ok(Wanted { granted, name, place, own_patience: *patience, patience: patience.unwrap_or(most).min(most) })
    }

    /// The same for requests over HTTP.
    pub(in crate::contract) fn wanted_for_http(
        &self,
        authority: &str,
        options: &ConnectOptions,
    ) -> Result<Wanted, Error> {
        let mut wanted = self.wanted(authority, Some(options))?;
        wanted.place.http = true;
        Ok(wanted)
    }

    /// How long a wait of a connection may last. Where the guest has said nothing, what the call stores adds to it as it does to the
    /// deadline: a server that makes it all durable says nothing meanwhile.
    pub(in crate::contract) fn patience(&self, own: Option<Duration>, until: &Until) -> Duration {
        let most = self.reach.limits.patience();
        own.map_or_else(|| most.saturating_add(until.time_to_move()), |own| own.min(most))
    }

    pub(in crate::contract) fn no_connection_left(&self) -> Error {
        let most = self.reach.limits.connections;
        let message = format!("connection limit reached ({most} per instance): raise limits.connections in the config");
        Error::new(ErrorKind::Exhausted, message)
    }

    /// Take a place for a connection, and resolve the server's name.
    async fn begin(&self, wanted: &Wanted, until: &Until) -> Result<Begun, Error> {
        self.resolved(wanted, until).await.inspect_err(|error| note_if_unreachable(until, &wanted.place, error))
    }

    async fn resolved(&self, wanted: &Wanted, until: &Until) -> Result<Begun, Error> {
        let permit = self.reach.shares.connection()?;
        let Server { host, .. } = &wanted.granted.server;
        let end = until.deadline().min(Instant::now() + wanted.patience);
        let addresses = resolved_by(end, host, self.lookups.resolve(&bare(host))).await?;
        Ok(Begun { permit, addresses })
    }

    /// Connect to the first address that answers, over TLS where that is wanted.
    async fn finish(&self, wanted: &Wanted, begun: Begun, until: &Until) -> Result<Link, Error> {
        self.connected(wanted, begun, until).await.inspect_err(|error| note_if_unreachable(until, &wanted.place, error))
    }

    async fn connected(&self, wanted: &Wanted, begun: Begun, until: &Until) -> Result<Link, Error> {
        let Server { host, port } = &wanted.granted.server;
        let mut failure = Error::new(ErrorKind::Unavailable, format!("{host} has no address"));
        for ip in begun.addresses {
            let address = SocketAddr::new(ip, *port);
            if let Err(refused) = self.reach.grants.check_address(&wanted.granted, ip) {
                failure = refused;
                continue;
            }
            match in_call(until, self.connect_to(wanted, address)).await {
                Ok(stream) => return Ok(OpenLink::new(stream, begun.permit)),
                Err(error) => failure = error.context(format_args!("cannot connect to {address}")),
            }
        }
        Err(failure)
    }

    async fn connect_to(&self, wanted: &Wanted, address: SocketAddr) -> Result<Stream, Error> {
        let socket = Socket::connect(address, wanted.patience).await?;
        if !wanted.place.tls {
            return Ok(Stream::Plain(socket));
        }
        let shaken = self.tls.handshake(&wanted.name, socket).await;
        shaken.map(|stream| Stream::Tls(Box::new(stream))).map_err(|error| error.context("the TLS handshake"))
    }

    pub(in crate::contract) async fn connect(&self, wanted: &Wanted, until: &Until) -> Result<Link, Error> {
        let begun = self.begin(wanted, until).await?;
        self.finish(wanted, begun, until).await
    }
}

impl State {
    /// What a guest asks for, if it was granted and there is room beside `more` connections that it asks for at the same time.
    fn wanted(
        &self,
        authority: &str,
        options: Option<&Resource<ConnectOptions>>,
        more: u64,
    ) -> wasmtime::Result<Result<Wanted, Error>> {
        let options = options.map(|handle| self.table.get(handle)).transpose()?;
        let wanted = self.access.wanted(authority, options);
        if wanted.is_ok() && self.connections.saturating_add(more) >= self.access.reach.limits.connections {
            return Ok(Err(self.access.no_connection_left()));
        }
        Ok(wanted)
    }

    /// A parked connection, if one was left there that is alive.
    fn parked(&self, wanted: &Wanted) -> Option<Link> {
        wanted.place.session.is_some().then(|| self.access.parked.take(&wanted.place)).flatten()
    }

    /// A handle for the guest to a connection.
    fn hold(&mut self, wanted: Wanted, link: Link, resumed: bool) -> Result<Resource<Connection>, Error> {
        self.access.reach.counters.count(if resumed { Event::Resumed } else { Event::Connected });
        let number = self.held_links.add(link);
        let connection = Connection { number, place: wanted.place, resumed, patience: wanted.own_patience };
        let handle = self.push(connection, CONNECTION_BYTES);
        match &handle {
            Ok(_) => self.connections += 1,
            Err(_) => drop(self.held_links.take(number)),
        }
        handle
    }

    pub(super) async fn connect_one(
        &mut self,
        authority: &str,
        options: Option<Resource<ConnectOptions>>,
    ) -> wasmtime::Result<Result<Resource<Connection>, Error>> {
        let wanted = match self.wanted(authority, options.as_ref(), 0)? {
            Ok(wanted) => wanted,
            Err(refused) => return Ok(Err(refused)),
        };
        if let Some(link) = self.parked(&wanted) {
            return Ok(self.hold(wanted, link, true));
        }
        // Boxed: a call that finds a connection does not carry about what it takes to make one.
        let made = Box::pin(self.access.connect(&wanted, &self.until)).await;
        Ok(made.and_then(|link| self.hold(wanted, link, false)))
    }

    pub(super) async fn connect_several(
        &mut self,
        requests: &[ConnectRequest],
    ) -> wasmtime::Result<Vec<Result<Resource<Connection>, Error>>> {
        let (mut ready, mut made) = (Vec::new(), Vec::new());
        let mut failed: Vec<(usize, Error)> = Vec::new();
        for (at, request) in requests.iter().enumerate() {
            if at >= limits::MAX_SIDE_BY_SIDE {
                failed.push((at, too_many()));
                continue;
            }
            match self.wanted(&request.authority, request.options.as_ref(), (ready.len() + made.len()) as u64)? {
                Err(refused) => failed.push((at, refused)),
                Ok(wanted) => match self.parked(&wanted) {
                    Some(link) => ready.push((at, wanted, link, true)),
                    None => made.push((at, wanted)),
                },
            }
        }
        let (access, until) = (&self.access, &self.until);
        let begun = all(made.into_iter().map(|(at, wanted)| async move {
            let begun = access.begin(&wanted, until).await;
            (at, wanted, begun)
        }));
        let finished = all(begun.await.into_iter().map(|(at, wanted, begun)| async move {
            let link = match begun {
                Ok(begun) => access.finish(&wanted, begun, until).await,
                Err(error) => Err(error),
            };
            (at, wanted, link)
        }));
        for (at, wanted, link) in finished.await {
            match link {
                Ok(link) => ready.push((at, wanted, link, false)),
                Err(error) => failed.push((at, error)),
            }
        }
        let held = ready.into_iter().map(|(at, wanted, link, resumed)| (at, self.hold(wanted, link, resumed)));
        let mut answers: Vec<_> = held.collect();
        answers.extend(failed.into_iter().map(|(at, error)| (at, Err(error))));
        answers.sort_by_key(|(at, _)| *at);
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_not_resolved_in_time_is_told_from_a_server_that_does_not_answer() {
        let host = Host::Name("silent.test".into());
        let (soon, late) = (Instant::now() + Duration::from_millis(10), || Instant::now() + Duration::from_secs(60));
        let driver = &crate::engine::runtime().unwrap().driver;
        let resolved = driver.block_on(late, resolved_by(soon, &host, std::future::pending())).unwrap();
        let error = resolved.unwrap_err();
        let told = error.to_string();
        assert!(
            error.kind() == ErrorKind::Unavailable && told.contains("still resolving the name silent.test"),
            "{told}"
        );
    }
}
