//! Compiling a component ahead of its first open.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::limits::Limits;
use crate::loader;
use crate::setup::Setup;
use crate::threads::Whose;

/// How a component was compiled.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Compiled {
    /// How long it took. Next to nothing where its code was in the cache.
    pub took: Duration,
    /// Its code is in the cache, so that other processes need not compile it.
    pub kept: bool,
}

/// Compile a component with the helper that the config names, within `patience` and the default bounds. Nothing of it is run.
///
/// # Errors
/// `Invalid`: the file is no component, or does not compile. `Exhausted`: it is over a bound. `Unavailable`: it takes longer than
/// `patience`.
pub fn compile(path: &Path, patience: Duration) -> Result<Compiled, Error> {
    compile_with(path, patience, &Setup::of_process())
}

/// As [`compile`], with what a host has.
pub(crate) fn compile_with(path: &Path, patience: Duration, setup: &Setup) -> Result<Compiled, Error> {
    compile_now(path, patience, setup).map_err(|error| error.during("compile"))
}

fn compile_now(path: &Path, patience: Duration, setup: &Setup) -> Result<Compiled, Error> {
    let mut limits = Limits::default();
    limits.compile_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    let helper = setup.load_config()?.helper();
    let begun = Instant::now();
    let components = loader::components()?;
    let loaded = components.load(path, None, &limits, &helper, &setup.places, &Whose::default())?;
    Ok(Compiled { took: begun.elapsed(), kept: components.is_cached(&loaded.digest, &setup.places) })
}
