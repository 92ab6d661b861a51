//! What serving clients takes of the system: streams, locks, time and randomness. Here and in [`clock`](crate::clock) alone, so that
//! `tests/simulate` can run the same sources over a system of its own.

pub use std::net::{Shutdown, TcpStream};
pub use std::time::Instant;

pub use getrandom::fill;
pub use kv_platform::sync::{Condvar, Mutex, MutexGuard};
