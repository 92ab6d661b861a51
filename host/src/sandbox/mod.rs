//! The traits of the core crate's `sandbox` over wasmtime: components that are loaded, and the instances of a store.
//!
//! `pool` runs them, one call at a time each; `instances` makes a call of the guest of each call of a [`Backend`](crate::backend::Backend), and
//! `maintenance` of those that list and clean. Invariant: what a guest answers is checked for its shape here, before the store sees it.

#[cfg(test)]
mod copy_tests;
mod hashes;
mod instances;
mod maintenance;
mod pool;
#[cfg(test)]
mod target_tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) use pool::Pool;

use crate::config::{Config, Digest, Helper};
use crate::contract::Access;
use crate::error::Error;
use crate::limits::Limits;
use crate::loader::{self, Loaded, Places};
use crate::sandbox_traits::{Component, Components, Features, FoundComponent, Instances, Maintenance, Reach};
use crate::threads::Whose;
use crate::until::Until;

/// The places of a host are where its components are looked for.
impl Components for Places {
    fn serve(&self, scheme: &str, config: &Config) -> Result<FoundComponent, Error> {
        loader::tell_relative_directories();
        self.serve(scheme, config)
    }

    fn names(&self) -> BTreeSet<String> {
        self.names()
    }

    fn guarded(&self) -> Vec<(&'static str, PathBuf)> {
        let cache = self.cache().map(|path| ("the cache of compiled components", path));
        let components = self.directories().into_iter().map(|path| ("a directory of components", path));
        cache.into_iter().chain(components).collect()
    }

    fn load(
        &self,
        path: &Path,
        pinned: Option<Digest>,
        limits: &Limits,
        helper: &Helper,
        whose: &Whose,
    ) -> Result<Arc<dyn Component>, Error> {
        Ok(loader::components()?.load(path, pinned, limits, helper, self, whose)?)
    }
}

impl Component for Loaded {
    fn digest(&self) -> [u8; 32] {
        self.digest
    }

    fn open(
        self: Arc<Self>,
        reach: Arc<Reach>,
        uri: &str,
        options: Vec<(String, String)>,
        until: &Until,
    ) -> Result<(Arc<dyn Instances>, Features), Error> {
        let (pool, features) = Pool::open(self, Arc::new(Access::of(reach)), uri.to_owned(), options, until)?;
        Ok((Arc::new(pool), features.into()))
    }
}

impl Instances for Pool {
    fn max_instances(&self) -> usize {
        self.max_instances()
    }

    fn lost(&self) -> u64 {
        self.instances_lost()
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.is_maintained().then_some(self)
    }
}
