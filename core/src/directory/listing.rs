//! Listing directories in pages, in byte order of the names. The file system has an order of its own, so the names of a directory are
//! read as a whole for a page; those of the pages that follow are kept for whoever goes on, or a store of a million chunks would be
//! read hundreds of times to be listed once.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::{self, FileType, Timespec, Timestamps};
use rustix::io::Errno;

use super::{Directory, RelativePath, usage};
use crate::error::Error;

/// Names that are read at once, and memory of those that are kept.
const NAMES: usize = 32_768;
const KEPT_BYTES: usize = 2 << 20;
/// How long they are kept for the next page. What was made meanwhile is not on it, as if the listing had passed its place.
const KEPT_FOR: Duration = Duration::from_secs(5);
/// A time that is further ahead of the clock is none, in nanoseconds. File systems of other machines may be so far ahead.
const AHEAD: u64 = 10_000_000_000;

/// One entry of a directory.
pub struct Entry {
    pub name: String,
    pub directory: bool,
    /// Bytes; 0 for a directory.
    pub size: u64,
    /// When it was written, and when it was last used: nanoseconds since 1970-01-01 UTC.
    pub modified: u64,
    pub used: u64,
}

/// Names of a directory that follow a page that was answered.
#[derive(Debug)]
pub(super) struct Following {
    path: String,
    /// The last one of the page.
    after: String,
    names: BTreeSet<String>,
    read: Instant,
}

impl Directory {
    /// The first `limit` entries after `after`, in byte order of their names; fewer where those at hand are fewer. Empty only if
    /// none follow, also if there is no such directory. Memory is bounded, however large the directory is.
    pub fn entries(&self, path: &str, after: Option<&str>, limit: usize) -> Result<Vec<Entry>, Error> {
        let directory = match self.open_directory(path) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            opened => opened?,
        };
        let mut after = after.map(str::to_owned);
        loop {
            let names = self.page(&directory, path, after.as_deref(), limit)?;
            let Some(last) = names.last() else { return Ok(Vec::new()) };
            let entries = names
                .iter()
                .filter_map(|name| look(&directory, name).map(|entry| self.at_most_now(&directory, entry)).transpose());
            let entries = entries.collect::<Result<Vec<Entry>, Error>>()?;
            // Where all of them are no files, or were removed since, there may be more behind them.
            if !entries.is_empty() {
                return Ok(entries);
            }
            after = Some(last.clone());
        }
    }

    /// A file of the future, by a clock that was ahead, would be the last to go until then: it is from now.
    fn at_most_now(&self, directory: &OwnedFd, entry: Option<Entry>) -> Option<Entry> {
        let mut entry = entry?;
        let now = self.shared.clock.wall_ns();
        if entry.used > now.saturating_add(AHEAD) && !entry.directory {
            if !self.read_only
                && let Ok(time) = Timespec::try_from(Duration::from_nanos(now))
            {
                let times = Timestamps { last_access: time, last_modification: time };
                let _ = fs::utimensat(directory, &entry.name, &times, fs::AtFlags::SYMLINK_NOFOLLOW);
            }
            (entry.used, entry.modified) = (now, entry.modified.min(now));
        }
        Some(entry)
    }

    /// Up to `limit` names after `after`: those that were kept, or else those that are there now.
    fn page(
        &self,
        directory: &OwnedFd,
        path: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<BTreeSet<String>, Error> {
        let kept = self.following.lock().take();
        let fits = |kept: &Following| {
            kept.path == path && Some(kept.after.as_str()) == after && self.shared.clock.since(kept.read) < KEPT_FOR
        };
        let (mut names, read) = match kept.filter(fits) {
            Some(kept) => (kept.names, kept.read),
            None => (names_after(directory, after, NAMES.max(limit))?, self.shared.clock.now()),
        };
        let Some(cut) = names.iter().nth(limit).cloned() else { return Ok(names) };
        let mut following = names.split_off(&cut);
        let mut bytes = 0_usize;
        let beyond = following.iter().find(|name| {
            bytes += name.len() + size_of::<String>();
            bytes > KEPT_BYTES
        });
        if let Some(beyond) = beyond.cloned() {
            drop(following.split_off(&beyond));
        }
        if let Some(last) = names.last() {
            let following = Following { path: path.to_owned(), after: last.clone(), names: following, read };
            *self.following.lock() = Some(following);
        }
        Ok(names)
    }
}

/// The first `limit` names after `after`, in byte order.
fn names_after(directory: &OwnedFd, after: Option<&str>, limit: usize) -> Result<BTreeSet<String>, Error> {
    let mut first = BTreeSet::new();
    for entry in fs::Dir::read_from(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        let behind = after.is_none_or(|after| name > after)
            && (first.len() < limit || first.last().is_some_and(|last: &String| name < last.as_str()));
        // The host's own, `.` and `..` are no path that a component may use.
        if behind && RelativePath::parse(name.to_owned()).is_ok() {
            first.insert(name.to_owned());
            if first.len() > limit {
                first.pop_last();
            }
        }
    }
    Ok(first)
}

/// A file or directory. None: it is neither, or was removed since it was listed.
fn look(directory: &OwnedFd, name: &str) -> Result<Option<Entry>, Error> {
    let stat = match fs::statat(directory, name, fs::AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => return Ok(None),
        stat => stat?,
    };
    let directory = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => true,
        FileType::RegularFile => false,
        _ => return Ok(None),
    };
    Ok(Some(Entry {
        name: name.to_owned(),
        directory,
        size: if directory { 0 } else { stat.st_size as u64 },
        modified: usage::written(&stat),
        used: usage::used(&stat),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_page_goes_on_where_the_last_one_ended_and_another_place_is_read_anew() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::open(scratch.path(), &Arc::default()).unwrap();
        let touch = |name: &str| drop(std::fs::File::create(scratch.path().join(name)).unwrap());
        (10..40).for_each(|n| touch(&n.to_string()));
        let page = |after, limit| {
            let entries = directory.entries("", after, limit).unwrap();
            entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
        };
        assert_eq!(page(None, 3), ["10", "11", "12"]);
        std::fs::remove_file(scratch.path().join("14")).unwrap();
        touch("135");
        // The names were read with the first page.
        assert_eq!(page(Some("12"), 3), ["13", "15"]);
        assert_eq!(page(Some("15"), 2), ["16", "17"]);
        // From here on nothing was kept.
        assert_eq!(page(Some("12"), 3), ["13", "135", "15"]);
        assert_eq!(page(Some("38"), 3), ["39"]);
        assert!(page(Some("39"), 3).is_empty());
    }

    #[test]
    fn a_file_of_the_future_ages_from_now_on() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::open(scratch.path(), &Arc::default()).unwrap();
        let tomorrow = std::time::SystemTime::now() + Duration::from_secs(86_400);
        let at = scratch.path().join("chunk");
        let times = std::fs::FileTimes::new().set_accessed(tomorrow).set_modified(tomorrow);
        std::fs::File::create(&at).unwrap().set_times(times).unwrap();
        let now = directory.shared.clock.wall_ns();
        let listed = directory.entries("", None, 10).unwrap().pop().unwrap();
        assert!(listed.used.abs_diff(now) < AHEAD && listed.modified.abs_diff(now) < AHEAD);
        assert!(std::fs::metadata(&at).unwrap().modified().unwrap() < tomorrow, "the next process knows it too");
    }

    #[test]
    fn what_is_kept_is_bounded_and_nothing_is_left_out() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = Directory::open(scratch.path(), &Arc::default()).unwrap();
        // More than is kept in bytes.
        let names: BTreeSet<String> = (0..9000).map(|n| format!("{n:0>240}")).collect();
        for name in &names {
            std::fs::File::create(scratch.path().join(name)).unwrap();
        }
        let (mut listed, mut after) = (BTreeSet::new(), None::<String>);
        loop {
            let entries = directory.entries("", after.as_deref(), 1000).unwrap();
            let Some(last) = entries.last() else { break };
            after = Some(last.name.clone());
            listed.extend(entries.into_iter().map(|entry| entry.name));
            let kept = directory.following.lock();
            let bytes: usize =
                kept.iter().flat_map(|kept| &kept.names).map(|name| name.len() + size_of::<String>()).sum();
            assert!(bytes <= KEPT_BYTES, "{bytes}");
        }
        assert_eq!(listed, names);
    }
}
