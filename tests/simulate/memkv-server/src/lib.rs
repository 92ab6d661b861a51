//! The shipped `memkv-server`, as it serves clients, over a [`System`](os::System) that the program brings: its sources as they are, but for
//! `os` and `clock`, which are where they take time, locks, streams and randomness from. Listening, options and the admin port are left out.
#![allow(dead_code)]

mod clock;
#[path = "../../../../guests/memkv/server/src/disk.rs"]
mod disk;
#[path = "../../../../guests/memkv/server/src/inflight.rs"]
mod inflight;
#[path = "../../../../guests/memkv/server/src/names.rs"]
mod names;
pub mod os;
#[path = "../../../../guests/memkv/server/src/serve.rs"]
mod serve;
#[path = "../../../../guests/memkv/server/src/server.rs"]
mod server;
#[path = "../../../../guests/memkv/server/src/sessions.rs"]
mod sessions;
#[path = "../../../../guests/memkv/server/src/stats.rs"]
mod stats;
#[path = "../../../../guests/memkv/server/src/store/mod.rs"]
mod store;
#[path = "../../../../guests/memkv/server/src/stream.rs"]
mod stream;

pub use names::{Name, Value, name};
pub use server::{Bounds, Server};
pub use store::Store;

/// Lines for an operator, which nobody reads.
pub fn say(_: impl std::fmt::Display) {}
