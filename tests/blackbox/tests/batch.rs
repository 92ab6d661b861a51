//! Batches, saves and queues, as an engine in C uses them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use kv_store_tests::cluster::RedisCluster;
use kv_store_tests::consumer::{consumer, finish, start};
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::mooncake::{self, GRANTS, Mooncake};
use kv_store_tests::objects::ObjectServer;
use kv_store_tests::redis::RedisServer;
use kv_store_tests::seaweed::{ACCESS_KEY_ID, SECRET_ACCESS_KEY};
use kv_store_tests::servers::Server;
use kv_store_tests::{dist, test_components};

/// Run a part of `tests/consumer/batch.c`; what it says.
fn batch(arguments: &[&str]) -> String {
    let mut program = consumer("batch");
    program.args(arguments).env("MEMKV_AUTH_KEY", AUTH_KEY);
    program.env("S3_ACCESS_KEY_ID", ACCESS_KEY_ID).env("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
    let finished = finish(&mut program);
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
fn every_call_holds_on_a_cluster() {
    let cluster = RedisCluster::start(3);
    assert_eq!(batch(&["all", &cluster.uri()]), "done\n");
}

#[test]
fn every_call_holds_on_s3() {
    let server = ObjectServer::start();
    assert_eq!(batch(&["all", &format!("s3+http://127.0.0.1:{}/bucket/p", server.port)]), "done\n");
}

#[test]
fn every_call_holds_on_mooncake() {
    let Some(mooncake) = Mooncake::start(1) else { return };
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), format!("[backend.mooncake]\n{GRANTS}\n")).unwrap();
    let mut program = consumer("batch");
    program.args(["all", &mooncake::uri("batch")]).env("KV_STORE_WASM_CONFIG", config.path());
    let finished = mooncake.namespace.finish(&program);
    assert_eq!(finished.stdout, "done\n", "{}", finished.stderr);
}

#[test]
fn short_answers_and_small_batches_are_asked_on() {
    assert_eq!(batch(&["all", "probe-batches://batch"]), "done\n");
}

#[test]
fn a_lost_chunk_fails_the_commit_of_its_save_and_of_no_other() {
    let (folder, uri) = local();
    let chunk = folder.path().join("chunks/6/61026b7632");
    assert_eq!(batch(&["lose", &uri, chunk.to_str().unwrap()]), "done\n");
}

#[test]
fn a_sealed_value_that_was_changed_is_a_miss_and_heals() {
    let (folder, uri) = local();
    let chunk = folder.path().join("chunks/6/61026b7632");
    assert_eq!(batch(&["flip", &uri, chunk.to_str().unwrap()]), "done\n");
}

/// A probe that answers an item a call, after 100 ms.
#[test]
fn what_is_cancelled_stops_between_its_batches() {
    let config = tempfile::NamedTempFile::new().unwrap();
    let probe = test_components().join("probe.wasm");
    let text = format!(
        "[backend.probe]\ncomponent = '{}'\noptions = {{ answers = '1', slow-puts = '100' }}\nlimits.deadline_ms = 60000\n",
        probe.display()
    );
    std::fs::write(config.path(), text).unwrap();
    let mut program = consumer("batch");
    let finished = finish(program.args(["cancel", "probe://cancel", "-"]).env("KV_STORE_WASM_CONFIG", config.path()));
    assert_eq!(finished.stdout, "done\n", "{}", finished.stderr);
}

#[test]
fn a_request_with_little_time_ends_while_its_backend_hangs_and_others_wait_on() {
    let config = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(config.path(), "[backend.redis]\nlimits = { deadline_ms = 60000, patience_ms = 60000 }\n").unwrap();
    let mut server = RedisServer::start(&[]);
    let mut program = consumer("batch");
    program.args(["hung", &format!("redis://127.0.0.1:{}/0", server.port), "-"]);
    program.env("KV_STORE_WASM_CONFIG", config.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = start(&mut program);
    let (mut said, mut to) =
        (BufReader::new(running.0.stdout.take().unwrap()).lines(), running.0.stdin.take().unwrap());
    for (line, frozen) in [("hang", true), ("go on", false)] {
        assert_eq!(said.next().unwrap().unwrap(), line);
        server.freeze(frozen);
        to.write_all(b"\n").unwrap();
    }
    assert_eq!(said.next().unwrap().unwrap(), "done");
    assert!(running.wait().unwrap().success());
}

#[test]
fn the_example_saves_and_restores() {
    let (folder, uri) = local();
    let mut example = consumer("batch_example");
    // As its first lines have it: the loader finds the library.
    example.env_remove("KV_STORE_LIBRARY").env("LD_LIBRARY_PATH", dist().join("lib"));
    let finished = finish(example.arg(uri));
    assert!(finished.status.success(), "{}\n{}", finished.stdout, finished.stderr);
    assert!(folder.path().join("prompt-1%02").exists());
}
