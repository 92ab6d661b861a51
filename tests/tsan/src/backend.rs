//! The hash of a chunk.

#[path = "../../../host/src/backend/hash.rs"]
mod hash;

pub use hash::ChunkHash;
pub(crate) use hash::ChunkMap;
