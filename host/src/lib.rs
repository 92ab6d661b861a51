//! kv-store-wasm: storage backends for KV state, as sandboxed WebAssembly components.
//!
//! An engine loads `libkv_store_wasm.so`, which the crates `ffi` and `library` make of this one, through the C ABI in
//! `include/kv_store_abi.h`; a Rust program uses [`Store`]. A store is one opened URI; behind it is a component, found by the URI's scheme, that reaches what the URI names and nothing else.
//! A program that names config, components, cache and log itself, whatever the environment says, builds a [`Host`].
//! `docs/architecture.md` describes the modules of this crate.

#![warn(missing_docs)]

mod backend;
pub mod blocks;
mod breaker;
mod budget;
mod config;
mod contract;
mod counters;
mod directory;
mod doctor;
mod engine;
mod error;
mod host;
mod inspect;
pub mod limits;
mod loader;
mod log;
mod near;
pub mod paged;
mod panics;
mod payload;
mod policy;
mod pool;
mod precompile;
mod process;
mod quota;
mod signals;
mod store;
mod suggest;
mod until;
mod uri;

/// The paged-KV kernels, whose views of caches [`paged`] takes.
pub use kvx;

pub use counters::{Latency, Metrics, Series, StoreGauges, metrics};
pub use doctor::{ConfigReport, Depth, Diagnosis, NearLevel, Problem, Reached, Reaches, Secret, check_config, doctor};
pub use error::{Error, ErrorKind};
pub use host::{Host, HostBuilder};
pub use inspect::{Import, Inspection, inspect};
pub use payload::Buffer;
pub use precompile::{Compiled, compile};
pub use store::{
    BatchOptions, ChunkEntry, Done, Evicted, Eviction, Fetch, Fetched, ManifestEntry, Memory, NewChunk, Outcomes, Page,
    Pages, Presence, Put, Request, RequestQueue, Save, SaveOutcome, Store, StoreInfo, Usage,
};
pub use uri::StoreUri;

/// For the crate of the C ABI, whose callers answer for their memory. No promise is made about any of it.
#[doc(hidden)]
pub mod raw {
    /// A backend's calls, for a layer around them.
    pub mod backend {
        pub use crate::backend::{
            Answers, Backend, Bytes, ChunkHash, Committed, Got, Layer, MakeLayer, NewChunk, Target, expect_some,
        };
        pub use crate::error::contract_violation;
    }
    pub use crate::panics::caught;
    pub use crate::store::{Job, Opened, Queue, Served, SubmittedPut, Wanted};
    pub use crate::until::Until;
    pub mod log {
        pub use crate::log::{Level, clean, line, set_sink};
    }
}
