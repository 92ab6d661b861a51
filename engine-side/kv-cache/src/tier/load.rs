//! How a row comes out of a tier: into the caller's buffer, or as a view. Never a byte that was not checked.

use std::fs::File;
use std::io;
use std::mem::MaybeUninit;

use kv_platform::memory::fault_in;
use memmap2::Mmap;

use super::directory::{Directory, Found, Unread, read_full, row_name};
use super::entry::{Body, Row};
use crate::limits::BLOCK_BYTES;
use crate::payload::Memory;
use crate::row::{Crc, Flaw, metadata_sum};

/// The bytes of a row, as long as this lives.
pub(crate) enum Bytes {
    Memory(Memory),
    Mapped { map: Mmap, payload_offset: usize },
    Read(Vec<u8>),
}

impl Bytes {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Memory(bytes) => bytes,
            Bytes::Mapped { map, payload_offset } => map.get(*payload_offset..).unwrap_or_default(),
            Bytes::Read(bytes) => bytes,
        }
    }
}

/// Where a row's file is expected to be as it was indexed.
struct Expected {
    payload_offset: u64,
    payload_crc32c: u32,
    metadata_crc32c: u32,
}

impl Expected {
    fn of(row: &Row) -> Option<Expected> {
        match row.body {
            Body::File { payload_offset, payload_crc32c, metadata_crc32c } => {
                Some(Expected { payload_offset, payload_crc32c, metadata_crc32c })
            }
            Body::Memory(_) => None,
        }
    }
}

const METADATA_CHANGED: Flaw = Flaw::Corrupt("what is before its payload is not as it was");
const PAYLOAD_CHANGED: Flaw = Flaw::Corrupt("its payload does not have its checksum");

impl Directory {
    /// Read a row into a buffer of exactly its payload's size.
    ///
    /// Each block is checked right after it was read, while it is in the second-level cache: the check costs a fraction of
    /// what another pass over memory would. When this fails the buffer has anything in it.
    pub fn read_row<'a>(&self, row: &Row, buffer: &'a mut [MaybeUninit<u8>]) -> Result<&'a mut [u8], Unread> {
        let Some(expected) = Expected::of(row) else { return Err(Flaw::Foreign.into()) };
        let file = self.open_row(row, &expected)?;
        let mut crc = Crc::new();
        let mut at = expected.payload_offset;
        for block in buffer.chunks_mut(BLOCK_BYTES) {
            let block = read_uninit(&file, block, at)?;
            crc.update(block);
            at += block.len() as u64;
        }
        if crc.value() != expected.payload_crc32c {
            return Err(PAYLOAD_CHANGED.into());
        }
        // SAFETY: each of its blocks was written.
        Ok(unsafe { buffer.assume_init_mut() })
    }

    /// Read a row's payload to its end, and check it.
    pub fn check_payload(&self, found: &Found) -> Result<(), Unread> {
        let head = &found.metadata.head;
        check_payload(&found.file, head.payload_offset, head.payload_bytes, head.payload_crc32c)
    }

    /// Read the file of a row to its end, and check it against what was indexed.
    pub fn check_row(&self, row: &Row) -> Result<(), Unread> {
        let Some(expected) = Expected::of(row) else { return Err(Flaw::Foreign.into()) };
        let file = self.open_row(row, &expected)?;
        check_payload(&file, expected.payload_offset, row.payload_bytes, expected.payload_crc32c)
    }

    fn copy_row(&self, row: &Row) -> Result<Bytes, Unread> {
        let mut bytes = with_room(row.payload_bytes as usize)?;
        let read = {
            let room = bytes.spare_capacity_mut().get_mut(..row.payload_bytes as usize).unwrap_or_default();
            self.read_row(row, room)?.len()
        };
        // SAFETY: they were read there.
        unsafe { bytes.set_len(read) };
        Ok(Bytes::Read(bytes))
    }

    /// A view of a row: mapped where the directory is ours and the kernel can say whether all of it can be read, else a copy.
    pub fn view_row(&self, row: &Row) -> Result<Bytes, Unread> {
        if !self.is_ours() {
            return self.copy_row(row);
        }
        let Some(expected) = Expected::of(row) else { return Err(Flaw::Foreign.into()) };
        let file = self.open_row(row, &expected)?;
        // SAFETY: the directory's lock is held, so no other cache changes its files, and this one never changes a file that
        // has its final name; unlinking leaves the pages. Other software of the format rewrites the hit count and the time of
        // the last use in place, so what is before the payload is never looked at through the map. (Who writes to payloads
        // past the lock breaks the promise that is asked of them in `docs/cache.md`.)
        let map = unsafe { Mmap::map(&file) }?;
        if !fault_in(&map)? {
            return self.copy_row(row);
        }
        let payload_offset = expected.payload_offset as usize;
        let payload = map.get(payload_offset..).ok_or(Flaw::Truncated)?;
        if Crc::of(payload) != expected.payload_crc32c {
            return Err(PAYLOAD_CHANGED.into());
        }
        Ok(Bytes::Mapped { map, payload_offset })
    }

    /// The row's file, if it has the length that it should have, and what is before the payload is as it was indexed.
    fn open_row(&self, row: &Row, expected: &Expected) -> Result<File, Unread> {
        let file = self.open_file(&row_name(&row.key))?;
        let metadata = file.metadata()?;
        let length = expected.payload_offset + row.payload_bytes;
        if !metadata.is_file() {
            return Err(Flaw::Foreign.into());
        }
        match metadata.len() {
            actual if actual < length => return Err(Flaw::Truncated.into()),
            actual if actual > length => return Err(Flaw::Corrupt("it is longer than the row").into()),
            _ => {}
        }
        let mut before = vec![0; expected.payload_offset as usize];
        read_full(&file, &mut before, 0)?;
        if metadata_sum(&before, None) == expected.metadata_crc32c { Ok(file) } else { Err(METADATA_CHANGED.into()) }
    }
}

fn check_payload(file: &File, offset: u64, bytes: u64, crc32c: u32) -> Result<(), Unread> {
    let (mut crc, mut block) = (Crc::new(), vec![0; BLOCK_BYTES]);
    let mut left = bytes;
    while left > 0 {
        let n = left.min(BLOCK_BYTES as u64) as usize;
        let Some(part) = block.get_mut(..n) else { break };
        read_full(file, part, offset + bytes - left)?;
        crc.update(part);
        left -= n as u64;
    }
    if crc.value() == crc32c { Ok(()) } else { Err(PAYLOAD_CHANGED.into()) }
}

/// Written memory as memory that need not be. Nobody writes bytes to it that are not written themselves.
pub(crate) fn as_uninit(buffer: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the layout is the same; and what is read into it are bytes of a row, see above.
    unsafe { &mut *(std::ptr::from_mut(buffer) as *mut [MaybeUninit<u8>]) }
}

/// Room for so many bytes, or an error where there is no memory for them.
fn with_room(bytes: usize) -> io::Result<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    Ok(buffer)
}

/// Read exactly, into memory that need not have been written; a file that became shorter is truncated.
fn read_uninit<'a>(file: &File, buffer: &'a mut [MaybeUninit<u8>], offset: u64) -> Result<&'a mut [u8], Unread> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match rustix::io::pread(file, rest, offset + done as u64) {
            Ok(([], _)) => return Err(Flaw::Truncated.into()),
            Ok((read, _)) => done += read.len(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    // SAFETY: all of it was read.
    Ok(unsafe { buffer.assume_init_mut() })
}

#[cfg(test)]
mod tests {
    use super::super::directory::row_name;
    use super::*;
    use crate::key::Key;

    #[test]
    fn a_mapped_page_that_cannot_be_read_is_an_error_and_no_signal() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        // SAFETY: it is changed below, and never read through the map after that.
        let map = unsafe { Mmap::map(&file) }.unwrap();
        match fault_in(&map) {
            Ok(true) => {}
            Ok(false) => return eprintln!("skipped: this system has no MADV_POPULATE_READ"),
            Err(error) => panic!("{error:?}"),
        }
        // What is behind the end can be read no more than a bad sector.
        file.set_len(0).unwrap();
        match fault_in(&map) {
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        assert_eq!(with_room(isize::MAX as usize).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
        assert!(with_room(3).unwrap().capacity() >= 3);
    }

    #[test]
    fn a_row_that_is_evicted_while_it_is_checked_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let other = include_bytes!("../../tests/other-software.kvc");
        let key: Key = crate::row::parse(other, other.len() as u64).unwrap().key();
        let name = row_name(&key);
        std::fs::write(folder.path().join(&name), other).unwrap();
        let directory = Directory::open_existing(folder.path()).unwrap();
        let found = directory.inspect(&name).unwrap();
        directory.remove(&name).unwrap();
        directory.check_payload(&found).unwrap();
    }
}
