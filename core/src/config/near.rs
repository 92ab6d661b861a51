//! The table `near`: what a store keeps of its chunks on this machine.

use std::path::PathBuf;

use serde::Deserialize;

use crate::error::Error;

/// What a backend's stores keep near, those of a tenant apart from others.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Near {
    /// Bytes in memory, for all stores of the backend or tenant in the process. 0: none.
    pub memory_bytes: u64,
    /// A directory of this user alone, absolute, and the bytes that all files in it may have.
    pub disk: Option<PathBuf>,
    pub disk_bytes: u64,
    /// Seconds after which the backend is asked whether it still has a chunk.
    pub ttl_s: u64,
}

impl Default for Near {
    fn default() -> Self {
        Near { memory_bytes: 0, disk: None, disk_bytes: 0, ttl_s: 300 }
    }
}

/// Fewer bytes keep nothing that is worth a look.
const LEAST_BYTES: u64 = 1 << 20;
const MOST_BYTES: u64 = 1 << 50;
const MOST_SECONDS: u64 = 365 * 24 * 3600;

impl Near {
    pub(super) fn check(&self) -> Result<(), Error> {
        let wrong = |message: String| Err(Error::invalid(format!("near: {message}")));
        let bounded = |bytes: u64| (LEAST_BYTES..=MOST_BYTES).contains(&bytes);
        if self.memory_bytes == 0 && self.disk.is_none() {
            return wrong("keeps nothing: set memory_bytes, or disk and disk_bytes".into());
        }
        if self.memory_bytes != 0 && !bounded(self.memory_bytes) {
            return wrong(format!("memory_bytes must be 0, or between {LEAST_BYTES} and {MOST_BYTES}"));
        }
        if self.disk.is_some() != (self.disk_bytes != 0) {
            return wrong("disk and disk_bytes go together".into());
        }
        if self.disk.as_ref().is_some_and(|path| !path.is_absolute()) {
            return wrong("disk must be an absolute path".into());
        }
        if self.disk.is_some() && !bounded(self.disk_bytes) {
            return wrong(format!("disk_bytes must be between {LEAST_BYTES} and {MOST_BYTES}"));
        }
        if !(1..=MOST_SECONDS).contains(&self.ttl_s) {
            return wrong(format!("ttl_s must be between 1 and {MOST_SECONDS}"));
        }
        Ok(())
    }
}
