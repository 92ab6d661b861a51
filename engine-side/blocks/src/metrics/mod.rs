//! What happened, by level and operation: counts, errors by reason, tokens asked for and found, times.
//!
//! Each thread counts in one of a few stripes, so that threads do not wait for one another's cache lines; a snapshot sums them.

mod report;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

pub use report::{LevelUse, Series, Snapshot, StageTime};

use crate::error::ErrorKind;

/// Where an operation was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Both levels together: what the caller saw.
    Cache,
    /// The near level.
    L1,
    /// The far level.
    L2,
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Op {
    Put,
    Get,
    Acquire,
    Exists,
    Delete,
    Prefetch,
}

/// A stage of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The keys were built.
    Keys,
    /// The near level was looked at, and what it has was copied.
    Near,
    /// The far level was waited for, and what came was copied.
    Far,
    /// Blocks were written to the far level, or handed to it.
    Ingest,
}

impl Level {
    pub(crate) const ALL: [(Level, &str); 3] = [(Level::Cache, "cache"), (Level::L1, "l1"), (Level::L2, "l2")];
}

impl Op {
    pub(crate) const ALL: [(Op, &str); 6] = [
        (Op::Put, "put"),
        (Op::Get, "get"),
        (Op::Acquire, "acquire"),
        (Op::Exists, "exists"),
        (Op::Delete, "delete"),
        (Op::Prefetch, "prefetch"),
    ];
}

impl Stage {
    pub(crate) const ALL: [(Stage, &str); 4] =
        [(Stage::Keys, "keys"), (Stage::Near, "near"), (Stage::Far, "far"), (Stage::Ingest, "ingest")];
}

/// Upper bounds of the histogram, in milliseconds. What took longer is in none of them.
pub const BUCKETS_MS: [u64; 12] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 3000];

const STRIPES: usize = 16;

/// The number of this thread, for whatever is spread over threads.
pub(crate) fn stripe() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static OWN: usize = NEXT.fetch_add(1, Relaxed));
    OWN.try_with(|own| *own).unwrap_or_default()
}

#[derive(Default)]
struct Cell {
    count: AtomicU64,
    asked: AtomicU64,
    found: AtomicU64,
    nanos: AtomicU64,
    errors: [AtomicU64; ErrorKind::ALL.len()],
    buckets: [AtomicU64; BUCKETS_MS.len() + 1],
}

#[derive(Default)]
struct StageCell {
    count: AtomicU64,
    nanos: AtomicU64,
}

/// One stripe. Its alignment keeps stripes off one another's cache lines.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    cells: [[Cell; Op::ALL.len()]; Level::ALL.len()],
    stages: [[StageCell; Stage::ALL.len()]; Op::ALL.len()],
    counts: [AtomicU64; Count::ALL.len()],
}

/// What is counted beside operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Blocks that the near level gave up.
    Evictions,
    /// Blocks that were not written because too many were on their way.
    Dropped,
    /// Blocks that were not written because the far level has them, or is being given them.
    Spared,
    /// Blocks that came from the far level after those who asked had gone.
    Late,
    /// Blocks for which a call waited that another call had asked for.
    Joined,
    /// Blocks of the far level that failed their check.
    Damaged,
    /// Blocks of another prompt under the same key.
    Collisions,
}

impl Count {
    const ALL: [(Count, &'static str); 7] = [
        (Count::Evictions, "evictions"),
        (Count::Dropped, "ingestions_dropped"),
        (Count::Spared, "ingestions_spared"),
        (Count::Late, "late_blocks"),
        (Count::Joined, "joined_blocks"),
        (Count::Damaged, "damaged_blocks"),
        (Count::Collisions, "key_collisions"),
    ];
}

/// The counters of a cache.
pub(crate) struct Metrics {
    stripes: Box<[Stripe]>,
}

impl Metrics {
    pub fn new() -> Self {
        Metrics { stripes: (0..STRIPES).map(|_| Stripe::default()).collect() }
    }

    #[allow(clippy::indexing_slicing, reason = "the remainder is below the number of stripes")]
    fn stripe(&self) -> &Stripe {
        &self.stripes[stripe() % STRIPES]
    }

    #[allow(clippy::indexing_slicing, reason = "both are numbers of enums, and the arrays have as many places")]
    fn cell(&self, level: Level, op: Op) -> &Cell {
        &self.stripe().cells[level as usize][op as usize]
    }

    /// An operation is done: tokens asked for and found, and how long it took, where that is measured.
    pub fn done(&self, level: Level, op: Op, asked: usize, found: usize, took: Option<Duration>) {
        let cell = self.cell(level, op);
        cell.count.fetch_add(1, Relaxed);
        cell.asked.fetch_add(asked as u64, Relaxed);
        cell.found.fetch_add(found as u64, Relaxed);
        let Some(took) = took else { return };
        cell.nanos.fetch_add(took.as_nanos() as u64, Relaxed);
        let bucket = BUCKETS_MS.partition_point(|most| Duration::from_millis(*most) < took);
        if let Some(bucket) = cell.buckets.get(bucket) {
            bucket.fetch_add(1, Relaxed);
        }
    }

    /// So many parts of an operation failed.
    pub fn failed(&self, level: Level, op: Op, kind: ErrorKind, times: usize) {
        if let Some(errors) = self.cell(level, op).errors.get(kind as usize - 1)
            && times > 0
        {
            errors.fetch_add(times as u64, Relaxed);
        }
    }

    /// A stage of an operation took so long.
    #[allow(clippy::indexing_slicing, reason = "both are numbers of enums, and the arrays have as many places")]
    pub fn stage(&self, op: Op, stage: Stage, took: Duration) {
        let cell = &self.stripe().stages[op as usize][stage as usize];
        cell.count.fetch_add(1, Relaxed);
        cell.nanos.fetch_add(took.as_nanos() as u64, Relaxed);
    }

    #[allow(clippy::indexing_slicing, reason = "the number of an enum, and the array has as many places")]
    pub fn count(&self, what: Count, times: usize) {
        if times > 0 {
            self.stripe().counts[what as usize].fetch_add(times as u64, Relaxed);
        }
    }
}
