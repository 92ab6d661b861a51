//! `watch`: the counters of a running engine, again and again.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::failure::{Failure, Outcome};
use crate::show;

/// Watch the counters of a running engine
///
/// They are those of the process whose config has `metrics` or `metrics_file`: hits, misses, bytes, latencies, stored bytes and the
/// circuit breaker, for each backend and tenant.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store watch 127.0.0.1:9464\n  kv-store watch unix:/run/kv-metrics redis://cache.svc:6379/3\n\n\
    Exit codes: 0 watched; 2 the counters can not be read."
)]
pub struct Arguments {
    /// The engine's counters: HOST:PORT or unix:/path, as in `metrics` of its config, or the path of its `metrics_file`
    metrics: String,
    /// Only the backend of this URI
    uri: Option<String>,
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    /// Read the counters this many times, then exit
    #[arg(long, value_name = "NUMBER")]
    times: Option<u64>,
    /// A JSON object on standard output for each reading, backend and tenant
    #[arg(long)]
    pub json: bool,
}

/// The longest text that is read.
const MOST: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// Values by name and labels.
type Samples = BTreeMap<(String, BTreeMap<String, String>), f64>;

pub fn run(arguments: &Arguments) -> Outcome {
    let wanted = arguments.uri.as_deref().map(|uri| {
        let uri = uri.strip_prefix("wasm://").unwrap_or(uri);
        uri.split("://").next().unwrap_or_default().to_owned()
    });
    let mut before: Option<(Samples, Instant)> = None;
    for look in 0.. {
        if arguments.times.is_some_and(|times| look >= times) {
            break;
        }
        let text = fetch(&arguments.metrics).map_err(|error| {
            let metrics = &arguments.metrics;
            Failure::unable(format!(
                "watch {metrics}: {error}; does the engine run, with `metrics` or `metrics_file` in its config?"
            ))
        })?;
        let now = (parse(&text), Instant::now());
        let (empty, begun) = (Samples::new(), now.1);
        let (former, at) = before.as_ref().map_or((&empty, begun), |(samples, at)| (samples, *at));
        let seconds = now.1.duration_since(at).as_secs_f64();
        for (backend, tenant) in series(&now.0) {
            if wanted.as_ref().is_some_and(|wanted| *wanted != backend) {
                continue;
            }
            let row = Row::new(&now.0, former, &backend, tenant.as_deref(), seconds);
            row.show(arguments.json);
        }
        before = Some(now);
        if arguments.times.is_none_or(|times| look + 1 < times) {
            std::thread::sleep(Duration::from_secs(arguments.every));
        }
    }
    Ok(())
}

/// What happened to one backend and tenant since the look before.
struct Row {
    backend: String,
    tenant: Option<String>,
    hits: f64,
    misses: f64,
    put_per_s: f64,
    got_per_s: f64,
    /// Seconds; none where there was no call.
    p50: Option<f64>,
    p99: Option<f64>,
    stored: Option<f64>,
    breaker_open: bool,
}

impl Row {
    fn new(now: &Samples, before: &Samples, backend: &str, tenant: Option<&str>, seconds: f64) -> Self {
        let is_own = |labels: &BTreeMap<String, String>| {
            labels.get("backend").is_some_and(|own| own == backend)
                && labels.get("tenant").map(String::as_str) == tenant
        };
        let since =
            |key: &(String, BTreeMap<String, String>), value: f64| value - before.get(key).copied().unwrap_or(0.0);
        let sum = |name: &str| -> f64 {
            let own = now.iter().filter(|((other, labels), _)| other == name && is_own(labels));
            own.map(|(key, value)| since(key, *value)).sum()
        };
        let rate = |name: &str| sum(name) / if seconds > 0.0 { seconds } else { 1.0 };
        let mut buckets: BTreeMap<u64, f64> = BTreeMap::new();
        for (key, value) in
            now.iter().filter(|((name, labels), _)| name == "kv_store_call_seconds_bucket" && is_own(labels))
        {
            let bound = key.1.get("le").and_then(|bound| bound.replace("+Inf", "inf").parse::<f64>().ok());
            *buckets.entry(bound.unwrap_or(f64::INFINITY).to_bits()).or_default() += since(key, *value);
        }
        let stored = now.iter().filter(|((name, labels), _)| name == "kv_store_stored_bytes" && is_own(labels));
        let stored: Vec<f64> = stored.map(|(_, value)| *value).collect();
        let open = |((name, labels), value): (&(String, BTreeMap<String, String>), &f64)| {
            name == "kv_store_breaker_open" && is_own(labels) && *value > 0.0
        };
        Row {
            backend: backend.to_owned(),
            tenant: tenant.map(str::to_owned),
            hits: sum("kv_store_hits_total"),
            misses: sum("kv_store_misses_total"),
            put_per_s: rate("kv_store_put_bytes_total"),
            got_per_s: rate("kv_store_got_bytes_total"),
            p50: quantile(&buckets, 0.5),
            p99: quantile(&buckets, 0.99),
            stored: (!stored.is_empty()).then(|| stored.iter().sum()),
            breaker_open: now.iter().any(open),
        }
    }

    fn show(&self, as_json: bool) {
        let Row { backend, tenant, hits, misses, put_per_s, got_per_s, p50, p99, stored, breaker_open } = self;
        if as_json {
            show::json(&json!({
                "backend": backend, "tenant": tenant, "hits": hits, "misses": misses, "put_bytes_per_s": put_per_s,
                "got_bytes_per_s": got_per_s, "p50_s": p50, "p99_s": p99, "stored_bytes": stored, "breaker_open": breaker_open,
            }));
            return;
        }
        let time = |seconds: &Option<f64>| match seconds {
            Some(seconds) if seconds.is_finite() => format!("<= {} ms", seconds * 1e3),
            Some(_) => "> 10 s".to_owned(),
            None => "-".to_owned(),
        };
        let whose = tenant.as_deref().unwrap_or(backend);
        let stored = stored.map_or_else(|| "-".to_owned(), |bytes| show::bytes(bytes as u64));
        let breaker = if *breaker_open { "OPEN" } else { "closed" };
        println!(
            "{whose:<32} hits {hits:>8} misses {misses:>8}  put {}/s  got {}/s  p50 {}  p99 {}  stored {stored}  breaker {breaker}",
            show::bytes(*put_per_s as u64),
            show::bytes(*got_per_s as u64),
            time(p50),
            time(p99),
        );
    }
}

/// The bound of the class that holds the quantile. `buckets`: by the bits of their bounds, cumulative.
fn quantile(buckets: &BTreeMap<u64, f64>, quantile: f64) -> Option<f64> {
    let total = *buckets.values().next_back()?;
    let reached = buckets.iter().find(|(_, count)| total > 0.0 && **count >= total * quantile);
    reached.map(|(bound, _)| f64::from_bits(*bound))
}

/// The backends and tenants that there are.
fn series(samples: &Samples) -> Vec<(String, Option<String>)> {
    let own = samples.keys().filter(|(name, _)| name == "kv_store_guest_calls_total");
    own.filter_map(|(_, labels)| Some((labels.get("backend")?.clone(), labels.get("tenant").cloned()))).collect()
}

fn fetch(place: &str) -> std::io::Result<String> {
    if place.starts_with('/') || place.starts_with("./") {
        let mut text = String::new();
        std::fs::File::open(place)?.take(MOST).read_to_string(&mut text)?;
        return Ok(text);
    }
    if let Some(path) = place.strip_prefix("unix:") {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        return ask(stream);
    }
    let place = place.strip_prefix("http://").unwrap_or(place);
    let stream = TcpStream::connect(place.strip_suffix("/metrics").unwrap_or(place))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    ask(stream)
}

fn ask(mut stream: impl Read + Write) -> std::io::Result<String> {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.take(MOST).read_to_string(&mut text)?;
    match text.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(std::io::Error::other("it does not answer with metrics")),
    }
}

/// The samples of a text in the format of OpenMetrics or of Prometheus.
fn parse(text: &str) -> Samples {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

/// A name and its labels.
type Series = (String, BTreeMap<String, String>);

fn sample(line: &str) -> Option<(Series, f64)> {
    let Some((name, rest)) = line.split_once('{') else {
        let (name, value) = line.split_once(' ')?;
        return Some(((name.to_owned(), BTreeMap::new()), value.trim().parse().ok()?));
    };
    let (mut labels, mut rest) = (BTreeMap::new(), rest);
    while let Some((label, behind)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut characters = behind.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, other) => value.push(other),
            }
        };
        labels.insert(label.trim_start_matches(',').to_owned(), value);
        rest = behind.get(end + 1..)?;
        if rest.starts_with('}') {
            break;
        }
    }
    let value = rest.strip_prefix('}')?.trim().parse().ok()?;
    // Of a file for each process, which has one.
    labels.remove("pid");
    Some(((name.to_owned(), labels), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_read_with_their_labels() {
        let text = "# TYPE kv_store_x counter\nkv_store_x_total{backend=\"a\",tenant=\"x://\\\"}\\n\\\\\"} 7\nkv_store_y 3\n# EOF\n";
        let samples = parse(text);
        let labels = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
        assert_eq!(samples[&("kv_store_x_total".into(), labels(&[("backend", "a"), ("tenant", "x://\"}\n\\")]))], 7.0);
        assert_eq!(samples[&("kv_store_y".into(), labels(&[]))], 3.0);
        for broken in ["", "x{", "x{a=\"", "x{a=\"b", "x{a=\"b\"", "x{a=\"b\"} y", "x", "x{a=\"\\"] {
            assert!(sample(broken).is_none(), "{broken}");
        }
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
