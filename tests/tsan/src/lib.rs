//! What threads share in the host, without wasmtime: the queue, the fan-out over helpers, the time of a call, the ledger of a save.
//! The files are the host's own; what they use beside each other is stood in for here.

#[path = "../../../host/src/error.rs"]
pub mod error;
#[path = "../../../host/src/until.rs"]
pub mod until;

pub mod backend;
pub mod engine;
pub mod limits;
pub mod store;

mod panics {
    /// Panics are this program's own.
    pub(crate) fn own_thread() {}
}

mod signals {
    /// No signal is sent here.
    pub(crate) fn with_signals_blocked<T>(start: impl FnOnce() -> T) -> T {
        start()
    }
}
