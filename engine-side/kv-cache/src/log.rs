//! One line for each thing that an operator should know: on standard error, or where the consumer wants it.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use kv_platform::stderr::Lines;
use kv_platform::sync::RwLock;

/// The longest line, in bytes.
const MAX_LINE_BYTES: usize = 2048;

type Sink = dyn Fn(&str) + Send + Sync;

static SINK: RwLock<Option<Arc<Sink>>> = RwLock::new(None);

/// Hands the log lines of all caches of this process to a function, without a line end. `None` restores the default: lines go to
/// standard error, as `kv-cache: text`.
///
/// The function is called by any thread, also by the threads of caches, and must not call this crate: a lock of the cache may be
/// held. It may still get a line whose writing began before it was replaced.
pub fn set_log(sink: Option<Box<Sink>>) {
    let sink = sink.map(Arc::from);
    let former = std::mem::replace(&mut *SINK.write(), sink);
    // After the lock is released: what it has captured may do anything.
    drop(former);
}

/// Say something to the operator.
pub(crate) fn warn(text: impl Display) {
    static LINES: Lines = Lines::new("kv-cache");
    let tame = |c: char| if c.is_control() { ' ' } else { c };
    let mut line: String = text.to_string().chars().map(tame).collect();
    line.truncate(line.floor_char_boundary(MAX_LINE_BYTES));
    let sink = SINK.read().clone();
    match sink {
        // One that panics is the consumer's trouble, and no save's.
        Some(sink) => drop(catch_unwind(AssertUnwindSafe(|| sink(&line)))),
        None => LINES.write(&format!("kv-cache: {line}")),
    }
}
