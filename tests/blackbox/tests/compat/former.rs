//! Libraries of former versions beside this one, as readers and writers of one store: the layouts of `docs/envelope.md`.
//!
//! `KV_STORE_TEST_FORMER` names what `cargo xtask dist` laid out in clones of former versions, one path after another with `:` between
//! them. `tests/compat/README.md` says how to build them; without them nothing is tested, and the test says so.

use std::path::{Path, PathBuf};

use kv_store_tests::consumer::{consumer, succeed};

/// 16 bytes, which are no hash of the content; and the XXH3-64 of "content".
const OURS: &str = "ff112233445566778899aabbccddeeff";
const THEIRS: &str = "00112233445566778899aabbccddeeff";

fn content_key() -> String {
    format!("{:016x}", xxhash_rust::xxh3::xxh3_64(b"content"))
}

/// What calls of a library answer, without the line of `open`. `dist`: a former version; none: this one.
fn said(dist: Option<&Path>, uri: &str, calls: &[&str]) -> Vec<String> {
    let mut command = consumer("calls");
    if let Some(dist) = dist {
        // A cache and a config of its own: those of this version may be none for it.
        command.env("KV_STORE_LIBRARY", dist.join("lib/libkv_store_wasm.so")).env_remove("KV_STORE_WASM_CONFIG");
        command.env("KV_STORE_WASM_CACHE", std::env::temp_dir().join("kv-store-former-cache"));
    }
    let finished = succeed(command.arg(uri).args(calls));
    finished.stdout.lines().skip(1).map(str::to_owned).collect()
}

fn found(call: &str, text: &str) -> String {
    let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("{call} 0 {hex}")
}

#[test]
fn former_libraries_read_and_write_beside_this_one() {
    let Some(former) = std::env::var_os("KV_STORE_TEST_FORMER") else {
        eprintln!("not tested: KV_STORE_TEST_FORMER names no former libraries (tests/compat/README.md)");
        return;
    };
    for dist in std::env::split_paths(&former).collect::<Vec<PathBuf>>() {
        let scratch = tempfile::tempdir().unwrap();
        let uri = format!("local-fs://{}", scratch.path().display());
        let (old, new) = (|calls: &[&str]| said(Some(&dist), &uri, calls), |calls: &[&str]| said(None, &uri, calls));
        let key = content_key();
        assert_eq!(
            old(&["put", THEIRS, "by old", "put", &key, "content", "publish", "m", "old"]),
            ["put 0", "put 0", "publish 0"]
        );
        // What it wrote is read, and a chunk whose key is its hash is the same chunk for both.
        let all = [found("get", "by old"), found("get", "content"), found("read", "old")];
        assert_eq!(new(&["get", THEIRS, "get", &key, "read", "m"]), all);
        let saved =
            new(&["put", OURS, "by new", "put", &key, "content", "publish", "n", "new", "publish", "m", "newer"]);
        assert_eq!(saved, ["put 0", "put 1", "publish 0", "publish 0"]);
        // What lies in envelopes is a miss there, and its own is as it was.
        let seen = old(&["get", OURS, "get", &key, "read", "n", "read", "m"]);
        assert!(seen[0].starts_with("get -") && seen[2].starts_with("read -"), "{seen:?}");
        assert_eq!([&seen[1], &seen[3]], [&found("get", "content"), &found("read", "old")]);
        assert_eq!(new(&["get", OURS, "read", "m"]), [found("get", "by new"), found("read", "newer")]);
        // It may put what it misses; each goes on to read its own, and a delete by this version removes both.
        assert_eq!(old(&["put", OURS, "by new", "publish", "n", "old too"]), ["put 0", "publish 0"]);
        assert_eq!(
            new(&["read", "n", "get", OURS, "delete", "n"]),
            [found("read", "new"), found("get", "by new"), "delete 0".into()]
        );
        assert!(old(&["read", "n"])[0].starts_with("read -") && new(&["read", "n"])[0].starts_with("read -"));
    }
}
