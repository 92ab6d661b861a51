//! What an operation costs, counted and not timed: the system calls of the consumer's thread, and the bytes that anything
//! in the process copies. What creeps back shows here on any machine.

use std::collections::BTreeMap;
use std::process::Command;

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::redis::RedisServer;

const COUNT: usize = 64;
/// Hashes, keys and headers for so many chunks, as they go in and out of a guest: more than that is content.
const LISTS: usize = COUNT * 256;

/// What an operation on [`COUNT`] chunks cost.
#[derive(Debug)]
struct Costs {
    /// System calls of the thread that called, by name.
    calls: BTreeMap<String, usize>,
    /// Bytes copied in pieces of a KiB or more, by any thread.
    copied: usize,
}

fn costs(uri: &str, what: &str, size: usize) -> Costs {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    let program = consumer("costs");
    let mut strace = Command::new("strace");
    strace.arg("-qq").arg("-o").arg(&trace).arg(program.get_program());
    strace.args([uri, what, &COUNT.to_string(), &size.to_string()]);
    strace.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let finished = finish(&mut strace);
    assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
    let trace = std::fs::read_to_string(&trace).unwrap();
    let marked: Vec<&str> = trace.split("write(-1, \"mark\", 4)").collect();
    let [_, between, _] = marked.as_slice() else { panic!("no two marks:\n{trace}") };
    let mut calls = BTreeMap::new();
    for line in between.lines().skip(1) {
        let name = line.split('(').next().unwrap();
        // Memory of the C library, and locks that another thread had for a moment.
        if !["brk", "mmap", "munmap", "futex", "madvise", "mprotect", "sched_yield"].contains(&name) {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    Costs { calls, copied: finished.stdout.trim().parse().unwrap() }
}

/// Exactly these calls for each chunk.
#[track_caller]
fn assert_each(costs: &Costs, expected: &[(&str, usize)]) {
    let expected: BTreeMap<String, usize> =
        expected.iter().map(|(name, each)| (name.to_string(), each * COUNT)).collect();
    assert_eq!(costs.calls, expected, "for {COUNT} chunks");
}

#[test]
fn a_put_of_local_fs_is_five_calls_and_no_copy() {
    let scratch = tempfile::tempdir().unwrap();
    let costs = costs(&format!("local-fs://{}", scratch.path().display()), "put", 100_000);
    assert_each(&costs, &[("close", 1), ("newfstatat", 1), ("openat", 1), ("renameat2", 1), ("writev", 1)]);
    assert_eq!(costs.copied, 0);
}

#[test]
fn a_get_of_local_fs_is_four_calls_and_no_copy() {
    let scratch = tempfile::tempdir().unwrap();
    let costs = costs(&format!("local-fs://{}", scratch.path().display()), "get", 100_000);
    assert_each(&costs, &[("close", 1), ("fstat", 1), ("openat", 1), ("pread64", 1)]);
    assert_eq!(costs.copied, 0);
}

#[test]
fn a_chunk_that_was_prefetched_is_handed_over() {
    let scratch = tempfile::tempdir().unwrap();
    let costs = costs(&format!("local-fs://{}", scratch.path().display()), "hit", 100_000);
    assert_each(&costs, &[]);
    assert_eq!(costs.copied, 0);
}

#[test]
fn a_buffered_put_is_one_copy_and_the_flush_none() {
    const SIZE: usize = 10_000;
    let server = RedisServer::start(&[]);
    let uri = format!("redis://127.0.0.1:{}", server.port);
    let put = costs(&uri, "put", SIZE);
    assert_each(&put, &[]);
    assert_eq!(put.copied, COUNT * SIZE);

    let publish = costs(&format!("{uri}/1"), "publish", SIZE);
    assert!(publish.copied < LISTS, "{publish:?}");
    let count = |name: &str| publish.calls.get(name).copied().unwrap_or(0);
    // What exists, what is missing, the manifest: a question each, and no more than a few answers' worth of waiting.
    assert!((3..=6).contains(&count("sendmsg")), "{publish:?}");
    assert!(count("recvfrom") + count("ppoll") < COUNT / 2, "{publish:?}");
}

#[test]
fn a_save_of_what_is_there_copies_nothing_and_asks_once() {
    const SIZE: usize = 10_000;
    let server = RedisServer::start(&[]);
    let again = costs(&format!("redis://127.0.0.1:{}", server.port), "again", SIZE);
    assert!(again.copied < LISTS, "{again:?}");
    assert_eq!(again.calls.get("sendmsg"), Some(&2), "what exists, and the manifest: {again:?}");
}

#[test]
fn an_answer_is_waited_for_before_it_is_received() {
    let server = RedisServer::start(&[]);
    let get = costs(&format!("redis://127.0.0.1:{}", server.port), "get", 64);
    // One look at the kept connection, and one receive.
    let received = get.calls.get("recvfrom").copied().unwrap_or(0);
    assert!(received <= 2 * COUNT + COUNT / 10, "{get:?}");
}

#[test]
fn what_comes_from_a_server_is_received_where_it_stays() {
    const SIZE: usize = 1 << 20;
    let server = RedisServer::start(&[]);
    let get = costs(&format!("redis://127.0.0.1:{}", server.port), "get", SIZE);
    // What came with the line before it, at most what is received for a line.
    assert!(get.copied <= COUNT * 4096, "{get:?}");
    assert_eq!(get.calls.get("sendmsg"), Some(&COUNT), "{get:?}");
}
