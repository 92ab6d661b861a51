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

/// The slice that a thread asks for which takes short turns, the shortest that the kernel gives.
const SHORT_TURN: Duration = Duration::from_micros(100);

pub fn take_short_turns() {
    // The fields of sched_setattr(2). What the thread has of them stays.
    let (mut attributes, len) = ([0_u64; 6], size_of::<[u64; 6]>());
    // SAFETY: of this thread; there is room for as many bytes as are said.
    if unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), len, 0) } != 0 {
        return;
    }
    let [_, _, _, runtime, ..] = &mut attributes;
    *runtime = SHORT_TURN.as_nanos() as u64;
    // SAFETY: of this thread; the first field says how long they are.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, attributes.as_ptr(), 0) };
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy, nice value, slice of this thread.
    fn attributes() -> (u64, u64, u64) {
        let mut attributes = [0_u64; 6];
        // SAFETY: of this thread; there is room for as many bytes as are said.
        let got =
            unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size_of::<[u64; 6]>(), 0) };
        assert_eq!(got, 0);
        (attributes[0] >> 32, attributes[2], attributes[3])
    }

    #[test]
    fn short_turns_are_asked_for_and_nothing_else_changes() {
        let (policy, nice, slice) = attributes();
        take_short_turns();
        // Before 6.12 the kernel has no slice of a thread, and says none.
        let asked = if slice == 0 { 0 } else { SHORT_TURN.as_nanos() as u64 };
        assert_eq!(attributes(), (policy, nice, asked));
    }
}
