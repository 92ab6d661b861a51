//! The two clocks of the server, by which it dates what it stores and refuses what is late.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970-01-01 UTC. May be set.
pub fn wall() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds on a clock that nobody sets and that goes on while the machine sleeps. What clients are told, and the ends of their
/// changes, are on this clock: one that stood still while the machine slept would take what is late for early.
pub fn steady() -> u64 {
    u64::try_from(kv_platform::system::steady().as_nanos()).unwrap_or(u64::MAX)
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
