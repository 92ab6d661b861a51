//! The bytes of a component, on their way from its file to whoever compiles it.
//!
//! Invariant: what is measured is what was hashed and what is compiled, whatever happens to the file meanwhile, and none of it is
//! in this process's own memory for longer than it is looked at: a component may have 128 MiB and be a stranger's.

use std::fs::File;
use std::io::{ErrorKind::Interrupted, Read, Seek};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use sha2::{Digest, Sha256};

use crate::error::{Error, ErrorKind};

/// The file of a component.
pub(super) struct Source {
    file: File,
    limit: u64,
}

impl Source {
    /// Open a file. What is no component is refused with what it is.
    pub(super) fn open(path: &Path, limit: u64) -> Result<Self, Error> {
        let invalid = |error: std::io::Error| Error::invalid(error.to_string());
        // A FIFO in its place would hold the open until somebody writes.
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(invalid)?;
        let meta = file.metadata().map_err(invalid)?;
        if !meta.is_file() {
            return Err(Error::invalid("not a file"));
        }
        let source = Source { file, limit };
        if meta.len() > limit {
            return Err(source.too_long());
        }
        let mut first = [0; 8];
        // One that is shorter is not WebAssembly.
        let _ = source.file.read_exact_at(&mut first, 0);
        let kind = match &first {
            [0, b'a', b's', b'm', 0x0d, 0, 1, 0] => return Ok(source),
            [0, b'a', b's', b'm', 1, 0, 0, 0] => {
                "a core module, not a component: make one with `wasm-tools component new`"
            }
            [0, b'a', b's', b'm', ..] => "WebAssembly of a version that this host does not know",
            [0x7f, b'E', b'L', b'F', ..] => {
                "precompiled code, which is never accepted: give the .wasm it was made from"
            }
            _ => "not WebAssembly",
        };
        Err(Error::invalid(kind))
    }

    fn too_long(&self) -> Error {
        let message = format!("more than {} bytes, the limit for a component (component_bytes)", self.limit);
        Error::new(ErrorKind::Exhausted, message)
    }

    /// The SHA-256 of the file.
    pub(super) fn digest(&self) -> Result<[u8; 32], Error> {
        self.pass_on(|_, _| Ok(()))
    }

    /// The bytes in memory of this process, and their SHA-256.
    pub(super) fn read(&self) -> Result<([u8; 32], Vec<u8>), Error> {
        let mut bytes = Vec::new();
        let digest = self.pass_on(|piece, _| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok((digest, bytes))
    }

    /// A copy that nobody can change any more, and its SHA-256.
    pub(super) fn copy(&self) -> Result<([u8; 32], Sealed), Error> {
        let cannot = |error: std::io::Error| {
            Error::new(ErrorKind::Exhausted, format!("cannot keep a copy of it in memory: {error}"))
        };
        let copy = memory_file(c"kv-store-component").map_err(cannot)?;
        let digest = self.pass_on(|piece, at| copy.write_all_at(piece, at).map_err(cannot))?;
        Ok((digest, Sealed::new(copy).map_err(cannot)?))
    }

    /// Hand over the file piece by piece, with where each lies.
    fn pass_on(&self, mut each: impl FnMut(&[u8], u64) -> Result<(), Error>) -> Result<[u8; 32], Error> {
        let mut buffer = vec![0; 256 << 10];
        let (mut hasher, mut at) = (Sha256::new(), 0);
        let mut file = &self.file;
        file.rewind().map_err(|error| Error::invalid(error.to_string()))?;
        loop {
            let len = match file.read(&mut buffer) {
                Err(error) if error.kind() == Interrupted => continue,
                read => read.map_err(|error| Error::invalid(error.to_string()))?,
            };
            let piece = buffer.get(..len).unwrap_or_default();
            if piece.is_empty() {
                return Ok(hasher.finalize().into());
            }
            each(piece, at)?;
            hasher.update(piece);
            at += len as u64;
            // It may have grown since it was opened.
            if at > self.limit {
                return Err(self.too_long());
            }
        }
    }
}

/// A file in memory that can be sealed.
pub(super) fn memory_file(name: &std::ffi::CStr) -> std::io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some systems ask for a word on whether it is to be run as a program; others do not know the word.
    let made = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL);
    Ok(made.or_else(|_| rustix::fs::memfd_create(name, flags))?.into())
}

/// Make a file in memory one that nobody can change any more. It fails where somebody still has it mapped to write.
pub(super) fn seal(file: &File) -> std::io::Result<()> {
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    Ok(rustix::fs::fcntl_add_seals(file, seals)?)
}

/// Bytes that nobody can change any more.
pub(super) enum Sealed {
    /// In a file of no name.
    File(Mapped),
    /// In memory of this process, where there can be no such file.
    Own(Vec<u8>),
}

/// A sealed file, and where it is mapped.
pub(super) struct Mapped {
    file: File,
    start: *mut std::ffi::c_void,
    len: usize,
}

// SAFETY: the mapping is read-only memory that nobody can change, as the seals say, and no thread owns it.
unsafe impl Send for Mapped {}
// SAFETY: as above.
unsafe impl Sync for Mapped {}

impl Sealed {
    fn new(file: File) -> std::io::Result<Self> {
        seal(&file)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(std::io::Error::other)?;
        // SAFETY: a new mapping, which is unmapped by `drop` and by nobody else.
        let start =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0)? };
        Ok(Sealed::File(Mapped { file, start, len }))
    }

    /// The file, for another process.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Sealed::File(mapped) => Some(mapped.file.as_fd()),
            Sealed::Own(_) => None,
        }
    }

    /// Take the pages before an offset out of what this process has resident. They come back when they are looked at.
    pub(super) fn done_with(&self, end: usize) {
        if let Sealed::File(Mapped { start, len, .. }) = self {
            // SAFETY: within the mapping; the pages are the file's, so that nothing is lost.
            let _ = unsafe { rustix::mm::madvise(*start, end.min(*len), Advice::LinuxDontNeed) };
        }
    }
}

impl Deref for Sealed {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            // SAFETY: `len` bytes are mapped at `start` as long as this lives, and the seals let nobody change or cut them.
            Sealed::File(Mapped { start, len, .. }) => unsafe { std::slice::from_raw_parts(start.cast(), *len) },
            Sealed::Own(bytes) => bytes,
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and no slice of it outlives this.
        let _ = unsafe { rustix::mm::munmap(self.start, self.len) };
    }
}
