//! Time, so that tests can turn it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where a cache gets the time from.
pub trait Clock: Send + Sync {
    /// Time since some start. Reservations expire by it; it never goes back.
    fn monotonic(&self) -> Duration;
    /// Time since 1970. It is written into files and may go anywhere; nothing but the order of rows across a restart
    /// rests on it.
    fn wall(&self) -> Duration;
}

/// The system's clocks.
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }

    fn wall(&self) -> Duration {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
    }
}
