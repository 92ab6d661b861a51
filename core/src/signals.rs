//! The consumer's signals stay the consumer's: masks for threads that are started here, and SIGXFSZ kept away from our writes.

pub use kv_platform::signals::{block_signals, with_signals_blocked, without_signal};

/// Whether the process has a bound on the length of files (RLIMIT_FSIZE), past which a write raises SIGXFSZ.
pub fn files_are_bounded() -> bool {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current.is_some()
}
