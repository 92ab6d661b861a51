//! The store: values go into segments, and are there when the log says so.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kv_platform::files;
use rustix::fs::{self, FlockOperation, OFlags};
use rustix::io::Errno;

use super::folder::{Folder, io_error};
use super::format::{Entry, Place, RECORD_ALIGNMENT, RECORD_HEADER_BYTES, record_head, record_room, record_value};
use super::index::Index;
use super::log::{Follow, Locked, Log};
use crate::error::{Error, ErrorKind};
use crate::limits::MAX_HASH_BYTES;
use crate::until::Until;

/// What a store is made with; one that is there keeps its length of segments.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes of a segment, a multiple of 64.
    pub segment_bytes: u64,
    /// The most segments, two or more. What was used least is evicted, a segment at a time.
    pub segments: usize,
}

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// It was stored.
    New,
    /// There is a value under its key, which stays.
    Existed,
}

/// A value that is to be stored: its key, and its pieces.
pub type NewValue<'a> = (&'a [u8], &'a [&'a [u8]]);

/// A store in a folder, for all threads of a process.
pub struct Store {
    folder: Arc<Folder>,
    log: Log,
    /// The most segments.
    most: usize,
    known: RwLock<Known>,
    writing: Mutex<Option<Writing>>,
}

/// What the log says, and the files that were opened for it.
struct Known {
    index: Index,
    seed: u64,
    segment_bytes: u64,
    files: HashMap<u32, Arc<Opened>>,
}

/// The file of a segment.
struct Opened {
    file: File,
    /// How often values were read there, by halves that fade.
    used: AtomicU64,
}

impl Opened {
    fn new(file: File) -> Arc<Self> {
        Arc::new(Opened { file, used: AtomicU64::new(0) })
    }
}

impl Known {
    fn new(seed: u64, segment_bytes: u64) -> Self {
        Known { index: Index::new(seed), seed, segment_bytes, files: HashMap::new() }
    }
}

impl Follow for Known {
    fn begin(&mut self, seed: u64, segment_bytes: u64) {
        *self = Known::new(seed, segment_bytes);
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
    opened: Arc<Opened>,
    /// Where the next record goes, in units.
    next: u32,
    /// What lies before is on the disk.
    synced: u32,
}

impl Drop for Writing {
    fn drop(&mut self) {
        // Its readers keep the file open.
        let _ = fs::flock(&self.opened.file, FlockOperation::Unlock);
    }
}

fn name_of(segment: u32) -> String {
    format!("s-{segment:08x}")
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
        let folder = Arc::new(Folder(folder));
        let store = Store {
            log: Log::open(folder.clone(), seed, settings.segment_bytes, until)?,
            folder,
            most: settings.segments.max(2),
            known: RwLock::new(Known::new(seed, settings.segment_bytes)),
            writing: Mutex::new(None),
        };
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

    /// The file of a segment. None: it is gone.
    fn file(&self, segment: u32) -> Result<Option<Arc<Opened>>, Error> {
        if let Some(opened) = self.known().files.get(&segment) {
            return Ok(Some(opened.clone()));
        }
        let Some(file) = self.folder.at(&name_of(segment), OFlags::RDWR)? else { return Ok(None) };
        Ok(Some(self.learning().files.entry(segment).or_insert_with(|| Opened::new(file)).clone()))
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
        let Some(opened) = self.file(place.segment)? else { return Ok(None) };
        let mut bytes = vec![0; RECORD_HEADER_BYTES + key.len() + place.len as usize];
        match opened.file.read_exact_at(&mut bytes, place.offset()) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(io_error(&error, "reading a segment")),
        }
        let Some(value) = record_value(&bytes, place, key) else { return Ok(None) };
        opened.used.fetch_add(1, Relaxed);
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
        // Filled on the way. Until the log names what lies there, nobody is to evict them.
        let mut filled: Vec<Writing> = Vec::new();
        for (at, (key, pieces)) in values.iter().enumerate() {
            if replace || self.known().index.find(key).is_none() {
                written.push((at, self.write(&mut writing, &mut filled, key, pieces, until)?));
            }
        }
        if written.is_empty() {
            return Ok(outcomes);
        }
        let mut known = self.learning();
        let mut locked = self.log.lock(&mut *known, until)?;
        // Another process may have put some of them meanwhile, and a key may be here twice.
        let mut entries = Vec::with_capacity(written.len());
        let mut here: HashSet<&[u8]> = HashSet::new();
        for (at, place) in written {
            let Some((key, _)) = values.get(at) else { continue };
            let first = here.insert(key);
            if replace || (first && known.index.find(key).is_none()) {
                entries.push(Entry::Put { key: key.to_vec(), place });
                if let Some(outcome) = outcomes.get_mut(at) {
                    *outcome = Stored::New;
                }
            }
        }
        locked.append(&entries, &mut *known)?;
        drop(filled);
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
        let (mut absent, mut segments) = (Vec::new(), BTreeSet::new());
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
            let synced = match self.file(segment)? {
                Some(opened) => opened.file.sync_data().map_err(|error| io_error(&error, "syncing a segment")),
                None => Err(Error::new(ErrorKind::Corrupt, "a segment is gone")),
            };
            let own = writing.as_mut().filter(|own| own.segment == segment);
            let Err(error) = synced else {
                own.into_iter().for_each(|own| own.synced = own.next);
                continue;
            };
            // The kernel tells each failure once: nobody else would learn of it.
            let from = own.map_or(0, |own| own.synced);
            *writing = writing.take().filter(|own| own.segment != segment);
            let mut known = self.learning();
            self.log.lock(&mut *known, until)?.append(&[Entry::Bad { segment, from }], &mut *known)?;
            return Err(error);
        }
        self.log.sync()?;
        Ok(Vec::new())
    }

    /// Write a record into the own segment, or a new one.
    fn write(
        &self,
        writing: &mut Option<Writing>,
        filled: &mut Vec<Writing>,
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
            filled.extend(writing.take());
            *writing = Some(self.take(until)?);
        }
        let Some(own) = writing else { return Err(Error::new(ErrorKind::Other, "no segment")) };
        until.check()?;
        let place = Place { segment: own.segment, unit: own.next, len };
        let head = record_head(own.segment, key, len, pieces.iter().copied());
        write_all(&own.opened.file, place.offset(), std::iter::once(&head[..]).chain(pieces.iter().copied()))?;
        // Also of a record that no log will name: nothing else is written there while somebody may read it.
        own.next += (room / RECORD_ALIGNMENT) as u32;
        Ok(place)
    }

    /// A segment to fill, told to all: one whose writer is gone, a new one, or the place of one that is evicted.
    fn take(&self, until: &Until) -> Result<Writing, Error> {
        let mut known = self.learning();
        let mut locked = self.log.lock(&mut *known, until)?;
        let enough = known.segment_bytes / RECORD_ALIGNMENT / 4;
        let left: Vec<(u32, u32)> = known
            .index
            .segments()
            .filter(|(_, segment)| segment.bad_from.is_none())
            .filter(|(_, segment)| u64::from(segment.end) + enough <= known.segment_bytes / RECORD_ALIGNMENT)
            .map(|(number, segment)| (number, segment.end))
            .collect();
        for (segment, end) in left {
            // What its writer wrote and the log does not name is nobody's.
            if let Some(file) = self.free(segment)? {
                let used = known.files.get(&segment).map_or(0, |former| former.used.load(Relaxed));
                let opened = Arc::new(Opened { file, used: AtomicU64::new(used) });
                known.files.insert(segment, opened.clone());
                // Whether its writer had it synced is not known.
                return Ok(Writing { segment, opened, next: end, synced: 0 });
            }
        }
        let segment =
            known.index.next_segment().ok_or_else(|| Error::new(ErrorKind::Exhausted, "no number is left"))?;
        let name = name_of(segment);
        // One that somebody made who died before the log said so.
        let _ = fs::unlinkat(&self.folder.0, &name, fs::AtFlags::empty());
        let opened = Opened::new(match known.index.segments().count() < self.most {
            true => self.allocate(&name, known.segment_bytes)?,
            false => self.evict(&mut locked, &mut known, &name)?,
        });
        locked.append(&[Entry::Taken { segment }], &mut *known)?;
        known.files.insert(segment, opened.clone());
        Ok(Writing { segment, opened, next: 0, synced: 0 })
    }

    /// The file of a segment that nobody fills, with the lock of who does.
    fn free(&self, segment: u32) -> Result<Option<File>, Error> {
        let Some(file) = self.folder.at(&name_of(segment), OFlags::RDWR)? else { return Ok(None) };
        match fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(Error::from(errno).context("locking a segment")),
        }
    }

    fn allocate(&self, name: &str, bytes: u64) -> Result<File, Error> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = self.folder.at(name, flags)?.ok_or_else(|| Error::from(Errno::NOENT))?;
        let made = files::allocate(&file, bytes)
            .and_then(|()| fs::flock(&file, FlockOperation::NonBlockingLockExclusive))
            .and_then(|()| self.folder.sync());
        if let Err(errno) = made {
            let _ = fs::unlinkat(&self.folder.0, name, fs::AtFlags::empty());
            return Err(Error::from(errno).context("allocating a segment"));
        }
        Ok(file)
    }

    /// Evict the segment whose values were used least, of those that nobody fills, and have its file under a new name.
    fn evict(&self, locked: &mut Locked<'_>, known: &mut Known, name: &str) -> Result<File, Error> {
        let mut order: Vec<(u64, u32)> = known
            .index
            .segments()
            .map(|(number, _)| (known.files.get(&number).map_or(0, |opened| opened.used.load(Relaxed)), number))
            .collect();
        order.sort_unstable();
        for (_, victim) in order {
            let file = match self.free(victim)? {
                Some(file) => Some(file),
                // Its file is lost: so is what lay there.
                None if self.folder.at(&name_of(victim), OFlags::RDONLY)?.is_none() => None,
                None => continue,
            };
            known.files.values().for_each(|opened| opened.used.store(opened.used.load(Relaxed) / 2, Relaxed));
            locked.append(&[Entry::Evicted { segment: victim }], known)?;
            let Some(file) = file else { return self.allocate(name, known.segment_bytes) };
            // Whoever still reads there finds another number, and looks at the log again.
            self.folder
                .rename(&name_of(victim), name)
                .map_err(|errno| Error::from(errno).context("using a segment again"))?;
            return Ok(file);
        }
        let message = format!("all {} segments are being filled by others: allow more bytes", self.most);
        Err(Error::new(ErrorKind::Exhausted, message))
    }

    /// Write the log anew where most of it says nothing any more. Answers whether it did.
    pub fn compact(&self, until: &Until) -> Result<bool, Error> {
        let mut known = self.learning();
        let mut locked = self.log.lock(&mut *known, until)?;
        let needed = (known.index.len() as u64 + known.index.segments().count() as u64) * ENTRY_BYTES;
        if locked.len() < 2 * needed + LEAST_LOG {
            return Ok(false);
        }
        let (seed, segment_bytes) = (known.seed, known.segment_bytes);
        locked.compact(seed, segment_bytes, &known.index.latest(), |entry| known.index.is_live(entry))?;
        locked.follow(&mut *known)?;
        Ok(true)
    }
}

/// What an entry takes at most, and a log that is not worth being written anew.
const ENTRY_BYTES: u64 = 14 + MAX_HASH_BYTES as u64;
const LEAST_LOG: u64 = 64 << 10;

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
#[path = "store_tests.rs"]
mod tests;
