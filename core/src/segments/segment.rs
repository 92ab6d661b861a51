//! The files of segments: how one is filled, and how a record is read.

use std::fs::File;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_platform::files::Memory;
use kv_platform::sync::Mutex;
use rustix::fs::{self, AtFlags, FlockOperation};
use rustix::io::Errno;

use super::folder::{SegmentFolder, io_error};
use super::format::{Checking, Key, LogEntry, Place, RECORD_ALIGNMENT, RECORD_HEADER_BYTES, record_head};
use crate::error::{Error, ErrorKind};
use crate::payload::{Destination, Fill};
use crate::reads::{PROBE_BYTES, fill, read_now, read_pieces};

pub fn name_of(segment: u32) -> String {
    format!("s-{segment:08x}")
}

/// Whether a file still lies under the name of a segment: somebody may have removed it, or have made another one there since.
pub fn has_name(folder: &SegmentFolder, segment: u32, file: &File) -> Result<bool, Errno> {
    let own = fs::fstat(file)?;
    match fs::statat(&folder.root, name_of(segment), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(named) => Ok((named.st_dev, named.st_ino) == (own.st_dev, own.st_ino)),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// The segment that this process fills. It holds a lock on the file, which ends with the last who still writes there.
pub struct Writing {
    pub segment: u32,
    pub file: Arc<File>,
    /// Where the next record goes, in units.
    next: Mutex<u32>,
    /// In which of the logs that this process has followed the segment was seen to be this file's.
    log: AtomicU64,
}

impl Drop for Writing {
    fn drop(&mut self) {
        // Its readers keep the file open.
        let _ = fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Writing {
    /// Of a file whose lock is taken.
    pub fn new(segment: u32, file: Arc<File>, next: u32, log: u64) -> Self {
        Writing { segment, file, next: Mutex::new(next), log: AtomicU64::new(log) }
    }

    /// Whether the segment of that number in the log that is followed now is this file: where somebody has removed the files of a store, numbers
    /// begin anew.
    pub fn is_of(&self, log: u64, folder: &SegmentFolder) -> bool {
        if self.log.load(Relaxed) != log {
            if !has_name(folder, self.segment, &self.file).unwrap_or(false) {
                return false;
            }
            self.log.store(log, Relaxed);
        }
        true
    }
}

/// A place for a record in a segment, which nobody evicts meanwhile.
pub struct Reserved {
    pub writing: Arc<Writing>,
    pub unit: u32,
}

impl Reserved {
    /// None: there is not so much room.
    pub fn take(writing: &Arc<Writing>, room: u64, segment_bytes: u64) -> Option<Self> {
        let mut next = writing.next.lock();
        let unit = *next;
        if (u64::from(unit) * RECORD_ALIGNMENT).checked_add(room)? > segment_bytes {
            return None;
        }
        *next += (room / RECORD_ALIGNMENT) as u32;
        drop(next);
        Some(Reserved { writing: writing.clone(), unit })
    }
}

/// A record that is to be written, or is, and that no log names yet.
pub struct Record<'a> {
    pub key: Key<'a>,
    pieces: &'a [&'a [u8]],
    pub place: Place,
    pub reserved: Reserved,
    head: Vec<u8>,
}

/// What lies between records.
const PADDING: [u8; RECORD_ALIGNMENT as usize] = [0; RECORD_ALIGNMENT as usize];

impl<'a> Record<'a> {
    pub fn new(key: Key<'a>, pieces: &'a [&'a [u8]], len: u32, reserved: Reserved) -> Self {
        let place = Place { segment: reserved.writing.segment, unit: reserved.unit, len };
        let head = record_head(place.segment, key, len, pieces.iter().copied());
        Record { key, pieces, place, reserved, head }
    }

    fn bytes(&self) -> u64 {
        self.head.len() as u64 + u64::from(self.place.len)
    }

    pub fn end(&self) -> u64 {
        self.place.offset() + self.bytes().next_multiple_of(RECORD_ALIGNMENT)
    }

    pub fn slices(&self) -> impl Iterator<Item = IoSlice<'_>> {
        let padding = self.bytes().next_multiple_of(RECORD_ALIGNMENT) - self.bytes();
        let padding = PADDING.get(..padding as usize).unwrap_or_default();
        let pieces = std::iter::once(&self.head[..]).chain(self.pieces.iter().copied()).chain([padding]);
        pieces.filter(|piece| !piece.is_empty()).map(IoSlice::new)
    }

    pub fn entry(&self) -> LogEntry {
        LogEntry::Put { space: self.key.space, key: self.key.bytes.to_vec(), place: self.place }
    }
}

/// IOV_MAX of Linux.
const MOST_PIECES: usize = 1024;

/// Write pieces one behind the other.
pub fn write_all(
    folder: &SegmentFolder,
    file: &File,
    mut at: u64,
    mut slices: &mut [IoSlice<'_>],
) -> Result<(), Error> {
    while !slices.is_empty() {
        let some = slices.len().min(MOST_PIECES);
        let now = slices.get(..some).unwrap_or_default();
        match folder.writing(|| Ok(rustix::io::pwritev(file, now, at)?)) {
            Ok(0) => return Err(Error::new(ErrorKind::Exhausted, "a segment took no more bytes")),
            Ok(written) => {
                at += written as u64;
                IoSlice::advance_slices(&mut slices, written);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io_error(&error, "writing a segment")),
        }
    }
    Ok(())
}

/// A record on its way into memory: its header and key, and its value where it belongs.
pub struct RecordFilling {
    head: Vec<u8>,
    head_filled: usize,
    pub destination: Destination,
    left: u64,
    checking: Checking,
}

impl RecordFilling {
    pub fn new(place: &Place, key: Key<'_>, mut destination: Destination) -> Self {
        let head = vec![0; head_bytes(key.bytes.len())];
        let left = head.len() as u64 + destination.left();
        RecordFilling { head, head_filled: 0, destination, left, checking: Checking::new(place, key) }
    }

    /// Whether all of it is there, and is what was put under this key.
    pub fn holds(&self, key: Key<'_>) -> bool {
        self.left == 0 && self.checking.holds(&self.head, key)
    }

    /// Bytes that are still to come.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Copy bytes behind those that are there, and check them meanwhile.
    pub fn push(&mut self, bytes: &[u8]) {
        let of_head = bytes.len().min(self.head.len() - self.head_filled);
        let (first, behind) = bytes.split_at_checked(of_head).unwrap_or((bytes, &[]));
        let end = self.head_filled + of_head;
        if let Some(room) = self.head.get_mut(self.head_filled..end) {
            room.copy_from_slice(first);
        }
        self.head_filled = end;
        self.destination.push(behind);
        self.checking.see(self.destination.filled().pieces());
        self.left = self.left.saturating_sub(bytes.len() as u64);
    }

    /// Read what lies in memory: how many bytes, and why not more. `AGAIN`: the rest must be waited for. `probe`: its first bytes are asked
    /// for before the others.
    pub fn read_now(&mut self, file: &File, at: u64, memory: Memory, probe: bool) -> (u64, Result<(), Errno>) {
        let most = if probe && memory == Memory::Some { PROBE_BYTES } else { usize::MAX };
        // SAFETY: the pieces are memory that is borrowed mutably and may hold anything.
        fill(self, at, most, |pieces, at| match unsafe { read_now(memory, file, pieces, at) } {
            Err(Errno::OPNOTSUPP) => Err(Errno::AGAIN),
            read => read,
        })
    }

    /// Read all of it, and wait for what does not lie in memory. False: the file ends before.
    pub fn read_all(&mut self, file: &File, at: u64) -> Result<bool, Error> {
        #[cfg(test)]
        super::io::faults::before_read(at);
        // SAFETY: the pieces are memory that is borrowed mutably and may hold anything.
        let (_, read) = fill(self, at, usize::MAX, |pieces, at| unsafe { read_pieces(file, pieces, at) });
        read.map_err(|errno| Error::from(errno).context("reading a segment"))?;
        Ok(self.left == 0)
    }
}

impl Fill for RecordFilling {
    fn rest_in_pieces(&mut self, pieces: &mut [libc::iovec]) -> usize {
        let rest = self.head.get_mut(self.head_filled..).filter(|rest| !rest.is_empty());
        let of_head = rest.map(|rest| libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() });
        match (of_head, &mut *pieces) {
            (None, pieces) => self.destination.rest_in_pieces(pieces),
            (Some(_), []) => 0,
            (Some(of_head), [first, behind @ ..]) => {
                *first = of_head;
                1 + self.destination.rest_in_pieces(behind)
            }
        }
    }

    unsafe fn advance(&mut self, count: usize) {
        let of_head = count.min(self.head.len() - self.head_filled);
        self.head_filled += of_head;
        self.left = self.left.saturating_sub(count as u64);
        // SAFETY: by this function's own condition.
        unsafe { self.destination.advance(count - of_head) };
        self.checking.see(self.destination.filled().pieces());
    }
}

/// Bytes from a record's beginning to its value's.
pub fn head_bytes(key_len: usize) -> usize {
    RECORD_HEADER_BYTES + key_len
}
