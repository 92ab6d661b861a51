//! What runs the components, as the store sees it: from a scheme to a component, and from a component to the instances behind one
//! opened URI.
//!
//! The crate `kv-store-wasm` implements these traits with wasmtime. Nothing here knows how a component runs; what it answers is checked
//! for its shape by the implementation, which also ends each call at its deadline.

#[cfg(test)]
pub mod fake;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::Backend;
use crate::budget::{Owner, Shares};
use crate::config::{Config, Digest, FileIdentity, Helper, Tls};
use crate::counters::Counters;
use crate::directory::Directory;
use crate::error::Error;
use crate::limits::Limits;
use crate::policy::{Declared, Grants, Served};
use crate::quota::Meters;
use crate::store::{ChunkEntry, Evicted, Eviction, ManifestEntry, Page, Usage};
use crate::threads::Whose;
use crate::until::Until;

/// Finds components and loads them.
pub trait Components: fmt::Debug + Send + Sync {
    /// Who serves a scheme.
    fn serve(&self, scheme: &str, config: &Config) -> Result<FoundComponent, Error>;

    /// The names under which components are installed.
    fn names(&self) -> BTreeSet<String>;

    /// Files and directories that no store may lie over, each with what it is.
    fn guarded(&self) -> Vec<(&'static str, PathBuf)>;

    /// Load the component in a file. `pinned`: the only one that is accepted; `whose`: as whom it is compiled, if it has to be.
    fn load(
        &self,
        path: &Path,
        pinned: Option<Digest>,
        limits: &Limits,
        helper: &Helper,
        whose: &Whose,
    ) -> Result<Arc<dyn Component>, Error>;
}

/// The component that serves a scheme.
#[derive(Clone, Debug)]
pub struct FoundComponent {
    /// Its file.
    pub component: PathBuf,
    /// The config names it; otherwise it was found in a directory.
    pub by_config: bool,
    /// It lies beside the library.
    pub ships: bool,
    /// What it serves, by its own word as far as that counts.
    pub served: Served,
    /// The file when it was looked at. None: it could not be, which [`Components::load`] says better.
    pub identity: Option<FileIdentity>,
}

impl FoundComponent {
    /// Refuse a component whose file was replaced since it was looked at: what it said then was of another one.
    pub fn check_same(&self) -> Result<(), Error> {
        let now = std::fs::metadata(&self.component).ok().map(|meta| FileIdentity::of(&meta));
        if self.served.declared == Declared::default() || now == self.identity {
            return Ok(());
        }
        let component = self.component.display();
        Err(Error::invalid(format!("component {component}: was replaced while it was opened; open it again")))
    }
}

/// A component, ready to be opened for any number of URIs.
pub trait Component: Send + Sync {
    /// The SHA-256 of its file.
    fn digest(&self) -> [u8; 32];

    /// Have it open a URI, within the time of a call.
    fn open(
        self: Arc<Self>,
        reach: Arc<Reach>,
        uri: &str,
        options: Vec<(String, String)>,
        until: &Until,
    ) -> Result<(Arc<dyn Instances>, Features), Error>;
}

/// The instances of a component that serve one opened URI.
pub trait Instances: Backend {
    /// How many there may be at once, 1 at least. A call waits while all are in use.
    fn max_instances(&self) -> usize;

    /// How many have been lost so far, with what they held.
    fn lost(&self) -> u64;

    /// What the component exports to list and clean what it stores. None: nothing.
    fn maintenance(&self) -> Option<&dyn Maintenance>;
}

/// A component's calls that list and clean. A page is as long as was asked for at most, and never leads back to itself.
pub trait Maintenance {
    /// One page of the chunks. `after`: `next` of the page before.
    fn list_chunks(&self, after: Option<&str>, limit: usize, until: &Until) -> Result<Page<ChunkEntry>, Error>;

    /// One page of the manifests. `after`: `next` of the page before.
    fn list_manifests(&self, after: Option<&str>, limit: usize, until: &Until) -> Result<Page<ManifestEntry>, Error>;

    /// What the store holds, as far as that is known without a listing.
    fn usage(&self, until: &Until) -> Result<Usage, Error>;

    /// Remove what was not used.
    fn evict(&self, what: &Eviction, until: &Until) -> Result<Evicted, Error>;
}

/// What a component says of the store that it has opened. Each instance of a URI says the same, but for `label`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// What was reached, for a log line.
    pub label: String,
    /// What holds of the store.
    pub properties: Properties,
    /// How many instances may serve the URI at once, in one process.
    pub max_instances: Option<u32>,
    /// Items of a batch that suit the backend.
    pub batch_items: Option<u32>,
    /// Bytes of a batch that suit the backend; a single chunk may exceed them.
    pub batch_bytes: Option<u64>,
    /// A longer chunk or manifest would be refused.
    pub max_value_bytes: Option<u64>,
    /// Further facts by name.
    pub more: Vec<(String, String)>,
}

impl Features {
    /// The fact in `more` that a chunk which is replaced is removed first.
    pub const REPLACES_IN_STEPS: &str = "replaces-in-steps";

    /// Whether a chunk which is replaced may be missing meanwhile.
    pub fn replaces_in_steps(&self) -> bool {
        self.more.iter().any(|(fact, value)| fact == Self::REPLACES_IN_STEPS && value == "1")
    }
}

/// What holds of a store; `wit/backend.wit` says what each means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the contract describes them")]
pub struct Properties {
    pub durable: bool,
    pub shared: bool,
    pub cheap_repeat: bool,
    pub write_through: bool,
    pub holds_data: bool,
    pub wants_fresh: bool,
    pub evicts: bool,
    pub settles: bool,
}

/// What the instances of one store may reach, opened.
pub struct Reach {
    /// The scheme, for messages.
    pub name: String,
    /// What the URI and the config grant.
    pub grants: Grants,
    /// The bounds in force.
    pub limits: Limits,
    /// The directory that the URI names.
    pub directory: Option<Arc<Directory>>,
    /// The directories that the config grants, by name.
    pub folders: BTreeMap<String, Arc<Directory>>,
    /// The segment stores of the process, of which it may open those in its directories.
    pub segments: Arc<crate::segments::SegmentStores>,
    /// Whose the store is.
    pub owner: Arc<Owner>,
    /// As whom it reaches the threads that all stores share.
    pub whose: Whose,
    /// What the store may have of the budgets of the process.
    pub shares: Shares,
    /// Where its calls are counted.
    pub counters: Arc<Counters>,
    /// Where what counts towards the quotas of its owner is counted.
    pub meters: Arc<Meters>,
    /// Whom connections over TLS trust.
    pub tls: Tls,
    /// A quota bounds the CPU time of its calls (`cpu_ms_per_s`), so that it is measured.
    pub cpu_quota: bool,
}

impl Reach {
    /// Whether there is a directory that the component may change.
    pub fn may_write_files(&self) -> bool {
        self.directory.iter().chain(self.folders.values()).any(|directory| !directory.is_read_only())
    }
}
