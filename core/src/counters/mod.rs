//! What happened, in numbers: for each backend and tenant, and for the process. Counted without a lock on the way of a
//! call; they begin at 0 with the process, and in a child that was forked off.

mod connections;
mod listener;
mod report;
mod unanswered;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kv_platform::sync::Mutex;

pub use listener::check_address;
pub use report::Gauged;
pub use report::{Latency, Metrics, Series, StoreGauges};
pub use unanswered::Unanswered;

use crate::error::{Error, ErrorKind};
use crate::limits;
use crate::payload::Buffer;

/// What a consumer can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
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

impl Operation {
    /// Whether it brings bytes.
    pub fn puts(self) -> bool {
        matches!(self, Operation::PutChunk | Operation::PutManifest | Operation::PutMany | Operation::Commit)
    }

    /// As the C ABI names the call.
    pub fn name(self) -> &'static str {
        OPERATIONS.get(self as usize).copied().unwrap_or_default()
    }
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
        pub enum Event { $($event,)* }

        /// In the order of their numbers.
        const EVENTS: &[(&str, &str)] = &[$(($name, $help),)*];
    };
}

events! {
    BytesPut "put_bytes" "Bytes of chunks and manifests that the consumer put.";
    BytesGot "got_bytes" "Bytes of chunks and manifests that the consumer got.";
    Hits "hits" "Chunks and manifests that were asked for and answered.";
    Misses "misses" "Chunks and manifests that were asked for and are not there.";
    Duplicates "duplicate_chunks" "Chunks that were put and there already.";
    WrongBytes "wrong_chunks" "Chunks and manifests that were fetched with other bytes than were put, and not answered.";
    Removed "removed_chunks" "Damaged chunks that were removed from the backend, for the next put to store them again.";
    Layout1Reads "layout1_reads" "Chunks and manifests that were found in layout 1, where they have no checksum.";
    ForeignEnvelopes "foreign_envelopes" "Chunks and manifests that a later version wrote, and that were missed and left alone.";
    OlderManifests "older_manifests" "Manifests that were older than one that was read before, and not answered.";
    OtherDescriptors "other_descriptors" "Chunks and manifests that lie under another descriptor, and that were missed and left alone.";
    RefusedDescriptors "descriptor_refused" "Puts that were refused because a value of another descriptor lies under the key or the name.";
    Evicted "evicted" "Chunks and manifests that the host had the backend evict.";
    BytesEvicted "evicted_bytes" "Bytes of those.";
    BufferHits "write_buffer_hits" "Chunks that were answered out of the write buffer.";
    PrefetchHits "prefetch_hits" "Chunks that were answered out of the prefetch cache.";
    Prefetched "prefetched_chunks" "Chunks that came into the prefetch cache.";
    NearHits "near_hits" "Chunks that were answered out of the near level.";
    NearMisses "near_misses" "Chunks that the near level did not have, and the backend was asked for.";
    NearBytes "near_hit_bytes" "Bytes that were answered out of the near level.";
    NearConfirmed "near_confirmed" "Chunks that were near for longer than ttl_s, and that the backend was found to have still.";
    NearWritten "near_written" "Chunks that were written to the disk tier of the near level.";
    NearDropped "near_dropped" "Chunks that were not: too many waited, the disk was full, or they were deleted meanwhile.";
    NearDamaged "near_damaged" "Files of the disk tier that were damaged, and removed.";
    Retried "retried_chunks" "Chunks that a flush left in the write buffer for the next, after a passing failure.";
    Discarded "discarded_chunks" "Chunks that close discarded because no manifest followed them.";
    QuotaRefused "quota_refused" "Calls of the consumer that a quota of the config refused.";
    GuestCpu "guest_cpu_milliseconds" "CPU time of the component in milliseconds, by samples of 10.";
    GuestCalls "guest_calls" "Calls into the component.";
    Traps "traps" "Calls that ended in a trap.";
    Timeouts "timeouts" "Calls that were stopped at their deadline.";
    ContractViolations "contract_breaches" "Calls that the component answered with what the contract does not allow.";
    Instances "instances" "Instances that were made.";
    Busy "busy" "Calls that found no instance free.";
    BreakerOpened "breaker_opened" "How often the circuit breaker opened.";
    BreakerRefused "breaker_refused" "Calls that were not tried while it was open.";
    UnknownChanges "changes_unknown" "Changes that failed and may still be carried out, until their deadlines.";
    Connected "connections_made" "Connections that were made.";
    Resumed "connections_resumed" "Connections that were used again.";
}

/// What a call came to, as its latency is counted.
const OUTCOMES: [&str; 3] = ["ok", "miss", "error"];

/// The upper bounds of the classes of latencies. What takes longer than the last is in a class of its own.
const BOUNDS: [Duration; 16] = [
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
];

/// How long calls took.
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    nanoseconds: AtomicU64,
}

/// What a call answers that may find nothing.
pub trait Answer: Sized {
    fn is_miss(&self) -> bool {
        false
    }

    /// Of a batch: what its first item that failed says.
    fn failure(&self) -> Option<&Error> {
        None
    }
}

impl Answer for () {}
impl<T> Answer for Vec<Option<T>> {}
impl Answer for Vec<bool> {}

impl<T> Answer for Vec<Result<T, Error>> {
    fn failure(&self) -> Option<&Error> {
        self.iter().find_map(|item| item.as_ref().err())
    }
}

impl<T> Answer for (Arc<T>, Option<String>) {}
impl<T> Answer for Arc<T> {}

impl Answer for Option<Buffer> {
    fn is_miss(&self) -> bool {
        self.is_none()
    }
}

/// The numbers of one backend and tenant.
pub struct Counters {
    /// By operation and outcome.
    latencies: [[Histogram; OUTCOMES.len()]; OPERATIONS.len()],
    errors: [AtomicU64; ErrorKind::NAMES.len()],
    events: [AtomicU64; EVENTS.len()],
    unanswered: unanswered::ByReason,
}

impl Counters {
    fn new() -> Self {
        let zero = |_| AtomicU64::new(0);
        Counters {
            latencies: std::array::from_fn(|_| {
                std::array::from_fn(|_| Histogram {
                    buckets: std::array::from_fn(zero),
                    nanoseconds: AtomicU64::new(0),
                })
            }),
            errors: std::array::from_fn(zero),
            events: std::array::from_fn(zero),
            unanswered: unanswered::ByReason::new(),
        }
    }

    pub fn add(&self, event: Event, amount: u64) {
        if let Some(counter) = self.events.get(event as usize) {
            counter.fetch_add(amount, Relaxed);
        }
    }

    pub fn count(&self, event: Event) {
        self.add(event, 1);
    }

    /// One call of the consumer, what it came to and how long it took: two additions, and a third if it failed.
    pub fn call<T: Answer>(&self, operation: Operation, outcome: &Result<T, Error>, took: Duration) {
        let (is_miss, failure) = match outcome {
            Ok(answer) => (answer.is_miss(), answer.failure()),
            Err(error) => (false, Some(error)),
        };
        let number = if failure.is_some() { 2 } else { usize::from(is_miss) };
        let class = BOUNDS.partition_point(|bound| *bound < took);
        if let Some(histogram) = self.latencies.get(operation as usize).and_then(|outcomes| outcomes.get(number)) {
            if let Some(bucket) = histogram.buckets.get(class) {
                bucket.fetch_add(1, Relaxed);
            }
            histogram.nanoseconds.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
        }
        if let Some(error) = failure
            && let Some(counter) = self.errors.get((error.kind() as usize).wrapping_sub(1))
        {
            counter.fetch_add(1, Relaxed);
        }
    }
}

/// The counters of a process, its open stores, and who asks for them.
#[derive(Default)]
pub struct ProcessCounters {
    all: CountersByBackend,
    pub(crate) open: report::GaugedStores,
    pub(crate) served: listener::ServedMetrics,
}

#[derive(Default)]
struct CountersByBackend(Mutex<HashMap<BackendAndTenant, Arc<Counters>>>);

/// A backend, and its tenant.
type BackendAndTenant = (String, Option<String>);

impl CountersByBackend {
    fn of(&self, backend: &str, tenant: Option<&str>) -> Arc<Counters> {
        let mut all = self.0.lock();
        let mut key = (backend.to_owned(), tenant.map(str::to_owned));
        if all.len() >= limits::MAX_SERIES && !all.contains_key(&key) {
            key = ("other".to_owned(), None);
        }
        all.entry(key).or_insert_with(|| Arc::new(Counters::new())).clone()
    }
}

impl ProcessCounters {
    /// The counters of a backend and a tenant. Past [`limits::MAX_SERIES`] of them, those that all others share.
    pub fn of(&self, backend: &str, tenant: Option<&str>) -> Arc<Counters> {
        self.all.of(backend, tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_series_is_bounded() {
        let all = CountersByBackend::default();
        for n in 0..limits::MAX_SERIES + 100 {
            all.of(&format!("scheme-{n}"), None).count(Event::Traps);
        }
        assert_eq!(all.0.lock().len(), limits::MAX_SERIES + 1);
        assert_eq!(all.of("other", None).events[Event::Traps as usize].load(Relaxed), 100);
        // Those that were there go on.
        all.of("scheme-7", None).count(Event::Traps);
        assert_eq!(all.of("scheme-7", None).events[Event::Traps as usize].load(Relaxed), 2);
    }

    #[test]
    fn the_page_of_metrics_lists_every_event() {
        let guide = include_str!("../../../docs/metrics.md");
        for (name, _) in EVENTS {
            assert!(guide.contains(&format!("`{name}_total`")), "docs/metrics.md does not say what {name} counts");
        }
    }

    #[test]
    fn calls_and_errors_are_counted_under_their_names() {
        let counters = Counters::new();
        let took = Duration::from_millis(7);
        counters.call(Operation::PrefetchChunks, &Ok(()), took);
        counters.call::<()>(Operation::PutChunk, &Err(Error::invalid("x")), took);
        counters.call::<()>(Operation::PutChunk, &Err(Error::new(ErrorKind::Other, "x")), took);
        let series = Series::new("b", None, &counters);
        assert_eq!((series.calls["prefetch_chunks"], series.calls["put_chunk"], series.calls["open"]), (1, 2, 0));
        assert_eq!((series.errors["invalid"], series.errors["other"], series.errors["denied"]), (1, 1, 0));
    }

    #[test]
    fn a_batch_with_an_item_that_failed_is_counted_once_by_the_first() {
        let counters = Counters::new();
        let failed = |kind| Err(Error::new(kind, "on purpose"));
        let items = vec![Ok(None::<u8>), failed(ErrorKind::Unavailable), failed(ErrorKind::Denied)];
        counters.call(Operation::GetMany, &Ok(items), Duration::from_millis(7));
        counters.call(Operation::GetMany, &Ok(vec![Ok(None::<u8>)]), Duration::from_millis(7));
        let series = Series::new("b", None, &counters);
        assert_eq!((series.calls["get_many"], series.errors["unavailable"], series.errors["denied"]), (2, 1, 0));
        let took = |outcome: &str| {
            let is = |latency: &&Latency| latency.operation == "get_many" && latency.outcome == outcome;
            series.latencies.iter().find(is).unwrap().count
        };
        assert_eq!((took("ok"), took("error")), (1, 1));
    }

    #[test]
    fn latencies_are_counted_by_operation_outcome_and_class() {
        let counters = Counters::new();
        let found = || Ok(Some(Buffer::concat(&[b"x"]).unwrap()));
        for microseconds in [1, 100, 101, 9_000, 20_000_000] {
            counters.call(Operation::GetChunk, &found(), Duration::from_micros(microseconds));
        }
        counters.call(Operation::GetChunk, &Ok(None::<Buffer>), Duration::from_micros(300));
        let series = Series::new("b", None, &counters);
        let of = |outcome: &str| {
            let is = |latency: &&Latency| latency.operation == "get_chunk" && latency.outcome == outcome;
            series.latencies.iter().find(is).unwrap()
        };
        let ok = of("ok");
        let filled: Vec<(f64, u64)> = ok.buckets.iter().copied().filter(|(_, count)| *count > 0).collect();
        assert_eq!(filled, [(0.0001, 2), (0.00025, 1), (0.01, 1), (f64::INFINITY, 1)]);
        assert!(ok.count == 5 && (ok.sum_seconds - 20.009_202).abs() < 1e-6, "{ok:?}");
        assert_eq!((of("miss").count, of("error").count, series.calls["get_chunk"]), (1, 0, 6));
    }
}
