//! Paged KV-cache kernels on the CPU: write tokens into a cache, gather them out, quantise on the
//! way. Safe Rust over borrowed buffers, and the same behind the KVX C ABI (`include/kvx_abi.h`).
//!
//! - [`KvCache`] and [`KvCacheMut`] are views of an engine's K and V pools: a [`CacheShape`], a
//!   [`DType`] and a [`Layout`] for each.
//! - [`Write`] puts [`KvTokens`] into [`Slots`]; [`Gather`] fills [`KvTokensMut`] by way of a
//!   [`BlockTable`].
//! - [`Scale`] belongs to FP8 caches.
//! - [`ffi`] has the four C functions.
//!
//! Invariant of the crate: a call is validated as a whole before its first byte is written, so a
//! refused call has changed nothing. Sizes and offsets are computed in 64 bits or more, checked.
//!
//! No function keeps a pointer, a thread or a setting after it returns (but for the number of
//! threads that the C functions read once), and any number of threads may call any of them.
//!
//! "KVX section n" in this documentation is the KVX v1 specification.

#![deny(unsafe_op_in_unsafe_fn)]
#![warn(missing_docs)]

mod cache;
mod dtype;
mod error;
pub mod ffi;
mod gather;
mod index;
mod kernel;
mod layout;
mod run;
mod scale;
mod table;
mod threads;
mod write;

pub use cache::{KvCache, KvCacheMut, KvTokens, KvTokensMut, KvTokensUninit};
pub use dtype::DType;
pub use error::{Error, ErrorKind, Result};
pub use gather::Gather;
pub use index::IndexSlice;
pub use layout::{CacheShape, Layout};
pub use scale::{KvScales, Scale};
pub use table::{BlockTable, OffsetPools};
pub use write::{Slots, Write};

// The programs of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
