//! What the machine and the process are.

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use crate::way;

/// Tells one run of the machine from the next, so that what was counted before a power loss is not believed. Empty: not told.
///
/// Linux: /proc. macOS: a `sysctl`. Elsewhere it is not told, and `boot-number` is lacking.
pub fn boot() -> Vec<u8> {
    way::system::boot()
}

/// The file that an address was loaded from: a library, or the program where it is linked in. None where nobody tells.
///
/// `dladdr`. A relative name was relative to a working directory that may have changed since: on Linux /proc has the whole one, elsewhere it is
/// not told.
pub fn loaded_from(address: usize) -> Option<PathBuf> {
    let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr takes any address and fills `info` where it does not answer 0. The name that it then holds is a C string of the loader's,
    // which is copied while what runs here keeps the file loaded.
    let path = unsafe {
        if libc::dladdr(address as *const libc::c_void, info.as_mut_ptr()) == 0 {
            return None;
        }
        let name = info.assume_init().dli_fname;
        if name.is_null() {
            return None;
        }
        PathBuf::from(OsStr::from_bytes(CStr::from_ptr(name).to_bytes()))
    };
    if path.is_absolute() { Some(path) } else { way::system::mapped_file(address) }
}

/// The number of this thread, for [`step_back`].
pub fn thread_number() -> i32 {
    way::system::thread_number()
}

/// Give a thread of this process the lowest priority. Only a courtesy: it matters for how fast things go whether it succeeds.
///
/// Linux: its own nice value. Portable: nothing, for a nice value is that of the process.
pub fn step_back(thread: i32) {
    way::system::step_back(thread);
}

/// Ask that this thread, which has little to do at a time, comes to do it soon after it is woken while others keep the processors busy. It gets
/// no larger share of them. Only a courtesy, as [`step_back`] is.
///
/// Linux from 6.12: a short slice of its own; before, nothing. Portable: nothing.
pub fn take_short_turns() {
    way::system::take_short_turns();
}

/// The name of this machine in its network.
pub fn host_name() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: room of ours, of which the last byte stays 0.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    std::ffi::CStr::from_bytes_until_nul(&name).map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Wait until a descriptor has one of its events, or the time is over. What fails only has the caller look again.
///
/// Linux: `ppoll`, to the nanosecond. Portable: `poll`, to the next whole millisecond.
#[inline]
pub fn wait(descriptors: &mut [libc::pollfd], left: std::time::Duration) {
    way::system::wait(descriptors, left);
}

/// A clock that nobody sets and that goes on while the machine sleeps.
///
/// Linux: `CLOCK_BOOTTIME`. Portable: `CLOCK_MONOTONIC`, which goes on in sleep on macOS.
pub fn steady() -> std::time::Duration {
    let now = rustix::time::clock_gettime(way::system::STEADY);
    std::time::Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_into_a_program_was_loaded_from_it() {
        let here = what_is_linked_into_a_program_was_loaded_from_it as fn() as usize;
        let program = std::env::current_exe().unwrap().canonicalize().unwrap();
        assert_eq!(loaded_from(here).and_then(|path| path.canonicalize().ok()), Some(program));
        assert_eq!(loaded_from(0), None);
    }
}
