//! Batches, saves and queues, as an engine in C uses them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::dist;
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::redis::RedisServer;

/// Run a part of `tests/consumer/batch.c`; what it says.
fn batch(arguments: &[&str]) -> String {
    let finished = finish(consumer("batch").args(arguments).env("MEMKV_AUTH_KEY", AUTH_KEY));
    assert!(finished.status.success(), "{arguments:?}: {}\n{}", finished.stdout, finished.stderr);
    finished.stdout
}

fn local() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let uri = format!("local-fs://{}", folder.path().display());
    (folder, uri)
}

#[test]
fn every_call_holds_on_files() {
    let (_folder, uri) = local();
    assert_eq!(batch(&["all", &uri]), "done\n");
}

#[test]
fn every_call_holds_in_memory() {
    assert_eq!(batch(&["all", "memory://batch"]), "done\n");
}

#[test]
fn every_call_holds_on_redis() {
    let server = RedisServer::start(&[]);
    assert_eq!(batch(&["all", &format!("redis://127.0.0.1:{}/0", server.port)]), "done\n");
}

#[test]
fn every_call_holds_on_memkv() {
    let server = MemkvServer::start(&[]);
    assert_eq!(batch(&["all", &server.uri("batch")]), "done\n");
}

#[test]
fn short_answers_and_small_batches_are_asked_on() {
    assert_eq!(batch(&["all", "probe-batches://batch"]), "done\n");
}

#[test]
fn a_lost_chunk_fails_the_commit_of_its_save_and_of_no_other() {
    let (folder, uri) = local();
    let chunk = folder.path().join("chunks/6/61");
    assert_eq!(batch(&["lose", &uri, chunk.to_str().unwrap()]), "done\n");
}

#[test]
fn a_sealed_value_that_was_changed_is_a_miss_and_heals() {
    let (folder, uri) = local();
    let chunk = folder.path().join("chunks/6/61");
    assert_eq!(batch(&["flip", &uri, chunk.to_str().unwrap()]), "done\n");
}

#[test]
fn the_example_saves_and_restores() {
    let (folder, uri) = local();
    let mut example = consumer("batch_example");
    // As its first lines have it: the loader finds the library.
    example.env_remove("KV_STORE_LIBRARY").env("LD_LIBRARY_PATH", dist().join("lib"));
    let finished = finish(example.arg(uri));
    assert!(finished.status.success(), "{}\n{}", finished.stdout, finished.stderr);
    assert!(folder.path().join("prompt-1").exists());
}
