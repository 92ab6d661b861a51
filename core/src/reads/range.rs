//! One read of a file: around the page cache where that is wanted and the file system lets it, and through it otherwise.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use kv_platform::files::{self, AROUND_CACHE_ALIGNMENT, Memory};
use rustix::io::Errno;

use super::buffers::{Buffers, ReadBuffer};
use crate::config::Direct;
use crate::error::Error;
use crate::log::{self, Level};
use crate::payload::Fill;

/// Values of which it is known that they were read around the page cache.
const SEEN: usize = 1 << 12;

/// What is asked for to see whether a value lies in the page cache.
pub const PROBE_BYTES: usize = 4096;

/// Cut memory to its first bytes: how many pieces of it are left.
pub(super) fn cut(pieces: &mut [libc::iovec], mut most: usize) -> usize {
    let fits = |piece: &mut libc::iovec| {
        piece.iov_len = piece.iov_len.min(most);
        most -= piece.iov_len;
        piece.iov_len > 0
    };
    pieces.iter_mut().map(fits).take_while(|fits| *fits).count()
}

/// Pieces of memory that one read fills.
const PIECES: usize = 64;

/// Read from a place until all is filled, or the file ends: how many bytes, and why not more. `most`: what is asked for at first.
pub fn fill(
    memory: &mut impl Fill,
    at: u64,
    mut most: usize,
    read: impl Fn(&[libc::iovec], u64) -> Result<usize, Errno>,
) -> (u64, Result<(), Errno>) {
    let mut filled = 0;
    loop {
        let mut pieces = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES];
        let count = memory.rest_in_pieces(&mut pieces);
        let count = cut(pieces.get_mut(..count).unwrap_or_default(), std::mem::replace(&mut most, usize::MAX));
        if count == 0 {
            return (filled, Ok(()));
        }
        match read(pieces.get(..count).unwrap_or_default(), at + filled) {
            Ok(0) => return (filled, Ok(())),
            Ok(count) => {
                // SAFETY: so many bytes were read.
                unsafe { memory.advance(count) };
                filled += count as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return (filled, Err(errno)),
        }
    }
}

/// Read what lies in memory, as it is known of the file system. `AGAIN`: it has to be waited for. `OPNOTSUPP`: that cannot be told after all.
///
/// # Safety
/// The pieces are valid for writes, and nobody else uses them.
pub unsafe fn read_now(known: Memory, file: impl AsFd, pieces: &[libc::iovec], at: u64) -> Result<usize, Errno> {
    match known {
        Memory::Unknown => Err(Errno::AGAIN),
        // SAFETY: by this function's own condition.
        Memory::All => unsafe { read_pieces(file, pieces, at) },
        // SAFETY: as above.
        Memory::Some => unsafe { files::read_cached(file, pieces, at) },
    }
}

/// # Safety
/// The pieces are valid for writes, and nobody else uses them.
pub unsafe fn read_pieces(file: impl AsFd, pieces: &[libc::iovec], at: u64) -> Result<usize, Errno> {
    // SAFETY: by this function's own condition.
    unsafe { files::read(file, pieces, at) }
}

/// What reads around the page cache for one directory.
pub struct Around {
    direct: Direct,
    /// What the directory is called, for the log.
    label: String,
    /// The file system does not let it.
    refused: AtomicBool,
    seen: Box<[AtomicU64]>,
}

impl Around {
    pub fn new(direct: Direct, label: impl fmt::Display) -> Self {
        let seen = if direct == Direct::Auto { SEEN } else { 0 };
        let seen = std::iter::repeat_with(|| AtomicU64::new(0)).take(seen).collect();
        Around { direct, label: label.to_string(), refused: AtomicBool::new(false), seen }
    }

    /// The same by another setting.
    #[must_use]
    pub fn with(&self, direct: Direct) -> Self {
        Around::new(direct, &self.label)
    }

    /// Whether a value of so many bytes may be read around the cache if it does not lie there. To be told that, only its first bytes are
    /// asked for ([`PROBE_BYTES`]): the kernel begins to read all that it is asked for, though nobody waits.
    pub fn may_want(&self, len: u64) -> bool {
        len >= crate::limits::DIRECT_BYTES && self.direct != Direct::Off && !self.refused.load(Relaxed)
    }

    /// Whether a value of so many bytes is to be read around the cache. `which`: a number that tells it from others.
    pub fn wants(&self, len: u64, which: u64) -> bool {
        if !self.may_want(len) || self.direct == Direct::On {
            return self.may_want(len);
        }
        let mixed = which.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let place = self.seen.get((mixed >> 32) as usize % SEEN);
        place.is_some_and(|place| place.swap(mixed, Relaxed) != mixed)
    }

    /// Have reads through this descriptor go around the cache.
    pub fn turn(&self, file: impl AsFd) -> bool {
        files::go_around_cache(file, true).inspect_err(|errno| self.refuse(*errno)).is_ok()
    }

    fn refuse(&self, errno: Errno) {
        // Said once for each directory.
        if !self.refused.swap(true, Relaxed) {
            log::line(
                Level::Info,
                format_args!(
                    "{}: its file system does not read around the page cache ({errno}): values are read through it",
                    self.label
                ),
            );
        }
    }
}

impl fmt::Debug for Around {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Around").field("direct", &self.direct).finish_non_exhaustive()
    }
}

/// Bytes of a file that are to be read.
pub struct Range {
    pub file: Arc<dyn AsFd + Send + Sync>,
    pub at: u64,
    pub len: usize,
    /// Reads through the descriptor go around the cache.
    pub around: Option<Arc<Around>>,
}

impl Range {
    /// Read it, as far as the file goes.
    pub fn read(&self, buffers: &Buffers) -> Result<Read, Error> {
        if let Some(around) = &self.around {
            match self.read_around(buffers) {
                // Some file systems let a file be opened so, and then refuse to read it.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                    around.refuse(Errno::INVAL);
                    let _ = files::go_around_cache(&*self.file, false);
                }
                read => return Ok(read?),
            }
        }
        let mut buffer = buffers.take(self.len)?;
        let end = read_all(&*self.file, &mut buffer, self.at, self.len, 1)?;
        Ok(Read { buffer, begin: 0, end })
    }

    fn read_around(&self, buffers: &Buffers) -> Result<Read, Errno> {
        const ALIGNMENT: u64 = AROUND_CACHE_ALIGNMENT as u64;
        let from = self.at / ALIGNMENT * ALIGNMENT;
        let begin = (self.at - from) as usize;
        let wanted = (begin + self.len).next_multiple_of(AROUND_CACHE_ALIGNMENT);
        let mut buffer = buffers.take(wanted).map_err(|_| Errno::NOMEM)?;
        let read = read_all(&*self.file, &mut buffer, from, wanted, AROUND_CACHE_ALIGNMENT)?;
        let end = read.min(begin + self.len);
        Ok(Read { buffer, begin: begin.min(end), end })
    }
}

/// Read so many bytes, or up to the end of the file: how many there are. What is read by steps of several bytes ends where one is not whole.
fn read_all(file: &dyn AsFd, buffer: &mut ReadBuffer, at: u64, len: usize, step: usize) -> Result<usize, Errno> {
    let (file, (data, room)) = (file.as_fd(), buffer.room());
    let len = len.min(room);
    let mut filled = 0;
    while filled < len {
        // SAFETY: so many bytes of the buffer are left.
        let rest = libc::iovec { iov_base: unsafe { data.add(filled) }.cast(), iov_len: len - filled };
        // SAFETY: as above, and nobody else has it.
        match unsafe { files::read(file, &[rest], at + filled as u64) } {
            Ok(0) => break,
            Ok(read) => {
                filled += read;
                if !read.is_multiple_of(step) {
                    break;
                }
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

/// Bytes that were read.
pub struct Read {
    buffer: ReadBuffer,
    begin: usize,
    /// All bytes before it are initialised.
    end: usize,
}

impl Read {
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes were read.
        unsafe { self.buffer.bytes(self.begin, self.end) }
    }
}
