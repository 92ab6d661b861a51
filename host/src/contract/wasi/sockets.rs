//! Sockets under the policy of the contract's `net`: TCP to the servers that were granted, and nothing else. WASI connects
//! to addresses and not to names, so an address counts as a server's if the server's granted name was resolved to it.
//! Names are resolved as for `net`; each socket is one of the store's descriptors from when it is made.

use std::collections::{HashMap, HashSet};
use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use kv_platform::sync::Mutex;
use wasmtime::component::{Linker, Resource, ResourceType};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::tcp_create_socket::Host;
use wasmtime_wasi::p2::{DynPollable, Pollable, TcpSocket, subscribe};
use wasmtime_wasi::sockets::{SocketAddrUse, WasiSocketsView};

use super::super::Access;
use super::files::WasiStore;
use super::{State, VERSION};
use crate::budget::Permit;
use crate::error::Error;
use crate::limits;
use crate::log::{self, Level};

type SocketAnswer<T> = wasmtime::Result<(Result<T, ErrorCode>,)>;

/// What an instance has learned of the servers that it was granted.
pub(super) struct Sockets {
    /// The room of each socket, by its handle. What is made of a socket is dropped before it.
    permits: HashMap<u32, Permit>,
    known: Arc<Known>,
}

struct Known {
    access: Arc<Access>,
    /// Granted names, in lower case, and addresses that they were resolved to.
    resolved: Mutex<HashSet<(String, IpAddr)>>,
}

impl Sockets {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Sockets { permits: HashMap::new(), known: Arc::new(Known { access, resolved: Mutex::default() }) }
    }

    /// Whether the instance has a socket.
    pub(super) fn any(&self) -> bool {
        !self.permits.is_empty()
    }

    /// The decision on each use of an address.
    pub(super) fn check(
        &self,
    ) -> impl Fn(SocketAddr, SocketAddrUse) -> Pin<Box<dyn Future<Output = bool> + Send + Sync>> + Send + Sync + 'static
    {
        let known = self.known.clone();
        move |address, used| Box::pin(std::future::ready(known.allows(address, used)))
    }
}

impl Known {
    fn allows(&self, address: SocketAddr, used: SocketAddrUse) -> bool {
        match used {
            // On the way to a connection, the kernel chooses.
            SocketAddrUse::TcpBind => address.ip().is_unspecified() && address.port() == 0,
            SocketAddrUse::TcpConnect => self.allows_connect(address),
            _ => false,
        }
    }

    fn allows_connect(&self, address: SocketAddr) -> bool {
        if let Some(rehearsal) = &self.access.rehearsal {
            rehearsal.refuse();
            return false;
        }
        let grants = &self.access.reach.grants;
        let literal = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let resolved = self.resolved.lock();
        let names = resolved.iter().filter(|(_, at)| *at == address.ip()).map(|(name, _)| name);
        let hosts = std::iter::once(&literal).chain(names);
        let granted = hosts.filter_map(|host| grants.server(&format!("{host}:{}", address.port())).ok());
        let mut refused = None;
        for server in granted {
            match grants.check_address(&server, address.ip()) {
                Ok(()) => return true,
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) => self.log(&format!("denied: {error}")),
            None => self.refuse(format_args!("connect to {address}")),
        }
        false
    }

    fn refuse(&self, what: std::fmt::Arguments) {
        let granted = self.access.reach.grants.named_servers();
        let said = format!("denied: it tried to {what}; the URI names {granted}");
        self.log(&said);
    }

    fn log(&self, said: &str) {
        log::component_line(Level::Warn, &self.access.reach.name, said, &self.access.log);
    }
}

/// The addresses of a name, when they have come.
pub struct Addresses {
    name: String,
    answer: Answered,
}

enum Answered {
    Waiting(Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, Error>> + Send>>),
    Found(std::vec::IntoIter<IpAddr>),
    Failed,
}

impl Addresses {
    fn of(access: Arc<Access>, name: String) -> Self {
        let asked = name.clone();
        let answer = async move { access.lookups.resolve(&asked).await };
        Addresses { name, answer: Answered::Waiting(Box::pin(answer)) }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if let Answered::Waiting(answer) = &mut self.answer {
            self.answer = match ready!(answer.as_mut().poll(context)) {
                Ok(found) => Answered::Found(found.into_iter()),
                Err(_) => Answered::Failed,
            };
        }
        Poll::Ready(())
    }

    fn next(&mut self) -> Result<Option<IpAddr>, ErrorCode> {
        let pending = self.poll(&mut Context::from_waker(Waker::noop())).is_pending();
        match &mut self.answer {
            Answered::Found(found) => Ok(found.next().map(|address| address.to_canonical())),
            _ if pending => Err(ErrorCode::WouldBlock),
            _ => Err(ErrorCode::NameUnresolvable),
        }
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Addresses {
    async fn ready(&mut self) {
        poll_fn(|context| self.poll(context)).await
    }
}

/// In place of wasmtime-wasi's functions of these names.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut lookup = linker.instance(&format!("wasi:sockets/ip-name-lookup@{VERSION}"))?;
    lookup.func_wrap(
        "resolve-addresses",
        |mut store: WasiStore, (network, name): (Resource<Network>, String)| -> SocketAnswer<Resource<Addresses>> {
            store.data_mut().resolve(network, name)
        },
    )?;
    lookup.func_wrap(
        "[method]resolve-address-stream.resolve-next-address",
        |mut store: WasiStore, (lookup,): (Resource<Addresses>,)| -> SocketAnswer<Option<IpAddress>> {
            store.data_mut().next_address(&lookup)
        },
    )?;
    lookup.func_wrap(
        "[method]resolve-address-stream.subscribe",
        |mut store: WasiStore, (lookup,): (Resource<Addresses>,)| -> wasmtime::Result<(Resource<DynPollable>,)> {
            Ok((subscribe(&mut store.data_mut().wasi().table, lookup)?,))
        },
    )?;
    lookup.resource("resolve-address-stream", ResourceType::host::<Addresses>(), |mut store, lookup| {
        store.data_mut().wasi().table.delete(Resource::<Addresses>::new_own(lookup))?;
        Ok(())
    })?;
    let mut create = linker.instance(&format!("wasi:sockets/tcp-create-socket@{VERSION}"))?;
    create.func_wrap(
        "create-tcp-socket",
        |mut store: WasiStore, (family,): (IpAddressFamily,)| -> SocketAnswer<Resource<TcpSocket>> {
            store.data_mut().create_socket(family)
        },
    )?;
    let mut tcp = linker.instance(&format!("wasi:sockets/tcp@{VERSION}"))?;
    tcp.resource("tcp-socket", ResourceType::host::<TcpSocket>(), |mut store, socket| {
        let wasi = store.data_mut().wasi();
        wasi.table.delete(Resource::<TcpSocket>::new_own(socket))?;
        wasi.sockets.permits.remove(&socket);
        Ok(())
    })
}

impl State {
    fn create_socket(&mut self, family: IpAddressFamily) -> SocketAnswer<Resource<TcpSocket>> {
        let permit = match self.access.reach.shares.descriptors.permit() {
            Ok(permit) => permit,
            Err(full) => {
                self.wasi().sockets.known.log(&format!("no socket was made: {full}"));
                return Ok((Err(ErrorCode::NewSocketLimit),));
            }
        };
        match self.sockets().create_tcp_socket(family) {
            Ok(socket) => {
                self.until.sending();
                self.wasi().sockets.permits.insert(socket.rep(), permit);
                Ok((Ok(socket),))
            }
            Err(error) => Ok((Err(error.downcast()?),)),
        }
    }

    fn resolve(&mut self, network: Resource<Network>, name: String) -> SocketAnswer<Resource<Addresses>> {
        let access = self.access.clone();
        let wasi = self.wasi();
        wasi.table.get(&network)?;
        // What is no plain name could be decoded into another one than was checked.
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte));
        if !plain || !access.reach.grants.names_host(&name) {
            wasi.sockets.known.refuse(format_args!("resolve {name}"));
            return Ok((Err(ErrorCode::AccessDenied),));
        }
        if let Some(rehearsal) = &access.rehearsal {
            rehearsal.refuse();
            return Ok((Err(ErrorCode::TemporaryResolverFailure),));
        }
        Ok((Ok(wasi.table.push(Addresses::of(access, name))?),))
    }

    /// The next address of a granted name. Whether it may be reached is asked when it is connected to.
    fn next_address(&mut self, lookup: &Resource<Addresses>) -> SocketAnswer<Option<IpAddress>> {
        let wasi = self.wasi();
        let addresses = wasi.table.get_mut(lookup)?;
        let address = match addresses.next() {
            Ok(Some(address)) => address,
            Ok(None) => return Ok((Ok(None),)),
            Err(error) => return Ok((Err(error),)),
        };
        let mut resolved = wasi.sockets.known.resolved.lock();
        if resolved.len() >= limits::MAX_RESOLVED {
            resolved.clear();
        }
        resolved.insert((addresses.name.to_ascii_lowercase(), address));
        Ok((Ok(Some(address.into())),))
    }
}
