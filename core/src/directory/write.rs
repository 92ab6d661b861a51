//! Writing files: into `.kv-tmp`, then renamed to their place, so that no reader sees a part and a crash leaves nothing
//! but a temporary file. Those are removed when the directory is next opened, once they are old.

use std::collections::BTreeSet;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use kv_platform::{files, paths};
use rustix::fs::{self, AtFlags, FileType, OFlags};
use rustix::io::Errno;

use super::{Directory, Guard, Looked, PRIVATE_DIRECTORY, PRIVATE_FILE, RelativePath};
use crate::error::Error;
use crate::limits;
use crate::signals::without_signal;
use crate::threads::Lent;
use crate::until::Until;

const TEMPORARIES: &str = ".kv-tmp";
/// What one `writev` takes, from POSIX.
const MAX_SLICES: usize = 1024;
/// Files that are open at once while they are synced.
const SYNCED_TOGETHER: usize = 64;
/// Fewer than this are synced one after another.
const SYNCED_ALONE: usize = 4;

/// Files of the process that are open to be synced.
struct Synced<'a> {
    files: usize,
    open: &'a AtomicUsize,
}

impl<'a> Synced<'a> {
    /// Room for some of so many files, and for one at least.
    fn take(open: &'a AtomicUsize, wanted: usize) -> Self {
        let left = limits::MAX_SYNCED.saturating_sub(open.load(Relaxed));
        let files = wanted.min(SYNCED_TOGETHER).min(left).max(1);
        open.fetch_add(files, Relaxed);
        Synced { files, open }
    }
}

impl Drop for Synced<'_> {
    fn drop(&mut self) {
        self.open.fetch_sub(self.files, Relaxed);
    }
}

/// What became of a file that was to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    Written,
    Existed,
}

/// Where saves are made durable, the disk begins to write a file of so many bytes as soon as it is there: the sync waits for less. Of
/// shorter ones several are written as one.
const WRITTEN_EARLY: u64 = 64 << 10;

impl Directory {
    /// Write a file of the parts in order. It appears whole or not at all. `replace`: over one that exists, which is
    /// otherwise kept; after power loss either one is there, whole. `durable`: its bytes survive power loss before its name
    /// appears; [`Directory::sync_directories`] does the same for the name. `until`: it appears by the deadline of this call or
    /// not at all, and what replaces another file in the order of the calls.
    pub fn write(
        &self,
        path: &RelativePath,
        parts: &[&[u8]],
        replace: bool,
        durable: bool,
        until: Option<&Until>,
    ) -> Result<Written, Error> {
        self.check_writable()?;
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let _room = self.admit(len, until)?;
        match self.write_once(path, parts, len, replace, durable, until) {
            Err(error) if is_full(&error) && self.guard().is_some_and(|guard| guard.await_after_running_out(until)) => {
                self.write_once(path, parts, len, replace, durable, until)
            }
            written => written,
        }
    }

    fn write_once(
        &self,
        path: &RelativePath,
        parts: &[&[u8]],
        len: u64,
        replace: bool,
        durable: bool,
        until: Option<&Until>,
    ) -> Result<Written, Error> {
        let (temporaries, name, file) = self.create_temporary()?;
        let in_time = || until.map_or(Ok(()), |until| self.check_in_time(until));
        let write = || write_all(&file, parts, &in_time);
        let written = if self.bounded { without_signal(libc::SIGXFSZ, write) } else { write() };
        let mut replaced = None;
        if replace && self.tally().is_some() {
            replaced = self.look(path, &mut Looked::default())?.map(|(_, stat)| stat.st_size as u64);
        }
        let placed = written.and_then(|()| match (durable, replace) {
            (true, _) => Ok(uninterrupted(|| files::sync_data(&file))?),
            (false, true) => Ok(write_out(&file)?),
            (false, false) => {
                if len >= WRITTEN_EARLY && self.syncs.load(Relaxed) {
                    files::start_writing(&file, 0, 0);
                }
                Ok(())
            }
        });
        let place = || Ok(self.place(&temporaries, &name, path, replace)?);
        let placed = placed.and_then(|()| match (replace, until) {
            (true, until) => self.in_turn(until, place),
            (false, Some(until)) => self.check_in_time(until).and_then(|()| place()),
            (false, None) => place(),
        });
        if matches!(placed, Ok(Written::Written)) {
            // It is another file.
            self.unsynced.lock().remove(path.as_str());
        }
        if let (Ok(Written::Written), Some(tally)) = (&placed, self.tally()) {
            tally.add(i64::try_from(len).unwrap_or(i64::MAX).saturating_sub_unsigned(replaced.unwrap_or(0)));
            if let (None, Some(entries)) = (replaced, self.guard().and_then(Guard::entries)) {
                entries.add(1);
            }
        }
        if !matches!(placed, Ok(Written::Written)) {
            // What is left behind if this fails is reaped later.
            let _ = fs::unlinkat(&*temporaries, &name, AtFlags::empty());
        }
        placed
    }

    fn place(&self, from: &OwnedFd, temporary: &str, path: &RelativePath, replace: bool) -> Result<Written, Errno> {
        let place = || {
            let parent =
                self.parents.get(path.parent(), self.shared.clock.now(), || self.make_directory(path.parent()))?;
            place_in(&parent, from, temporary, path, replace)
        };
        match place() {
            // The directory was removed since it was opened.
            Err(Errno::NOENT) => {
                self.parents.forget(path.parent());
                place()
            }
            placed => placed,
        }
    }

    /// Make files durable that were written without, and the names of the directories on the way. `in_time` is asked now
    /// and then, and may end it.
    ///
    /// A file that the kernel could not write out is removed: a second sync of it would succeed, and prove nothing
    /// (`docs/decisions/what-could-not-be-synced-is-removed.md`).
    pub fn sync(&self, paths: &[RelativePath], in_time: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
        self.check_writable()?;
        self.syncs.store(true, Relaxed);
        let mut rest = paths;
        while !rest.is_empty() {
            in_time()?;
            let room = Synced::take(&self.shared.synced, rest.len());
            let (group, behind) = rest.split_at(room.files);
            rest = behind;
            self.forget_unsynced(group)?;
            let open = |path: &RelativePath| {
                self.resolve(path.as_str(), OFlags::RDONLY | OFlags::NONBLOCK).map_err(|errno| match errno {
                    Errno::NOENT => Error::invalid(format!("{}: no such file", path.as_str())),
                    errno => errno.into(),
                })
            };
            let files = group.iter().map(open).collect::<Result<Vec<OwnedFd>, Error>>()?;
            files.iter().for_each(|file| files::start_writing(file, 0, 0));
            let files: Vec<_> = files.iter().zip(group).collect();
            side_by_side(self.shared.helpers.lent(&self.whose), &files, &|(file, path)| {
                Ok(uninterrupted(|| files::sync_data(file)).inspect_err(|errno| {
                    if is_lost(*errno) {
                        self.forget(path);
                    }
                })?)
            })?;
        }
        self.sync_directories(paths, in_time)
    }

    /// Remove a file that could not be synced. One that cannot be removed either is known from now on.
    fn forget(&self, path: &RelativePath) {
        if self.remove(path, false, None).is_err() {
            self.unsynced.lock().insert(path.as_str().to_owned());
        }
    }

    /// Remove those of these files that could not be removed when they could not be synced. No sync of them proves anything.
    fn forget_unsynced(&self, paths: &[RelativePath]) -> Result<(), Error> {
        let known: Vec<&RelativePath> = {
            let unsynced = self.unsynced.lock();
            paths.iter().filter(|path| unsynced.contains(path.as_str())).collect()
        };
        for path in known {
            self.remove(path, false, None)?;
            self.unsynced.lock().remove(path.as_str());
        }
        Ok(())
    }

    /// Make the names of files durable: each directory on the way, once. `in_time` as for [`Directory::sync`].
    pub fn sync_directories(
        &self,
        paths: &[RelativePath],
        in_time: impl Fn() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let directories: BTreeSet<&str> = paths.iter().flat_map(RelativePath::ancestors).collect();
        let directories: Vec<&str> = directories.into_iter().collect();
        for group in directories.chunks(SYNCED_TOGETHER) {
            in_time()?;
            side_by_side(self.shared.helpers.lent(&self.whose), group, &|directory| {
                let directory = self.open_directory(directory)?;
                Ok(uninterrupted(|| files::sync(&directory))?)
            })?;
        }
        Ok(())
    }

    fn create_temporary(&self) -> Result<(Arc<OwnedFd>, String, OwnedFd), Error> {
        let name = self.shared.temporary_name()?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A second time in case somebody removed the directory since it was opened.
        for fresh in [false, true] {
            let temporaries = self.temporaries(fresh)?;
            match fs::openat(&*temporaries, &name, flags, PRIVATE_FILE) {
                Err(Errno::NOENT) => {}
                opened => return Ok((temporaries, name, opened?)),
            }
        }
        Err(Errno::NOENT.into())
    }

    fn temporaries(&self, fresh: bool) -> Result<Arc<OwnedFd>, Errno> {
        let mut kept = self.shared.clock.lock(&self.temporaries);
        if let (Some(open), false) = (&*kept, fresh) {
            return Ok(open.clone());
        }
        match fs::mkdirat(&self.root, TEMPORARIES, PRIVATE_DIRECTORY) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        let open = Arc::new(self.resolve(TEMPORARIES, OFlags::RDONLY | OFlags::DIRECTORY)?);
        *kept = Some(open.clone());
        Ok(open)
    }

    /// Remove temporary files that are too old to have a living writer. Best effort: what fails is tried at the next open.
    pub(super) fn reap_temporaries(&self) {
        let Ok(temporaries) = paths::open_below(&self.root, TEMPORARIES, OFlags::RDONLY | OFlags::DIRECTORY) else {
            return;
        };
        let Ok(listing) = fs::Dir::read_from(&temporaries) else { return };
        let now = self.shared.clock.wall();
        for entry in listing.flatten() {
            let Ok(stat) = fs::statat(&temporaries, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            let age = now.as_secs().saturating_sub(u64::try_from(stat.st_mtime).unwrap_or(0));
            if age > limits::STALE_TEMPORARY.as_secs() {
                let _ = fs::unlinkat(&temporaries, entry.file_name(), AtFlags::empty());
            }
        }
    }
}

/// Whether the file system has no room for a file: no bytes, no inode, or no quota of them.
fn is_full(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    let code = source.and_then(std::io::Error::raw_os_error);
    [Errno::NOSPC, Errno::DQUOT].iter().any(|full| code == Some(full.raw_os_error()))
}

fn place_in(
    parent: &OwnedFd,
    from: &OwnedFd,
    temporary: &str,
    path: &RelativePath,
    replace: bool,
) -> Result<Written, Errno> {
    if replace {
        fs::renameat(from, temporary, parent, path.name())?;
        return Ok(Written::Written);
    }
    match files::rename_new(from, temporary, parent, path.name()) {
        Ok(()) => Ok(Written::Written),
        Err(Errno::EXIST) => existed(parent, path),
        Err(errno) => Err(errno),
    }
}

/// Sync things on several threads: a file system with a journal writes that once for all that wait for it, where one sync
/// after another has it written as often. The first failure; the others are synced all the same.
fn side_by_side<T: Sync>(
    helpers: Lent<'_>,
    things: &[T],
    sync: &(dyn Fn(&T) -> Result<(), Error> + Sync),
) -> Result<(), Error> {
    if things.len() < SYNCED_ALONE {
        return things.iter().try_for_each(sync);
    }
    helpers.try_each(usize::MAX, things, sync)
}

/// Have the bytes of a file on the disk before the file gets its name. What follows needs no wait: a journal's commit flushes the
/// disk before it names the file (`docs/decisions/a-manifest-is-written-out-before-its-rename.md`).
fn write_out(file: &OwnedFd) -> Result<(), Errno> {
    match uninterrupted(|| files::write_out(file)) {
        // Not every file system can.
        Err(Errno::INVAL | Errno::NOSYS | Errno::SPIPE | Errno::OPNOTSUPP) => uninterrupted(|| files::sync_data(file)),
        written_out => written_out,
    }
}

/// A sync, tried again when a signal ended it; not for ever, for a file system may say so each time.
pub(crate) fn uninterrupted(sync: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    const TRIES: usize = 16;
    let tried_again = (1..TRIES).map(|_| sync()).find(|outcome| *outcome != Err(Errno::INTR));
    tried_again.unwrap_or_else(sync)
}

/// Whether a sync that failed so may have lost bytes. Network file systems report that by whatever stood in their way; only
/// what says that it was not tried is sure to have lost none.
fn is_lost(errno: Errno) -> bool {
    !matches!(errno, Errno::INTR | Errno::NOMEM | Errno::INVAL | Errno::BADF | Errno::NFILE | Errno::MFILE)
}

/// What stands in the way of a new file is kept, if it is a file.
fn existed(parent: &OwnedFd, path: &RelativePath) -> Result<Written, Errno> {
    let stat = fs::statat(parent, path.name(), AtFlags::SYMLINK_NOFOLLOW)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Written::Existed),
        FileType::Symlink => Err(Errno::LOOP),
        _ => Err(Errno::ISDIR),
    }
}

/// Write the parts one after another. `in_time` is asked after each [`limits::UNINTERRUPTED_BYTES`] and may end it.
fn write_all(file: &OwnedFd, parts: &[&[u8]], in_time: &dyn Fn() -> Result<(), Error>) -> Result<(), Error> {
    let pieces = parts.iter().flat_map(|part| part.chunks(limits::UNINTERRUPTED_BYTES));
    let mut slices: Vec<IoSlice> = pieces.map(IoSlice::new).collect();
    let mut rest = slices.as_mut_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let fits = |slice: &&IoSlice| {
            bytes += slice.len();
            bytes <= limits::UNINTERRUPTED_BYTES
        };
        let count = rest.iter().take(MAX_SLICES).take_while(fits).count().max(1);
        match rustix::io::writev(file, rest.get(..count).unwrap_or(rest)) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(Errno::IO.into()),
            written => IoSlice::advance_slices(&mut rest, written?),
        }
        if !rest.is_empty() {
            in_time()?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_write_looks_at_the_deadline_on_the_way() {
        let file = tempfile::tempfile().unwrap();
        let file = OwnedFd::from(file);
        let (long, looks) = (vec![7; 20 << 20], std::cell::Cell::new(0));
        let until = |most: usize| {
            let looks = &looks;
            move || match looks.replace(looks.get() + 1) < most {
                true => Ok(()),
                false => Err(Error::new(crate::error::ErrorKind::Unavailable, "late")),
            }
        };
        write_all(&file, &[&long[..5], b"", &long[5..]], &until(9)).unwrap();
        assert_eq!((fs::fstat(&file).unwrap().st_size, looks.take()), (20 << 20, 3));
        assert!(write_all(&file, &[&long], &until(1)).is_err());
        assert_eq!(fs::fstat(&file).unwrap().st_size, (20 << 20) + (16 << 20), "it ends at the second look");
        looks.take();
        write_all(&file, &[b"short", b"parts"], &until(0)).unwrap();
        assert_eq!(looks.get(), 0, "what is short is written by one call");
    }

    #[test]
    fn what_could_neither_be_synced_nor_removed_is_not_taken_for_synced() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::open(scratch.path(), &Arc::default()).unwrap();
        let path = RelativePath::parse("chunk".into()).unwrap();
        let write = |replace| directory.write(&path, &[b"x"], replace, false, None).unwrap();
        write(false);
        directory.unsynced.lock().insert("chunk".to_owned());
        let synced = || directory.sync(std::slice::from_ref(&path), || Ok(()));
        assert!(synced().unwrap_err().to_string().contains("no such file"), "it is removed then");
        assert!(directory.unsynced.lock().is_empty() && !scratch.path().join("chunk").exists());
        write(false);
        synced().unwrap();
        // Where a directory has its place it cannot be removed as a file, and then nothing is promised.
        directory.unsynced.lock().insert("full".to_owned());
        std::fs::create_dir_all(scratch.path().join("full/of")).unwrap();
        let full = RelativePath::parse("full".into()).unwrap();
        assert!(directory.sync(&[full], || Ok(())).is_err() && directory.unsynced.lock().len() == 1);
        // What replaces it is another file.
        directory.unsynced.lock().insert("chunk".to_owned());
        write(true);
        synced().unwrap();
        assert_eq!(directory.unsynced.lock().len(), 1);
    }

    #[test]
    fn files_that_are_open_to_be_synced_are_bounded_in_the_process() {
        let open = AtomicUsize::new(0);
        let many: Vec<Synced> = (0..100).map(|_| Synced::take(&open, 1000)).collect();
        let files: usize = many.iter().map(|room| room.files).sum();
        assert!(files < limits::MAX_SYNCED + many.len() && Synced::take(&open, 1000).files == 1);
        drop(many);
        assert!(Synced::take(&open, 1000).files == SYNCED_TOGETHER && Synced::take(&open, 3).files == 3);
    }
}
