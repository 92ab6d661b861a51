//! The end that a change carries, on the server's clock: `E = S + (D - c) - margin`.
//!
//! `D` is the deadline of the call, by this process's clock, `S` the server's time as its answer told it, and `c` this process's clock
//! when that answer had arrived. The answer's way is not known, so `S` counts from when it *came*: the server's clock is then at least
//! there, and `E` too early rather than too late. The margin is for clocks that do not run alike. Whoever carries a change out at `E` or
//! after refuses it, so that at `D` it is over for everybody. `tests/models/src/memkv.rs`: "an acknowledged change is not undone".

const MILLISECOND: u64 = 1_000_000;
/// Of the margin, in nanoseconds, besides a thousandth of the time from `c` to `D`.
const LEAST_MARGIN: u64 = 10 * MILLISECOND;
/// A time that is older is asked for anew, in nanoseconds.
const OLDEST: u64 = 60_000 * MILLISECOND;
/// And one whose age costs the change more than this part of its time.
const PART: u64 = 10;

/// What the server's clock was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    /// Nanoseconds of the server's clock.
    pub time: u64,
    /// Nanoseconds of this process's clock, when the answer had arrived.
    pub heard: u64,
}

/// What a change that must be over by then is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Carry this end.
    At(u64),
    /// The server's time is to be asked for first.
    AskAnew,
    /// There is too little time to be sure of: do not send it.
    TooNear,
}

impl Told {
    /// The end of a change whose deadline is `deadline`, at `now`, both by this process's clock.
    pub fn end(self, now: u64, deadline: u64) -> End {
        let (age, left) = (now.saturating_sub(self.heard), deadline.saturating_sub(now));
        if left <= LEAST_MARGIN {
            return End::TooNear;
        }
        if age > OLDEST || age / 1000 > left / PART {
            return End::AskAnew;
        }
        let until = deadline.saturating_sub(self.heard);
        let margin = LEAST_MARGIN + until / 1000;
        match left > margin {
            // 0 would say that there is no end.
            true => End::At(self.time.saturating_add(until).saturating_sub(margin).max(1)),
            false => End::TooNear,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOLD: Told = Told { time: 5_000_000 * MILLISECOND, heard: 1_000 * MILLISECOND };

    #[test]
    fn the_end_is_the_deadline_on_the_servers_clock_less_a_margin() {
        // 10 s from when it was told: 10 ms and 10 ms.
        let deadline = TOLD.heard + 10_000 * MILLISECOND;
        assert_eq!(TOLD.end(TOLD.heard, deadline), End::At(TOLD.time + 9_980 * MILLISECOND));
        // The same deadline has the same end, whenever it is reckoned: a repeated change carries what the first did.
        assert_eq!(TOLD.end(TOLD.heard + 5_000 * MILLISECOND, deadline), End::At(TOLD.time + 9_980 * MILLISECOND));
    }

    #[test]
    fn what_is_due_within_the_margin_is_not_sent() {
        let end = |left| TOLD.end(TOLD.heard, TOLD.heard + left);
        assert_eq!((end(0), end(10 * MILLISECOND)), (End::TooNear, End::TooNear));
        assert_eq!(end(100 * MILLISECOND), End::At(TOLD.time + 100 * MILLISECOND - 10_100_000));
        assert_eq!(TOLD.end(TOLD.heard + MILLISECOND, TOLD.heard), End::TooNear, "it has passed");
    }

    #[test]
    fn an_old_time_is_asked_for_anew() {
        let (hour, after) = (3_600_000 * MILLISECOND, |age| TOLD.heard + age * MILLISECOND);
        assert_eq!(TOLD.end(after(60_001), after(60_001) + hour), End::AskAnew);
        assert!(matches!(TOLD.end(after(59_999), after(59_999) + hour), End::At(_)));
        // For a call of 100 ms, the 12 ms that an age of 12 s would cost are too many.
        assert_eq!(TOLD.end(after(12_000), after(12_100)), End::AskAnew);
        assert!(matches!(TOLD.end(after(9_000), after(9_100)), End::At(_)));
    }

    #[test]
    fn no_numbers_of_a_server_make_it_panic_or_leave_the_end_out() {
        for time in [0, 1, u64::MAX] {
            for (heard, now, deadline) in
                [(0, 0, u64::MAX), (0, 0, 50 * MILLISECOND), (u64::MAX, 0, 0), (9, 9, u64::MAX)]
            {
                assert_ne!(Told { time, heard }.end(now, deadline), End::At(0));
            }
        }
    }
}
