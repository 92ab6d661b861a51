//! The directories that files were last read from and written to, kept open: what follows is one step from there, where the
//! whole path costs one for each look at it.
//!
//! A kept directory is believed for a second. What was moved away or removed within it is noticed later, and never by a
//! reader of a manifest: before that is published, `sync` resolves the whole path of each file anew.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustix::io::Errno;

use crate::limits::{MAX_PARENTS, PARENT_BELIEVED};

#[derive(Debug, Default)]
pub(super) struct Parents(Mutex<HashMap<String, (Arc<Parent>, Instant)>>);

/// An open directory, counted.
#[derive(Debug)]
pub(super) struct Parent(OwnedFd);

/// Kept in the whole process.
static KEPT: AtomicUsize = AtomicUsize::new(0);

impl Parents {
    /// The directory at a path: the kept one, or what `open` answers.
    pub(super) fn get(&self, path: &str, open: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<Arc<Parent>, Errno> {
        let now = Instant::now();
        if let Some((kept, since)) = self.lock().get(path)
            && now.duration_since(*since) < PARENT_BELIEVED
        {
            return Ok(kept.clone());
        }
        KEPT.fetch_add(1, Relaxed);
        let parent = Arc::new(Parent(open().inspect_err(|_| {
            KEPT.fetch_sub(1, Relaxed);
        })?));
        let mut kept = self.lock();
        if KEPT.load(Relaxed) > MAX_PARENTS {
            kept.clear();
        }
        // Still too many are those of other directories.
        if KEPT.load(Relaxed) <= MAX_PARENTS {
            kept.insert(path.to_owned(), (parent.clone(), now));
        }
        Ok(parent)
    }

    /// Believe a kept directory no longer.
    pub(super) fn forget(&self, path: &str) {
        self.lock().remove(path);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, (Arc<Parent>, Instant)>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl std::ops::Deref for Parent {
    type Target = OwnedFd;

    fn deref(&self) -> &OwnedFd {
        &self.0
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        KEPT.fetch_sub(1, Relaxed);
    }
}
