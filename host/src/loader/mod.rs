//! From a scheme to a component that can be instantiated: find its file, check what it is, compile it or take it from
//! the AOT cache, and check that the host offers what it imports. A component is known by its SHA-256.

mod aot;
mod audit;
mod find;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use wasmtime::Engine;
use wasmtime::component::{Component, HasSelf, Linker};

pub(crate) use aot::cache_directory;
pub(crate) use find::{find, search_directories};

use crate::bindings::{Backend, BackendPre};
use crate::engine::{self, PerProcess};
use crate::error::{Error, ErrorKind};
use crate::guest::{State, wasi};
use crate::signals::with_signals_blocked;
use crate::{limits, log};

/// A component, ready to be instantiated.
pub(crate) struct Loaded {
    pub digest: [u8; 32],
    pub pre: BackendPre<State>,
}

impl Loaded {
    /// The SHA-256 in hex.
    pub(crate) fn digest_hex(&self) -> String {
        hex(&self.digest)
    }
}

/// The components that the process has loaded.
pub(crate) struct Components {
    linker: Linker<State>,
    aot: Option<aot::Cache>,
    /// Each entry has a lock of its own, so that a long compilation holds up only those who want the same component.
    loaded: Mutex<HashMap<FileIdentity, Entry>>,
}

type Entry = Arc<Mutex<Option<Arc<Loaded>>>>;

/// What tells that a file is the one that was loaded before, without reading it.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FileIdentity {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

/// The components of this process.
pub(crate) fn components() -> Result<&'static Components, Error> {
    static COMPONENTS: PerProcess<Components> = PerProcess::new();
    COMPONENTS.get_or_make(|| Components::new(&engine::runtime()?.engine))
}

impl Components {
    fn new(engine: &Engine) -> Result<Self, Error> {
        let mut linker = Linker::new(engine);
        Backend::add_to_linker::<State, HasSelf<State>>(&mut linker, |state| state)
            .and_then(|()| wasi::add_to_linker(&mut linker))
            .map_err(|error| Error::new(ErrorKind::Other, format!("cannot link the host's interfaces: {error}")))?;
        Ok(Components { linker, aot: aot::Cache::open(engine), loaded: Mutex::default() })
    }

    /// Load the component in a file, or take the one loaded before.
    pub(crate) fn load(&self, path: &Path) -> Result<Arc<Loaded>, Error> {
        let doing = |error: Error| error.context(format_args!("component {}", path.display()));
        let meta = std::fs::metadata(path).map_err(|error| doing(Error::new(ErrorKind::Invalid, error.to_string())))?;
        if !meta.is_file() {
            return Err(doing(Error::invalid("not a file")));
        }
        let identity = FileIdentity {
            device: meta.dev(),
            inode: meta.ino(),
            size: meta.len(),
            modified: (meta.mtime(), meta.mtime_nsec()),
            changed: (meta.ctime(), meta.ctime_nsec()),
        };
        let entry = {
            let mut loaded = self.loaded.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if loaded.len() >= limits::MAX_COMPONENTS && !loaded.contains_key(&identity) {
                // Those in use live on in their stores.
                loaded.clear();
            }
            loaded.entry(identity).or_default().clone()
        };
        let mut entry = entry.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(loaded) = &*entry {
            return Ok(loaded.clone());
        }
        let loaded = Arc::new(self.prepare(path).map_err(doing)?);
        *entry = Some(loaded.clone());
        Ok(loaded)
    }

    fn prepare(&self, path: &Path) -> Result<Loaded, Error> {
        let bytes = read_component(path)?;
        let digest: [u8; 32] = Sha256::digest(&bytes).into();
        let engine = self.linker.engine();
        let cached = self.aot.as_ref().and_then(|cache| cache.get(engine, &digest));
        let component = match cached {
            Some(component) => component,
            None => {
                log::line(log::Level::Info, format_args!("compiling {}", path.display()));
                let component = with_signals_blocked(|| Component::new(engine, &bytes))
                    .map_err(|error| Error::invalid(format!("does not compile: {error:#}")))?;
                if let Some(cache) = &self.aot {
                    cache.put(&digest, &component);
                }
                component
            }
        };
        audit::check(&component)?;
        let pre = self
            .linker
            .instantiate_pre(&component)
            .and_then(BackendPre::new)
            .map_err(|error| Error::new(ErrorKind::Unsupported, audit::explain_mismatch(&error)))?;
        Ok(Loaded { digest, pre })
    }
}

/// The bytes of a component's file. What is something else is refused with what it is.
fn read_component(path: &Path) -> Result<Vec<u8>, Error> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read =
        std::fs::File::open(path).and_then(|file| file.take(limits::MAX_COMPONENT_BYTES + 1).read_to_end(&mut bytes));
    read.map_err(|error| Error::invalid(error.to_string()))?;
    if bytes.len() as u64 > limits::MAX_COMPONENT_BYTES {
        return Err(Error::new(
            ErrorKind::Exhausted,
            format!("more than {} bytes, the limit for a component", limits::MAX_COMPONENT_BYTES),
        ));
    }
    let kind = match bytes.get(..8) {
        Some([0, b'a', b's', b'm', 0x0d, 0, 1, 0]) => return Ok(bytes),
        Some([0, b'a', b's', b'm', 1, 0, 0, 0]) => {
            "a core module, not a component: make one with `wasm-tools component new`"
        }
        Some([0, b'a', b's', b'm', ..]) => "WebAssembly of a version that this host does not know",
        Some([0x7f, b'E', b'L', b'F', ..]) => {
            "precompiled code, which is never accepted: give the .wasm it was made from"
        }
        _ => "not WebAssembly",
    };
    Err(Error::invalid(kind))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
