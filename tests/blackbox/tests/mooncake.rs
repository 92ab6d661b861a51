//! The mooncake backend against a real Mooncake Store: what is visible when, and what a lost node or master costs.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kv_store_tests::consumer::{Finished, consumer, expect, finish, start};
use kv_store_tests::mooncake::{GRANTS, Mooncake, uri};
use kv_store_tests::{dist, kv_store};

/// A consumer's calls, with a config that grants the nodes.
struct Calls {
    mooncake: Mooncake,
    config: tempfile::NamedTempFile,
}

impl Calls {
    /// None: it cannot run here, and why is said.
    fn start(nodes: usize, options: &str) -> Option<Self> {
        Self::start_with(nodes, options, &[])
    }

    /// The same with further options of the master.
    fn start_with(nodes: usize, options: &str, master: &[&str]) -> Option<Self> {
        let config = tempfile::NamedTempFile::new().unwrap();
        let text =
            format!("[backend.mooncake]\n{GRANTS}\nlimits = {{ patience_ms = 3000 }}\noptions = {{ {options} }}\n");
        std::fs::write(config.path(), text).unwrap();
        Some(Calls { mooncake: Mooncake::start_with(nodes, master)?, config })
    }

    fn command(&self, calls: &[&str]) -> Command {
        let mut command: Command = consumer("calls");
        command.arg(uri("tests")).args(calls).env("KV_STORE_WASM_CONFIG", self.config.path());
        self.mooncake.namespace.enter(&command)
    }

    fn make(&self, calls: &[&str]) -> Finished {
        finish(&mut self.command(calls))
    }
}

/// The object of a chunk whose key is no hash of its content: it lies in an envelope.
fn object(hash: &str) -> String {
    format!("tests/c/{hash}026b7632")
}

#[test]
fn what_was_saved_is_read_by_another_process() {
    let Some(calls) = Calls::start(1, "") else { return };
    let [first, second, empty] = ["first", "second", "empty"].map(hex::encode);
    let saved =
        calls.make(&["put", &first, "one", "put", &second, "two", "put", &empty, "", "publish", "m", "manifest"]);
    assert_eq!(saved.stdout, "open ok\nput 0\nput 0\nput 0\npublish 0\n", "{}", saved.stderr);
    let read = calls.make(&[
        "read",
        "m",
        "get",
        &first,
        "get",
        &second,
        "get",
        &empty,
        "get",
        &hex::encode("absent"),
        "read",
        "none",
    ]);
    let lines: Vec<&str> = read.stdout.lines().collect();
    assert_eq!(lines.len(), 7, "{}{}", read.stdout, read.stderr);
    assert!(lines[1].starts_with("read 0") && lines[1].contains(&hex::encode("manifest")), "{lines:?}");
    assert!(
        lines[2].starts_with("get 0")
            && lines[2].ends_with(&hex::encode("one"))
            && lines[3].ends_with(&hex::encode("two")),
        "{lines:?}"
    );
    assert!(lines[4].starts_with("get 0"), "{lines:?}");
    assert!(!lines[5].starts_with("get 0") && !lines[6].starts_with("read 0"), "{lines:?}");

    // Again: the manifest is replaced.
    let again = calls.make(&["put", &first, "one", "publish", "m", "newer", "read", "m"]);
    assert!(again.stdout.starts_with("open ok\nput 0\npublish 0\nread 0"), "{}{}", again.stdout, again.stderr);
    assert!(again.stdout.contains(&hex::encode("newer")), "{}", again.stdout);
    let gone = calls.make(&["delete", "m", "read", "m", "get", &second]);
    let lines: Vec<&str> = gone.stdout.lines().collect();
    assert_eq!(lines[1], "delete 0", "{}", gone.stderr);
    assert!(!lines[2].starts_with("read 0") && lines[3].starts_with("get 0"), "{lines:?}");
}

/// What it says of itself with `replaces-in-steps`, and all else that the contract asks of its calls.
#[test]
fn check_calls_it_as_the_contract_has_it() {
    let Some(calls) = Calls::start(1, "") else { return };
    let mut check = kv_store();
    check.arg("check").arg(dist().join("components/mooncake.wasm")).args([
        "--uri",
        &uri("check"),
        "--filter",
        "calls-",
    ]);
    check.env("KV_STORE_WASM_CONFIG", calls.config.path());
    expect(0, &finish(&mut calls.mooncake.namespace.enter(&check)));
}

#[test]
fn two_replicas_survive_a_node() {
    let Some(mut calls) = Calls::start(2, "replicas = \"2\"") else { return };
    let hashes: Vec<String> = (0..20).map(|n| hex::encode(format!("chunk {n:02}"))).collect();
    let mut save: Vec<&str> = hashes.iter().flat_map(|hash| ["put", hash, "some bytes"]).collect();
    save.extend(["publish", "m", "manifest"]);
    let saved = calls.make(&save);
    assert!(saved.stdout.ends_with("publish 0\n"), "{}{}", saved.stdout, saved.stderr);
    calls.mooncake.nodes[0].kill();
    let restore: Vec<&str> = hashes.iter().flat_map(|hash| ["get", hash.as_str()]).chain(["read", "m"]).collect();
    let restored = calls.make(&restore);
    let found = restored.stdout.lines().filter(|line| line.starts_with("get 0") || line.starts_with("read 0")).count();
    assert_eq!(found, 21, "{}{}", restored.stdout, restored.stderr);
}

#[test]
fn saves_go_on_with_one_replica_while_a_dead_node_is_listed() {
    let Some(mut calls) = Calls::start(2, "replicas = \"2\"") else { return };
    calls.mooncake.nodes[0].kill();
    let hashes: Vec<String> = (0..20).map(|n| hex::encode(format!("chunk {n:02}"))).collect();
    let mut save: Vec<&str> = hashes.iter().flat_map(|hash| ["put", hash, "some bytes"]).collect();
    save.extend(["publish", "m", "manifest"]);
    save.extend(hashes.iter().flat_map(|hash| ["get", hash.as_str()]).chain(["read", "m"]));
    let saved = calls.make(&save);
    assert_eq!(calls.mooncake.segments(), 2, "the dead one is forgotten: this shows nothing");
    let done = saved.stdout.lines().filter(|line| line.starts_with("get 0") || line.starts_with("read 0")).count();
    assert_eq!(done, 21, "{}{}", saved.stdout, saved.stderr);
    assert!(saved.stderr.contains("on 1 node of 2"), "{}", saved.stderr);
}

#[test]
fn a_hung_node_costs_its_patience_and_the_other_replica_is_read() {
    let Some(calls) = Calls::start(2, "replicas = \"2\"") else { return };
    // A deadline of a day: a read that waits for more than its patience hangs.
    let text = std::fs::read_to_string(calls.config.path()).unwrap();
    let patient = "patience_ms = 300, deadline_ms = 86_400_000, breaker_failures = 0";
    std::fs::write(calls.config.path(), text.replace("patience_ms = 3000", patient)).unwrap();
    let hashes: Vec<String> = (0..12).map(|n| hex::encode(format!("chunk {n:02}"))).collect();
    let mut save: Vec<&str> = hashes.iter().flat_map(|hash| ["put", hash, "some bytes"]).collect();
    save.extend(["publish", "m", "manifest"]);
    let saved = calls.make(&save);
    assert!(saved.stdout.ends_with("publish 0\n"), "{}{}", saved.stdout, saved.stderr);

    // A process that has read from the nodes, and keeps its connections to them.
    let rest: Vec<&str> = hashes.iter().skip(6).flat_map(|hash| ["get", hash.as_str()]).chain(["read", "m"]).collect();
    let first: Vec<&str> = hashes.iter().take(6).flat_map(|hash| ["get", hash.as_str()]).chain(["wait"]).collect();
    let mut old = calls.command(&[&first[..], &rest[..]].concat());
    let mut old = start(old.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut lines = BufReader::new(old.0.stdout.take().expect("a pipe")).lines();
    while lines.next().expect("it waits").expect("text") != "wait" {}
    calls.mooncake.nodes[0].freeze(true);
    old.0.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
    let said: Vec<String> = lines.map(|line| line.expect("text")).collect();
    let found = |line: &String| line.starts_with("get 0") || line.starts_with("read 0");
    assert!(said.len() == 7 && said.iter().all(found), "{said:?}");

    // And one that first meets the node when it hangs: it is not told where the node's data lies.
    let fresh = calls.make(&rest);
    calls.mooncake.nodes[0].freeze(false);
    let said: Vec<String> = fresh.stdout.lines().skip(1).map(str::to_owned).collect();
    assert!(said.len() == 7 && said.iter().all(found), "{said:?}{}", fresh.stderr);
}

/// A server that answers each request of coro_rpc as a master does: an error of coro_rpc, or a body.
fn fake_master(answer: impl Fn(u32) -> Result<Vec<u8>, u8> + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let authority = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 20];
            while stream.read_exact(&mut head).is_ok() {
                let number = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
                let mut body = vec![0; number(12) as usize];
                let (error, said) = match answer(number(8)) {
                    Ok(said) => (0, said),
                    Err(error) => (error, Vec::new()),
                };
                let len = (said.len() as u32).to_le_bytes();
                let answer = [&[0x15, 0, error, 0][..], &number(4).to_le_bytes(), &len, &[0; 4], &said].concat();
                if stream.read_exact(&mut body).is_err() || stream.write_all(&answer).is_err() {
                    break;
                }
            }
        }
    });
    authority
}

/// The function that tells the protocol's version, and what a master of this version answers.
const SERVICE_READY: u32 = 0x7b81_bb56;

fn version(version: &str) -> Vec<u8> {
    let text = [&[1, version.len() as u8], version.as_bytes()].concat();
    [&0x1cb3_cc35_u32.to_le_bytes()[..], &[4, 0x87, 0x80, 0x0c, 0x01, 0], &text].concat()
}

#[test]
fn a_master_of_another_version_is_refused_and_both_versions_are_named() {
    let refused = |master: String, said: &[&str]| {
        let made = finish(consumer("calls").arg(format!("mooncake://{master}/tests")));
        assert_eq!(made.stdout, "open NULL\n", "{}", made.stderr);
        let said = [&["Mooncake 0.3.13 (protocol 2.0.0)"], said].concat();
        said.iter().for_each(|said| assert!(made.stderr.contains(said), "expected {said}: {}", made.stderr));
    };
    refused(fake_master(|_| Ok(version("2.1.0"))), &["protocol 2.1.0"]);
    // It does not even know the call, or answers with another type.
    refused(fake_master(|_| Err(11)), &["error 11"]);
    refused(fake_master(|_| Ok([&[0; 4][..], &version("2.0.0")[4..]].concat())), &["another type"]);
    // The protocol is ours, and the structures are not.
    let ready = |function| if function == SERVICE_READY { Ok(version("2.0.0")) } else { Ok(version("9")) };
    refused(fake_master(ready), &["protocol 2.0.0", "another type"]);
    let ready = |function| if function == SERVICE_READY { Ok(version("2.0.0")) } else { Err(11) };
    refused(fake_master(ready), &["error 11"]);
}

#[test]
fn a_lost_node_without_replicas_is_a_miss_and_a_lost_master_heals() {
    let Some(mut calls) = Calls::start(1, "") else { return };
    let hash = hex::encode("chunk");
    assert!(calls.make(&["put", &hash, "bytes", "publish", "m", "x"]).stdout.ends_with("publish 0\n"));
    calls.mooncake.master.take().expect("it runs").kill();
    let without = calls.make(&["get", &hash]);
    assert_eq!(without.stdout, "open NULL\n", "{}", without.stderr);
    calls.mooncake.start_master();
    // All keys are lost with the master; the node comes back by itself.
    for _ in 0..200 {
        let healed = calls.make(&["get", &hash, "put", &hash, "bytes", "publish", "m", "x", "get", &hash]);
        let lines: Vec<&str> = healed.stdout.lines().collect();
        assert!(!lines.get(1).is_some_and(|line| line.starts_with("get 0")) || lines.len() < 5, "{lines:?}");
        if lines.get(3) == Some(&"publish 0") {
            assert!(lines[4].starts_with("get 0"), "{lines:?}");
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("the store does not heal");
}

#[test]
fn a_node_that_is_not_granted_is_named_at_open() {
    let Some(calls) = Calls::start(1, "") else { return };
    std::fs::write(calls.config.path(), "[backend.mooncake]\n").unwrap();
    let refused = calls.make(&["read", "m"]);
    assert_eq!(refused.stdout, "open NULL\n");
    assert!(refused.stderr.contains("connect") && refused.stderr.contains("127.0.0.1:1"), "{}", refused.stderr);
}

/// A program of Mooncake's own client, in Python, run to its end.
fn client(mooncake: &Mooncake, script: &str) -> Finished {
    let begin = "import os\nfrom mooncake.store import MooncakeDistributedStore\nstore = MooncakeDistributedStore()\n\
                 assert store.setup('127.0.0.1', 'P2PHANDSHAKE', 0, 16 << 20, 'tcp', '', '127.0.0.1:50051') == 0\n";
    // The client's own threads do not end by themselves.
    let mut python = mooncake.program("python");
    python.args(["-c", &format!("{begin}{script}\nos._exit(0)\n")]);
    let finished = finish(&mut python);
    assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
    finished
}

#[test]
fn an_object_that_a_dead_writer_has_begun_is_not_there_and_can_be_put_when_it_is_forgotten() {
    let Some(calls) = Calls::start_with(1, "", &["--put_start_discard_timeout_sec=3"]) else { return };
    let hash = hex::encode("begun");
    client(&calls.mooncake, &format!("assert store.batch_put_session_start(['{}'], [6])", object(&hash)));
    let seen = calls.make(&["get", &hash, "put", &hash, "bytes", "publish", "m", "x"]);
    let lines: Vec<&str> = seen.stdout.lines().collect();
    assert!(lines[1].starts_with("get -"), "{lines:?}");
    assert!(lines[3].starts_with("publish -"), "a manifest of it was published: {lines:?}");
    assert!(seen.stderr.contains("being written"), "{}", seen.stderr);
    let begun = Instant::now();
    loop {
        let healed = calls.make(&["put", &hash, "bytes", "publish", "m", "x", "get", &hash]);
        if healed.stdout.contains("publish 0") {
            assert!(healed.stdout.ends_with(&format!("get 0 {}\n", hex::encode("bytes"))), "{}", healed.stdout);
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{}{}", healed.stdout, healed.stderr);
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn what_is_evicted_is_a_miss_and_never_other_bytes() {
    let Some(calls) = Calls::start(1, "") else { return };
    // A node lends 64 MiB; these are 96.
    let value = |n: usize| format!("{n:04}").repeat((1 << 20) / 4);
    let hashes: Vec<String> = (0..96).map(|n| hex::encode(format!("large {n:03}"))).collect();
    // The objects are as our client puts them; a put that finds no room comes again when something was evicted.
    let keys: Vec<String> = hashes.iter().map(|hash| format!("'tests/c/{hash}'")).collect();
    let script = format!(
        "import time\nfor n, key in enumerate([{}]):\n    while store.put(key, b'%04d' % n * {} + b'.') != 0:\n        time.sleep(0.05)",
        keys.join(","),
        (1 << 20) / 4
    );
    client(&calls.mooncake, &script);
    let gets: Vec<&str> = hashes.iter().flat_map(|hash| ["get", hash.as_str()]).collect();
    let read = calls.make(&gets);
    let lines: Vec<&str> = read.stdout.lines().skip(1).collect();
    assert_eq!(lines.len(), hashes.len(), "{}", read.stderr);
    let mut found = 0;
    for (n, line) in lines.iter().enumerate() {
        match line.strip_prefix("get 0 ") {
            Some(bytes) => {
                assert!(bytes == hex::encode(value(n)), "chunk {n} has other bytes");
                found += 1;
            }
            None => assert!(line.starts_with("get -"), "{}", &line[..40]),
        }
    }
    assert!((10..80).contains(&found), "{found} of {} are there", hashes.len());
}

#[test]
fn what_comes_after_its_lease_is_looked_up_again() {
    let Some(calls) = Calls::start_with(1, "", &["--default_kv_lease_ttl=200"]) else { return };
    let text =
        std::fs::read_to_string(calls.config.path()).unwrap().replace("patience_ms = 3000", "patience_ms = 30000");
    std::fs::write(calls.config.path(), text).unwrap();
    let (hash, other) = (hex::encode("chunk"), hex::encode("other"));
    assert!(calls.make(&["put", &hash, "right", "publish", "m", "x"]).stdout.ends_with("publish 0\n"));
    // The node is asked for the chunk, and answers after its lease, when the chunk is gone and its memory another's.
    calls.mooncake.nodes[0].freeze(true);
    let late = std::thread::scope(|scope| {
        let late = scope.spawn(|| calls.make(&["get", &hash]));
        let begun = Instant::now();
        while !calls.mooncake.is_asked(&calls.mooncake.nodes[0]) {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody asks for the chunk");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(300));
        client(&calls.mooncake, &format!("assert store.batch_remove(['{}'], True) == [0]", object(&hash)));
        calls.mooncake.nodes[0].freeze(false);
        late.join().expect("it does not panic")
    });
    let line = late.stdout.lines().nth(1).unwrap_or_default();
    assert!(line.starts_with("get -"), "the chunk is gone, and was answered: {}{}", late.stdout, late.stderr);
    assert!(calls.make(&["put", &other, "other", "publish", "m", "x"]).stdout.ends_with("publish 0\n"));
}

#[test]
fn nodes_join_and_leave() {
    let Some(mut calls) = Calls::start(1, "") else { return };
    let [first, second] = ["first", "second"].map(hex::encode);
    assert!(calls.make(&["put", &first, "one", "publish", "m", "x"]).stdout.ends_with("publish 0\n"));
    calls.mooncake.start_node();
    // The first one says that it leaves.
    calls.mooncake.nodes[0].signal(15);
    calls.mooncake.wait_for_segments(1);
    let seen = calls
        .make(&["get", &first, "read", "m", "put", &second, "two", "publish", "m", "y", "get", &second, "read", "m"]);
    let lines: Vec<&str> = seen.stdout.lines().collect();
    assert_eq!(lines.len(), 7, "{}{}", seen.stdout, seen.stderr);
    assert!(lines[1].starts_with("get -") && lines[2].starts_with("read -"), "what lay there is gone: {lines:?}");
    assert_eq!(
        lines[3..],
        ["put 0", "publish 0", &format!("get 0 {}", hex::encode("two")), &format!("read 0 {}", hex::encode("y"))]
    );
}

#[test]
fn an_idle_process_is_in_nobodys_way() {
    let Some(calls) = Calls::start(1, "") else { return };
    let hash = hex::encode("chunk");
    assert!(calls.make(&["put", &hash, "bytes", "publish", "m", "x"]).stdout.ends_with("publish 0\n"));
    // A process that has talked to the node, and keeps its connections.
    let mut idle = calls.command(&["get", &hash, "wait"]);
    let mut idle = start(idle.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut lines = BufReader::new(idle.0.stdout.take().expect("a pipe")).lines();
    while lines.next().expect("it waits").expect("text") != "wait" {}
    let beside = calls.make(&["get", &hash]);
    assert!(beside.stdout.contains("get 0"), "{}{}", beside.stdout, beside.stderr);
    let object = object(&hash);
    let whole = "value.startswith(b'bytes') and value.endswith(b'.')";
    client(&calls.mooncake, &format!("value = store.get('{object}')\nassert {whole}, value"));
}
