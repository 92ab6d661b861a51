//! What is known of a server's clock, and the end of a change on it.
//!
//! `tests/models/src/redis.rs`: the end is reckoned from the answer, less a margin, for the connection on which the answer came.

/// Nanoseconds in a microsecond: the server counts these, the host those.
const MICRO: u64 = 1_000;
/// What is left of a call's time beside its end, in microseconds: for clocks that do not run alike, this and a thousandth of the time since
/// the server told its own. A change with less time than that is not sent.
const MARGIN: u64 = 10_000;
const OF_TIME: u64 = 1_000;
/// A time that was told longer ago is asked for anew, in nanoseconds.
const OLD: u64 = 60_000_000_000;

/// What a server told of its clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Microseconds since 1970, by its own clock.
    pub told: u64,
    /// When the answer had arrived, by the host's monotonic clock, in nanoseconds.
    pub arrived: u64,
}

impl Clock {
    /// Whether it is to be asked again.
    pub fn is_old(self, now: u64) -> bool {
        now.saturating_sub(self.arrived) > OLD
    }

    /// The end, by the server's clock in microseconds, of a change in a call that ends in `remaining` nanoseconds. None: it is too near.
    pub fn end(self, now: u64, remaining: u64) -> Option<u64> {
        let since = (now.saturating_sub(self.arrived).saturating_add(remaining)) / MICRO;
        let margin = MARGIN + since / OF_TIME;
        (remaining / MICRO > margin).then(|| self.told.saturating_add(since - margin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_end_lies_before_the_deadline_by_the_margin() {
        let clock = Clock { told: 1_000_000_000, arrived: 5 * SECOND };
        // Asked just now, with 10 s to go: 10 ms and a thousandth of them less.
        assert_eq!(clock.end(5 * SECOND, 10 * SECOND), Some(1_000_000_000 + 10_000_000 - 20_000));
        // Asked 10 s ago: the same deadline is 10 s later on the server's clock, and the margin is twice as wide.
        assert_eq!(clock.end(15 * SECOND, 10 * SECOND), Some(1_000_000_000 + 20_000_000 - 30_000));
    }

    #[test]
    fn what_has_no_time_left_is_not_sent() {
        let clock = Clock { told: 7, arrived: 0 };
        for remaining in [0, 1, 10_000_000, 10_009_999] {
            assert_eq!(clock.end(0, remaining), None, "{remaining}");
        }
        assert_eq!(clock.end(0, 11_000_000), Some(7 + 11_000 - 10_011));
        // The margin is that of the time since the server told its own.
        assert_eq!(clock.end(60 * SECOND, 60_000_000), None);
    }

    #[test]
    fn a_time_is_used_for_a_minute_and_never_overflows() {
        let clock = Clock { told: u64::MAX, arrived: 9 };
        assert!(!clock.is_old(60 * SECOND + 9) && clock.is_old(60 * SECOND + 10));
        // The host's clock does not go back; if it did, less would be reckoned and not more.
        assert!(!clock.is_old(0));
        assert_eq!(clock.end(u64::MAX, u64::MAX), Some(u64::MAX));
    }
}
