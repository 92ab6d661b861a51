//! The redis backend against a real redis-server: what it stores, and what it says when the server will not.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::time::{Duration, Instant};

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::redis::RedisServer;
use kv_store_tests::servers;
use kv_store_tests::{Handle, library, skipped, timed};

fn uri(server: &RedisServer, path: &str) -> String {
    format!("redis://127.0.0.1:{}{path}", server.port)
}

fn open(server: &RedisServer, path: &str) -> Handle<'static> {
    library().open(&uri(server, path)).expect("the store opens")
}

/// What the library says when a URI cannot be opened.
fn refusal(uri: &str, environment: &[(&str, &str)]) -> String {
    let finished = finish(consumer("calls").arg(uri).envs(environment.iter().copied()));
    assert_eq!(finished.stdout, "open NULL\n", "{uri}");
    finished.stderr
}

#[test]
fn chunks_and_manifests_are_strings_under_their_prefix() {
    let server = RedisServer::start(&[]);
    let store = open(&server, "/3");
    assert_eq!(store.put_chunk(b"hash", b"chunk").unwrap(), 0);
    assert_eq!(store.put_manifest("name", b"manifest").unwrap(), 0);
    let answer = |command: &str| server.ask(&format!("SELECT 3\r\n{command}"));
    assert!(answer("GET kv:c:hash").contains("chunk"));
    assert!(answer("GET kv:m:name").contains("manifest"));
    assert!(answer("DBSIZE").contains(":2"));
    assert!(server.ask("DBSIZE").contains(":0"), "database 0 is untouched");
}

#[test]
fn a_chunk_that_another_process_stored_is_not_sent_again() {
    let server = RedisServer::start(&[]);
    let (one, other) = (open(&server, ""), open(&server, "/"));
    assert_eq!(one.put_chunk(b"hash", b"chunk").unwrap(), 0);
    assert_eq!(one.put_manifest("m", b"x").unwrap(), 0);
    server.ask("CONFIG RESETSTAT");
    assert_eq!(other.put_chunk(b"hash", b"chunk").unwrap(), 1);
    assert_eq!(other.put_manifest("m", b"y").unwrap(), 0);
    let stats = server.ask("INFO commandstats");
    assert!(stats.contains("cmdstat_exists:calls=1"), "{stats}");
    assert!(stats.contains("cmdstat_set:calls=1"), "only the manifest is set: {stats}");
}

#[test]
fn a_damaged_chunk_is_replaced_by_the_next_put() {
    let server = RedisServer::start(&[]);
    let store = open(&server, "");
    let (data, key) = (b"content".to_vec(), xxhash_rust::xxh3::xxh3_64(b"content").to_be_bytes());
    assert_eq!(store.put_chunk(&key, &data).unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    let name: String = key.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    server.ask(&format!("SET \"kv:c:{name}\" \"damaged\""));
    assert!(store.get_chunk(&key).unwrap().is_err());
    assert_eq!(store.put_chunk(&key, &data).unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!(store.get_chunk(&key).unwrap(), Ok(data));
}

#[test]
fn a_damaged_chunk_that_one_process_has_met_is_stored_again_by_another() {
    let server = RedisServer::start(&[]);
    let uri = uri(&server, "");
    let key = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(b"content"));
    let other = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(b"other"));
    let calls = |calls: &[&str]| finish(consumer("calls").arg(&uri).args(calls)).stdout;
    calls(&["put", &key, "content", "put", &other, "other", "publish", "m", "x"]);
    let name: String = key.as_bytes().chunks(2).map(|hex| format!("\\x{}", str::from_utf8(hex).unwrap())).collect();
    server.ask(&format!("SET \"kv:c:{name}\" \"c0ntent\""));
    let restored = calls(&["get", &other, "get", &key]);
    assert!(restored.ends_with("get -100\n") || restored.ends_with("get -1\n"), "{restored}");
    let saved = calls(&["put", &key, "content", "publish", "m", "x", "put", &key, "content"]);
    assert_eq!(saved, "open ok\nput 0\npublish 0\nput 1\n");
    let healed = calls(&["get", &other, "get", &key]);
    assert!(healed.lines().all(|line| line == "open ok" || line.starts_with("get 0 ")), "{healed}");
}

/// The first number in an answer.
fn number(answer: &str) -> i64 {
    let line = answer.lines().next().and_then(|line| line.strip_prefix(':'));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number: {answer}"))
}

#[test]
fn what_no_save_names_goes_after_its_ttl_and_a_commit_renews_what_it_names() {
    let server = RedisServer::start(&[]);
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[backend.redis]\noptions = { ttl_s = '1' }\n").unwrap();
    let uri = uri(&server, "");
    let calls =
        |calls: &[&str]| finish(consumer("calls").arg(&uri).args(calls).env("KV_STORE_WASM_CONFIG", config.path()));
    // Hashes that are printable: "ab" and "cd".
    let saved = calls(&["put", "6162", "named", "put", "6364", "not", "publish", "m", "x"]);
    assert!(saved.stdout.ends_with("publish 0\n"), "{}{}", saved.stdout, saved.stderr);
    let left = |key: &str| number(&server.ask(&format!("PTTL kv:{key}")));
    // Chunks live a minute longer than the manifests that name them.
    assert!((1..=1000).contains(&left("m:m")) || left("m:m") == -2, "{}", left("m:m"));
    for chunk in ["c:ab", "c:cd"] {
        assert!((55_000..=61_000).contains(&left(chunk)), "{chunk}: {}", left(chunk));
        server.ask(&format!("PEXPIRE kv:{chunk} 2000"));
    }
    // Named again, by a process that stores nothing anew.
    let renewed = calls(&["put", "6162", "named", "publish", "n", "y"]);
    assert!(renewed.stdout.ends_with("publish 0\n"), "{}{}", renewed.stdout, renewed.stderr);
    assert!((55_000..=61_000).contains(&left("c:ab")), "{}", left("c:ab"));
    let begun = Instant::now();
    while [left("m:m"), left("m:n"), left("c:cd")] != [-2; 3] {
        assert!(begun.elapsed() < Duration::from_secs(60), "they stay");
        std::thread::sleep(Duration::from_millis(50));
    }
    let seen = calls(&["read", "m", "get", "6162", "get", "6364"]);
    let lines: Vec<&str> = seen.stdout.lines().collect();
    assert_eq!(lines[2], "get 0 6e616d6564", "{lines:?}");
    assert!(lines[1].starts_with("read -") && lines[3].starts_with("get -"), "{lines:?}");
}

#[test]
fn a_restarted_server_is_used_again() {
    let mut server = RedisServer::start(&[]);
    let uri = uri(&server, "");
    servers::a_restarted_server_is_used_again(&mut server, &uri);
}

#[test]
fn a_chunk_lost_after_it_was_confirmed_fails_the_manifest_that_counts_on_it() {
    let server = RedisServer::start(&[]);
    let timed = timed();
    let store = timed.library.open(&uri(&server, "")).expect("the store opens");
    let data = vec![7; 100_000];
    assert_eq!(store.put_chunk(b"counted on", &data).unwrap(), 0);
    assert_eq!(store.put_manifest("first", b"x").unwrap(), 0);
    assert_eq!(store.put_chunk(b"counted on", &data).unwrap(), 1, "the server was asked, and has it");
    server.ask("FLUSHALL");
    // Longer than the server's word is taken; then so much that a helper stores it before the manifest.
    timed.pass(Duration::from_secs(2));
    for n in 0..16u8 {
        assert_eq!(store.put_chunk(&[n], &vec![n; 256 << 10]).unwrap(), 0);
    }
    let begun = Instant::now();
    while server.ask("DBSIZE").starts_with(":0") {
        if std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1) {
            return skipped("with one processor no helper stores ahead");
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no helper stores ahead");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(store.put_manifest("second", b"x").unwrap() < 0, "published without a chunk");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| store.put_manifest("third", b"x").unwrap());
        assert!(other.join().unwrap() < 0, "only one thread was told");
    });
    assert_eq!(store.put_chunk(b"counted on", &data).unwrap(), 0);
    assert_eq!(store.put_manifest("second", b"x").unwrap(), 0);
    assert_eq!(store.get_chunk(b"counted on").unwrap(), Ok(data));
}

#[test]
fn a_store_of_one_instance_does_not_stand_in_its_own_line() {
    let server = RedisServer::start(&[]);
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[backend.redis]\nlimits = { instances = 1, waiting = 0 }\n").unwrap();
    let hashes: String = (0..2000_u64).map(|n| format!("{n:016x}")).collect();
    let mut calls = consumer("calls");
    calls.arg(uri(&server, "")).args(["prefetch", "8", &hashes]);
    let finished = finish(calls.env("KV_STORE_WASM_CONFIG", config.path()));
    assert_eq!(finished.stdout, "open ok\nprefetch 0\n", "{}", finished.stderr);
}

#[test]
fn a_frozen_server_fails_calls_in_time_and_is_used_again() {
    let mut server = RedisServer::start(&[]);
    let uri = uri(&server, "");
    servers::a_frozen_server_fails_calls_in_time_and_is_used_again(&mut server, &uri);
}

#[test]
fn a_full_server_is_an_error_and_the_former_manifest_stays() {
    let server = RedisServer::start(&["--maxmemory", "16mb", "--maxmemory-policy", "noeviction"]);
    let store = open(&server, "");
    assert_eq!(store.put_manifest("m", b"former").unwrap(), 0);
    assert_eq!(store.put_chunk(b"large", &vec![7; 32 << 20]).unwrap(), 0);
    assert!(store.put_manifest("m", b"next").unwrap() < 0);
    assert_eq!(store.get_manifest("m").unwrap(), Ok(b"former".to_vec()));
}

#[test]
fn a_password_comes_from_the_environment() {
    let server = RedisServer::start(&["--requirepass", "hunter2"]);
    let uri = uri(&server, "");
    let missing = refusal(&uri, &[]);
    assert!(missing.contains("set the secret password (REDIS_PASSWORD"), "{missing}");
    let wrong = refusal(&uri, &[("REDIS_PASSWORD", "nonsense")]);
    assert!(wrong.contains("refused the secret password") && !wrong.contains("nonsense"), "{wrong}");
    let saved = finish(
        consumer("twenty_lines")
            .arg(&uri)
            .env("REDIS_PASSWORD", "hunter2")
            .env("LD_LIBRARY_PATH", kv_store_tests::dist().join("lib")),
    );
    assert!(saved.status.success(), "{}", saved.stderr);
}

#[test]
fn what_makes_no_sense_is_refused_at_open() {
    let server = RedisServer::start(&[]);
    let at = |path: &str| uri(&server, path);
    for (uri, said) in [
        (at("/x"), "database is not a number"),
        (at("/99999"), "database in the URI"),
        (at("/0?timeout=1"), "query"),
        ("redis:///0".to_owned(), "no host"),
        ("redis://127.0.0.1:1/0".to_owned(), "cannot connect"),
    ] {
        let said_so = refusal(&uri, &[]);
        assert!(said_so.contains(said), "{uri}: {said_so}");
    }
}

#[test]
fn each_refusal_of_a_server_is_named() {
    let put = ["put", "aa", "text", "publish", "m", "text"];
    let read = ["read", "list"];
    for (options, calls, answer, named) in [
        (&["--replicaof", "127.0.0.1", "1"][..], &put[..], "publish -2", "name the primary"),
        (&["--cluster-enabled", "yes"], &put, "publish -", "no node of the cluster serves this key"),
        (&["--maxmemory", "1"], &put, "publish -3", "the server is full (maxmemory)"),
        (&[], &read, "read -5", "holds something else than a string"),
    ] {
        let server = RedisServer::start(options);
        if options.is_empty() {
            server.ask("LPUSH kv:m:list x");
        }
        let uri = uri(&server, "");
        let finished = finish(consumer("calls").arg(uri).args(calls));
        assert!(finished.stdout.contains(answer), "{named}: {}", finished.stdout);
        assert!(finished.stderr.contains(named), "{named}: {}", finished.stderr);
    }
}

#[test]
fn something_else_than_redis_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut &stream, b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let said = refusal(&format!("redis://127.0.0.1:{port}"), &[]);
    assert!(said.contains("is this a Redis server"), "{said}");
}

/// A server that answers its first command, INFO, as Redis does, and any other by a string, which none of them has. It tells
/// when a client has gone.
fn out_of_step() -> (u16, std::sync::mpsc::Receiver<()>) {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (gone, waits) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let gone = gone.clone();
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut request) {
                    let text = String::from_utf8_lossy(&request[..count]);
                    let answer = if text.contains("INFO") { "$17\r\nredis_version:9.9\r\n" } else { "$5\r\n:1+OK\r\n" };
                    let _ = stream.write_all(answer.as_bytes());
                }
                let _ = gone.send(());
            });
        }
    });
    (port, waits)
}

#[test]
fn a_connection_that_is_out_of_step_is_not_used_again() {
    for call in [["publish", "m", "text"], ["put", "aa", "text"], ["delete", "m", ""]] {
        let (port, gone) = out_of_step();
        let store = library().open(&format!("redis://127.0.0.1:{port}")).expect("it answers INFO");
        let failed = match call {
            ["publish", name, text] => store.put_manifest(name, text.as_bytes()).unwrap() < 0,
            ["put", hash, text] => {
                assert_eq!(store.put_chunk(hash.as_bytes(), text.as_bytes()).unwrap(), 0);
                store.put_manifest("m", b"x").unwrap() < 0
            }
            [_, name, _] => store.delete_manifest(name).unwrap() < 0,
        };
        assert!(failed, "{call:?} succeeds");
        assert!(gone.recv_timeout(Duration::from_secs(10)).is_ok(), "{call:?}: the connection is kept");
    }
}
