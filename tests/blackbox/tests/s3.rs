//! The s3 backend against a small object store that misbehaves when it is told to. What a real server does with signatures, ranges and
//! the rest is seen by the conformance suite, against SeaweedFS.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

#[path = "s3/answers.rs"]
mod answers;
#[path = "s3/endpoint.rs"]
mod endpoint;
#[path = "s3/manifests.rs"]
mod manifests;
#[path = "s3/real.rs"]
mod real;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kv_store_tests::consumer::{Finished, consumer, finish, start};
use kv_store_tests::objects::{Fault, ObjectServer};
use kv_store_tests::seaweed::{ACCESS_KEY_ID, SECRET_ACCESS_KEY, Seaweed};
use kv_store_tests::{Handle, dist, library, root, skipped};

fn uri(server: &ObjectServer) -> String {
    format!("s3+http://127.0.0.1:{}/bucket/p", server.port)
}

fn open(server: &ObjectServer) -> Handle<'static> {
    let store = library().open(&uri(server)).expect("the store opens");
    server.asked();
    store
}

fn content(number: u8) -> Vec<u8> {
    (0..2000).map(|byte| (byte as u8).wrapping_mul(number)).collect()
}

/// A chunk under its own hash, and the key of its object.
fn chunk(number: u8) -> (Vec<u8>, Vec<u8>, String) {
    let bytes = content(number);
    let hash = xxhash_rust::xxh3::xxh3_64(&bytes).to_be_bytes().to_vec();
    let key = format!("bucket/p/c/{}", hex::encode(&hash));
    (hash, bytes, key)
}

/// A process that makes calls with a config of its own.
fn calls(uri: &str, config: &str, environment: &[(&str, &str)], calls: &[&str]) -> Finished {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path: PathBuf = folder.path().join("config.toml");
    std::fs::write(&path, format!("[backend.s3]\n{config}\n")).expect("it is ours");
    let mut command = consumer("calls");
    command.arg(uri).args(calls).env("KV_STORE_WASM_CONFIG", &path);
    command.env("S3_ACCESS_KEY_ID", ACCESS_KEY_ID).env("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
    finish(command.envs(environment.iter().copied()))
}

#[test]
fn objects_lie_under_their_prefix() {
    let server = ObjectServer::start();
    let store = open(&server);
    let (hash, bytes, key) = chunk(3);
    assert_eq!(store.put_chunk(&hash, &bytes), Ok(0));
    assert_eq!(store.put_manifest("a/B", b"manifest"), Ok(0));
    let record = record(&server);
    assert!(server.keys() == [key.clone(), record.clone()] && record.starts_with("bucket/p/r/a~2f~42"), "{record}");
    assert_eq!(server.get(&key), Some(bytes));
    // Behind a head of 96 bytes.
    assert!(server.get(&record).unwrap()[96..].starts_with(b"manifest"));
    assert_eq!(store.get_manifest("a/B"), Ok(Ok(b"manifest".to_vec())));
    assert_eq!(store.delete_manifest("a/B"), Ok(0));
    assert_eq!(store.delete_manifest("a/B"), Ok(0));
    assert!(store.get_manifest("a/B").unwrap().is_err());
    // What is left says that there is none.
    assert!(server.is_tombstone(&record) && server.get(&key).is_some());
}

/// The key of the one manifest of a server.
fn record(server: &ObjectServer) -> String {
    let keys = server.keys();
    let mut records = keys.iter().filter(|key| key.contains("/r/"));
    let (Some(record), None) = (records.next(), records.next()) else { panic!("not one manifest: {keys:?}") };
    record.clone()
}

#[test]
fn a_chunk_that_another_process_stored_is_not_sent_again() {
    let server = ObjectServer::start();
    let (hash, bytes, key) = chunk(5);
    server.put(&key, &bytes);
    let store = open(&server);
    assert_eq!(store.put_chunk(&hash, &bytes), Ok(0));
    assert_eq!(store.put_manifest("m", b"x"), Ok(0));
    let puts = server.asked().into_iter().filter(|(line, _)| line.starts_with("PUT")).count();
    assert_eq!(puts, 1, "only the manifest");
}

#[test]
fn existed_is_said_of_what_was_seen_and_never_because_a_condition_failed() {
    // What another writer puts between our look and our put is of another length: it is no whole chunk.
    let server = ObjectServer::start();
    let store = open(&server);
    let (hash, bytes, key) = chunk(7);
    server.spoil("PUT /bucket/p/c/", 1, Fault::Raced(b"half"));
    assert_eq!(store.put_chunk(&hash, &bytes), Ok(0));
    assert_eq!(store.put_manifest("m", b"x"), Ok(0));
    assert_eq!((server.get(&key), server.to_spoil()), (Some(bytes.clone()), 0));
    // A server that ignores the condition, and stores: the same.
    let careless = ObjectServer::careless();
    let store = open(&careless);
    careless.spoil("PUT /bucket/p/c/", 1, Fault::Raced(b"half"));
    assert_eq!(store.put_chunk(&hash, &bytes), Ok(0));
    assert_eq!(store.put_manifest("m", b"x"), Ok(0));
    assert_eq!(careless.get(&key), Some(bytes));
}

#[test]
fn storms_races_and_cut_connections_are_weathered() {
    let server = ObjectServer::start();
    let store = open(&server);
    let chunks: Vec<_> = (1..40).map(chunk).collect();
    server.spoil("PUT /bucket/p/c/", 20, Fault::Refused(503, "SlowDown"));
    server.spoil("PUT /bucket/p/c/", 5, Fault::Refused(500, "InternalError"));
    server.spoil("PUT /bucket/p/c/", 5, Fault::Refused(409, "ConditionalRequestConflict"));
    server.spoil("HEAD /bucket/p/c/", 5, Fault::Refused(503, "SlowDown"));
    server.spoil("PUT /bucket/p/r/", 2, Fault::Closed);
    for (hash, bytes, _) in &chunks {
        assert_eq!(store.put_chunk(hash, bytes), Ok(0));
    }
    assert_eq!(store.put_manifest("m", b"x"), Ok(0));
    assert_eq!((server.keys().len(), server.to_spoil()), (chunks.len() + 1, 0));
    let faults = [Fault::Cut, Fault::Closed, Fault::Refused(503, "SlowDown"), Fault::Refused(500, "InternalError")];
    for ((hash, bytes, _), fault) in chunks.iter().zip(faults.iter().cycle()) {
        server.spoil("GET /bucket/p/c/", 2, fault.clone());
        assert!(store.get_chunk(hash).unwrap() == Ok(bytes.clone()), "{fault:?}");
        assert_eq!(server.to_spoil(), 0);
    }
}

#[test]
fn a_storm_that_does_not_end_fails_and_what_waited_is_stored_when_it_has() {
    let server = ObjectServer::start();
    let store = open(&server);
    let (hash, bytes, key) = chunk(9);
    assert_eq!(store.put_chunk(&hash, &bytes), Ok(0));
    server.spoil("PUT", 5, Fault::Refused(503, "SlowDown"));
    assert!(store.put_manifest("m", b"x").unwrap() < 0);
    assert_eq!((server.keys(), server.to_spoil()), (Vec::new(), 0));
    assert_eq!(store.put_manifest("m", b"x"), Ok(0));
    assert_eq!(server.get(&key), Some(bytes));
}

#[test]
fn a_damaged_chunk_is_removed_by_a_multi_object_delete_and_stored_again() {
    let server = ObjectServer::start();
    let store = open(&server);
    let (hash, bytes, key) = chunk(11);
    assert_eq!(store.put_chunk(&hash, &bytes), Ok(0));
    assert_eq!(store.put_manifest("m", b"x"), Ok(0));
    server.put(&key, &content(12));
    assert!(store.get_chunk(&hash).unwrap().is_err());
    assert_eq!(server.get(&key), Some(content(12)), "a read removes nothing");
    server.asked();
    // A process that finds it so twice, seconds apart; here at once.
    let hex = hex::encode(&hash);
    let found = calls(&uri(&server), "verify = 'xxh3'\nlimits = { damaged_ms = 0 }", &[], &["get", &hex, "get", &hex]);
    assert_eq!(found.stdout.matches("get -").count(), 2, "{found:?}");
    assert_eq!(server.get(&key), None);
    let asked = server.asked();
    let (_, headers) = asked.iter().find(|(line, _)| line.starts_with("POST /bucket?delete=")).expect("it is deleted");
    assert!(headers.contains_key("content-md5") && headers.contains_key("x-amz-checksum-crc32c"), "{headers:?}");
    assert_eq!(store.put_chunk(&hash, &bytes), Ok(0));
    assert_eq!(store.put_manifest("m", b"x"), Ok(0));
    assert_eq!(store.get_chunk(&hash), Ok(Ok(bytes)));
}

#[test]
fn a_large_value_goes_in_parts_and_an_upload_that_failed_is_aborted() {
    let server = ObjectServer::start();
    let store = open(&server);
    let large: Vec<u8> = (0..70u32 << 20).map(|n| (n >> 8) as u8 ^ n as u8).collect();
    let hash = xxhash_rust::xxh3::xxh3_64(&large).to_be_bytes();
    server.spoil("partNumber=3", 1, Fault::Refused(403, "AccessDenied"));
    let stored = |store: &Handle<'_>| {
        let put = store.put_chunk(&hash, &large).unwrap();
        let published = store.put_manifest("large", b"x").unwrap();
        (put.min(0), published)
    };
    assert_ne!(stored(&store).0, 0);
    assert_eq!((server.to_spoil(), server.uploads()), (0, 0));
    assert!(!server.keys().iter().any(|key| key.contains("/c/")));
    server.spoil("partNumber=2", 2, Fault::Refused(503, "SlowDown"));
    let again = open(&server);
    assert_eq!(stored(&again), (0, 0));
    assert_eq!((server.to_spoil(), server.uploads(), server.keys().len()), (0, 0, 2));
    // There the header would be the checksum of the object: real servers hold it against that.
    let asked = server.asked();
    let completed =
        asked.iter().find(|(line, _)| line.starts_with("POST") && line.contains("uploadId")).expect("it is completed");
    assert!(!completed.1.contains_key("x-amz-checksum-crc32c"), "{completed:?}");
    assert!(again.get_chunk(&hash).unwrap() == Ok(large));
    let ranges: Vec<String> =
        server.asked().into_iter().filter_map(|(_, headers)| headers.get("range").cloned()).collect();
    let parts = [(0, 16777215), (16777216, 33554431), (33554432, 50331647), (50331648, 67108863), (67108864, 73400319)];
    let mut ranges: Vec<&str> = ranges.iter().map(String::as_str).collect();
    ranges.sort_unstable_by_key(|range| {
        range["bytes=".len()..].split('-').next().and_then(|begin| begin.parse::<u64>().ok())
    });
    assert_eq!(ranges, parts.map(|(begin, end)| format!("bytes={begin}-{end}")));
}

/// What `kv-store` says of a server's bucket, with a config of its own.
fn kv_store(arguments: &[&str]) -> Finished {
    finish(&mut kv_store_command(arguments))
}

fn kv_store_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(dist().join("bin/kv-store"));
    command.args(arguments).env("KV_STORE_WASM_CONFIG", "/dev/null");
    command.env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"));
    command.env("S3_ACCESS_KEY_ID", ACCESS_KEY_ID).env("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
    command
}

#[test]
fn listings_go_page_by_page_and_name_what_is_the_stores() {
    let server = ObjectServer::start();
    let store = open(&server);
    let hashes: Vec<String> = (1..=23).map(|number| chunk(number).2).collect();
    (1..=23).for_each(|number| server.put(&chunk(number).2, &content(number)));
    for key in [
        "bucket/p/c/",
        "bucket/p/c/0g",
        "bucket/p/c/0",
        "bucket/p/m/%",
        "bucket/q/c/00",
        "bucket/p/d/00",
        "bucket/p/m/~2f",
    ] {
        server.put(key, b"x");
    }
    let long = "x".repeat(4000);
    assert_eq!(store.put_manifest(&long, b"long"), Ok(0));
    drop(store);
    server.asked();
    let listed = kv_store(&["ls", &uri(&server), "--chunks", "--json"]);
    assert_eq!(listed.stdout.lines().count(), 23, "{}{}", listed.stdout, listed.stderr);
    for key in &hashes {
        assert!(listed.stdout.contains(key.rsplit_once('/').unwrap().1), "{key}");
    }
    assert!(listed.stdout.contains("\"bytes\":2000") && listed.stdout.contains("\"stored\":"), "{}", listed.stdout);
    let (mut seen, mut after) = (0, String::new());
    loop {
        let mut arguments = vec!["ls", "s", "--chunks", "--page", "4"];
        let uri = uri(&server);
        arguments[1] = &uri;
        if !after.is_empty() {
            arguments.extend(["--after", &after]);
        }
        let page = kv_store(&arguments);
        // Below a header.
        seen += page.stdout.lines().skip(1).count();
        match page.stderr.split_once("--after ") {
            Some((_, rest)) => after = rest.trim().trim_matches(['\'', '"']).to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, 23);
    let manifests = kv_store(&["ls", &uri(&server), "--json"]);
    assert_eq!(manifests.stdout.lines().count(), 2, "{}{}", manifests.stdout, manifests.stderr);
}

#[test]
fn an_eviction_takes_what_was_put_first_and_ends_uploads_that_were_left() {
    let server = ObjectServer::start();
    // The manifest of a save lies behind its chunks, and a later save behind that.
    (1..=10).for_each(|number| server.put(&chunk(number).2, &content(number)));
    // Manifests of a former version, and a deleted one of this.
    server.put("bucket/p/m/first", b"x");
    let store = open(&server);
    assert_eq!(store.delete_manifest("deleted"), Ok(0));
    let tombstone = record(&server);
    assert!(server.is_tombstone(&tombstone));
    drop(store);
    // A minute, by which a manifest may be later than its chunks.
    (0..100).for_each(|_| server.put("bucket/elsewhere", b"x"));
    (11..=20).for_each(|number| server.put(&chunk(number).2, &content(number)));
    server.put("bucket/p/m/second", b"x");
    let left = request(&server, "POST /bucket/p/c/00?uploads=");
    let other = request(&server, "POST /bucket/q/c/00?uploads=");
    assert!(left.contains("<UploadId>") && other.contains("<UploadId>") && server.uploads() == 2, "{left}{other}");
    let told = kv_store(&["du", &uri(&server)]);
    assert!(told.stdout.contains("20 chunks and 2 manifests"), "{}{}", told.stdout, told.stderr);
    assert!(told.stderr.contains("were killed: 1, the first begun"), "{}", told.stderr);
    let dry = kv_store(&["gc", &uri(&server), "--older-than", "1h", "--dry-run", "--json"]);
    assert!(dry.stdout.contains("\"chunks\":20") && dry.stdout.contains("\"manifests\":2"), "{}", dry.stdout);
    let half = kv_store(&["gc", &uri(&server), "--max-bytes", "20002", "--json"]);
    assert!(
        half.stdout.contains("\"chunks\":10") && half.stdout.contains("\"manifests\":1"),
        "{}{}",
        half.stdout,
        half.stderr
    );
    assert_eq!((server.get(&chunk(10).2), server.get(&chunk(11).2)), (None, Some(content(11))));
    assert_eq!((server.get("bucket/p/m/first"), server.get("bucket/p/m/second").is_some()), (None, true));
    assert_eq!(server.uploads(), 1, "the upload of another store is not ours");
    let rest = kv_store(&["gc", &uri(&server), "--older-than", "1h", "--json"]);
    assert!(rest.status.success() && rest.stdout.contains("\"chunks\":10"), "{}{}", rest.stdout, rest.stderr);
    assert_eq!(server.keys(), ["bucket/elsewhere"]);
    // It was put more than a day ago, by the listing.
    let asked = server.asked();
    let collected =
        asked.iter().find(|(line, _)| line.starts_with("DELETE /bucket/p/r/deleted")).expect("it is removed");
    assert!(collected.1.contains_key("if-match"), "{collected:?}");
}

/// What the server answers to a request without a body.
fn request(server: &ObjectServer, line: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    stream.write_all(format!("{line} HTTP/1.1\r\nhost: h\r\n\r\n").as_bytes()).unwrap();
    let mut answer = [0; 4096];
    let len = stream.read(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[..len]).into_owned()
}

/// In a process of its own: a real server, which other tests of this process talk to, knows no such token.
#[test]
fn keys_are_read_again_when_the_token_has_expired() {
    let (server, folder) = (ObjectServer::start(), tempfile::tempdir().expect("a temporary directory"));
    let (config, token) = (folder.path().join("config.toml"), folder.path().join("token"));
    let secret = format!("[backend.s3]\nsecrets.session-token = {{ file = '{}' }}\n", token.display());
    std::fs::write(&config, secret).expect("it is ours");
    std::fs::write(&token, "first").expect("it is ours");
    let mut command = consumer("calls");
    command.arg(uri(&server)).args(["publish", "m", "x", "wait", "read", "m"]).env("KV_STORE_WASM_CONFIG", &config);
    command.env("S3_ACCESS_KEY_ID", ACCESS_KEY_ID).env("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
    let mut consumer = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut lines = BufReader::new(consumer.0.stdout.take().expect("a pipe")).lines();
    while lines.next().expect("it waits").expect("text") != "wait" {}
    std::fs::write(&token, "second\n").expect("it is ours");
    server.spoil("GET /bucket/p/r/", 1, Fault::Refused(400, "ExpiredToken"));
    consumer.0.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
    let said: Vec<String> = lines.map(|line| line.expect("text")).collect();
    assert_eq!((said, server.to_spoil()), (vec!["read 0 78".to_owned()], 0));
    let tokens: Vec<String> =
        server.asked().into_iter().filter_map(|(_, headers)| headers.get("x-amz-security-token").cloned()).collect();
    assert_eq!(tokens.last().map(String::as_str), Some("second"));
    assert!(tokens.iter().any(|token| token == "first"), "{tokens:?}");
}

#[test]
fn a_request_is_signed_for_its_region_and_class_and_names_no_secret() {
    let server = ObjectServer::start();
    let config = "options.region = 'eu-north-7'\noptions.storage-class = 'GLACIER_IR'\nlimits.breaker_failures = 0";
    let made = calls(&uri(&server), config, &[], &["put", "aa", "x", "publish", "m", "y", "get", "aa"]);
    assert_eq!(made.stdout, "open ok\nput 0\npublish 0\nget 0 78\n", "{}", made.stderr);
    let asked = server.asked();
    assert!(asked.iter().all(|(_, headers)| headers["authorization"].contains("/eu-north-7/s3/aws4_request")));
    let puts = asked.iter().filter(|(line, _)| line.starts_with("PUT") && !line.contains("/x/"));
    let puts: Vec<_> = puts.collect();
    assert_eq!(puts.len(), 2);
    assert!(puts.iter().all(|(_, headers)| headers["x-amz-storage-class"] == "GLACIER_IR"));
    // The hash of the payload, for this connection is plain.
    assert!(puts.iter().all(|(_, headers)| headers["x-amz-content-sha256"].len() == 64));
    assert!(!format!("{asked:?}{}", made.stderr).contains(SECRET_ACCESS_KEY));
}

#[test]
fn what_the_operator_got_wrong_is_said_at_open() {
    let server = ObjectServer::start();
    let refused = |uri: &str, config: &str, environment: &[(&str, &str)], said: &str| {
        let made = calls(uri, config, environment, &[]);
        assert!(
            made.stdout == "open NULL\n" && made.stderr.contains(said),
            "expected {said}: {}{}",
            made.stdout,
            made.stderr
        );
    };
    let uri = uri(&server);
    refused(&uri, "", &[("S3_ACCESS_KEY_ID", "")], "set S3_ACCESS_KEY_ID");
    refused(&uri, "options.style = 'other'", &[], "path, virtual");
    refused(&uri, "options.color = 'red'", &[], "unknown option `color`");
    refused(&format!("s3+http://127.0.0.1:{}", server.port), "", &[], "no bucket");
    // The bucket in front of the host is another server than the one that the URI names.
    refused(&uri, "options.style = 'virtual'", &[], "bucket.127.0.0.1");
    server.spoil("list-type=2", 1, Fault::Refused(404, "NoSuchBucket"));
    refused(&uri, "", &[], "there is no such bucket");
    server.spoil("list-type=2", 1, Fault::Clock(1));
    refused(&uri, "", &[], "minutes apart");
    server.spoil("list-type=2", 1, Fault::Refused(403, "SignatureDoesNotMatch"));
    refused(&uri, "", &[], "S3_SECRET_ACCESS_KEY");
}

#[test]
fn a_server_that_hangs_costs_its_calls_a_patience_and_not_their_deadline() {
    let server = ObjectServer::start();
    let (hash, bytes, key) = chunk(13);
    server.put(&key, &bytes);
    server.spoil("GET /bucket/p/r/", 100, Fault::Hangs);
    // A deadline of a day: whatever waits for it hangs.
    let config = "limits.deadline_ms = 86_400_000\nlimits.patience_ms = 200\nlimits.breaker_failures = 0";
    let hex = hex::encode(hash);
    let made = calls(&uri(&server), config, &[], &["read", "m", "get", &hex]);
    let bytes = hex::encode(bytes);
    let lines: Vec<&str> = made.stdout.lines().collect();
    assert!(lines[1].starts_with("read -") && lines[2] == format!("get 0 {bytes}"), "{}", made.stderr);
}

#[test]
fn a_batch_that_meets_a_server_that_hangs_waits_twice_however_many_items_it_has() {
    let server = ObjectServer::start();
    let hashes: String = (0..300).map(|n| format!("{n:016x}")).collect();
    server.spoil("GET /bucket/p/c/", usize::MAX >> 1, Fault::Hangs);
    // One request at a time, and a deadline of a day: 300 waits of their own would take the test's time.
    let config = "limits = { deadline_ms = 86_400_000, patience_ms = 500, breaker_failures = 0, connections = 1 }";
    let made = calls(&uri(&server), config, &[], &["prefetch", "8", &hashes, "get", "0000000000000000", "read", "m"]);
    let lines: Vec<&str> = made.stdout.lines().collect();
    assert!(lines.len() == 4 && lines[2].starts_with("get -"), "{lines:?}{}", made.stderr);
    let hung = server.asked().iter().filter(|(line, _)| line.starts_with("GET /bucket/p/c/")).count();
    // Once a wait has run out, the rest of the call shares as much again, in waits of 50 ms or more: two calls, and not 301.
    assert!((1..=2 * (1 + 10)).contains(&hung), "{hung} requests hung");
}

/// What to run under a program that runs another one where these lines are `/etc/hosts`. None: this user may not, which is said.
fn with_hosts(folder: &Path, hosts: &str, command: &Command) -> Option<Command> {
    let path = folder.join("hosts");
    std::fs::write(&path, hosts).expect("it is ours");
    let under = |program: &OsStr| {
        let mut under = Command::new("unshare");
        let script = format!("mount --bind '{}' /etc/hosts && exec \"$0\" \"$@\"", path.display());
        under.args(["-m", "sh", "-c", &script]).arg(program);
        under
    };
    let tried = finish(&mut under(OsStr::new("true")));
    if !tried.status.success() {
        skipped(format_args!("no mount namespace can be made here (unshare -m), which needs root: {}", tried.stderr));
        return None;
    }
    let mut under = under(command.get_program());
    under.args(command.get_args()).env_clear();
    under.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Some(under)
}

#[test]
fn virtual_hosts_are_asked_by_the_name_of_their_bucket() {
    let server = ObjectServer::start();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let config = folder.path().join("config.toml");
    // Nothing else is granted than what the URI names: the bucket in front of the host.
    std::fs::write(&config, "[backend.s3]\noptions.style = 'virtual'\n").expect("it is ours");
    let mut command = consumer("calls");
    command.arg(format!("s3+http://s3.test:{}/bucket/p", server.port)).env("KV_STORE_WASM_CONFIG", config);
    command.args(["put", "aa", "x", "publish", "m", "y", "get", "aa", "read", "m", "delete", "m"]);
    command.env("S3_ACCESS_KEY_ID", ACCESS_KEY_ID).env("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
    let Some(mut command) = with_hosts(folder.path(), "127.0.0.1 bucket.s3.test\n", &command) else { return };
    let made = finish(&mut command);
    assert_eq!(made.stdout, "open ok\nput 0\npublish 0\nget 0 78\nread 0 79\ndelete 0\n", "{}", made.stderr);
    let asked = server.asked();
    let host = format!("bucket.s3.test:{}", server.port);
    assert!(asked.len() >= 5 && asked.iter().all(|(_, headers)| headers["host"] == host), "{asked:?}");
    // The bucket is in no path.
    assert!(asked.iter().all(|(line, _)| !line.contains("bucket")), "{asked:?}");
    let keys = server.keys();
    let keys: Vec<&String> = keys.iter().filter(|key| !key.starts_with("p/r/m") || !server.is_tombstone(key)).collect();
    assert_eq!(keys, ["p/c/aa026b7632"]);
}

#[test]
fn a_real_server_enforces_what_ours_does_not() {
    let Some(server) = Seaweed::start(1, 1) else { return };
    let refused = |environment: &[(&str, &str)], said: &str| {
        let made = calls(&server.uri("x"), "", environment, &[]);
        assert!(
            made.stdout == "open NULL\n" && made.stderr.contains(said),
            "expected {said}: {}{}",
            made.stdout,
            made.stderr
        );
    };
    refused(&[("S3_SECRET_ACCESS_KEY", "wrong")], "S3_SECRET_ACCESS_KEY");
    refused(&[("S3_ACCESS_KEY_ID", "nobody")], "S3_ACCESS_KEY_ID");
    let made =
        calls(&server.uri("x"), "", &[], &["put", "aa", "chunk", "publish", "a/b", "y", "get", "aa", "read", "a/b"]);
    assert_eq!(made.stdout, "open ok\nput 0\npublish 0\nget 0 6368756e6b\nread 0 79\n", "{}", made.stderr);
    // With another gateway that is not there: the one that is serves.
    let uri = server.uri("x").replace("127.0.0.1:", "127.0.0.1:1,127.0.0.1:");
    let made = calls(&uri, "", &[], &["get", "aa"]);
    assert_eq!(made.stdout, "open ok\nget 0 6368756e6b\n", "{}", made.stderr);
}
