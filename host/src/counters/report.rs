//! The numbers as they are read: plain data, and as text in the format of Prometheus.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

use super::{Counters, EVENTS, OPERATIONS, all};
use crate::error::{Error, ErrorKind};
use crate::store;

/// The counters of the process at one moment. `Display` writes them in the text format of Prometheus.
///
/// ```
/// let metrics = kv_store_wasm::metrics()?;
/// assert!(metrics.to_string().contains("kv_store_payload_bytes"));
/// # Ok::<(), kv_store_wasm::Error>(())
/// ```
#[derive(Clone, Debug, serde::Serialize)]
pub struct Metrics {
    pub series: Vec<Series>,
    /// Bytes in the write buffers of all handles.
    pub write_buffer_bytes: u64,
    /// Payload bytes that all instances hold.
    pub payload_bytes: u64,
    /// What instances cost beside them: linear memory, tables, globals, handles.
    pub memory_bytes: u64,
    /// Descriptors that are open for components, those of connections included.
    pub descriptors: u64,
    /// Open connections, the idle ones included.
    pub connections: u64,
}

/// The counters of one backend, and of one tenant where there are tenants.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Series {
    pub backend: String,
    /// The prefix of URIs that the tenant is known by.
    pub tenant: Option<String>,
    /// Calls of the consumer, by operation.
    pub calls: BTreeMap<&'static str, u64>,
    /// Calls that failed, by kind.
    pub errors: BTreeMap<&'static str, u64>,
    /// The rest, by name.
    pub events: BTreeMap<&'static str, u64>,
}

/// The counters of this process. They begin at 0 with it, and in a child that was forked off.
pub fn metrics() -> Result<Metrics, Error> {
    let mut series: Vec<Series> = {
        let all = all()?.lock();
        all.iter().map(|((backend, tenant), counters)| Series::new(backend, tenant.as_deref(), counters)).collect()
    };
    series.sort_by(|a, b| (&a.backend, &a.tenant).cmp(&(&b.backend, &b.tenant)));
    let used = store::used()?;
    Ok(Metrics {
        series,
        write_buffer_bytes: used.write_buffer_bytes,
        payload_bytes: used.payload_bytes,
        memory_bytes: used.memory_bytes,
        descriptors: used.descriptors,
        connections: used.connections,
    })
}

impl Series {
    pub(super) fn new(backend: &str, tenant: Option<&str>, counters: &Counters) -> Self {
        let read = |counters: &[std::sync::atomic::AtomicU64]| -> Vec<u64> {
            counters.iter().map(|counter| counter.load(Relaxed)).collect()
        };
        Series {
            backend: backend.to_owned(),
            tenant: tenant.map(str::to_owned),
            calls: OPERATIONS.into_iter().zip(read(&counters.calls)).collect(),
            errors: ErrorKind::NAMES.into_iter().zip(read(&counters.errors)).collect(),
            events: EVENTS.iter().map(|(name, _)| *name).zip(read(&counters.events)).collect(),
        }
    }

    /// `{backend="redis",tenant="redis://h"`, for more labels to follow.
    fn labels(&self) -> String {
        let tenant = self.tenant.as_ref().map(|tenant| format!(",tenant=\"{}\"", escape(tenant))).unwrap_or_default();
        format!("{{backend=\"{}\"{tenant}", escape(&self.backend))
    }
}

/// A label's value in the text format.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = |f: &mut fmt::Formatter<'_>, name: &str, help: &str, kind: &str| {
            write!(f, "# HELP kv_store_{name} {help}\n# TYPE kv_store_{name} {kind}\n")
        };
        family(f, "calls_total", "Calls of the consumer.", "counter")?;
        for series in &self.series {
            for (operation, count) in &series.calls {
                writeln!(f, "kv_store_calls_total{},operation=\"{operation}\"}} {count}", series.labels())?;
            }
        }
        family(f, "errors_total", "Calls of the consumer that failed.", "counter")?;
        for series in &self.series {
            for (kind, count) in &series.errors {
                writeln!(f, "kv_store_errors_total{},kind=\"{kind}\"}} {count}", series.labels())?;
            }
        }
        for (name, help) in EVENTS {
            family(f, &format!("{name}_total"), help, "counter")?;
            for series in &self.series {
                let count = series.events.get(name).copied().unwrap_or_default();
                writeln!(f, "kv_store_{name}_total{}}} {count}", series.labels())?;
            }
        }
        for (name, help, value) in [
            ("write_buffer_bytes", "Bytes in the write buffers of all handles.", self.write_buffer_bytes),
            ("payload_bytes", "Payload bytes that all instances hold.", self.payload_bytes),
            ("memory_bytes", "What instances cost beside their payloads.", self.memory_bytes),
            ("descriptors", "Descriptors that are open for components.", self.descriptors),
            ("connections", "Open connections, the idle ones included.", self.connections),
        ] {
            family(f, name, help, "gauge")?;
            writeln!(f, "kv_store_{name} {value}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_each_family_once_and_labels_that_cannot_break_out() {
        let counters = Counters::new();
        let series = ["a", "b"].map(|backend| Series::new(backend, Some("x://\"}\n\\"), &counters)).to_vec();
        let gauges = (1, 2, 3, 4, 5);
        let (write_buffer_bytes, payload_bytes, memory_bytes, descriptors, connections) = gauges;
        let metrics = Metrics { series, write_buffer_bytes, payload_bytes, memory_bytes, descriptors, connections };
        let text = metrics.to_string();
        let mut types: Vec<&str> = text.lines().filter(|line| line.starts_with("# TYPE")).collect();
        let count = types.len();
        types.sort_unstable();
        types.dedup();
        assert_eq!((types.len(), count), (EVENTS.len() + 7, EVENTS.len() + 7));
        assert!(text.contains(r#"kv_store_traps_total{backend="a",tenant="x://\"}\n\\"} 0"#), "{text}");
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            assert!(line.rsplit_once(' ').is_some_and(|(_, value)| value.parse::<u64>().is_ok()), "{line}");
        }
    }
}
