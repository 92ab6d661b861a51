//! What a store would keep near, and what stands in its way.

use std::path::PathBuf;

use super::Diagnosis;
use crate::config::{Near, Settings, Verify};
use crate::near::check_directory;

/// What a store keeps of its chunks on this machine, before its backend.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct NearLevel {
    /// Bytes in memory, for all stores of the backend or tenant in a process. 0: none.
    pub memory_bytes: u64,
    /// The directory of the disk tier.
    pub disk: Option<PathBuf>,
    /// The bytes that its files may have together.
    pub disk_bytes: u64,
    /// How long a delete by another process may go unseen, in seconds.
    pub ttl_s: u64,
}

impl Diagnosis {
    pub(super) fn look_near(&mut self, settings: &Settings) {
        let Some(Near { memory_bytes, disk, disk_bytes, ttl_s }) = settings.near.clone() else { return };
        if settings.verify == Verify::Off {
            let remedy = "leave `verify` out, or set it to \"xxh3\" where keys are content hashes; or remove `near`";
            self.problem(false, "the near level keeps nothing, because verify = \"off\"", remedy);
        }
        if let Some(path) = &disk {
            let upper = path.parent().unwrap_or(path);
            if let Err(error) = check_directory(path) {
                let what = format!("the near level runs without its disk tier: {} {error}", path.display());
                self.problem(false, what, "name a directory that is this user's alone as near.disk");
            } else if !upper.is_dir() {
                let what = format!("the near level runs without its disk tier: {} is not a directory", upper.display());
                self.problem(false, what, "create it; the library creates only the last part of a path");
            }
        }
        self.near = Some(NearLevel { memory_bytes, disk, disk_bytes, ttl_s });
    }
}
