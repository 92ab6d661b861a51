//! The memkv backend against a real memkv-server, and the server against clients that mean ill.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

#[path = "memkv/admin.rs"]
mod admin;
#[path = "memkv/durability.rs"]
mod durability;
#[path = "memkv/frames.rs"]
mod frames;
#[path = "memkv/impostors.rs"]
mod impostors;
#[path = "memkv/late.rs"]
mod late;
#[path = "memkv/raw.rs"]
mod raw;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::servers::{self, Server};
use kv_store_tests::{Handle, library};

fn open(server: &MemkvServer) -> Handle<'static> {
    library().open(&server.uri("test")).expect("the store opens")
}

/// What the library says when a URI cannot be opened.
fn refusal(uri: &str, key: Option<&str>) -> String {
    let finished = finish(consumer("calls").arg(uri).envs(key.map(|key| ("MEMKV_AUTH_KEY", key))));
    assert_eq!(finished.stdout, "open NULL\n", "{uri}");
    finished.stderr
}

/// Save some chunks and a manifest.
fn save(store: &Handle, name: &str, chunks: &[(&[u8], &[u8])]) {
    for (hash, data) in chunks {
        assert!(store.put_chunk(hash, data).unwrap() >= 0);
    }
    assert_eq!(store.put_manifest(name, name.as_bytes()).unwrap(), 0);
}

#[test]
fn a_chunk_that_another_process_stored_is_not_sent_again() {
    let server = MemkvServer::start(&[]);
    save(&open(&server), "m", &[(b"hash", b"chunk")]);
    let other = open(&server);
    let puts = server.metric("memkv_requests_total{op=\"put\"}");
    save(&other, "n", &[(b"hash", b"chunk")]);
    assert_eq!(server.metric("memkv_requests_total{op=\"put\"}"), puts + 1, "only the manifest is put");
    assert_eq!(other.put_chunk(b"hash", b"chunk").unwrap(), 1);
}

#[test]
fn a_save_is_few_questions_and_pipelines_on_few_connections() {
    let server = MemkvServer::start(&[]);
    let store = open(&server);
    let chunks: Vec<([u8; 8], Vec<u8>)> = (0..96_u64).map(|n| (n.to_le_bytes(), vec![n as u8; 64 << 10])).collect();
    let chunks: Vec<(&[u8], &[u8])> = chunks.iter().map(|(hash, data)| (&hash[..], &data[..])).collect();
    save(&store, "m", &chunks);
    // Chunks go ahead of their manifest in batches, side by side; never one by one.
    let few = |metric: &str| {
        let count = server.metric(metric);
        assert!((1..=12).contains(&count), "{metric}: {count}");
    };
    few("memkv_requests_total{op=\"exists\"}");
    assert_eq!(server.metric("memkv_requests_total{op=\"put\"}"), 97);
    let hashes: Vec<u8> = chunks.iter().flat_map(|(hash, _)| hash.to_vec()).collect();
    assert_eq!(store.prefetch_chunks(&hashes, 8).unwrap(), 0);
    for (hash, data) in chunks {
        assert_eq!(store.get_chunk(hash).unwrap().as_deref(), Ok(data));
    }
    few("memkv_requests_total{op=\"batch_get\"}");
    few("memkv_accepted_total");
}

#[test]
fn a_batch_that_is_too_large_for_one_answer_is_asked_for_again() {
    let server = MemkvServer::start(&[]);
    let store = open(&server);
    let chunks: Vec<([u8; 8], Vec<u8>)> = (0..12_u64).map(|n| (n.to_le_bytes(), vec![n as u8; 5 << 20])).collect();
    for (hash, data) in &chunks {
        assert_eq!(store.put_chunk(hash, data).unwrap(), 0);
    }
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    let hashes: Vec<u8> = chunks.iter().flat_map(|(hash, _)| *hash).collect();
    assert_eq!(store.prefetch_chunks(&hashes, 8).unwrap(), 0);
    let asked = server.metric("memkv_requests_total{op=\"batch_get\"}");
    assert!((2..12).contains(&asked), "{asked}");
    for (hash, data) in &chunks {
        assert_eq!(store.get_chunk(hash).unwrap().as_deref(), Ok(&data[..]));
    }
    assert_eq!(server.metric("memkv_requests_total{op=\"batch_get\"}"), asked, "all were prefetched");
}

#[test]
fn what_is_not_used_goes_after_its_ttl_and_a_commit_renews_what_it_names() {
    let server = MemkvServer::start(&["--ttl-seconds", "4"]);
    // In this order: the library asks early for what was put behind a chunk the last time, and to be asked for is a use.
    save(&open(&server), "m", &[(b"once", b"and never again"), (b"named", b"again and again")]);
    let chunks = || -> u64 {
        let (_, status) = server.admin("/v1/status");
        let count = status.split_once("\"chunks\":").and_then(|(_, rest)| rest.split([',', '}']).next()?.parse().ok());
        count.unwrap_or_else(|| panic!("no chunks in {status}"))
    };
    assert_eq!(chunks(), 2);
    let begun = Instant::now();
    while chunks() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "it stays");
        // A handle of its own: it knows of no chunk that is there, and stores none anew.
        save(&open(&server), "n", &[(b"named", b"again and again")]);
        std::thread::sleep(Duration::from_millis(100));
    }
    let store = open(&server);
    assert_eq!(store.get_chunk(b"named").unwrap(), Ok(b"again and again".to_vec()));
    assert!(store.get_chunk(b"once").unwrap().is_err() && store.get_manifest("m").unwrap().is_err());
    drop(store);
    while chunks() > 0 {
        assert!(begun.elapsed() < Duration::from_secs(120), "the last one stays");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn namespaces_are_apart() {
    let server = MemkvServer::start(&[]);
    save(&open(&server), "m", &[(b"hash", b"chunk")]);
    let other = library().open(&server.uri("other")).unwrap();
    assert!(other.get_chunk(b"hash").unwrap().is_err() && other.get_manifest("m").unwrap().is_err());
}

#[test]
fn a_restarted_server_is_used_again() {
    let mut server = MemkvServer::start(&[]);
    let uri = server.uri("test");
    servers::a_restarted_server_is_used_again(&mut server, &uri);
}

#[test]
fn a_frozen_server_fails_calls_in_time_and_is_used_again() {
    let mut server = MemkvServer::start(&[]);
    let uri = server.uri("test");
    servers::a_frozen_server_fails_calls_in_time_and_is_used_again(&mut server, &uri);
}

#[test]
fn a_connection_that_the_server_let_go_is_replaced() {
    let server = MemkvServer::start(&["--idle-seconds", "1"]);
    // One that does not say who it is goes after 10 s. It came first; the idle one goes before it nevertheless.
    let silent = raw::dial(server.port);
    let store = open(&server);
    save(&store, "m", &[]);
    let begun = Instant::now();
    while server.metric("memkv_connections") > 1 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no connection is let go");
        std::thread::sleep(Duration::from_millis(50));
    }
    silent.set_nonblocking(true).unwrap();
    let still_there = silent.peek(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(still_there, "the silent connection was let go before the idle one");
    assert_eq!(store.get_manifest("m").unwrap(), Ok(b"m".to_vec()));
    assert_eq!(server.metric("memkv_accepted_total"), 3);
}

#[test]
fn the_key_is_asked_for_by_its_variable() {
    let server = MemkvServer::start(&[]);
    let uri = server.uri("test");
    let missing = refusal(&uri, None);
    assert!(
        missing.contains("auth-key is not set: set MEMKV_AUTH_KEY") && missing.contains("64 hex digits"),
        "{missing}"
    );
    let malformed = refusal(&uri, Some("hunter2"));
    let wrong = "it, needs 64 hex digits, got 7: set it to the server's key";
    assert!(malformed.contains("MEMKV_AUTH_KEY, or the source") && malformed.contains(wrong), "{malformed}");
    assert!(!malformed.contains("hunter2"), "{malformed}");
    let other = "ff".repeat(32);
    let wrong = refusal(&uri, Some(&other));
    assert!(wrong.contains("the server has another key: MEMKV_AUTH_KEY"), "{wrong}");
    assert!(!wrong.contains(&other), "{wrong}");
    assert_eq!(server.metric("memkv_refused_total{reason=\"not_authentic\"}"), 1);
    let right = finish(consumer("calls").arg(&uri).args(["publish", "m", "x"]).env("MEMKV_AUTH_KEY", AUTH_KEY));
    assert_eq!(right.stdout, "open ok\npublish 0\n", "{}", right.stderr);
}

#[test]
fn what_makes_no_sense_is_refused_at_open() {
    let server = MemkvServer::start(&[]);
    let at = |path: &str| format!("memkv://127.0.0.1:{}{path}", server.port);
    for (uri, said) in [
        (at(""), "no namespace"),
        (at("/ns/object"), "root = \"/ns\""),
        (at("/ns?timeout=1"), "query"),
        ("memkv:///ns".to_owned(), "no host"),
        ("memkv://127.0.0.1:1/ns".to_owned(), "cannot connect"),
    ] {
        let said_so = refusal(&uri, Some(AUTH_KEY));
        assert!(said_so.contains(said), "{uri}: {said_so}");
    }
}

#[test]
fn a_value_that_the_server_does_not_take_is_refused_and_poisons_nothing() {
    let server = MemkvServer::start(&["--max-value", "1MiB"]);
    let store = open(&server);
    let large = vec![1; (1 << 20) + 1];
    assert!(store.put_chunk(b"large", &large).unwrap() < 0);
    assert!(store.put_manifest("large", &large).unwrap() < 0);
    save(&store, "m", &[(b"small", &large[65..])]);
    assert_eq!(server.metric("memkv_refused_total{reason=\"too_large\"}"), 0, "it was not even sent");
}

#[test]
fn a_save_that_does_not_fit_is_not_published_and_the_next_one_is() {
    let server = MemkvServer::start(&["--memory", "4MiB"]);
    let store = open(&server);
    for n in 0..6_u64 {
        assert_eq!(store.put_chunk(&n.to_le_bytes(), &vec![n as u8; 1 << 20]).unwrap(), 0);
    }
    assert!(store.put_manifest("six", b"x").unwrap() < 0, "six MiB are not there any more");
    assert!(store.get_manifest("six").unwrap().is_err());
    // On this handle the lost chunks fail manifests for a while: a save that shares it may count on them.
    assert!(store.put_manifest("shares", b"x").unwrap() < 0);
    save(&open(&server), "small", &[(b"chunk", b"data")]);
    assert!(server.metric("memkv_bytes") <= 4 << 20);
    assert!(server.metric("memkv_evicted_total") > 0);
}

#[test]
fn a_manifest_that_is_answered_has_its_chunks() {
    let server = MemkvServer::start(&["--memory", "4MiB"]);
    let store = open(&server);
    let hash = |save: u64, n: u64| [save.to_le_bytes(), n.to_le_bytes()].concat();
    let (mut whole, mut gone) = (0, 0);
    for round in 0..8_u64 {
        for n in 0..3 {
            assert_eq!(store.put_chunk(&hash(round, n), &vec![n as u8; 300 << 10]).unwrap(), 0);
        }
        assert_eq!(store.put_manifest(&round.to_string(), b"three").unwrap(), 0);
        for former in 0..=round {
            let there = store.get_manifest(&former.to_string()).unwrap().is_ok();
            *if there { &mut whole } else { &mut gone } += 1;
            for n in (0..3).filter(|_| there) {
                assert!(store.get_chunk(&hash(former, n)).unwrap().is_ok(), "chunk {n} of {former} after {round}");
            }
        }
    }
    assert!(whole > 8 && gone > 0, "{whole} {gone}");
}

/// The files below a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[test]
fn what_was_published_survives_a_killed_server() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let mut server = MemkvServer::start(&["--data", data]);
    let store = open(&server);
    let large = vec![7; 3 << 20];
    save(&store, "m", &[(b"a", b"x"), (b"b", &large)]);
    assert_eq!(store.put_manifest("gone", b"x").unwrap(), 0);
    assert_eq!(store.delete_manifest("gone").unwrap(), 0);
    server.restart();
    assert_eq!(store.get_manifest("m").unwrap(), Ok(b"m".to_vec()));
    assert_eq!(store.get_chunk(b"a").unwrap(), Ok(b"x".to_vec()));
    assert_eq!(store.get_chunk(b"b").unwrap(), Ok(large));
    assert!(store.get_manifest("gone").unwrap().is_err());
}

#[test]
fn a_save_without_a_name_makes_its_chunks_durable_where_the_server_has_files() {
    let folder = tempfile::tempdir().unwrap();
    let server = MemkvServer::start(&["--data", folder.path().to_str().unwrap()]);
    let mut program = consumer("batch");
    let done = finish(program.args(["all", &server.uri("batch")]).env("MEMKV_AUTH_KEY", AUTH_KEY));
    assert_eq!(done.stdout, "done\n", "{}", done.stderr);
    assert!(server.metric("memkv_requests_total{op=\"commit\"}") > 0);
}

#[test]
fn a_server_that_is_killed_in_the_middle_keeps_what_it_answered_for() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let mut server = MemkvServer::start(&["--data", data]);
    for round in 0..5_u64 {
        let uri = server.uri("test");
        let (publish, published_one) = std::sync::mpsc::channel();
        let saving = std::thread::spawn(move || {
            let store = library().open(&uri).unwrap();
            let mut published = 0;
            for n in 0..u64::MAX {
                let hash = [round.to_le_bytes(), n.to_le_bytes()].concat();
                let name = format!("{round}-{n}");
                if store.put_chunk(&hash, &vec![n as u8; 20_000]).unwrap() < 0
                    || store.put_manifest(&name, &hash).unwrap() < 0
                {
                    break;
                }
                published = n + 1;
                // Nobody waits for the second.
                let _ = publish.send(());
            }
            published
        });
        published_one.recv().expect("something is published");
        std::thread::sleep(Duration::from_millis(30 * round));
        server.stop();
        let published = saving.join().unwrap();
        server.restart();
        let store = open(&server);
        assert!(published > 0);
        for n in 0..=published {
            let hash = [round.to_le_bytes(), n.to_le_bytes()].concat();
            match store.get_manifest(&format!("{round}-{n}")).unwrap() {
                Ok(manifest) => assert_eq!(manifest, hash),
                // Of the last one nobody was told.
                Err(_) => assert_eq!(n, published),
            }
            if n < published {
                assert_eq!(store.get_chunk(&hash).unwrap(), Ok(vec![n as u8; 20_000]));
            }
        }
    }
    assert_eq!(files(&folder.path().join("damaged")).len(), 0);
    assert_eq!(files(&folder.path().join("new")).len(), 0);
}

#[test]
fn a_damaged_file_is_set_aside_and_the_next_save_heals() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = MemkvServer::start(&["--data", folder.path().to_str().unwrap()]);
    let store = open(&server);
    let data = vec![3; 50_000];
    save(&store, "m", &[(b"hash", &data)]);
    server.stop();
    let objects = files(&folder.path().join("objects"));
    let chunk = objects.iter().find(|path| path.metadata().unwrap().len() > 50_000).unwrap();
    let mut bytes = std::fs::read(chunk).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(chunk, bytes).unwrap();
    server.restart();
    assert!(store.get_chunk(b"hash").unwrap().is_err());
    assert!(store.get_manifest("m").unwrap().is_err(), "it would name a chunk that is not there");
    assert_eq!(files(&folder.path().join("damaged")).len(), 1);
    server.expect_said("is damaged");
    save(&store, "m", &[(b"hash", &data)]);
    assert_eq!(store.get_chunk(b"hash").unwrap(), Ok(data));
}

/// A server with room for 8 MiB.
fn small() -> MemkvServer {
    MemkvServer::start(&["--memory", "8MiB", "--max-value", "4MiB"])
}

#[test]
fn an_evicted_chunk_fails_the_manifests_of_all_threads_of_its_handle() {
    let server = small();
    let (store, other) = (open(&server), open(&server));
    let data = vec![7; 2 << 20];
    assert_eq!(store.put_chunk(b"evicted", &data).unwrap(), 0);
    // So much that a helper stores it before the manifest.
    let begun = Instant::now();
    while other.get_chunk(b"evicted").unwrap().is_err() {
        assert!(begun.elapsed() < Duration::from_secs(60), "no helper stores early");
        std::thread::sleep(Duration::from_millis(5));
    }
    for n in 0..20_u8 {
        assert_eq!(other.put_chunk(&[n], &vec![n; 1 << 20]).unwrap(), 0);
    }
    // Not all of them fit either; what matters is that they evict.
    let _ = other.put_manifest("other", b"x").unwrap();
    assert!(other.get_chunk(b"evicted").unwrap().is_err(), "the server was to evict it");
    assert!(store.put_manifest("mine", b"x").unwrap() < 0);
    std::thread::scope(|scope| {
        let second = scope.spawn(|| store.put_manifest("second", b"x").unwrap());
        assert!(second.join().unwrap() < 0, "only one thread was told");
    });
    assert!(store.put_chunk(b"evicted", &data).unwrap() >= 0);
    assert_eq!(store.put_manifest("mine", b"x").unwrap(), 0);
    assert_eq!(store.get_chunk(b"evicted").unwrap(), Ok(data));
}

#[test]
fn threads_that_save_while_the_server_evicts_publish_all_the_same() {
    const THREADS: u64 = 4;
    const SAVES: u64 = 25;
    let server = small();
    let store = open(&server);
    let begun = Instant::now();
    // After a failure a save puts its chunks again, as the header asks.
    let save = |thread: u64, n: u64| {
        let chunks = [0, 1].map(|chunk: u64| [thread, n, chunk].map(u64::to_le_bytes).concat());
        let puts = || chunks.iter().all(|hash| store.put_chunk(hash, &vec![n as u8; 256 << 10]).unwrap() >= 0);
        while begun.elapsed() < Duration::from_secs(120) {
            if puts() && store.put_manifest(&format!("{thread}-{n}"), b"x").unwrap() == 0 {
                return 1;
            }
            std::thread::yield_now();
        }
        0
    };
    let published: u64 = std::thread::scope(|scope| {
        let saving = |thread| (0..SAVES).map(|n| save(thread, n)).sum::<u64>();
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || saving(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert!(server.metric("memkv_evicted_total") > 0, "the server was to evict all the time");
    assert!(published >= THREADS * SAVES / 4, "{published} of {} saves were published", THREADS * SAVES);
}

#[test]
fn a_damaged_chunk_that_one_process_has_met_is_stored_again_by_another() {
    let server = MemkvServer::start(&[]);
    let key = |content: &[u8]| format!("{:016x}", xxhash_rust::xxh3::xxh3_64(content));
    let (damaged, other) = (key(b"content"), key(b"other"));
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[backend.memkv]\nlimits = { damaged_ms = 0 }\n").unwrap();
    let calls = |calls: &[&str]| {
        let mut consumer = consumer("calls");
        consumer.env("KV_STORE_WASM_CONFIG", config.path());
        finish(consumer.arg(server.uri("test")).args(calls).env("MEMKV_AUTH_KEY", AUTH_KEY)).stdout
    };
    calls(&["put", &other, "other", "put", &damaged, "c0ntent", "publish", "m", "x"]);
    assert_eq!(calls(&["get", &other, "read", "m"]).lines().filter(|line| line.contains(" 0 ")).count(), 2);
    let restored = calls(&["get", &other, "get", &damaged, "get", &damaged, "read", "m"]);
    let missing = |answer: &str| restored.lines().any(|line| line.starts_with(answer));
    assert!(missing("get -") && missing("read -"), "a manifest without its chunk is missing: {restored}");
    let saved = calls(&["put", &damaged, "content", "publish", "m", "x", "put", &damaged, "content"]);
    assert_eq!(saved, "open ok\nput 0\npublish 0\nput 1\n");
    let healed = calls(&["get", &other, "get", &damaged, "read", "m"]);
    assert_eq!(healed.lines().filter(|line| line.contains(" 0 ")).count(), 3, "{healed}");
}

#[test]
fn many_threads_share_a_server() {
    let server = MemkvServer::start(&[]);
    let store = open(&server);
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let store = &store;
            scope.spawn(move || {
                for n in 0..20_u64 {
                    let hash = (thread % 4 * 1000 + n).to_le_bytes();
                    let data = vec![n as u8; 10_000];
                    assert!(store.put_chunk(&hash, &data).unwrap() >= 0);
                    assert_eq!(store.put_manifest(&format!("{thread}-{n}"), &hash).unwrap(), 0);
                    assert_eq!(store.get_chunk(&hash).unwrap(), Ok(data));
                }
            });
        }
    });
}
