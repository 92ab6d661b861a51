//! What a process has once: its clock, threads and randomness, its budgets and counters, and its open stores.
//!
//! Whatever needs one of these is handed it as a value: a simulation makes a [`Process`] of its own, whose time, threads and chance follow
//! from a seed. The log, the panic hook and what listens for metrics are the machine's, whichever process uses them.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::registry::OpenStores;
use super::upkeep::Evictor;
use crate::budget::{Budgets, Owners};
use crate::config::{Config, ConfigCache};
use crate::counters::{self, Metrics};
use crate::error::{Error, ErrorKind};
use crate::process::{Clock, Fork, PerProcess, Random, Spawn, generation};
use crate::quota::Metered;
use crate::reads::Readers;
use crate::threads::Threads;
use crate::{directory, near, segments};

/// What a process has once.
pub struct Process {
    /// What time it is.
    pub clock: Clock,
    /// The threads that work for its stores.
    pub threads: Threads,
    /// What all its stores may have together.
    pub budgets: Arc<Budgets>,
    /// Whose stores are bounded together.
    pub owners: Owners,
    /// What each has used of its quotas.
    pub(super) metered: Metered,
    /// What happened.
    pub counters: counters::ProcessCounters,
    /// The config files that it has read.
    pub configs: ConfigCache,
    /// What its open directories share.
    pub directories: Arc<directory::Shared>,
    /// Its segment stores.
    pub segments: Arc<segments::SegmentStores>,
    pub(super) near: near::NearLevels,
    /// Bytes of memory that are kept for chunks to come.
    pub(super) spare: Arc<AtomicUsize>,
    pub(super) stores: Arc<OpenStores>,
    pub(super) upkeep: Arc<Evictor>,
    spawn: Spawn,
    fork: Fork,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Process").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// What a process is made with. The default is the machine's.
pub struct ProcessParts {
    /// What time it is.
    pub clock: Clock,
    /// Starts its threads.
    pub spawn: Spawn,
    /// Where random numbers come from.
    pub random: Random,
    /// Tells how often it was forked off another.
    pub forks: fn() -> u64,
}

impl Default for ProcessParts {
    fn default() -> Self {
        ProcessParts { clock: Clock::default(), spawn: Spawn::default(), random: Random::default(), forks: generation }
    }
}

impl Process {
    /// The process that this is, made at its first use, and anew in a child that was forked off.
    pub fn current() -> Arc<Self> {
        static CURRENT: PerProcess<Arc<Process>> = PerProcess::new();
        let Ok(current) =
            CURRENT.get_or_make(|| Ok::<_, std::convert::Infallible>(Process::new(ProcessParts::default())));
        current.clone()
    }

    /// A process of its own, with nothing open.
    pub fn new(parts: ProcessParts) -> Arc<Self> {
        let ProcessParts { clock, spawn, random, forks } = parts;
        let threads = Threads::new(&clock, &spawn);
        let budgets = Arc::new(Budgets::default());
        let readers = Readers::new(&clock, &spawn, &threads.helpers);
        let helpers = threads.helpers.clone();
        let directories = Arc::new(directory::Shared::new(clock.clone(), random.clone(), helpers, readers));
        let stores = OpenStores::new(budgets.most_idle_bytes(), clock.clone(), threads.helpers.clone());
        Arc::new(Process {
            near: near::NearLevels::new(clock.clone(), threads.near.clone(), directories.clone()),
            segments: Arc::new(segments::SegmentStores::new(spawn.clone(), clock.clone(), random.clone())),
            upkeep: Arc::new(Evictor::new(clock.clone(), spawn.clone())),
            configs: ConfigCache::new(clock.clone()),
            stores: Arc::new(stores),
            directories,
            counters: counters::ProcessCounters::default(),
            owners: Owners::default(),
            metered: Metered::default(),
            spare: Arc::default(),
            fork: Fork::now(forks),
            budgets,
            threads,
            clock,
            spawn,
        })
    }

    /// Its counters at this moment.
    pub fn metrics(&self) -> Metrics {
        self.counters.report(&self.budgets, self.directories.read_buffer_bytes())
    }

    /// Whether it is still the process that it was made in.
    pub fn fork(&self) -> Fork {
        self.fork
    }

    /// Refuse what was opened before a fork.
    pub(super) fn check(&self) -> Result<(), Error> {
        check(self.fork)
    }

    /// Serve the counters as a config asks for it.
    pub(super) fn serve_metrics(self: &Arc<Self>, config: &Config) {
        let own = self.clone();
        self.counters.serve(config, &self.spawn, move || own.metrics());
    }

    /// Bytes that its stores hold, those with a handle included.
    pub(super) fn held(&self) -> u64 {
        self.budgets.payload_bytes.used().saturating_add(self.budgets.memory_bytes.used())
    }
}

/// Refuse what was made before a fork.
pub(super) fn check(fork: Fork) -> Result<(), Error> {
    if fork.is_same() {
        return Ok(());
    }
    let message = "this store was opened before a fork: open it again in this process";
    Err(Error::new(ErrorKind::Unsupported, message))
}

/// The counters of this process. They begin at 0 with it, and in a child that was forked off.
///
/// # Errors
/// None now.
pub fn metrics() -> Result<Metrics, Error> {
    Ok(Process::current().metrics())
}

/// Neither listen for those who want the counters nor write them to a file in this process, whatever the config says: for a program that
/// runs beside the one that the config is for.
pub fn serve_no_metrics() {
    Process::current().counters.serve_nothing();
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::process::holds_in_a_child;

    #[test]
    fn a_child_begins_anew_and_knows_what_is_its_parents() {
        let parent = Process::current();
        assert!(Arc::ptr_eq(&parent, &Process::current()));
        parent.spare.fetch_add(100, Relaxed);
        assert!(parent.budgets.connections.take(1));
        assert!(holds_in_a_child(std::panic::AssertUnwindSafe(|| {
            let child = Process::current();
            let begun = child.spare.load(Relaxed) == 0 && child.budgets.connections.used() == 0;
            begun && child.check().is_ok() && parent.check().is_err_and(|error| error.to_string().contains("fork"))
        })));
        assert!(parent.check().is_ok());
        parent.spare.fetch_sub(100, Relaxed);
        parent.budgets.connections.give_back(1);
    }

    #[test]
    fn a_process_of_its_own_shares_nothing_with_another() {
        let (own, other) = (Process::new(ProcessParts::default()), Process::new(ProcessParts::default()));
        own.counters.of("a", None).count(crate::counters::Event::Hits);
        assert_eq!((own.metrics().series.len(), other.metrics().series.len()), (1, 0));
    }
}
