//! Reading the frames of the index log, while others may append to it.

use std::fs::File;

use super::folder::io_error;
use super::format::{Behind, FRAME_HEADER_BYTES, Framed, LogEntry, MAX_FRAME_BYTES, framed};
use super::io::read_at;
use super::log::foreign;
use crate::error::Error;

/// What is read at first, and at once where that holds no whole frame.
pub const READ_FIRST: usize = 64 << 10;

/// Bytes of a file from a place on, as many as there are.
pub fn read_some<'a>(file: &File, at: u64, bytes: &'a mut [u8]) -> Result<&'a [u8], Error> {
    let mut len = 0;
    while let Some(room) = bytes.get_mut(len..).filter(|room| !room.is_empty()) {
        match read_at(file, room, at + len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) => return Err(io_error(&error, "the index log")),
        }
    }
    Ok(bytes.get(..len).unwrap_or_default())
}

/// A frame that was read, and is not known to be one of the log yet.
struct ReadFrame<'a> {
    bytes: &'a [u8],
    entries: Vec<LogEntry>,
    next: Behind,
}

impl ReadFrame<'_> {
    /// Whether it lies there. What a write has left that failed is written over, while others read without a lock: its beginning, and behind that
    /// the same bytes as it has in the frame that comes in its place, look like the frame that failed.
    fn lies_there(&self, file: &File, at: u64) -> Result<bool, Error> {
        let mut again = vec![0; self.bytes.len()];
        Ok(read_some(file, at, &mut again)? == self.bytes)
    }
}

/// Hand on the entries of all whole frames from a place on. An error of `each` comes after what it was handed has counted.
pub fn read_frames(
    file: &File,
    to: &mut u64,
    behind: &mut Behind,
    each: &mut dyn FnMut(Vec<LogEntry>) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut bytes = vec![0; READ_FIRST];
    loop {
        let mut rest = read_some(file, *to, &mut bytes)?;
        let (before, all_read) = (*to, rest.len() < READ_FIRST);
        let mut last: Option<ReadFrame<'_>> = None;
        loop {
            let found = framed(rest, last.as_ref().map_or(*behind, |last| last.next));
            if let Some(last) = last.take() {
                // Nobody writes over a frame behind which another one lies.
                if !matches!(found, Framed::Entries(..)) && !last.lies_there(file, *to)? {
                    return Ok(());
                }
                *behind = last.next;
                *to += last.bytes.len() as u64;
                each(last.entries)?;
            }
            match found {
                Framed::Entries(entries, taken, next) => {
                    let (bytes, later) = rest.split_at_checked(taken).unwrap_or((rest, &[]));
                    last = Some(ReadFrame { bytes, entries, next });
                    rest = later;
                }
                Framed::Foreign => return Err(foreign()),
                Framed::Nothing => break,
            }
        }
        let longer = FRAME_HEADER_BYTES + MAX_FRAME_BYTES;
        if *to == before && (all_read || bytes.len() == longer) {
            return Ok(());
        }
        bytes.resize(longer, 0);
    }
}
