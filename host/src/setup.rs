//! What a host opens stores with.

use std::sync::{Arc, OnceLock};

use crate::backend::BackendLayer;
use crate::config::{self, Config};
use crate::error::Error;
use crate::loader::Places;
use crate::process::Clock;
use crate::store::{self, Process};

/// What a host opens stores with. The default takes it from the environment.
#[derive(Clone, Default)]
pub(crate) struct Setup {
    pub config: config::Source,
    pub places: Places,
    /// Lie around the instances of each store, the first one innermost.
    pub layers: Vec<Arc<dyn BackendLayer>>,
    /// In place of the process's, to tell how long ago a backend said something.
    pub clock: Option<Clock>,
    /// An open makes no directory.
    pub must_exist: bool,
}

static DEFAULT: OnceLock<Setup> = OnceLock::new();

impl Setup {
    /// That of whoever names none.
    pub(crate) fn of_process() -> Self {
        DEFAULT.get().cloned().unwrap_or_default()
    }

    /// Make it that of whoever names none. False: there is one.
    pub(crate) fn make_default(self) -> bool {
        DEFAULT.set(self).is_ok()
    }

    /// The same, as stores want it, in the process that this is.
    pub(crate) fn of_stores(&self) -> store::Setup {
        let Setup { config, places, layers, clock, must_exist } = self.clone();
        store::Setup { config, components: Arc::new(places), layers, clock, must_exist, process: Process::current() }
    }

    /// The config as it is now.
    pub(crate) fn load_config(&self) -> Result<Arc<Config>, Error> {
        self.config.load(&Process::current().configs)
    }
}
