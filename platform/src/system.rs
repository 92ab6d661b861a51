//! What the machine and the process are.

use std::path::PathBuf;

use crate::way;

/// Tells one run of the machine from the next, so that what was counted before a power loss is not believed. Empty: not told.
///
/// Linux: /proc. macOS: a `sysctl`. Elsewhere it is not told, and `boot-number` is lacking.
pub fn boot() -> Vec<u8> {
    way::system::boot()
}

/// The file that is mapped at an address; none where that is not told, as it is nowhere but on Linux.
pub fn mapped_file(address: usize) -> Option<PathBuf> {
    way::system::mapped_file(address)
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
