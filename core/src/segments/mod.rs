//! Many values in few files: a store on one disk, which several processes use at once. `docs/segments.md` has its formats.
//!
//! Values lie in segments, files of one length that are allocated in advance, each filled by one writer. One log says in one order
//! what all processes put, deleted and evicted; a value is stored when the log says so. Each process keeps an index of the log in
//! memory.
//!
//! Invariants: what is answered has held against a checksum over its key, its place and itself; what the log does not say is not
//! there; and a log that cannot be understood is left alone.

mod batch;
mod durable;
mod files;
mod folder;
mod format;
mod frames;
mod index;
mod io;
mod list;
mod log;
mod process;
mod put;
mod room;
mod segment;
mod store;

pub use format::{Key, MAX_KEY_BYTES, Place, SPACES};
pub use index::Total;
pub use list::Listed;
pub use process::SegmentStores;
pub use put::Puts;
pub use room::EvictedValues;
pub use store::{NewValue, SegmentSettings, SegmentStore, ValuePut};
