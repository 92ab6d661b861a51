//! A token-exact cache of KV state over three tiers.
//!
//! A **row** is the KV state of a sequence of tokens, as opaque bytes. Its **key** is a SHA-256 over the model, the
//! context's parameters and the tokens themselves, so a row is found by exactly the tokens that made it, and never by
//! tokens that are nearly those. A **tier** is where rows lie: `ram`, `ram_file` (a directory on a tmpfs) and `disk`, each
//! with its own budget, order of use and writer.
//!
//! ```
//! use kv_cache::{Cache, Config, Fingerprint, Identity, Query, Save, Saved};
//!
//! # fn main() -> kv_cache::Result<()> {
//! let cache = Cache::open(Config::parse("[ram]\nbudget = \"64 MiB\"\n")?)?;
//! let identity = Identity { fingerprint: Fingerprint::given([7; 32]), quant: 1, context_hash: [9; 32] };
//! let tokens: Vec<u32> = (0..600).collect();
//! let saved = cache.save(Save::new(&identity, &tokens, b"the state of 600 tokens"))?;
//! assert_eq!(saved, Saved::Stored);
//!
//! let hit = cache.lookup(&Query::new(&identity, &tokens))?.expect("it was just saved");
//! let mut state = vec![0; hit.payload_len()];
//! hit.load_into(&mut state)?;
//! assert_eq!((hit.tokens(), state.as_slice()), (600, b"the state of 600 tokens".as_slice()));
//! # Ok(())
//! # }
//! ```
//!
//! - [`Cache`] is the cache of a process, [`Config`] what it is opened with, [`Policy`] what is worth saving.
//! - [`Cache::lookup`] finds the longest usable row for a [`Query`]; the [`Hit`] keeps it alive.
//! - [`row`] is the file of a row, byte for byte; [`tool`] looks into a directory of them.
//! - [`set_log`] takes the lines that an operator should see; without it they go to standard error.
//! - [`ffi`] has the C functions of `include/kv_cache.h`.
//!
//! Invariants: bytes that come from a file are handed out only after they were checked against the row's checksum; one writer for each tier
//! (a lock that no lookup takes) owns its index, order of use and reservations.

#![warn(missing_docs)]

mod cache;
mod clock;
mod config;
mod counters;
mod descriptor;
mod error;
pub mod ffi;
mod fingerprint;
mod gguf;
mod hit;
mod key;
mod kind;
mod lane;
mod limits;
mod log;
mod lookup;
mod payload;
mod policy;
mod pressure;
mod request;
pub mod row;
mod save;
mod threads;
mod tier;
pub mod tool;

pub use cache::{Cache, Options};
pub use clock::{Clock, SystemClock};
pub use config::{Bytes, Config, FileTier, MemoryTier, PressureConfig, PressureKind, QueueConfig};
pub use counters::{Stats, TierStats};
pub use descriptor::Descriptor;
pub use error::{Error, ErrorKind, Result};
pub use fingerprint::{Fingerprint, FingerprintMode};
pub use hit::{Hit, HitKind, View};
pub use key::{Identity, Key};
pub use kind::TierKind;
pub use log::set_log;
pub use lookup::Query;
pub use payload::Payload;
pub use policy::{Gate, Policy};
pub use pressure::{Pressure, Sample, SystemMemory};
pub use request::{Reason, Save, Saved};
pub use tier::{Gc, Step};

// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
