//! What a component may reach. The URI is the grant: the directory that it names, or the server, and the secrets of its
//! scheme; the config file can add to that, and nothing is granted that neither names.
//!
//! Text is parsed once, into types. Decisions are pure functions of the URI and the config; what they allow is opened by the
//! host. Two parts look at the machine, because their subject is there: where the links of a grant lead
//! ([`Grants::check_overlap`]), and what a secret is now ([`SecretSource::read`]).

mod addresses;
mod endpoint;
mod overlap;
mod secrets;
mod served;
mod servers;
mod tenants;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use endpoint::{EndpointSources, at_endpoint, is_endpoint, options as endpoint_options};
pub use overlap::Guarded;
pub use secrets::{SecretSource, Variable, check_secret_name};
pub use served::{Declared, Scheme, Served};
#[cfg(test)]
pub use served::{as_shipped, trusted};
pub use servers::{Host, Pattern, Server, split_port};
pub use tenants::{Prefix, Site, check_plain, servers as servers_in_one_spelling};

use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::suggest::nearest;
use crate::uri::{StoreUri, variable_name, variable_prefix};
use addresses::AddressKind;

/// What one store's component is granted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Grants {
    /// The directory that the URI names.
    pub directory: Option<PathBuf>,
    /// The servers that the URI names: each `host:port`. Without a port there is none that is granted: neither the URI nor a component
    /// that is trusted to do so says which one is meant.
    pub servers: Vec<String>,
    /// Further directories, by the names that the component asks for.
    pub fs: BTreeMap<String, Folder>,
    /// Further servers.
    pub connect: Vec<Pattern>,
    /// Whether a further server may turn out to be a machine of a private network. The URI's own always may.
    pub private_networks: bool,
    /// Environment variables that a component whose language brings WASI sees.
    pub env: Vec<String>,
    /// Where the secrets are that the config names.
    pub secrets: BTreeMap<String, SecretSource>,
    /// How the environment variables of its other secrets begin: `REDIS_`. None for a tenant, who has its own or none.
    pub secret_prefix: Option<String>,
}

/// A granted directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Folder {
    /// Absolute.
    pub path: PathBuf,
    #[serde(default)]
    pub access: FolderAccess,
}

/// What may be done in a granted directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Deserialize)]
pub enum FolderAccess {
    #[default]
    #[serde(rename = "ro")]
    ReadOnly,
    #[serde(rename = "rw")]
    ReadWrite,
}

/// A URI seen with the operator's config: the store, what its component is granted, and what prefixes manifests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenTarget {
    /// The store's own URI.
    pub store: StoreUri,
    /// The name of the backend that serves it.
    pub backend: String,
    pub grants: Grants,
    /// Comes before each manifest's name, with a `/` between.
    pub prefix: Option<String>,
}

/// Without the backend's name, which its component decides: a near level's directory is found again under the same hash.
impl std::hash::Hash for OpenTarget {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (&self.store, &self.grants, &self.prefix).hash(state);
    }
}

/// A server that the component may connect to, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedServer {
    pub server: Server,
    by_uri: bool,
}

/// What the config says of a URI that bears on what its component may reach.
#[derive(Clone, Copy, Debug)]
pub struct GrantSettings<'a> {
    /// Where the store's path ends.
    pub root: Option<&'a str>,
    /// It is a tenant's.
    pub is_tenant: bool,
    /// Where `options.style` is `virtual`, the first segment of the URI's path is named in front of the host.
    pub virtual_style: bool,
    pub fs: &'a BTreeMap<String, Folder>,
    pub connect: &'a [Pattern],
    pub private_networks: bool,
    pub env: &'a [String],
    pub secrets: &'a BTreeMap<String, SecretSource>,
}

impl OpenTarget {
    /// Decide what a URI means under a config, where the backend is the one that serves its scheme.
    pub fn decide(uri: &StoreUri, said: &GrantSettings<'_>, served: &Served) -> Result<Self, Error> {
        let (store, prefix) = match said.root {
            None => (uri.clone(), None),
            Some(root) => split_at_root(uri, root, &served.backend)?,
        };
        let mut grants = Grants {
            directory: None,
            servers: Vec::new(),
            fs: said.fs.clone(),
            connect: said.connect.to_vec(),
            private_networks: said.private_networks,
            env: said.env.to_vec(),
            secrets: said.secrets.clone(),
            secret_prefix: (!said.is_tenant).then(|| variable_prefix(&served.backend)),
        };
        if !store.authority().is_empty() {
            let port = served.port(store.scheme());
            let servers = servers_of(store.authority()).map(|server| with_port(server, port));
            grants.servers = servers.map(|server| in_virtual_style(&store, said.virtual_style, &server)).collect();
        } else if !store.path().is_empty() {
            grants.directory = Some(directory(store.path())?);
        }
        Ok(OpenTarget { store, backend: served.backend.clone(), grants, prefix })
    }
}

impl Grants {
    /// Where a secret of this component is kept.
    ///
    /// `Denied` where the name is not one that a secret can have, or is not the component's.
    pub fn secret(&self, name: &str) -> Result<SecretSource, Error> {
        check_secret_name(name)?;
        if let Some(source) = self.secrets.get(name) {
            return Ok(source.clone());
        }
        let Some(prefix) = &self.secret_prefix else {
            let message = format!(
                "no secret {name} is granted to this tenant: add it to the secrets of its [[tenant]] in the config"
            );
            return Err(Error::new(ErrorKind::Denied, message));
        };
        let variable = prefix.clone() + &variable_name(name);
        // The loader's and our own, which a scheme and a name could spell together.
        secrets::check_variable(&variable)?;
        Ok(SecretSource::Variable(variable))
    }

    /// Whether the config says where such a secret is kept, or the environment may have it. A tenant has none but those of its table.
    pub fn has_secret(&self, name: &str) -> bool {
        self.secret_prefix.is_some() || self.secrets.contains_key(name)
    }

    /// The secret of the config that was probably meant to have this name: one that is near to it.
    pub fn misspelt_secret(&self, name: &str) -> Option<&str> {
        let others = self.secrets.keys().map(String::as_str).filter(|_| !self.secrets.contains_key(name));
        nearest(name, others)
    }

    /// The environment variables that a component whose language brings WASI sees, by name. What begins with the scheme is
    /// a secret, and a secret is asked for by its own name.
    pub fn environment(&self) -> &[String] {
        &self.env
    }

    /// Whether the component may ask for the addresses of a host: it could connect to some port of it.
    pub fn names_host(&self, host: &str) -> bool {
        let Some(host) = Host::parse(host) else { return false };
        let is_own = |granted: &String| Host::parse(split_port(granted).0).as_ref() == Some(&host);
        self.servers.iter().any(is_own) || self.connect.iter().any(|pattern| pattern.allows_host(&host))
    }

    /// Whether the component may connect to `authority`, a name that it gives. A host without a port grants none of its ports.
    /// Asked before the name is resolved.
    pub fn server(&self, authority: &str) -> Result<GrantedServer, Error> {
        let server = Server::parse(authority)?;
        let named = |granted: &String| {
            let (host, port) = split_port(granted);
            (Host::parse(host).as_ref() == Some(&server.host)).then_some(port)
        };
        let mut ports = self.servers.iter().filter_map(named);
        // Mostly it is spelt as in the URI, and that need not be taken apart once more.
        let as_written = self.servers.iter().any(|granted| granted == authority);
        let by_uri = as_written || ports.clone().any(|port| port == Some(server.port));
        if by_uri || self.connect.iter().any(|pattern| pattern.allows(&server)) {
            return Ok(GrantedServer { server, by_uri });
        }
        if ports.any(|port| port.is_none()) {
            let message = format!(
                "{server} is not granted: the URI names {} and no port, and only a component that ships with this library or \
                 that the config pins by its sha256 may choose one, by declaring it; write {server} in the URI, if that is the \
                 server that is meant",
                server.host
            );
            return Err(Error::new(ErrorKind::Denied, message));
        }
        let also: Vec<&str> = self.connect.iter().map(Pattern::as_str).collect();
        let also = if also.is_empty() { String::new() } else { format!(", connect in the config {}", also.join(", ")) };
        let message = format!(
            "{server} is not granted: the URI names {}{also}; name it in the URI, or add it to the config: connect = \
             [\"{server}\"]",
            self.named_servers()
        );
        Err(Error::new(ErrorKind::Denied, message))
    }

    /// Whether the component may connect to anything.
    pub fn is_networked(&self) -> bool {
        !self.servers.is_empty() || !self.connect.is_empty()
    }

    /// The servers that the URI names, for people.
    pub fn named_servers(&self) -> String {
        if self.servers.is_empty() { "no server".to_owned() } else { self.servers.join(",") }
    }

    /// Refuse an address that a granted name led to, unless it may be reached. Asked for each connection, after the name is
    /// resolved: what it leads to may have changed.
    pub fn check_address(&self, granted: &GrantedServer, address: IpAddr) -> Result<(), Error> {
        let GrantedServer { server, by_uri } = granted;
        if self.connect.iter().any(|pattern| pattern.holds_address(address, server.port)) {
            return Ok(());
        }
        let why = match addresses::kind(address) {
            AddressKind::Public => return Ok(()),
            AddressKind::Private if *by_uri || self.private_networks => return Ok(()),
            AddressKind::Private => {
                format!(
                    "an address of a private network: add to the config connect = [\"{}\"], or private_networks = true",
                    Server { host: Host::Address(address.to_canonical()), port: server.port }
                )
            }
            AddressKind::Special(what) => format!("{what}, never reached unless connect grants its network"),
        };
        Err(Error::new(ErrorKind::Denied, format!("{} is {address}, {why}", server.host)))
    }
}

/// The servers that a URI names: `user@host:port,host:port`.
fn servers_of(authority: &str) -> impl Iterator<Item = &str> {
    let servers = authority.rsplit_once('@').map_or(authority, |(_user, servers)| servers);
    servers.split(',').filter(|server| !server.is_empty())
}

/// A server of a URI with its port: the one that is written there, or the one that is meant where there is none.
fn with_port(server: &str, port: Option<u16>) -> String {
    match (split_port(server).1, port) {
        (None, Some(port)) if Host::parse(server).is_some() => format!("{server}:{port}"),
        _ => server.to_owned(),
    }
}

/// In virtual style the server with the first segment of the URI's path in front of its name is granted, and the one that is named
/// is not.
fn in_virtual_style(store: &StoreUri, virtually: bool, server: &str) -> String {
    match store.path().split('/').nth(1).filter(|_| virtually) {
        Some(bucket) => format!("{bucket}.{server}"),
        None => server.to_owned(),
    }
}

/// A directory that a config or a URI names. The last part of a URI's path may come from a request, so what could lead
/// elsewhere is refused and not resolved.
fn directory(path: &str) -> Result<PathBuf, Error> {
    if path.split('/').any(|segment| segment == "." || segment == "..") {
        return Err(Error::new(ErrorKind::Denied, "the URI's path holds '.' or '..': write it without"));
    }
    Ok(PathBuf::from(path))
}

/// Check the name and the path of a granted directory.
pub fn check_folder(name: &str, path: &Path) -> Result<(), Error> {
    let tame = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
    if name.is_empty() || name.len() > limits::MAX_SECRET_NAME_BYTES || !name.chars().all(tame) {
        return Err(Error::invalid(format!("{name:?}: a directory's name is 1 to 64 of a-z, 0-9, '-' and '_'")));
    }
    let plain = path.to_str().is_some_and(|path| directory(path).is_ok());
    if !path.is_absolute() || !plain {
        return Err(Error::invalid(format!("{} must be an absolute path without '.' and '..'", path.display())));
    }
    Ok(())
}

fn split_at_root(uri: &StoreUri, root: &str, backend: &str) -> Result<(StoreUri, Option<String>), Error> {
    let below = uri.path().strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let Some(rest) = below else {
        let path = uri.path();
        let message = format!("the path {path} is not below {root}, the root of backend.{backend} in the config");
        return Err(Error::new(ErrorKind::Denied, message));
    };
    let prefix = rest.trim_matches('/');
    Ok((uri.with_path(root), (!prefix.is_empty()).then(|| prefix.to_owned())))
}

#[cfg(test)]
mod tests;
