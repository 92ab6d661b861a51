//! The open stores of the process. Opens of the same URI, with the same component and the same config, share one.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::followed::Followed;
use super::lengths::Lengths;
use super::places::{Places, Stored, Turn};
use super::shared::{Shared, is_fresh_wanted};
use super::spare::Spare;
use super::verify::Verifier;
use crate::breaker::Breaker;
use crate::budget::{Budgets, Owners, Shares};
use crate::config::{self, Config, Settings};
use crate::counters::{self, Counters, Event, Operation};
use crate::directory::Directory;
use crate::engine::{self, PerProcess};
use crate::error::Error;
use crate::fault::Faults;
use crate::guest::wasi::Roots;
use crate::guest::{Access, Lookups, Parked, Tls};
use crate::loader::{self, Loaded};
use crate::log::{self, Level, Rate};
use crate::policy::{Folder, FolderAccess, Grants, Guarded, Target};
use crate::pool::Pool;
use crate::until::Until;
use crate::uri::StoreUri;

#[derive(Default)]
struct Stores {
    places: Places<Key, Shared>,
    /// Bytes in the write buffers of all handles.
    buffered: AtomicUsize,
    budgets: Budgets,
    owners: Owners,
}

/// All that makes two opens the same. The target holds URI and grants, the settings tenant, limits and options: what
/// belongs to one tenant is never another's.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Key {
    component: [u8; 32],
    target: Target,
    settings: Settings,
}

fn stores() -> Result<&'static Stores, Error> {
    static STORES: PerProcess<Stores> = PerProcess::new();
    STORES.get_or_make(|| Ok(Stores::default()))
}

/// What the stores of the process use.
pub(crate) struct Used {
    pub write_buffer_bytes: u64,
    pub payload_bytes: u64,
    pub memory_bytes: u64,
    pub descriptors: u64,
    pub connections: u64,
}

pub(crate) fn used() -> Result<Used, Error> {
    let Stores { buffered, budgets, .. } = stores()?;
    Ok(Used {
        write_buffer_bytes: buffered.load(Relaxed) as u64,
        payload_bytes: budgets.payload_bytes.used(),
        memory_bytes: budgets.memory_bytes.used(),
        descriptors: budgets.descriptors.used(),
        connections: budgets.connections.used(),
    })
}

/// A handle was closed: its store may be without one now.
pub(super) fn closed() {
    if let Ok(Stores { places, budgets, .. }) = stores() {
        places.closed(budgets.payload_bytes.used().saturating_add(budgets.memory_bytes.used()));
    }
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
    // What must not be overlapped may be thousands of places.
    if target.grants.directories().next().is_some() {
        target.grants.check_overlap(&guarded(file, &settings, &path))?;
    }
    let component = loader::components()?.load(&path, settings.sha256, &settings.limits, &file.helper())?;

    // Shared by handles that differ only in what prefixes their manifests.
    let prefix = target.prefix.clone();
    let key = Key { component: component.digest, target: Target { prefix: None, ..target }, settings };
    let stores = stores()?;
    let until = Until::new(&key.settings.limits);
    let place = stores.places.place(&key, || Breaker::new(key.target.store.as_str(), &key.settings.limits));
    if let Some(shared) = place.current() {
        return Ok((shared, prefix));
    }
    // Before the wait: who comes while the backend is away does not wait in a line of opens that each fail slowly.
    let refused = |_: &Error| counters.count(Event::BreakerRefused);
    place.breaker.admit().inspect_err(refused)?.give_back();
    let opener = match place.turn(until.deadline())? {
        Turn::Open(shared) => return Ok((shared, prefix)),
        Turn::Mine(opener) => opener,
    };
    // Those before in the line may have opened the breaker.
    let pass = place.breaker.admit().inspect_err(refused)?;
    let opened = Shared::open(component, key, stores, place.breaker.clone(), counters, &until).map(Arc::new);
    if pass.report(&opened) {
        counters.count(Event::BreakerOpened);
    }
    let shared = opened?;
    opener.opened(shared.clone());
    Ok((shared, prefix))
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

/// Cut what a component says of itself, its label and further facts, to what is used: it may be as long as its memory, and is
/// kept as long as the store.
fn cut(label: &mut String, more: &mut Vec<(String, String)>) {
    *label = log::clean(label);
    *more = more.iter().find(|fact| is_fresh_wanted(fact)).cloned().into_iter().collect();
}

impl Shared {
    fn open(
        component: Arc<Loaded>,
        key: Key,
        stores: &'static Stores,
        breaker: Arc<Breaker>,
        counters: &'static Counters,
        until: &Until,
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
        let owner = stores.owners.get(target.store.backend(), settings.tenant.as_deref());
        let access = Access {
            name: target.store.backend().to_owned(),
            folders: target.grants.fs.iter().map(open_folder).collect::<Result<_, Error>>()?,
            grants: target.grants,
            directory: directory.map(Arc::new),
            parked: Arc::new(Parked::new(&settings.limits)),
            shares: Shares::of(&stores.budgets, &owner, &settings.limits),
            lookups: Lookups::of(&owner),
            roots: Roots::default(),
            limits: settings.limits,
            log: Rate::of_one(),
            tls: Tls::new(settings.tls),
            faults: settings.fault.map(Faults::new).transpose()?,
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
        let (pool, mut features) = Pool::open(component, access, uri.clone(), options, breaker, until)?;
        cut(&mut features.label, &mut features.more);
        let shared = Shared {
            pool,
            features,
            verifier: Verifier::new(settings.verify),
            known: Mutex::default(),
            followed: Followed::default(),
            spare: Spare::default(),
            keeps_all: AtomicBool::new(false),
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
}

impl Stored for Shared {
    /// Whether the directories that were opened are still those under their names.
    fn is_current(&self) -> bool {
        let Access { directory, folders, grants, .. } = self.pool.access();
        let own = match (directory, &grants.directory) {
            (Some(open), Some(path)) => open.is_at(path),
            _ => true,
        };
        own && folders.iter().all(|(name, open)| grants.fs.get(name).is_some_and(|folder| open.is_at(&folder.path)))
    }
    fn bytes(&self) -> u64 {
        let shares = &self.pool.access().shares;
        shares.memory_bytes.used().saturating_add(shares.payload_bytes.used())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits;

    #[test]
    fn what_a_component_says_of_itself_is_cut() {
        let fact = |value: &str| ("fresh".to_owned(), value.to_owned());
        let mut label = "l".repeat(1 << 20);
        let mut more: Vec<_> = (0..1000).map(|_| fact("x")).chain([fact("wanted"), fact("wanted")]).collect();
        cut(&mut label, &mut more);
        assert!(label.len() <= limits::MAX_LOG_LINE_BYTES + 3 && label.capacity() < 4096);
        assert_eq!(more, [fact("wanted")]);
        assert!(more.capacity() < 10);
    }
}
