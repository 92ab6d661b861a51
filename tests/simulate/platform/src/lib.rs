//! `kv-platform`, with the files of a simulated file system where the thread has one.

pub use machine::{child, event, memory, signals, sockets, stderr, sync, system};

pub mod files {
    //! What is asked of open files and directories.

    use std::os::fd::AsFd;

    pub use machine::files::*;
    use rustix::ask;
    use rustix::fs;
    use rustix::io::Errno;

    pub fn sync_data(file: impl AsFd) -> Result<(), Errno> {
        ask(&file, |system, own| system.sync(own)).unwrap_or_else(|| machine::files::sync_data(&file))
    }

    pub fn sync(file: impl AsFd) -> Result<(), Errno> {
        ask(&file, |system, own| system.sync(own)).unwrap_or_else(|| machine::files::sync(&file))
    }

    pub fn start_writing(file: impl AsFd, from: u64, bytes: u64) {
        if ask(&file, |_, _| ()).is_none() {
            machine::files::start_writing(&file, from, bytes);
        }
    }

    pub fn write_out(file: impl AsFd) -> Result<(), Errno> {
        ask(&file, |system, own| system.write_out(own)).unwrap_or_else(|| machine::files::write_out(&file))
    }

    pub fn allocate(file: impl AsFd, bytes: u64) -> Result<(), Errno> {
        ask(&file, |system, own| system.allocate(own, bytes)).unwrap_or_else(|| machine::files::allocate(&file, bytes))
    }

    pub fn set_room_aside(file: impl AsFd, from: u64, bytes: u64) -> Result<(), Errno> {
        ask(&file, |system, own| system.set_room_aside(own))
            .unwrap_or_else(|| machine::files::set_room_aside(&file, from, bytes))
    }

    pub fn in_memory(directory: impl AsFd) -> Memory {
        ask(&directory, |_, _| Memory::Some).unwrap_or_else(|| machine::files::in_memory(&directory))
    }

    /// # Safety
    /// The pieces are valid for writes, and nobody else uses them.
    pub unsafe fn read_cached(file: impl AsFd, pieces: &[libc::iovec], at: u64) -> Result<usize, Errno> {
        // SAFETY: by this function's own condition.
        match unsafe { into_pieces(&file, pieces, at, true) } {
            Some(read) => read,
            // SAFETY: as above.
            None => unsafe { machine::files::read_cached(&file, pieces, at) },
        }
    }

    /// # Safety
    /// The pieces are valid for writes, and nobody else uses them.
    pub unsafe fn read(file: impl AsFd, pieces: &[libc::iovec], at: u64) -> Result<usize, Errno> {
        // SAFETY: by this function's own condition.
        match unsafe { into_pieces(&file, pieces, at, false) } {
            Some(read) => read,
            // SAFETY: as above.
            None => unsafe { machine::files::read(&file, pieces, at) },
        }
    }

    /// # Safety
    /// The pieces are valid for writes, and nobody else uses them.
    unsafe fn into_pieces(
        file: impl AsFd,
        pieces: &[libc::iovec],
        at: u64,
        cached: bool,
    ) -> Option<Result<usize, Errno>> {
        let most = pieces.iter().map(|piece| piece.iov_len).sum();
        let read = ask(&file, |system, own| system.read(own, at, most, cached))?;
        Some(read.map(|bytes| {
            let mut rest = bytes.as_slice();
            for piece in pieces {
                let (part, behind) = rest.split_at(rest.len().min(piece.iov_len));
                // SAFETY: the piece has room for so many bytes, by this function's own condition.
                unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), piece.iov_base.cast(), part.len()) };
                rest = behind;
            }
            bytes.len()
        }))
    }

    pub fn go_around_cache(file: impl AsFd, around: bool) -> Result<(), Errno> {
        ask(&file, |_, _| Err(Errno::OPNOTSUPP)).unwrap_or_else(|| machine::files::go_around_cache(&file, around))
    }

    pub fn rename_new(from: impl AsFd, name: &str, to: impl AsFd, new: &str) -> Result<(), Errno> {
        fs::rename(&from, name, &to, new, false).unwrap_or_else(|| machine::files::rename_new(&from, name, &to, new))
    }
}

pub mod paths {
    //! Paths below a directory.

    use std::os::fd::{AsFd, OwnedFd};

    pub use machine::paths::*;
    use rustix::ask;
    use rustix::fs::OFlags;
    use rustix::io::Errno;

    pub fn open_below(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        ask(&root, |system, own| system.open(Some(own), path, flags, false))
            .unwrap_or_else(|| machine::paths::open_below(&root, path, flags))
    }

    pub fn open_cached(root: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        ask(&root, |system, own| system.open(Some(own), path, flags, true))
            .unwrap_or_else(|| machine::paths::open_cached(&root, path, flags))
    }

    pub fn check_file_system(file: impl AsFd) -> Result<(), Errno> {
        ask(&file, |_, _| Ok(())).unwrap_or_else(|| machine::paths::check_file_system(&file))
    }

    pub fn kernel_file_system(file: impl AsFd) -> Result<Option<&'static str>, Errno> {
        ask(&file, |_, _| Ok(None)).unwrap_or_else(|| machine::paths::kernel_file_system(&file))
    }
}
