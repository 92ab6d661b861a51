//! What happened since the cache was opened.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use serde::Serialize;

use crate::kind::TierKind;
use crate::row::{Flaw, SaveReason};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        #[derive(Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)+
            pub saves: [AtomicU64; SaveReason::ALL.len()],
        }

        /// What happened since the cache was opened, and what it holds.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)+
            /// Rows stored, by the number of their reason (see [`SaveReason`]).
            pub saves: [u64; SaveReason::ALL.len()],
            /// The tiers that are open.
            pub tiers: Vec<TierStats>,
        }

        impl Counters {
            pub fn stats(&self, tiers: Vec<TierStats>) -> Stats {
                Stats {
                    $($name: self.$name.load(Relaxed),)+
                    saves: self.saves.each_ref().map(|count| count.load(Relaxed)),
                    tiers,
                }
            }
        }
    };
}

counters! {
    /// Lookups that found a row of exactly their tokens.
    hits_exact,
    /// Lookups that found their parent's row.
    hits_resume,
    /// Lookups that found a row by the longest-prefix walk.
    hits_longest_prefix,
    /// Lookups that found nothing.
    misses,
    /// Lookups that waited for their parent's save.
    resume_waits,
    /// Longest-prefix walks: lookups that were not exact and had a boundary to look at.
    prefix_walks,
    /// Keys that those looked up.
    prefix_probes,
    /// Nanoseconds that lookups took to hash and to walk.
    prefix_nanos,
    /// Rows that were loaded or mapped.
    loads,
    /// Bytes of those.
    loaded_bytes,
    /// Nanoseconds that loading took, checks included.
    load_nanos,
    /// Loads that failed: the row was damaged or gone. The lookup before it was counted as a hit.
    load_misses,
    /// Nanoseconds that storing rows took, in the thread that stored them.
    pack_nanos,
    /// Saves that the policy did not want.
    saves_gated,
    /// Saves of rows that were there, or on their way.
    saves_known,
    /// Saves that found the queue full or were left in it at the end.
    saves_dropped,
    /// Saves that lost their reservation to another writer, or to time.
    saves_abandoned,
    /// Saves that failed: no room, or the system refused.
    saves_failed,
    /// Good files of other writers that became rows of this cache: a save found one in its place, a load found one in place of the
    /// file that it looked for, or gc found one that no row was known of.
    adopted,
    /// Rows evicted: budgets, pressure, and on request.
    evictions,
    /// Bytes of those.
    evicted_bytes,
    /// Evictions because of memory pressure alone.
    pressure_evictions,
    /// Row files that contradict their checksums, themselves or their name.
    corrupt_files,
    /// Row files that end too early.
    truncated_files,
    /// Files with a row's name that are no row files.
    foreign_files,
    /// Row files of a later version, or with reserved fields that are set. They are left alone.
    newer_files,
    /// Rows of another descriptor, under keys that are looked for or saved. They are left alone.
    other_descriptors,
    /// Files whose names end like a row's and are none, as they were when the cache was opened. They are left alone.
    misnamed_files,
    /// Temporary files of writers that died.
    temporaries_reaped,
    /// Tiers whose directory could not be used when the cache was opened: it goes on without them.
    tiers_failed,
}

impl Counters {
    pub fn flaw(&self, flaw: &Flaw) {
        let count = match flaw {
            Flaw::Truncated => &self.truncated_files,
            Flaw::Foreign => &self.foreign_files,
            Flaw::Newer(_) | Flaw::Reserved => &self.newer_files,
            Flaw::OtherDescriptor => &self.other_descriptors,
            Flaw::Corrupt(_) => &self.corrupt_files,
        };
        add(count, 1);
    }

    pub fn saved(&self, reason: SaveReason) {
        if let Some(count) = self.saves.get(usize::from(reason.number())) {
            add(count, 1);
        }
    }
}

impl Stats {
    /// Rows stored for this reason.
    pub fn saves(&self, reason: SaveReason) -> u64 {
        self.saves.get(usize::from(reason.number())).copied().unwrap_or_default()
    }
}

pub(crate) fn add(count: &AtomicU64, n: u64) {
    count.fetch_add(n, Relaxed);
}

pub(crate) fn add_since(count: &AtomicU64, start: Instant) {
    add(count, start.elapsed().as_nanos() as u64);
}

/// What a tier holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TierStats {
    /// Which tier.
    pub tier: TierKind,
    /// Rows that can be found.
    pub rows: u64,
    /// Bytes that they take of the budget.
    pub bytes: u64,
    /// Bytes set apart for saves that are being written.
    pub reserved: u64,
    /// The budget.
    pub budget: u64,
    /// Saves in the queue.
    pub queued: u64,
}
