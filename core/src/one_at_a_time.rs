//! One at a time among the threads of a process. Unlike a lock it is waited for within the time of a call: whoever is in may wait for another
//! process, for a disk or for a backend.

use kv_platform::sync::Mutex;

use crate::error::{Error, ErrorKind};
use crate::process::{Clock, Condition};
use crate::until::Until;

pub struct OneAtATime {
    taken: Mutex<bool>,
    freed: Condition,
}

/// This thread is in, until it is dropped.
#[must_use = "the next one is in when this is dropped"]
pub struct Alone<'a>(&'a OneAtATime);

impl OneAtATime {
    pub fn new(clock: &Clock) -> Self {
        OneAtATime { taken: Mutex::new(false), freed: Condition::new(clock) }
    }

    /// Wait until no other thread is in. `late`: what to say where the time of the call is over first. A call that was cancelled says so.
    pub fn enter(&self, until: &Until, late: impl FnOnce(Error) -> Error) -> Result<Alone<'_>, Error> {
        let mut taken = self.taken.lock();
        while *taken {
            taken = match until.wait(&self.freed, &self.taken, taken) {
                Ok(taken) => taken,
                Err(error) if error.kind() == ErrorKind::Cancelled => return Err(error),
                Err(error) => return Err(late(error)),
            };
        }
        *taken = true;
        Ok(Alone(self))
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        *self.0.taken.lock() = false;
        self.0.freed.notify_one();
    }
}

impl std::fmt::Debug for OneAtATime {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_tuple("OneAtATime").field(&*self.taken.lock()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::limits::Limits;

    fn long() -> Until {
        Until::new(&Limits::default())
    }

    fn one() -> OneAtATime {
        OneAtATime::new(&Clock::default())
    }

    #[test]
    fn nobody_waits_longer_than_the_call() {
        let one = one();
        let _alone = one.enter(&long(), |late| late).unwrap();
        let begun = Instant::now();
        let short = Until::new(&Limits { deadline_ms: 50, ..Limits::default() });
        let error = one.enter(&short, |late| late.context("another one is in")).err().unwrap();
        assert!(error.to_string().contains("another one is in"), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_call_that_is_cancelled_while_it_waits_goes() {
        let one = one();
        let alone = one.enter(&long(), |late| late).unwrap();
        let cancelled = Arc::new(AtomicBool::new(false));
        let until = Until::with(&Clock::default(), &Limits::default(), None, Some(cancelled.clone()));
        thread::scope(|scope| {
            let waits = scope.spawn(|| one.enter(&until, |_| unreachable!("it is not late")).map(drop));
            thread::sleep(Duration::from_millis(20));
            assert!(!waits.is_finished());
            cancelled.store(true, SeqCst);
            assert_eq!(waits.join().unwrap().unwrap_err().kind(), ErrorKind::Cancelled);
        });
        drop(alone);
    }

    #[test]
    fn the_next_one_goes_on_when_the_other_is_out_however_that_was() {
        let one = one();
        let alone = one.enter(&long(), |late| late).unwrap();
        let out = AtomicBool::new(false);
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let _alone = one.enter(&long(), |late| late).unwrap();
                assert!(out.load(SeqCst));
            });
            thread::sleep(Duration::from_millis(20));
            out.store(true, SeqCst);
            drop(alone);
            waits.join().unwrap();
            let panics = || {
                let _alone = one.enter(&long(), |late| late).unwrap();
                panic!("on purpose");
            };
            assert!(scope.spawn(panics).join().is_err());
        });
        let _alone = one.enter(&long(), |late| late).unwrap();
    }
}
