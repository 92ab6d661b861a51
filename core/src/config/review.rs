//! The tables of a config, for whoever checks it without a URI.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::{Config, Digest};
use crate::policy::SecretSource;

/// A `[backend.X]` or `[[tenant]]` table.
pub struct Table<'a> {
    /// `backend.redis`, or `tenant redis://h/7`.
    pub name: String,
    /// What the table is named by, or a tenant's URI begins with.
    pub scheme: &'a str,
    pub sha256: Option<Digest>,
    pub options: Vec<&'a str>,
    /// Where the paths of a backend's stores end.
    pub root: Option<&'a str>,
    pub secrets: &'a BTreeMap<String, SecretSource>,
    /// Files in PEM form that are to be there.
    pub files: Vec<PathBuf>,
}

impl Config {
    /// Whether a URI is the one that a tenant's table names.
    pub fn is_tenant(&self, uri: &str) -> bool {
        self.tenant.iter().any(|tenant| tenant.uri.uri().as_str() == uri)
    }

    /// All tables that a backend is served by.
    pub fn tables(&self) -> Vec<Table<'_>> {
        let files = |tls: &super::Tls| [&tls.ca, &tls.certificate, &tls.key].into_iter().flatten().cloned().collect();
        let backends = self.backend.iter().map(|(scheme, backend)| Table {
            name: format!("backend.{scheme}"),
            scheme,
            sha256: backend.sha256,
            options: backend.options.keys().map(String::as_str).collect(),
            root: backend.root.as_deref(),
            secrets: &backend.secrets,
            files: files(&backend.tls),
        });
        let tenants = self.tenant.iter().map(|tenant| {
            let uri = tenant.uri.uri();
            Table {
                name: format!("tenant {}", uri.as_str()),
                scheme: uri.scheme(),
                sha256: None,
                options: tenant.options.keys().map(String::as_str).collect(),
                root: None,
                secrets: &tenant.secrets,
                files: files(&tenant.tls),
            }
        });
        backends.chain(tenants).collect()
    }
}
