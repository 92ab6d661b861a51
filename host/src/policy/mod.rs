//! What a component may reach. The URI is the grant: the directory that it names, or the server, and the secrets of its
//! scheme; the config file can add to that, and nothing is granted that neither names.
//!
//! Text is parsed once, into types. Decisions are pure functions of the URI and the config; what they allow is opened by the
//! host. Two parts look at the machine, because their subject is there: where the links of a grant lead
//! ([`Grants::check_overlap`]), and what a secret is now ([`SecretSource::read`]).

mod addresses;
mod overlap;
mod secrets;
mod servers;
mod tenants;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

pub use overlap::Guarded;
pub use secrets::{SecretSource, Variable, check_secret_name};
pub use servers::{Host, Pattern, Server, split_port};
pub use tenants::{Prefix, Site, check_plain};

use crate::config::Settings;
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::uri::{StoreUri, variable_prefix};
use addresses::Kind;

/// What one store's component is granted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grants {
    /// The directory that the URI names.
    pub directory: Option<PathBuf>,
    /// The server that the URI names: `host:port`, as it is written there.
    pub server: Option<String>,
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The store's own URI.
    pub store: StoreUri,
    pub grants: Grants,
    /// Comes before each manifest's name, with a `/` between.
    pub prefix: Option<String>,
}

/// A server that the component may connect to, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantedServer {
    pub server: Server,
    by_uri: bool,
}

impl Target {
    /// Decide what a URI means under a config.
    pub fn decide(uri: &StoreUri, settings: &Settings) -> Result<Self, Error> {
        let (store, prefix) = match &settings.root {
            None => (uri.clone(), None),
            Some(root) => split_at_root(uri, root)?,
        };
        let own_secrets = settings.tenant.is_none().then(|| variable_prefix(store.backend()));
        let mut grants = Grants {
            directory: None,
            server: None,
            fs: settings.fs.clone(),
            connect: settings.connect.clone(),
            private_networks: settings.private_networks,
            env: settings.env.clone(),
            secrets: settings.secrets.clone(),
            secret_prefix: own_secrets,
        };
        if !store.authority().is_empty() {
            let server = store.authority();
            grants.server = Some(server.rsplit_once('@').map_or(server, |(_user, host)| host).to_owned());
        } else if !store.path().is_empty() {
            grants.directory = Some(directory(store.path())?);
        }
        Ok(Target { store, grants, prefix })
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
            let message = format!("no secret {name} is granted to this tenant");
            return Err(Error::new(ErrorKind::Denied, message));
        };
        let mut variable = prefix.clone() + &variable_prefix(name);
        variable.pop();
        // The loader's and our own, which a scheme and a name could spell together.
        secrets::check_variable(&variable)?;
        Ok(SecretSource::Variable(variable))
    }

    /// The environment variables that a component whose language brings WASI sees, by name. What begins with the scheme is
    /// a secret, and a secret is asked for by its own name.
    pub fn environment(&self) -> &[String] {
        &self.env
    }

    /// Whether the component may ask for the addresses of a host: it could connect to some port of it.
    pub fn names_host(&self, host: &str) -> bool {
        let Some(host) = Host::parse(host) else { return false };
        let own = self.server.as_deref().and_then(|granted| Host::parse(split_port(granted).0));
        own.as_ref() == Some(&host) || self.connect.iter().any(|pattern| pattern.allows_host(&host))
    }

    /// Whether the component may connect to `authority`, a name that it gives. A URI without a port leaves the port to the
    /// backend. Asked before the name is resolved.
    pub fn server(&self, authority: &str) -> Result<GrantedServer, Error> {
        let server = Server::parse(authority)?;
        let by_uri = self.server.as_deref().is_some_and(|granted| {
            let (host, port) = split_port(granted);
            Host::parse(host).as_ref() == Some(&server.host) && port.is_none_or(|port| port == server.port)
        });
        if by_uri || self.connect.iter().any(|pattern| pattern.allows(&server)) {
            return Ok(GrantedServer { server, by_uri });
        }
        let granted = self.server.as_deref().unwrap_or("no server");
        let also: Vec<&str> = self.connect.iter().map(Pattern::as_str).collect();
        let also = if also.is_empty() { String::new() } else { format!(", the config {}", also.join(", ")) };
        let message = format!("{server} is not granted: the URI names {granted}{also}");
        Err(Error::new(ErrorKind::Denied, message))
    }

    /// Refuse an address that a granted name led to, unless it may be reached. Asked for each connection, after the name is
    /// resolved: what it leads to may have changed.
    pub fn check_address(&self, granted: &GrantedServer, address: IpAddr) -> Result<(), Error> {
        let GrantedServer { server, by_uri } = granted;
        if self.connect.iter().any(|pattern| pattern.holds_address(address, server.port)) {
            return Ok(());
        }
        let why = match addresses::kind(address) {
            Kind::Public => return Ok(()),
            Kind::Private if *by_uri || self.private_networks => return Ok(()),
            Kind::Private => {
                "an address of a private network: set private_networks, or grant the network in connect".to_owned()
            }
            Kind::Special(what) => format!("{what}, never reached unless connect grants its network"),
        };
        Err(Error::new(ErrorKind::Denied, format!("{} is {address}, {why}", server.host)))
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

fn split_at_root(uri: &StoreUri, root: &str) -> Result<(StoreUri, Option<String>), Error> {
    let below = uri.path().strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let Some(rest) = below else {
        let (path, scheme) = (uri.path(), uri.backend());
        let message = format!("the path {path} is not below {root}, the root of backend.{scheme} in the config");
        return Err(Error::new(ErrorKind::Denied, message));
    };
    let prefix = rest.trim_matches('/');
    Ok((uri.with_path(root), (!prefix.is_empty()).then(|| prefix.to_owned())))
}

#[cfg(test)]
mod tests;
