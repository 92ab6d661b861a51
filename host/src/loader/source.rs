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

use kv_platform::memory;
use rustix::mm::{MapFlags, ProtFlags};
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
        let mut first = [0; 20];
        // One that is shorter is not WebAssembly.
        let read = source.file.read_at(&mut first, 0).unwrap_or(0);
        match what(first.get(..read).unwrap_or_default()) {
            None => Ok(source),
            Some(kind) => Err(Error::invalid(kind)),
        }
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
        let copy = memory::file(c"kv-store-component").map_err(cannot)?;
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

/// What a file is that begins so; none: a component.
fn what(first: &[u8]) -> Option<String> {
    /// What wasmtime writes where an ELF file has its operating system.
    const COMPILED_BY_WASMTIME: u8 = 200;
    let text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    let kind = match first {
        [0, b'a', b's', b'm', 0x0d, 0, 1, 0, ..] => return None,
        [0, b'a', b's', b'm', 1, 0, 0, 0, ..] => {
            "a core module, not a component: make one with `wasm-tools component new`"
        }
        [0, b'a', b's', b'm', ..] => "WebAssembly of a version that this host does not know",
        [0x7f, b'E', b'L', b'F', _, _, _, COMPILED_BY_WASMTIME, ..] => {
            "precompiled code, which is never accepted: give the .wasm it was made from"
        }
        [0x7f, b'E', b'L', b'F', .., low, high] => {
            let machine = match u16::from_le_bytes([*low, *high]) {
                62 => "x86-64".to_owned(),
                183 => "AArch64".to_owned(),
                243 => "RISC-V".to_owned(),
                number => format!("machine {number}"),
            };
            return Some(format!(
                "a native library or program (ELF for {machine}), not a component: give the backend's .wasm"
            ));
        }
        [0xcf | 0xce, 0xfa, 0xed, 0xfe, ..] | [0xca, 0xfe, 0xba, 0xbe, ..] => {
            "a native library or program of macOS, not a component: give the backend's .wasm"
        }
        [] => "an empty file, not a component",
        [b'(', ..] if first.starts_with(b"(component") || first.starts_with(b"(module") => {
            "WebAssembly as text, not a component: make one with `wasm-tools parse`"
        }
        bytes if bytes.iter().all(text) => "a text file, not a component",
        _ => "not WebAssembly",
    };
    Some(kind.to_owned())
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
        memory::seal(&file)?;
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
            // SAFETY: within the mapping, which is shared.
            unsafe { memory::done_with(*start, end.min(*len)) };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_component_is_named_as_what_it_is() {
        let elf = |system: u8, machine: u16| {
            let mut first = b"\x7fELF\x02\x01\x01".to_vec();
            first.push(system);
            first.extend([0; 10]);
            first.extend(machine.to_le_bytes());
            first
        };
        for (first, said) in [
            (elf(0, 62), "a native library or program (ELF for x86-64)"),
            (elf(3, 183), "a native library or program (ELF for AArch64)"),
            (elf(200, 0), "precompiled code, which is never accepted"),
            (b"no WebAssembly at all".to_vec(), "a text file"),
            (b"(module)".to_vec(), "WebAssembly as text"),
            (b"\0asm\x01\0\0\0".to_vec(), "a core module"),
            (b"\xcf\xfa\xed\xfe\x07\0\0\x01".to_vec(), "a native library or program of macOS"),
            (b"\x89PNG\r\n".to_vec(), "not WebAssembly"),
            (Vec::new(), "an empty file"),
        ] {
            let told = what(&first);
            assert!(told.as_ref().is_some_and(|told| told.starts_with(said)), "{first:?}: {told:?}");
        }
        assert_eq!(what(b"\0asm\x0d\0\x01\0and so on, as a component does"), None);
    }
}
