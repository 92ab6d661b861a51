//! What operators do with stores of more than one machine, by `kv-store`: check a component, save and restore files, list, count, verify, copy
//! and clean. On a real SeaweedFS, a real Redis Cluster and a real Mooncake Store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kv_store_tests::cluster::RedisCluster;
use kv_store_tests::consumer::{Finished, finish};
use kv_store_tests::mooncake::{self, GRANTS, Mooncake};
use kv_store_tests::seaweed::{ACCESS_KEY_ID, SECRET_ACCESS_KEY, Seaweed};
use kv_store_tests::{dist, root};

/// Bytes of a chunk that `save` makes, and how many chunks a file has.
const CHUNK: usize = 64 << 10;
const CHUNKS: usize = 20;

/// `kv-store` with a config of its own, run as the storage system wants it.
struct Operator<'a> {
    scratch: tempfile::TempDir,
    run: &'a dyn Fn(&mut Command) -> Finished,
}

impl<'a> Operator<'a> {
    fn new(config: &str, run: &'a dyn Fn(&mut Command) -> Finished) -> Self {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("config.toml"), config).unwrap();
        Operator { scratch, run }
    }

    fn path(&self, name: &str) -> String {
        self.scratch.path().join(name).display().to_string()
    }

    fn ask(&self, arguments: &[&str]) -> Finished {
        let mut command = Command::new(dist().join("bin/kv-store"));
        command.args(arguments).env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("KV_STORE_WASM_CONFIG", self.path("config.toml"));
        command.env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"));
        command.env("S3_ACCESS_KEY_ID", ACCESS_KEY_ID).env("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
        (self.run)(&mut command)
    }

    #[track_caller]
    fn expect(&self, code: i32, arguments: &[&str]) -> Finished {
        let finished = self.ask(arguments);
        assert_eq!(finished.status.code(), Some(code), "{arguments:?}\n{}\n{}", finished.stdout, finished.stderr);
        finished
    }

    /// The suite passes, and passes again on what it has left.
    fn check(&self, component: &str, uri: &str) {
        let component = dist().join(format!("components/{component}.wasm")).display().to_string();
        for _ in 0..2 {
            let checked = self.expect(0, &["check", &component, "--uri", uri]);
            assert!(checked.stdout.contains("maintenance-list"), "{}", checked.stdout);
        }
        // Chunks stay, as of any consumer.
        let left = self.expect(0, &["ls", uri]);
        assert_eq!(left.stdout, "", "{}", left.stderr);
    }

    /// Files that share no chunk.
    fn save(&self, uri: &str, files: u64) {
        for file in 0..files {
            let content: Vec<u8> =
                (0..(CHUNK * CHUNKS / 8) as u64).flat_map(|n| (n ^ file << 32).to_le_bytes()).collect();
            std::fs::write(self.path("file"), &content).unwrap();
            let (name, chunk) = (format!("a/file {file}"), CHUNK.to_string());
            self.expect(0, &["save", uri, &self.path("file"), "--name", &name, "--chunk", &chunk]);
            self.expect(0, &["restore", uri, &self.path("restored"), "--name", &name]);
            assert!(std::fs::read(Path::new(&self.path("restored"))).unwrap() == content);
        }
    }

    /// Lists, counts, verifies and copies two files there and back.
    fn look_through(&self, uri: &str, other: &str) {
        self.save(uri, 2);
        let listed = self.expect(0, &["ls", uri]);
        assert_eq!(listed.stdout.lines().filter(|line| line.contains("\"a/file ")).count(), 2, "{}", listed.stdout);
        let chunks = self.expect(0, &["ls", uri, "--chunks", "--json"]);
        assert_eq!(chunks.stdout.lines().count(), 2 * CHUNKS, "{}", chunks.stdout);
        let used = self.expect(0, &["du", uri, "--json"]);
        assert!(used.stdout.contains(&format!("\"chunks\":{}", 2 * CHUNKS)), "{}", used.stdout);
        assert!(used.stdout.contains("\"manifests\":2"), "{}", used.stdout);
        self.expect(0, &["verify", uri]);
        let directory = format!("local-fs://{}", self.path("copy"));
        self.expect(0, &["copy", uri, &directory]);
        self.expect(0, &["verify", &directory]);
        let copied = self.expect(0, &["copy", &directory, other, "--json"]);
        assert!(copied.stdout.contains(&format!("\"chunks\":{}", 2 * CHUNKS)), "{}", copied.stdout);
        self.expect(0, &["restore", other, &self.path("restored"), "--name", "a/file 1"]);
        let first: String = chunks.stdout.split("\"hash\":\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        self.expect(0, &["rm", other, "--chunk", &first]);
        // Below a header.
        assert_eq!(self.expect(0, &["ls", other, "--chunks"]).stdout.lines().count(), 2 * CHUNKS);
    }
}

#[test]
fn s3() {
    let Some(server) = Seaweed::start(1, 1) else { return };
    let operator = Operator::new("", &finish);
    operator.check("s3", &server.uri("check"));
    let uri = server.uri("x");
    operator.look_through(&uri, &server.uri("y"));
    // Times of storing are those of use here. What is young stays.
    let bytes = (CHUNKS * CHUNK).to_string();
    operator.expect(1, &["gc", &uri, "--max-bytes", &bytes, "--grace", "1h"]);
    let half = operator.expect(0, &["gc", &uri, "--max-bytes", &bytes, "--grace", "0s", "--json"]);
    let left = operator.expect(0, &["ls", &uri, "--chunks"]).stdout.lines().count() - 1;
    assert!((CHUNKS - 1..=CHUNKS).contains(&left), "{left} chunks are left: {}", half.stdout);
    operator.expect(0, &["gc", &uri, "--older-than", "0s", "--grace", "0s"]);
    assert_eq!(operator.expect(0, &["ls", &uri, "--chunks"]).stdout, "");
    assert_eq!(operator.expect(0, &["ls", &uri]).stdout, "");
    // The other store of the bucket is whole but for the chunk that was removed.
    assert_eq!(operator.expect(0, &["ls", &server.uri("y"), "--chunks"]).stdout.lines().count(), 2 * CHUNKS);
}

#[test]
fn a_cluster() {
    let (cluster, other) = (RedisCluster::start(3), RedisCluster::start(3));
    let operator = Operator::new("", &finish);
    operator.check("redis", &cluster.uri());
    cluster.nodes.iter().for_each(|node| drop(node.ask("FLUSHALL")));
    operator.look_through(&cluster.uri(), &other.uri());
    // Redis knows times of use to a second, and tells young ones from old.
    operator.expect(0, &["gc", &cluster.uri(), "--older-than", "60s", "--grace", "0s"]);
    assert_ne!(operator.expect(0, &["ls", &cluster.uri(), "--chunks"]).stdout, "");
    let begun = Instant::now();
    while !operator.expect(0, &["ls", &cluster.uri(), "--chunks"]).stdout.is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(60), "chunks stay that are older than a second");
        std::thread::sleep(Duration::from_millis(100));
        operator.expect(0, &["gc", &cluster.uri(), "--older-than", "1s", "--grace", "0s"]);
    }
}

#[test]
fn mooncake() {
    let Some(server) = Mooncake::start(1) else { return };
    let run = |command: &mut Command| server.namespace.finish(command);
    let operator = Operator::new(&format!("[backend.mooncake]\n{GRANTS}\n"), &run);
    operator.check("mooncake", &mooncake::uri("check"));
    operator.look_through(&mooncake::uri("x.y"), &mooncake::uri("xzy"));
    let refused = operator.expect(2, &["gc", &mooncake::uri("x.y"), "--older-than", "0s"]);
    assert!(refused.stderr.contains("evicts by itself"), "{}", refused.stderr);
}
