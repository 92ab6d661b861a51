//! The processor time of a guest's calls, where a quota (`cpu_ms_per_s`) bounds it.
//!
//! A call of a guest runs on one thread, the caller's, with all that the host does for it: hashing, copying, reading, TLS. So what the thread
//! has used between two moments of the call is the guest's, and what it has waited is not. Without a quota nothing is measured, for each
//! look is a system call: the counter `guest_cpu_milliseconds` is then made of samples.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Counts the processor time of one instance's calls.
pub(super) struct Cpu {
    measures: bool,
    /// What the thread had used when it was last looked.
    last: Duration,
    /// Microseconds that were not told as milliseconds yet.
    rest: u64,
}

impl Cpu {
    pub(super) fn new(measures: bool) -> Self {
        Cpu { measures, last: Duration::ZERO, rest: 0 }
    }

    pub(super) fn measures(&self) -> bool {
        self.measures
    }

    /// A call begins on this thread.
    pub(super) fn begin(&mut self) {
        if self.measures {
            self.last = of_thread();
        }
    }

    /// What this thread has used since: in microseconds, and in whole milliseconds with what was left over before.
    pub(super) fn take(&mut self) -> (u64, u64) {
        if !self.measures {
            return (0, 0);
        }
        let now = of_thread();
        let used = now.saturating_sub(std::mem::replace(&mut self.last, now));
        let microseconds = u64::try_from(used.as_micros()).unwrap_or(u64::MAX);
        self.rest = self.rest.saturating_add(microseconds);
        let milliseconds = self.rest / 1000;
        self.rest %= 1000;
        (microseconds, milliseconds)
    }
}

fn of_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_counts_and_waits_do_not() {
        let mut cpu = Cpu::new(true);
        cpu.begin();
        while of_thread() - cpu.last < Duration::from_millis(20) {}
        let (micros, millis) = cpu.take();
        assert!(micros >= 20_000 && millis >= 20, "{micros} {millis}");
        std::thread::sleep(Duration::from_millis(200));
        let (micros, _) = cpu.take();
        assert!(micros < 100_000, "a wait is no work: {micros}");
        let mut none = Cpu::new(false);
        none.begin();
        assert_eq!(none.take(), (0, 0));
    }
}
