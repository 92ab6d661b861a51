//! What an open of a URI would do, and what is wrong with it: the same decisions, told instead of taken.

mod config;
mod described;
mod near;
mod reach;
mod rehearsal;
mod values;

use std::path::PathBuf;

pub use described::SaidOfValues;
pub use near::NearLevel;

use crate::backend::check_fault;
use crate::config::{Config, FaultTable, Helper, Settings};
use crate::directory::why_refused;
use crate::error::Error;
use crate::inspect::{Inspection, inspect};
use crate::limits::Limits;
use crate::loader::{self, Places};
use crate::log;
use crate::open::Store;
use crate::policy::{FolderAccess, Grants, OpenTarget, SecretSource, Served};
use crate::sandbox_traits::FoundComponent;
use crate::setup::Setup;
use crate::store::guarded;
use crate::suggest::nearest;
use crate::uri::{StoreUri, variable_prefix};
use rehearsal::rehearse;

pub use config::{ConfigReport, check_config};

/// What an open of a URI would do. What could not be found out is empty, and `problems` says why.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The store's own URI: without `wasm://`, and up to the config's `root`.
    pub uri: String,
    /// What comes before the names of manifests.
    pub manifest_prefix: Option<String>,
    /// What comes before `://` in the URI.
    pub scheme: String,
    /// The config file that was read. None: there is none.
    pub config: Option<PathBuf>,
    /// The `uri` of the `[[tenant]]` that covers it.
    pub tenant: Option<String>,
    /// The name of the backend that serves the scheme: of its table in the config, its secrets' variables, its counters.
    pub backend: String,
    /// The port that is meant and granted where the URI names none. None: the component does not tell, or may not choose it.
    pub default_port: Option<u16>,
    /// The component's file.
    pub component: Option<PathBuf>,
    /// The config names it; otherwise it was found in one of `searched`.
    pub component_by_config: bool,
    /// It ships with the library: it lies in `components` beside it.
    pub component_ships: bool,
    /// What that file is.
    pub inspection: Option<Inspection>,
    /// Where a component is looked for that the config does not name, in order.
    pub searched: Vec<PathBuf>,
    /// The only SHA-256 that the config accepts, in hex.
    pub pinned_sha256: Option<String>,
    /// What the component would be granted.
    pub reaches: Reaches,
    /// What is kept of its chunks on this machine, before the backend.
    pub near: Option<NearLevel>,
    /// What the config says that its values are.
    pub descriptor: SaidOfValues,
    /// The bounds in force.
    pub limits: Limits,
    /// The cache of compiled components.
    pub cache: Option<PathBuf>,
    /// Whether this component's code is in it.
    pub cached: bool,
    /// The program that compiles components in a process of its own.
    pub compile_helper: Option<PathBuf>,
    /// The component has accepted the URI and its options: an open fails only over what is outside of this process.
    pub config_valid: bool,
    /// What the backend says of itself, where it was opened.
    pub label: Option<String>,
    /// The servers that are granted by name and port, where they were connected to.
    pub servers: Vec<Reached>,
    /// What the library promises on Linux and not on this system.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<Lack>,
    /// What an open does, or may do, and was not tried; empty: nothing.
    pub not_tried: Vec<String>,
    /// What an open would fail over, or what is unlikely to be meant.
    pub problems: Vec<Problem>,
}

/// How far a diagnosis goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Looks at the URI, the config and the component's file, and has the component check the URI and its options, with no network and
    /// no right to change a file.
    Offline,
    /// Also resolves the granted servers and connects to them.
    Connect,
    /// Also opens the store, which logs in to its server.
    Probe,
}

/// A server, and whether it was connected to.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Reached {
    /// As it is granted: `host:port`.
    pub server: String,
    /// The address that answered.
    pub reached: Option<String>,
    /// Why none did.
    pub why: Option<String>,
}

/// A promise that does not hold on this system; `docs/threat-model.md` has the same names.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Lack {
    /// Of the promise, such as `compile-sandbox`.
    pub name: &'static str,
    /// What holds in its place.
    pub instead: &'static str,
}

/// What a component would be granted.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[non_exhaustive]
pub struct Reaches {
    /// The directory that the URI names.
    pub directory: Option<PathBuf>,
    /// Further directories: name, path, and whether they may be written to.
    pub fs: Vec<(String, PathBuf, bool)>,
    /// The servers that the URI names.
    pub servers: Vec<String>,
    /// Patterns of further servers.
    pub connect: Vec<String>,
    /// Whether those may be machines of a private network.
    pub private_networks: bool,
    /// Environment variables of a component that uses WASI: name, and whether it is set.
    pub environment: Vec<(String, bool)>,
    /// Secrets that the config names. Never their values.
    pub secrets: Vec<Secret>,
    /// How the variables of its other secrets begin. None: it has no others.
    pub secret_prefix: Option<String>,
}

/// A secret that a component may ask for.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Secret {
    /// Its short name.
    pub name: String,
    /// Where it is kept.
    pub kept: String,
    /// It has a value.
    pub set: bool,
}

/// Something that an open would fail over, or that is unlikely to be meant.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Problem {
    /// What is wrong, in one line.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    /// An open would fail.
    pub fatal: bool,
}

/// Tell what an open of a URI would do.
pub fn doctor(uri: &str, depth: Depth) -> Diagnosis {
    doctor_with(uri, depth, &Setup::of_process())
}

/// Tell what an open of a URI would do, with what a host has.
pub(crate) fn doctor_with(uri: &str, depth: Depth, setup: &Setup) -> Diagnosis {
    let lacks = kv_platform::LACKS.iter().map(|lack| Lack { name: lack.name, instead: lack.instead }).collect();
    let mut found = Diagnosis { searched: setup.places.directories(), lacks, ..Diagnosis::default() };
    found.check_environment();
    let looked = found.look(uri, setup).unwrap_or_else(|(error, remedy)| {
        found.problem(true, error, remedy);
        None
    });
    let networked = looked.as_ref().is_some_and(|(target, _)| target.grants.is_networked());
    if let Some((target, settings)) = &looked {
        found.rehearse(target, settings, setup);
    }
    match &looked {
        Some((target, _)) if depth != Depth::Offline => found.reach(&target.grants),
        _ if networked => found.not_tried.push("connecting to the granted servers (leave --offline out)".into()),
        _ => {}
    }
    if depth != Depth::Probe {
        let what = if networked { "logging in to the server" } else { "opening the store" };
        found.not_tried.push(format!("{what} (--probe does)"));
    } else if found.has_fatal() {
        found.not_tried.push("opening the store, because of the problems".into());
    } else {
        match Store::open_with(uri, setup) {
            Ok(store) => found.label = Some(store.info().label),
            Err(error) => found.problem(true, error, "follow this message; the server's own log may say more"),
        }
    }
    found
}

/// What an open would be of, if that was found out.
type Looked = Result<Option<(OpenTarget, Settings)>, (Error, &'static str)>;

impl Diagnosis {
    fn problem(&mut self, fatal: bool, what: impl std::fmt::Display, remedy: &str) {
        self.problems.push(Problem { what: what.to_string(), remedy: remedy.to_owned(), fatal });
    }

    fn has_fatal(&self) -> bool {
        self.problems.iter().any(|problem| problem.fatal)
    }

    /// What the environment says that nothing takes.
    fn check_environment(&mut self) {
        const KNOWN: [&str; 4] =
            ["KV_STORE_WASM_CACHE", "KV_STORE_WASM_CONFIG", "KV_STORE_WASM_LOG", "KV_STORE_WASM_PATH"];
        for path in loader::relative_directories() {
            self.problem(false, format!("KV_STORE_WASM_PATH: {path} is ignored"), "write it as an absolute path");
        }
        if let Some(unknown) = log::unknown_level() {
            self.problem(false, unknown, "correct the level");
        }
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for name in names.filter(|name| name.starts_with("KV_STORE_WASM_") && !KNOWN.contains(&name.as_str())) {
            let meant = nearest(&name, KNOWN.into_iter()).map(|meant| format!("; did you mean {meant}?"));
            let what = format!("{name} is set, and this library has no such variable{}", meant.unwrap_or_default());
            self.problem(false, what, "unset it, or correct its name");
        }
    }

    /// Have the component check the URI and its options.
    fn rehearse(&mut self, target: &OpenTarget, settings: &Settings, setup: &Setup) {
        let component = match (self.component.clone(), setup.load_config()) {
            (Some(component), Ok(config)) if !self.has_fatal() => Some((component, config.helper())),
            _ => None,
        };
        // Without it there is a problem already.
        let Some((component, helper)) = component else { return };
        match rehearse(&component, &helper, target, settings, setup) {
            Ok(()) => self.config_valid = true,
            Err(error) => {
                let error = error.context(&self.uri);
                self.problem(true, error, "correct the URI, or the backend's table of the config");
            }
        }
    }

    /// Connect to the servers that are granted by name and port.
    fn reach(&mut self, grants: &Grants) {
        let (servers, not_tried) = reach::servers(grants, self.limits.patience());
        for server in &servers {
            if let Some(why) = &server.why {
                let remedy = "start it, or correct the URI or `connect`; the network may stand between";
                self.problem(true, format_args!("{} is not reached: {why}", server.server), remedy);
            }
        }
        self.servers = servers;
        self.not_tried = not_tried;
    }

    /// Find out what can be, up to what makes the rest meaningless.
    fn look(&mut self, text: &str, setup: &Setup) -> Looked {
        let uri = StoreUri::parse(text).map_err(|error| (error, "correct the URI"))?;
        (self.uri, self.scheme) = (uri.as_str().to_owned(), uri.scheme().to_owned());
        let config =
            setup.load_config().map_err(|error| (error, "correct the config file; docs/config.md has every key"))?;
        self.config.clone_from(&config.path);
        for what in config.misspelt(|scheme| setup.places.serve(scheme, &config).is_ok(), &setup.places.names()) {
            self.problem(false, what, "correct the table's name, or install its component");
        }
        let component = setup.places.serve(uri.scheme(), &config);
        let served =
            component.as_ref().map_or_else(|_| Served::by_name(uri.scheme()), |component| component.served.clone());
        (self.backend, self.default_port) = (served.backend.clone(), served.port(uri.scheme()));
        let uri = config
            .placed(uri, &served)
            .map_err(|error| (error, "write the server into the URI, or say in the config where it is"))?;
        let settings = config
            .settings(&uri, &served)
            .map_err(|error| (error, "add a [[tenant]] whose uri covers it, or correct the URI or the config"))?;
        self.tenant.clone_from(&settings.tenant);
        self.limits = settings.limits.clone();
        if let Err(error) = check_fault(&setup.layers, settings.fault.as_ref().map(FaultTable::text)) {
            self.problem(true, error.to_string(), "remove the table `fault` from the backend's config");
        }
        self.look_near(&settings);
        self.look_described(&settings);
        self.pinned_sha256 = settings.sha256.map(|pin| hex::encode(pin.0));

        match settings.target(&uri, &served) {
            Ok(target) => {
                self.uri = target.store.as_str().to_owned();
                self.manifest_prefix.clone_from(&target.prefix);
                self.tell_grants(&target.grants, &target.backend);
                if let Err((error, remedy)) =
                    self.check_component(setup, &config, &settings, component, Some(&target.grants))
                {
                    self.problem(true, error, remedy);
                }
                Ok(Some((target, settings)))
            }
            Err(error) => {
                self.problem(true, error, "correct the URI, or `root` in the config");
                self.check_component(setup, &config, &settings, component, None)?;
                Ok(None)
            }
        }
    }

    fn tell_grants(&mut self, grants: &Grants, backend: &str) {
        let secret = |(name, source): (&String, &SecretSource)| Secret {
            name: name.clone(),
            kept: source.to_string(),
            set: matches!(source.read(), Ok(Some(_))),
        };
        self.reaches = Reaches {
            directory: grants.directory.clone(),
            fs: grants
                .fs
                .iter()
                .map(|(name, folder)| (name.clone(), folder.path.clone(), folder.access == FolderAccess::ReadWrite))
                .collect(),
            servers: grants.servers.clone(),
            connect: grants.connect.iter().map(|pattern| pattern.as_str().to_owned()).collect(),
            private_networks: grants.private_networks,
            environment: grants
                .environment()
                .iter()
                .map(|name| (name.clone(), std::env::var_os(name).is_some()))
                .collect(),
            secrets: grants.secrets.iter().map(secret).collect(),
            secret_prefix: grants.secret_prefix.clone(),
        };
        for Secret { name, kept, set } in self.reaches.secrets.clone() {
            if !set {
                let why = match grants.secrets.get(&name).map(SecretSource::read) {
                    Some(Err(error)) => format!("the secret {name} cannot be read from {kept}: {error}"),
                    _ => format!("the secret {name} is not set: {kept}, which the config names, is not there"),
                };
                self.problem(false, why, "set it, or remove it from secrets");
            }
        }
        self.tell_own_secrets(grants, backend);
        for (name, set) in self.reaches.environment.clone() {
            if !set {
                self.problem(false, format!("the variable {name} is not set"), "set it, or remove it from env");
            }
        }
        // The last part of the URI's own path is made; of the others, that of those that may be written to.
        let own = self.reaches.directory.iter().map(|path| (path.clone(), true));
        let named = self.reaches.fs.iter().map(|(_, path, write)| (path.clone(), *write));
        for (path, made) in own.chain(named).collect::<Vec<_>>() {
            let wanted = if made { path.parent().unwrap_or(&path) } else { &path };
            if let Some(why) = why_refused(&path).or_else(|| why_refused(wanted).filter(|_| !path.exists())) {
                self.problem(true, why, "choose a directory on a disk, or below /dev/shm");
            }
            if !wanted.is_dir() {
                let what = format!("{} is no directory", wanted.display());
                self.problem(true, what, "create it; the library creates only the last part of a path");
            }
        }
    }

    /// The variables of the backend's own that are set: taken as secrets, or not, because the config names another source.
    fn tell_own_secrets(&mut self, grants: &Grants, backend: &str) {
        let prefix = variable_prefix(backend);
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for variable in names.filter(|name| name.starts_with(&prefix)) {
            let name = variable.strip_prefix(&prefix).unwrap_or_default().to_lowercase().replace('_', "-");
            let taken = SecretSource::Variable(variable.clone());
            match grants.secret(&name) {
                Ok(source) if source == taken && !grants.secrets.contains_key(&name) => {
                    self.reaches.secrets.push(Secret { name, kept: taken.to_string(), set: true });
                }
                Ok(source) if source != taken => {
                    let what =
                        format!("{variable} is set and not used: the config takes the secret {name} from {source}");
                    self.problem(false, what, "unset it, or remove the secret from the config");
                }
                Err(_) if grants.secret_prefix.is_none() => {
                    let what = format!("{variable} is set and not used: a tenant has only the secrets of its table");
                    self.problem(false, what, "name it in the secrets of the [[tenant]]");
                }
                _ => {}
            }
        }
    }

    fn check_component(
        &mut self,
        setup: &Setup,
        config: &Config,
        settings: &Settings,
        component: Result<FoundComponent, Error>,
        grants: Option<&Grants>,
    ) -> Result<(), (Error, &'static str)> {
        let FoundComponent { component: path, by_config, ships, .. } = component
            .map_err(|error| (error, "put it into one of the directories, or name it as `component` in the config"))?;
        (self.component, self.component_by_config, self.component_ships) = (Some(path.clone()), by_config, ships);
        if let Some(Err(error)) =
            grants.map(|grants| grants.check_overlap(&guarded(&setup.of_stores(), config, settings, &path)))
        {
            self.problem(true, error, "choose another directory");
        }
        let inspection = inspect(&path).map_err(|error| (error, "take the component from its vendor again"))?;
        for what in &inspection.problems.clone() {
            self.problem(true, what, "ask the component's vendor for one that is built for this host");
        }
        if inspection.bytes > settings.limits.component_bytes {
            let what = format!("the component has {} bytes", inspection.bytes);
            self.problem(true, what, "raise limits.component_bytes, if it is the right one");
        }
        if let Some(pinned) = self.pinned_sha256.clone().filter(|pinned| *pinned != inspection.sha256) {
            let what =
                format!("the component's SHA-256 is {}, and the config accepts only {pinned}", inspection.sha256);
            self.problem(true, what, "put the right component back, or change `sha256` if it was replaced on purpose");
        }
        self.check_cache(&setup.places, &inspection.sha256);
        self.check_helper(&config.helper(), &setup.places);
        self.inspection = Some(inspection);
        Ok(())
    }

    fn check_helper(&mut self, helper: &Helper, places: &Places) {
        if places.compile_in_process || *helper == Helper::InProcess {
            let what = "components are compiled in the engine's own process, without bounds on memory and time: the config or the \
                        program says so (compile = \"in-process\")";
            return self.problem(false, what, "leave it out where the compile helper can be installed");
        }
        match loader::find_helper(helper) {
            Ok(program) => self.compile_helper = Some(program.path),
            Err(why) => {
                let what = format!(
                    "there is no compile helper, so that only components whose compiled code is cached can be opened: {why}"
                );
                let remedy = "install kv-store-compile beside the library, name it as `compile.helper` in the config, or set `compile = \
                              \"in-process\"` there";
                self.problem(!self.cached, what, remedy);
            }
        }
    }

    fn check_cache(&mut self, places: &Places, sha256: &str) {
        self.cache = places.cache();
        let digest = crate::config::Digest::try_from(sha256.to_owned());
        match (loader::components(), digest) {
            (Ok(components), Ok(digest)) => self.cached = components.is_cached(&digest.0, places),
            (Err(error), _) => self.problem(true, error, "no store can open in this process before this is solved"),
            (_, Err(_)) => {}
        }
        let why = match self.cache.as_deref() {
            None => Some("there is no place for them".to_owned()),
            Some(cache) if !cache.exists() => None,
            Some(cache) => loader::why_cache_unused(cache).map(|why| format!("{} {why}", cache.display())),
        };
        if let Some(why) = why {
            let what = format!("compiled components are not kept, so each process compiles anew: {why}");
            self.problem(false, what, "name a directory that is this user's alone (chmod 700) in KV_STORE_WASM_CACHE");
        }
    }
}
