//! Which tenant covers a URI, found without a look at each: a tenant is looked up by what it covers, from the closest that a
//! URI can have to the widest. `policy::Prefix` says what covers what.

use std::collections::HashMap;

use crate::error::{Error, ErrorKind};
use crate::policy::{Prefix, Site, check_plain};
use crate::uri::StoreUri;

/// The tenants of a config, by what they cover.
#[derive(Debug, Default)]
pub(super) struct Tenants {
    by_site: HashMap<Site, usize>,
    /// By scheme and host: a tenant that names a port, and one that names none and whose port the host does not know.
    ports: HashMap<(String, String), Ports>,
    /// The backends that have tenants.
    backends: HashMap<String, ()>,
}

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
        let key = (site.scheme.clone(), site.host.clone());
        let named = site.port.is_some();
        if self.by_site.insert(site, number).is_some() {
            return Err(Error::invalid("is there twice, maybe in another spelling"));
        }
        if !key.1.is_empty() {
            let ports = self.ports.entry(key).or_default();
            if ports.unclear(named).is_some() {
                return Err(Error::invalid("write the port, in all tenants on this server or in none"));
            }
            let own = if named { &mut ports.named } else { &mut ports.unnamed };
            own.get_or_insert(number);
        }
        self.backends.insert(prefix.uri().backend().to_owned(), ());
        Ok(())
    }

    /// The number of the tenant that covers a URI most closely; none where its backend has no tenants. `uri_of` tells a
    /// tenant's own.
    pub(super) fn find<'a>(&self, uri: &StoreUri, uri_of: impl Fn(usize) -> &'a str) -> Result<Option<usize>, Error> {
        if !self.backends.contains_key(uri.backend()) {
            return Ok(None);
        }
        check_plain(uri)?;
        let site = Site::of(uri);
        let ports = self.ports.get(&(site.scheme.clone(), site.host.clone()));
        if let Some(tenant) = ports.and_then(|ports| ports.unclear(site.port.is_some())) {
            let tenant = uri_of(tenant);
            let message = format!("write the server as the tenant {tenant} has it: one has a port, and the other none");
            return Err(Error::new(ErrorKind::Denied, message));
        }
        match site.covering().find_map(|site| self.by_site.get(&site)) {
            Some(number) => Ok(Some(*number)),
            None => {
                let message = format!("no tenant of the config covers it, and {} is for tenants only", uri.backend());
                Err(Error::new(ErrorKind::Denied, message))
            }
        }
    }
}
