//! The counters of an engine as they are read: over HTTP, from a Unix socket or from a file.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The longest text that is read.
const MOST: u64 = 64 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

pub type Labels = BTreeMap<String, String>;
/// A name and its labels.
type Series = (String, Labels);
/// Values by name and labels.
pub type Samples = BTreeMap<Series, f64>;

/// The backends and tenants that there are.
pub fn series(samples: &Samples) -> Vec<(String, Option<String>)> {
    let own = samples.keys().filter(|(name, _)| name == "kv_store_guest_calls_total");
    own.filter_map(|(_, labels)| Some((labels.get("backend")?.clone(), labels.get("tenant").cloned()))).collect()
}

pub fn fetch(place: &str) -> std::io::Result<String> {
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
pub fn parse(text: &str) -> Samples {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

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
}
