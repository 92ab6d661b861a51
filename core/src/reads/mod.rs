//! Reads of what does not lie in memory. Threads of a pool read into memory of the pool, many at once; the thread whose call it is waits
//! for them, and copies.
//!
//! Invariants:
//! - Only the thread that waits writes its caller's memory, and only until its call returns. A disk that never answers holds a thread of the
//!   pool and its buffer, and not the caller: [`Flight::next`] ends with the call's deadline.
//! - Each read is somebody's, from its start until its bytes are copied, and no owner has more than [`MAX_OWNER_READS`] of the
//!   [`MAX_READS`](crate::limits::MAX_READS), so that depth and memory are shared and bounded. A call has one in any case.

mod buffers;
mod flight;
mod parts;
mod range;

use std::sync::Arc;

use kv_platform::sync::{Mutex, MutexGuard};

use crate::limits::{self, MAX_OWNER_READS};
use crate::process::{Clock, Spawn};
use crate::threads::{Helpers, Turns, Whose};

pub use buffers::Buffers;
pub use flight::{Arrived, Flight, Tag};
pub use parts::{Parts, first_part, parts};
pub use range::{Around, PROBE_BYTES, Range, Read, fill, read_now, read_pieces};

/// What reads for all stores of a process.
pub struct Readers {
    clock: Clock,
    pool: Arc<Helpers>,
    pub buffers: Arc<Buffers>,
    places: Mutex<Turns>,
}

impl Readers {
    /// Threads that `spawn` starts when they are first wanted; `helpers` give memory back that is not used any more.
    pub fn new(clock: &Clock, spawn: &Spawn, helpers: &Arc<Helpers>) -> Arc<Self> {
        let pool = Helpers::new(limits::MAX_READERS, limits::MAX_EXTRA_THREADS, clock.clone(), spawn.clone());
        let places = Turns::new(limits::MAX_READS, limits::MAX_EXTRA_READS).with_most_of_owner(MAX_OWNER_READS);
        Arc::new(Readers {
            clock: clock.clone(),
            pool: Arc::new(pool.with_most_of_owner(limits::MAX_OWNER_READERS)),
            buffers: Arc::new(Buffers::new(helpers)),
            places: Mutex::new(places),
        })
    }

    /// The permit of a read. None: it may not start yet. `first`: it may in any case, because its call has no other.
    fn permit(self: &Arc<Self>, whose: &Whose, first: bool) -> Option<ReadPermit> {
        let mut places = self.places();
        if !first && !places.may_start(whose) {
            return None;
        }
        places.begin(whose);
        Some(ReadPermit { readers: self.clone(), whose: whose.clone() })
    }

    fn places(&self) -> MutexGuard<'_, Turns> {
        self.places.lock()
    }
}

/// Admits one of the reads that there may be at once, from its start until its bytes are copied.
pub struct ReadPermit {
    readers: Arc<Readers>,
    whose: Whose,
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        self.readers.places().end(&self.whose);
    }
}

#[cfg(test)]
mod tests;
