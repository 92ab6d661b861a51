//! One line on standard error for each thing that an operator should know.
//!
//! It waits for nobody, see [`kv_in_process::stderr`]. What comes from a component is cleaned of control characters, cut, and
//! dropped in a flood.

use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use kv_in_process::stderr::Lines;

use crate::limits;

/// How much a line matters. `KV_STORE_WASM_LOG` names the least that is shown: `debug`, `info`, `warn` (the default),
/// `error` or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Debug,
    Info,
    Warn,
    Error,
    Off,
}

/// Write a line: `kv-store-wasm: level: text`.
pub fn line(level: Level, text: impl fmt::Display) {
    if !enabled(level) {
        return;
    }
    let name = match level {
        Level::Debug => "debug",
        Level::Info => "info",
        Level::Warn => "warning",
        Level::Error | Level::Off => "error",
    };
    static LINES: Lines = Lines::new("kv-store-wasm: warning");
    LINES.write(&format!("kv-store-wasm: {name}: {}", clean(&text.to_string())));
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
    line(level, format_args!("{component}: {text}"));
}

fn enabled(level: Level) -> bool {
    // Not a lock that is filled once: a fork in the middle of that would leave it locked in the child.
    static LEAST: AtomicU8 = AtomicU8::new(UNREAD);
    const UNREAD: u8 = u8::MAX;
    let mut least = LEAST.load(Relaxed);
    if least == UNREAD {
        let named = match std::env::var("KV_STORE_WASM_LOG").as_deref() {
            Ok("debug") => Level::Debug,
            Ok("info") => Level::Info,
            Ok("error") => Level::Error,
            Ok("off") => Level::Off,
            _ => Level::Warn,
        };
        least = named as u8;
        LEAST.store(least, Relaxed);
    }
    level as u8 >= least
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
    fn what_cannot_be_seen_does_not_stay() {
        for unseen in
            ["\u{200b}", "\u{200d}", "\u{2060}", "\u{feff}", "\u{ad}", "\u{61c}", "\u{e0041}", "\u{3164}", "\u{202e}"]
        {
            assert_eq!(clean(&format!("se{unseen}cret")), "se cret", "{unseen:?}");
        }
        assert_eq!(clean("größe 大きさ ε₀"), "größe 大きさ ε₀");
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
