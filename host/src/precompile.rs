//! Compiling a component ahead of its first open.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::config::Config;
use crate::error::Error;
use crate::limits::Limits;
use crate::loader;

/// How a component was compiled.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Compiled {
    /// How long it took. Next to nothing where its code was in the cache.
    pub took: Duration,
    /// Its code is in the cache, so that other processes need not compile it.
    pub kept: bool,
}

/// Compile a component with the helper that the config names, within `patience` and the default bounds. Nothing of it is run.
pub fn compile(path: &Path, patience: Duration) -> Result<Compiled, Error> {
    let limits = Limits { compile_ms: u64::try_from(patience.as_millis()).unwrap_or(u64::MAX), ..Limits::default() };
    let helper = Config::load()?.helper();
    let begun = Instant::now();
    let components = loader::components()?;
    let loaded = components.load(path, None, &limits, &helper)?;
    Ok(Compiled { took: begun.elapsed(), kept: components.is_cached(&loaded.digest) })
}
