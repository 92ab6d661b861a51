//! A host that a program builds: stores that are opened with the program's own config, directories, cache and log, in place of
//! those that the environment names.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::BackendLayer;
use crate::config::{Config, Source};
use crate::doctor::{Depth, Diagnosis, doctor_with};
use crate::error::Error;
use crate::log;
use crate::open::Store;
use crate::precompile::{Compiled, compile_with};
use crate::process::Clock;
use crate::setup::Setup;

/// What stores are opened with: a config, places of components, a cache of compiled code.
///
/// [`Host::default`] takes them from the environment, as the C ABI does: `KV_STORE_WASM_CONFIG`, `KV_STORE_WASM_PATH` and
/// `KV_STORE_WASM_CACHE`. [`Store::open`] opens with the process's default, which is that one, or the one that
/// [`Host::make_default`] was called on.
///
/// What costs memory and time belongs to the process: the engine, its threads, loaded components, budgets, counters, and the
/// log. Hosts that open the same URI with the same component and the same settings share one store. A host is cheap to clone, and
/// stores outlive it.
///
/// ```no_run
/// # fn main() -> Result<(), kv_store_wasm::Error> {
/// let host = kv_store_wasm::Host::builder()
///     .config_text("[backend.local-fs.limits]\ndeadline_ms = 2000\n")
///     .components(["/opt/kv/components"])
///     .cache("/var/cache/engine/components")
///     .build()?;
/// let store = host.open("local-fs:///var/cache/kv")?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Host {
    setup: Setup,
}

impl Host {
    /// Begin to build one.
    pub fn builder() -> HostBuilder {
        HostBuilder::default()
    }

    /// Open the store that a URI names. See `include/kv_store_abi.h` for the URI.
    ///
    /// # Errors
    /// `Invalid`: the URI, the config or the component is not as it must be. `Denied`: the config refuses it. `Missing`: see
    /// [`HostBuilder::must_exist`]. Otherwise what the backend answered, or why it was not reached.
    pub fn open(&self, uri: &str) -> Result<Store, Error> {
        Store::open_with(uri, &self.setup)
    }

    /// Tell what [`Host::open`] of a URI would do.
    pub fn doctor(&self, uri: &str, depth: Depth) -> Diagnosis {
        doctor_with(uri, depth, &self.setup)
    }

    /// Compile a component ahead of its first open, with the helper that the config names, within `patience` and the default
    /// bounds, and keep its code in the cache. Nothing of it is run.
    ///
    /// # Errors
    /// As [`compile`](crate::compile).
    pub fn compile(&self, path: &Path, patience: Duration) -> Result<Compiled, Error> {
        compile_with(path, patience, &self.setup)
    }

    /// Have this host be the one of [`Store::open`] and of the C ABI in this process. Call it before anything else opens a
    /// store: the first one stays. False: there was one, and nothing has changed.
    #[must_use]
    pub fn make_default(&self) -> bool {
        self.setup.clone().make_default()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Setup { config, places, .. } = &self.setup;
        formatter.debug_struct("Host").field("config", config).field("places", places).finish_non_exhaustive()
    }
}

/// Says what a [`Host`] is to be made of. What is not said is taken from the environment.
#[derive(Default)]
#[must_use]
pub struct HostBuilder {
    config: Option<Given>,
    components: Option<Vec<PathBuf>>,
    cache: Option<PathBuf>,
    log: Option<Box<dyn ::log::Log>>,
    layers: Vec<Arc<dyn BackendLayer>>,
    clock: Option<Clock>,
    must_exist: bool,
    compile_in_process: bool,
}

/// The config as the program gives it.
#[derive(Debug)]
enum Given {
    File(PathBuf),
    Text(String),
}

impl fmt::Debug for HostBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HostBuilder { config, components, cache, log, layers, clock: _, must_exist, compile_in_process } = self;
        let mut shown = formatter.debug_struct("HostBuilder");
        shown.field("config", config).field("components", components).field("cache", cache);
        shown.field("log", &log.is_some()).field("layers", &layers.len()).field("must_exist", must_exist);
        shown.field("compile_in_process", compile_in_process).finish()
    }
}

impl HostBuilder {
    /// The config file, an absolute path. It is read when a store is opened, so a change holds for what is opened after it.
    pub fn config(self, path: impl Into<PathBuf>) -> Self {
        HostBuilder { config: Some(Given::File(path.into())), ..self }
    }

    /// The config itself, as the TOML of a config file. The empty text is a config that says nothing.
    pub fn config_text(self, toml: impl Into<String>) -> Self {
        HostBuilder { config: Some(Given::Text(toml.into())), ..self }
    }

    /// The directories, absolute, in which a component is looked for that the config does not name, in order: `<scheme>.wasm`, then
    /// one that lists the scheme. They count as a stranger's, whose port for a URI without one is granted only where the config pins them
    /// by `sha256`, unless the directory is `components` beside the program.
    pub fn components<P: Into<PathBuf>>(self, directories: impl IntoIterator<Item = P>) -> Self {
        HostBuilder { components: Some(directories.into_iter().map(Into::into).collect()), ..self }
    }

    /// The directory, absolute, in which compiled code is kept. It must be this user's alone (mode 0700) and is made where it is
    /// missing.
    pub fn cache(self, directory: impl Into<PathBuf>) -> Self {
        HostBuilder { cache: Some(directory.into()), ..self }
    }

    /// Where the lines of the log go, in place of standard error: any logger of the crate `log`, and with
    /// [`log::logger()`](::log::logger) the program's own, once that is set. Each line is a record of the target
    /// `kv_store_wasm`; the logger's `enabled` decides which are made.
    ///
    /// The log is the process's, so this holds for all hosts, from [`HostBuilder::build`] on and until another one says
    /// otherwise. The logger is kept until the process ends. It may be called by any thread, in the middle of a call: it must not
    /// wait for long, and must not call this library. What it panics with is dropped. In a child that was forked off, whose other
    /// threads are gone with what they had locked, the lines go to standard error again.
    pub fn log(self, sink: impl ::log::Log + 'static) -> Self {
        HostBuilder { log: Some(Box::new(sink)), ..self }
    }

    /// A layer around the instances of each store that the host opens, inside the circuit breaker and around the layers that were named
    /// before it. The traits are in `layers`, with the feature `unstable`: until 1.0 they may change with any version.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    pub fn layer(mut self, layer: impl BackendLayer + 'static) -> Self {
        self.layers.push(Arc::new(layer));
        self
    }

    /// Open only what is there: where the URI names a directory that does not exist, [`Host::open`] fails with `Missing` and makes none.
    /// Whether a store on a server exists, an open does not ask.
    pub fn must_exist(self) -> Self {
        HostBuilder { must_exist: true, ..self }
    }

    /// Compile components in this process, as `compile = "in-process"` of the config does: for a program that may start no other, or is not
    /// shipped with `kv-store-compile`. The compiler's memory and time then have no bound: a component of 1 MB can take gigabytes, and a
    /// compilation that is late goes on at the lowest priority. Do so for components that you trust, and pin them with `sha256`.
    pub fn compile_in_process(self) -> Self {
        HostBuilder { compile_in_process: true, ..self }
    }

    /// What tells how long ago a backend said that it has a chunk. No promise is made about it: it is for tests.
    #[doc(hidden)]
    pub fn clock(self, clock: Clock) -> Self {
        HostBuilder { clock: Some(clock), ..self }
    }

    /// The host.
    ///
    /// # Errors
    /// `Invalid`: a path is not absolute, or the config's text does not hold. A config file is read by [`Host::open`].
    pub fn build(self) -> Result<Host, Error> {
        let check = |what: &str, path: &Path| match path.is_absolute() {
            true => Ok(()),
            false => {
                let message = format!("{what} {}: must be an absolute path", path.display());
                Err(Error::invalid(message).during("build"))
            }
        };
        let config = match self.config {
            None => Source::Search,
            Some(Given::File(path)) => check("the config file", &path).map(|()| Source::File(path))?,
            Some(Given::Text(text)) => Source::Given(Config::given(&text).map_err(|error| error.during("build"))?),
        };
        for directory in self.components.iter().flatten() {
            check("the directory of components", directory)?;
        }
        if let Some(directory) = &self.cache {
            check("the cache", directory)?;
        }
        if let Some(sink) = self.log {
            log::set_sink(Some(sink));
        }
        let places = crate::loader::Places {
            components: self.components,
            cache: self.cache,
            compile_in_process: self.compile_in_process,
            beside: None,
        };
        let HostBuilder { layers, clock, must_exist, .. } = self;
        Ok(Host { setup: Setup { config, places, layers, clock, must_exist } })
    }
}
