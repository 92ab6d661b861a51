//! The operator's config file: which component serves a scheme, what it is granted, and for whom.
//!
//! `KV_STORE_WASM_CONFIG` names it; otherwise `kv-store-wasm/config.toml` below `$XDG_CONFIG_HOME` (or `~/.config`), then
//! `/etc/kv-store-wasm/config.toml`. It is looked at at each open, so a change holds for what is opened after it, and parsed
//! when it has changed. A host that a program builds may be given another file, or the text itself ([`Source`]). An unknown key is an error: a misspelt limit must not be a limit that is not there.

mod near;
mod read;
mod review;
mod tables;
mod tenants;
#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde::Deserialize;

pub use near::Near;
pub use read::{ConfigCache, FileIdentity, Source};
pub use review::Table;
pub use tables::{Digest, FaultTable, Helper};

use crate::descriptor::Descriptor;
use crate::error::Error;
use crate::limits::Limits;
use crate::log::{self, Level};
use crate::policy::{
    self, EndpointSources, Folder, GrantSettings, OpenTarget, Pattern, Prefix, SecretSource, Served, Variable,
    at_endpoint, endpoint_options,
};
use crate::quota::Quota;
use crate::suggest::{nearest, plain, suggestion};
use crate::uri::{self, StoreUri};
use tables::{BackendTable, Compile, Tenant, Value};
use tenants::Tenants;

/// The config file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where it was read. None: there is none.
    #[serde(skip)]
    pub path: Option<PathBuf>,
    /// Where the counters are served over HTTP: `HOST:PORT`, `:PORT` for the loopback address, `unix:/path`.
    pub metrics: Option<String>,
    /// The file that the counters are written to again and again, absolute.
    pub metrics_file: Option<PathBuf>,
    compile: Compile,
    /// By scheme.
    backend: BTreeMap<String, BackendTable>,
    tenant: Vec<Tenant>,
    #[serde(skip)]
    tenants: Tenants,
    /// What is probably misspelt was logged.
    #[serde(skip)]
    told: AtomicBool,
}

/// What the operator says of one URI: of its backend, and of its tenant where there is one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Settings {
    /// The tenant's prefix of URIs.
    pub tenant: Option<String>,
    /// The component's file, absolute; otherwise it is searched for.
    pub component: Option<PathBuf>,
    pub sha256: Option<Digest>,
    pub root: Option<String>,
    pub verify: Verify,
    pub layout1: Layout1,
    pub descriptor: Descriptor,
    pub require_descriptor: bool,
    pub direct: Direct,
    pub options: BTreeMap<String, String>,
    pub tls: Tls,
    pub connect: Vec<Pattern>,
    pub private_networks: bool,
    pub fs: BTreeMap<String, Folder>,
    /// Environment variables.
    pub env: Vec<String>,
    pub secrets: BTreeMap<String, SecretSource>,
    pub limits: Limits,
    pub quota: Quota,
    pub near: Option<Near>,
    pub fault: Option<FaultTable>,
}

/// Whom connections over TLS trust, and as whom they come. Files in PEM form, absolute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// The certificates that are trusted, in place of the system's.
    pub ca: Option<PathBuf>,
    /// The client's own certificate, followed by those that lead from it to its root, and its private key.
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

/// Whether what was fetched is checked against its hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verify {
    /// 8-byte hashes are checked once it was seen that they are XXH3-64 of the content.
    #[default]
    Auto,
    /// 8-byte hashes are XXH3-64 of the content.
    Xxh3,
    Off,
}

/// When large values that do not lie in the page cache are read around it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direct {
    /// A value is, unless it was read so not long ago: then it goes into the cache.
    #[default]
    Auto,
    /// Each is, whenever it does not lie there.
    On,
    /// None is.
    Off,
}

/// Whether what is not found in layout 2 is asked for in layout 1, as earlier versions wrote it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layout1 {
    #[default]
    Read,
    /// The store holds nothing in layout 1.
    Off,
}

impl Settings {
    /// What a URI means under them, where the backend is the one that serves its scheme.
    pub fn target(&self, uri: &StoreUri, served: &Served) -> Result<OpenTarget, Error> {
        let said = GrantSettings {
            root: self.root.as_deref(),
            is_tenant: self.tenant.is_some(),
            virtual_style: self.options.get("style").is_some_and(|style| style == "virtual"),
            fs: &self.fs,
            connect: &self.connect,
            private_networks: self.private_networks,
            env: &self.env,
            secrets: &self.secrets,
        };
        let target = OpenTarget::decide(uri, &said, served)?;
        if let Some(bytes) = self.quota.stored_bytes
            && target.grants.directory.is_none()
        {
            let scheme = &served.backend;
            return Err(Error::invalid(format!(
                "the config's quota stored_bytes = {bytes} holds for stores in a directory, and {scheme} is not one: take it out, and bound the \
                 server instead"
            )));
        }
        Ok(target)
    }
}

impl Config {
    pub fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let shown = path.display();
        let mut config: Config = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1);
            let message = error.message();
            Error::invalid(format!("{shown}:{line}: {}{}", plain(message), suggestion(message)))
        })?;
        config.path = Some(path.to_owned());
        if config.metrics_file.as_ref().is_some_and(|file| !file.is_absolute()) {
            return Err(Error::invalid(format!("{shown}: metrics_file must be an absolute path")));
        }
        for (scheme, backend) in &config.backend {
            backend.check(scheme).map_err(|error| error.context(format_args!("{shown}: backend.{scheme}")))?;
        }
        for tenant in &config.tenant {
            let checked = tenant.check();
            checked.map_err(|error| error.context(format_args!("{shown}: tenant {}", tenant.uri.uri().as_str())))?;
        }
        let tenants = Tenants::new(config.tenant.iter().map(|tenant| &tenant.uri));
        config.tenants = tenants.map_err(|error| error.context(&shown))?;
        Ok(config)
    }

    /// The tables of backends that no component serves and whose names are near to one that does: each with what was meant.
    /// `is_served`: whether a component was found for a scheme; `there`: the names of those that are installed.
    pub fn misspelt(&self, is_served: impl Fn(&str) -> bool, there: &BTreeSet<String>) -> Vec<String> {
        let unserved =
            self.backend.iter().filter(|(scheme, backend)| backend.component.is_none() && !is_served(scheme));
        let meant = unserved.filter_map(|(scheme, _)| {
            let meant = nearest(scheme, there.iter().map(String::as_str))?;
            Some(format!("backend.{scheme} serves no URI: there is no {scheme}.wasm; did you mean [backend.{meant}]?"))
        });
        meant.collect()
    }

    /// Log once what [`Config::misspelt`] finds.
    pub fn tell_misspelt(&self, is_served: impl Fn(&str) -> bool, there: impl FnOnce() -> BTreeSet<String>) {
        if self.told.load(Relaxed) || self.told.swap(true, Relaxed) {
            return;
        }
        let shown = self.path.as_deref().unwrap_or(Path::new("")).display().to_string();
        for message in self.misspelt(is_served, &there()) {
            log::line(Level::Warn, format_args!("{shown}: {message}"));
        }
    }

    /// The program that compiles components.
    pub fn helper(&self) -> Helper {
        self.compile.helper.clone()
    }

    /// The files and directories that the config names and that no component may reach, each with what it is.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let components = self.backend.values().filter_map(|backend| backend.component.as_deref());
        let secrets = self.backend.values().map(|backend| &backend.secrets);
        let secrets = secrets.chain(self.tenant.iter().map(|tenant| &tenant.secrets)).flat_map(BTreeMap::values);
        let secrets = secrets.filter_map(|source| match source {
            SecretSource::File(path) => Some(path.as_path()),
            SecretSource::Variable(_) => None,
        });
        let tls = self.backend.values().map(|backend| &backend.tls);
        let keys = tls.chain(self.tenant.iter().map(|tenant| &tenant.tls)).filter_map(|tls| tls.key.as_deref());
        let near = self.backend.values().map(|backend| &backend.near);
        let near = near.chain(self.tenant.iter().map(|tenant| &tenant.near)).flatten();
        let near = near.filter_map(|near| near.disk.as_deref()).map(|path| ("the disk tier of a near level", path));
        let files = components.map(|path| ("a component", path));
        files.chain(secrets.chain(keys).map(|path| ("a secret", path))).chain(near)
    }

    /// The directories of all tenants but the one that the settings are of, and but those that its own lies in: whoever they
    /// are of is refused, for holding it.
    pub fn directories_of_others(&self, settings: &Settings) -> Vec<(String, PathBuf)> {
        let own = settings.tenant.as_deref().and_then(|uri| StoreUri::parse(uri).ok());
        let holds_own =
            |path: &str| own.as_ref().is_some_and(|own| own.path() != path && Path::new(own.path()).starts_with(path));
        let uris = self.tenant.iter().map(|tenant| tenant.uri.uri());
        let others = uris.filter(|uri| Some(uri.as_str()) != settings.tenant.as_deref());
        let in_files =
            others.filter(|uri| uri.authority().is_empty() && uri.path().len() > 1 && !holds_own(uri.path()));
        in_files.map(|uri| (format!("the tenant {}", uri.as_str()), PathBuf::from(uri.path()))).collect()
    }

    /// The component that a backend's table names.
    pub fn component(&self, backend: &str) -> Option<&Path> {
        self.backend.get(backend)?.component.as_deref()
    }

    /// The backends whose tables name a component.
    pub fn components(&self) -> impl Iterator<Item = &str> {
        let named = self.backend.iter().filter(|(_, backend)| backend.component.is_some());
        named.map(|(name, _)| name.as_str())
    }

    /// Whether a backend's table says which component is the only one that is accepted.
    pub fn pins(&self, backend: &str) -> bool {
        self.backend.get(backend).is_some_and(|table| table.sha256.is_some())
    }

    /// Whether a table or a tenant is about a scheme.
    pub fn mentions(&self, scheme: &str) -> bool {
        self.backend.contains_key(scheme) || self.tenants.has(scheme)
    }

    /// The schemes that have tenants.
    pub fn schemes_of_tenants(&self) -> impl Iterator<Item = &str> {
        self.tenants.schemes()
    }

    /// Whether the tenants of a scheme can be told from each other. `port`: the one that is meant where none is named, if it is
    /// known.
    pub fn check_tenants(&self, scheme: &str, port: Option<u16>) -> Result<(), Error> {
        self.tenants.check(scheme, port, |number| self.prefix(number))
    }

    /// Refuse a table that no URI has: one named by a scheme of a backend that has another name.
    pub fn check_aliases(&self, served: &Served) -> Result<(), Error> {
        match served.aliases().find(|alias| self.backend.contains_key(*alias)) {
            Some(alias) => {
                let own = &served.backend;
                Err(Error::invalid(format!(
                    "backend.{alias}: write [backend.{own}]: {alias}:// has the table of {own}"
                )))
            }
            None => Ok(()),
        }
    }

    fn refuse_aliases(&self, served: &Served) -> Result<(), Error> {
        let shown = self.path.as_deref().unwrap_or(Path::new("the given config"));
        self.check_aliases(served).map_err(|error| error.context(shown.display()))
    }

    /// The URI that is meant by one that names something at its backend's endpoint: the same with the server; `uri` itself where it
    /// names one.
    pub fn placed(&self, uri: StoreUri, served: &Served) -> Result<StoreUri, Error> {
        self.refuse_aliases(served)?;
        let table = self.backend.get(&served.backend);
        let said = EndpointSources {
            endpoint: table.and_then(|table| table.endpoint.as_deref()),
            option: &|name| table?.options.get(name).map(|Value(text)| text.clone()),
            variable: &|name| std::env::var(name).ok(),
        };
        Ok(at_endpoint(&uri, served, &said)?.unwrap_or(uri))
    }

    /// What the operator says of a URI, whose scheme is served so; the defaults where that is nothing.
    ///
    /// `Denied` where its backend has tenants and none of them covers it.
    pub fn settings(&self, uri: &StoreUri, served: &Served) -> Result<Settings, Error> {
        self.refuse_aliases(served)?;
        let tenant = self.tenant(uri, served)?;
        let mut backend = self.backend.get(&served.backend).cloned().unwrap_or_default();
        match tenant {
            Some(tenant) => backend = backend.of(tenant.clone()),
            None => backend.take_options_of_endpoint(served),
        }
        Ok(Settings {
            tenant: tenant.map(|tenant| tenant.uri.uri().as_str().to_owned()),
            component: backend.component,
            sha256: backend.sha256,
            root: backend.root,
            verify: backend.verify,
            layout1: backend.layout1,
            descriptor: backend.descriptor,
            require_descriptor: backend.require_descriptor,
            direct: backend.direct,
            options: backend.options.into_iter().map(|(name, Value(text))| (name, text)).collect(),
            tls: backend.tls,
            connect: backend.connect,
            private_networks: backend.private_networks,
            fs: backend.fs,
            env: backend.env.into_iter().map(|Variable(name)| name).collect(),
            secrets: backend.secrets,
            limits: backend.limits.resolve(),
            quota: backend.quota,
            near: backend.near,
            fault: backend.fault,
        })
    }

    /// The tenant that covers a URI most closely.
    fn tenant(&self, uri: &StoreUri, served: &Served) -> Result<Option<&Tenant>, Error> {
        let found = self.tenants.find(uri, served, |number| self.prefix(number))?;
        Ok(found.and_then(|number| self.tenant.get(number)))
    }

    fn prefix(&self, number: usize) -> Option<&Prefix> {
        self.tenant.get(number).map(|tenant| &tenant.uri)
    }
}

impl BackendTable {
    /// The options that say where the endpoint is may come from the environment, as `S3_REGION` does.
    fn take_options_of_endpoint(&mut self, served: &Served) {
        let declared = served.declared.endpoint.as_deref().filter(|_| served.trusted).unwrap_or_default();
        for option in endpoint_options(declared) {
            let variable = uri::variable_prefix(&served.backend) + &uri::variable_name(option);
            if let Entry::Vacant(unset) = self.options.entry(option.to_owned())
                && let Ok(value) = std::env::var(variable)
            {
                unset.insert(Value(value));
            }
        }
    }

    /// The backend as a tenant has it: what it is stays, and what it reaches and knows is the tenant's own. Every field is
    /// named, so that a new one is the tenant's or not because somebody said so.
    fn of(self, tenant: Tenant) -> BackendTable {
        BackendTable {
            component: self.component,
            sha256: self.sha256,
            fault: self.fault,
            root: tenant.root,
            endpoint: self.endpoint,
            verify: tenant.verify.unwrap_or(self.verify),
            layout1: tenant.layout1.unwrap_or(self.layout1),
            descriptor: tenant.descriptor.over(&self.descriptor),
            require_descriptor: tenant.require_descriptor.unwrap_or(self.require_descriptor),
            direct: tenant.direct.unwrap_or(self.direct),
            options: self.options.into_iter().chain(tenant.options).collect(),
            // Whom it trusts, but not as whom it comes.
            tls: Tls { ca: tenant.tls.ca.or(self.tls.ca), ..tenant.tls },
            connect: tenant.connect,
            private_networks: tenant.private_networks,
            fs: tenant.fs,
            env: tenant.env,
            secrets: tenant.secrets,
            limits: tenant.limits.over(&self.limits),
            quota: tenant.quota,
            // As much again, of its own; or the same directory, whose bound holds for all.
            near: tenant.near.or(self.near),
        }
    }

    fn check(&self, scheme: &str) -> Result<(), Error> {
        uri::check_scheme(scheme)?;
        if self.component.as_ref().is_some_and(|path| !path.is_absolute()) {
            return Err(Error::invalid("component must be an absolute path"));
        }
        self.tls.check()?;
        self.near.as_ref().map_or(Ok(()), Near::check)?;
        check_root(self.root.as_deref())?;
        check_names(&self.fs, &self.secrets)
    }
}

impl Tls {
    fn check(&self) -> Result<(), Error> {
        let files = [("tls.ca", &self.ca), ("tls.certificate", &self.certificate), ("tls.key", &self.key)];
        let relative = |file: &Option<PathBuf>| file.as_ref().is_some_and(|path| !path.is_absolute());
        if let Some((name, _)) = files.iter().find(|(_, file)| relative(file)) {
            return Err(Error::invalid(format!("{name} must be an absolute path")));
        }
        if self.certificate.is_some() != self.key.is_some() {
            return Err(Error::invalid("tls.certificate and tls.key go together"));
        }
        Ok(())
    }
}

impl Tenant {
    fn check(&self) -> Result<(), Error> {
        self.tls.check()?;
        self.near.as_ref().map_or(Ok(()), Near::check)?;
        check_root(self.root.as_deref())?;
        let own = self.uri.uri().path();
        let below = |root: &str| root.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if self.root.as_deref().is_some_and(|root| !below(root)) {
            return Err(Error::invalid("root must not lie above the tenant's uri: what is stored there is shared"));
        }
        check_names(&self.fs, &self.secrets)
    }
}

fn check_root(root: Option<&str>) -> Result<(), Error> {
    match root {
        Some(root) if !root.starts_with('/') || root.ends_with('/') => {
            Err(Error::invalid("root must start with '/' and not end with it"))
        }
        _ => Ok(()),
    }
}

fn check_names(fs: &BTreeMap<String, Folder>, secrets: &BTreeMap<String, SecretSource>) -> Result<(), Error> {
    fs.iter().try_for_each(|(name, folder)| {
        policy::check_folder(name, &folder.path).map_err(|error| error.context(format_args!("fs.{name}")))
    })?;
    secrets.keys().try_for_each(|name| {
        policy::check_secret_name(name).map_err(|error| error.context(format_args!("secrets.{name}")))
    })
}
