//! The operator's config file: which component serves a scheme, and how.
//!
//! `KV_STORE_WASM_CONFIG` names it; otherwise `kv-store-wasm/config.toml` below `$XDG_CONFIG_HOME` (or `~/.config`), then
//! `/etc/kv-store-wasm/config.toml`. It is read at each open, so a change holds for what is opened after it. An unknown
//! key is an error: a misspelt limit must not be a limit that is not there.

use std::collections::BTreeMap;
use std::io::ErrorKind::{NotADirectory, NotFound};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::error::Error;
use crate::limits::Limits;

/// The config file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// By scheme.
    #[serde(default)]
    backend: BTreeMap<String, Backend>,
}

/// What the operator says of one backend: a `[backend.<scheme>]` table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Backend {
    /// The component's file, absolute.
    pub component: Option<PathBuf>,
    /// Where the store's path ends. What follows in a URI prefixes the names of manifests; chunks are shared.
    pub root: Option<String>,
    pub verify: Verify,
    /// Handed to the backend's `open`.
    pub options: BTreeMap<String, String>,
    pub tls: Tls,
    pub limits: Limits,
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
    /// Read the config file, if there is one.
    pub fn load() -> Result<Self, Error> {
        if let Some(named) = std::env::var_os("KV_STORE_WASM_CONFIG") {
            let path = PathBuf::from(named);
            let text = std::fs::read_to_string(&path)
                .map_err(|error| Error::invalid(format!("KV_STORE_WASM_CONFIG {}: {error}", path.display())))?;
            return Self::parse(&path, &text);
        }
        for path in default_places() {
            match std::fs::read_to_string(&path) {
                Ok(text) => return Self::parse(&path, &text),
                Err(error) if matches!(error.kind(), NotFound | NotADirectory) => {}
                Err(error) => return Err(Error::invalid(format!("{}: {error}", path.display()))),
            }
        }
        Ok(Config::default())
    }

    fn parse(path: &Path, text: &str) -> Result<Self, Error> {
        let shown = path.display();
        let config: Config = toml::from_str(text).map_err(|error| {
            let line = error.span().map_or(0, |span| text.bytes().take(span.start).filter(|b| *b == b'\n').count() + 1);
            Error::invalid(format!("{shown}:{line}: {}", error.message()))
        })?;
        for (scheme, backend) in &config.backend {
            let relative = |path: &Path| !path.is_absolute();
            let Tls { ca, certificate, key } = &backend.tls;
            let files =
                [("component", &backend.component), ("tls.ca", ca), ("tls.certificate", certificate), ("tls.key", key)];
            if let Some((name, _)) = files.iter().find(|(_, file)| file.as_deref().is_some_and(relative)) {
                return Err(Error::invalid(format!("{shown}: backend.{scheme}.{name} must be an absolute path")));
            }
            if certificate.is_some() != key.is_some() {
                let message = format!("{shown}: backend.{scheme}.tls.certificate and tls.key go together");
                return Err(Error::invalid(message));
            }
            if backend.root.as_ref().is_some_and(|root| !root.starts_with('/') || root.ends_with('/')) {
                return Err(Error::invalid(format!(
                    "{shown}: backend.{scheme}.root must start with '/' and not end with it"
                )));
            }
        }
        Ok(config)
    }

    /// The components that the file names.
    pub fn components(&self) -> impl Iterator<Item = &Path> {
        self.backend.values().filter_map(|backend| backend.component.as_deref())
    }

    /// What the operator says of a scheme; the defaults where that is nothing.
    pub fn backend(&self, scheme: &str) -> Backend {
        self.backend.get(scheme).cloned().unwrap_or_default()
    }
}

/// Where the config file is looked for, in order, when no variable names it.
pub(crate) fn default_places() -> Vec<PathBuf> {
    // A relative one would be the consumer's working directory.
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    let places = user.into_iter().chain([PathBuf::from("/etc")]);
    places.map(|place| place.join("kv-store-wasm/config.toml")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, Error> {
        Config::parse(Path::new("/etc/c.toml"), text)
    }

    #[test]
    fn a_backend_has_what_the_file_says_and_defaults_for_the_rest() {
        let config = parse(
            "[backend.local-fs]\nroot = '/kv'\nverify = 'xxh3'\noptions.durability = 'rename'\nlimits.deadline_ms = 50",
        );
        let backend = config.unwrap().backend("local-fs");
        assert_eq!(backend.root.as_deref(), Some("/kv"));
        assert_eq!((backend.verify, backend.limits.deadline_ms), (Verify::Xxh3, 50));
        assert_eq!(backend.options.get("durability").map(String::as_str), Some("rename"));
        assert_eq!(backend.limits.memory_bytes, Limits::default().memory_bytes);
    }

    #[test]
    fn an_unknown_key_is_refused_with_its_line() {
        let error = parse("[backend.redis]\nverifi = 'off'\n").unwrap_err().to_string();
        assert!(error.contains("/etc/c.toml:2") && error.contains("verifi"), "{error}");
        assert!(parse("[backends]\n").is_err());
        assert!(parse("[backend.x]\nlimits.memory = 1").is_err());
    }

    #[test]
    fn a_certificate_comes_with_its_key() {
        let error = parse("[backend.x]\ntls.certificate = '/c.pem'").unwrap_err().to_string();
        assert!(error.contains("tls.key"), "{error}");
        assert!(parse("[backend.x]\ntls = { certificate = '/c.pem', key = '/k.pem' }").is_ok());
    }

    #[test]
    fn paths_must_be_absolute() {
        assert!(parse("[backend.x]\ncomponent = 'x.wasm'").is_err());
        assert!(parse("[backend.x]\ntls.ca = 'ca.pem'").is_err());
        assert!(parse("[backend.x]\nroot = 'kv'").is_err());
        assert!(parse("[backend.x]\nroot = '/kv/'").is_err());
    }
}
