//! What is checked: a file, the scheme that it serves, and where it may store things.

use std::path::{Path, PathBuf};

use super::Verdict;
use crate::component::{Reach, reach};
use crate::failure::{Failure, Outcome};

pub struct Tested {
    pub file: PathBuf,
    pub kind: Kind,
    pub scheme: String,
    pub stores: Stores,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Component,
    Native,
}

/// Where it stores things.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stores {
    Given(String),
    /// Each case has directories of its own.
    Directories,
    /// `scheme://NAME`, each another store.
    Names,
}

impl Tested {
    pub fn find(file: &Path, uri: Option<&str>) -> Outcome<Self> {
        let shown = file.display();
        let real = file.canonicalize().map_err(|error| Failure::unable(format!("{shown}: {error}")))?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (kind, named) = match file.extension().and_then(|extension| extension.to_str()) {
            Some("wasm") => (Kind::Component, stem),
            Some("so" | "dylib") => {
                (Kind::Native, stem.strip_prefix("libkv_store_").unwrap_or(&stem).replace('_', "-"))
            }
            _ => {
                let message =
                    "not a backend by its name: a component is NAME.wasm, a native library libkv_store_NAME.so";
                return Err(Failure::unable(format!("{shown}: {message}")));
            }
        };
        let Some(uri) = uri else {
            let stores = match kind {
                Kind::Component => stores_for(reach(&real)?),
                // All that can be known of native code is its name.
                Kind::Native => (named == "local-fs").then_some(Stores::Directories),
            };
            let stores = stores.ok_or_else(|| {
                let example = if named == "redis" { "redis://127.0.0.1:6379/15" } else { "SCHEME://HOST:PORT/STORE" };
                Failure::unable(format!("{shown}: which store? give one that it can reach: --uri {example}"))
            })?;
            return Ok(Tested { file: real, kind, scheme: named, stores });
        };
        let scheme = uri.strip_prefix("wasm://").unwrap_or(uri).split("://").next().unwrap_or_default();
        // What a second S stands for is the host's business; the component is that of the plain scheme.
        let scheme = if scheme == "rediss" { "redis" } else { scheme };
        Ok(Tested { file: real, kind, scheme: scheme.to_owned(), stores: Stores::Given(uri.to_owned()) })
    }

    /// The ABI says how the file of a native library is named.
    pub fn file_name(&self) -> Option<(Verdict, &'static str)> {
        let asks = "a native library is named libkv_store_<scheme>.so or .dylib";
        let name = self.file.file_name()?.to_string_lossy();
        (self.kind == Kind::Native).then(|| match name.starts_with("libkv_store_") {
            true => (Verdict::Passed, asks),
            false => (Verdict::Failed(format!("it is named {name}")), asks),
        })
    }
}

fn stores_for(reach: Reach) -> Option<Stores> {
    match reach {
        Reach::Directory => Some(Stores::Directories),
        Reach::Nothing => Some(Stores::Names),
        Reach::Server => None,
    }
}
