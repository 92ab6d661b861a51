//! The files of segments: how one is filled, and how a record is read.

use std::fs::File;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use rustix::fs::{self, FlockOperation};
use rustix::io::Errno;

use super::folder::{Folder, io_error};
use super::format::{Entry, Key, Place, RECORD_ALIGNMENT, RECORD_HEADER_BYTES, record_head};
use crate::error::{Error, ErrorKind};
use crate::payload::Destination;

pub fn name_of(segment: u32) -> String {
    format!("s-{segment:08x}")
}

/// The segment that this process fills. It holds a lock on the file, which ends with the last who still writes there.
pub struct Writing {
    pub segment: u32,
    pub file: Arc<File>,
    /// Where the next record goes, in units.
    next: Mutex<u32>,
}

impl Drop for Writing {
    fn drop(&mut self) {
        // Its readers keep the file open.
        let _ = fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Writing {
    /// Of a file whose lock is taken.
    pub fn new(segment: u32, file: Arc<File>, next: u32) -> Self {
        Writing { segment, file, next: Mutex::new(next) }
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
        let mut next = writing.next.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
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

    pub fn entry(&self) -> Entry {
        Entry::Put { space: self.key.space, key: self.key.bytes.to_vec(), place: self.place }
    }
}

/// IOV_MAX of Linux.
const MOST_PIECES: usize = 1024;

/// Write pieces one behind the other.
pub fn write_all(folder: &Folder, file: &File, mut at: u64, mut slices: &mut [IoSlice<'_>]) -> Result<(), Error> {
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

/// Pieces of memory that one read fills.
const PIECES: usize = 64;

/// Read the header and key of a record, and its value where it belongs, in one call of the kernel where it gives all at once. False: the
/// file ends before.
pub fn read_record(file: &File, mut at: u64, mut head: &mut [u8], value: &mut Destination) -> Result<bool, Error> {
    loop {
        let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
        let [first, rest @ ..] = &mut pieces;
        *first = libc::iovec { iov_base: head.as_mut_ptr().cast(), iov_len: head.len() };
        let count = 1 + value.rest_in_pieces(rest);
        if head.is_empty() && count == 1 {
            return Ok(true);
        }
        let place = libc::off_t::try_from(at).map_err(|_| Error::from(Errno::INVAL))?;
        // SAFETY: the first piece is `head`, and the others are memory that is borrowed mutably and may hold anything.
        let read = unsafe { libc::preadv(file.as_raw_fd(), pieces.as_ptr(), count as libc::c_int, place) };
        let Ok(read) = usize::try_from(read) else {
            match std::io::Error::last_os_error() {
                error if error.kind() == std::io::ErrorKind::Interrupted => continue,
                error => return Err(io_error(&error, "reading a segment")),
            }
        };
        if read == 0 {
            return Ok(false);
        }
        at += read as u64;
        let of_head = read.min(head.len());
        head = head.get_mut(of_head..).unwrap_or_default();
        // SAFETY: what lies behind the head is filled in order, and so many bytes of it were.
        unsafe { value.advance(read - of_head) };
    }
}

/// Bytes from a record's beginning to its value's.
pub fn head_bytes(key_len: usize) -> usize {
    RECORD_HEADER_BYTES + key_len
}
