//! What a process says of itself over HTTP and in a file, and what a tenant may use.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kv_store_tests::consumer::{Finished, consumer, finish};
use kv_store_tests::{dist, library, metrics, test_components};

/// The consumer `bounded`, with a config.
fn program(directory: &Path, config: &str, uri: &str, arguments: &[&str]) -> Command {
    let file = directory.join("config.toml");
    std::fs::write(&file, config).unwrap();
    let mut program = consumer("bounded");
    program.arg(uri).args(arguments).env("KV_STORE_WASM_CONFIG", file).env("KV_STORE_WASM_LOG", "info");
    program
}

/// A process that holds a store, until its standard input is closed.
struct Holding(Child);

impl Holding {
    fn start(directory: &Path, config: &str, uri: &str) -> Self {
        let mut program = program(directory, config, uri, &["hold"]);
        Holding(program.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    /// The first line of the log that holds this text, or all of them.
    fn line(&mut self, text: &str) -> String {
        let stderr = self.0.stderr.take().unwrap();
        let mut all = String::new();
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if line.contains(text) {
                return line;
            }
            all.push_str(&line);
        }
        panic!("no {text:?} in {all}");
    }

    fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}

fn ask(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

fn number(finished: &Finished, what: &str) -> u64 {
    let line = finished.stdout.lines().find_map(|line| line.strip_prefix(what));
    let line = line.unwrap_or_else(|| panic!("no {what}: {}{}", finished.stdout, finished.stderr));
    line.trim().parse().unwrap()
}

#[test]
fn a_process_answers_with_its_counters_and_writes_them_to_a_file() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("kv.prom");
    let uri = format!("local-fs://{}", scratch.path().join("store").display());
    let config = format!("metrics = ':0'\nmetrics_file = '{}'\n", file.display());
    let mut holding = Holding::start(scratch.path(), &config, &uri);
    let line = holding.line("metrics are at ");
    let address = line.rsplit("http://").next().unwrap().strip_suffix("/metrics").unwrap().to_owned();
    assert!(address.starts_with("127.0.0.1:"), "{line}");
    let text = ask(&address, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200") && text.contains("application/openmetrics-text"), "{text}");
    assert!(text.ends_with("# EOF\n") && text.contains("kv_store_payload_bytes"), "{text}");
    assert!(ask(&address, "GET /else HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(&address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    // Who asks nothing holds nobody up for long.
    let _silent = TcpStream::connect(&address).unwrap();
    assert!(ask(&address, "GET /metrics HTTP/1.1\r\n\r\n").contains("# EOF"));
    let begun = Instant::now();
    while !file.exists() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(20));
    }
    // In the format of the collector of text files, which is another one.
    let written = std::fs::read_to_string(&file).unwrap();
    assert!(!written.contains("# EOF") && written.contains("# TYPE kv_store_calls_total counter"), "{written}");
    assert!(ask(&address, "GET /health HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    assert!(ask(&address, "GET /ready HTTP/1.1\r\n\r\n").ends_with("ready\n"));

    // A command with the engine's config leaves the file alone, and says nothing of the port.
    let before = std::fs::metadata(&file).unwrap().modified().unwrap();
    let command = tempfile::NamedTempFile::new().unwrap();
    let of_others = scratch.path().join("of-a-command.prom");
    std::fs::write(&command, format!("metrics = '{address}'\nmetrics_file = '{}'\n", of_others.display())).unwrap();
    let mut listing = Command::new(dist().join("bin/kv-store"));
    let listed = finish(listing.args(["ls", &uri]).env("KV_STORE_WASM_CONFIG", command.path()));
    assert!(listed.status.success() && listed.stderr.is_empty() && !of_others.exists(), "{}", listed.stderr);
    assert!(std::fs::metadata(&file).unwrap().modified().unwrap() >= before);

    // The port is taken: one warning, and all else works.
    let other = tempfile::tempdir().unwrap();
    let taken = format!("metrics = '{address}'\n");
    let uri = format!("local-fs://{}", other.path().join("store").display());
    let written = finish(&mut program(other.path(), &taken, &uri, &["write", "2", "2"]));
    assert_eq!(number(&written, "saved "), 2);
    assert_eq!(written.stderr.matches("is not served").count(), 1, "{}", written.stderr);

    let watched = finish(Command::new(dist().join("bin/kv-store")).args(["watch", &address, "--times", "1", "--json"]));
    assert!(watched.stdout.contains("\"backend\":\"local-fs\""), "{}{}", watched.stdout, watched.stderr);
    holding.end();
}

#[test]
fn a_tenant_over_its_quota_is_refused_at_once_and_its_neighbour_is_not() {
    let scratch = tempfile::tempdir().unwrap();
    let uri = |tenant: &str| format!("local-fs://{}", scratch.path().join(tenant).display());
    let tenant = |name: &str, quota: &str| format!("[[tenant]]\nuri = '{}'\n{quota}\n", uri(name));
    let config = tenant("a", "quota = { operations_per_s = 5 }")
        + &tenant("b", "")
        + &tenant("c", "quota = { stored_bytes = 1000000 }");
    for name in ["a", "b", "c"] {
        std::fs::create_dir(scratch.path().join(name)).unwrap();
    }
    let begun = Instant::now();
    let flooding = finish(&mut program(scratch.path(), &config, &uri("a"), &["write", "20", "20"]));
    assert_eq!(number(&flooding, "saved "), 0);
    assert!(flooding.stderr.contains("over the quota operations_per_s = 5"), "{}", flooding.stderr);
    assert!(begun.elapsed() < Duration::from_secs(60), "it is refused and does not wait");
    let neighbour = finish(&mut program(scratch.path(), &config, &uri("b"), &["write", "20", "20"]));
    assert_eq!(number(&neighbour, "saved "), 20, "{}", neighbour.stderr);
    // 15 chunks of 64 KiB fit; nothing is evicted for a quota.
    let full = finish(&mut program(scratch.path(), &config, &uri("c"), &["write", "3", "10"]));
    assert_eq!(number(&full, "saved "), 1);
    assert!(full.stderr.contains("stored_bytes = 1000000"), "{}", full.stderr);
    let kept = finish(&mut program(scratch.path(), &config, &uri("c"), &["read", "1", "10"]));
    assert_eq!(number(&kept, "whole "), 1, "{}", kept.stdout);
}

/// What cannot count what it stores cannot have a bound of it.
#[test]
fn a_quota_that_cannot_be_held_is_refused_at_open() {
    let scratch = tempfile::tempdir().unwrap();
    let store = scratch.path().join("store");
    let component = test_components().join("c-fs.wasm");
    let config = format!("[backend.c-fs]\ncomponent = '{}'\nquota.stored_bytes = 1000000\n", component.display());
    let refused =
        finish(&mut program(scratch.path(), &config, &format!("c-fs://{}", store.display()), &["write", "1", "1"]));
    assert!(!refused.status.success());
    assert!(refused.stderr.contains("stored_bytes = 1000000 cannot be held"), "{}", refused.stderr);
    assert!(refused.stderr.contains("has no `maintenance`"), "{}", refused.stderr);
}

/// The counters of `memory` in this process, each by its own name; the classes of a histogram are left to its count.
fn counters() -> BTreeMap<String, f64> {
    let text = metrics(library());
    let own = text.lines().filter(|line| line.contains("{backend=\"memory\"") && !line.contains("_bucket"));
    own.filter_map(|line| line.rsplit_once(' '))
        .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
        .collect()
}

/// What rose, by how much for each of so many calls, but for what is sampled.
fn risen(calls: usize, call: impl Fn(usize)) -> Vec<(String, f64)> {
    let before = counters();
    (0..calls).for_each(call);
    let name = |name: &str| name.split('{').next().unwrap().trim_start_matches("kv_store_").to_owned();
    let rose = counters().into_iter().map(|(key, now)| (name(&key), now - before.get(&key).copied().unwrap_or(0.0)));
    let rose = rose.filter(|(name, more)| *more > 0.0 && name != "guest_cpu_milliseconds_total");
    rose.map(|(name, more)| (name, more / calls as f64)).collect()
}

/// Counting costs a call at most eight atomic additions: two of the histogram, of which the count and the calls are made when they are
/// read, and one of each other counter; and two of what a quota bounds, operations and bytes. `tests/costs.rs` counts reads of the clock.
#[test]
fn a_call_adds_to_few_counters_and_to_each_once() {
    const CALLS: usize = 100;
    const LEN: usize = 1000;
    let store = library().open("memory://counted").unwrap();
    let key = |n: usize| n.to_le_bytes();
    let put = risen(CALLS, |n| assert_eq!(store.put_chunk(&key(n), &[7; LEN]), Ok(0)));
    let got = risen(CALLS, |n| assert!(store.get_chunk(&key(n)).unwrap().is_ok()));
    let missed = risen(CALLS, |n| assert!(store.get_chunk(&key(n + CALLS)).unwrap().is_err()));
    let expected = |more: &[(&str, f64)]| {
        let histogram = [("call_seconds_count", 1.0), ("calls_total", 1.0)];
        let mut all: Vec<(String, f64)> =
            histogram.iter().chain(more).map(|(name, by)| (name.to_string(), *by)).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    };
    for (rose, more) in [
        (put, &[("put_bytes_total", LEN as f64), ("guest_calls_total", 1.0)][..]),
        (got, &[("got_bytes_total", LEN as f64), ("hits_total", 1.0), ("guest_calls_total", 1.0)]),
        // These keys are no hashes: what is not there in an envelope is asked for as earlier versions put it (`layout1`).
        (missed, &[("misses_total", 1.0), ("unanswered_total", 1.0), ("guest_calls_total", 2.0)]),
    ] {
        let mut rose: Vec<(String, f64)> = rose.into_iter().filter(|(name, _)| name != "call_seconds_sum").collect();
        rose.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(rose, expected(more));
    }
}
