//! `memfd_create`, its seals, Linux's advice, /proc/meminfo.

use std::ffi::{CStr, c_void};
use std::fs::File;
use std::io;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::memory::MachineMemory;

pub fn file(name: &CStr) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Some systems ask for a word on whether it is to be run as a program; others do not know the word.
    let made = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL);
    Ok(made.or_else(|_| memfd_create(name, flags))?.into())
}

pub fn seal(file: &File) -> io::Result<()> {
    const TRIES: usize = 20;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    // The kernel says that a page is busy also where only its own bookkeeping still holds it, on a machine under load.
    for _ in 1..TRIES {
        match fcntl_add_seals(file, seals) {
            Err(Errno::BUSY) => std::thread::sleep(Duration::from_millis(10)),
            sealed => return Ok(sealed?),
        }
    }
    Ok(fcntl_add_seals(file, seals)?)
}

/// # Safety
/// See [`crate::memory::done_with`].
pub unsafe fn done_with(start: *mut c_void, len: usize) {
    // SAFETY: the pages are the file's, so that nothing is lost.
    let _ = unsafe { madvise(start, len, Advice::LinuxDontNeed) };
}

/// # Safety
/// See [`crate::memory::in_large_pages`].
pub unsafe fn in_large_pages(start: *mut c_void, len: usize) {
    // SAFETY: the pages keep what they hold.
    let _ = unsafe { madvise(start, len, Advice::LinuxHugepage) };
}

pub fn fault_in(map: &[u8]) -> io::Result<bool> {
    // SAFETY: the pages are read, and nothing else.
    match unsafe { madvise(map.as_ptr().cast_mut().cast(), map.len(), Advice::LinuxPopulateRead) } {
        Ok(()) => Ok(true),
        Err(Errno::INVAL) => Ok(false),
        Err(Errno::FAULT | Errno::HWPOISON) => Err(Errno::IO.into()),
        Err(error) => Err(error.into()),
    }
}

pub fn of_the_machine() -> Option<MachineMemory> {
    parse_meminfo(&std::fs::read_to_string("/proc/meminfo").ok()?)
}

fn parse_meminfo(text: &str) -> Option<MachineMemory> {
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    };
    Some(MachineMemory { total: field("MemTotal")?, available: field("MemAvailable")? })
}

/// # Safety
/// See [`crate::memory::usable`].
pub unsafe fn usable(memory: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { libc::malloc_usable_size(memory) }
}

pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it sets a number of the allocator, which it looks at when a thread first allocates.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_parsed() {
        let text =
            "MemTotal:        1000 kB\nMemFree:          100 kB\nMemAvailable:     300 kB\nHugepagesize: 2048 kB\n";
        assert_eq!(parse_meminfo(text), Some(MachineMemory { total: 1000 * 1024, available: 300 * 1024 }));
        assert_eq!(parse_meminfo("MemTotal: 5 kB\n"), None);
        assert_eq!(parse_meminfo("MemTotal: 5 kB\nMemAvailable: x kB\n"), None);
    }
}
