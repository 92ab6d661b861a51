//! The open stores of the process. Opens of the same URI, with the same component and the same config, share one.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::followed::Followed;
use super::lengths::Lengths;
use super::seen::Seen;
use super::shared::Shared;
use super::spare::Spare;
use super::verify::Verifier;
use crate::breaker::Breaker;
use crate::budget::Budgets;
use crate::config::{self, Config, Settings};
use crate::counters::{self, Counters, Event, Operation};
use crate::directory::Directory;
use crate::engine::{self, PerProcess};
use crate::error::Error;
use crate::fault::Faults;
use crate::guest::{Access, Parked, Tls};
use crate::limits;
use crate::loader::{self, Loaded};
use crate::log::{self, Level, Rate};
use crate::policy::{Folder, FolderAccess, Grants, Guarded, Target};
use crate::pool::Pool;
use crate::uri::StoreUri;

#[derive(Default)]
struct Stores {
    entries: Mutex<HashMap<Key, Entry>>,
    /// Bytes in the write buffers of all handles.
    buffered: AtomicUsize,
    budgets: Budgets,
}

/// All that makes two opens the same. The target holds URI and grants, the settings tenant, limits and options: what
/// belongs to one tenant is never another's.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    component: [u8; 32],
    target: Target,
    settings: Settings,
}

struct Entry {
    place: Arc<Place>,
    used: Instant,
}

/// Where a store is while it is open.
struct Place {
    /// A lock of its own, so that a slow open holds up only those who open the same.
    store: Mutex<Option<Arc<Shared>>>,
    /// Opens that fail are calls that fail.
    breaker: Arc<Breaker>,
}

fn stores() -> Result<&'static Stores, Error> {
    static STORES: PerProcess<Stores> = PerProcess::new();
    STORES.get_or_make(|| Ok(Stores::default()))
}

/// What the stores of the process use.
pub(crate) struct Used {
    pub write_buffer_bytes: u64,
    pub payload_bytes: u64,
    pub connections: u64,
}

pub(crate) fn used() -> Result<Used, Error> {
    let Stores { buffered, budgets, .. } = stores()?;
    Ok(Used {
        write_buffer_bytes: buffered.load(Relaxed) as u64,
        payload_bytes: budgets.payload_bytes.used(),
        connections: budgets.connections.used(),
    })
}

/// The store that a URI names, and what prefixes its manifests.
pub(super) fn open(uri: &StoreUri) -> Result<(Arc<Shared>, Option<String>), Error> {
    let file = Config::load()?;
    let settings = file.settings(uri)?;
    let counters = counters::of(uri.backend(), settings.tenant.as_deref())?;
    let opened = open_with(uri, &file, settings, counters);
    counters.call(Operation::Open, &opened);
    opened
}

fn open_with(
    uri: &StoreUri,
    file: &Config,
    settings: Settings,
    counters: &'static Counters,
) -> Result<(Arc<Shared>, Option<String>), Error> {
    let target = Target::decide(uri, &settings)?;
    let path = loader::find(uri.backend(), settings.component.as_deref())?;
    target.grants.check_overlap(&guarded(file, &settings, &path))?;
    let component = loader::components()?.load(&path, settings.sha256, &settings.limits, &file.helper())?;

    // Shared by handles that differ only in what prefixes their manifests.
    let prefix = target.prefix.clone();
    let key = Key { component: component.digest, target: Target { prefix: None, ..target }, settings };
    let stores = stores()?;
    let place = stores.place(&key);
    let current = |store: &Option<Arc<Shared>>| store.as_ref().filter(|shared| shared.is_current()).cloned();
    if let Ok(store) = place.store.try_lock()
        && let Some(shared) = current(&store)
    {
        return Ok((shared, prefix));
    }
    // Before the lock: who comes while the backend is away does not wait in a line of opens that each fail slowly.
    let pass = place.breaker.admit().inspect_err(|_| counters.count(Event::BreakerRefused))?;
    let mut store = place.store.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(shared) = current(&store) {
        pass.give_back();
        return Ok((shared, prefix));
    }
    // Those before in the line may have opened it.
    pass.give_back();
    let pass = place.breaker.admit().inspect_err(|_| counters.count(Event::BreakerRefused))?;
    let opened = Shared::open(component, key, stores, place.breaker.clone(), counters).map(Arc::new);
    if pass.report(&opened) {
        counters.count(Event::BreakerOpened);
    }
    let shared = opened?;
    *store = Some(shared.clone());
    Ok((shared, prefix))
}

impl Stores {
    fn place(&self, key: &Key) -> Arc<Place> {
        let mut entries = self.entries.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !entries.contains_key(key) {
            drop_idle(&mut entries);
        }
        let entry = entries.entry(key.clone()).or_insert_with(|| {
            let breaker = Arc::new(Breaker::new(key.target.store.as_str(), &key.settings.limits));
            Entry { place: Arc::new(Place { store: Mutex::default(), breaker }), used: Instant::now() }
        });
        entry.used = Instant::now();
        entry.place.clone()
    }
}

/// Keep the number of stores without a handle within its bound: the one unused for longest goes first.
fn drop_idle(entries: &mut HashMap<Key, Entry>) {
    let idle = |entry: &Entry| {
        // Locked: somebody is opening it.
        Arc::strong_count(&entry.place) == 1
            && entry
                .place
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

/// What no store may lie over: our compiled code, every backend's component, the config, secrets; and what no store may
/// hold: another tenant's directory.
pub(crate) fn guarded(file: &Config, settings: &Settings, component: &Path) -> Guarded {
    let cache = loader::cache_directory().map(|path| ("the cache of compiled components", path));
    let components = loader::search_directories().into_iter().map(|path| ("a directory of components", path));
    let named = std::env::var_os("KV_STORE_WASM_CONFIG").map(PathBuf::from);
    let configs = config::default_places().into_iter().chain(named).map(|path| ("the config file", path));
    let named = file.files().chain([("a component", component)]).map(|(what, path)| (what, path.to_owned()));
    let own = cache.into_iter().chain(components).chain(configs).chain(named).collect();
    Guarded { own, foreign: file.directories_of_others(settings) }
}

impl Shared {
    fn open(
        component: Arc<Loaded>,
        key: Key,
        stores: &'static Stores,
        breaker: Arc<Breaker>,
        counters: &'static Counters,
    ) -> Result<Self, Error> {
        let Key { target, settings, .. } = key;
        let directory = target.grants.directory.as_deref().map(Directory::open).transpose()?;
        let open_folder = |(name, folder): (&String, &Folder)| {
            let opened = match folder.access {
                FolderAccess::ReadOnly => Directory::open_read_only(&folder.path),
                FolderAccess::ReadWrite => Directory::open(&folder.path),
            };
            let opened = opened.map_err(|error| error.context(format_args!("fs.{name}")))?;
            Ok((name.clone(), Arc::new(opened)))
        };
        let access = Access {
            name: target.store.backend().to_owned(),
            folders: target.grants.fs.iter().map(open_folder).collect::<Result<_, Error>>()?,
            grants: target.grants,
            directory: directory.map(Arc::new),
            parked: Arc::new(Parked::new(&settings.limits)),
            limits: settings.limits,
            log: Rate::of_one(),
            tls: Tls::new(settings.tls),
            faults: settings.fault.map(Faults::new).transpose()?,
            budgets: &stores.budgets,
            counters,
        };
        let uri = target.store.as_str().to_owned();
        let options = settings.options.into_iter().collect();
        if let Some(faults) = &access.faults {
            let seed = faults.seed();
            log::line(
                Level::Warn,
                format_args!("{uri}: faults are injected, as the config says; their seed is {seed}"),
            );
        }
        let (pool, features) = Pool::open(component, access, uri.clone(), options, breaker)?;
        let shared = Shared {
            pool,
            features,
            verifier: Verifier::new(settings.verify),
            known: Seen::new(limits::KNOWN_CHUNKS),
            followed: Followed::default(),
            spare: Spare::default(),
            damaged: Seen::new(limits::DAMAGED_CHUNKS),
            lengths: Lengths::default(),
            uri,
            generation: engine::generation(),
            buffered: &stores.buffered,
            counters,
        };
        let info = shared.info();
        let reaches = match (&info.directory, &info.server) {
            (Some(directory), _) => format!("the directory {}", directory.display()),
            (None, Some(server)) => format!("the server {server}"),
            (None, None) => "nothing outside by its URI".to_owned(),
        };
        let Grants { fs, connect, env, secrets, .. } = &shared.pool.access().grants;
        let further = match fs.len() + connect.len() + env.len() + secrets.len() {
            0 => "no grants".to_owned(),
            count => format!("{count} grants"),
        };
        log::line(
            Level::Info,
            format_args!(
                "opened {}: {}; component sha256 {}; it reaches {reaches}, and has {further} of the config",
                info.uri, info.label, info.component_sha256
            ),
        );
        Ok(shared)
    }

    /// Whether the directories that were opened are still those under their names.
    fn is_current(&self) -> bool {
        let Access { directory, folders, grants, .. } = self.pool.access();
        let own = match (directory, &grants.directory) {
            (Some(open), Some(path)) => open.is_at(path),
            _ => true,
        };
        own && folders.iter().all(|(name, open)| grants.fs.get(name).is_some_and(|folder| open.is_at(&folder.path)))
    }
}
