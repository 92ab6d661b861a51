//! A circuit breaker for each store: when its component or its server fails again and again, calls fail at once for a
//! while, in place of each waiting for its deadline. Then one call probes, and a success closes it.
//!
//! Only failures of the component and of reaching the server count, and only those in a row; a miss is an answer.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;

use crate::error::{Error, ErrorKind};
use crate::limits::{self, Limits};
use crate::log::{self, Level};
use crate::process::Clock;

pub struct Breaker {
    /// For its log lines.
    uri: String,
    clock: Clock,
    allowed: u64,
    first_pause: Duration,
    /// Whether there is anything to look at: while all is well no call takes the lock.
    troubled: AtomicBool,
    state: Mutex<BreakerState>,
}

#[derive(Debug, Default)]
struct BreakerState {
    /// Failures in a row.
    failures: u64,
    last: Option<Instant>,
    open: Option<OpenCircuit>,
}

#[derive(Debug)]
struct OpenCircuit {
    until: Instant,
    pause: Duration,
    /// What failed last.
    cause: String,
    /// A call is finding out.
    probing: bool,
    /// The log says that it is open.
    told: bool,
}

/// Leave for one call. Dropped without a report it counts as a failure: the call panicked.
pub struct Pass<'a> {
    breaker: &'a Breaker,
    probe: bool,
    reported: bool,
}

/// Whether failures of a kind count.
pub fn counts(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Component | ErrorKind::Unavailable)
}

impl Breaker {
    pub fn new(uri: &str, limits: &Limits, clock: &Clock) -> Self {
        Breaker {
            uri: uri.to_owned(),
            clock: clock.clone(),
            allowed: limits.breaker_failures,
            first_pause: Duration::from_millis(limits.breaker_ms),
            troubled: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Whether calls fail at once.
    pub fn is_open(&self) -> bool {
        self.state.lock().open.is_some()
    }

    /// Ask for leave for a call. `Unavailable` while the breaker is open.
    pub fn admit(&self) -> Result<Pass<'_>, Error> {
        let pass = |probe| Ok(Pass { breaker: self, probe, reported: false });
        if !self.troubled.load(Relaxed) {
            return pass(false);
        }
        let now = self.clock.now();
        match &mut self.state.lock().open {
            None => pass(false),
            Some(open) if !open.probing && now >= open.until => {
                open.probing = true;
                pass(true)
            }
            Some(open) => {
                let left = open.until.saturating_duration_since(now);
                let when = if open.probing { "now".to_owned() } else { format!("in {} ms", left.as_millis().max(1)) };
                let cause = &open.cause;
                let message = format!(
                    "not tried after repeated failures (circuit breaker); next try {when}. Last failure: {cause}"
                );
                Err(Error::refused_by_breaker(message))
            }
        }
    }

    fn succeeded(&self) {
        if !self.troubled.load(Relaxed) {
            return;
        }
        let mut state = self.state.lock();
        let former = std::mem::take(&mut *state);
        // Under the lock, or it could follow on a failure that came after this success, which nobody would look at then.
        self.troubled.store(false, Relaxed);
        drop(state);
        if former.open.is_some_and(|open| open.told) {
            log::line(Level::Warn, format_args!("{}: works again", self.uri));
        }
    }

    /// Answers whether that opened it.
    fn failed(&self, cause: &str, probe: bool, now: Instant) -> bool {
        if self.allowed == 0 {
            return false;
        }
        let mut state = self.state.lock();
        self.troubled.store(true, Relaxed);
        match &mut state.open {
            Some(open) if probe => {
                open.pause = open.pause.saturating_mul(2).min(limits::BREAKER_MAX_PAUSE);
                (open.until, open.probing, open.cause) = (now + open.pause, false, cause.to_owned());
                return false;
            }
            // A call from before it opened.
            Some(_) => return false,
            None => {}
        }
        let in_a_row = state.last.is_some_and(|last| now.saturating_duration_since(last) < limits::BREAKER_WINDOW);
        state.failures = if in_a_row { state.failures + 1 } else { 1 };
        state.last = Some(now);
        if state.failures < self.allowed {
            return false;
        }
        let pause = self.first_pause;
        let failures = state.failures;
        // A server that comes and goes is told once a minute.
        let due = log::due(Level::Error, &["breaker", &self.uri]);
        let told = due.is_some();
        state.open = Some(OpenCircuit { until: now + pause, pause, cause: cause.to_owned(), probing: false, told });
        drop(state);
        let (uri, pause) = (&self.uri, pause.as_millis());
        let text = format_args!(
            "failed {failures} times in a row, so calls fail at once and one tries it in {pause} ms: {cause}"
        );
        if let Some(due) = due {
            due.say(uri, text);
        }
        true
    }
}

impl Pass<'_> {
    /// Say why the call failed, if it did. Answers whether that opened the breaker.
    pub fn report(mut self, failure: Option<&Error>) -> bool {
        self.reported = true;
        match failure {
            Some(error) if counts(error.kind()) => {
                return self.breaker.failed(&error.to_string(), self.probe, self.breaker.clock.now());
            }
            // Refused or full is neither: only a probe takes it for an answer.
            Some(_) if !self.probe => {}
            _ => self.breaker.succeeded(),
        }
        false
    }

    /// The call was not made after all.
    pub fn give_back(mut self) {
        self.reported = true;
        if self.probe
            && let Some(open) = &mut self.breaker.state.lock().open
        {
            open.probing = false;
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if !self.reported {
            self.breaker.failed("a call did not end", self.probe, self.breaker.clock.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaker(breaker_failures: u64, breaker_ms: u64) -> Breaker {
        Breaker::new("test://x", &Limits { breaker_failures, breaker_ms, ..Limits::default() }, &Clock::default())
    }

    fn outcome(kind: ErrorKind) -> Result<(), Error> {
        Err(Error::new(kind, "the server is away"))
    }

    fn report(breaker: &Breaker, outcome: Result<(), Error>) {
        breaker.admit().unwrap().report(outcome.as_ref().err());
    }

    #[test]
    fn it_opens_after_failures_in_a_row_and_says_why() {
        let breaker = breaker(3, 60_000);
        for kind in [ErrorKind::Component, ErrorKind::Unavailable, ErrorKind::Component] {
            report(&breaker, outcome(kind));
        }
        let error = breaker.admit().err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(
            error.to_string().contains("the server is away") && error.to_string().contains("next try in"),
            "{error}"
        );
    }

    #[test]
    fn what_is_not_in_a_row_does_not_count() {
        let breaker = breaker(2, 60_000);
        for _ in 0..10 {
            report(&breaker, outcome(ErrorKind::Component));
            report(&breaker, Ok(()));
        }
        // Nor does what came long ago.
        let ages = Instant::now();
        breaker.failed("x", false, ages);
        breaker.failed("x", false, ages + limits::BREAKER_WINDOW);
        assert!(breaker.admit().is_ok_and(|pass| {
            pass.give_back();
            true
        }));
        breaker.failed("x", false, ages + limits::BREAKER_WINDOW);
        assert!(breaker.admit().is_err());
    }

    #[test]
    fn other_failures_do_not_count() {
        let breaker = breaker(1, 60_000);
        for kind in
            [ErrorKind::Denied, ErrorKind::Invalid, ErrorKind::Exhausted, ErrorKind::Corrupt, ErrorKind::Unsupported]
        {
            report(&breaker, outcome(kind));
        }
        assert!(breaker.admit().is_ok_and(|pass| {
            pass.give_back();
            true
        }));
    }

    #[test]
    fn one_call_probes_and_closes_it_or_makes_it_wait_longer() {
        let breaker = breaker(1, 1);
        report(&breaker, outcome(ErrorKind::Component));
        std::thread::sleep(Duration::from_millis(2));
        let probe = breaker.admit().unwrap();
        assert!(breaker.admit().err().unwrap().to_string().contains("next try now"));
        probe.report(outcome(ErrorKind::Component).as_ref().err());
        assert_eq!(breaker.state.lock().open.as_ref().unwrap().pause, Duration::from_millis(2));
        std::thread::sleep(Duration::from_millis(3));
        breaker.admit().unwrap().report(None);
        for _ in 0..2 {
            report(&breaker, Ok(()));
        }
        assert!(breaker.state.lock().open.is_none() && !breaker.troubled.load(Relaxed));
    }

    #[test]
    fn a_failure_is_seen_whatever_succeeds_at_the_same_time() {
        let breaker = breaker(u64::MAX, 1);
        std::thread::scope(|scope| {
            let succeeding = scope.spawn(|| (0..2_000_000).for_each(|_| breaker.succeeded()));
            while !succeeding.is_finished() {
                breaker.failed("x", false, Instant::now());
                let state = breaker.state.lock();
                assert!(state.failures == 0 || breaker.troubled.load(Relaxed), "it is not looked at");
            }
        });
    }

    #[test]
    fn a_probe_that_panics_does_not_block_the_next() {
        let breaker = breaker(1, 1);
        report(&breaker, outcome(ErrorKind::Component));
        std::thread::sleep(Duration::from_millis(2));
        drop(breaker.admit().unwrap());
        std::thread::sleep(Duration::from_millis(5));
        breaker.admit().unwrap().give_back();
        breaker.admit().unwrap().report(None);
    }

    #[test]
    fn the_pause_is_bounded_and_none_opens_without_a_limit() {
        let breaker = breaker(1, 1000);
        let mut now = Instant::now();
        breaker.failed("x", false, now);
        for _ in 0..20 {
            breaker.failed("x", true, now);
            now += Duration::from_secs(30);
        }
        assert_eq!(breaker.state.lock().open.as_ref().unwrap().pause, limits::BREAKER_MAX_PAUSE);
        let never = self::breaker(0, 1);
        (0..100).for_each(|_| report(&never, outcome(ErrorKind::Component)));
    }
}
