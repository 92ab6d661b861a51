//! kv-store-wasm: storage backends for KV state, as sandboxed WebAssembly components.
//!
//! An engine loads the library through the C ABI in `include/kv_store_abi.h`; a Rust program uses [`Store`]. A store is one
//! opened URI; behind it is a component, found by the URI's scheme, that reaches what the URI names and nothing else.
//! `docs/architecture.md` walks through the rooms of this crate.

mod bindings;
mod breaker;
mod budget;
mod config;
mod counters;
mod directory;
mod doctor;
mod engine;
mod error;
mod fault;
mod ffi;
mod guest;
mod inspect;
pub mod limits;
mod loader;
mod log;
pub mod paged;
mod panics;
mod payload;
mod policy;
mod pool;
mod precompile;
mod signals;
mod store;
mod until;
mod uri;

/// The paged-KV kernels. Named here so that their C functions (`include/kvx_abi.h`) are exported from the library.
pub use kvx;

pub use counters::{Metrics, Series, metrics};
pub use doctor::{Depth, Diagnosis, Problem, Reached, Reaches, Secret, doctor};
pub use error::{Error, ErrorKind};
/// The C ABI, for a program that has the library linked in.
pub use ffi::kv_store_get_vtable;
pub use inspect::{Import, Inspection, inspect};
pub use payload::Buffer;
pub use precompile::{Compiled, compile};
pub use store::{
    BatchOptions, Done, Fetch, Fetched, Memory, NewChunk, Outcomes, Presence, Put, Request, RequestQueue, Save,
    SaveOutcome, Store, StoreInfo,
};
pub use uri::StoreUri;
