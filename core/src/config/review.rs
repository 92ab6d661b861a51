//! The tables of a config, for whoever checks it without a URI.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Config, Digest};
use crate::policy::SecretSource;

/// A `[backend.X]` or `[[tenant]]` table.
pub struct Table<'a> {
    /// `backend.redis`, or `tenant redis://h/7`.
    pub name: String,
    pub scheme: &'a str,
    /// Of the backend, also where the table is a tenant's.
    pub component: Option<&'a Path>,
    pub sha256: Option<Digest>,
    pub options: Vec<&'a str>,
    pub secrets: &'a BTreeMap<String, SecretSource>,
    /// Files in PEM form that are to be there.
    pub files: Vec<PathBuf>,
}

impl Config {
    /// All tables that a backend is served by.
    pub fn tables(&self) -> Vec<Table<'_>> {
        let files = |tls: &super::Tls| [&tls.ca, &tls.certificate, &tls.key].into_iter().flatten().cloned().collect();
        let backends = self.backend.iter().map(|(scheme, backend)| Table {
            name: format!("backend.{scheme}"),
            scheme,
            component: backend.component.as_deref(),
            sha256: backend.sha256,
            options: backend.options.keys().map(String::as_str).collect(),
            secrets: &backend.secrets,
            files: files(&backend.tls),
        });
        let tenants = self.tenant.iter().map(|tenant| {
            let uri = tenant.uri.uri();
            let backend = self.backend.get(uri.backend());
            Table {
                name: format!("tenant {}", uri.as_str()),
                scheme: uri.backend(),
                component: backend.and_then(|backend| backend.component.as_deref()),
                sha256: None,
                options: tenant.options.keys().map(String::as_str).collect(),
                secrets: &tenant.secrets,
                files: files(&tenant.tls),
            }
        });
        backends.chain(tenants).collect()
    }
}
