//! Files without a name in the folder for temporary files.

use std::ffi::{CStr, c_void};
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::memory::MachineMemory;

pub fn file(name: &CStr) -> io::Result<File> {
    const TRIES: usize = 16;
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let folder = std::env::temp_dir();
    for _ in 0..TRIES {
        let (number, process) = (NUMBER.fetch_add(1, Relaxed), std::process::id());
        let moment = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = folder.join(format!(".{}-{process}-{number}-{moment:x}", name.to_string_lossy()));
        // A new file, and no link of somebody else's.
        match File::options().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return std::fs::remove_file(&path).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", folder.display()))),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

pub fn seal(_: &File) -> io::Result<()> {
    Ok(())
}

/// # Safety
/// See [`crate::memory::done_with`].
pub unsafe fn done_with(start: *mut c_void, len: usize) {
    // SAFETY: the pages are the file's, so that nothing is lost.
    let _ = unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::DontNeed) };
}

/// # Safety
/// See [`crate::memory::in_large_pages`].
pub unsafe fn in_large_pages(_: *mut c_void, _: usize) {}

pub fn fault_in(_: &[u8]) -> io::Result<bool> {
    Ok(false)
}

pub fn of_the_machine() -> Option<MachineMemory> {
    None
}

/// # Safety
/// See [`crate::memory::usable`].
pub unsafe fn usable(memory: *mut c_void) -> usize {
    #[cfg(target_vendor = "apple")]
    // SAFETY: the caller's promise.
    return unsafe { libc::malloc_size(memory) };
    #[cfg(not(target_vendor = "apple"))]
    // SAFETY: the caller's promise.
    unsafe {
        libc::malloc_usable_size(memory)
    }
}

pub fn share_one_heap() {}
