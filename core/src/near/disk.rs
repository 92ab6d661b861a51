//! The disk tier: a file for each copy, in one directory that the processes of this user share, bounded in bytes.
//!
//! A file is the chunk and a trailer that says whose it is and when it was confirmed; both are checked at each read, and what fails is
//! a miss and is removed. Nothing is made durable: after a power loss a file may be torn, and is then damaged. The order of use is
//! that of the files' times, because the tier outlives the process and is shared (`docs/decisions/one-policy-module.md`).

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kv_platform::sync::{Mutex, MutexGuard};
use twox_hash::XxHash3_64;

use super::copies::Copy;
use super::{CopyKey, Scope};
use crate::config::Direct;
use crate::directory::{Directory, Entry, Found, Guard, RelativePath, Shared, Tally, Wanted, Written};
use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::{Destination, Filling};
use crate::threads::Whose;
use crate::until::Until;

const MAGIC: [u8; 8] = *b"KVNEAR01";
const TRAILER_BYTES: usize = 48;
/// Folders that files are spread over by the first byte of their hash.
const FOLDERS: usize = 256;
/// Files among which the least recently used are looked for, where there are so many.
const SAMPLED: usize = 1024;
/// The part of their bytes that is then removed.
const REMOVED_FRACTION: u64 = 8;
const STRIPES: usize = 64;
/// How long nothing is written after a write failed.
const PAUSE: Duration = Duration::from_secs(10);
const COUNT_RETRIED: Duration = Duration::from_secs(60);

pub(super) struct Disk {
    directory: Arc<Directory>,
    max_bytes: u64,
    /// Held while a file is written or removed, so that a delete waits for a write that began before it.
    changing: [Mutex<()>; STRIPES],
    state: Mutex<DiskState>,
}

#[derive(Default)]
struct DiskState {
    /// Where the last search for what is to be removed ended.
    folder: usize,
    /// Nothing is written before.
    paused_until: Option<Instant>,
    /// When the files were last counted, or that was tried.
    tried: Option<Instant>,
}

/// What lay there was no copy of the chunk, and was removed.
#[derive(Debug)]
pub(super) struct DamagedCopy;

/// Why a near level cannot have its disk tier in this directory, which need not exist yet.
pub fn check_directory(path: &Path) -> Result<(), Error> {
    let Ok(meta) = path.metadata() else { return Ok(()) };
    let denied = |message: &str| Err(Error::new(ErrorKind::Denied, message));
    if !meta.is_dir() {
        return denied("is no directory");
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return denied("belongs to another user");
    }
    if meta.mode() & 0o077 != 0 {
        return denied("must be this user's alone, because it holds chunks of all tenants (chmod 700)");
    }
    Ok(())
}

/// Bytes of a file system of so many that stay free.
fn keep_free(total: u64) -> u64 {
    (total / 20).min(limits::NEAR_KEEP_FREE_BYTES)
}

impl Disk {
    /// `whose`: as whom others read from it.
    pub fn open(path: &Path, max_bytes: u64, shared: &Arc<Shared>, whose: &Whose) -> Result<Self, Error> {
        check_directory(path)?;
        let directory = Directory::open(path, shared)?.of_store(whose, Direct::Off);
        check_directory(path)?;
        let keep_free = keep_free(directory.space()?.total);
        Self::bounded(directory, max_bytes, keep_free)
    }

    /// `keep_free`: bytes of the file system that stay free.
    pub(super) fn bounded(directory: Directory, max_bytes: u64, keep_free: u64) -> Result<Self, Error> {
        let tally = Tally::open(&directory, max_bytes)?;
        // What is over is removed before each write; nobody else needs to be woken for it.
        directory.set_guard(Guard::new(
            directory.clock(),
            keep_free,
            Some((max_bytes, "near.disk_bytes")),
            Some(tally),
            || true,
        ));
        let changing = std::array::from_fn(|_| Mutex::default());
        let directory = Arc::new(directory);
        Ok(Disk { directory, max_bytes, changing, state: Mutex::default() })
    }

    /// Bytes of all files, those of other processes included, as far as is known.
    pub fn bytes(&self) -> u64 {
        self.directory.tally().map_or(0, Tally::total)
    }

    pub fn has_room_for(&self, len: usize) -> bool {
        (len as u64).saturating_add(TRAILER_BYTES as u64) <= self.max_bytes / REMOVED_FRACTION
    }

    /// The copy of a chunk. A file that cannot be read for another reason than what is in it is no copy, and stays.
    pub fn read(&self, key: &CopyKey, until: &Until) -> Result<Option<Copy>, DamagedCopy> {
        let Ok(path) = path(key) else { return Ok(None) };
        let wanted = Wanted { path, offset: 0, len: None };
        let room = &mut |len| Ok(Destination::Buffer(Filling::new(len)?));
        let Found { read, destination } = self.directory.read(wanted, Some(until), room);
        match read {
            Ok(false) => return Ok(None),
            Ok(true) => {}
            // Nothing is wrong with the file where there is no memory, or no time.
            Err(error)
                if matches!(error.kind(), ErrorKind::Exhausted | ErrorKind::Unavailable | ErrorKind::Cancelled) =>
            {
                return Ok(None);
            }
            Err(_) => return self.damaged(key),
        }
        let Some(Destination::Buffer(filling)) = destination else { return Ok(None) };
        parse(key, filling).map_or_else(|| self.damaged(key), |copy| Ok(Some(copy)))
    }

    fn damaged(&self, key: &CopyKey) -> Result<Option<Copy>, DamagedCopy> {
        self.remove(key);
        Err(DamagedCopy)
    }

    /// Write a copy, in place of an older one, unless `is_current` says that it was deleted; it is asked while no delete is at this
    /// chunk's file. False: it was not written.
    pub fn write(&self, key: &CopyKey, copy: &Copy, is_current: impl FnOnce() -> bool) -> bool {
        let len = copy.data.len().saturating_add(TRAILER_BYTES) as u64;
        let Ok(path) = path(key) else { return false };
        if !self.has_room_for(copy.data.len()) || self.is_paused() || !self.make_room(len) {
            return false;
        }
        let _changing = self.change(key);
        if !is_current() {
            return false;
        }
        let trailer = trailer(key, copy);
        let parts: [&[u8]; 2] = [&copy.data, &trailer];
        let write = || self.directory.write(&path, &parts, false, false, None);
        let written = write().and_then(|written| match written {
            Written::Written => Ok(()),
            Written::Existed => {
                self.directory.remove(&path, false, None)?;
                write().map(drop)
            }
        });
        if written.is_err() {
            self.state.lock().paused_until = self.directory.clock().now().checked_add(PAUSE);
        }
        written.is_ok()
    }

    /// Remove the copy of a chunk. One that stays for a failure of the file system is not found again once its time is up.
    pub fn remove(&self, key: &CopyKey) {
        let Ok(path) = path(key) else { return };
        let _changing = self.change(key);
        let _ = self.directory.remove(&path, false, None);
    }

    /// Count the files, if that was not done of late. A count that fails is tried again a minute later.
    pub fn count(&self) {
        let Some(tally) = self.directory.tally() else { return };
        let counted = Duration::from_nanos(self.directory.clock().wall_ns().saturating_sub(tally.counted()));
        if counted <= limits::COUNTED_FOR
            || self.state.lock().tried.is_some_and(|tried| self.directory.clock().since(tried) < COUNT_RETRIED)
        {
            return;
        }
        self.state.lock().tried = Some(self.directory.clock().now());
        let before = tally.total();
        let mut bytes = 0_u64;
        let mut add = |entry: ListedFile| bytes = bytes.saturating_add(entry.size);
        if (0..FOLDERS).try_for_each(|folder| self.look(folder, &mut add)).is_ok() {
            tally.set(bytes, before);
        }
    }

    /// Remove the least recently used until there is room for `len` bytes more.
    fn make_room(&self, len: u64) -> bool {
        let reckoned = || self.directory.tally().map_or(0, Tally::reckoned);
        let fits = |limit: u64| reckoned().saturating_add(len) <= limit;
        if fits(self.max_bytes - self.max_bytes / 20) {
            return true;
        }
        let mut tries = 0;
        while !fits(self.max_bytes - self.max_bytes / 10) {
            tries += 1;
            if tries > limits::MAX_EVICTIONS || self.remove_oldest() == 0 {
                break;
            }
        }
        fits(self.max_bytes)
    }

    /// Remove the least recently used part of some folders' files, of all where there are few. Hashes spread evenly, so that some folders
    /// are as good a sample as any. Returns how many bytes were removed.
    fn remove_oldest(&self) -> u64 {
        let first = self.state.lock().folder;
        let (mut found, mut looked) = (Vec::new(), 0);
        while looked < FOLDERS && found.len() < SAMPLED {
            // A folder that cannot be read holds nothing that could be removed.
            let _ = self.look((first + looked) % FOLDERS, &mut |entry| found.push(entry));
            looked += 1;
        }
        self.state.lock().folder = (first + looked) % FOLDERS;
        let bytes: u64 = found.iter().map(|entry| entry.size).sum();
        found.sort_unstable_by_key(|entry| entry.used);
        let mut removed = 0;
        for ListedFile { path, size, used } in found {
            if removed > bytes / REMOVED_FRACTION {
                break;
            }
            if self.directory.remove_unused(&path, used).is_ok() {
                removed += size;
            }
        }
        removed
    }

    /// The files of a folder.
    fn look(&self, folder: usize, visit: &mut dyn FnMut(ListedFile)) -> Result<(), Error> {
        let folder = format!("{folder:02x}");
        let mut after: Option<String> = None;
        loop {
            let entries = self.directory.entries(&folder, after.as_deref(), limits::MAX_DIRECTORY_ENTRIES)?;
            let Some(last) = entries.last() else { return Ok(()) };
            after = Some(last.name.clone());
            for Entry { name, size, used, directory, .. } in entries {
                if let (false, Ok(path)) = (directory, RelativePath::parse(format!("{folder}/{name}"))) {
                    visit(ListedFile { path, size, used });
                }
            }
        }
    }

    fn is_paused(&self) -> bool {
        self.state.lock().paused_until.is_some_and(|until| self.directory.clock().now() < until)
    }

    #[allow(clippy::indexing_slicing, reason = "the remainder is below the length, which is not 0")]
    fn change(&self, key: &CopyKey) -> MutexGuard<'_, ()> {
        let stripe = &self.changing[usize::from(key.hash[0]) % STRIPES];
        stripe.lock()
    }
}

/// A file that lies there.
struct ListedFile {
    path: RelativePath,
    size: u64,
    used: u64,
}

fn path(key: &CopyKey) -> Result<RelativePath, Error> {
    let CopyKey { scope: Scope(scope), hash } = key;
    RelativePath::parse(format!("{:02x}/{}-{}", hash[0], hex::encode(scope), hex::encode(hash)))
}

fn trailer(key: &CopyKey, copy: &Copy) -> [u8; TRAILER_BYTES] {
    let CopyKey { scope: Scope(scope), hash } = key;
    let mut trailer = [0; TRAILER_BYTES];
    let parts: [&[u8]; 4] = [&MAGIC, scope, hash, &copy.confirmed.to_le_bytes()];
    let mut bytes = parts.into_iter().flatten();
    trailer.iter_mut().zip(&mut bytes).for_each(|(to, from)| *to = *from);
    let sum = sum(&trailer, copy.data.len()).to_le_bytes();
    trailer.iter_mut().rev().zip(sum.into_iter().rev()).for_each(|(to, from)| *to = from);
    trailer
}

/// Of the trailer but its sum, and the length of the chunk.
fn sum(trailer: &[u8; TRAILER_BYTES], len: usize) -> u64 {
    let (said, _) = trailer.split_at(TRAILER_BYTES - 8);
    let mut all = said.to_vec();
    all.extend_from_slice(&(len as u64).to_le_bytes());
    XxHash3_64::oneshot(&all)
}

/// The copy in the bytes of a file. None: it is damaged, or of another chunk.
fn parse(key: &CopyKey, mut filling: Filling) -> Option<Copy> {
    let bytes = filling.filled();
    if bytes.len() as u64 != filling.room() {
        return None;
    }
    let (data, said) = bytes.split_last_chunk::<TRAILER_BYTES>()?;
    let len = data.len();
    let confirmed = u64::from_le_bytes(said.get(32..40)?.try_into().ok()?);
    let digest = XxHash3_64::oneshot(data);
    if digest.to_be_bytes() != key.hash && digest.to_le_bytes() != key.hash {
        return None;
    }
    let said = *said;
    filling.resize(len as u64).ok()?;
    let copy = Copy { data: Arc::new(filling.finish().ok()?), confirmed };
    (trailer(key, &copy) == said).then_some(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_twentieth_of_a_file_system_stays_free_up_to_a_bound() {
        assert_eq!([0, 1000, u64::MAX].map(keep_free), [0, 50, limits::NEAR_KEEP_FREE_BYTES]);
    }
}
