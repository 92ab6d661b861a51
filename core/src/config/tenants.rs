//! Which tenant covers a URI, found without a look at each: a tenant is looked up by what it covers, from the closest that a
//! URI can have to the widest. `policy::Prefix` says what covers what.

use std::collections::HashMap;

use crate::error::{Error, ErrorKind};
use crate::policy::{Prefix, Site, check_plain, servers_in_one_spelling};
use crate::uri::StoreUri;

/// The tenants of a config, by what they cover.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    by_site: HashMap<Site, usize>,
    /// By scheme and host: a tenant that names a port, and one that names none and whose port the host does not know.
    ports: HashMap<(String, String), Ports>,
    /// By scheme and host: the servers of each tenant that has one there.
    lists: HashMap<(String, String), Lists>,
    /// The backends that have tenants.
    backends: HashMap<String, ()>,
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
    /// Add the tenant of this number.
    pub(super) fn add(&mut self, number: usize, prefix: &Prefix) -> Result<(), Error> {
        let site = prefix.site();
        if self.shares_servers(prefix.uri(), &site).is_some() {
            return Err(Error::invalid("shares some servers with another tenant: name the same servers in both"));
        }
        for (host, port) in servers_in_one_spelling(prefix.uri()).into_iter().filter(|(host, _)| !host.is_empty()) {
            let lists = self.lists.entry((site.scheme.clone(), host)).or_default();
            lists.entry((port, site.host.clone())).or_insert(number);
        }
        let key = (site.scheme.clone(), site.host.clone());
        let named = site.port.is_some();
        if self.by_site.insert(site, number).is_some() {
            return Err(Error::invalid("is a second tenant with the same server and path"));
        }
        if !key.1.is_empty() {
            let ports = self.ports.entry(key).or_default();
            if ports.unclear(named).is_some() {
                return Err(Error::invalid("name the port in all tenants on this server, or in none"));
            }
            let own = if named { &mut ports.named } else { &mut ports.unnamed };
            own.get_or_insert(number);
        }
        self.backends.insert(prefix.uri().backend().to_owned(), ());
        Ok(())
    }

    /// A tenant that has some servers in common with a URI and not all, where one of the two has several: which of them the data is
    /// on nobody here knows, so neither may reach the other's by a longer or a shorter list.
    fn shares_servers(&self, uri: &StoreUri, site: &Site) -> Option<usize> {
        let servers = servers_in_one_spelling(uri);
        let several = servers.len() > 1;
        servers.into_iter().find_map(|(host, port)| {
            let lists = self.lists.get(&(site.scheme.clone(), host.clone()))?;
            let differs = |((at, list), number): (&(Option<u16>, String), &usize)| {
                let same_server = *at == port || at.is_none() || port.is_none();
                // The list of one server is its host.
                let either = several || *list != host;
                (same_server && either && *list != site.host).then_some(*number)
            };
            lists.iter().find_map(differs)
        })
    }

    /// The number of the tenant that covers a URI most closely; none where its backend has no tenants. `uri_of` tells a
    /// tenant's own.
    pub(super) fn find<'a>(&self, uri: &StoreUri, uri_of: impl Fn(usize) -> &'a str) -> Result<Option<usize>, Error> {
        if !self.backends.contains_key(uri.backend()) {
            return Ok(None);
        }
        check_plain(uri)?;
        let site = Site::of(uri);
        if let Some(tenant) = self.shares_servers(uri, &site) {
            let tenant = uri_of(tenant);
            let message =
                format!("the URI must name exactly the servers of the tenant {tenant}, all of them and no other");
            return Err(Error::new(ErrorKind::Denied, message));
        }
        let ports = self.ports.get(&(site.scheme.clone(), site.host.clone()));
        if let Some(tenant) = ports.and_then(|ports| ports.unclear(site.port.is_some())) {
            let tenant = uri_of(tenant);
            let message = format!("the URI and the tenant {tenant} must both name the port, or neither");
            return Err(Error::new(ErrorKind::Denied, message));
        }
        match site.covering().find_map(|site| self.by_site.get(&site)) {
            Some(number) => Ok(Some(*number)),
            None => {
                let message = format!(
                    "the config has tenants for {0}:// and none covers this URI: add a [[tenant]] that does",
                    uri.backend()
                );
                Err(Error::new(ErrorKind::Denied, message))
            }
        }
    }
}
