//! The open stores of the process. Opens of the same URI, with the same component and the same config, share one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::seen::Seen;
use super::shared::Shared;
use super::verify::Verifier;
use crate::config::{self, Backend, Config};
use crate::directory::Directory;
use crate::engine::{self, PerProcess};
use crate::error::Error;
use crate::guest::{Access, Parked, Tls};
use crate::limits;
use crate::loader::{self, Loaded};
use crate::log::{self, Level};
use crate::policy::Target;
use crate::pool::Pool;
use crate::uri::StoreUri;

#[derive(Default)]
struct Stores {
    entries: Mutex<HashMap<Key, Entry>>,
    /// Bytes in the write buffers of all handles.
    buffered: AtomicUsize,
}

/// All that makes two opens the same. The target holds URI and grants, the config limits and options.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    component: [u8; 32],
    target: Target,
    config: Backend,
}

struct Entry {
    /// A lock of its own, so that a slow open holds up only those who open the same.
    store: Arc<Mutex<Option<Arc<Shared>>>>,
    used: Instant,
}

/// The store that a URI names, and what prefixes its manifests.
pub(super) fn open(uri: &StoreUri) -> Result<(Arc<Shared>, Option<String>), Error> {
    static STORES: PerProcess<Stores> = PerProcess::new();
    let file = Config::load()?;
    let config = file.backend(uri.backend());
    let target = Target::decide(uri, &config)?;
    let path = loader::find(uri.backend(), config.component.as_deref())?;
    target.grants.check_overlap(&guarded(&file, &path))?;
    let component = loader::components()?.load(&path)?;

    // Shared by handles that differ only in what prefixes their manifests.
    let prefix = target.prefix.clone();
    let key = Key { component: component.digest, target: Target { prefix: None, ..target }, config };
    let stores = STORES.get_or_make(|| Ok(Stores::default()))?;
    let entry = stores.entry(&key);
    let mut entry = entry.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(shared) = entry.as_ref().filter(|shared| shared.is_current()) {
        return Ok((shared.clone(), prefix));
    }
    let shared = Arc::new(Shared::open(component, key, &stores.buffered)?);
    *entry = Some(shared.clone());
    Ok((shared, prefix))
}

impl Stores {
    fn entry(&self, key: &Key) -> Arc<Mutex<Option<Arc<Shared>>>> {
        let mut entries = self.entries.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !entries.contains_key(key) {
            drop_idle(&mut entries);
        }
        let entry = entries.entry(key.clone()).or_insert_with(|| Entry { store: Arc::default(), used: Instant::now() });
        entry.used = Instant::now();
        entry.store.clone()
    }
}

/// Keep the number of stores without a handle within its bound: the one unused for longest goes first.
fn drop_idle(entries: &mut HashMap<Key, Entry>) {
    let idle = |entry: &Entry| {
        // Locked: somebody is opening it.
        Arc::strong_count(&entry.store) == 1
            && entry
                .store
                .try_lock()
                .is_ok_and(|store| store.as_ref().is_none_or(|shared| Arc::strong_count(shared) == 1))
    };
    while entries.len() >= limits::MAX_IDLE_STORES {
        let unused = entries.iter().filter(|(_, entry)| idle(entry)).min_by_key(|(_, entry)| entry.used);
        let Some(key) = unused.map(|(key, _)| key.clone()) else { return };
        entries.remove(&key);
    }
}

/// What no store may lie over: our compiled code, every backend's component, and the config.
fn guarded(file: &Config, component: &Path) -> Vec<(&'static str, PathBuf)> {
    let cache = loader::cache_directory().map(|path| ("the cache of compiled components", path));
    let components = loader::search_directories().into_iter().map(|path| ("a directory of components", path));
    let named = std::env::var_os("KV_STORE_WASM_CONFIG").map(PathBuf::from);
    let configs = config::default_places().into_iter().chain(named).map(|path| ("the config file", path));
    let named = file.components().chain([component]).map(|path| ("a component", path.to_owned()));
    cache.into_iter().chain(components).chain(configs).chain(named).collect()
}

impl Shared {
    fn open(component: Arc<Loaded>, key: Key, buffered: &'static AtomicUsize) -> Result<Self, Error> {
        let Key { target, config, .. } = key;
        let directory = target.grants.directory.as_deref().map(Directory::open).transpose()?;
        let access = Access {
            name: target.store.backend().to_owned(),
            grants: target.grants,
            directory: directory.map(Arc::new),
            parked: Parked::default(),
            tls: Tls::new(config.tls),
        };
        let uri = target.store.as_str().to_owned();
        let options = config.options.into_iter().collect();
        let (pool, features) = Pool::open(component, access, uri.clone(), options, config.limits)?;
        let shared = Shared {
            pool,
            features,
            verifier: Verifier::new(config.verify),
            known: Seen::new(limits::KNOWN_CHUNKS),
            damaged: Seen::new(limits::DAMAGED_CHUNKS),
            uri,
            generation: engine::generation(),
            buffered,
        };
        let info = shared.info();
        let reaches = match (&info.directory, &info.server) {
            (Some(directory), _) => format!("the directory {}", directory.display()),
            (None, Some(server)) => format!("the server {server}"),
            (None, None) => "nothing outside".to_owned(),
        };
        log::line(
            Level::Info,
            format_args!(
                "opened {}: {}; component sha256 {}; it reaches {reaches}",
                info.uri, info.label, info.component_sha256
            ),
        );
        Ok(shared)
    }

    /// Whether the directory that was opened is still the one under its name.
    fn is_current(&self) -> bool {
        let access = self.pool.access();
        match (&access.directory, &access.grants.directory) {
            (Some(open), Some(path)) => open.is_at(path),
            _ => true,
        }
    }
}
