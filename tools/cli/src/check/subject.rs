//! What is checked: a file, the scheme that it serves, and where it may store things.

use std::path::{Path, PathBuf};

use kv_store_wasm::StoreUri;

use super::report::Verdict;
use crate::failure::{Failure, Outcome};
use crate::stores::Stores;

pub struct Tested {
    pub file: PathBuf,
    pub kind: SubjectKind,
    pub scheme: String,
    pub stores: Stores,
    /// What the component imports.
    pub imports: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubjectKind {
    Component,
    Native,
}

impl Tested {
    /// `stores`: where it may store things. None: what it imports tells.
    pub fn find(file: &Path, stores: Option<&Stores>) -> Outcome<Self> {
        let shown = file.display();
        let real = file.canonicalize().map_err(|error| Failure::unable(format!("{shown}: {error}")))?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (kind, named) = match file.extension().and_then(|extension| extension.to_str()) {
            Some("wasm") => (SubjectKind::Component, stem),
            Some("so" | "dylib") => {
                (SubjectKind::Native, stem.strip_prefix("libkv_store_").unwrap_or(&stem).replace('_', "-"))
            }
            _ => {
                let message =
                    "not a backend by its name: a component is NAME.wasm, a native library libkv_store_NAME.so";
                return Err(Failure::unable(format!("{shown}: {message}")));
            }
        };
        let (imports, listed): (Vec<String>, Vec<String>) = match kind {
            SubjectKind::Component => {
                let inspected = kv_store_wasm::inspect(&real).map_err(Failure::unable)?;
                let imports = inspected.imports.into_iter().map(|import| import.name).collect();
                (imports, inspected.schemes.into_iter().map(|listed| listed.scheme).collect())
            }
            SubjectKind::Native => Default::default(),
        };
        let stores = match (stores, kind) {
            (Some(stores), _) => Some(stores.clone()),
            (None, SubjectKind::Component) => stores_for(&imports),
            // All that can be known of native code is its name.
            (None, SubjectKind::Native) => (named == "local-fs").then_some(Stores::Directories),
        };
        let stores = stores.ok_or_else(|| {
            let example = if named == "redis" { "redis://127.0.0.1:6379/15" } else { "SCHEME://HOST:PORT/STORE" };
            Failure::unable(format!(
                "{shown}: which store? give one that it can reach, --uri {example}, or say that it needs no server: --stores names"
            ))
        })?;
        let Stores::Given(uri) = &stores else {
            return Ok(Tested { file: real, kind, scheme: named, stores, imports });
        };
        // Two schemes may be one backend's, which is installed under the name that it lists first.
        let parsed = StoreUri::parse(uri).map_err(|error| Failure::unable(error.to_string()))?;
        let scheme = match listed.first() {
            Some(name) if listed.iter().any(|scheme| scheme == parsed.scheme()) => name.clone(),
            _ => parsed.scheme().to_owned(),
        };
        Ok(Tested { file: real, kind, scheme, stores, imports })
    }

    /// The ABI says how the file of a native library is named.
    pub fn file_name(&self) -> Option<(Verdict, &'static str)> {
        let asks = "a native library is named libkv_store_<scheme>.so or .dylib";
        let name = self.file.file_name()?.to_string_lossy();
        (self.kind == SubjectKind::Native).then(|| match name.starts_with("libkv_store_") {
            true => (Verdict::Passed, asks),
            false => (Verdict::Failed(format!("it is named {name}")), asks),
        })
    }
}

/// What a component may be given without a word of the operator, by what it imports: nothing that leads to a network.
fn stores_for(imports: &[String]) -> Option<Stores> {
    let any = |names: &[&str]| imports.iter().any(|import| names.iter().any(|name| import.starts_with(name)));
    if any(&["kv-store:backend/net", "kv-store:backend/http", "wasi:sockets/"]) {
        None
    } else if any(&["kv-store:backend/files", "kv-store:backend/records", "wasi:filesystem/"]) {
        Some(Stores::Directories)
    } else {
        Some(Stores::Names)
    }
}
