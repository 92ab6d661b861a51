//! The admin endpoints, over HTTP/1.1: `GET` of `/v1/health`, `/v1/ready`, `/v1/status`, `/v1/metrics`. They say how the
//! server does, and nothing of what it keeps.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use memkv_wire::Version;
use serde_json::json;

use crate::serve::SERVER;
use crate::server::Server;

const MAX_REQUEST_BYTES: usize = 8 << 10;
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests at once. More are not answered.
const MAX_REQUESTS: usize = 32;

/// What the endpoints speak of: nothing, until the store is loaded.
pub type Ready = Arc<OnceLock<Arc<Server>>>;

/// Answer requests for as long as the process lives.
pub fn run(listener: &TcpListener, ready: &Ready) {
    let busy = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        if busy.fetch_add(1, Relaxed) >= MAX_REQUESTS {
            busy.fetch_sub(1, Relaxed);
            continue;
        }
        let (ready, done) = (ready.clone(), busy.clone());
        let answering = std::thread::Builder::new().name("admin".into()).spawn(move || {
            // Whoever asked may have gone.
            let _ = answer(stream, &ready);
            done.fetch_sub(1, Relaxed);
        });
        if answering.is_err() {
            busy.fetch_sub(1, Relaxed);
        }
    }
}

fn answer(mut stream: TcpStream, ready: &Ready) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let (status, kind, body) = respond(&request(&mut stream)?, ready.get().map(|server| &**server));
    let len = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    )
}

/// The bytes of a request's head.
fn request(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let end = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    while bytes.len() < MAX_REQUEST_BYTES && Instant::now() < end {
        let count = stream.read(&mut piece)?;
        bytes.extend(piece.get(..count).unwrap_or_default());
        if count == 0 || bytes.windows(4).any(|four| four == b"\r\n\r\n") {
            break;
        }
    }
    Ok(bytes)
}

/// Status line, type and body.
fn respond(request: &[u8], server: Option<&Server>) -> (&'static str, &'static str, String) {
    const TEXT: &str = "text/plain; charset=utf-8";
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut headers);
    if !parsed.parse(request).is_ok_and(|status| status.is_complete()) {
        return ("400 Bad Request", TEXT, "this is no request of HTTP/1.1\n".into());
    }
    if parsed.method != Some("GET") {
        return ("405 Method Not Allowed", TEXT, "only GET\n".into());
    }
    let path = parsed.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    match (path, server) {
        ("/v1/health", _) => ("200 OK", TEXT, "ok\n".into()),
        ("/v1/ready", Some(server)) if !server.is_stopping() => ("200 OK", TEXT, "ready\n".into()),
        ("/v1/ready", Some(_)) => ("503 Service Unavailable", TEXT, "stopping\n".into()),
        ("/v1/ready" | "/v1/status" | "/v1/metrics", None) => {
            ("503 Service Unavailable", TEXT, "loading what is on disk\n".into())
        }
        ("/v1/status", Some(server)) => ("200 OK", "application/json", status(server)),
        ("/v1/metrics", Some(server)) => ("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics(server)),
        _ => ("404 Not Found", TEXT, "there are /v1/health, /v1/ready, /v1/status and /v1/metrics\n".into()),
    }
}

fn status(server: &Server) -> String {
    let (size, stats) = (server.store.size(), &server.stats);
    let status = json!({
        "server": SERVER,
        "version": Version::LATEST as u8,
        "uptime_seconds": server.started.elapsed().as_secs(),
        "durable": server.store.is_durable(),
        "chunks": size.chunks,
        "manifests": size.manifests,
        "bytes": size.bytes,
        "max_bytes": size.bound,
        "max_value_bytes": server.max_value,
        "connections": server.connections(),
        "max_connections": server.max_connections,
        "evicted": server.store.evicted.load(Relaxed),
        "requests": stats.requests().collect::<std::collections::BTreeMap<_, _>>(),
        "refused": stats.refusals().collect::<std::collections::BTreeMap<_, _>>(),
    });
    format!("{status}\n")
}

/// The text format of Prometheus, 0.0.4.
fn metrics(server: &Server) -> String {
    let (size, stats) = (server.store.size(), &server.stats);
    let mut text = String::new();
    let mut metric = |name: &str, kind: &str, help: &str, values: &[(String, u64)]| {
        // Writing to a string does not fail.
        let _ = writeln!(text, "# HELP memkv_{name} {help}\n# TYPE memkv_{name} {kind}");
        for (labels, value) in values {
            let _ = writeln!(text, "memkv_{name}{labels} {value}");
        }
    };
    let one = |value: u64| [(String::new(), value)];
    let labelled = |label: &str, values: &mut dyn Iterator<Item = (&'static str, u64)>| -> Vec<(String, u64)> {
        values.map(|(name, value)| (format!("{{{label}=\"{name}\"}}"), value)).collect()
    };
    metric("bytes", "gauge", "Bytes that the store holds.", &one(size.bytes));
    metric("max_bytes", "gauge", "Bytes that the store may hold.", &one(size.bound));
    metric("chunks", "gauge", "Chunks in the store.", &one(size.chunks));
    metric("manifests", "gauge", "Manifests in the store.", &one(size.manifests));
    metric("connections", "gauge", "Clients that are connected.", &one(server.connections() as u64));
    metric("accepted_total", "counter", "Connections that came.", &one(stats.accepted.get()));
    let requests = labelled("op", &mut stats.requests());
    metric("requests_total", "counter", "Requests whose tag was right.", &requests);
    let refused = labelled("reason", &mut stats.refusals());
    metric("refused_total", "counter", "Connections that were closed for what the client sent.", &refused);
    metric("truncated_total", "counter", "Connections that ended within a frame.", &one(stats.truncated.get()));
    let late = "Changes that were not done because their end had passed.";
    metric("late_total", "counter", late, &one(stats.late.get()));
    metric("hits_total", "counter", "Values that were asked for and found.", &one(stats.hits.get()));
    metric("misses_total", "counter", "Values that were asked for and not found.", &one(stats.misses.get()));
    metric("evicted_total", "counter", "Entries that left for want of room.", &one(server.store.evicted.load(Relaxed)));
    metric("received_bytes_total", "counter", "Bytes of values received.", &one(stats.received.get()));
    metric("sent_bytes_total", "counter", "Bytes of values sent.", &one(stats.sent.get()));
    text
}
