//! kv-store-wasm: storage backends for KV state, as sandboxed WebAssembly components.
//!
//! An engine loads `libkv_store_wasm.so`, which the crates `ffi` and `library` make of this one, through the C ABI in
//! `include/kv_store_abi.h`; a Rust program uses [`Store`]. A store is one opened URI; behind it is a component, found by the URI's scheme, that reaches what the URI names and nothing else.
//! A program that names config, components, cache and log itself, whatever the environment says, builds a [`Host`].
//!
//! What a store does is in the crate `kv-store-core`; this one finds components, runs them with wasmtime, and is the host's side of their
//! contract. `docs/architecture.md` describes the modules of both.

#![warn(missing_docs)]

pub mod blocks;
mod contract;
mod doctor;
mod engine;
mod host;
mod inspect;
mod loader;
mod open;
mod precompile;
mod sandbox;
mod setup;
mod signals;

// The modules of the core crate, under the names that they have there.
use kv_store_core::{
    backend, budget, config, counters, directory, error, log, near, panics, payload, policy, process,
    sandbox as sandbox_traits, segments, store, suggest, threads, until, uri,
};

/// The paged-KV kernels, whose views of caches [`paged`] takes.
pub use kv_store_core::kvx;
pub use kv_store_core::{bundle, limits, paged};

/// What an envelope takes besides its value.
pub const ENVELOPE_BYTES: u64 = kv_store_core::envelope::TAIL_BYTES as u64;

pub use doctor::{
    ConfigReport, Depth, Diagnosis, Lack, NearLevel, Problem, Reached, Reaches, SaidOfValues, Secret, check_config,
    doctor,
};
pub use host::{Host, HostBuilder};
pub use inspect::{Import, Inspection, inspect};
pub use kv_store_core::{
    BatchOptions, ChunkEntry, Done, Evicted, Eviction, Fetch, Fetched, ManifestEntry, Memory, NewChunk, Outcomes, Page,
    Pages, Presence, Put, Request, RequestQueue, Save, SaveOutcome, StoreInfo, Stored, Usage,
};
pub use kv_store_core::{
    Buffer, Descriptor, DescriptorDigest, Error, ErrorKind, Field, Latency, Metrics, Series, StoreGauges, StoreUri,
    metrics,
};
pub use open::Store;
pub use policy::{Scheme, is_endpoint};
pub use precompile::{Compiled, compile};

/// Layers around the instances of stores, for [`HostBuilder::layer`]. They may change with any version until 1.0.
#[cfg(feature = "unstable")]
pub mod layers {
    pub use crate::raw::backend::*;
    // By the names that they have had here from the beginning.
    pub use crate::raw::backend::{BackendLayer as Layer, ChunkToPut as NewChunk};
}

/// For the crate of the C ABI, whose callers answer for their memory. No promise is made about any of it.
#[doc(hidden)]
pub mod raw {
    /// A backend's calls, for a layer around them.
    pub mod backend {
        pub use crate::backend::{
            Answers, Backend, BackendLayer, Bytes, ChunkHash, ChunkToPut, Committed, Got, Opening, Target, Wrap,
            expect_some,
        };
        pub use crate::error::contract_violation;
        pub use kv_store_core::envelope::stored_name;
    }
    /// What guests do with files.
    pub mod files {
        pub use crate::contract::files::{FileEvent, watch};
    }
    pub use crate::panics::caught;
    /// What a test hands in as time.
    pub use crate::process::{Clock, Time};
    pub use crate::store::{FetchItem, Opened, Queue, QueueOwner, QueueTask, SubmittedPut, serve_no_metrics};
    pub use crate::until::Until;
    pub mod log {
        pub use crate::log::{Level, clean, failure, line, set_sink};
    }
}

// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
