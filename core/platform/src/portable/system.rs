//! What POSIX tells, which is little.

use std::path::PathBuf;
use std::time::Duration;

use rustix::time::ClockId;

pub const STEADY: ClockId = ClockId::Monotonic;

#[cfg(target_vendor = "apple")]
pub fn boot() -> Vec<u8> {
    let mut id = vec![0_u8; 64];
    let mut len = id.len();
    let name = c"kern.bootsessionuuid".as_ptr();
    // SAFETY: room of ours for `len` bytes, which becomes how many were written.
    let told = unsafe { libc::sysctlbyname(name, id.as_mut_ptr().cast(), &mut len, std::ptr::null_mut(), 0) };
    id.truncate(if told == 0 { len } else { 0 });
    id
}

#[cfg(not(target_vendor = "apple"))]
pub fn boot() -> Vec<u8> {
    Vec::new()
}

pub fn mapped_file(_: usize) -> Option<PathBuf> {
    None
}

pub fn thread_number() -> i32 {
    0
}

pub fn step_back(_: i32) {}

pub fn take_short_turns() {}

pub fn wait(descriptors: &mut [libc::pollfd], left: Duration) {
    // Not a moment too early, or the caller would look again and again until its time has come.
    let milliseconds = left.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(libc::c_int::MAX);
    // SAFETY: the list is as long as it says and ours alone.
    unsafe { libc::poll(descriptors.as_mut_ptr(), descriptors.len() as _, milliseconds) };
}

/// The library that an address is in is opened once more and never closed. A program is not affected.
pub fn stay_loaded(inside: *const libc::c_void) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let mut info = std::mem::MaybeUninit::<libc::Dl_info>::uninit();
        // SAFETY: dladdr takes any address and fills `info` where it does not answer 0; the name that it then holds is the loader's.
        unsafe {
            if libc::dladdr(inside, info.as_mut_ptr()) != 0 {
                libc::dlopen(info.assume_init().dli_fname, libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE);
            }
        }
    });
}
