//! The order of changes: a file is replaced or removed by the deadline of its call, or not at all, whichever process asks for it.
//!
//! A process that was stopped between its write and its rename would else undo a later change that was acknowledged meanwhile. The look at the
//! clock and the rename are one step for all who take the lock, and the kernel gives the lock of a process that died back. A lock that a
//! stopped process holds delays the others until their own deadlines; then theirs are not done either.
//!
//! `tests/models/src/local_fs.rs`: "an acknowledged change is not undone". `docs/decisions/late-changes.md` has why.

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::Directory;
use crate::error::{Error, ErrorKind};
use crate::one_at_a_time::Alone;
use crate::until::Until;

/// How long the first wait for another process is, and the longest. `flock` itself knows no end.
const FIRST_PAUSE: Duration = Duration::from_micros(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(5);

/// It is this thread's turn in its process, and then in the machine.
struct Turn<'a> {
    directory: &'a Directory,
    locked: bool,
    // All threads share the descriptor, and so would share its lock. Given back last.
    _alone: Alone<'a>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.locked {
            let _ = flock(&self.directory.root, FlockOperation::Unlock);
        }
    }
}

impl Directory {
    /// Make a change in its turn, by the deadline of the call, or not at all. None: it has no deadline, and no order.
    pub(super) fn in_turn<T>(
        &self,
        until: Option<&Until>,
        change: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let Some(until) = until else { return change() };
        let _turn = self.turn(until)?;
        self.check_in_time(until)?;
        change()
    }

    /// Refuse a change past the deadline.
    pub(super) fn check_in_time(&self, until: &Until) -> Result<(), Error> {
        match until.left().is_zero() {
            true => Err(not_done("its deadline passed before the file could be changed")),
            false => Ok(()),
        }
    }

    fn turn(&self, until: &Until) -> Result<Turn<'_>, Error> {
        let late = |error: Error| match error.kind() {
            ErrorKind::Cancelled => error,
            _ => not_done(
                "another change of this directory is not over: a process that makes one is stopped, or waits for its disk",
            ),
        };
        let alone = self.order.enter(until, late)?;
        let mut turn = Turn { directory: self, locked: false, _alone: alone };
        // Network file systems without locks: there the order holds within this process.
        turn.locked = flock_within(&self.root, until).map_err(late)?.is_ok();
        Ok(turn)
    }
}

/// Take the lock of a file or a folder for this process, within the time of a call. The inner error: it cannot be locked.
pub(crate) fn flock_within(file: impl AsFd, until: &Until) -> Result<Result<(), Errno>, Error> {
    let mut pause = FIRST_PAUSE;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => {
                until.check()?;
                until.clock().sleep(pause.min(until.left()));
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            Err(Errno::INTR) => {}
            answer => return Ok(answer),
        }
    }
}

fn not_done(why: &str) -> Error {
    Error::new(ErrorKind::Unavailable, format!("not done: {why} (deadline_ms)"))
}

#[cfg(test)]
mod tests {
    use super::super::{RelativePath, Shared};
    use super::*;
    use crate::limits::Limits;
    use crate::process::{Clock, Time};
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::time::{Instant, SystemTime};

    fn path() -> RelativePath {
        RelativePath::parse("manifest".into()).unwrap()
    }

    fn until(clock: &Clock, deadline_ms: u64) -> Until {
        Until::with(clock, &Limits { deadline_ms, ..Limits::default() }, None, None)
    }

    fn directory(at: &Path, clock: &Clock) -> Directory {
        let shared = Arc::new(Shared::of_test(clock.clone()));
        Directory::open(at, &shared).unwrap()
    }

    /// Another process.
    struct Child(libc::pid_t);

    impl Child {
        fn run(work: impl FnOnce()) -> Self {
            // SAFETY: the child uses what glibc leaves usable in it, and ends by `_exit`.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
                // SAFETY: ends the child at once, without what the test program does at its end.
                unsafe { libc::_exit(i32::from(done.is_err())) };
            }
            Child(child)
        }

        fn signal(&self, signal: i32) {
            // SAFETY: a child of this process that was not waited for.
            assert_eq!(unsafe { libc::kill(self.0, signal) }, 0);
        }

        /// Wait until it is stopped; false: it has ended.
        fn is_stopped(&self) -> bool {
            let mut status = 0;
            // SAFETY: `status` is ours.
            assert_eq!(unsafe { libc::waitpid(self.0, &mut status, libc::WUNTRACED) }, self.0);
            libc::WIFSTOPPED(status)
        }

        /// Whether it has ended; it can be waited for still.
        fn has_ended(&self) -> bool {
            // SAFETY: all zeroes is a value of this plain structure.
            let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
            let how = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            // SAFETY: `found` is ours.
            assert_eq!(unsafe { libc::waitid(libc::P_PID, self.0.unsigned_abs(), &raw mut found, how) }, 0);
            // SAFETY: `waitid` filled it, with 0 where the child has not ended.
            (unsafe { found.si_pid() }) != 0
        }

        fn go_on_to_its_end(&self) {
            self.signal(libc::SIGCONT);
            assert!(!self.is_stopped());
        }
    }

    /// A process that was stopped after it had begun to write and before it renamed. One that was not caught there has done its work, and
    /// is begun anew.
    fn stopped_while_it_writes(own: &Directory, at: &Path, write: impl Fn()) -> Child {
        for _ in 0..100 {
            own.write(&path(), &[b"former"], true, false, None).unwrap();
            let child = Child::run(&write);
            while std::fs::read_dir(at.join(".kv-tmp")).unwrap().next().is_none() && !child.has_ended() {
                std::hint::spin_loop();
            }
            child.signal(libc::SIGSTOP);
            if child.is_stopped() {
                if std::fs::metadata(at.join("manifest")).unwrap().len() == 6 {
                    return child;
                }
                child.go_on_to_its_end();
            }
        }
        panic!("it never was caught while it wrote");
    }

    #[test]
    fn a_process_that_was_stopped_while_it_wrote_does_not_undo_what_came_later() {
        // Without the order the earlier one undoes it.
        for (ordered, removes) in [(false, false), (true, false), (true, true)] {
            let scratch = tempfile::tempdir().unwrap();
            let clock = Clock::default();
            let own = directory(scratch.path(), &clock);
            let temporaries = scratch.path().join(".kv-tmp");
            let value = vec![b'a'; 64 << 20];
            let child = stopped_while_it_writes(&own, scratch.path(), || {
                let own = directory(scratch.path(), &clock);
                let until = ordered.then(|| until(&clock, 300));
                let _ = own.write(&path(), &[&value, &value], true, false, until.as_ref());
            });
            std::thread::sleep(Duration::from_millis(400));
            match removes {
                false => drop(own.write(&path(), &[b"later"], true, false, Some(&until(&clock, 60_000))).unwrap()),
                true => assert!(own.remove(&path(), false, Some(&until(&clock, 60_000))).unwrap()),
            }
            child.go_on_to_its_end();
            let there = std::fs::read(scratch.path().join("manifest")).ok();
            if !ordered {
                assert_eq!(there.map(|there| there.len()), Some(2 * value.len()));
                continue;
            }
            assert_eq!(there.as_deref(), (!removes).then_some(&b"later"[..]), "an acknowledged change was undone");
            assert!(std::fs::read_dir(&temporaries).unwrap().next().is_none(), "what was not done leaves nothing");
        }
    }

    /// A clock at which its process stops once.
    struct Stops(AtomicBool);

    impl Time for Stops {
        fn now(&self) -> Instant {
            if self.0.swap(false, Relaxed) {
                // SAFETY: stops this process, until its parent has it go on.
                unsafe { libc::raise(libc::SIGSTOP) };
            }
            Instant::now()
        }
        fn wall(&self) -> SystemTime {
            SystemTime::now()
        }
    }

    #[test]
    fn while_a_process_is_stopped_in_its_turn_no_later_change_is_acknowledged() {
        let scratch = tempfile::tempdir().unwrap();
        let clock = Clock::default();
        let own = directory(scratch.path(), &clock);
        let child = Child::run(|| {
            let stops = Arc::new(Stops(AtomicBool::new(false)));
            let slow = Clock::of(stops.clone());
            let own = directory(scratch.path(), &slow);
            let until = until(&slow, 60_000);
            // From here on the next look at the clock is the one in its turn.
            stops.0.store(true, Relaxed);
            let _ = own.write(&path(), &[b"earlier"], true, false, Some(&until));
        });
        assert!(child.is_stopped());
        let refused = own.write(&path(), &[b"later"], true, false, Some(&until(&clock, 50))).unwrap_err();
        assert!(refused.to_string().contains("not done"), "{refused}");
        assert!(own.remove(&path(), false, Some(&until(&clock, 50))).is_err());
        child.go_on_to_its_end();
        assert_eq!(std::fs::read(scratch.path().join("manifest")).unwrap(), b"earlier");
        own.write(&path(), &[b"later"], true, false, Some(&until(&clock, 60_000))).unwrap();
        assert_eq!(std::fs::read(scratch.path().join("manifest")).unwrap(), b"later");
    }

    #[test]
    fn threads_take_turns_and_who_is_late_changes_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let clock = Clock::default();
        let own = directory(scratch.path(), &clock);
        let within = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let alone = own.in_turn(Some(&until(&clock, 60_000)), || {
                            let others = within.fetch_add(1, Relaxed);
                            within.fetch_sub(1, Relaxed);
                            Ok(others == 0)
                        });
                        assert!(alone.unwrap());
                    }
                });
            }
        });
        let passed = Until::with(&clock, &Limits::default(), Some(Instant::now()), None);
        assert!(own.in_turn(Some(&passed), || -> Result<(), Error> { unreachable!() }).is_err());
        assert!(
            own.write(&path(), &[b"x"], false, false, Some(&passed)).is_err(),
            "a new file has no order, and an end"
        );
        assert!(!scratch.path().join("manifest").exists());
    }
}
