//! The tiers by name, for whoever speaks of one and has none in hand.

use serde::{Deserialize, Serialize};

/// Where rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TierKind {
    /// The memory of this process.
    Ram,
    /// Files on a tmpfs: they outlive the process, not the machine.
    RamFile,
    /// Files on a disk.
    Disk,
}

impl TierKind {
    /// All of them, in the order in which lookups ask them.
    pub const ALL: [TierKind; 3] = [TierKind::Ram, TierKind::RamFile, TierKind::Disk];

    /// Whether its rows take memory.
    pub(crate) fn is_memory(self) -> bool {
        self != TierKind::Disk
    }
}
