//! The open stores of the process. Opens of the same URI, with the same component and the same config, share one.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kv_platform::sync::Mutex;

use super::bound::{self, Bound};
use super::followed::Successors;
use super::open_store::{OpenStore, SaidByOperator};
use super::places::{OpenTurn, SharedStore, StoreSlot, StoreTable};
use super::process::Process;
use super::spare::Spare;
use super::suspects::Suspects;
use super::upkeep::{self, MaintainedStore};
use super::verify::Verifier;
use crate::backend::{Backend, BackendLayer, Holding, Opening, Remembering, WithBreaker, Wrap, check_fault};
use crate::breaker::Breaker;
use crate::budget::{Budgets, Owner, Shares};
use crate::config::{self, Config, Direct, FaultTable, Layout1, Settings};
use crate::counters::{Counters, Event, Gauged, Operation, StoreGauges};
use crate::descriptor::{Descriptor, Descriptors};
use crate::directory::Directory;
use crate::envelope::{Enveloped, RecentNames, Setting};
use crate::error::{Error, ErrorKind, contract_violation};
use crate::limits::{self, Limits};
use crate::log::{self, Level};
use crate::near::{NearLayer, Scope};
use crate::policy::{Folder, FolderAccess, Grants, Guarded, OpenTarget, Served};
use crate::process::Clock;
use crate::quota::{Meters, Quota};
use crate::sandbox::{Component, Components, Features, FoundComponent, Reach};
use crate::segments::SegmentStores;
use crate::threads::Whose;
use crate::until::Until;
use crate::uri::StoreUri;

/// What stores are opened with.
#[derive(Clone)]
pub struct Setup {
    pub config: config::Source,
    /// Finds and loads their components.
    pub components: Arc<dyn Components>,
    /// Lie around the instances of each store, the first one innermost.
    pub layers: Vec<Arc<dyn BackendLayer>>,
    /// By this stores know how long ago a backend said something, in place of the process's clock.
    pub clock: Option<Clock>,
    /// An open makes no directory: one that the URI names and that is not there is [`ErrorKind::Missing`].
    pub must_exist: bool,
    /// Where they are open.
    pub process: Arc<Process>,
}

/// All that makes two opens the same. The target holds URI and grants, the settings tenant, limits and options: what
/// belongs to one tenant is never another's.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct StoreKey {
    component: [u8; 32],
    target: OpenTarget,
    settings: Settings,
    layers: Vec<SameLayer>,
}

/// A layer, which is the same as itself alone. It is kept: its address is no other's while a store of it may be found.
#[derive(Clone)]
struct SameLayer(Arc<dyn BackendLayer>);

impl SameLayer {
    fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl PartialEq for SameLayer {
    fn eq(&self, other: &Self) -> bool {
        self.address() == other.address()
    }
}

impl Eq for SameLayer {}

impl Hash for SameLayer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

impl StoreKey {
    /// What keeps the chunks that are near apart: all that decides whose bytes they are. Bounds and times do not, so that what is on
    /// a disk is found again after they were changed.
    fn scope(&self) -> Scope {
        let settings = Settings {
            limits: Limits::default(),
            quota: Quota::default(),
            near: None,
            layout1: Layout1::default(),
            // What is near has none.
            descriptor: Descriptor::default(),
            require_descriptor: false,
            direct: Direct::default(),
            ..self.settings.clone()
        };
        Scope::of(&StoreKey { settings, layers: Vec::new(), ..self.clone() })
    }

    /// Whether what one store has counts for the other's share too.
    fn has_owner_of(&self, other: &StoreKey) -> bool {
        let owner = |key: &StoreKey| (key.target.backend.clone(), key.settings.tenant.clone());
        owner(self) == owner(other)
    }
}

/// The open stores of a process.
pub(super) type OpenStores = StoreTable<StoreKey, OpenStore>;

/// The store that a URI names, and what prefixes its manifests.
pub(super) fn open(uri: &StoreUri, setup: &Setup) -> Result<(Arc<OpenStore>, Option<String>), Error> {
    let process = &setup.process;
    let file = setup.config.load(&process.configs)?;
    file.tell_misspelt(|scheme| setup.components.serve(scheme, &file).is_ok(), || setup.components.names());
    process.serve_metrics(&file);
    let found = setup.components.serve(uri.scheme(), &file);
    // Without a component an open fails; whose failure it is counts nevertheless.
    let by_name = Served::by_name(uri.scheme());
    let served = found.as_ref().map_or(&by_name, |found| &found.served);
    let uri = &file.placed(uri.clone(), served)?;
    let settings = file.settings(uri, served)?;
    let counters = process.counters.of(&served.backend, settings.tenant.as_deref());
    let begun = process.clock.now();
    let opened = found.and_then(|found| open_with(uri, setup, &file, settings, &found, &counters));
    counters.call(Operation::Open, &opened, process.clock.since(begun));
    opened
}

fn open_with(
    uri: &StoreUri,
    setup: &Setup,
    file: &Config,
    settings: Settings,
    found: &FoundComponent,
    counters: &Arc<Counters>,
) -> Result<(Arc<OpenStore>, Option<String>), Error> {
    let target = settings.target(uri, &found.served)?;
    if setup.must_exist {
        check_there(target.grants.directory.as_deref())?;
    }
    let path = &found.component;
    // What must not be overlapped may be thousands of places.
    if target.grants.directories().next().is_some() {
        target.grants.check_overlap(&guarded(setup, file, &settings, path))?;
    }
    let Settings { sha256, limits, .. } = &settings;
    let owner = setup.process.owners.get(&target.backend, settings.tenant.as_deref());
    let component = setup.components.load(path, *sha256, limits, &file.helper(), &Whose::of(&owner))?;
    found.check_same()?;

    // Handles that differ only in what prefixes their manifests share a store.
    let prefix = target.prefix.clone();
    let target = OpenTarget { prefix: None, ..target };
    let layers = setup.layers.iter().cloned().map(SameLayer).collect();
    let key = StoreKey { component: component.digest(), target, settings, layers };
    let Process { stores: places, clock, .. } = &*setup.process;
    let until = Until::with(clock, &key.settings.limits, None, None);
    let place = places.place(&key, || Breaker::new(key.target.store.as_str(), &key.settings.limits, clock));
    if let Some(shared) = place.current() {
        return Ok((shared, prefix));
    }
    // Before the wait: who comes while the backend is away does not wait in a line of opens that each fail slowly.
    let refused = |_: &Error| counters.count(Event::BreakerRefused);
    place.breaker.admit().inspect_err(refused)?.give_back();
    let opener = match place.turn(until.deadline())? {
        OpenTurn::Open(shared) => return Ok((shared, prefix)),
        OpenTurn::Mine(opener) => opener,
    };
    // Those before in the line may have opened the breaker.
    let pass = place.breaker.admit().inspect_err(refused)?;
    let open = || OpenStore::open(component.clone(), key.clone(), setup, &place, counters, &until);
    let opened = match open() {
        // Its owner's share may be taken by stores of its own that nobody uses.
        Err(full) if full.kind() == ErrorKind::Exhausted => {
            match places.make_room(|other| key.has_owner_of(other), until.deadline()) {
                true => open(),
                false => Err(full),
            }
        }
        opened => opened,
    };
    let opened = opened.map(Arc::new);
    match opened.as_ref().err() {
        Some(error) if error.is_busy() => pass.give_back(),
        failed => {
            if pass.report(failed) {
                counters.count(Event::BreakerOpened);
            }
        }
    }
    let shared = opened?;
    setup.process.counters.gauge(&shared);
    let stored = shared.quota.stored_bytes;
    let asked = Bound::parse(&shared.features.more).unwrap_or_default();
    let writable = shared.reach.directory.clone().filter(|directory| !directory.is_read_only());
    if let (Some(bound), Some(directory)) = (asked.with_quota(stored), writable) {
        let maintained: Arc<dyn MaintainedStore> = shared.clone();
        let kept = upkeep::begin(&setup.process.upkeep, &maintained, (&shared.reach.whose, directory), bound)?;
        let _ = shared.kept.set(kept);
    }
    opener.opened(shared.clone());
    Ok((shared, prefix))
}

/// Refuse a directory that an open would have to make.
fn check_there(directory: Option<&Path>) -> Result<(), Error> {
    match directory.map(|path| (path, path.try_exists())) {
        Some((path, Ok(false))) => {
            let message =
                format!("there is no directory {}: correct the path, or store something there first", path.display());
            Err(Error::new(ErrorKind::Missing, message))
        }
        // What else is wrong with it, the open says.
        _ => Ok(()),
    }
}

/// What no store may lie over: our compiled code, every backend's component, the config, secrets; and what no store may
/// hold: another tenant's directory.
pub fn guarded(setup: &Setup, file: &Config, settings: &Settings, component: &Path) -> Guarded {
    let components = setup.components.guarded();
    let configs = setup.config.places().into_iter().map(|path| ("the config file", path));
    let named = file.files().chain([("a component", component)]).map(|(what, path)| (what, path.to_owned()));
    let own = components.into_iter().chain(configs).chain(named).collect();
    Guarded { own, foreign: file.directories_of_others(settings) }
}

/// The directories that a store may reach, opened: the one that the URI names, and the others by name.
pub struct Directories {
    pub own: Option<Directory>,
    pub folders: BTreeMap<String, Arc<Directory>>,
    /// The segment stores of the process.
    pub segments: Arc<SegmentStores>,
}

impl Directories {
    fn open(target: &OpenTarget, settings: &Settings, setup: &Setup, owner: &Arc<Owner>) -> Result<Self, Error> {
        let Process { directories, segments, .. } = &*setup.process;
        let whose = Whose::of(owner);
        let directory = target.grants.directory.as_deref();
        let directory = directory.map(|path| Directory::open(path, directories)).transpose()?;
        let open_folder = |(name, folder): (&String, &Folder)| {
            let opened = match folder.access {
                FolderAccess::ReadOnly => Directory::open_read_only(&folder.path, directories),
                FolderAccess::ReadWrite => Directory::open(&folder.path, directories),
            };
            let opened = opened.map_err(|error| error.context(format_args!("fs.{name}")))?;
            Ok((name.clone(), Arc::new(opened.of_store(&whose, settings.direct))))
        };
        Ok(Directories {
            own: directory.map(|directory| directory.of_store(&whose, settings.direct)),
            folders: target.grants.fs.iter().map(open_folder).collect::<Result<_, Error>>()?,
            segments: segments.clone(),
        })
    }
}

/// What the instances of a store may reach.
pub fn reach(
    target: &OpenTarget,
    settings: &Settings,
    directories: Directories,
    (budgets, owner): (&Arc<Budgets>, Arc<Owner>),
    (counters, meters): (&Arc<Counters>, Arc<Meters>),
) -> Reach {
    Reach {
        name: target.backend.clone(),
        folders: directories.folders,
        segments: directories.segments,
        grants: target.grants.clone(),
        directory: directories.own.map(Arc::new),
        shares: Shares::of(budgets, &owner, &settings.limits),
        whose: Whose::of(&owner),
        owner,
        limits: settings.limits.clone(),
        tls: settings.tls.clone(),
        counters: counters.clone(),
        meters,
        cpu_quota: settings.quota.cpu_ms_per_s.is_some(),
    }
}

/// Refuse a component whose bounds are no whole numbers: a bound that is dropped is a store without one.
fn check_facts(more: &[(String, String)]) -> Result<(), Error> {
    let wrong = more.iter().find(|(fact, value)| {
        let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
        bound::FACTS.contains(&fact.as_str()) && !(digits && value.parse::<u64>().is_ok())
    });
    match wrong {
        Some((fact, value)) => Err(contract_violation(format_args!(
            "answered {fact} = {:?} among its features, which is no whole number",
            log::clean(value)
        ))),
        None => Ok(()),
    }
}

/// Cut what a component says of itself, its label and further facts, to what is used: it may be as long as its memory, and is
/// kept as long as the store.
fn cut(label: &mut String, more: &mut Vec<(String, String)>) {
    *label = log::clean(label);
    let is_known = |fact: &str| bound::FACTS.contains(&fact) || fact == Features::REPLACES_IN_STEPS;
    more.retain(|(fact, value)| is_known(fact) && value.len() <= 20);
    more.truncate(bound::FACTS.len() + 1);
    more.shrink_to_fit();
}

impl OpenStore {
    fn open(
        component: Arc<dyn Component>,
        key: StoreKey,
        setup: &Setup,
        place: &StoreSlot<OpenStore>,
        counters: &Arc<Counters>,
        until: &Until,
    ) -> Result<Self, Error> {
        let StoreSlot { breaker, changes, .. } = place;
        let scope = key.scope();
        let StoreKey { target, settings, .. } = key;
        let Process { budgets, owners, metered, .. } = &*setup.process;
        let owner = owners.get(&target.backend, settings.tenant.as_deref());
        let opened = Directories::open(&target, &settings, setup, &owner)?;
        let meters = metered.of(&target.backend, settings.tenant.as_deref());
        let reach = Arc::new(reach(&target, &settings, opened, (budgets, owner), (counters, meters)));
        let uri = target.store.as_str().to_owned();
        let options = settings.options.into_iter().collect();
        let fault = settings.fault.as_ref().map(FaultTable::text);
        check_fault(&setup.layers, fault)?;
        let opening = Opening { uri: &uri, fault, until };
        let wraps = setup.layers.iter().map(|layer| layer.open(&opening)).collect::<Result<Vec<Option<Wrap>>, _>>()?;
        let component_digest = component.digest();
        let (instances, mut features) = component.open(reach.clone(), &uri, options, until)?;
        let innermost: Arc<dyn Backend> = instances.clone();
        let inner = wraps.into_iter().flatten().fold(innermost, |inner, wrap| wrap(inner));
        let guarded = Arc::new(WithBreaker::new(inner, breaker.clone(), counters.clone()));
        let settles = features.properties.settles;
        let held = Arc::new(Holding::new(guarded, changes.clone(), settles, counters.clone()));
        let setting = Setting {
            reads_layout1: settings.layout1 == Layout1::Read,
            requires_descriptor: settings.require_descriptor,
            descriptors: Descriptors::default(),
            uri: uri.clone(),
            clock: setup.process.clock.clone(),
            counters: counters.clone(),
        };
        let enveloped = Arc::new(Enveloped::new(held, setting));
        let verifier = Arc::new(Verifier::new(settings.verify));
        let near = settings.near.as_ref().map(|near| {
            let of_process = &setup.process.near;
            let level = of_process.level((&target.backend, settings.tenant.as_deref()), &reach.owner, near, counters);
            Arc::new(NearLayer::new(enveloped.clone(), level, scope, verifier.clone(), changes.clone()))
        });
        let backend = Remembering::new(match &near {
            Some(near) => near.clone(),
            None => enveloped.clone(),
        });
        check_facts(&features.more)?;
        cut(&mut features.label, &mut features.more);
        let shared = OpenStore {
            backend,
            enveloped,
            suspects: Suspects::default(),
            superseded: RecentNames::default(),
            breaker: breaker.clone(),
            changes: changes.clone(),
            instances,
            reach,
            component_digest,
            features,
            near,
            verifier,
            said: SaidByOperator {
                descriptor: settings.descriptor,
                required: settings.require_descriptor,
                told: Mutex::default(),
            },
            followed: Successors::default(),
            spare: Spare::new(&setup.process.spare),
            removed: Mutex::default(),
            keeps_all: AtomicBool::new(false),
            uri,
            clock: setup.clock.clone().unwrap_or_else(|| setup.process.clock.clone()),
            process: setup.process.clone(),
            counters: counters.clone(),
            kept: OnceLock::new(),
            tenant: settings.tenant,
            quota: settings.quota,
        };
        shared.tell_opened();
        Ok(shared)
    }

    fn tell_opened(&self) {
        let info = self.info();
        let reaches = match (&info.directory, &info.server) {
            (Some(directory), _) => format!("the directory {}", directory.display()),
            (None, Some(server)) => format!("the server {server}"),
            (None, None) => "nothing outside by its URI".to_owned(),
        };
        let Grants { fs, connect, env, secrets, .. } = &self.reach.grants;
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
    }
}

impl Gauged for OpenStore {
    fn gauges(&self) -> StoreGauges {
        StoreGauges {
            backend: self.reach.name.clone(),
            tenant: self.tenant.clone(),
            uri: self.uri.clone(),
            stored_bytes: self.kept.get().and_then(|kept| kept.stored_bytes()),
            breaker_open: self.breaker.is_open(),
            near_memory_bytes: self.near.as_ref().map(|near| near.usage().memory_bytes),
            near_disk_bytes: self.near.as_ref().and_then(|near| near.usage().disk_bytes),
        }
    }
}

impl SharedStore for OpenStore {
    /// Whether the directories that were opened are still those under their names.
    fn is_current(&self) -> bool {
        let Reach { directory, folders, grants, .. } = &*self.reach;
        let own = match (directory, &grants.directory) {
            (Some(open), Some(path)) => open.is_at(path),
            _ => true,
        };
        own && folders.iter().all(|(name, open)| grants.fs.get(name).is_some_and(|folder| open.is_at(&folder.path)))
    }
    fn kept_for(&self) -> Duration {
        match self.reach.directory.is_some() || !self.reach.folders.is_empty() {
            true => limits::IDLE_DIRECTORY_FOR,
            false => limits::IDLE_STORE_FOR,
        }
    }
    fn bytes(&self) -> u64 {
        let shares = &self.reach.shares;
        shares.memory_bytes.used().saturating_add(shares.payload_bytes.used())
    }
}

#[cfg(test)]
#[path = "registry_tests.rs"]
mod tests;
