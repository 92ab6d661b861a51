//! /proc, `gettid`, `ppoll`.

use std::path::PathBuf;
use std::time::Duration;

use rustix::time::ClockId;

pub const STEADY: ClockId = ClockId::Boottime;

pub fn boot() -> Vec<u8> {
    std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default()
}

pub fn mapped_file(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, _) = line.split_once(' ')?;
        let (start, end) = range.split_once('-')?;
        let bound = |text| usize::from_str_radix(text, 16).ok();
        let path = line.get(line.find('/')?..)?;
        (bound(start)?..bound(end)?).contains(&address).then(|| PathBuf::from(path))
    })
}

pub fn thread_number() -> i32 {
    // SAFETY: has no condition.
    unsafe { libc::gettid() }
}

pub fn step_back(thread: i32) {
    // SAFETY: no memory is involved.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, thread as libc::id_t, 19) };
}

#[inline]
pub fn wait(descriptors: &mut [libc::pollfd], left: Duration) {
    let left = libc::timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
    // SAFETY: the list is as long as it says and ours alone.
    unsafe { libc::ppoll(descriptors.as_mut_ptr(), descriptors.len() as _, &left, std::ptr::null()) };
}

/// The linker has said so of our libraries (`-z nodelete`).
#[inline]
pub fn stay_loaded(_: *const libc::c_void) {}
