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
    // Each with what the host adds to keys and names of what lies in an envelope.
    assert!(answer(r#"GETRANGE "kv:c:hash\x02kv2\x02" 0 4"#).contains("chunk"));
    assert!(answer(r#"GETRANGE "kv:m:name\x02" 0 7"#).contains("manifest"));
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
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[backend.redis]\nlimits = { damaged_ms = 0 }\n").unwrap();
    let calls = |calls: &[&str]| {
        finish(consumer("calls").arg(&uri).args(calls).env("KV_STORE_WASM_CONFIG", config.path())).stdout
    };
    calls(&["put", &key, "content", "put", &other, "other", "publish", "m", "x"]);
    let name: String = key.as_bytes().chunks(2).map(|hex| format!("\\x{}", str::from_utf8(hex).unwrap())).collect();
    server.ask(&format!("SET \"kv:c:{name}\" \"c0ntent\""));
    // Twice, the second time over another connection.
    let restored = calls(&["get", &other, "get", &key, "get", &key]);
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
    let left = |key: &str| number(&server.ask(&format!("PTTL \"kv:{key}\"")));
    // Chunks live a minute longer than the manifests that name them.
    assert!((1..=1000).contains(&left(r"m:m\x02")) || left(r"m:m\x02") == -2, "{}", left(r"m:m\x02"));
    for chunk in [r"c:ab\x02kv2", r"c:cd\x02kv2"] {
        assert!((55_000..=61_000).contains(&left(chunk)), "{chunk}: {}", left(chunk));
        server.ask(&format!("PEXPIRE \"kv:{chunk}\" 2000"));
    }
    // Named again, by a process that stores nothing anew.
    let renewed = calls(&["put", "6162", "named", "publish", "n", "y"]);
    assert!(renewed.stdout.ends_with("publish 0\n"), "{}{}", renewed.stdout, renewed.stderr);
    assert!((55_000..=61_000).contains(&left(r"c:ab\x02kv2")), "{}", left(r"c:ab\x02kv2"));
    let begun = Instant::now();
    while [left(r"m:m\x02"), left(r"m:n\x02"), left(r"c:cd\x02kv2")] != [-2; 3] {
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

/// A dead server wrote a line for each failed call: 127,000 in 3 s from one thread.
#[test]
fn an_outage_is_a_few_lines_however_many_calls_fail() {
    use std::io::{BufRead, Read, Seek};
    for callback in [false, true] {
        let server = RedisServer::start(&[]);
        let mut stderr = tempfile::tempfile().unwrap();
        let mut calls = consumer("outage");
        calls.arg(uri(&server, "")).arg("30000").args(callback.then_some("callback"));
        calls.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = calls.stderr(stderr.try_clone().unwrap()).spawn().unwrap();
        let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        stdout.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        drop(server);
        drop(child.stdin.take());
        let mut said = String::new();
        stdout.read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success());
        let number =
            |name: &str| -> u64 { said.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap() };
        let mut log = String::new();
        stderr.rewind().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        assert!(number("failed ") > 50_000, "{said}");
        let (lines, bytes) = match callback {
            true => (number("lines "), number("bytes ")),
            false => (log.lines().count() as u64, log.len() as u64),
        };
        // One for the cause and one for the breaker, and again each minute that it takes.
        assert!((1..=12).contains(&lines) && bytes < 8192, "{lines} lines, {bytes} bytes: {log}");
        assert!(!callback || log.is_empty(), "{log}");
    }
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
fn changes_carry_their_end_and_content_keyed_chunks_and_reads_pay_nothing() {
    let server = RedisServer::start(&[]);
    let store = open(&server, "");
    let data = vec![7; 10_000];
    let key = xxhash_rust::xxh3::xxh3_64(&data).to_be_bytes();
    assert_eq!(store.put_manifest("first", b"x").unwrap(), 0);
    server.ask("CONFIG RESETSTAT");
    assert_eq!(store.put_chunk(&key, &data).unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    let stats = || server.ask("INFO commandstats");
    let has = |name: &str| stats().contains(&format!("cmdstat_{name}:calls=1,"));
    let calls = |stats: &str, name: &str| -> u32 {
        let count = stats.split(&format!("cmdstat_{name}:calls=")).nth(1);
        count.map_or(0, |count| count.split(',').next().unwrap().parse().unwrap())
    };
    assert!(has("evalsha"), "one script for the manifest, and none for the chunk: {}", stats());
    server.ask("CONFIG RESETSTAT");
    assert_eq!(store.get_chunk(&key).unwrap(), Ok(data));
    assert_eq!(store.get_manifest("m").unwrap(), Ok(b"x".to_vec()));
    // An instance that opens meanwhile, for upkeep or another thread, asks with INFO and tries one script.
    let read = stats();
    let opened = calls(&read, "info");
    assert!(calls(&read, "eval") <= opened && calls(&read, "time") <= opened, "{read}");
    assert_eq!((calls(&read, "evalsha"), calls(&read, "get")), (0, 2), "{read}");
    // Longer than what a script is handed: put under a name of its own, and renamed.
    let long = vec![9; 1 << 20];
    assert_eq!(store.put_manifest("m", &long).unwrap(), 0);
    assert!(has("rename"), "{}", stats());
    assert_eq!(store.get_manifest("m").unwrap(), Ok(long));
    // A server that has forgotten its scripts is told them again.
    server.ask("SCRIPT FLUSH");
    assert_eq!(store.put_manifest("m", b"y").unwrap(), 0);
    assert_eq!(store.delete_manifest("m").unwrap(), 0);
    assert!(store.get_manifest("m").unwrap().is_err());
}

#[test]
fn a_user_who_may_run_no_scripts_is_told_that_late_changes_are_not_refused() {
    let server = RedisServer::start(&[]);
    server.ask("ACL SETUSER plain on >pass ~kv:* +@all -@scripting");
    let uri = format!("redis://plain@127.0.0.1:{}", server.port);
    let made =
        finish(consumer("calls").arg(&uri).args(["publish", "m", "x", "read", "m"]).env("REDIS_PASSWORD", "pass"));
    assert!(made.stdout.ends_with("publish 0\nread 0 78\n"), "{}{}", made.stdout, made.stderr);
    assert!(made.stderr.contains("does not refuse changes that come late: let the user EVAL"), "{}", made.stderr);
}

/// A tenant inherits no secret of its backend, and needs none of its own where the server wants none.
#[test]
fn a_tenant_needs_no_password_where_the_server_wants_none() {
    let [open, guarded] = [RedisServer::start(&[]), RedisServer::start(&["--requirepass", "hunter2"])];
    let config = tempfile::NamedTempFile::new().unwrap();
    let tenant = |server: &RedisServer| format!("[[tenant]]\nuri = '{}'\n", uri(server, "/3"));
    std::fs::write(config.path(), [&open, &guarded].map(tenant).concat()).unwrap();
    let calls = |server: &RedisServer| {
        let mut calls = consumer("calls");
        calls.arg(uri(server, "/3")).args(["put", "aa", "data", "publish", "m", "x"]);
        // Its backend's own, which is not the tenant's.
        finish(calls.env("KV_STORE_WASM_CONFIG", config.path()).env("REDIS_PASSWORD", "hunter2"))
    };
    assert_eq!(calls(&open).stdout, "open ok\nput 0\npublish 0\n");
    let refused = calls(&guarded);
    assert_eq!(refused.stdout, "open NULL\n");
    let said = "no secret password is granted to this tenant: add it to the secrets of its [[tenant]]";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
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

/// A server that answers INFO, TIME and the script that asks whether there are scripts as Redis does, and any other command by what none has
/// for an answer. It tells when a client has gone.
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
                    let mut answer = String::new();
                    if text.contains("INFO") {
                        answer += "$17\r\nredis_version:9.9\r\n";
                    }
                    if text.contains("\r\nEVAL\r\n") || text.contains("\r\nTIME\r\n") {
                        answer += "*2\r\n$1\r\n1\r\n$1\r\n0\r\n";
                    }
                    if answer.is_empty() {
                        answer += "$5\r\n:1+OK\r\n";
                    }
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
