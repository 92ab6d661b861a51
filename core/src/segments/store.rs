//! The store: values go into segments, and are there when the log says so.

use std::collections::HashMap;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use rustix::fs::{self, FallocateFlags, FlockOperation, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use super::format::{Entry, Place, RECORD_ALIGNMENT, RECORD_HEADER_BYTES, record_head, record_room, record_value};
use super::index::Index;
use super::log::{Follow, Log};
use crate::error::{Error, ErrorKind};
use crate::limits::MAX_HASH_BYTES;
use crate::until::Until;

/// What a store is made with; one that is there keeps its length of segments.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub segment_bytes: u64,
}

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    New,
    Existed,
}

/// A value that is to be stored: its key, and its pieces.
pub type NewValue<'a> = (&'a [u8], &'a [&'a [u8]]);

pub struct Store {
    folder: OwnedFd,
    log: Log,
    known: RwLock<Known>,
    writing: Mutex<Option<Writing>>,
}

/// What the log says, and the files that were opened for it.
struct Known {
    index: Index,
    seed: u64,
    segment_bytes: u64,
    files: HashMap<u32, Arc<File>>,
}

impl Follow for Known {
    fn begin(&mut self, seed: u64, segment_bytes: u64) {
        *self = Known { index: Index::new(seed), seed, segment_bytes, files: HashMap::new() };
    }

    fn apply(&mut self, entry: &Entry) {
        if let Entry::Evicted { segment } = entry {
            self.files.remove(segment);
        }
        self.index.apply(entry);
    }
}

/// The segment that this process fills. It holds a lock on the file, which ends with the process.
struct Writing {
    segment: u32,
    file: Arc<File>,
    /// Where the next record goes, in units.
    next: u32,
    /// What lies before is on the disk.
    synced: u32,
}

fn name_of(segment: u32) -> String {
    format!("s-{segment:08x}")
}

fn io_error(error: &std::io::Error, doing: &str) -> Error {
    Errno::from_io_error(error)
        .map_or_else(|| Error::new(ErrorKind::Other, error.to_string()), Error::from)
        .context(doing)
}

impl Store {
    /// The store in a folder, made if it is not there.
    pub fn open(folder: OwnedFd, settings: &Settings, until: &Until) -> Result<Self, Error> {
        let whole = settings.segment_bytes.is_multiple_of(RECORD_ALIGNMENT);
        let units = settings.segment_bytes / RECORD_ALIGNMENT;
        if !whole || !(1..=u64::from(u32::MAX)).contains(&units) {
            let message =
                format!("a segment has a multiple of 64 bytes, up to 256 GiB, not {}", settings.segment_bytes);
            return Err(Error::invalid(message));
        }
        let seed = getrandom::u64().map_err(|error| Error::new(ErrorKind::Other, error.to_string()))?;
        let own = folder.try_clone().map_err(|error| io_error(&error, "the directory of segments"))?;
        let log = Log::open(own, seed, settings.segment_bytes, until)?;
        let known =
            Known { index: Index::new(seed), seed, segment_bytes: settings.segment_bytes, files: HashMap::new() };
        let store = Store { folder, log, known: RwLock::new(known), writing: Mutex::new(None) };
        store.follow()?;
        Ok(store)
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn learning(&self) -> RwLockWriteGuard<'_, Known> {
        self.known.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn writing(&self) -> MutexGuard<'_, Option<Writing>> {
        self.writing.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Learn what other processes did.
    pub fn follow(&self) -> Result<(), Error> {
        self.log.follow(&mut *self.learning())
    }

    fn at(&self, name: &str, flags: OFlags) -> Result<Option<File>, Error> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let mode = if flags.contains(OFlags::CREATE) { Mode::RUSR | Mode::WUSR } else { Mode::empty() };
        match fs::openat2(&self.folder, name, flags | OFlags::CLOEXEC, mode, resolve) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::from(errno).context(name)),
        }
    }

    /// The file of a segment. None: it is gone.
    fn file(&self, segment: u32) -> Result<Option<Arc<File>>, Error> {
        if let Some(file) = self.known().files.get(&segment) {
            return Ok(Some(file.clone()));
        }
        let Some(file) = self.at(&name_of(segment), OFlags::RDWR)? else { return Ok(None) };
        let mut known = self.learning();
        Ok(Some(known.files.entry(segment).or_insert_with(|| Arc::new(file)).clone()))
    }

    /// The lengths of the values that there are.
    pub fn exists(&self, keys: &[&[u8]]) -> Result<Vec<Option<u32>>, Error> {
        self.follow()?;
        let known = self.known();
        Ok(keys.iter().map(|key| known.index.find(key).map(|place| place.len)).collect())
    }

    /// The value of a key, if there is one that is what was put.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.follow()?;
        let mut tried = None;
        loop {
            let place = self.known().index.find(key).filter(|place| tried != Some(*place));
            let Some(place) = place else { return Ok(None) };
            if let Some(value) = self.read(&place, key)? {
                return Ok(Some(value));
            }
            // It may have been evicted since, or lie elsewhere; at the same place it is damaged.
            tried = Some(place);
            self.follow()?;
        }
    }

    fn read(&self, place: &Place, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let Some(file) = self.file(place.segment)? else { return Ok(None) };
        let mut bytes = vec![0; RECORD_HEADER_BYTES + key.len() + place.len as usize];
        match file.read_exact_at(&mut bytes, place.offset()) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(io_error(&error, "reading a segment")),
        }
        let Some(value) = record_value(&bytes, place, key) else { return Ok(None) };
        bytes.truncate(value.end);
        bytes.drain(..value.start);
        Ok(Some(bytes))
    }

    /// Store values: an outcome for each. What is there stays, unless it is to be replaced.
    pub fn put(&self, values: &[NewValue<'_>], replace: bool, until: &Until) -> Result<Vec<Stored>, Error> {
        for (key, _) in values {
            if key.is_empty() || key.len() > MAX_HASH_BYTES {
                return Err(Error::invalid(format!("a key has 1 to {MAX_HASH_BYTES} bytes, this one {}", key.len())));
            }
        }
        self.follow()?;
        let mut writing = self.writing();
        let mut outcomes = vec![Stored::Existed; values.len()];
        let mut written: Vec<(usize, Place)> = Vec::new();
        for (at, (key, pieces)) in values.iter().enumerate() {
            if replace || self.known().index.find(key).is_none() {
                written.push((at, self.write(&mut writing, key, pieces, until)?));
            }
        }
        if written.is_empty() {
            return Ok(outcomes);
        }
        let mut known = self.learning();
        let mut locked = self.log.lock(&mut *known, until)?;
        // Another process may have put some of them meanwhile, and a key may be here twice.
        let mut entries = Vec::with_capacity(written.len());
        let mut here: HashMap<&[u8], ()> = HashMap::new();
        for (at, place) in written {
            let Some((key, _)) = values.get(at) else { continue };
            let first = here.insert(key, ()).is_none();
            if replace || (first && known.index.find(key).is_none()) {
                entries.push(Entry::Put { key: key.to_vec(), place });
                if let Some(outcome) = outcomes.get_mut(at) {
                    *outcome = Stored::New;
                }
            }
        }
        locked.append(&entries, &mut *known)?;
        Ok(outcomes)
    }

    /// Remove values. That there is none is success.
    pub fn delete(&self, keys: &[&[u8]], until: &Until) -> Result<(), Error> {
        let mut known = self.learning();
        let mut locked = self.log.lock(&mut *known, until)?;
        let there = keys.iter().filter(|key| known.index.find(key).is_some());
        let entries: Vec<Entry> = there.map(|key| Entry::Deleted { key: key.to_vec() }).collect();
        locked.append(&entries, &mut *known)
    }

    /// Have these values survive a power loss: each segment in which some lie is synced once, then the log. Answers which are not there.
    /// A sync that fails has all processes take for nothing what may be lost.
    pub fn sync<'k>(&self, keys: &[&'k [u8]], until: &Until) -> Result<Vec<&'k [u8]>, Error> {
        self.follow()?;
        let (mut absent, mut segments) = (Vec::new(), std::collections::BTreeSet::new());
        {
            let known = self.known();
            for key in keys {
                match known.index.find(key) {
                    Some(place) => drop(segments.insert(place.segment)),
                    None => absent.push(*key),
                }
            }
        }
        if !absent.is_empty() {
            return Ok(absent);
        }
        let mut writing = self.writing();
        for segment in segments {
            let end = writing.as_ref().filter(|own| own.segment == segment).map(|own| own.next);
            let synced = match self.file(segment)? {
                Some(file) => file.sync_data().map_err(|error| io_error(&error, "syncing a segment")),
                None => Err(Error::new(ErrorKind::Corrupt, "a segment is gone")),
            };
            match (synced, &mut *writing) {
                (Ok(()), Some(own)) if own.segment == segment => own.synced = end.unwrap_or(own.synced),
                (Ok(()), _) => {}
                (Err(error), own) => {
                    // The kernel tells each failure once: nobody else would learn of it.
                    let from = own.as_ref().filter(|own| own.segment == segment).map_or(0, |own| own.synced);
                    if own.as_ref().is_some_and(|own| own.segment == segment) {
                        *own = None;
                    }
                    let mut known = self.learning();
                    self.log.lock(&mut *known, until)?.append(&[Entry::Bad { segment, from }], &mut *known)?;
                    return Err(error);
                }
            }
        }
        self.log.sync()?;
        Ok(Vec::new())
    }

    /// Write a record into the own segment, or a new one.
    fn write(
        &self,
        writing: &mut Option<Writing>,
        key: &[u8],
        pieces: &[&[u8]],
        until: &Until,
    ) -> Result<Place, Error> {
        let len: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let segment_bytes = self.known().segment_bytes;
        let room = record_room(key.len(), len);
        let (Ok(len), true) = (u32::try_from(len), room <= segment_bytes) else {
            let most = segment_bytes.saturating_sub((RECORD_HEADER_BYTES + MAX_HASH_BYTES) as u64);
            return Err(Error::invalid(format!("a value of {len} bytes is longer than a segment takes: {most}")));
        };
        let fits = |own: &Writing| u64::from(own.next) * RECORD_ALIGNMENT + room <= segment_bytes;
        if !writing.as_ref().is_some_and(fits) {
            *writing = Some(self.take(until)?);
        }
        let Some(own) = writing else { return Err(Error::new(ErrorKind::Other, "no segment")) };
        until.check()?;
        let place = Place { segment: own.segment, unit: own.next, len };
        let head = record_head(own.segment, key, len, pieces.iter().copied());
        write_all(&own.file, place.offset(), std::iter::once(&head[..]).chain(pieces.iter().copied()))?;
        // Also of a record that no log will name: nothing else is written there while somebody may read it.
        own.next += (room / RECORD_ALIGNMENT) as u32;
        Ok(place)
    }

    /// A new segment, allocated, and told to all.
    fn take(&self, until: &Until) -> Result<Writing, Error> {
        let mut known = self.learning();
        let mut locked = self.log.lock(&mut *known, until)?;
        let segment =
            known.index.next_segment().ok_or_else(|| Error::new(ErrorKind::Exhausted, "no number is left"))?;
        let name = name_of(segment);
        // One that somebody made who died before the log said so.
        let _ = fs::unlinkat(&self.folder, &name, fs::AtFlags::empty());
        let file =
            self.at(&name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?.ok_or_else(|| Error::from(Errno::NOENT))?;
        let made = fs::fallocate(&file, FallocateFlags::empty(), 0, known.segment_bytes)
            .and_then(|()| fs::flock(&file, FlockOperation::NonBlockingLockExclusive))
            .and_then(|()| fs::fsync(self.folder.as_fd()));
        if let Err(errno) = made {
            let _ = fs::unlinkat(&self.folder, &name, fs::AtFlags::empty());
            return Err(Error::from(errno).context("allocating a segment"));
        }
        let file = Arc::new(file);
        locked.append(&[Entry::Taken { segment }], &mut *known)?;
        known.files.insert(segment, file.clone());
        Ok(Writing { segment, file, next: 0, synced: 0 })
    }
}

/// Write pieces one behind the other.
fn write_all<'a>(file: &File, mut at: u64, pieces: impl Iterator<Item = &'a [u8]>) -> Result<(), Error> {
    let mut slices: Vec<IoSlice<'_>> = pieces.filter(|piece| !piece.is_empty()).map(IoSlice::new).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let some = rest.len().min(MOST_PIECES);
        let now = rest.get(..some).unwrap_or_default();
        match rustix::io::pwritev(file, now, at) {
            Ok(0) => return Err(Error::new(ErrorKind::Exhausted, "a segment took no more bytes")),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut rest, written);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::from(errno).context("writing a segment")),
        }
    }
    Ok(())
}

/// IOV_MAX of Linux.
const MOST_PIECES: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;

    const SETTINGS: Settings = Settings { segment_bytes: 1 << 20 };

    fn open(folder: &tempfile::TempDir) -> Store {
        let folder = fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        Store::open(folder, &SETTINGS, &until()).unwrap()
    }

    fn until() -> Until {
        Until::new(&Limits::default())
    }

    fn value(n: u32) -> Vec<u8> {
        (0..n % 70_000).map(|at| (at ^ n) as u8).collect()
    }

    #[test]
    fn what_one_stores_all_find_and_nobody_stores_it_twice() {
        let folder = tempfile::tempdir().unwrap();
        let stores = [open(&folder), open(&folder)];
        for n in 0..200_u32 {
            let (key, value) = (n.to_le_bytes(), value(n * 997));
            let (half, rest) = value.split_at(value.len() / 2);
            let put = |store: &Store| store.put(&[(&key, &[half, rest])], false, &until()).unwrap();
            assert_eq!(put(&stores[n as usize % 2]), [Stored::New]);
            assert_eq!(put(&stores[(n as usize + 1) % 2]), [Stored::Existed]);
        }
        let third = open(&folder);
        for store in stores.iter().chain([&third]) {
            for n in 0..200_u32 {
                assert_eq!(store.get(&n.to_le_bytes()).unwrap(), Some(value(n * 997)), "{n}");
            }
            assert_eq!(store.get(b"absent").unwrap(), None);
        }
        assert_eq!(third.exists(&[&7_u32.to_le_bytes(), b"absent"]).unwrap(), [Some(7 * 997), None]);
    }

    #[test]
    fn deletes_and_replacements_are_seen_by_others() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (open(&folder), open(&folder));
        one.put(&[(b"a", &[b"first"]), (b"b", &[b"x"]), (b"a", &[b"again"])], false, &until()).unwrap();
        assert_eq!(other.get(b"a").unwrap().as_deref(), Some(&b"first"[..]));
        other.put(&[(b"a", &[b"second"])], true, &until()).unwrap();
        one.delete(&[b"b", b"absent"], &until()).unwrap();
        assert_eq!(
            (other.exists(&[b"a", b"b"]).unwrap(), one.exists(&[b"a", b"b"]).unwrap()),
            (vec![Some(6), None], vec![Some(6), None])
        );
        assert_eq!(one.get(b"a").unwrap().as_deref(), Some(&b"second"[..]));
        assert_eq!(other.put(&[(b"b", &[b"new"])], false, &until()).unwrap(), [Stored::New]);
        assert_eq!(one.get(b"b").unwrap().as_deref(), Some(&b"new"[..]));
        assert_eq!(one.sync(&[b"a", b"b"], &until()).unwrap(), Vec::<&[u8]>::new());
        assert_eq!(one.sync(&[b"a", b"gone"], &until()).unwrap(), [b"gone"]);
    }

    #[test]
    fn what_is_damaged_or_lost_is_a_miss_and_the_rest_is_served() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder);
        let values: Vec<Vec<u8>> = (0..100).map(|n| value(40_000 + n)).collect();
        for (n, value) in values.iter().enumerate() {
            store.put(&[(&n.to_le_bytes(), &[value])], false, &until()).unwrap();
        }
        drop(store);
        let path = folder.path().join(name_of(2));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.chunks_mut(200_000).for_each(|chunk| chunk[17] ^= 1);
        std::fs::write(&path, bytes).unwrap();
        std::fs::remove_file(folder.path().join(name_of(3))).unwrap();
        let store = open(&folder);
        let mut missed = 0;
        for (n, value) in values.iter().enumerate() {
            match store.get(&n.to_le_bytes()).unwrap() {
                Some(found) => assert!(found == *value, "{n}"),
                None => missed += 1,
            }
        }
        assert!((20..60).contains(&missed), "{missed}");
    }

    #[test]
    fn a_value_that_no_segment_takes_is_refused_and_nothing_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder);
        let long = vec![1; 1 << 20];
        assert_eq!(store.put(&[(b"k", &[&long])], false, &until()).unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(store.put(&[(b"", &[b"x"])], false, &until()).unwrap_err().kind(), ErrorKind::Invalid);
        let most = &long[..(1 << 20) - RECORD_HEADER_BYTES - MAX_HASH_BYTES];
        store.put(&[(&[7; 64], &[most]), (b"empty", &[])], false, &until()).unwrap();
        assert_eq!(store.get(&[7; 64]).unwrap().as_deref(), Some(most));
        assert_eq!(store.get(b"empty").unwrap().as_deref(), Some(&b""[..]));
    }

    #[test]
    fn threads_and_handles_at_once_store_each_value_once() {
        let folder = tempfile::tempdir().unwrap();
        let stores = [open(&folder), open(&folder)];
        let new: usize = std::thread::scope(|scope| {
            let work = |store| {
                scope.spawn(move || {
                    let put =
                        |n: u32| Store::put(store, &[(&n.to_le_bytes(), &[&value(n * 31)])], false, &until()).unwrap();
                    (0..300).filter(|n| put(*n) == [Stored::New]).count()
                })
            };
            let threads: Vec<_> = stores.iter().cycle().take(6).map(work).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(new, 300);
        (0..300_u32).for_each(|n| assert_eq!(stores[0].get(&n.to_le_bytes()).unwrap(), Some(value(n * 31))));
    }
}
