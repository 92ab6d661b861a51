//! Memory that is shared with files and with other processes.

use std::ffi::{CStr, c_void};
use std::fs::File;
use std::io;

use crate::way;

/// An empty file that has no name and is gone when nobody has it open. Closed on exec.
///
/// Linux: in memory (`memfd_create`), and it can be sealed. Portable: a file of the folder for temporary files, without a name.
pub fn file(name: &CStr) -> io::Result<File> {
    way::memory::file(name)
}

/// Nobody can change a [`file()`] any more. It fails where somebody still has it mapped to write.
///
/// Portable: nothing is done, and `sealed-memory` is lacking: a process of the same user that has the file open can change it.
pub fn seal(file: &File) -> io::Result<()> {
    way::memory::seal(file)
}

/// Pages of a file's mapping are no more resident in this process; they come back when they are looked at. Only a saving.
///
/// # Safety
/// `len` bytes from `start` on are a shared mapping of a file.
pub unsafe fn done_with(start: *mut c_void, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { way::memory::done_with(start, len) }
}

/// Only a hint: memory is better had in large pages.
///
/// Linux: `MADV_HUGEPAGE`. Portable: nothing.
///
/// # Safety
/// `len` bytes from `start` on are a mapping of the caller's.
pub unsafe fn in_large_pages(start: *mut c_void, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { way::memory::in_large_pages(start, len) }
}

/// Read all of a mapping now, where a sector that cannot be read is an error; touched later it would be a SIGBUS. False: the system cannot.
///
/// Linux: `MADV_POPULATE_READ`, since 5.14. Portable: never.
///
/// # Errors
/// `EIO` for bytes that cannot be read, or `ENOMEM`.
pub fn fault_in(map: &[u8]) -> io::Result<bool> {
    way::memory::fault_in(map)
}

/// Bytes of the machine's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    pub total: u64,
    /// Without the machine having to swap.
    pub available: u64,
}

/// What the machine has, and what is left of it; none where that is not told.
///
/// Linux: /proc/meminfo. Portable: none, and `memory-pressure` is lacking.
pub fn of_the_machine() -> Option<MachineMemory> {
    way::memory::of_the_machine()
}

/// How many bytes a piece of C `malloc` memory has, which may be more than were asked for.
///
/// # Safety
/// The memory is C `malloc`'s and was not freed.
pub unsafe fn usable(memory: *mut c_void) -> usize {
    // SAFETY: the caller's promise.
    unsafe { way::memory::usable(memory) }
}

/// All threads share one heap of C `malloc`, so that what one of them frees is used again by any other. For a program that keeps what many
/// threads allocate within a bound. To be called before there are threads.
///
/// GNU's C library: `M_ARENA_MAX`; without it there are up to eight heaps a core, and each keeps the most that it ever held. Others: nothing.
pub fn share_one_heap() {
    way::memory::share_one_heap();
}
