//! Components in memory, for tests of whole stores without a guest: each URI is a [`Fake`] that stays.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use super::{Component, Components, Features, FoundComponent, Instances, Maintenance, Reach};
use crate::backend::fake::Fake;
use crate::config::{Config, Digest, Helper, Source};
use crate::error::Error;
use crate::limits::Limits;
use crate::policy::Served;
use crate::store::{ChunkEntry, Evicted, Eviction, ManifestEntry, Page, Usage};
use crate::store::{Process, Setup};
use crate::threads::Whose;
use crate::until::Until;

/// Serves every scheme.
pub struct Fakes {
    /// Of these components alone. An address would be that of later ones too, while a store of these is still kept.
    number: u64,
    features: Features,
    stores: Arc<Mutex<HashMap<String, Arc<Fake>>>>,
}

impl Default for Fakes {
    fn default() -> Self {
        Self::of(Features::default())
    }
}

impl Fakes {
    /// Those whose stores say this of themselves.
    pub fn of(features: Features) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        Fakes { number: NUMBERS.fetch_add(1, Relaxed), features, stores: Arc::default() }
    }

    /// The backend of a URI, made if it was never opened.
    pub fn store(&self, uri: &str) -> Arc<Fake> {
        self.stores.lock().unwrap().entry(uri.to_owned()).or_default().clone()
    }

    /// What opens stores of these, with a config.
    pub fn setup(self: &Arc<Self>, config: &str) -> Setup {
        let config = Source::Given(Config::given(config).unwrap());
        let process = Process::current();
        Setup { config, components: self.clone(), layers: Vec::new(), clock: None, must_exist: false, process }
    }
}

impl std::fmt::Debug for Fakes {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Fakes")
    }
}

impl Components for Fakes {
    fn serve(&self, scheme: &str, _: &Config) -> Result<FoundComponent, Error> {
        Ok(FoundComponent {
            component: PathBuf::from(format!("/fakes/{scheme}.wasm")),
            by_config: false,
            ships: true,
            served: Served::by_name(scheme),
            identity: None,
        })
    }

    fn names(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    fn guarded(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("a directory of components", PathBuf::from("/fakes"))]
    }

    fn load(
        &self,
        _: &Path,
        _: Option<Digest>,
        _: &Limits,
        _: &Helper,
        _: &Whose,
    ) -> Result<Arc<dyn Component>, Error> {
        Ok(Arc::new(Fakes { number: self.number, features: self.features.clone(), stores: self.stores.clone() }))
    }
}

impl Component for Fakes {
    /// The stores of the process are told apart by it.
    fn digest(&self) -> [u8; 32] {
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&self.number.to_le_bytes());
        digest
    }

    fn open(
        self: Arc<Self>,
        _: Arc<Reach>,
        uri: &str,
        _: Vec<(String, String)>,
        _: &Until,
    ) -> Result<(Arc<dyn Instances>, Features), Error> {
        Ok((self.store(uri), self.features.clone()))
    }
}

impl Instances for Fake {
    fn max_instances(&self) -> usize {
        1
    }

    fn lost(&self) -> u64 {
        self.lost.load(Relaxed)
    }

    fn maintenance(&self) -> Option<&dyn Maintenance> {
        self.maintained.load(Relaxed).then_some(self)
    }
}

impl Maintenance for Fake {
    fn list_chunks(&self, _: Option<&str>, _: usize, _: &Until) -> Result<Page<ChunkEntry>, Error> {
        Ok(Page::new(Vec::new(), None))
    }

    fn list_manifests(&self, _: Option<&str>, _: usize, _: &Until) -> Result<Page<ManifestEntry>, Error> {
        Ok(Page::new(Vec::new(), None))
    }

    fn usage(&self, until: &Until) -> Result<Usage, Error> {
        *self.maintained_by.lock().unwrap() = Some(until.deadline());
        Ok(Usage::new(None, None, None, None))
    }

    fn evict(&self, _: &Eviction, _: &Until) -> Result<Evicted, Error> {
        Ok(Evicted::new(0, 0, 0, false))
    }
}
