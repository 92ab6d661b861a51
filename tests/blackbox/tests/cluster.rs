//! The redis backend against a real Redis Cluster: where keys go, what a lost node costs, and how slots that move are followed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::time::{Duration, Instant};

use kv_store_tests::cluster::RedisCluster;
use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::library;

/// Keys of chunks that are printable, `count` of them.
fn hashes(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("chunk-{n:04}")).collect()
}

fn value(hash: &str) -> Vec<u8> {
    hash.bytes().cycle().take(3000).collect()
}

/// The key of a chunk in its envelope, as the server reads it.
fn key_of(hash: &str) -> String {
    format!(r#""kv:c:{hash}\x02kv2""#)
}

#[test]
fn chunks_lie_on_the_nodes_that_serve_their_slots() {
    let cluster = RedisCluster::start(3);
    let store = library().open(&cluster.uri()).expect("the store opens");
    let hashes = hashes(300);
    for hash in &hashes {
        assert_eq!(store.put_chunk(hash.as_bytes(), &value(hash)).unwrap(), 0);
    }
    assert_eq!(store.put_manifest("m", b"manifest").unwrap(), 0);
    let count = |node: usize| -> usize {
        let answer = cluster.nodes[node].ask("DBSIZE");
        answer.lines().next().and_then(|line| line.strip_prefix(':')?.parse().ok()).expect("a number")
    };
    let counts: Vec<usize> = (0..3).map(count).collect();
    assert_eq!(counts.iter().sum::<usize>(), 301);
    assert!(counts.iter().all(|count| *count > 50), "{counts:?}");

    // Another process, which is told of one node only; the config grants the others.
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[backend.redis]\nconnect = [\"127.0.0.1:*\"]\n").unwrap();
    let seed = format!("redis://127.0.0.1:{}", cluster.nodes[0].port);
    let mut calls = consumer("calls");
    calls.arg(&seed).args(["read", "m"]);
    for hash in &hashes[..20] {
        calls.args(["get", &hex::encode(hash)]);
    }
    let finished = finish(calls.env("KV_STORE_WASM_CONFIG", config.path()));
    let lines: Vec<&str> = finished.stdout.lines().collect();
    assert_eq!(lines.len(), 22, "{}{}", finished.stdout, finished.stderr);
    assert!(lines.iter().all(|line| !line.contains('-') || line.starts_with("get 0")), "{}", finished.stdout);
}

#[test]
fn a_node_that_is_not_granted_is_named_at_open() {
    let cluster = RedisCluster::start(3);
    let seed = format!("redis://127.0.0.1:{}", cluster.nodes[0].port);
    let finished = finish(consumer("calls").arg(&seed));
    assert_eq!(finished.stdout, "open NULL\n");
    let missing = cluster.nodes[1..].iter().any(|node| finished.stderr.contains(&format!("127.0.0.1:{}", node.port)));
    assert!(missing && finished.stderr.contains("connect"), "{}", finished.stderr);
    let database = finish(consumer("calls").arg(cluster.uri() + "3"));
    // Valkey 9 refuses the number itself: its clusters may have several databases, and have one unless they are told.
    let refused = ["database 0 only", "the database in the URI: ERR DB index is out of range"];
    assert!(refused.iter().any(|refused| database.stderr.contains(refused)), "{}", database.stderr);
}

#[test]
fn a_hash_with_braces_is_no_hash_tag() {
    let cluster = RedisCluster::start(3);
    let store = library().open(&cluster.uri()).expect("the store opens");
    let hashes: Vec<String> = (0..40).map(|n| format!("{{tag}}{n:02}")).collect();
    for hash in &hashes {
        assert_eq!(store.put_chunk(hash.as_bytes(), &value(hash)).unwrap(), 0);
    }
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert!(cluster.nodes.iter().all(|node| !node.ask("DBSIZE").starts_with(":0")), "all on one node");
    for hash in &hashes {
        assert_eq!(store.get_chunk(hash.as_bytes()).unwrap(), Ok(value(hash)));
    }
}

#[test]
fn a_commit_renews_what_it_names_on_every_node() {
    let cluster = RedisCluster::start(3);
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[backend.redis]\noptions = { ttl_s = '1' }\n").unwrap();
    let uri = cluster.uri();
    let calls =
        |calls: &[&str]| finish(consumer("calls").arg(&uri).args(calls).env("KV_STORE_WASM_CONFIG", config.path()));
    let hashes = hashes(30);
    let hex: Vec<String> = hashes.iter().map(hex::encode).collect();
    let save = |hex: &[String], name| {
        let puts: Vec<&str> = hex.iter().flat_map(|hash| ["put", hash, "text"]).chain(["publish", name, "x"]).collect();
        let saved = calls(&puts);
        assert!(saved.stdout.ends_with("publish 0\n"), "{}{}", saved.stdout, saved.stderr);
    };
    save(&hex, "m");
    let left = |key: &str| -> i64 {
        let answer = cluster.nodes[cluster.node_of(key)].ask(&format!("PTTL {key}"));
        answer.lines().next().and_then(|line| line.strip_prefix(':')?.parse().ok()).expect("a number")
    };
    let (named, unnamed) = hashes.split_at(20);
    assert_eq!((0..3).filter(|node| named.iter().all(|hash| cluster.node_of(&key_of(hash)) != *node)).count(), 0);
    for hash in &hashes {
        let key = key_of(hash);
        assert!((50_000..=61_000).contains(&left(&key)), "{key}: {}", left(&key));
        cluster.nodes[cluster.node_of(&key)].ask(&format!("PEXPIRE {key} 3000"));
    }
    save(&hex[..20], "n");
    assert!(named.iter().all(|hash| left(&key_of(hash)) > 50_000));
    let begun = Instant::now();
    let keys = || unnamed.iter().map(|hash| key_of(hash)).chain([r#""kv:m:m\x02""#.into(), r#""kv:m:n\x02""#.into()]);
    while keys().any(|key| left(&key) != -2) {
        assert!(begun.elapsed() < Duration::from_secs(60), "they stay");
        std::thread::sleep(Duration::from_millis(50));
    }
    let seen = calls(&["get", &hex[0], "get", &hex[29], "read", "m"]);
    let lines: Vec<&str> = seen.stdout.lines().collect();
    assert!(
        lines[1].starts_with("get 0") && lines[2].starts_with("get -") && lines[3].starts_with("read -"),
        "{lines:?}"
    );
}

#[test]
fn slots_that_move_are_followed() {
    let cluster = RedisCluster::start(3);
    let store = library().open(&cluster.uri()).expect("the store opens");
    let hash = hashes(100).into_iter().find(|hash| cluster.node_of(&key_of(hash)) == 0).expect("one in half");
    let key = key_of(&hash);
    assert_eq!(store.put_chunk(hash.as_bytes(), &value(&hash)).unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    let answer = cluster.nodes[0].ask(&format!("CLUSTER KEYSLOT {key}"));
    let slot = answer.lines().next().unwrap().trim_start_matches(':').to_owned();
    let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
    let ids = [cluster.id(0), cluster.id(1)];
    to.ask(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    from.ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    assert_eq!(store.get_chunk(hash.as_bytes()).unwrap(), Ok(value(&hash)), "still there");
    from.ask(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port));
    assert_eq!(store.get_chunk(hash.as_bytes()).unwrap(), Ok(value(&hash)), "after ASK");
    for node in [to, from] {
        node.ask(&format!("CLUSTER SETSLOT {slot} NODE {}", ids[1]));
    }
    assert_eq!(store.get_chunk(hash.as_bytes()).unwrap(), Ok(value(&hash)), "after MOVED");
    assert_eq!(store.put_manifest("m", b"y").unwrap(), 0);
}

#[test]
fn a_dead_node_costs_what_lies_there_and_nothing_else() {
    let mut cluster = RedisCluster::start(3);
    let store = library().open(&cluster.uri()).expect("the store opens");
    let hashes = hashes(60);
    for hash in &hashes {
        assert_eq!(store.put_chunk(hash.as_bytes(), &value(hash)).unwrap(), 0);
    }
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    let on_dead: Vec<bool> = hashes.iter().map(|hash| cluster.node_of(&key_of(hash)) == 1).collect();
    cluster.stop(1);
    for (hash, lost) in hashes.iter().zip(&on_dead) {
        match store.get_chunk(hash.as_bytes()).unwrap() {
            Ok(bytes) => assert!(!lost && bytes == value(hash), "{hash}"),
            Err(_) => assert!(lost, "{hash} lies on a node that lives"),
        }
    }
    assert!(on_dead.contains(&true) && on_dead.contains(&false));
}

#[test]
fn a_dead_node_does_not_open_the_breaker_of_the_others() {
    let mut cluster = RedisCluster::start(3);
    let config = tempfile::NamedTempFile::new().unwrap();
    // An open breaker would stay open for longer than the test runs.
    std::fs::write(config.path(), "[backend.redis]\nlimits = { breaker_failures = 2, breaker_ms = 30000 }\n").unwrap();
    let (dead, alive): (Vec<String>, Vec<String>) =
        hashes(60).into_iter().partition(|hash| cluster.node_of(&key_of(hash)) == 1);
    let kept = hex::encode(alive.first().expect("two thirds of them"));
    let uri = cluster.uri();
    let calls =
        |calls: &[&str]| finish(consumer("calls").arg(&uri).args(calls).env("KV_STORE_WASM_CONFIG", config.path()));
    let saved = calls(&["put", &kept, "kept", "publish", "m", "x"]);
    assert!(saved.stdout.ends_with("publish 0\n"), "{}{}", saved.stdout, saved.stderr);
    cluster.stop(1);
    let lost: Vec<String> = dead.iter().map(hex::encode).collect();
    let asked: Vec<&str> = lost.iter().chain([&kept]).flat_map(|hash| ["get", hash.as_str()]).collect();
    let seen = calls(&asked);
    let lines: Vec<&str> = seen.stdout.lines().collect();
    assert_eq!(lines.len(), dead.len() + 2, "{}{}", seen.stdout, seen.stderr);
    assert!(dead.len() > 4 && lines[1..=dead.len()].iter().all(|line| line.starts_with("get -")), "{lines:?}");
    assert_eq!(lines.last(), Some(&"get 0 6b657074"), "{}", seen.stderr);
    assert!(!seen.stderr.contains("not tried"), "{}", seen.stderr);
}

#[test]
fn a_hung_node_is_waited_for_once_in_a_batch() {
    let mut cluster = RedisCluster::start(3);
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[backend.redis]\nlimits = { patience_ms = 3000 }\n").unwrap();
    let hashes = hashes(60);
    let hex: Vec<String> = hashes.iter().map(hex::encode).collect();
    let mut save = consumer("calls");
    save.arg(cluster.uri());
    for hash in &hex {
        save.args(["put", hash, "text"]);
    }
    save.args(["publish", "m", "x"]);
    let saved = finish(save.env("KV_STORE_WASM_CONFIG", config.path()));
    assert!(saved.stdout.ends_with("publish 0\n"), "{}{}", saved.stdout, saved.stderr);
    cluster.freeze(2, true);
    let mut fetch = consumer("calls");
    // Opened by name of the nodes that answer; one prefetch of all.
    fetch.arg(cluster.uri()).args(["prefetch", "10", &hex.concat()]);
    let begun = Instant::now();
    let fetched = finish(fetch.env("KV_STORE_WASM_CONFIG", config.path()));
    cluster.freeze(2, false);
    assert!(fetched.stdout.contains("prefetch"), "{}{}", fetched.stdout, fetched.stderr);
    // One wait at open and one in the batch, and not one for each of the 20 items there.
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}
