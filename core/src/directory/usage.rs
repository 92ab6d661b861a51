//! When files were last used, which of them may be removed for that, and the room that is left.
//!
//! The time of use of a file is the later of its access and its modification time. The host sets the access time itself, at
//! most four times a minute for each file, so it means the same on a file system that is mounted with `noatime` or `relatime`.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::fs::{self, AtFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno;

use super::{Directory, Guard, Looked, RelativePath};
use crate::error::Error;
use crate::limits::USE_NOTED;

/// How old a noted time of use may be while a save is open.
pub(super) const NOTED_IN_SAVES: Duration = Duration::from_millis(100);

/// What became of a file that was to be removed if nobody uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEviction {
    /// So many bytes are free.
    Removed(u64),
    Kept,
    Missing,
}

/// The space of a file system: bytes, and inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub total: u64,
    pub available: u64,
    /// Files that there may be, and that may be made still. None: the file system knows no such bound.
    pub files: Option<(u64, u64)>,
}

/// When the content was written: nanoseconds since 1970-01-01 UTC.
pub(super) fn written(stat: &Stat) -> u64 {
    nanoseconds(stat.st_mtime, stat.st_mtime_nsec)
}

/// Its access time.
pub(super) fn accessed(stat: &Stat) -> u64 {
    nanoseconds(stat.st_atime, stat.st_atime_nsec)
}

/// When the file was last used.
pub(crate) fn used(stat: &Stat) -> u64 {
    accessed(stat).max(written(stat))
}

fn nanoseconds(seconds: impl TryInto<u64>, rest: impl TryInto<u64>) -> u64 {
    let (seconds, rest) = (seconds.try_into().unwrap_or(0), rest.try_into().unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(rest)
}

impl Directory {
    /// Set the access time of a file whose `stat` is this to now, unless that was done a moment ago. What fails is left: the file
    /// then seems older than it is.
    pub(super) fn note_use(&self, stat: &Stat, set: impl FnOnce(&Timestamps) -> Result<(), Errno>) {
        // No system call.
        let Ok(now) = Timespec::try_from(self.shared.clock.wall()) else { return };
        // A time in the future would never be passed: that of a machine whose clock was wrong.
        let age = nanoseconds(now.tv_sec, now.tv_nsec).abs_diff(used(stat));
        let noted_for = match self.is_saved_to() {
            true => NOTED_IN_SAVES.as_nanos() as u64,
            false => self.noted_for.load(Relaxed),
        };
        if age <= noted_for || self.unnoted.load(Relaxed) {
            return;
        }
        let last_modification = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT };
        let noted = set(&Timestamps { last_access: now, last_modification });
        if matches!(noted, Err(Errno::ROFS | Errno::PERM | Errno::ACCESS | Errno::NOSYS)) {
            self.unnoted.store(true, Relaxed);
        }
    }

    /// Note uses four times in `kept_for`, where files may be removed so soon after their last use.
    pub fn note_uses_within(&self, kept_for: Duration) {
        let noted_for = (kept_for / 4).min(USE_NOTED);
        self.noted_for.store(u64::try_from(noted_for.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Remove a file that was neither written nor used after a time, in nanoseconds since 1970-01-01 UTC.
    pub fn remove_unused(&self, path: &RelativePath, unused_since: u64) -> Result<FileEviction, Error> {
        self.check_writable()?;
        let Some((parent, stat)) = self.look(path, &mut Looked::default())? else { return Ok(FileEviction::Missing) };
        if used(&stat) > unused_since {
            return Ok(FileEviction::Kept);
        }
        match fs::unlinkat(&**parent, path.name(), AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(FileEviction::Missing),
            removed => {
                removed?;
                self.gone(stat.st_size as u64);
                Ok(FileEviction::Removed(stat.st_size as u64))
            }
        }
    }

    /// A file of so many bytes is gone.
    pub(super) fn gone(&self, bytes: u64) {
        if let Some(tally) = self.tally() {
            tally.remove(bytes);
        }
        if let Some(entries) = self.guard().and_then(Guard::entries) {
            entries.remove(1);
        }
    }

    /// The space of the file system that holds the directory.
    pub fn space(&self) -> Result<Space, Error> {
        let space = fs::fstatvfs(&self.root)?;
        let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
        let files = (space.f_files > 0).then_some((space.f_files, space.f_favail));
        Ok(Space { total: bytes(space.f_blocks), available: bytes(space.f_bavail), files })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, FileTimes};
    use std::sync::Arc;

    fn directory() -> (tempfile::TempDir, Arc<Directory>) {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::open(scratch.path(), &Arc::default()).unwrap();
        (scratch, Arc::new(directory))
    }

    fn path(text: &str) -> RelativePath {
        RelativePath::parse(text.into()).unwrap()
    }

    /// Let a file, which is made if need be, have been read and written so many seconds ago.
    fn aged(at: &std::path::Path, accessed: u64, modified: u64) {
        let ago = |seconds| std::time::SystemTime::now() - Duration::from_secs(seconds);
        let file = File::options().append(true).create(true).open(at).unwrap();
        file.set_times(FileTimes::new().set_accessed(ago(accessed)).set_modified(ago(modified))).unwrap();
    }

    fn ages(at: &std::path::Path) -> [u64; 2] {
        let meta = std::fs::metadata(at).unwrap();
        [meta.accessed().unwrap(), meta.modified().unwrap()].map(|time| time.elapsed().unwrap_or_default().as_secs())
    }

    fn read(directory: &Arc<Directory>, name: &str) {
        let wanted = super::super::Wanted { path: path(name), offset: 0, len: None };
        let room = &mut |len| Ok(crate::payload::Destination::Buffer(crate::payload::Filling::new(len)?));
        assert!(directory.read(wanted, None, room).read.unwrap());
    }

    #[test]
    fn a_use_is_noted_four_times_a_minute_and_leaves_the_time_of_writing() {
        let (scratch, directory) = directory();
        type Use = fn(&Arc<Directory>, &str);
        let uses: [(&str, Use); 2] = [
            ("read", read),
            ("size", |directory, name| {
                assert_eq!(directory.size(&path(name), &mut Looked::default()).unwrap(), Some(0))
            }),
        ];
        for (name, use_it) in uses {
            let at = scratch.path().join(name);
            aged(&at, 500, 1000);
            use_it(&directory, name);
            let [accessed, modified] = ages(&at);
            assert!(accessed < 15 && modified >= 1000, "{name}: {accessed} {modified}");
            aged(&at, 10, 1000);
            use_it(&directory, name);
            let [accessed, _] = ages(&at);
            assert!(accessed >= 10, "{name} was noted again after {accessed} s");
            aged(&at, 20, 1000);
            use_it(&directory, name);
            assert!(ages(&at)[0] < 15, "{name}: within the grace of a minute it was used");
        }
        // A clock that was wrong.
        let at = scratch.path().join("tomorrow");
        let tomorrow = std::time::SystemTime::now() + Duration::from_secs(86_400);
        File::create(&at).unwrap().set_times(FileTimes::new().set_accessed(tomorrow)).unwrap();
        directory.size(&path("tomorrow"), &mut Looked::default()).unwrap();
        assert!(std::fs::metadata(&at).unwrap().accessed().unwrap() < tomorrow);
    }

    #[test]
    fn nothing_is_noted_in_a_directory_that_is_granted_to_read() {
        let (scratch, _) = directory();
        let at = scratch.path().join("f");
        aged(&at, 500, 400);
        Directory::open_read_only(scratch.path(), &Arc::default())
            .unwrap()
            .size(&path("f"), &mut Looked::default())
            .unwrap();
        assert!(ages(&at)[0] >= 500);
    }

    #[test]
    fn only_what_nobody_used_is_removed() {
        let (scratch, directory) = directory();
        let now =
            std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
        let before = |seconds: u64| now - seconds * 1_000_000_000;
        let at = scratch.path().join("f");
        std::fs::write(&at, b"12345").unwrap();
        aged(&at, 100, 1000);
        assert_eq!(directory.remove_unused(&path("f"), before(200)).unwrap(), FileEviction::Kept);
        aged(&at, 1000, 100);
        assert_eq!(directory.remove_unused(&path("f"), before(200)).unwrap(), FileEviction::Kept);
        assert_eq!(directory.remove_unused(&path("f"), before(50)).unwrap(), FileEviction::Removed(5));
        assert_eq!(directory.remove_unused(&path("f"), before(50)).unwrap(), FileEviction::Missing);
        std::fs::create_dir(scratch.path().join("d")).unwrap();
        assert_eq!(
            directory.remove_unused(&path("d"), u64::MAX).unwrap(),
            FileEviction::Missing,
            "a directory is no file"
        );
    }

    #[test]
    fn space_is_that_of_the_file_system() {
        let (_scratch, directory) = directory();
        let Space { total, available, files } = directory.space().unwrap();
        assert!(available > 0 && available <= total);
        assert!(files.is_none_or(|(total, available)| available <= total));
    }
}
