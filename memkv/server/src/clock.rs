//! The two clocks of the server.

use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since 1970-01-01 UTC. May be set.
pub fn wall() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds on a clock that nobody sets and that goes on while the machine sleeps. What clients are told, and the ends of their
/// changes, are on this clock: one that stood still while the machine slept would take what is late for early.
pub fn steady() -> u64 {
    #[cfg(target_os = "linux")]
    const CLOCK: ClockId = ClockId::Boottime;
    // Goes on in sleep elsewhere.
    #[cfg(not(target_os = "linux"))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let now = clock_gettime(CLOCK);
    let nanoseconds = u64::try_from(now.tv_sec).unwrap_or(0).saturating_mul(1_000_000_000);
    nanoseconds.saturating_add(u64::try_from(now.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_steady_clock_goes_on() {
        let before = super::steady();
        assert!(before > 0);
        while super::steady() == before {}
        assert!(super::steady() > before);
    }
}
