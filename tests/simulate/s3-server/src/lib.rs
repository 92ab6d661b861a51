//! An S3 server without time, threads and connections: those are the caller's. `tests/simulate/src/shipped/s3/tests.rs` compares each answer
//! with that of a real server.

pub mod bucket;
pub mod dates;
pub mod listing;
pub mod message;
pub mod record;
pub mod sign;

use std::sync::Arc;

/// Bytes that are stored.
pub type Value = Arc<Vec<u8>>;
