//! What all directories that a process has open share: its time and threads, names for temporary files, and how many descriptors
//! they keep.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use rustix::process::{Resource, getrlimit};

use crate::error::Error;
use crate::limits;
use crate::process::{Clock, Random};
use crate::reads::Readers;
use crate::threads::Helpers;

/// What all directories of a process share.
pub struct Shared {
    pub(super) clock: Clock,
    pub(super) helpers: Arc<Helpers>,
    pub(super) readers: Arc<Readers>,
    random: Random,
    /// Directories that are kept open.
    pub(super) parents: AtomicUsize,
    /// How many they may be.
    pub(super) most_parents: usize,
    /// Files that are open to be synced.
    pub(super) synced: AtomicUsize,
    /// What the names of temporary files begin with, and how many there were.
    prefix: OnceLock<String>,
    temporaries: AtomicU64,
}

impl Shared {
    /// Of a process with these.
    pub fn new(clock: Clock, random: Random, helpers: Arc<Helpers>, readers: Arc<Readers>) -> Self {
        let files = getrlimit(Resource::Nofile).current.map_or(u64::MAX, |files| files / limits::PARENT_FRACTION);
        Shared {
            clock,
            helpers,
            readers,
            random,
            parents: AtomicUsize::new(0),
            most_parents: limits::MAX_PARENTS.min(usize::try_from(files).unwrap_or(usize::MAX)),
            synced: AtomicUsize::new(0),
            prefix: OnceLock::new(),
            temporaries: AtomicU64::new(0),
        }
    }

    /// Memory into which files are read that do not lie in memory.
    pub fn read_buffer_bytes(&self) -> u64 {
        self.readers.buffers.bytes()
    }

    /// A name for a temporary file that no other has: not in this process, not in another one on the same directory, be it of
    /// another container with the same process number.
    pub(super) fn temporary_name(&self) -> Result<String, Error> {
        let prefix = match self.prefix.get() {
            Some(prefix) => prefix,
            None => {
                let mut random = [0; 8];
                self.random.fill(&mut random)?;
                let new = format!("{}-{:016x}", std::process::id(), u64::from_ne_bytes(random));
                self.prefix.get_or_init(|| new)
            }
        };
        Ok(format!("{prefix}-{}", self.temporaries.fetch_add(1, Relaxed)))
    }
}

#[cfg(test)]
impl Default for Shared {
    /// Those of a test, with threads of its own.
    fn default() -> Self {
        Shared::of_test(Clock::default())
    }
}

#[cfg(test)]
impl Shared {
    /// The same by another time.
    pub(crate) fn of_test(clock: Clock) -> Self {
        let spawn = Default::default();
        let helpers = crate::threads::Threads::new(&clock, &spawn).helpers;
        let readers = Readers::new(&clock, &spawn, &helpers);
        Shared::new(clock, Random::default(), helpers, readers)
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Shared").finish_non_exhaustive()
    }
}
