//! The envelope of layout 2: what tells that a value is the one that was put under this key, whatever a storage system answers.
//! `docs/envelope.md` is its documentation.
//!
//! A value lies as it is, and 64 bytes behind it hold a checksum over kind, key, length and bytes (`tail`). It lies under a key or a
//! name of its own, which software that does not know envelopes never asks for (`keys`). [`Enveloped`] is the layer that does both
//! around a backend: above it, keys, names and lengths are the consumer's.

mod described;
mod generations;
mod keys;
mod layer;
mod meanings;
mod names;
mod tail;

pub use keys::{consumer_key, consumer_name, reduced_key, stored_key, stored_name};
pub use layer::{Enveloped, Setting};
pub use names::RecentNames;
pub use tail::TAIL_BYTES;
#[cfg(test)]
pub(crate) use tail::{Kind, of_later_version};
