//! One line for each thing that an operator should know.
//!
//! It goes to standard error, where it waits for nobody, see [`kv_platform::stderr`]; or to the sink that the program has set.
//! What comes from a component is cleaned of control characters, cut, and dropped in a flood. A failure is one line for its store and
//! cause, and one a minute with a count while it lasts. Warnings and errors together have at most [`limits::LOG_BYTES_PER_HOUR`].

mod repeats;

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kv_platform::stderr::Lines;
use rustix::time::{ClockId, clock_gettime};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::process;
use repeats::{Hour, Repeats};

/// The target of each record.
const TARGET: &str = "kv_store_wasm";

/// How much a line matters. `KV_STORE_WASM_LOG` names the least that is shown on standard error: `debug`, `info`, `warn` (the
/// default), `error` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// For who looks for a defect.
    Debug,
    /// What happened as it should.
    Info,
    /// What an operator should look at.
    Warn,
    /// A call that failed.
    Error,
    /// As a bound: no line.
    Off,
}

/// Where lines go in place of standard error.
struct Sink {
    log: Box<dyn ::log::Log>,
    /// The process that set it: in a child that was forked off, threads are missing that may have held its locks.
    generation: u64,
}

/// What was set last. It is never freed: a thread may be in the middle of it.
static SINK: AtomicPtr<Sink> = AtomicPtr::new(std::ptr::null_mut());

thread_local! {
    /// The thread is in the sink, or in the middle of asking it: what is said there goes to standard error.
    static WITHIN: Cell<bool> = const { Cell::new(false) };
}

/// Have lines go to a sink from now on. None: to standard error. The former sink is kept for those who are in the middle of it.
pub fn set_sink(log: Option<Box<dyn ::log::Log>>) {
    let sink = log.map_or(std::ptr::null_mut(), |log| {
        process::watch_forks();
        Box::into_raw(Box::new(Sink { log, generation: process::generation() }))
    });
    SINK.store(sink, Release);
}

/// Have something done with the sink. None: there is none for this thread now, or it panicked.
fn with_sink<T>(run: impl FnOnce(&dyn ::log::Log) -> T) -> Option<T> {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            WITHIN.set(false);
        }
    }
    // SAFETY: what was set is never freed.
    let sink = unsafe { SINK.load(Acquire).as_ref() }?;
    if sink.generation != process::generation() || WITHIN.replace(true) {
        return None;
    }
    let _leave = Leave;
    catch_unwind(AssertUnwindSafe(|| run(&*sink.log))).ok()
}

impl Level {
    fn of_record(self) -> ::log::Level {
        match self {
            Level::Debug => ::log::Level::Debug,
            Level::Info => ::log::Level::Info,
            Level::Warn => ::log::Level::Warn,
            Level::Error | Level::Off => ::log::Level::Error,
        }
    }
}

/// Say a line; on standard error it is `kv-store-wasm: level: text`. What is said often goes by [`repeated`] or [`failure`].
pub fn line(level: Level, text: impl fmt::Display) {
    static OWN: Hour = Hour::of(limits::LOG_BYTES_PER_HOUR / 2);
    line_of(&OWN, "the host", level, text);
}

/// A line that may be said again and again: once for `which`, which tells it from others, and then at most once a minute, with how often
/// it was not said meanwhile.
pub fn repeated(level: Level, which: &[&str], doing: impl fmt::Display, text: impl fmt::Display) {
    if let Some(due) = due(level, which) {
        due.say(doing, text);
    }
}

/// A line that is due, for who must not say it at once.
#[must_use]
pub struct Due {
    level: Level,
    /// How often it was not said.
    more: u64,
}

/// Whether a line of [`repeated`] is due.
pub fn due(level: Level, which: &[&str]) -> Option<Due> {
    static REPEATS: Repeats = Repeats::new();
    if !enabled(level) {
        return None;
    }
    // Another process, and who has set another sink, was told nothing yet.
    let told = xxh3_64_with_seed(&SINK.load(Relaxed).addr().to_le_bytes(), process::generation());
    let which = which.iter().fold(told, |seed, part| xxh3_64_with_seed(part.as_bytes(), seed));
    let more = REPEATS.admit(which, now())?;
    Some(Due { level, more })
}

impl Due {
    pub fn say(self, doing: impl fmt::Display, text: impl fmt::Display) {
        match self.more {
            0 => line(self.level, format_args!("{doing}: {text}")),
            more => line(self.level, format_args!("{doing} ({more} more since the last line of this cause): {text}")),
        }
    }
}

/// A call that failed. `store` tells stores apart. Its cause is the kind of the error; of requests that cannot be served it is the operation
/// too, because each has a mistake of its own. `doing` and `text` are what is said.
pub fn failure(operation: &str, store: &str, error: &Error, doing: impl fmt::Display, text: impl fmt::Display) {
    let kind = ErrorKind::NAMES.get((error.kind() as usize).wrapping_sub(1)).copied().unwrap_or_default();
    let mistaken = if error.kind() == ErrorKind::Invalid { operation } else { "" };
    let busy = if error.is_busy() { "busy" } else { "" };
    repeated(Level::Error, &["failure", store, kind, busy, mistaken], doing, text);
}

/// Since some moment of this run of the machine; it never goes back.
fn now() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// A line of one of those who share what an hour may have.
fn line_of(hour: &Hour, whose: &str, level: Level, text: impl fmt::Display) {
    if !enabled(level) {
        return;
    }
    let text = clean(&text.to_string());
    // Who asked for lower levels asked for many lines.
    if matches!(level, Level::Warn | Level::Error) {
        // With the name and the level that standard error has in front.
        match hour.take(text.len() + 32, now()) {
            None => return,
            Some(0) => {}
            Some(dropped) => say(Level::Warn, &format!("{whose}: {dropped} lines were dropped: too many in an hour")),
        }
    }
    say(level, &text);
}

/// Say a line that is clean.
fn say(level: Level, text: &str) {
    let record = |sink: &dyn ::log::Log| {
        sink.log(
            &::log::Record::builder().level(level.of_record()).target(TARGET).args(format_args!("{text}")).build(),
        );
    };
    if with_sink(record).is_some() {
        return;
    }
    let name = match level {
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warning",
        Level::Error | Level::Off => "error",
    };
    static LINES: Lines = Lines::new("kv-store-wasm: warning");
    LINES.write(&format!("kv-store-wasm: {name}: {text}"));
}

/// What one component, or all of them, may log in a second. What is over it is dropped and counted.
pub struct Rate {
    lines: u32,
    bytes: u32,
    second: AtomicU64,
    used_lines: AtomicU32,
    used_bytes: AtomicU32,
    dropped: AtomicU32,
}

impl Rate {
    /// That of the component of one store.
    pub const fn of_one() -> Self {
        Rate::new(limits::LOG_LINES_PER_SECOND, limits::LOG_BYTES_PER_SECOND)
    }

    const fn new(lines: u32, bytes: u32) -> Self {
        Rate {
            lines,
            bytes,
            second: AtomicU64::new(0),
            used_lines: AtomicU32::new(0),
            used_bytes: AtomicU32::new(0),
            dropped: AtomicU32::new(0),
        }
    }

    /// Whether a line of so many bytes may be written in a second, and how many were dropped before it began.
    fn take(&self, second: u64, bytes: u32) -> (bool, u32) {
        let mut dropped = 0;
        // A clock that is set back makes one window longer, no more.
        if self.second.swap(second, Relaxed) != second {
            self.used_lines.store(0, Relaxed);
            self.used_bytes.store(0, Relaxed);
            dropped = self.dropped.swap(0, Relaxed);
        }
        let lines = self.used_lines.fetch_add(1, Relaxed);
        // A line that is over it uses none of it up.
        let fits = |used: u32| used.checked_add(bytes).filter(|used| *used <= self.bytes);
        let allowed = lines < self.lines && self.used_bytes.try_update(Relaxed, Relaxed, fits).is_ok();
        if !allowed {
            self.dropped.fetch_add(1, Relaxed);
        }
        (allowed, dropped)
    }
}

/// A line on behalf of a component, within its own rate and that of all components.
pub fn component_line(level: Level, component: &str, text: &str, rate: &Rate) {
    if !enabled(level) {
        return;
    }
    static ALL: Rate =
        Rate::new(limits::LOG_LINES_PER_SECOND * limits::LOG_STORES, limits::LOG_BYTES_PER_SECOND * limits::LOG_STORES);

    let text = clean(text);
    let second = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
    for (rate, whose) in [(rate, component), (&ALL, "all components")] {
        let (allowed, dropped) = rate.take(second, bytes);
        if dropped > 0 {
            line(Level::Warn, format_args!("{whose}: {dropped} lines were dropped: too many in a second"));
        }
        if !allowed {
            return;
        }
    }
    static OF_COMPONENTS: Hour = Hour::of(limits::LOG_BYTES_PER_HOUR / 2);
    line_of(&OF_COMPONENTS, "all components", level, format_args!("{component}: {text}"));
}

fn enabled(level: Level) -> bool {
    let asked = ::log::Metadata::builder().level(level.of_record()).target(TARGET).build();
    with_sink(|sink| sink.enabled(&asked)).unwrap_or_else(|| is_shown(level))
}

/// Whether standard error has lines of this level.
fn is_shown(level: Level) -> bool {
    // Not a lock that is filled once: a fork in the middle of that would leave it locked in the child.
    static LEAST: AtomicU8 = AtomicU8::new(UNREAD);
    const UNREAD: u8 = u8::MAX;
    let mut least = LEAST.load(Relaxed);
    if least == UNREAD {
        let named = std::env::var_os(VARIABLE).map(|named| named.to_string_lossy().into_owned());
        let (wanted, unknown) = least_shown(named.as_deref());
        least = wanted as u8;
        // One thread says it, and the line itself finds the level read.
        if LEAST.compare_exchange(UNREAD, least, Relaxed, Relaxed).is_ok()
            && let Some(unknown) = unknown
        {
            line(Level::Warn, unknown);
        }
    }
    level as u8 >= least
}

const VARIABLE: &str = "KV_STORE_WASM_LOG";

/// The least level that is shown, and what is wrong with the variable's value.
fn least_shown(named: Option<&str>) -> (Level, Option<String>) {
    let level = match named {
        None | Some("" | "warn") => Level::Warn,
        Some("debug") => Level::Debug,
        Some("info") => Level::Info,
        Some("error") => Level::Error,
        Some("off") => Level::Off,
        Some(other) => {
            let message =
                format!("{VARIABLE}={other} is no level: set it to debug, info, warn, error or off; warn is used");
            return (Level::Warn, Some(message));
        }
    };
    (level, None)
}

/// What is wrong with the level that the environment names.
pub fn unknown_level() -> Option<String> {
    least_shown(std::env::var_os(VARIABLE).map(|named| named.to_string_lossy().into_owned()).as_deref()).1
}

/// One line of text: control characters replaced, cut at the limit.
pub fn clean(text: &str) -> String {
    let mut cleaned = String::with_capacity(text.len().min(limits::MAX_LOG_LINE_BYTES));
    for c in text.chars() {
        if cleaned.len() + c.len_utf8() > limits::MAX_LOG_LINE_BYTES {
            cleaned.push('…');
            break;
        }
        cleaned.push(if c.is_control() || is_unseen(c) { ' ' } else { c });
    }
    cleaned
}

/// Characters that make a line read as another: those that break it in some viewers, that turn its direction, and those that
/// have no width, which is what Unicode calls default-ignorable.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}'
        | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_is_none_is_told() {
        assert_eq!(least_shown(None), (Level::Warn, None));
        assert_eq!(least_shown(Some("off")), (Level::Off, None));
        for wrong in ["trace", "WARN", "2"] {
            let (level, told) = least_shown(Some(wrong));
            assert_eq!(level, Level::Warn);
            assert!(told.is_some_and(|told| told.contains(wrong) && told.contains("debug, info")), "{wrong}");
        }
    }

    #[test]
    fn what_cannot_be_seen_does_not_stay() {
        for unseen in
            ["\u{200b}", "\u{200d}", "\u{2060}", "\u{feff}", "\u{ad}", "\u{61c}", "\u{e0041}", "\u{3164}", "\u{202e}"]
        {
            assert_eq!(clean(&format!("se{unseen}cret")), "se cret", "{unseen:?}");
        }
        assert_eq!(clean("größe 大きさ ε₀"), "größe 大きさ ε₀");
    }

    /// In a child, because the log is the process's.
    #[test]
    fn lines_go_to_the_sink_that_was_set_and_its_own_to_standard_error() {
        use std::sync::{Arc, Mutex};
        struct Kept(Arc<Mutex<Vec<String>>>);
        impl ::log::Log for Kept {
            fn enabled(&self, asked: &::log::Metadata<'_>) -> bool {
                asked.level() <= ::log::Level::Info && asked.target() == "kv_store_wasm"
            }
            fn log(&self, record: &::log::Record<'_>) {
                // It must not come back here.
                line(Level::Error, "said by the sink");
                let text = record.args().to_string();
                assert!(text != "panics");
                self.0.lock().unwrap().push(format!("{}: {text}", record.level()));
            }
            fn flush(&self) {}
        }
        let said: Arc<Mutex<Vec<String>>> = Arc::default();
        let of_sink = said.clone();
        assert!(process::holds_in_a_child(AssertUnwindSafe(move || {
            set_sink(Some(Box::new(Kept(of_sink.clone()))));
            line(Level::Info, "one\nline");
            line(Level::Debug, "not asked for");
            line(Level::Error, "panics");
            line(Level::Warn, "two");
            // The threads of a child's parent are gone, with what they had locked.
            let in_child = AssertUnwindSafe(|| {
                line(Level::Error, "of a child");
                of_sink.lock().unwrap().len() == 2
            });
            let child = process::holds_in_a_child(in_child);
            set_sink(None);
            line(Level::Error, "on standard error");
            child && *of_sink.lock().unwrap() == ["INFO: one line", "WARN: two"]
        })));
    }

    #[test]
    fn a_rate_bounds_lines_and_bytes_and_tells_what_it_dropped() {
        let rate = Rate::new(3, 100);
        let allowed = (0..10).filter(|_| rate.take(1, 10).0).count();
        assert_eq!(allowed, 3);
        assert_eq!(rate.take(2, 90), (true, 7));
        assert_eq!(rate.take(2, 11), (false, 0));
        assert_eq!(rate.take(2, 10), (true, 0));
        assert_eq!(rate.take(3, 1), (true, 1));
    }

    #[test]
    fn a_line_stays_one_line_of_bounded_length() {
        assert_eq!(clean("a\nb\r\x1b[31mc\u{2028}d"), "a b  [31mc d");
        let long = clean(&"é".repeat(2000));
        assert!(long.len() <= limits::MAX_LOG_LINE_BYTES + '…'.len_utf8() && long.ends_with('…'));
    }
}
