//! What time it is. A simulation hands in a time of its own; the real one costs no allocation and no lock.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{Job, WaitAddress};

/// A time that is not the machine's. One that has threads of its own decides which of them goes on.
pub trait Time: Send + Sync {
    /// The time that never goes back.
    fn now(&self) -> Instant;

    /// The time of the calendar, which may jump.
    fn wall(&self) -> SystemTime;

    /// Whether threads wait by this time. Otherwise they are the machine's, and sleep by its time.
    fn has_threads(&self) -> bool {
        false
    }

    /// Have the running thread wait until somebody notifies an address, or until a moment.
    fn wait(&self, address: WaitAddress, until: Option<Instant>) {
        let _ = (address, until);
    }

    /// Have the running thread wait until a lock may be free that another one holds.
    fn wait_for_lock(&self, address: WaitAddress) {
        let _ = address;
    }

    /// Let one of the threads go on that wait at an address, or all.
    fn notify(&self, address: WaitAddress, all: bool) {
        let _ = (address, all);
    }

    /// The running thread hands a job to another one.
    fn hand_over(&self, job: Job) -> Job {
        job
    }
}

/// The machine's time, or another. Clones tell the same time.
#[derive(Clone, Default)]
pub struct Clock(pub(super) Option<Arc<dyn Time>>);

impl Clock {
    /// This time in place of the machine's.
    pub fn of(time: Arc<dyn Time>) -> Self {
        Clock(Some(time))
    }

    /// The time that never goes back.
    pub fn now(&self) -> Instant {
        match &self.0 {
            None => Instant::now(),
            Some(time) => time.now(),
        }
    }

    /// What the running thread hands to another one.
    pub(crate) fn hand_over(&self, job: Job) -> Job {
        match &self.0 {
            None => job,
            Some(time) => time.hand_over(job),
        }
    }

    /// How long ago a moment was.
    pub fn since(&self, moment: Instant) -> Duration {
        self.now().saturating_duration_since(moment)
    }

    /// Since 1970-01-01 UTC. A clock that is set to before that tells 0.
    pub fn wall(&self) -> Duration {
        let wall = match &self.0 {
            None => SystemTime::now(),
            Some(time) => time.wall(),
        };
        wall.duration_since(UNIX_EPOCH).unwrap_or_default()
    }

    /// Nanoseconds since 1970-01-01 UTC.
    pub fn wall_ns(&self) -> u64 {
        u64::try_from(self.wall().as_nanos()).unwrap_or(u64::MAX)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(if self.0.is_some() { "Clock(given)" } else { "Clock(machine)" })
    }
}
