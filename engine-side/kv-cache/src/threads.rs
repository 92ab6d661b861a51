//! Threads that the consumer does not notice: they take none of its signals, and nothing waits for them to end.

use std::io;

use kv_platform::signals::with_signals_blocked;

/// Start a thread with all signals blocked.
pub(crate) fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    with_signals_blocked(|| std::thread::Builder::new().name(name.to_owned()).spawn(run)).map(drop)
}
