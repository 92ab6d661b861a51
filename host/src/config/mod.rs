//! The operator's config file: which component serves a scheme, what it is granted, and for whom.
//!
//! `KV_STORE_WASM_CONFIG` names it; otherwise `kv-store-wasm/config.toml` below `$XDG_CONFIG_HOME` (or `~/.config`), then
//! `/etc/kv-store-wasm/config.toml`. It is looked at at each open, so a change holds for what is opened after it, and parsed
//! when it has changed. An unknown key is an error: a misspelt limit must not be a limit that is not there.

mod read;
mod suggest;
mod tables;
mod tenants;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

pub(crate) use read::default_places;
pub use tables::{Digest, Helper};

use crate::error::Error;
use crate::fault::Fault;
use crate::limits::Limits;
use crate::policy::{self, Folder, Pattern, SecretSource, Variable};
use crate::uri::{self, StoreUri};
use tables::{Backend, Compile, Tenant};
use tenants::Tenants;

/// The config file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Where it was read. None: there is none.
    #[serde(skip)]
    pub path: Option<PathBuf>,
    compile: Compile,
    /// By scheme.
    backend: BTreeMap<String, Backend>,
    tenant: Vec<Tenant>,
    #[serde(skip)]
    tenants: Tenants,
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
    pub options: BTreeMap<String, String>,
    pub tls: Tls,
    pub connect: Vec<Pattern>,
    pub private_networks: bool,
    pub fs: BTreeMap<String, Folder>,
    /// Environment variables.
    pub env: Vec<String>,
    pub secrets: BTreeMap<String, SecretSource>,
    pub limits: Limits,
    pub fault: Option<Fault>,
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

impl Config {
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let shown = path.display();
        let mut config: Config = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1);
            let message = error.message();
            Error::invalid(format!("{shown}:{line}: {message}{}", suggest::suggestion(message)))
        })?;
        config.path = Some(path.to_owned());
        for (scheme, backend) in &config.backend {
            backend.check(scheme).map_err(|error| error.context(format_args!("{shown}: backend.{scheme}")))?;
        }
        for (number, tenant) in config.tenant.iter().enumerate() {
            let added = tenant.check().and_then(|()| config.tenants.add(number, &tenant.uri));
            added.map_err(|error| error.context(format_args!("{shown}: tenant {}", tenant.uri.uri().as_str())))?;
        }
        Ok(config)
    }

    /// The program that compiles components.
    pub fn helper(&self) -> Helper {
        self.compile.helper.clone()
    }

    /// The files that the config names and that no component may reach, each with what it is.
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
        components.map(|path| ("a component", path)).chain(secrets.chain(keys).map(|path| ("a secret", path)))
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

    /// What the operator says of a URI; the defaults where that is nothing.
    ///
    /// `Denied` where its scheme has tenants and none of them covers it.
    pub fn settings(&self, uri: &StoreUri) -> Result<Settings, Error> {
        let tenant = self.tenant(uri)?;
        let backend = self.backend.get(uri.backend()).cloned().unwrap_or_default();
        let backend = match tenant {
            Some(tenant) => backend.of(tenant.clone()),
            None => backend,
        };
        Ok(Settings {
            tenant: tenant.map(|tenant| tenant.uri.uri().as_str().to_owned()),
            component: backend.component,
            sha256: backend.sha256,
            root: backend.root,
            verify: backend.verify,
            options: backend.options,
            tls: backend.tls,
            connect: backend.connect,
            private_networks: backend.private_networks,
            fs: backend.fs,
            env: backend.env.into_iter().map(|Variable(name)| name).collect(),
            secrets: backend.secrets,
            limits: backend.limits.resolve(),
            fault: backend.fault,
        })
    }

    /// The tenant that covers a URI most closely.
    fn tenant(&self, uri: &StoreUri) -> Result<Option<&Tenant>, Error> {
        let uri_of = |number: usize| self.tenant.get(number).map_or("", |tenant| tenant.uri.uri().as_str());
        Ok(self.tenants.find(uri, uri_of)?.and_then(|number| self.tenant.get(number)))
    }
}

impl Backend {
    /// The backend as a tenant has it: what it is stays, and what it reaches and knows is the tenant's own. Every field is
    /// named, so that a new one is the tenant's or not because somebody said so.
    fn of(self, tenant: Tenant) -> Backend {
        Backend {
            component: self.component,
            sha256: self.sha256,
            fault: self.fault,
            root: tenant.root,
            verify: tenant.verify.unwrap_or(self.verify),
            options: self.options.into_iter().chain(tenant.options).collect(),
            // Whom it trusts, but not as whom it comes.
            tls: Tls { ca: tenant.tls.ca.or(self.tls.ca), ..tenant.tls },
            connect: tenant.connect,
            private_networks: tenant.private_networks,
            fs: tenant.fs,
            env: tenant.env,
            secrets: tenant.secrets,
            limits: tenant.limits.over(&self.limits),
        }
    }

    fn check(&self, scheme: &str) -> Result<(), Error> {
        uri::check_scheme(scheme)?;
        if self.component.as_ref().is_some_and(|path| !path.is_absolute()) {
            return Err(Error::invalid("component must be an absolute path"));
        }
        self.tls.check()?;
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
