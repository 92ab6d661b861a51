//! Sockets under the policy of the contract's `net`: TCP to the servers that were granted, and nothing else. WASI connects
//! to addresses and not to names, so an address counts as a server's if the server's granted name was resolved to it.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::{Host, HostResolveAddressStream, ResolveAddressStream};
use wasmtime_wasi::p2::bindings::sockets::network::{ErrorCode, IpAddress, Network};
use wasmtime_wasi::sockets::{SocketAddrUse, WasiSocketsView};

use super::super::Access;
use super::{State, VERSION};
use crate::limits;
use crate::log::{self, Level};

type Answer<T> = wasmtime::Result<(Result<T, ErrorCode>,)>;
type Store<'a> = StoreContextMut<'a, State>;

/// What an instance has learned of the servers that it was granted.
pub(super) struct Sockets {
    /// The names that lookups under way are for, by their handles.
    lookups: HashMap<u32, String>,
    known: Arc<Known>,
}

struct Known {
    access: Arc<Access>,
    /// Granted names, in lower case, and addresses that they were resolved to.
    resolved: Mutex<HashSet<(String, IpAddr)>>,
}

impl Sockets {
    pub(super) fn new(access: Arc<Access>) -> Self {
        Sockets { lookups: HashMap::new(), known: Arc::new(Known { access, resolved: Mutex::default() }) }
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
        let grants = &self.access.grants;
        let literal = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let resolved = self.resolved.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
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
        let granted = self.access.grants.server.as_deref().unwrap_or("no server");
        let said = format!("denied: it tried to {what}; the URI names {granted}");
        self.log(&said);
    }

    fn log(&self, said: &str) {
        log::component_line(Level::Warn, &self.access.name, said, &self.access.log);
    }
}

/// In place of wasmtime-wasi's functions of these names.
pub(super) fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    let mut lookup = linker.instance(&format!("wasi:sockets/ip-name-lookup@{VERSION}"))?;
    lookup.func_wrap(
        "resolve-addresses",
        |mut store: Store, (network, name): (Resource<Network>, String)| -> Answer<Resource<ResolveAddressStream>> {
            store.data_mut().resolve(network, name)
        },
    )?;
    lookup.func_wrap(
        "[method]resolve-address-stream.resolve-next-address",
        |mut store: Store, (lookup,): (Resource<ResolveAddressStream>,)| -> Answer<Option<IpAddress>> {
            store.data_mut().next_address(lookup.rep())
        },
    )
}

impl State {
    fn resolve(&mut self, network: Resource<Network>, name: String) -> Answer<Resource<ResolveAddressStream>> {
        // wasmtime-wasi decodes and maps what is no plain name, and would look up another one than was checked.
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_:".contains(&byte));
        if !plain || !self.access.grants.names_host(&name) {
            let known = &self.wasi().sockets.known;
            known.refuse(format_args!("resolve {name}"));
            return Ok((Err(ErrorCode::AccessDenied),));
        }
        match self.sockets().resolve_addresses(network, name.clone()) {
            Ok(lookup) => {
                // Bounded as the handles are, whose numbers are used again.
                self.wasi().sockets.lookups.insert(lookup.rep(), name);
                Ok((Ok(lookup),))
            }
            Err(error) => Ok((Err(error.downcast()?),)),
        }
    }

    /// The next address of a granted name. Whether it may be reached is asked when it is connected to.
    fn next_address(&mut self, lookup: u32) -> Answer<Option<IpAddress>> {
        let address = match self.sockets().resolve_next_address(Resource::new_borrow(lookup)) {
            Ok(Some(address)) => address,
            Ok(None) => return Ok((Ok(None),)),
            Err(error) => return Ok((Err(error.downcast()?),)),
        };
        let sockets = &self.wasi().sockets;
        if let Some(name) = sockets.lookups.get(&lookup) {
            let mut resolved = sockets.known.resolved.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if resolved.len() >= limits::MAX_RESOLVED {
                resolved.clear();
            }
            resolved.insert((name.to_ascii_lowercase(), ip(address)));
        }
        Ok((Ok(Some(address)),))
    }
}

fn ip(address: IpAddress) -> IpAddr {
    match address {
        IpAddress::Ipv4(v4) => IpAddr::from(<[u8; 4]>::from(v4)),
        IpAddress::Ipv6(v6) => IpAddr::from(<[u16; 8]>::from(v6)),
    }
}
