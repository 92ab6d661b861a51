//! What happened to one backend and tenant between two readings.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::samples::{Labels, Samples};
use crate::show::{self, Tone};

/// Calls of one operation.
#[derive(Clone, Debug, PartialEq)]
struct Latency {
    operation: String,
    calls: f64,
    /// Seconds, as the bound of a class; infinite where they are in the last.
    p50: f64,
    p99: f64,
}

#[derive(Debug, Default)]
pub struct Row {
    backend: String,
    tenant: Option<String>,
    hits: f64,
    /// By reason, the most frequent first; only those that there were.
    unanswered: Vec<(String, f64)>,
    misses: f64,
    /// Hits that were answered before the backend was asked.
    buffered: f64,
    prefetched: f64,
    near: f64,
    /// Bytes.
    put: f64,
    got: f64,
    /// Between the readings. None: all since the engine began, and it is not known when that was.
    seconds: Option<f64>,
    evicted: f64,
    errors: Vec<(String, f64)>,
    latencies: Vec<Latency>,
    /// Over all operations.
    p50: Option<f64>,
    p99: Option<f64>,
    stored: Option<f64>,
    near_memory: Option<f64>,
    near_disk: Option<f64>,
    breaker_open: bool,
}

/// Reads the samples of one backend and tenant.
struct Own<'a> {
    now: &'a Samples,
    before: &'a Samples,
    backend: &'a str,
    tenant: Option<&'a str>,
}

impl Own<'_> {
    fn samples<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a Labels, f64, f64)> {
        let own = move |labels: &Labels| {
            labels.get("backend").is_some_and(|own| own == self.backend)
                && labels.get("tenant").map(String::as_str) == self.tenant
        };
        self.now.iter().filter(move |((other, labels), _)| other == name && own(labels)).map(|(key, value)| {
            // A process that began anew counts from 0.
            let since = value - self.before.get(key).copied().filter(|before| before <= value).unwrap_or(0.0);
            (&key.1, *value, since)
        })
    }

    fn risen(&self, name: &str) -> f64 {
        self.samples(name).map(|(_, _, since)| since).sum()
    }

    fn by(&self, name: &str, label: &str) -> Vec<(String, f64)> {
        let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
        for (labels, _, since) in self.samples(name) {
            *sums.entry(labels.get(label).map_or("", String::as_str)).or_default() += since;
        }
        let mut sums: Vec<_> = sums.into_iter().filter(|(_, sum)| *sum > 0.0).collect();
        sums.sort_by(|a, b| b.1.total_cmp(&a.1));
        sums.into_iter().map(|(name, sum)| (name.to_owned(), sum)).collect()
    }

    /// The sum of gauges, if there is one.
    fn gauge(&self, name: &str) -> Option<f64> {
        self.samples(name).map(|(_, value, _)| value).reduce(|sum, value| sum + value)
    }
}

impl Row {
    pub fn new(now: &Samples, before: &Samples, backend: &str, tenant: Option<&str>, seconds: Option<f64>) -> Self {
        let own = Own { now, before, backend, tenant };
        let (mut all, mut each) = (Buckets::new(), BTreeMap::<&str, Buckets>::new());
        for (labels, _, since) in own.samples("kv_store_call_seconds_bucket") {
            let bound = labels.get("le").and_then(|bound| bound.replace("+Inf", "inf").parse::<f64>().ok());
            let bound = bound.unwrap_or(f64::INFINITY).to_bits();
            let operation = labels.get("operation").map_or("", String::as_str);
            *all.entry(bound).or_default() += since;
            *each.entry(operation).or_default().entry(bound).or_default() += since;
        }
        let latency = |(operation, buckets): (&str, Buckets)| {
            let (p50, p99) = (quantile(&buckets, 0.5)?, quantile(&buckets, 0.99)?);
            let calls = *buckets.values().next_back()?;
            Some(Latency { operation: operation.to_owned(), calls, p50, p99 })
        };
        Row {
            backend: backend.to_owned(),
            tenant: tenant.map(str::to_owned),
            hits: own.risen("kv_store_hits_total"),
            unanswered: own.by("kv_store_unanswered_total", "reason"),
            misses: own.risen("kv_store_misses_total"),
            buffered: own.risen("kv_store_write_buffer_hits_total"),
            prefetched: own.risen("kv_store_prefetch_hits_total"),
            near: own.risen("kv_store_near_hits_total"),
            put: own.risen("kv_store_put_bytes_total"),
            got: own.risen("kv_store_got_bytes_total"),
            seconds,
            evicted: own.risen("kv_store_evicted_total"),
            errors: own.by("kv_store_errors_total", "kind"),
            latencies: each.into_iter().filter_map(latency).collect(),
            p50: quantile(&all, 0.5),
            p99: quantile(&all, 0.99),
            stored: own.gauge("kv_store_stored_bytes"),
            near_memory: own.gauge("kv_store_near_memory_bytes"),
            near_disk: own.gauge("kv_store_near_disk_bytes"),
            breaker_open: own.samples("kv_store_breaker_open").any(|(_, value, _)| value > 0.0),
        }
    }

    fn per_s(&self, bytes: f64) -> Option<f64> {
        self.seconds.filter(|seconds| *seconds > 0.0).map(|seconds| bytes / seconds)
    }

    /// Bytes a second, or all of them where that is not known.
    fn moved(&self, bytes: f64) -> String {
        match self.per_s(bytes) {
            Some(rate) => format!("{}/s", show::bytes(rate as u64)),
            None => show::bytes(bytes as u64),
        }
    }

    pub fn json(&self) -> Value {
        let Row { backend, tenant, hits, misses, p50, p99, stored, breaker_open, .. } = self;
        let unanswered: serde_json::Map<_, _> =
            self.unanswered.iter().map(|(reason, count)| (reason.clone(), json!(count))).collect();
        json!({
            "backend": backend, "tenant": tenant, "hits": hits, "misses": misses, "unanswered": unanswered,
            "put_bytes": self.put, "got_bytes": self.got,
            "put_bytes_per_s": self.per_s(self.put), "got_bytes_per_s": self.per_s(self.got), "p50_s": p50, "p99_s": p99,
            "stored_bytes": stored, "breaker_open": breaker_open,
        })
    }

    /// One line, where there is no terminal.
    pub fn line(&self) -> String {
        let Row { backend, tenant, hits, misses, p50, p99, stored, .. } = self;
        let whose = tenant.as_deref().unwrap_or(backend);
        let stored = stored.map_or_else(|| "-".to_owned(), |bytes| show::bytes(bytes as u64));
        let time_of = |seconds: &Option<f64>| seconds.map_or_else(|| "-".to_owned(), time);
        format!(
            "{whose:<32} hits {hits:>8} misses {misses:>8}  put {}  got {}  p50 {}  p99 {}  stored {stored}  breaker {}",
            self.moved(self.put),
            self.moved(self.got),
            time_of(p50),
            time_of(p99),
            self.breaker(),
        )
    }

    fn breaker(&self) -> &'static str {
        if self.breaker_open { "OPEN" } else { "closed" }
    }

    /// Some lines of a page.
    pub fn lines(&self) -> Vec<String> {
        let whose = self.tenant.as_ref().map_or_else(String::new, |tenant| format!("  {tenant}"));
        let breaker = show::paint(if self.breaker_open { Tone::Bad } else { Tone::Good }, self.breaker());
        let mut lines = vec![format!("{}{whose}  breaker {breaker}", self.backend)];
        let missed: f64 = self.unanswered.iter().map(|(_, count)| count).sum();
        let asked = self.hits + missed;
        if asked > 0.0 {
            let far = (self.hits - self.buffered - self.prefetched - self.near).max(0.0);
            let tiers = [
                ("write buffer", self.buffered),
                ("prefetched", self.prefetched),
                ("near", self.near),
                ("backend", far),
            ];
            let mut hits = format!("  found      {:.0} of {asked:.0} ({:.1}%)", self.hits, 100.0 * self.hits / asked);
            for (tier, count) in tiers.into_iter().filter(|(_, count)| *count > 0.0) {
                let _ = write!(hits, "  {tier} {count:.0}");
            }
            lines.push(hits);
        }
        for (label, counts) in [("not found ", &self.unanswered), ("failed    ", &self.errors)] {
            if !counts.is_empty() {
                let counts: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count:.0}")).collect();
                lines.push(format!("  {label} {}", counts.join("  ")));
            }
        }
        lines.push(format!("  bytes      put {}  got {}", self.moved(self.put), self.moved(self.got)));
        for Latency { operation, calls, p50, p99 } in &self.latencies {
            lines.push(format!("  {operation:<15} {calls:>8.0} calls  p50 {}  p99 {}", time(*p50), time(*p99)));
        }
        let held = [("stored", self.stored), ("near, memory", self.near_memory), ("near, disk", self.near_disk)];
        let mut holds = String::new();
        for (what, bytes) in held.into_iter().filter_map(|(what, bytes)| Some((what, bytes?))) {
            let _ = write!(holds, "  {what} {}", show::bytes(bytes as u64));
        }
        if self.evicted > 0.0 {
            let _ = write!(holds, "  evicted {:.0}", self.evicted);
        }
        if !holds.is_empty() {
            lines.push(format!("  holds    {holds}"));
        }
        lines
    }
}

fn time(seconds: f64) -> String {
    match seconds.is_finite() {
        true => format!("<= {} ms", seconds * 1e3),
        false => "> 10 s".to_owned(),
    }
}

/// Cumulative counts, by the bits of the bounds of their classes.
type Buckets = BTreeMap<u64, f64>;

/// The bound of the class that holds the quantile.
fn quantile(buckets: &Buckets, quantile: f64) -> Option<f64> {
    let total = *buckets.values().next_back()?;
    let reached = buckets.iter().find(|(_, count)| total > 0.0 && **count >= total * quantile);
    reached.map(|(bound, _)| f64::from_bits(*bound))
}

#[cfg(test)]
mod tests {
    use super::super::samples::parse;
    use super::*;

    const BEFORE: &str = "kv_store_hits_total{backend=\"redis\"} 10\nkv_store_unanswered_total{backend=\"redis\",reason=\"absent\"} 100\n";
    const NOW: &str = "kv_store_hits_total{backend=\"redis\"} 40
kv_store_hits_total{backend=\"redis\",tenant=\"x\"} 7000
kv_store_near_hits_total{backend=\"redis\"} 20
kv_store_unanswered_total{backend=\"redis\",reason=\"absent\"} 101
kv_store_unanswered_total{backend=\"redis\",reason=\"late\"} 9
kv_store_unanswered_total{backend=\"redis\",reason=\"flag\"} 0
kv_store_got_bytes_total{backend=\"redis\"} 4000000
kv_store_call_seconds_bucket{backend=\"redis\",operation=\"get_many\",outcome=\"ok\",le=\"0.001\"} 3
kv_store_call_seconds_bucket{backend=\"redis\",operation=\"get_many\",outcome=\"ok\",le=\"+Inf\"} 4
kv_store_breaker_open{backend=\"redis\",uri=\"redis://h:1/0\"} 1
kv_store_near_disk_bytes{backend=\"redis\",uri=\"redis://h:1/0\"} 5000
";

    #[test]
    fn a_page_says_what_was_found_where_and_why_the_rest_was_not() {
        let row = Row::new(&parse(NOW), &parse(BEFORE), "redis", None, Some(2.0));
        let page = row.lines();
        let expected = [
            "redis  breaker OPEN",
            "  found      30 of 40 (75.0%)  near 20  backend 10",
            "  not found  late 9  absent 1",
            "  bytes      put 0 bytes/s  got 2.0 MB/s",
            "  get_many               4 calls  p50 <= 1 ms  p99 > 10 s",
            "  holds      near, disk 5.0 kB",
        ];
        assert_eq!(page, expected);
        assert_eq!(row.json()["unanswered"], json!({"late": 9.0, "absent": 1.0}));
        // Nobody knows for how long the engine has run.
        let first = Row::new(&parse(NOW), &Samples::new(), "redis", None, None);
        assert_eq!(first.lines()[3], "  bytes      put 0 bytes  got 4.0 MB");
        assert!(first.line().contains("got 4.0 MB  p50") && first.json()["got_bytes_per_s"].is_null(), "{first:?}");
        // The process began anew meanwhile.
        let row = Row::new(&parse(BEFORE), &parse(NOW), "redis", None, Some(2.0));
        assert_eq!((row.hits, row.unanswered), (10.0, vec![("absent".to_owned(), 100.0)]));
    }

    #[test]
    fn a_quantile_is_the_bound_of_its_class() {
        let buckets = [(0.001, 50.0), (0.01, 98.0), (f64::INFINITY, 100.0)];
        let buckets = buckets.map(|(bound, count)| (f64::to_bits(bound), count)).into_iter().collect();
        assert_eq!(quantile(&buckets, 0.5), Some(0.001));
        assert_eq!(quantile(&buckets, 0.9), Some(0.01));
        assert_eq!(quantile(&buckets, 0.99), Some(f64::INFINITY));
        assert_eq!(quantile(&BTreeMap::new(), 0.5), None);
    }
}
