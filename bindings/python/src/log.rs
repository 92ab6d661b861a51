//! Lines of the library's log on their way to Python's `logging`: a bounded queue. `kv_store_wasm/_log.py` empties it, on a thread of its own.
//!
//! Invariant: a thread of the library that says a line waits for nobody but for the queue's lock, which is never held while Python runs. A line
//! that finds the queue full is dropped and counted; one that finds no queue goes to standard error. A child that was forked off has a queue of
//! its own, because a thread that is missing there may hold the lock of its parent's.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

use kv_platform::sync::{Condvar, Mutex};
use kv_store_wasm::raw::log::{Level, line, set_sink};
use pyo3::prelude::*;

/// Lines that may wait, of at most 1 KiB those of stores and of 2 KiB those of rows.
const MAX_LINES: usize = 1024;

/// Whose line it is, as `_log.py` numbers its loggers.
#[derive(Clone, Copy)]
enum Whose {
    Stores = 0,
    Rows = 1,
}

struct Line {
    level: Level,
    whose: Whose,
    text: String,
}

/// What `_log.py` is given: a level of `logging`, the number of the logger, the text.
type LogRecord = (u8, u8, String);

impl Line {
    fn record(self) -> LogRecord {
        let level = match self.level {
            Level::Debug => 10,
            Level::Info => 20,
            Level::Warn => 30,
            Level::Error | Level::Off => 40,
        };
        (level, self.whose as u8, self.text)
    }
}

struct LogQueue {
    process: u32,
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: VecDeque<Line>,
    /// How many were dropped after the last of them.
    dropped: u64,
    ended: bool,
}

impl Waiting {
    fn take(&mut self) -> Option<Line> {
        self.lines.pop_front().or_else(|| self.of_dropped())
    }

    fn of_dropped(&mut self) -> Option<Line> {
        let dropped = std::mem::take(&mut self.dropped);
        let text =
            || format!("{dropped} lines were dropped: {MAX_LINES} were waiting for the handlers of Python's logging");
        (dropped > 0).then(|| Line { level: Level::Warn, whose: Whose::Stores, text: text() })
    }
}

impl LogQueue {
    /// Whether the line is in it, or counted.
    fn takes(&self, level: Level, whose: Whose, text: &impl Display) -> bool {
        let text = text.to_string();
        let mut waiting = self.waiting.lock();
        if waiting.ended {
            return false;
        }
        if waiting.lines.len() >= MAX_LINES {
            waiting.dropped += 1;
            return true;
        }
        if let Some(dropped) = waiting.of_dropped() {
            waiting.lines.push_back(dropped);
        }
        waiting.lines.push_back(Line { level, whose, text });
        drop(waiting);
        self.changed.notify_one();
        true
    }
}

/// That of the process. Never freed: a thread may be in the middle of it.
static QUEUE: AtomicPtr<LogQueue> = AtomicPtr::new(std::ptr::null_mut());

/// Whether Python wanted lines of the level debug when it was asked last.
static DEBUG: AtomicBool = AtomicBool::new(false);

fn queue() -> Option<&'static LogQueue> {
    // SAFETY: what was set is never freed.
    let queue = unsafe { QUEUE.load(Acquire).as_ref() }?;
    (queue.process == std::process::id()).then_some(queue)
}

/// Say a line where there is no queue for it: within the sink, and without one, that is standard error.
fn say(level: Level, whose: Whose, text: impl Display) {
    if !queue().is_some_and(|queue| queue.takes(level, whose, &text)) {
        line(level, text);
    }
}

struct Sink;

impl log::Log for Sink {
    fn enabled(&self, asked: &log::Metadata<'_>) -> bool {
        asked.level() <= log::Level::Info || DEBUG.load(Relaxed)
    }

    fn log(&self, record: &log::Record<'_>) {
        let level = match record.level() {
            log::Level::Error => Level::Error,
            log::Level::Warn => Level::Warn,
            log::Level::Info => Level::Info,
            log::Level::Debug | log::Level::Trace => Level::Debug,
        };
        say(level, Whose::Stores, record.args());
    }

    fn flush(&self) {}
}

/// Have the lines of this process wait for Python. False: they do already, for this interpreter or another.
#[pyfunction]
pub fn log_begin(debug: bool) -> bool {
    DEBUG.store(debug, Relaxed);
    if queue().is_some_and(|queue| !queue.waiting.lock().ended) {
        return false;
    }
    let queue = LogQueue { process: std::process::id(), waiting: Mutex::default(), changed: Condvar::new() };
    if QUEUE.swap(Box::into_raw(Box::new(queue)), Release).is_null() {
        // Once, and never in a child: its lock is of no use there if a thread of the parent held it.
        kv_cache::set_log(Some(Box::new(|text| say(Level::Warn, Whose::Rows, text))));
    }
    set_sink(Some(Box::new(Sink)));
    true
}

/// The next line; waits for it without the GIL. None: there will be no more.
#[pyfunction]
pub fn log_next(py: Python<'_>, debug: bool) -> Option<LogRecord> {
    DEBUG.store(debug, Relaxed);
    let queue = queue()?;
    let wait = || {
        let mut waiting = queue.waiting.lock();
        loop {
            let line = waiting.take();
            if line.is_some() || waiting.ended {
                return line;
            }
            waiting = queue.changed.wait(waiting);
        }
    };
    py.detach(wait).map(Line::record)
}

/// Have lines go to standard error from now on, and the wait of `log_next` end.
#[pyfunction]
pub fn log_end() {
    set_sink(None);
    if let Some(queue) = queue() {
        queue.waiting.lock().ended = true;
        queue.changed.notify_all();
    }
}

/// Lines that nobody took go to standard error.
#[pyfunction]
pub fn log_rest(py: Python<'_>) {
    let rest = || queue().and_then(|queue| queue.waiting.lock().take());
    py.detach(|| std::iter::from_fn(rest).for_each(|Line { level, text, .. }| line(level, text)));
}

/// A store or a cache is opened: have lines go to `logging`. What goes wrong with that fails no open.
pub fn start(py: Python<'_>) {
    let started = py.import("kv_store_wasm._log").and_then(|module| module.call_method0("start"));
    if let Err(error) = started {
        error.write_unraisable(py, None);
    }
}
