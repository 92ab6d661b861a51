//! The block cache, as an engine in C uses it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::dist;
use kv_store_tests::redis::RedisServer;

fn example(uri: &str) {
    let mut example = consumer("blocks_example");
    // As its first lines have it: the loader finds the library.
    example.env_remove("KV_STORE_LIBRARY").env("LD_LIBRARY_PATH", dist().join("lib"));
    let finished = finish(example.arg(uri));
    assert!(finished.status.success(), "{uri}: {}\n{}", finished.stdout, finished.stderr);
}

#[test]
fn the_example_holds_on_files() {
    let folder = tempfile::tempdir().unwrap();
    example(&format!("local-fs://{}", folder.path().display()));
}

#[test]
fn the_example_holds_in_memory_and_on_redis() {
    example("memory://blocks-example");
    let server = RedisServer::start(&[]);
    example(&format!("redis://127.0.0.1:{}/4", server.port));
}

#[test]
fn the_edges_of_each_call_hold() {
    let folder = tempfile::tempdir().unwrap();
    let finished = finish(consumer("blocks").arg(format!("local-fs://{}", folder.path().display())));
    assert_eq!(finished.stdout, "all held\n", "{}", finished.stderr);
}
