//! Libraries of former versions beside this one, as readers and writers of one store: the layouts of `docs/envelope.md`.
//!
//! `KV_STORE_TEST_FORMER` names what `cargo xtask dist` laid out in clones of former versions, one path after another with `:` between
//! them. `cargo xtask test --former` builds them and sets it; without them nothing is tested, and the test says so.

use std::path::{Path, PathBuf};

use kv_store_tests::consumer::{consumer, succeed};
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::redis::RedisServer;
use kv_store_tests::skipped;

/// 16 bytes, which are no hash of the content; the last one is the number of a former version.
const OURS: &str = "ff112233445566778899aabbccddee";
const THEIRS: &str = "00112233445566778899aabbccddee";

/// One of the libraries on the store.
#[derive(Clone, Copy)]
struct Of<'a> {
    /// None: this version.
    dist: Option<&'a Path>,
    uri: &'a str,
    cache: &'a Path,
}

impl Of<'_> {
    /// What calls answer, in a process of its own, without the line of `open`.
    fn says(self, calls: &[&str]) -> Vec<String> {
        let mut command = consumer("calls");
        if let Some(dist) = self.dist {
            // A cache and a config of its own: those of this version may be none for it.
            command.env("KV_STORE_LIBRARY", dist.join("lib/libkv_store_wasm.so")).env_remove("KV_STORE_WASM_CONFIG");
            command.env("KV_STORE_WASM_CACHE", self.cache);
        }
        let finished = succeed(command.env("MEMKV_AUTH_KEY", AUTH_KEY).arg(self.uri).args(calls));
        finished.stdout.lines().skip(1).map(str::to_owned).collect()
    }
}

fn found(call: &str, text: &str) -> String {
    let hex = hex::encode(text);
    format!("{call} 0 {hex}")
}

/// A miss, and no byte of an envelope.
fn is_missing(said: &str) -> bool {
    said.starts_with("get -") || said.starts_with("read -")
}

/// A former library and this one, on keys of their own.
fn read_and_write(old: Of<'_>, new: Of<'_>, number: usize) {
    let (ours, theirs) = (format!("{OURS}{number:02x}"), format!("{THEIRS}{number:02x}"));
    let content = format!("content {number}");
    let key = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(content.as_bytes()));
    let (m, n) = (format!("m{number}"), format!("n{number}"));
    assert_eq!(
        old.says(&["put", &theirs, "by old", "put", &key, &content, "publish", &m, "old"]),
        ["put 0", "put 0", "publish 0"]
    );
    // What it wrote is read, and a chunk whose key is its hash is the same chunk for both.
    let all = [found("get", "by old"), found("get", &content), found("read", "old")];
    assert_eq!(new.says(&["get", &theirs, "get", &key, "read", &m]), all);
    let saved =
        new.says(&["put", &ours, "by new", "put", &key, &content, "publish", &n, "new", "publish", &m, "newer"]);
    // Where chunks are buffered, what is there is not asked about by a put.
    let existed = if new.uri.starts_with("local-fs") { "put 1" } else { "put 0" };
    assert_eq!(saved, ["put 0", existed, "publish 0", "publish 0"]);
    // What lies in envelopes is a miss there, and its own is as it was.
    let seen = old.says(&["get", &ours, "get", &key, "read", &n, "read", &m]);
    assert!(is_missing(&seen[0]) && is_missing(&seen[2]), "{seen:?}");
    assert_eq!([&seen[1], &seen[3]], [&found("get", &content), &found("read", "old")]);
    assert_eq!(new.says(&["get", &ours, "read", &m]), [found("get", "by new"), found("read", "newer")]);
    // It may put what it misses; each goes on to read its own, and a delete by this version removes both.
    assert_eq!(old.says(&["put", &ours, "by new", "publish", &n, "old too"]), ["put 0", "publish 0"]);
    assert_eq!(
        new.says(&["read", &n, "get", &ours, "delete", &n]),
        [found("read", "new"), found("get", "by new"), "delete 0".into()]
    );
    assert!(is_missing(&old.says(&["read", &n])[0]) && is_missing(&new.says(&["read", &n])[0]));
}

/// All of them on one store.
fn beside(dists: &[PathBuf], uri: &str) {
    eprintln!("{} former libraries beside this one on {uri}", dists.len());
    let caches: Vec<tempfile::TempDir> = dists.iter().map(|_| tempfile::tempdir().unwrap()).collect();
    let new = Of { dist: None, uri, cache: Path::new("") };
    let former: Vec<Of<'_>> =
        dists.iter().zip(&caches).map(|(dist, cache)| Of { dist: Some(dist), uri, cache: cache.path() }).collect();
    for (number, old) in former.iter().enumerate() {
        read_and_write(*old, new, number);
    }
    // What one of them wrote, and what this version wrote under the same name, for each of the others.
    for (number, _) in former.iter().enumerate() {
        let (theirs, m) = (format!("{THEIRS}{number:02x}"), format!("m{number}"));
        for other in &former {
            assert_eq!(other.says(&["get", &theirs, "read", &m]), [found("get", "by old"), found("read", "old")]);
        }
        assert_eq!(new.says(&["get", &theirs, "read", &m]), [found("get", "by old"), found("read", "newer")]);
    }
}

#[test]
fn former_libraries_read_and_write_beside_this_one() {
    let Some(former) = std::env::var_os("KV_STORE_TEST_FORMER") else {
        return skipped("KV_STORE_TEST_FORMER names no former libraries; `cargo xtask test --former` builds them");
    };
    let dists: Vec<PathBuf> = std::env::split_paths(&former).collect();
    let scratch = tempfile::tempdir().unwrap();
    beside(&dists, &format!("local-fs://{}", scratch.path().display()));
    let redis = RedisServer::start(&[]);
    beside(&dists, &format!("redis://127.0.0.1:{}/0", redis.port));
    beside(&dists, &MemkvServer::start(&[]).uri("former"));
    // Its server too may be the former one.
    for dist in &dists {
        beside(&dists, &MemkvServer::start_of(dist, &[]).uri("former"));
    }
}
