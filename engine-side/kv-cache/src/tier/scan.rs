//! What a directory has when a cache opens it. Headers and sections are read and checked, no payload.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kv_platform::sync::Mutex;

use super::directory::{Directory, Found, Name, Unread};
use crate::key::Key;
use crate::limits::SCAN_THREADS;
use crate::row::Flaw;

/// The outcome for one name.
pub(crate) enum Seen {
    Row(Key, Box<Found>),
    /// A row of a later version or of another descriptor, which is left alone.
    OfOthers(Flaw),
    Flawed(Flaw),
    /// It could not be read; it may be another time.
    Unread(std::io::Error),
}

impl From<Unread> for Seen {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Flaw(flaw) if flaw.is_of_others() => Seen::OfOthers(flaw),
            Unread::Flaw(flaw) => Seen::Flawed(flaw),
            Unread::Io(error) => Seen::Unread(error),
        }
    }
}

impl Directory {
    /// Look at each row file, some at a time, and hand on what it is. Order is not kept.
    pub fn look_at(&self, names: &[(String, Name)], each: impl FnMut(&str, Seen) + Send) {
        let each = Mutex::new(each);
        let next = AtomicUsize::new(0);
        let work = || {
            while let Some((name, kind)) = names.get(next.fetch_add(1, Relaxed)) {
                let seen = match kind {
                    Name::Row(key) => self.inspect(name).map(|found| Seen::Row(*key, Box::new(found))),
                    Name::Misnamed | Name::Temporary { .. } | Name::OthersTemporary | Name::Ours | Name::Stranger => {
                        continue;
                    }
                };
                let seen = match seen {
                    Ok(seen) => seen,
                    // Somebody else removed it.
                    Err(Unread::Io(error)) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(unread) => unread.into(),
                };
                let mut each = each.lock();
                each(name, seen);
            }
        };
        let threads = SCAN_THREADS.min(names.len() / 64 + 1);
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Where no thread can be had, this one does it all.
                let _ = std::thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
    }
}
