//! The bounds that the host's files use.

use std::time::Duration;

pub const MAX_HASH_BYTES: usize = 64;
pub const MAX_QUEUE_THREADS: usize = 8;
pub const MAX_QUEUE_DEPTH: usize = 1 << 16;
pub const MAX_HELPER_JOBS: usize = 256;
pub const MAX_FRESH_CHUNKS: usize = 1 << 18;
pub const CONFIRMED_FOR: Duration = Duration::from_secs(5);
pub const LOSS_TOLD_FOR: Duration = Duration::from_secs(5);
pub const DEADLINE_GRACE: Duration = Duration::from_millis(500);
pub const DEADLINE_BYTES_PER_SECOND: u64 = 8 << 20;
pub const MAX_SERVERS_OF_A_CALL: usize = 1024;

#[derive(Clone, Debug)]
pub struct Limits {
    pub deadline_ms: u64,
    pub patience_ms: u64,
    pub instances: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { deadline_ms: 10_000, patience_ms: 5_000, instances: 0 }
    }
}

impl Limits {
    pub(crate) fn deadline(&self) -> Duration {
        Duration::from_millis(self.deadline_ms)
    }

    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }
}

pub(crate) fn time_to_move(bytes: u64) -> Duration {
    Duration::from_millis(bytes.saturating_mul(1000) / DEADLINE_BYTES_PER_SECOND)
}
