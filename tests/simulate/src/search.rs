//! The search for a history that breaks a rule: by several jobs, each with the next seed, until one is found, what was asked for is done, or
//! somebody stops it.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;

use crate::arguments::Arguments;
use crate::oracle::Violation;
use crate::plan::{Less, Plan};
use crate::report::Report;
use crate::threads::Stacks;
use crate::{shortest, sim};

/// A history that runs for so long holds a lock that it waits for.
const HANGS_AFTER: Duration = Duration::from_secs(60);
/// How often it is looked whether one does.
const LOOKS_EVERY: Duration = Duration::from_millis(20);
/// How often a terminal is told how far it is, and whatever else takes the lines.
const TELLS_EVERY: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(600)];

/// What all jobs share.
struct Search<'a> {
    arguments: &'a Arguments,
    begun: Instant,
    next: AtomicU64,
    over: AtomicBool,
    report: Mutex<Report>,
    first: Mutex<Option<(u64, Violation, Duration)>>,
    /// Of each job: since when its history runs, by `passed`, and its seed.
    running: Vec<(AtomicU64, AtomicU64)>,
    /// Milliseconds that passed while the machine had time for this process.
    passed: AtomicU64,
}

/// Somebody wants it to end.
static STOPPED: AtomicBool = AtomicBool::new(false);

extern "C" fn stop(_: libc::c_int) {
    STOPPED.store(true, Relaxed);
}

/// The first SIGINT or SIGTERM has a search end after the histories that run, and tell what came of it; the second one ends it at once.
fn end_by_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: all zeros is an action without flags or a mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = stop as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
        // SAFETY: the handler stores to an atomic, and that is all.
        unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    }
}

/// Run histories until what was asked for is done, or one breaks a rule.
pub fn run(arguments: &Arguments) -> Report {
    end_by_signals();
    let search = Search {
        arguments,
        begun: Instant::now(),
        next: AtomicU64::new(arguments.from),
        over: AtomicBool::new(false),
        report: Mutex::default(),
        first: Mutex::default(),
        running: (0..arguments.jobs).map(|_| (AtomicU64::new(u64::MAX), AtomicU64::new(0))).collect(),
        passed: AtomicU64::new(0),
    };
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..arguments.jobs)
            .map(|job| {
                let search = &search;
                scope.spawn(move || search.work(job))
            })
            .collect();
        let (mut looked, mut told) = (Instant::now(), Instant::now());
        while !jobs.iter().all(|job| job.is_finished()) {
            std::thread::sleep(LOOKS_EVERY);
            // Where others have the machine, jobs have not had the time that has passed.
            search.passed.fetch_add(looked.elapsed().min(2 * LOOKS_EVERY).as_millis() as u64, Relaxed);
            looked = Instant::now();
            search.watch();
            search.tell(&mut told);
        }
    });
    let mut report = std::mem::take(&mut *search.report.lock());
    let first = search.first.lock().take();
    report.found = first.map(|(seed, violation, after)| shortest(seed, arguments.draw, violation, after));
    report
}

impl Search<'_> {
    fn work(&self, job: usize) {
        let Search { arguments, begun, .. } = self;
        let mut stacks = Stacks::default();
        let (since, running) = &self.running[job];
        let last = arguments.histories.map(|histories| arguments.from + histories);
        let time = arguments.until();
        while !self.over.load(Relaxed) && !STOPPED.load(Relaxed) && time.is_none_or(|time| begun.elapsed() < time) {
            let seed = self.next.fetch_add(1, Relaxed);
            if last.is_some_and(|last| seed >= last) {
                return;
            }
            running.store(seed, Relaxed);
            since.store(self.passed.load(Relaxed), Relaxed);
            let history = sim::run(&Plan::of(seed, arguments.draw), &Less::default(), &mut stacks, false);
            since.store(u64::MAX, Relaxed);
            let mut report = self.report.lock();
            report.add(seed, &history);
            let done = arguments.operations.is_some_and(|operations| report.operations >= operations);
            drop(report);
            let ends = done || (history.violation.is_some() && !arguments.goes_on);
            if let Some(violation) = history.violation {
                if arguments.goes_on {
                    eprintln!("seed {seed} breaks {:?}: {}", violation.rule, violation.text);
                }
                self.first.lock().get_or_insert((seed, violation, begun.elapsed()));
            }
            self.over.fetch_or(ends, Relaxed);
        }
    }

    /// End a search in which a history does not go on.
    fn watch(&self) {
        let now = self.passed.load(Relaxed);
        for (since, seed) in &self.running {
            if now.saturating_sub(since.load(Relaxed)) > HANGS_AFTER.as_millis() as u64 {
                let seed = seed.load(Relaxed);
                eprintln!(
                    "seed {seed} breaks \"hangs\": a simulated thread waits for a lock that another one holds while it waits"
                );
                eprintln!("again: cargo xtask simulate --seed {seed}{}", self.arguments.draw.arguments());
                std::process::exit(1);
            }
        }
    }

    /// Say how far it is, now and then.
    fn tell(&self, told: &mut Instant) {
        let on_terminal = std::io::stderr().is_terminal();
        if told.elapsed() < TELLS_EVERY[usize::from(!on_terminal)] {
            return;
        }
        *told = Instant::now();
        let report = self.report.lock();
        let elapsed = self.begun.elapsed().as_secs_f64();
        let line = format!(
            "{elapsed:.0} s: {} histories, {} operations ({:.0}/s), {} violations",
            report.histories,
            report.operations,
            report.operations as f64 / elapsed,
            report.violations
        );
        drop(report);
        let mut stderr = std::io::stderr().lock();
        let _ = match on_terminal {
            true => write!(stderr, "\r{line}\x1b[K"),
            false => writeln!(stderr, "{line}"),
        };
    }
}

impl Drop for Search<'_> {
    /// What comes next on a terminal begins a line.
    fn drop(&mut self) {
        if std::io::stderr().is_terminal() && self.begun.elapsed() > TELLS_EVERY[0] {
            eprintln!();
        }
    }
}
