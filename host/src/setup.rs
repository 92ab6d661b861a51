//! What a host opens stores with.

use std::sync::{Arc, OnceLock};

use crate::backend::MakeLayer;
use crate::config;
use crate::loader::Places;
use crate::store::{self, Clock};

/// What a host opens stores with. The default takes it from the environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup {
    pub config: config::Source,
    pub places: Places,
    /// Makes the layer that a config's `fault` table asks for.
    pub layer: Option<MakeLayer>,
    pub clock: Clock,
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

    /// The same, as stores want it.
    pub(crate) fn of_stores(&self) -> store::Setup {
        let Setup { config, places, layer, clock } = self.clone();
        store::Setup { config, components: Arc::new(places), layer, clock }
    }
}
