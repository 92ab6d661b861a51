//! The directories that files were last read from and written to, kept open: what follows is one step from there, where the
//! whole path costs one for each look at it.
//!
//! A kept directory is believed for a second, and one that was removed not at all. What was moved away is noticed later, and never by a
//! reader of a manifest: before that is published, `sync` resolves the whole path of each file anew. One that nobody uses is
//! closed soon, on a helper's thread, so an idle store keeps none.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Instant;

use kv_platform::sync::Mutex;
use rustix::io::Errno;

use super::Shared;
use crate::limits::{PARENT_BELIEVED, PARENT_UNUSED};

#[derive(Debug)]
pub(super) struct Parents {
    kept: Arc<Mutex<Kept>>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Kept {
    by_path: HashMap<String, CachedParent, foldhash::fast::RandomState>,
    /// A job is there that closes them.
    swept: bool,
}

#[derive(Debug)]
struct CachedParent {
    parent: Arc<Parent>,
    opened: Instant,
    /// Since it was last looked at.
    used: bool,
}

/// An open directory, counted.
#[derive(Debug)]
pub(super) struct Parent {
    directory: OwnedFd,
    _counted: Counted,
}

#[derive(Debug)]
struct Counted(Arc<Shared>);

impl Parents {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Parents { kept: Arc::default(), shared: shared.clone() }
    }

    /// The directory at a path, now: the kept one, or what `open` answers.
    pub(super) fn get(
        &self,
        path: &str,
        now: Instant,
        open: impl FnOnce() -> Result<OwnedFd, Errno>,
    ) -> Result<Arc<Parent>, Errno> {
        if let Some(kept) = self.kept.lock().by_path.get_mut(path)
            && now.saturating_duration_since(kept.opened) < PARENT_BELIEVED
        {
            kept.used = true;
            return Ok(kept.parent.clone());
        }
        let counted = Counted::new(&self.shared);
        let parent = Arc::new(Parent { directory: open()?, _counted: counted });
        self.keep(path, &parent, now);
        Ok(parent)
    }

    fn keep(&self, path: &str, parent: &Arc<Parent>, now: Instant) {
        let mut kept = self.kept.lock();
        if self.shared.parents.load(Relaxed) > self.shared.most_parents {
            kept.by_path.clear();
        }
        // Still too many are those of other directories.
        if self.shared.parents.load(Relaxed) > self.shared.most_parents {
            return;
        }
        if !kept.swept {
            // Without a thread that closes them none is kept.
            if !sweep_later(&self.shared, Arc::downgrade(&self.kept)) {
                return;
            }
            kept.swept = true;
        }
        kept.by_path.insert(path.to_owned(), CachedParent { parent: parent.clone(), opened: now, used: true });
    }

    /// Believe a kept directory no longer.
    pub(super) fn forget(&self, path: &str) {
        self.kept.lock().by_path.remove(path);
    }
}

/// Close directories that nobody has used for a while, until there are none or their store is gone.
fn sweep_later(shared: &Arc<Shared>, kept: Weak<Mutex<Kept>>) -> bool {
    let again = Arc::downgrade(shared);
    shared.helpers.hand_later(PARENT_UNUSED, move || {
        let Some(all) = kept.upgrade() else { return };
        let mut all = all.lock();
        all.by_path.retain(|_, entry| std::mem::take(&mut entry.used));
        all.swept = !all.by_path.is_empty() && again.upgrade().is_some_and(|shared| sweep_later(&shared, kept));
        if !all.swept {
            all.by_path.clear();
        }
    })
}

impl Parent {
    pub(super) fn is_removed(&self) -> Result<bool, Errno> {
        Ok(rustix::fs::fstat(&self.directory)?.st_nlink == 0)
    }
}

/// Directories that were seen not to be removed since a call began, so that each is asked once.
#[derive(Default)]
pub struct Looked(Vec<Arc<Parent>>);

impl Looked {
    pub(super) fn is_removed(&mut self, parent: &Arc<Parent>) -> Result<bool, Errno> {
        if self.0.iter().any(|seen| Arc::ptr_eq(seen, parent)) {
            return Ok(false);
        }
        let is_removed = parent.is_removed()?;
        if !is_removed {
            self.0.push(parent.clone());
        }
        Ok(is_removed)
    }
}

impl std::ops::Deref for Parent {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.directory
    }
}

impl Counted {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.parents.fetch_add(1, Relaxed);
        Counted(shared.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.parents.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn open_root() -> Result<OwnedFd, Errno> {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        rustix::fs::open("/", flags, rustix::fs::Mode::empty())
    }

    #[test]
    fn an_idle_store_keeps_no_directory_open() {
        let parents = Parents::new(&Arc::default());
        let first = parents.get("a", Instant::now(), open_root).unwrap();
        assert!(Arc::ptr_eq(&first, &parents.get("a", Instant::now(), || unreachable!()).unwrap()));
        drop(first);
        let begun = Instant::now();
        // Once more after the first sweep has ended.
        for _ in 0..2 {
            let kept = parents.get("a", Instant::now(), open_root).unwrap();
            while Arc::strong_count(&kept) > 1 {
                assert!(begun.elapsed() < Duration::from_secs(60), "it is never closed");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        assert!(parents.kept.lock().by_path.is_empty());
    }

    #[test]
    fn what_all_directories_of_a_process_keep_is_bounded() {
        let shared: Arc<Shared> = Arc::default();
        let keeps_one = || {
            let parents = Parents::new(&shared);
            parents.get("a", Instant::now(), open_root).unwrap();
            parents.kept.lock().by_path.len() == 1
        };
        assert!(keeps_one());
        let many: Vec<_> = (0..shared.most_parents).map(|_| Counted::new(&shared)).collect();
        assert!(!keeps_one());
        drop(many);
        assert!(keeps_one());
    }
}
