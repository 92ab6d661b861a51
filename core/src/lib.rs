//! The stores of kv-store-wasm, without what runs components.
//!
//! What happens between a call of an engine and one of a backend is here: saves and their ledgers, batches, queues, the check of
//! what was fetched, the near level, files below a granted directory, and the policy that decides what a URI may reach. What runs a
//! component is behind the traits of [`sandbox`]: the crate `kv-store-wasm` implements them with wasmtime, a test or a simulation
//! with whatever it likes. This crate depends on neither wasmtime nor tokio.
//!
//! Programs use `kv-store-wasm`, which exports what is public of this crate. The modules themselves are no promise.
//! `docs/architecture.md` describes them.

#![warn(missing_docs)]

#[doc(hidden)]
pub mod backend;
pub mod blocks;
#[doc(hidden)]
pub mod breaker;
#[doc(hidden)]
pub mod budget;
pub mod bundle;
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod counters;
mod descriptor;
#[doc(hidden)]
pub mod directory;
#[doc(hidden)]
pub mod envelope;
#[doc(hidden)]
pub mod error;
pub mod limits;
#[doc(hidden)]
pub mod log;
#[doc(hidden)]
pub mod near;
mod one_at_a_time;
pub mod paged;
#[doc(hidden)]
pub mod panics;
#[doc(hidden)]
pub mod payload;
#[doc(hidden)]
pub mod policy;
#[doc(hidden)]
pub mod process;
mod quota;
#[doc(hidden)]
pub mod reads;
mod recent;
#[doc(hidden)]
pub mod sandbox;
pub mod segments;
#[doc(hidden)]
pub mod signals;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod suggest;
#[doc(hidden)]
pub mod threads;
#[doc(hidden)]
pub mod until;
#[doc(hidden)]
pub mod uri;

pub use kvx;

pub use counters::{Latency, Metrics, Series, StoreGauges};
pub use descriptor::{Descriptor, DescriptorDigest, Field};
pub use error::{Error, ErrorKind};
pub use payload::Buffer;
pub use store::{
    BatchOptions, ChunkEntry, Done, Evicted, Eviction, Fetch, Fetched, ManifestEntry, Memory, NewChunk, Outcomes, Page,
    Pages, Presence, Put, Request, RequestQueue, Save, SaveOutcome, Store, StoreInfo, Stored, Usage, metrics,
};
pub use uri::StoreUri;

// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
