//! Saves that are under way, told to whoever evicts from the directory: another process, too.
//!
//! A process keeps a file of its own in `.kv-saves`. Its modification time is when the oldest save began that is open there, its
//! access time when that was last said; both are 0 where none is open. Nothing of it needs a lock: what a process that died left behind
//! counts no longer than `save_grace_s` and a quarter of it (`docs/decisions/saves-say-that-they-are-under-way.md`).
//!
//! What an open save was answered as existing was used when it was asked for, so all that it names was used after it began. For
//! that, uses are noted to [`usage::NOTED_IN_SAVES`] while a save is open.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use kv_platform::sync::{Mutex, MutexGuard};
use rustix::fs::{self, AtFlags, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::{Directory, PRIVATE_DIRECTORY, PRIVATE_FILE, usage};
use crate::limits;

const FOLDER: &str = ".kv-saves";
/// The kernel stamps files by a clock that may be so far behind.
const STAMPED: Duration = Duration::from_millis(20);
/// Files of other processes that are looked at.
const LOOKED_AT: usize = 4096;

/// The saves of this process.
#[derive(Debug)]
pub(super) struct Saves {
    /// How long a save may take, as the operator says.
    grace: Duration,
    open: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// When each began that is open.
    begun: BTreeMap<u64, u64>,
    /// When that was last said.
    noted: u64,
    mark: Option<(OwnedFd, String)>,
}

/// A save that is under way, until this is dropped.
#[derive(Debug)]
pub struct UnderWay {
    directory: Arc<Directory>,
    number: u64,
}

impl UnderWay {
    /// Say now and then that it still is: a chunk was put for it.
    pub fn goes_on(&self) {
        let Some(saves) = self.directory.saves.get() else { return };
        let now = self.directory.shared.clock.wall_ns();
        let mut state = saves.lock(&self.directory);
        if state.noted.abs_diff(now) >= nanoseconds(saves.grace / 4) {
            saves.note(&self.directory, &mut state, now);
        }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Some(saves) = self.directory.saves.get() else { return };
        let now = self.directory.shared.clock.wall_ns();
        let mut state = saves.lock(&self.directory);
        let oldest = state.begun.values().min().copied();
        state.begun.remove(&self.number);
        saves.open.store(state.begun.len(), Relaxed);
        if state.begun.values().min().copied() != oldest {
            saves.note(&self.directory, &mut state, now);
        }
    }
}

impl Saves {
    /// Held while the file is written.
    fn lock(&self, directory: &Directory) -> MutexGuard<'_, State> {
        directory.shared.clock.lock(&self.state)
    }

    /// Have the file say what is open. Where it cannot be written, the saves are as those of a process that says nothing.
    fn note(&self, directory: &Directory, state: &mut State, now: u64) {
        let oldest = state.begun.values().min().copied();
        // One that nobody wrote for long may have been removed.
        let old = nanoseconds(limits::STALE_TEMPORARY / 2);
        if oldest.is_some() && (state.mark.is_none() || state.noted.abs_diff(now) > old) {
            state.mark = directory.mark_saves().ok();
        }
        let Some((mark, _)) = &state.mark else { return };
        let time = |ns: u64| Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ };
        let (begun, noted) = oldest.map_or((0, 0), |oldest| (oldest, now));
        let _ = fs::futimens(mark, &Timestamps { last_access: time(noted), last_modification: time(begun) });
        state.noted = now;
    }
}

impl Directory {
    /// From now on, tell those who evict from here which saves are under way. `grace`: how long one may take.
    pub fn announce_saves(&self, grace: Duration) {
        if !self.read_only && !grace.is_zero() {
            let _ = self.saves.set(Saves { grace, open: AtomicUsize::new(0), state: Mutex::default() });
        }
    }

    /// A save begins. None: nobody needs to know.
    pub fn begin_save(self: &Arc<Self>) -> Option<UnderWay> {
        let saves = self.saves.get()?;
        let now = self.shared.clock.wall_ns();
        let mut state = saves.lock(self);
        state.last += 1;
        let number = state.last;
        let oldest = state.begun.values().min().copied();
        state.begun.insert(number, now);
        saves.open.store(state.begun.len(), Relaxed);
        if oldest.is_none_or(|oldest| now < oldest) || state.noted.abs_diff(now) >= nanoseconds(saves.grace / 4) {
            saves.note(self, &mut state, now);
        }
        Some(UnderWay { directory: self.clone(), number })
    }

    /// Whether a save of this process is open.
    pub(super) fn is_saved_to(&self) -> bool {
        self.saves.get().is_some_and(|saves| saves.open.load(Relaxed) > 0)
    }

    /// What must have been used before a moment so that no save that is under way, in any process, may name it: nanoseconds since
    /// 1970-01-01 UTC. A save that takes longer than `grace` is on its own from then on.
    pub fn unnamed_before(&self, grace: Duration) -> u64 {
        let now = self.shared.clock.wall_ns();
        if grace.is_zero() {
            return now;
        }
        let grace = nanoseconds(grace);
        let oldest = match self.oldest_save(now, grace.saturating_add(grace / 4)) {
            Ok(None) => now,
            Ok(Some(oldest)) => oldest.clamp(now.saturating_sub(grace), now),
            // Then each may name what was used within it.
            Err(_) => now.saturating_sub(grace).saturating_sub(nanoseconds(limits::USE_NOTED)),
        };
        oldest.saturating_sub(nanoseconds(usage::NOTED_IN_SAVES + STAMPED))
    }

    /// When the oldest save began that is open. What was not said for `valid` says nothing.
    fn oldest_save(&self, now: u64, valid: u64) -> Result<Option<u64>, Errno> {
        let folder = match self.resolve(FOLDER, OFlags::RDONLY | OFlags::DIRECTORY) {
            Err(Errno::NOENT) => return Ok(None),
            opened => opened?,
        };
        let mut oldest = None;
        for entry in fs::Dir::read_from(&folder)?.take(LOOKED_AT) {
            let entry = entry?;
            let Ok(stat) = fs::statat(&folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if fs::FileType::from_raw_mode(stat.st_mode) != fs::FileType::RegularFile {
                continue;
            }
            let (begun, noted) = (usage::written(&stat), usage::accessed(&stat));
            if begun > 0 && noted.abs_diff(now) <= valid {
                oldest = oldest.into_iter().chain([begun]).min();
            }
            // The time of its last change is the kernel's, whatever the file says.
            let changed = u64::try_from(stat.st_ctime).unwrap_or(0);
            if (now / 1_000_000_000).saturating_sub(changed) > limits::STALE_TEMPORARY.as_secs() {
                let _ = fs::unlinkat(&folder, entry.file_name(), AtFlags::empty());
            }
        }
        Ok(oldest)
    }

    fn mark_saves(&self) -> Result<(OwnedFd, String), crate::error::Error> {
        let name = self.shared.temporary_name()?;
        match fs::mkdirat(&self.root, FOLDER, PRIVATE_DIRECTORY) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno.into()),
        }
        let folder = self.resolve(FOLDER, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mark = fs::openat(&folder, &name, flags, PRIVATE_FILE)?;
        Ok((mark, name))
    }

    /// Remove the file of this process.
    pub(super) fn end_saves(&mut self) {
        let saves = self.saves.get_mut();
        let mark = saves.and_then(|saves| saves.state.get_mut().mark.take());
        if let Some((_, name)) = mark
            && let Ok(folder) = self.resolve(FOLDER, OFlags::RDONLY | OFlags::DIRECTORY)
        {
            let _ = fs::unlinkat(&folder, &name, AtFlags::empty());
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::super::{FileEviction, Looked, RelativePath, Shared};
    use super::*;
    use crate::process::{Clock, Time};
    use std::sync::atomic::AtomicU64;
    use std::time::{Instant, SystemTime, UNIX_EPOCH};

    const GRACE: Duration = Duration::from_secs(60);

    /// A time that a test sets, in milliseconds.
    struct Handed(Instant, AtomicU64);

    impl Time for Handed {
        fn now(&self) -> Instant {
            self.0 + Duration::from_millis(self.1.load(Relaxed))
        }
        fn wall(&self) -> SystemTime {
            UNIX_EPOCH + Duration::from_millis(self.1.load(Relaxed))
        }
    }

    /// As another process has it: with names, saves and notes of its own.
    fn process(at: &std::path::Path, time: &Arc<Handed>) -> Arc<Directory> {
        let shared = Arc::new(Shared::of_test(Clock::of(time.clone())));
        let directory = Directory::open(at, &shared).unwrap();
        directory.announce_saves(GRACE);
        Arc::new(directory)
    }

    fn set(time: &Handed, seconds: u64) {
        time.1.store(seconds * 1000, Relaxed);
    }

    const NS: u64 = 1_000_000_000;

    #[test]
    fn another_process_keeps_what_an_open_save_was_told_of_and_evicts_the_rest() {
        let scratch = tempfile::tempdir().unwrap();
        let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let time = Arc::new(Handed(Instant::now(), AtomicU64::new(0)));
        set(&time, begun);
        let (saver, evictor) = (process(scratch.path(), &time), process(scratch.path(), &time));
        let path = |name: &str| RelativePath::parse(name.into()).unwrap();
        let aged = |name: &str, seconds: u64| {
            let file = std::fs::File::create(scratch.path().join(name)).unwrap();
            let then = UNIX_EPOCH + Duration::from_secs(seconds);
            file.set_times(std::fs::FileTimes::new().set_accessed(then).set_modified(then)).unwrap();
        };
        // Both were used a moment ago, and noted then.
        aged("told", begun + 9);
        aged("other", begun + 9);
        set(&time, begun + 10);
        let save = saver.begin_save().unwrap();
        assert_eq!(saver.size(&path("told"), &mut Looked::default()).unwrap(), Some(0), "answered as existing");
        set(&time, begun + 20);
        let before = evictor.unnamed_before(GRACE);
        assert!(before > (begun + 9) * NS && before < (begun + 10) * NS, "{before}");
        assert_eq!(evictor.remove_unused(&path("other"), before).unwrap(), FileEviction::Removed(0));
        assert_eq!(evictor.remove_unused(&path("told"), before).unwrap(), FileEviction::Kept);
        // Of two the older one counts.
        let second = saver.begin_save().unwrap();
        drop(save);
        assert!(evictor.unnamed_before(GRACE) >= (begun + 19) * NS);
        drop(second);
        assert!(evictor.unnamed_before(GRACE) > (begun + 19) * NS, "no save is open");
        assert_eq!(
            evictor.remove_unused(&path("told"), evictor.unnamed_before(GRACE)).unwrap(),
            FileEviction::Removed(0)
        );
    }

    #[test]
    fn a_save_counts_as_long_as_it_goes_on_and_no_longer_than_the_grace() {
        let scratch = tempfile::tempdir().unwrap();
        let time = Arc::new(Handed(Instant::now(), AtomicU64::new(0)));
        set(&time, 1000);
        let (saver, evictor) = (process(scratch.path(), &time), process(scratch.path(), &time));
        let save = saver.begin_save().unwrap();
        for now in (1000..1200).step_by(10) {
            set(&time, now);
            save.goes_on();
            let before = evictor.unnamed_before(GRACE);
            let named = 1000.max(now - 60) * NS;
            assert!(before <= named && before > named - NS, "{now}: {before}");
        }
        // The process died, or its save does nothing any more.
        set(&time, 1190 + 76);
        assert!(evictor.unnamed_before(GRACE) > 1265 * NS);
        // And then it goes on.
        save.goes_on();
        assert!(evictor.unnamed_before(GRACE) <= (1266 - 60) * NS);
        drop(save);
        let left = || std::fs::read_dir(scratch.path().join(FOLDER)).unwrap().count();
        assert_eq!(left(), 1);
        drop(saver);
        assert_eq!(left(), 0);
        assert_eq!(evictor.unnamed_before(Duration::ZERO), 1266 * NS);
    }

    #[test]
    fn a_directory_from_which_nobody_evicts_is_told_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Arc::new(Directory::open(scratch.path(), &Arc::default()).unwrap());
        assert!(directory.begin_save().is_none() && !scratch.path().join(FOLDER).exists());
        directory.announce_saves(Duration::ZERO);
        assert!(directory.begin_save().is_none());
    }
}
