//! One flush of a save at a time: of the chunks that wait, each is stored by one thread. Who comes meanwhile waits, within the time of its
//! own call.

use kv_platform::sync::Mutex;

use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::process::{Clock, Condition};
use crate::until::Until;

pub(super) struct Flushing {
    clock: Clock,
    running: Mutex<bool>,
    over: Condition,
}

/// A flush that is running, until it is dropped.
pub(super) struct Flush<'a>(&'a Flushing);

impl Flushing {
    pub(super) fn new(clock: &Clock) -> Self {
        Flushing { running: Mutex::new(false), over: Condition::new(clock), clock: clock.clone() }
    }

    /// Begin a flush, after the one that another thread has begun.
    pub(super) fn begin(&self, until: &Until) -> Result<Flush<'_>, Error> {
        let mut running = self.running.lock();
        while *running {
            until.check().map_err(|error| match error.kind() {
                ErrorKind::Cancelled => error,
                _ => under_way_too_long(),
            })?;
            let left = until.deadline().saturating_duration_since(self.clock.now());
            // A caller that cancels wakes nobody.
            running = self.over.wait_timeout(&self.running, running, left.min(limits::HELD_CHANGE_LOOK));
        }
        *running = true;
        Ok(Flush(self))
    }
}

impl Drop for Flush<'_> {
    fn drop(&mut self) {
        *self.0.running.lock() = false;
        self.0.over.notify_one();
    }
}

fn under_way_too_long() -> Error {
    Error::busy(
        "not done: another call has been storing chunks of the same save for as long as this one may wait (deadline_ms); try again",
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use super::super::Store;
    use super::*;
    use crate::limits::Limits;
    use crate::sandbox::fake::Fakes;

    const LONG: Duration = Duration::from_secs(60);

    /// The backend holds up the flush of one thread for longer than another one may wait.
    #[test]
    fn a_call_ends_in_time_though_another_thread_flushes() {
        let fakes: Arc<Fakes> = Arc::default();
        let uri = "fake://h:1/flushed-by-another";
        let setup = fakes.setup("[backend.fake.limits]\ndeadline_ms = 100\nbreaker_failures = 0\n");
        let store = Store::open_with(uri, &setup).unwrap();
        let (begun, begins) = mpsc::channel();
        let (go, held) = mpsc::channel::<()>();
        let held = Mutex::new(held);
        let is_first = AtomicBool::new(true);
        fakes.store(uri).during_changes(move |_| {
            if is_first.swap(false, Relaxed) {
                begun.send(()).unwrap();
                let _ = held.lock().recv();
            }
        });
        thread::scope(|scope| {
            scope.spawn(|| {
                store.put_chunk(b"a", b"x").unwrap();
                store.put_manifest("m", b"a")
            });
            begins.recv_timeout(LONG).unwrap();
            let (told, tells) = mpsc::channel();
            let store = &store;
            scope.spawn(move || {
                store.put_chunk(b"b", b"y").unwrap();
                told.send(store.put_manifest("n", b"b")).unwrap();
            });
            let answered = tells.recv_timeout(LONG / 4);
            drop(go);
            let error = answered.expect("it waits for the other one").unwrap_err();
            assert!(error.is_busy() && error.to_string().contains("another call has been storing"), "{error}");
        });
        // What it put is still there for the next manifest.
        store.put_manifest("n", b"b").unwrap();
        assert!(fakes.store(uri).keys().len() == 2);
    }

    #[test]
    fn one_goes_on_when_the_other_has_ended_however_that_was() {
        let (clock, limits) = (Clock::default(), Limits::default());
        let flushing = Flushing::new(&clock);
        let first = flushing.begin(&Until::new(&limits)).unwrap();
        let cancelled = Until::with(&clock, &limits, None, Some(Arc::new(AtomicBool::new(true))));
        assert_eq!(flushing.begin(&cancelled).err().unwrap().kind(), ErrorKind::Cancelled);
        thread::scope(|scope| {
            let second = scope.spawn(|| flushing.begin(&Until::new(&limits)).map(drop));
            drop(first);
            second.join().unwrap().unwrap();
        });
        thread::scope(|scope| {
            let panics = || {
                let _flush = flushing.begin(&Until::new(&limits)).unwrap();
                panic!("on purpose");
            };
            assert!(scope.spawn(panics).join().is_err());
        });
        flushing.begin(&Until::new(&limits)).unwrap();
    }
}
