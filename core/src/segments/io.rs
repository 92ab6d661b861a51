//! Reads, writes and syncs of the files of a store, which a signal does not end. `rustix` and `kv_platform` make each of them, so that histories
//! (`tests/simulate`) run them over files of their own.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::AsFd;

use kv_platform::files;
use rustix::io::Errno;

use crate::directory::uninterrupted;

/// Bytes of a file from a place on, as many as one read has. 0: it ends there.
pub fn read_at(file: impl AsFd, into: &mut [u8], at: u64) -> Result<usize> {
    #[cfg(test)]
    faults::before_read(at);
    loop {
        match rustix::io::pread(&file, &mut *into, at) {
            Err(Errno::INTR) => {}
            read => return Ok(read?),
        }
    }
}

/// All of these bytes, or an error.
pub fn read_exact_at(file: impl AsFd, mut into: &mut [u8], mut at: u64) -> Result<()> {
    while !into.is_empty() {
        let read = read_at(&file, into, at)?;
        if read == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        at += read as u64;
        into = into.get_mut(read..).unwrap_or_default();
    }
    Ok(())
}

pub fn write_all_at(file: impl AsFd, mut bytes: &[u8], mut at: u64) -> Result<()> {
    while !bytes.is_empty() {
        match rustix::io::pwrite(&file, bytes, at) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            written => {
                let written = written?;
                at += written as u64;
                bytes = bytes.get(written..).unwrap_or_default();
            }
        }
    }
    Ok(())
}

/// Have the bytes of a file survive a power loss.
pub fn sync_data(file: impl AsFd) -> Result<()> {
    #[cfg(test)]
    faults::before(file.as_fd())?;
    uninterrupted(|| files::sync_data(&file)).map_err(Error::from)
}

/// The same of all about it. Of a folder: its names.
pub fn sync(file: impl AsFd) -> Result<()> {
    #[cfg(test)]
    faults::before(file.as_fd())?;
    uninterrupted(|| files::sync(&file)).map_err(Error::from)
}

/// What befalls the reads and syncs of a thread, in tests.
#[cfg(test)]
pub mod faults {
    use std::cell::RefCell;
    use std::os::fd::BorrowedFd;

    use rustix::io::Errno;

    type Fault = Box<dyn FnMut(BorrowedFd<'_>) -> Result<(), Errno>>;
    type Read = Box<dyn FnMut(u64)>;

    thread_local! {
        static FAULT: RefCell<Option<Fault>> = const { RefCell::new(None) };
        static READS: RefCell<Option<Read>> = const { RefCell::new(None) };
    }

    /// Do this before each read of the running thread, which is told from where it is.
    pub fn before_reads(what: impl FnMut(u64) + 'static) {
        READS.set(Some(Box::new(what)));
    }

    pub fn before_read(at: u64) {
        READS.with_borrow_mut(|what| what.iter_mut().for_each(|what| what(at)));
    }

    /// Ask this before each sync of the running thread whether it fails.
    pub fn before_syncs(fault: impl FnMut(BorrowedFd<'_>) -> Result<(), Errno> + 'static) {
        FAULT.set(Some(Box::new(fault)));
    }

    pub fn none() {
        FAULT.set(None);
        READS.set(None);
    }

    pub(super) fn before(file: BorrowedFd<'_>) -> std::io::Result<()> {
        FAULT.with_borrow_mut(|fault| fault.as_mut().map_or(Ok(()), |fault| fault(file)))?;
        Ok(())
    }
}
