//! The stores that a process has open: one for each folder, which all that open it share, with its index.

use std::sync::{Arc, Weak};

use kv_platform::sync::Mutex;
use rustix::fs;

use super::durable::Losses;
use super::store::{SegmentSettings, SegmentStore};
use crate::directory::Directory;
use crate::error::{Error, ErrorKind};
use crate::limits::Limits;
use crate::process::{Clock, Random, Spawn};
use crate::until::Until;

/// A log that is longer is read by a thread of its own. What it has not come to is a miss meanwhile.
const READ_AT_ONCE: u64 = 4 << 20;

/// The segment stores of a process.
pub struct SegmentStores {
    spawn: Spawn,
    clock: Clock,
    random: Random,
    open: Mutex<Vec<OpenFolder>>,
}

/// A folder in which a store is open, or was, and lost something that its log does not say yet.
struct OpenFolder {
    folder: FolderIdentity,
    store: Weak<SegmentStore>,
    losses: Arc<Losses>,
}

/// Which folder it is, and whether nothing in it may be changed.
type FolderIdentity = (fs::Dev, u64, bool);

impl SegmentStores {
    /// None yet.
    pub fn new(spawn: Spawn, clock: Clock, random: Random) -> Self {
        SegmentStores { spawn, clock, random, open: Mutex::default() }
    }

    /// The store in a directory, made if it is not there. `limits`: how long the log may be read for.
    pub fn open(
        &self,
        directory: &Directory,
        settings: &SegmentSettings,
        limits: &Limits,
        until: &Until,
    ) -> Result<Arc<SegmentStore>, Error> {
        // Its locks are its own.
        let root = directory.open_again()?;
        let stat = fs::fstat(&root).map_err(Error::from)?;
        let folder = (stat.st_dev as fs::Dev, stat.st_ino, directory.is_read_only());
        let mut open = self.clock.lock(&self.open);
        open.retain(|open| open.store.strong_count() > 0 || !open.losses.is_empty());
        let former = open.iter().position(|open| open.folder == folder);
        if let Some(store) = former.and_then(|at| open.get(at)?.store.upgrade()) {
            store.bound(settings);
            return Ok(store);
        }
        let losses = former.and_then(|at| Some(open.get(at)?.losses.clone()));
        let losses = losses.unwrap_or_else(|| Arc::new(Losses::new(&self.clock)));
        let store = SegmentStore::open(root, directory.is_read_only(), settings, (&self.clock, &self.random), until)?;
        let store = Arc::new(store.with_losses(&losses));
        open.retain(|open| open.folder != folder);
        open.push(OpenFolder { folder, store: Arc::downgrade(&store), losses });
        drop(open);
        let (replayed, long) = (store.clone(), store.behind() > READ_AT_ONCE);
        let limits = Limits { deadline_ms: limits.maintenance_ms, ..limits.clone() };
        let job = move || drop(replayed.replay(&Until::new(&limits)));
        if !(long && self.spawn.start("kv-store-segments", job))
            && let Err(error) = store.follow(until)
            && error.kind() == ErrorKind::Version
        {
            return Err(error);
        }
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::tests::{SETTINGS, key, open, until};
    use super::*;

    #[test]
    fn a_long_log_is_read_for_longer_than_a_call_may_take() {
        let folder = tempfile::tempdir().unwrap();
        let name = |n: u32| format!("{n:060}");
        let (former, value) = (open(&folder), [&b"x"[..]]);
        for first in (0..60_000).step_by(1000) {
            let names: Vec<String> = (first..first + 1000).map(name).collect();
            let values: Vec<_> = names.iter().map(|name| (key(name.as_bytes()), &value[..])).collect();
            assert!(former.put(&values, false, &until()).unwrap().iter().all(Result::is_ok));
        }
        drop(former);
        // The thread's work is done when it is asked for.
        let at_once = Spawn::of(|_, job| {
            job();
            true
        });
        let process = SegmentStores::new(at_once, Clock::default(), Random::default());
        let directory = Directory::open_read_only(folder.path(), &Arc::default()).unwrap();
        let limits = Limits { deadline_ms: 0, ..Limits::default() };
        let store = process.open(&directory, &SETTINGS, &limits, &until()).unwrap();
        assert!(store.find(key(name(59_999).as_bytes())).is_some());
    }
}
