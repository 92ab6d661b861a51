//! Reads and writes.

use std::os::fd::AsFd;

pub use kernel::io::*;

use crate::ask;

pub fn writev(fd: impl AsFd, pieces: &[IoSlice<'_>]) -> Result<usize> {
    ask(&fd, |system, own| system.write(own, None, &pieces.concat_bytes()))
        .unwrap_or_else(|| kernel::io::writev(&fd, pieces))
}

pub fn pwrite(fd: impl AsFd, bytes: &[u8], at: u64) -> Result<usize> {
    ask(&fd, |system, own| system.write(own, Some(at), bytes)).unwrap_or_else(|| kernel::io::pwrite(&fd, bytes, at))
}

pub fn pwritev(fd: impl AsFd, pieces: &[IoSlice<'_>], at: u64) -> Result<usize> {
    ask(&fd, |system, own| system.write(own, Some(at), &pieces.concat_bytes()))
        .unwrap_or_else(|| kernel::io::pwritev(&fd, pieces, at))
}

pub fn pread(fd: impl AsFd, into: &mut [u8], at: u64) -> Result<usize> {
    let read = ask(&fd, |system, own| system.read(own, at, into.len(), false));
    let Some(read) = read else { return kernel::io::pread(&fd, into, at) };
    let read = read?;
    into.iter_mut().zip(&read).for_each(|(to, from)| *to = *from);
    Ok(read.len())
}

trait ConcatBytes {
    fn concat_bytes(&self) -> Vec<u8>;
}

impl ConcatBytes for [IoSlice<'_>] {
    fn concat_bytes(&self) -> Vec<u8> {
        self.iter().flat_map(|piece| piece.iter().copied()).collect()
    }
}
