//! Files below one directory, by relative path: what the contract's `files` interface does, without a guest in sight.
//!
//! Invariants: no path leaves the directory, no link is followed, no file system of the kernel is reached (`mounts`), and
//! a file is whole under its name or not there. Every path is resolved from the open directory
//! (`kv_platform::paths`), so what is checked is what is opened.

mod guard;
mod listing;
mod mounts;
mod order;
mod parents;
mod path;
mod read;
mod saves;
mod shared;
pub(crate) mod tally;
mod usage;
mod write;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use kv_platform::files::Memory;
use kv_platform::sync::Mutex;
use kv_platform::{files, paths};
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

pub use guard::Guard;
pub use listing::Entry;
pub use mounts::why_refused;
pub(crate) use order::flock_within;
pub use parents::Looked;
pub use path::RelativePath;
pub use read::{Found, Room, Wanted};
pub use saves::UnderWay;
pub use shared::Shared;
pub use tally::Tally;
pub(crate) use usage::used;
pub use usage::{FileEviction, Space};
pub use write::Written;
pub(crate) use write::uninterrupted;

use crate::config::Direct;
use crate::error::{Error, ErrorKind};
use crate::limits::USE_NOTED;
use crate::one_at_a_time::OneAtATime;
use crate::process::Clock;
use crate::reads::{Around, Readers};
use crate::signals::files_are_bounded;
use crate::threads::Whose;
use crate::until::Until;
use listing::Following;
use parents::{Parent, Parents};
use saves::Saves;

const PRIVATE_DIRECTORY: Mode = Mode::RWXU;
const PRIVATE_FILE: Mode = Mode::RUSR.union(Mode::WUSR);

/// An open directory that a component was granted.
#[derive(Debug)]
pub struct Directory {
    root: OwnedFd,
    shared: Arc<Shared>,
    /// As whom it has files synced by other threads.
    whose: Whose,
    /// How it is known that a read of a file needs no disk.
    memory: Memory,
    /// The file system cannot tell it after all.
    untold: AtomicBool,
    around: Arc<Around>,
    read_only: bool,
    /// The process had a bound on the length of files (RLIMIT_FSIZE) when the directory was opened: a write past it would
    /// raise SIGXFSZ.
    bounded: bool,
    /// Where files are written before they are renamed; opened when it is first needed.
    temporaries: Mutex<Option<Arc<OwnedFd>>>,
    parents: Parents,
    /// What is written here is made durable afterwards.
    syncs: AtomicBool,
    /// Times of use cannot be noted here: the file system is mounted to read only, or the files are somebody else's.
    unnoted: AtomicBool,
    /// How old a noted time of use may be, in nanoseconds.
    noted_for: AtomicU64,
    guard: OnceLock<Guard>,
    saves: OnceLock<Saves>,
    /// Files that could not be synced, nor removed for that.
    unsynced: Mutex<BTreeSet<String>>,
    order: OneAtATime,
    /// Of the listing that was last asked for.
    following: Mutex<Option<Following>>,
}

impl Directory {
    /// Open the directory at `path`, which is the operator's and may lead through links. A missing last component is
    /// made, for this user only. Leftovers of writers that died are removed.
    pub fn open(path: &Path, shared: &Arc<Shared>) -> Result<Self, Error> {
        let explain = |errno: Errno| {
            let error = Error::from(errno);
            let hint = match errno {
                Errno::NOENT => ": only the last part of a path is made; make the directories above it",
                _ => "",
            };
            Error::new(error.kind(), format!("{}: {error}{hint}", path.display()))
        };
        let root = match open_root(path).map_err(explain)? {
            Some(root) => {
                sync_name_of_empty(path, &root).map_err(explain)?;
                root
            }
            None => {
                let upper = path.parent().unwrap_or(path);
                if let Some(why) = why_refused(upper) {
                    // A directory that is made in a control group is a control group.
                    return Err(Error::new(ErrorKind::Denied, why));
                }
                make_root(upper, path).map_err(explain)?;
                open_root(path).map_err(explain)?.ok_or_else(|| explain(Errno::NOENT))?
            }
        };
        check_root(path, &root)?;
        let memory = files::in_memory(&root);
        let directory = Directory {
            root,
            read_only: false,
            bounded: files_are_bounded(),
            temporaries: Mutex::new(None),
            parents: Parents::new(shared),
            shared: shared.clone(),
            whose: Whose::default(),
            memory,
            untold: AtomicBool::new(false),
            around: Arc::new(Around::new(Direct::default(), path.display())),
            syncs: AtomicBool::new(false),
            unnoted: AtomicBool::new(false),
            noted_for: AtomicU64::new(USE_NOTED.as_nanos() as u64),
            guard: OnceLock::new(),
            saves: OnceLock::new(),
            unsynced: Mutex::default(),
            order: OneAtATime::new(&shared.clock),
            following: Mutex::new(None),
        };
        directory.reap_temporaries();
        Ok(directory)
    }

    /// Open the directory at `path`, which must be there, to read only: nothing in it is made, changed or removed.
    pub fn open_read_only(path: &Path, shared: &Arc<Shared>) -> Result<Self, Error> {
        let root = open_folder(path).map_err(|errno| Error::from(errno).context(path.display()))?;
        check_root(path, &root)?;
        let memory = files::in_memory(&root);
        Ok(Directory {
            root,
            read_only: true,
            bounded: false,
            temporaries: Mutex::new(None),
            parents: Parents::new(shared),
            shared: shared.clone(),
            whose: Whose::default(),
            memory,
            untold: AtomicBool::new(false),
            around: Arc::new(Around::new(Direct::default(), path.display())),
            syncs: AtomicBool::new(false),
            unnoted: AtomicBool::new(true),
            noted_for: AtomicU64::new(USE_NOTED.as_nanos() as u64),
            guard: OnceLock::new(),
            saves: OnceLock::new(),
            unsynced: Mutex::default(),
            order: OneAtATime::new(&shared.clock),
            following: Mutex::new(None),
        })
    }

    /// The same for a store: as whom others work for it, and when its large files are read around the page cache.
    #[must_use]
    pub fn of_store(mut self, whose: &Whose, direct: Direct) -> Self {
        self.whose = whose.clone();
        self.around = Arc::new(self.around.with(direct));
        self
    }

    /// The same where nothing can be told of what lies in memory.
    #[cfg(test)]
    pub(crate) fn untold(mut self) -> Self {
        self.memory = Memory::Unknown;
        self
    }

    /// What reads for it what does not lie in memory.
    pub(crate) fn readers(&self) -> &Arc<Readers> {
        &self.shared.readers
    }

    /// How its files are read around the page cache.
    pub(crate) fn around(&self) -> &Arc<Around> {
        &self.around
    }

    /// How it is known that a read of a file needs no disk.
    pub(crate) fn memory(&self) -> Memory {
        match self.untold.load(Relaxed) {
            true => Memory::Unknown,
            false => self.memory,
        }
    }

    /// As whom others work for it.
    pub fn whose(&self) -> &Whose {
        &self.whose
    }

    /// The time of its process.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Whether nothing in it may be changed.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn check_writable(&self) -> Result<(), Error> {
        match self.read_only {
            true => Err(Error::new(
                ErrorKind::Denied,
                "the directory is granted read-only: fs of the config says access = \"ro\"",
            )),
            false => Ok(()),
        }
    }

    /// Whether the directory is the one that lies at `path` now.
    pub fn is_at(&self, path: &Path) -> bool {
        match (fs::fstat(&self.root), fs::stat(path)) {
            (Ok(open), Ok(there)) => (open.st_dev, open.st_ino) == (there.st_dev, there.st_ino),
            _ => false,
        }
    }

    /// The directory itself, for what opens files below it by other means.
    pub fn try_clone(&self) -> std::io::Result<File> {
        self.root.try_clone().map(File::from)
    }

    /// The directory once more, with locks of its own.
    pub(crate) fn open_again(&self) -> Result<OwnedFd, Errno> {
        fs::openat(&self.root, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    }

    /// Open what lies at a relative path, without following any link.
    fn resolve(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        paths::open_below(&self.root, path, flags)
    }

    /// Open the directory at a relative path; "" is this one.
    fn open_directory(&self, path: &str) -> Result<OwnedFd, Errno> {
        // A link in the last place would be no directory; one on the way is refused as what it is.
        let path = if path.is_empty() { ".".to_owned() } else { format!("{path}/.") };
        self.resolve(&path, OFlags::RDONLY | OFlags::DIRECTORY)
    }

    /// The directory that a file lies in.
    fn parent_of(&self, path: &RelativePath) -> Result<Arc<Parent>, Errno> {
        self.parents.get(path.parent(), self.shared.clock.now(), || self.open_directory(path.parent()))
    }

    /// Look for a file in the directory that it lies in. `is_removed`: whether somebody has removed that.
    fn find_in_parent<T>(
        &self,
        path: &RelativePath,
        mut is_removed: impl FnMut(&Arc<Parent>) -> Result<bool, Errno>,
        find: impl Fn(&Arc<Parent>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut find = || {
            let parent = self.parent_of(path)?;
            match find(&parent) {
                // A directory that was removed holds nothing, and another may be in its place.
                Err(Errno::NOENT) if is_removed(&parent)? => Err(Errno::STALE),
                found => found,
            }
        };
        match find() {
            Err(Errno::STALE) => {
                self.parents.forget(path.parent());
                find().map_err(|errno| if errno == Errno::STALE { Errno::NOENT } else { errno })
            }
            found => found,
        }
    }

    /// Open a file without following any link, from the directory that it lies in.
    fn open_file(&self, path: &RelativePath, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.find_in_parent(
            path,
            |parent| parent.is_removed(),
            |parent| paths::open_below(&***parent, path.name(), flags),
        )
    }

    /// The same as [`Directory::open_directory`], made if it is missing.
    fn make_directory(&self, path: &str) -> Result<OwnedFd, Errno> {
        match self.open_directory(path) {
            Err(Errno::NOENT) => {}
            opened => return opened,
        }
        let mut end = 0;
        while end < path.len() {
            end = path.get(end + 1..).and_then(|rest| rest.find('/')).map_or(path.len(), |at| end + 1 + at);
            let (upper, name) =
                path.get(..end).unwrap_or(path).rsplit_once('/').unwrap_or(("", path.get(..end).unwrap_or(path)));
            let upper = self.open_directory(upper)?;
            match fs::mkdirat(&upper, name, PRIVATE_DIRECTORY) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.open_directory(path)
    }

    /// The length of the file at a path; none if there is no such file. Counts as a use of it. `looked`: what the same call of the guest has
    /// looked at before.
    pub fn size(&self, path: &RelativePath, looked: &mut Looked) -> Result<Option<u64>, Error> {
        let Some((parent, stat)) = self.look(path, looked)? else { return Ok(None) };
        self.note_use(&stat, |times| fs::utimensat(&**parent, path.name(), times, AtFlags::SYMLINK_NOFOLLOW));
        Ok(Some(stat.st_size as u64))
    }

    /// What there is about the regular file at a path, and the directory that it lies in.
    fn look(&self, path: &RelativePath, looked: &mut Looked) -> Result<Option<(Arc<Parent>, fs::Stat)>, Error> {
        let is_removed = |parent: &Arc<Parent>| looked.is_removed(parent);
        let found = self.find_in_parent(path, is_removed, |parent| {
            let stat = fs::statat(&***parent, path.name(), AtFlags::SYMLINK_NOFOLLOW)?;
            Ok((parent.clone(), stat))
        });
        let (parent, stat) = match found {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            found => found?,
        };
        let regular = fs::FileType::from_raw_mode(stat.st_mode) == fs::FileType::RegularFile;
        Ok(regular.then_some((parent, stat)))
    }

    /// Remove a file, or a directory that is empty, by the deadline of a call if there is one. False: there was none.
    pub fn remove(&self, path: &RelativePath, durable: bool, until: Option<&Until>) -> Result<bool, Error> {
        self.check_writable()?;
        let counted = match self.tally() {
            Some(_) => self.look(path, &mut Looked::default())?.map(|(_, stat)| stat.st_size as u64),
            None => None,
        };
        let parent = match self.open_directory(path.parent()) {
            Err(Errno::NOENT) => return Ok(false),
            opened => opened?,
        };
        let removed = self.in_turn(until, || {
            Ok(match fs::unlinkat(&parent, path.name(), AtFlags::empty()) {
                Err(Errno::ISDIR | Errno::PERM) => fs::unlinkat(&parent, path.name(), AtFlags::REMOVEDIR),
                unlinked => unlinked,
            })
        })?;
        let was_there = match removed {
            Err(Errno::NOENT) => false,
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                return Err(Error::invalid("the directory is not empty"));
            }
            removed => removed.map(|()| true)?,
        };
        if let Some(bytes) = counted.filter(|_| was_there) {
            self.gone(bytes);
        }
        // Also of what is gone already: the sync of whoever removed it may have failed, or not have been asked for.
        if durable {
            uninterrupted(|| files::sync(&parent))?;
        }
        Ok(was_there)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        self.end_saves();
    }
}

fn open_folder(path: &Path) -> Result<OwnedFd, Errno> {
    fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

fn open_root(path: &Path) -> Result<Option<OwnedFd>, Errno> {
    match open_folder(path) {
        Err(Errno::NOENT) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Its name must survive power loss as what will be in it. So nothing is put into it before that is synced: one that holds something has
/// its name.
fn make_root(upper: &Path, path: &Path) -> Result<(), Errno> {
    let upper = open_folder(upper)?;
    paths::check_file_system(&upper)?;
    match fs::mkdirat(&upper, path.file_name().ok_or(Errno::NOENT)?, PRIVATE_DIRECTORY) {
        Ok(()) | Err(Errno::EXIST) => uninterrupted(|| files::sync(&upper)),
        Err(errno) => Err(errno),
    }
}

/// Who made a directory that is empty may have ended before its name was synced, or does so now.
fn sync_name_of_empty(path: &Path, root: &OwnedFd) -> Result<(), Errno> {
    for entry in fs::Dir::read_from(root)? {
        if !matches!(entry?.file_name().to_bytes(), b"." | b"..") {
            return Ok(());
        }
    }
    match open_folder(path.parent().unwrap_or(path)) {
        Ok(upper) => match uninterrupted(|| files::sync(&upper)) {
            // On what cannot be changed nobody has made it.
            Err(Errno::INVAL | Errno::ROFS) => Ok(()),
            synced => synced,
        },
        // Who may not read it has not made anything in it.
        Err(Errno::ACCESS | Errno::PERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Refuse a directory on a file system of the kernel.
fn check_root(path: &Path, root: &OwnedFd) -> Result<(), Error> {
    match paths::kernel_file_system(root) {
        Ok(None) => Ok(()),
        Ok(Some(kind)) => Err(Error::new(ErrorKind::Denied, mounts::explain(path, kind))),
        Err(errno) => Err(Error::from(errno).context(path.display())),
    }
}

/// Open what lies at a path that a guest wrote for another interface than ours, without following any link. It may hold
/// `.` and `..` that stay below `root`.
pub fn open_below(root: BorrowedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut depth = 0usize;
    for segment in path.split('/') {
        depth = match segment {
            "" | "." => Some(depth),
            ".." => depth.checked_sub(1),
            _ => Some(depth + 1),
        }
        .filter(|_| !path.starts_with('/'))
        .ok_or(Errno::PERM)?;
    }
    paths::open_below(root, path, flags)
}

fn not_regular() -> Error {
    Error::new(ErrorKind::Invalid, "not a regular file")
}

#[cfg(test)]
mod tests;
