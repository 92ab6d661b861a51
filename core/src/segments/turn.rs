//! Whose turn it is among the threads of a process. Unlike a lock it is waited for by the deadline of a call: whoever has it may wait for other
//! processes, or for the disk.

use kv_platform::sync::Mutex;

use crate::error::Error;
use crate::process::{Clock, Condition};
use crate::until::Until;

pub struct Turns {
    taken: Mutex<bool>,
    freed: Condition,
    clock: Clock,
}

pub struct Turn<'a>(&'a Turns);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.freed.notify_one();
    }
}

impl Turns {
    pub fn new(clock: &Clock) -> Self {
        Turns { taken: Mutex::new(false), freed: Condition::new(clock), clock: clock.clone() }
    }

    /// Wait for it. `what`: why it did not come.
    pub fn take(&self, what: &'static str, until: &Until) -> Result<Turn<'_>, Error> {
        let mut taken = self.taken.lock();
        while *taken {
            until.check().map_err(|late| late.context(what))?;
            let left = until.deadline().saturating_duration_since(self.clock.now());
            taken = self.freed.wait_timeout(&self.taken, taken, left);
        }
        *taken = true;
        Ok(Turn(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::time::{Duration, Instant};

    #[test]
    fn one_has_it_at_a_time_and_nobody_waits_longer_than_the_call() {
        let turns = Turns::new(&Clock::default());
        let held = turns.take("first", &Until::new(&Limits::default())).unwrap();
        let begun = Instant::now();
        let short = Until::new(&Limits { deadline_ms: 50, ..Limits::default() });
        assert!(turns.take("second", &short).is_err());
        assert!(begun.elapsed() < Duration::from_secs(5));
        let given_back = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let _turn = turns.take("third", &Until::new(&Limits::default())).unwrap();
                assert!(given_back.load(SeqCst));
            });
            std::thread::sleep(Duration::from_millis(20));
            given_back.store(true, SeqCst);
            drop(held);
            waits.join().unwrap();
        });
    }
}
