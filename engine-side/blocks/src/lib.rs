//! A cache of token blocks over two levels: memory, and any far level that takes batches.
//!
//! A block is the KV state of `block_size` tokens. Its key depends on every token up to its end, on the model, the layout, the
//! dtype, the rank and the namespace. [`Cache`] keeps blocks in memory with a chosen eviction policy, and writes those that
//! are worth it to a [`Far`] level, which it asks for what memory has not. It knows nothing of storage systems: the far level
//! is handed slots of the cache's memory, and hands them back.
//!
//! `docs/blocks.md` is the operator's page.

mod cache;
pub mod config;
mod error;
mod far;
mod key;
pub mod limits;
pub mod metrics;
mod near;
pub mod policy;
mod slab;
mod spec;
mod sync;
mod value;

pub use cache::Cache;
pub use config::Config;
pub use error::{Error, ErrorKind, Result};
pub use far::{Blocking, DamagedItem, Far, Features, GetItem, Noop, Outcome, PutItem, Request, Work, Workers};
pub use key::{Key, KeyBuilder, KeyHash, Keys, SCOPE_BYTES};
pub use slab::{Acquired, Block, Slot};
pub use spec::{Dtype, Layout, Spec};

// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
