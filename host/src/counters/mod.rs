//! What happened, in numbers: for each backend and tenant, and for the process. Counted without a lock on the way of a
//! call; they begin at 0 with the process, and in a child that was forked off.

mod report;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

pub use report::{Metrics, Series, metrics};

use crate::engine::PerProcess;
use crate::error::{Error, ErrorKind};
use crate::limits;

/// What a consumer can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Open,
    PutChunk,
    GetChunk,
    PutManifest,
    GetManifest,
    DeleteManifest,
    PrefetchChunks,
    PutMany,
    GetMany,
    ExistsMany,
    DeleteMany,
    Commit,
}

/// In the order of their numbers.
const OPERATIONS: [&str; 12] = [
    "open",
    "put_chunk",
    "get_chunk",
    "put_manifest",
    "get_manifest",
    "delete_manifest",
    "prefetch_chunks",
    "put_many",
    "get_many",
    "exists_many",
    "delete_many",
    "commit",
];

/// Declares what is counted besides calls and errors: a variant, its name, what it says.
macro_rules! events {
    ($($event:ident $name:literal $help:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Event { $($event,)* }

        /// In the order of their numbers.
        const EVENTS: &[(&str, &str)] = &[$(($name, $help),)*];
    };
}

events! {
    BytesPut "put_bytes" "Bytes of chunks and manifests that the consumer put.";
    BytesGot "got_bytes" "Bytes of chunks and manifests that the consumer got.";
    Misses "misses" "Chunks and manifests that were asked for and are not there.";
    Duplicates "duplicate_chunks" "Chunks that were put and there already.";
    WrongBytes "wrong_chunks" "Chunks that were fetched with other bytes than were put, and not answered.";
    Removed "removed_chunks" "Damaged chunks that were removed from the backend, for the next put to store them again.";
    BufferHits "write_buffer_hits" "Chunks that were answered out of the write buffer.";
    PrefetchHits "prefetch_hits" "Chunks that were answered out of the prefetch cache.";
    Prefetched "prefetched_chunks" "Chunks that came into the prefetch cache.";
    Retried "retried_chunks" "Chunks that a flush left in the write buffer for the next, after a passing failure.";
    Discarded "discarded_chunks" "Chunks that close discarded because no manifest followed them.";
    GuestCalls "guest_calls" "Calls into the component.";
    Traps "traps" "Calls that ended in a trap.";
    Timeouts "timeouts" "Calls that were stopped at their deadline.";
    Lies "contract_breaches" "Calls that the component answered with what the contract does not allow.";
    Instances "instances" "Instances that were made.";
    Busy "busy" "Calls that found no instance free.";
    BreakerOpened "breaker_opened" "How often the circuit breaker opened.";
    BreakerRefused "breaker_refused" "Calls that were not tried while it was open.";
    Connected "connections_made" "Connections that were made.";
    Resumed "connections_resumed" "Connections that were used again.";
}

/// The numbers of one backend and tenant.
pub(crate) struct Counters {
    calls: [AtomicU64; OPERATIONS.len()],
    errors: [AtomicU64; ErrorKind::NAMES.len()],
    events: [AtomicU64; EVENTS.len()],
}

impl Counters {
    fn new() -> Self {
        let zero = |_| AtomicU64::new(0);
        Counters {
            calls: std::array::from_fn(zero),
            errors: std::array::from_fn(zero),
            events: std::array::from_fn(zero),
        }
    }

    pub(crate) fn add(&self, event: Event, amount: u64) {
        if let Some(counter) = self.events.get(event as usize) {
            counter.fetch_add(amount, Relaxed);
        }
    }

    pub(crate) fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// One call of the consumer, and what it came to.
    pub(crate) fn call<T>(&self, operation: Operation, outcome: &Result<T, Error>) {
        if let Some(counter) = self.calls.get(operation as usize) {
            counter.fetch_add(1, Relaxed);
        }
        if let Err(error) = outcome
            && let Some(counter) = self.errors.get((error.kind() as usize).wrapping_sub(1))
        {
            counter.fetch_add(1, Relaxed);
        }
    }
}

#[derive(Default)]
struct All(Mutex<HashMap<Key, &'static Counters>>);

/// A backend, and its tenant.
type Key = (String, Option<String>);

fn all() -> Result<&'static All, Error> {
    static ALL: PerProcess<All> = PerProcess::new();
    ALL.get_or_make(|| Ok(All::default()))
}

impl All {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, &'static Counters>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn of(&self, backend: &str, tenant: Option<&str>) -> &'static Counters {
        let mut all = self.lock();
        let mut key = (backend.to_owned(), tenant.map(str::to_owned));
        if all.len() >= limits::MAX_SERIES && !all.contains_key(&key) {
            key = ("other".to_owned(), None);
        }
        all.entry(key).or_insert_with(|| Box::leak(Box::new(Counters::new())))
    }
}

/// The counters of a backend and a tenant. Past [`limits::MAX_SERIES`] of them, those that all others share.
pub(crate) fn of(backend: &str, tenant: Option<&str>) -> Result<&'static Counters, Error> {
    Ok(all()?.of(backend, tenant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_series_is_bounded() {
        let all = All::default();
        for n in 0..limits::MAX_SERIES + 100 {
            all.of(&format!("scheme-{n}"), None).count(Event::Traps);
        }
        assert_eq!(all.lock().len(), limits::MAX_SERIES + 1);
        assert_eq!(all.of("other", None).events[Event::Traps as usize].load(Relaxed), 100);
        // Those that were there go on.
        all.of("scheme-7", None).count(Event::Traps);
        assert_eq!(all.of("scheme-7", None).events[Event::Traps as usize].load(Relaxed), 2);
    }

    #[test]
    fn the_operator_guide_lists_every_event() {
        let guide = include_str!("../../../docs/operator-guide.md");
        for (name, _) in EVENTS {
            assert!(
                guide.contains(&format!("`{name}_total`")),
                "docs/operator-guide.md does not say what {name} counts"
            );
        }
    }

    #[test]
    fn calls_and_errors_are_counted_under_their_names() {
        let counters = Counters::new();
        counters.call(Operation::PrefetchChunks, &Ok(()));
        counters.call::<()>(Operation::PutChunk, &Err(Error::invalid("x")));
        counters.call::<()>(Operation::PutChunk, &Err(Error::new(ErrorKind::Other, "x")));
        let series = Series::new("b", None, &counters);
        assert_eq!((series.calls["prefetch_chunks"], series.calls["put_chunk"], series.calls["open"]), (1, 2, 0));
        assert_eq!((series.errors["invalid"], series.errors["other"], series.errors["denied"]), (1, 1, 0));
    }
}
