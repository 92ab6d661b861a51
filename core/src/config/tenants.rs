//! Which tenant covers a URI, found without a look at each: a tenant is looked up by what it covers, from the closest that a
//! URI can have to the widest. `policy::Prefix` says what covers what.
//!
//! Which servers are the same depends on the port that a scheme has where none is named, and that is known when the scheme's
//! component is found. So there is an index for each scheme and port, made at the first open that needs it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kv_platform::sync::Mutex;

use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::policy::{Prefix, Served, Site, check_plain, servers_in_one_spelling};
use crate::uri::StoreUri;

/// The tenants of a config, by scheme: the numbers of each, in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    by_scheme: HashMap<String, Vec<usize>>,
    made: Mutex<Made>,
}

/// What was made so far, by scheme and the port that is meant where a URI names none.
type Made = HashMap<(String, Option<u16>), Arc<TenantIndex>>;

/// The tenants of one scheme, by what they cover where a port that is not named is a certain one, or not known.
#[derive(Debug, Default)]
struct TenantIndex {
    /// The port that is meant where none is named, if it is known.
    port: Option<u16>,
    by_site: HashMap<Site, usize>,
    /// By host: a tenant that names a port, and one that names none and whose port the host does not know.
    ports: HashMap<String, Ports>,
    /// By host: the servers of each tenant that has one there.
    lists: HashMap<String, Lists>,
}

/// All the servers of a tenant in one spelling, by that and the port of the one that it is about.
type Lists = HashMap<(Option<u16>, String), usize>;

#[derive(Debug, Default)]
struct Ports {
    named: Option<usize>,
    unnamed: Option<usize>,
}

impl Ports {
    /// One of which it cannot be told whether it is on the same server as what names a port, or names none.
    fn unclear(&self, named: bool) -> Option<usize> {
        if named { self.unnamed } else { self.named }
    }
}

impl Tenants {
    /// Those of a config. `prefix` tells the URIs of each.
    ///
    /// An error names a tenant that is there twice; what depends on the port of a scheme is found later.
    pub(super) fn new<'a>(prefixes: impl Iterator<Item = &'a Prefix>) -> Result<Self, Error> {
        let mut tenants = Tenants::default();
        let mut sites = HashSet::new();
        for (number, prefix) in prefixes.enumerate() {
            tenants.by_scheme.entry(prefix.uri().scheme().to_owned()).or_default().push(number);
            if !sites.insert(prefix.site(None)) {
                return Err(of(prefix, Error::invalid(TWICE)));
            }
        }
        Ok(tenants)
    }

    /// The schemes that have tenants.
    pub(super) fn schemes(&self) -> impl Iterator<Item = &str> {
        self.by_scheme.keys().map(String::as_str)
    }

    pub(super) fn has(&self, scheme: &str) -> bool {
        self.by_scheme.contains_key(scheme)
    }

    /// The tenants of a scheme. `port`: the one that is meant where none is named, if it is known.
    ///
    /// An error names the tenant that cannot be beside another.
    pub(super) fn check<'a>(
        &self,
        scheme: &str,
        port: Option<u16>,
        prefix: impl Fn(usize) -> Option<&'a Prefix>,
    ) -> Result<(), Error> {
        self.index(scheme, port, prefix).map(|_| ())
    }

    fn index<'a>(
        &self,
        scheme: &str,
        port: Option<u16>,
        prefix: impl Fn(usize) -> Option<&'a Prefix>,
    ) -> Result<Arc<TenantIndex>, Error> {
        let key = (scheme.to_owned(), port);
        // Never waited for: a fork may leave it locked for ever. Who comes at the same moment makes an index of its own.
        if let Some(made) = self.made.try_lock().and_then(|made| made.get(&key).cloned()) {
            return Ok(made);
        }
        let mut index = TenantIndex { port, ..TenantIndex::default() };
        for number in self.by_scheme.get(scheme).into_iter().flatten() {
            let Some(prefix) = prefix(*number) else { continue };
            index.add(*number, prefix).map_err(|error| of(prefix, error))?;
        }
        let index = Arc::new(index);
        if let Some(mut made) = self.made.try_lock() {
            if made.len() >= limits::MAX_TENANT_INDEXES {
                made.clear();
            }
            made.insert(key, index.clone());
        }
        Ok(index)
    }

    /// The number of the tenant that covers a URI most closely; none where its backend has no tenants. `prefix` tells the URIs
    /// of each.
    pub(super) fn find<'a>(
        &self,
        uri: &StoreUri,
        served: &Served,
        prefix: impl Fn(usize) -> Option<&'a Prefix>,
    ) -> Result<Option<usize>, Error> {
        let mut own = [uri.scheme(), served.backend.as_str()].into_iter().chain(served.aliases());
        if !own.any(|scheme| self.has(scheme)) {
            return Ok(None);
        }
        check_plain(uri)?;
        let index = self.index(uri.scheme(), served.port(uri.scheme()), &prefix)?;
        let uri_of = |number: usize| prefix(number).map_or("", |prefix| prefix.uri().as_str());
        index.find(uri, &served.backend, uri_of)
    }
}

const TWICE: &str = "is a second tenant with the same server and path";

fn of(prefix: &Prefix, error: Error) -> Error {
    error.context(format_args!("tenant {}", prefix.uri().as_str()))
}

impl TenantIndex {
    fn add(&mut self, number: usize, prefix: &Prefix) -> Result<(), Error> {
        let site = prefix.site(self.port);
        if self.shares_servers(prefix.uri(), &site).is_some() {
            return Err(Error::invalid("shares some servers with another tenant: name the same servers in both"));
        }
        let servers = servers_in_one_spelling(prefix.uri(), self.port);
        for (host, port) in servers.into_iter().filter(|(host, _)| !host.is_empty()) {
            let lists = self.lists.entry(host).or_default();
            lists.entry((port, site.host.clone())).or_insert(number);
        }
        let key = site.host.clone();
        let named = site.port.is_some();
        if self.by_site.insert(site, number).is_some() {
            return Err(Error::invalid(TWICE));
        }
        if !key.is_empty() {
            let ports = self.ports.entry(key).or_default();
            if ports.unclear(named).is_some() {
                return Err(Error::invalid("name the port in all tenants on this server, or in none"));
            }
            let own = if named { &mut ports.named } else { &mut ports.unnamed };
            own.get_or_insert(number);
        }
        Ok(())
    }

    /// A tenant that has some servers in common with a URI and not all, where one of the two has several: which of them the data is
    /// on nobody here knows, so neither may reach the other's by a longer or a shorter list.
    fn shares_servers(&self, uri: &StoreUri, site: &Site) -> Option<usize> {
        let servers = servers_in_one_spelling(uri, self.port);
        let several = servers.len() > 1;
        servers.into_iter().find_map(|(host, port)| {
            let lists = self.lists.get(&host)?;
            let differs = |((at, list), number): (&(Option<u16>, String), &usize)| {
                let same_server = *at == port || at.is_none() || port.is_none();
                // The list of one server is its host.
                let either = several || *list != host;
                (same_server && either && *list != site.host).then_some(*number)
            };
            lists.iter().find_map(differs)
        })
    }

    /// The number of the tenant that covers a URI most closely. `uri_of` tells a tenant's own.
    fn find<'a>(
        &self,
        uri: &StoreUri,
        backend: &str,
        uri_of: impl Fn(usize) -> &'a str,
    ) -> Result<Option<usize>, Error> {
        let site = Site::of(uri, self.port);
        if let Some(tenant) = self.shares_servers(uri, &site) {
            let tenant = uri_of(tenant);
            let message =
                format!("the URI must name exactly the servers of the tenant {tenant}, all of them and no other");
            return Err(Error::new(ErrorKind::Denied, message));
        }
        let ports = self.ports.get(&site.host);
        if let Some(tenant) = ports.and_then(|ports| ports.unclear(site.port.is_some())) {
            let tenant = uri_of(tenant);
            let message = format!("the URI and the tenant {tenant} must both name the port, or neither");
            return Err(Error::new(ErrorKind::Denied, message));
        }
        match site.covering().find_map(|site| self.by_site.get(&site)) {
            Some(number) => Ok(Some(*number)),
            None => {
                let message = format!(
                    "the config has tenants for {backend}:// and none covers this URI: add a [[tenant]] that does"
                );
                Err(Error::new(ErrorKind::Denied, message))
            }
        }
    }
}
