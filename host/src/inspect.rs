//! What a component is, without running or compiling anything of it.

use std::path::Path;

use crate::error::Error;
use crate::limits::Limits;
use crate::loader;
use crate::policy::{Declared, Scheme};

/// A component, looked at from outside.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// Its length in bytes.
    pub bytes: u64,
    /// Its SHA-256 in hex, as `sha256` in the config wants it.
    pub sha256: String,
    /// The interfaces that it wants of its host.
    pub imports: Vec<Import>,
    /// The interfaces that it offers, with their versions.
    pub exports: Vec<String>,
    /// What the component says of itself in its custom section `kv-store-backend`: pairs of key and value, in order. A
    /// `wish` is what it would like to be granted; it grants nothing.
    pub stamp: Vec<(String, String)>,
    /// The schemes that it lists there, and the port of each where a URI names none. They take no scheme from another component, and
    /// the port is granted only if the component ships with the library or the config pins it.
    pub schemes: Vec<Scheme>,
    /// Its functions.
    pub functions: u64,
    /// Its largest function, in bytes.
    pub largest_function: u64,
    /// Why this host would not load it. Empty: by name, all that it imports is there; whether the types match is seen when
    /// it is opened.
    pub problems: Vec<String>,
}

impl Inspection {
    /// The names that the component lists under a key of its stamp: `options`, `secrets`. None: it does not tell.
    pub(crate) fn names(&self, key: &str) -> Option<Vec<&str>> {
        let (_, names) = self.stamp.iter().find(|(there, _)| there == key)?;
        Some(names.split_whitespace().collect())
    }
}

/// An interface that a component wants of its host.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Import {
    /// With its version: `kv-store:backend/files@1.0.0`.
    pub name: String,
    /// Why this host does not offer it.
    pub not_offered: Option<String>,
}

/// Look at a component's file.
///
/// `Invalid` if it is none, `Exhausted` if it is larger than any component may be.
///
/// ```no_run
/// let inspection = kv_store_wasm::inspect("/opt/kv/acme.wasm".as_ref())?;
/// println!("sha256 = \"{}\"", inspection.sha256);
/// # Ok::<(), kv_store_wasm::Error>(())
/// ```
pub fn inspect(path: &Path) -> Result<Inspection, Error> {
    let doing = |error: Error| error.context(format_args!("component {}", path.display()));
    let (bytes, digest, found, invalid) = loader::look(path, Limits::default().component_bytes).map_err(doing)?;
    let outdated = loader::outdated(&found.imports).map(str::to_owned);
    let import = |name: String| Import { not_offered: loader::why_not_offered(&name), name };
    let imports: Vec<Import> = found.imports.into_iter().map(import).collect();
    let refused =
        imports.iter().filter_map(|import| Some(format!("imports {}, {}", import.name, import.not_offered.as_ref()?)));
    let problems = refused.chain(loader::missing_export(&found.exports)).chain(outdated).chain(invalid).collect();
    Ok(Inspection {
        bytes,
        sha256: hex::encode(digest),
        imports,
        exports: found.exports,
        schemes: Declared::of(&found.stamp).schemes,
        stamp: found.stamp,
        functions: found.functions,
        largest_function: found.largest_function,
        problems,
    })
}
