//! The numbers as they are read: plain data, and as text in the format of OpenMetrics, which Prometheus reads.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write as _};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use kv_platform::sync::{Mutex, MutexGuard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::{BOUNDS, Counters, EVENTS, OPERATIONS, OUTCOMES, ProcessCounters};
use crate::budget::Budgets;
use crate::error::ErrorKind;
use crate::limits;

/// The counters of the process at one moment. `Display` writes them in the text format of OpenMetrics.
///
/// ```
/// # use kv_store_core as kv_store_wasm;
/// let metrics = kv_store_wasm::metrics()?;
/// assert!(metrics.to_string().contains("kv_store_payload_bytes"));
/// # Ok::<(), kv_store_wasm::Error>(())
/// ```
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Metrics {
    /// By backend and tenant.
    pub series: Vec<Series>,
    /// Bytes in the write buffers of all handles.
    pub write_buffer_bytes: u64,
    /// Memory into which files are read that do not lie in the page cache.
    pub read_buffer_bytes: u64,
    /// Payload bytes that all instances hold.
    pub payload_bytes: u64,
    /// What instances cost beside them: linear memory, tables, globals, handles.
    pub memory_bytes: u64,
    /// Descriptors that are open for components, those of connections included.
    pub descriptors: u64,
    /// Open connections, the idle ones included.
    pub connections: u64,
    /// What is known of each open store.
    pub stores: Vec<StoreGauges>,
}

/// What is known of one open store.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[non_exhaustive]
pub struct StoreGauges {
    /// The backend that serves the scheme.
    pub backend: String,
    /// The prefix of URIs that the tenant is known by.
    pub tenant: Option<String>,
    /// The store's own URI.
    pub uri: String,
    /// Bytes of its chunks and manifests. None: its backend is not bounded.
    pub stored_bytes: Option<u64>,
    /// The circuit breaker is open: calls fail at once.
    pub breaker_open: bool,
    /// Bytes of its near level, which the stores of one backend and tenant share, in memory. None: it has none.
    pub near_memory_bytes: Option<u64>,
    /// The same of its disk tier.
    pub near_disk_bytes: Option<u64>,
}

/// The counters of one backend, and of one tenant where there are tenants.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Series {
    /// The backend that serves the scheme.
    pub backend: String,
    /// The prefix of URIs that the tenant is known by.
    pub tenant: Option<String>,
    /// Calls of the consumer, by operation.
    pub calls: BTreeMap<&'static str, u64>,
    /// How long they took, by operation and outcome.
    pub latencies: Vec<Latency>,
    /// Calls that failed, by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// Chunks and manifests that were asked for and not answered, by reason.
    pub unanswered: BTreeMap<&'static str, u64>,
    /// The rest, by name.
    pub events: BTreeMap<&'static str, u64>,
}

/// How long the calls of one operation took that came to one outcome.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// As the C ABI names the call.
    pub operation: &'static str,
    /// `ok`, `miss` or `error`.
    pub outcome: &'static str,
    /// Calls that took at most so many seconds, and more than the bound before; the last bound is infinite, for which JSON has no
    /// number: `null`.
    pub buckets: Vec<(f64, u64)>,
    /// Calls in all.
    pub count: u64,
    /// What they took together.
    pub sum_seconds: f64,
}

impl ProcessCounters {
    /// All of it at this moment.
    pub fn report(&self, budgets: &Budgets, read_buffer_bytes: u64) -> Metrics {
        let mut series: Vec<Series> = {
            let all = self.all.0.lock();
            all.iter().map(|((backend, tenant), counters)| Series::new(backend, tenant.as_deref(), counters)).collect()
        };
        series.sort_by(|a, b| (&a.backend, &a.tenant).cmp(&(&b.backend, &b.tenant)));
        let Budgets { payload_bytes, memory_bytes, descriptors, connections, write_buffers, idle: _ } = budgets;
        Metrics {
            series,
            write_buffer_bytes: write_buffers.used(),
            read_buffer_bytes,
            payload_bytes: payload_bytes.used(),
            memory_bytes: memory_bytes.used(),
            descriptors: descriptors.used(),
            connections: connections.used(),
            stores: self.open.gauges(),
        }
    }

    /// Have metrics tell of a store as long as it is open.
    pub fn gauge<S: Gauged + 'static>(&self, store: &Arc<S>) {
        let store = Arc::downgrade(store);
        self.open.lock().push(store);
    }
}

/// A store that is open.
pub trait Gauged: Send + Sync {
    fn gauges(&self) -> StoreGauges;
}

/// Those that are open.
#[derive(Default)]
pub(crate) struct GaugedStores(Mutex<Vec<Weak<dyn Gauged>>>);

impl GaugedStores {
    /// Those that still are.
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn Gauged>>> {
        let mut open = self.0.lock();
        open.retain(|store| store.strong_count() > 0);
        open
    }

    fn gauges(&self) -> Vec<StoreGauges> {
        // Not told under the lock: the last to hold a store tears it down.
        let open: Vec<Arc<dyn Gauged>> =
            self.lock().iter().take(limits::MAX_STORE_GAUGES).filter_map(Weak::upgrade).collect();
        open.iter().map(|store| store.gauges()).collect()
    }
}

impl Series {
    pub(super) fn new(backend: &str, tenant: Option<&str>, counters: &Counters) -> Self {
        let read = |counters: &[std::sync::atomic::AtomicU64]| -> Vec<u64> {
            counters.iter().map(|counter| counter.load(Relaxed)).collect()
        };
        let mut latencies = Vec::new();
        for (operation, outcomes) in OPERATIONS.into_iter().zip(&counters.latencies) {
            for (outcome, histogram) in OUTCOMES.into_iter().zip(outcomes) {
                let counts = read(&histogram.buckets);
                let bounds = BOUNDS.iter().map(|bound| bound.as_secs_f64()).chain([f64::INFINITY]);
                let sum_seconds = histogram.nanoseconds.load(Relaxed) as f64 / 1e9;
                let count = counts.iter().sum();
                latencies.push(Latency {
                    operation,
                    outcome,
                    buckets: bounds.zip(counts).collect(),
                    count,
                    sum_seconds,
                });
            }
        }
        let mut calls: BTreeMap<&'static str, u64> = BTreeMap::new();
        latencies.iter().for_each(|latency| *calls.entry(latency.operation).or_default() += latency.count);
        Series {
            backend: backend.to_owned(),
            tenant: tenant.map(str::to_owned),
            calls,
            latencies,
            errors: ErrorKind::NAMES.into_iter().zip(read(&counters.errors)).collect(),
            unanswered: counters.unanswered.read().collect(),
            events: EVENTS.iter().map(|(name, _)| *name).zip(read(&counters.events)).collect(),
        }
    }

    /// Its labels, with further ones.
    fn labels<'a>(&'a self, more: &[(&'static str, &'a str)]) -> Vec<(&'static str, String)> {
        let own = [("backend", Some(self.backend.as_str())), ("tenant", self.tenant.as_deref())];
        let own = own.into_iter().filter_map(|(name, value)| Some((name, value?)));
        own.chain(more.iter().copied()).map(|(name, value)| (name, value.to_owned())).collect()
    }
}

/// The counters under the names that they are read by.
#[derive(Debug)]
struct Families(Metrics);

type NoLabels = Vec<(&'static str, String)>;

impl Collector for Families {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let Families(metrics) = self;
        let counted = |encoder: &mut DescriptorEncoder, name: &str, help: &str, values: &[(NoLabels, u64)]| {
            let name = format!("kv_store_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
            values.iter().try_for_each(|(labels, value)| {
                family.encode_family(labels)?.encode_counter::<NoLabels, u64, f64>(value, None)
            })
        };
        let each =
            |of: &dyn Fn(&Series) -> Vec<(NoLabels, u64)>| metrics.series.iter().flat_map(of).collect::<Vec<_>>();
        let calls = each(&|series| {
            series.calls.iter().map(|(name, count)| (series.labels(&[("operation", name)]), *count)).collect()
        });
        counted(&mut encoder, "calls", "Calls of the consumer", &calls)?;
        let errors = each(&|series| {
            series.errors.iter().map(|(name, count)| (series.labels(&[("kind", name)]), *count)).collect()
        });
        counted(&mut encoder, "errors", "Calls of the consumer that failed", &errors)?;
        let unanswered = each(&|series| {
            series.unanswered.iter().map(|(name, count)| (series.labels(&[("reason", name)]), *count)).collect()
        });
        let help = "Chunks and manifests that were asked for and not answered";
        counted(&mut encoder, "unanswered", help, &unanswered)?;
        for (name, help) in EVENTS {
            let events =
                each(&|series| vec![(series.labels(&[]), series.events.get(name).copied().unwrap_or_default())]);
            counted(&mut encoder, name, help.trim_end_matches('.'), &events)?;
        }
        let (name, help) = ("kv_store_call", "How long calls of the consumer took");
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for series in &metrics.series {
            for latency in series.latencies.iter().filter(|latency| latency.count > 0) {
                let labels = series.labels(&[("operation", latency.operation), ("outcome", latency.outcome)]);
                let Latency { buckets, count, sum_seconds, .. } = latency;
                family.encode_family(&labels)?.encode_histogram::<NoLabels>(*sum_seconds, *count, buckets, None)?;
            }
        }
        for (name, help, value) in [
            ("write_buffer_bytes", "Bytes in the write buffers of all handles", metrics.write_buffer_bytes),
            (
                "read_buffer_bytes",
                "Bytes of memory into which files are read that are not in the page cache",
                metrics.read_buffer_bytes,
            ),
            ("payload_bytes", "Payload bytes that all instances hold", metrics.payload_bytes),
            ("memory_bytes", "What instances cost beside their payloads", metrics.memory_bytes),
            ("descriptors", "Descriptors that are open for components", metrics.descriptors),
            ("connections", "Open connections, the idle ones included", metrics.connections),
        ] {
            let name = format!("kv_store_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            family.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
        }
        for (name, help, of) in GAUGES {
            let name = format!("kv_store_{name}");
            let mut family = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
            for store in &metrics.stores {
                let Some(value) = of(store) else { continue };
                let labels =
                    [("backend", Some(&store.backend)), ("tenant", store.tenant.as_ref()), ("uri", Some(&store.uri))];
                let labels: NoLabels =
                    labels.into_iter().filter_map(|(name, value)| Some((name, value?.clone()))).collect();
                family.encode_family(&labels)?.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX))?;
            }
        }
        Ok(())
    }
}

type Gauge = (&'static str, &'static str, fn(&StoreGauges) -> Option<u64>);

/// What is said of each open store.
const GAUGES: [Gauge; 4] = [
    ("stored_bytes", "Bytes of the chunks and manifests of an open store, where its backend is bounded", |store| {
        store.stored_bytes
    }),
    ("breaker_open", "Whether the circuit breaker of an open store is open: calls fail at once", |store| {
        Some(u64::from(store.breaker_open))
    }),
    ("near_memory_bytes", "Bytes in memory of the near level of an open store", |store| store.near_memory_bytes),
    ("near_disk_bytes", "Bytes on disk of the near level of an open store", |store| store.near_disk_bytes),
];

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Families(self.clone())));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry)?;
        f.write_str(&text)
    }
}

impl Metrics {
    /// The counters in the text format of Prometheus (0.0.4), which the node exporter's collector of text files reads: there a counter's
    /// family has the name of its samples, and nothing marks the end. `process`: a label of each sample, so that the files of several
    /// processes have none in common.
    pub(super) fn as_text_file(&self, process: Option<u32>) -> String {
        let text = self.to_string();
        let counter = |line| str::strip_prefix(line, "# TYPE ")?.strip_suffix(" counter");
        let counters: HashSet<&str> = text.lines().filter_map(counter).collect();
        let mut written = String::with_capacity(text.len());
        for line in text.lines() {
            let mut words = line.splitn(4, ' ');
            match (words.next(), words.next(), words.next(), words.next()) {
                (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), rest) => {
                    let total = if counters.contains(name) { "_total" } else { "" };
                    let _ = writeln!(written, "# {what} {name}{total} {}", rest.unwrap_or_default());
                }
                (Some("#"), ..) => {}
                _ => match (process, line.split_once('{'), line.split_once(' ')) {
                    (Some(process), Some((name, labels)), _) => {
                        let _ = writeln!(written, "{name}{{pid=\"{process}\",{labels}");
                    }
                    (Some(process), None, Some((name, value))) => {
                        let _ = writeln!(written, "{name}{{pid=\"{process}\"}} {value}");
                    }
                    _ => {
                        let _ = writeln!(written, "{line}");
                    }
                },
            }
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Operation;
    use std::time::Duration;

    fn metrics_of(series: Vec<Series>) -> Metrics {
        let store = StoreGauges {
            backend: "a".into(),
            tenant: None,
            uri: "a://x".into(),
            stored_bytes: Some(7),
            breaker_open: false,
            near_memory_bytes: Some(8),
            near_disk_bytes: None,
        };
        Metrics {
            series,
            write_buffer_bytes: 1,
            read_buffer_bytes: 6,
            payload_bytes: 2,
            memory_bytes: 3,
            descriptors: 4,
            connections: 5,
            stores: vec![store],
        }
    }

    #[test]
    fn the_text_has_each_family_once_and_labels_that_cannot_break_out() {
        let counters = Counters::new();
        counters.call(Operation::GetChunk, &Ok(None::<crate::payload::Buffer>), Duration::from_micros(3));
        let series = ["a", "b"].map(|backend| Series::new(backend, Some("x://\"}\n\\"), &counters)).to_vec();
        let metrics = metrics_of(series);
        let text = metrics.to_string();
        let mut types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let count = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!((types.len(), count), (EVENTS.len() + 14, EVENTS.len() + 14));
        assert!(text.contains(r#"kv_store_traps_total{backend="a",tenant="x://\"}\n\\"} 0"#), "{text}");
        assert!(text.contains(r#"kv_store_stored_bytes{backend="a",uri="a://x"} 7"#), "{text}");
        assert!(
            text.contains(r#"outcome="miss",le="0.0001"} 1"#) || text.contains(r#"le="0.0001",backend="a""#),
            "{text}"
        );
        // Without it, Prometheus knows no quantile.
        assert!(text.contains(r#"le="+Inf""#), "{text}");
        assert!(text.ends_with("# EOF\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<f64>().is_ok()), "{line}");
        }
    }

    #[test]
    fn the_file_is_what_the_collector_of_text_files_reads() {
        let counters = Counters::new();
        counters.call(Operation::GetChunk, &Ok(None::<crate::payload::Buffer>), Duration::from_micros(3));
        let metrics = metrics_of(vec![Series::new("a", None, &counters)]);
        let text = metrics.as_text_file(None);
        let comments: Vec<&str> = text.lines().filter(|line| line.starts_with('#')).collect();
        assert!(comments.iter().all(|line| line.starts_with("# HELP ") || line.starts_with("# TYPE ")), "{text}");
        // Of each family: help, type, samples, all under one name, as https://prometheus.io/docs/instrumenting/exposition_formats has it.
        let (mut name, mut kind) = (String::new(), String::new());
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (of, is) = rest.split_once(' ').unwrap();
                (name, kind) = (of.to_owned(), is.to_owned());
                assert!(["counter", "gauge", "histogram"].contains(&is), "{line}");
            } else if !line.starts_with('#') {
                let sample = line.split(['{', ' ']).next().unwrap();
                let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                assert!(
                    suffixes.iter().any(|suffix| sample == format!("{name}{suffix}")),
                    "{line} in the family {name}"
                );
            }
        }
        assert!(text.contains("# TYPE kv_store_calls_total counter\n"), "{text}");
        let labelled = metrics.as_text_file(Some(7));
        assert!(
            labelled.lines().filter(|line| !line.starts_with('#')).all(|line| line.contains("{pid=\"7\"")),
            "{labelled}"
        );
        assert_eq!(labelled.lines().count(), text.lines().count());
    }

    #[test]
    fn the_dashboard_asks_for_names_that_there_are() {
        let dashboard = include_str!("../../../docs/dashboard.json");
        let counters = Counters::new();
        counters.call(Operation::GetChunk, &Ok(None::<crate::payload::Buffer>), Duration::from_millis(3));
        let text = metrics_of(vec![Series::new("a", Some("t"), &counters)]).to_string();
        let mut names: Vec<&str> = Vec::new();
        for (at, _) in dashboard.match_indices("kv_store_") {
            let name = dashboard[at..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap();
            names.push(name);
        }
        assert!(names.len() > 10, "{names:?}");
        for name in names {
            let there = text.lines().any(|line| line.split(['{', ' ']).next() == Some(name));
            assert!(there, "docs/dashboard.json asks for {name}, which is not there:\n{text}");
        }
    }
}
