//! What an operation costs, counted and not timed: the system calls of the consumer's thread, or of all where others work for
//! it, and the bytes that anything in the process copies. What creeps back shows here on any machine.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::collections::BTreeMap;
use std::process::Command;

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::redis::RedisServer;

const COUNT: usize = 64;
/// Hashes, keys and headers for so many chunks, as they go in and out of a guest: more than that is content.
const LISTS: usize = COUNT * 256;

/// What an operation on [`COUNT`] chunks cost.
#[derive(Debug)]
struct Costs {
    /// System calls by name: of the thread that called, or of all.
    calls: BTreeMap<String, usize>,
    /// Bytes copied in pieces of a KiB or more, by any thread.
    copied: usize,
}

impl Costs {
    fn count(&self, name: &str) -> usize {
        self.calls.get(name).copied().unwrap_or(0)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Threads {
    Calling,
    All,
}

/// Memory of the C library, and locks that another thread had for a moment.
const NOT_COUNTED: [&str; 7] = ["brk", "mmap", "munmap", "futex", "madvise", "mprotect", "sched_yield"];
/// What threads do when they begin and end, and that wait: for a tick of the clock, for work.
const OF_THREADS: [&str; 17] = [
    "clock_gettime",
    "clone3",
    "rseq",
    "set_robust_list",
    "sigaltstack",
    "rt_sigprocmask",
    "prctl",
    "gettid",
    "sched_getaffinity",
    "exit",
    "clock_nanosleep",
    "nanosleep",
    "epoll_wait",
    "epoll_pwait",
    "write",
    "restart_syscall",
    "prlimit64",
];

fn costs(uri: &str, what: &str, size: usize) -> Costs {
    costs_of(Threads::Calling, uri, what, size)
}

fn costs_of(threads: Threads, uri: &str, what: &str, size: usize) -> Costs {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    let program = consumer("costs");
    let mut strace = Command::new("strace");
    // Answers without the spaces that put them in a column, so that a line can be looked for.
    strace.arg("-qq").arg("--columns=1").arg("-o").arg(&trace);
    if threads == Threads::All {
        strace.arg("-f");
    }
    strace.arg(program.get_program()).args([uri, what, &COUNT.to_string(), &size.to_string()]);
    strace.env_clear().envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let finished = finish(strace.env("MEMKV_AUTH_KEY", AUTH_KEY));
    assert!(finished.status.success(), "{}{}", finished.stdout, finished.stderr);
    let trace = std::fs::read_to_string(&trace).unwrap();
    let marked: Vec<&str> = trace.split("write(-1, \"mark\", 4").collect();
    let [_, between, _] = marked.as_slice() else { panic!("no two marks:\n{trace}") };
    let mut calls = BTreeMap::new();
    // The first line is the rest of a mark, and with the threads' numbers the last is the begin of one.
    for line in between.lines().skip(1) {
        let call = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
        // A call that another thread's line cut in two is counted where it begins.
        if call.is_empty() || call.starts_with("<...") {
            continue;
        }
        // The C library looks up vm.overcommit_memory, one byte, when it first gives back a heap.
        if call.starts_with("read(") && call.contains(", 1) = 1") {
            continue;
        }
        let name = call.split('(').next().unwrap();
        let of_thread = threads == Threads::All && OF_THREADS.contains(&name);
        if !NOT_COUNTED.contains(&name) && !of_thread {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    Costs { calls, copied: finished.stdout.trim().parse().unwrap() }
}

/// Exactly these calls for each chunk, and at most so many reads of the clock: two of them are of the histogram, one where the
/// call's time begins, others where it is asked whether it is over; a change that is late is refused, which is one more. A directory that was not used for a moment is closed, and
/// opened anew when it is: a process that was held up has a few such calls more.
fn check_each(costs: &Costs, clock_reads: usize, expected: &[(&str, usize)]) -> Result<(), String> {
    const REOPENED: usize = 16;
    let mut expected: BTreeMap<String, usize> =
        expected.iter().map(|(name, each)| (name.to_string(), each * COUNT)).collect();
    let mut calls = costs.calls.clone();
    let reads = calls.remove("clock_gettime").unwrap_or(0);
    let mut as_expected = reads <= clock_reads * COUNT + REOPENED;
    for names in [&["openat", "openat2"][..], &["close"]] {
        let all = |calls: &mut BTreeMap<String, usize>| names.iter().filter_map(|name| calls.remove(*name)).sum();
        let (came, least): (usize, usize) = (all(&mut calls), all(&mut expected));
        as_expected &= (least..=least + REOPENED).contains(&came);
    }
    match as_expected && calls == expected {
        true => Ok(()),
        false => Err(format!("{costs:?} for {COUNT} chunks, where {clock_reads} and {expected:?} would do")),
    }
}

/// So often, and once more: for what may wait or be asked once more than it must.
#[track_caller]
fn assert_about(costs: &Costs, name: &str, expected: usize) {
    let came = costs.count(name);
    assert!((expected..=expected + 1).contains(&came), "{name}: {came} where {expected} would do: {costs:?}");
}

/// The first of a few runs that is as cheap as it should be, or the last: one that was held up for longer than a server's
/// word is taken asks again, one that others kept from the processor reads the clock more often.
fn settled(run: impl Fn(usize) -> Costs, cheap: impl Fn(&Costs) -> bool) -> Costs {
    let last = (0..4).map(&run).find(&cheap);
    last.unwrap_or_else(|| run(4))
}

/// An operation of local-fs on a new directory costs this for each chunk, and copies nothing.
#[track_caller]
fn assert_each_of_local_fs(threads: Threads, what: &str, clock_reads: usize, expected: &[(&str, usize)]) {
    let run = |_| {
        let scratch = tempfile::tempdir().unwrap();
        costs_of(threads, &format!("local-fs://{}", scratch.path().display()), what, 100_000)
    };
    let costs = settled(run, |costs| check_each(costs, clock_reads, expected).is_ok());
    assert_eq!(check_each(&costs, clock_reads, expected), Ok(()));
    assert_eq!(costs.copied, 0);
}

#[test]
fn a_put_of_local_fs_is_seven_calls_and_no_copy() {
    // The disk begins to write it: the save before was made durable, and so will this one be.
    let begins = ("sync_file_range", 1);
    // What is missing is looked for anew where its folder was removed.
    let looks = [("newfstatat", 1), ("fstat", 1)];
    let writes = [("close", 1), ("openat", 1), ("renameat2", 1), begins, ("writev", 1)];
    let expected = [&looks[..], &writes].concat();
    assert_each_of_local_fs(Threads::Calling, "put", 9, &expected);
}

#[test]
fn a_get_of_local_fs_is_four_calls_and_no_copy() {
    let expected = [("close", 1), ("fstat", 1), ("openat2", 1), ("preadv2", 1)];
    assert_each_of_local_fs(Threads::Calling, "get", 6, &expected);
}

#[test]
fn a_chunk_that_was_prefetched_is_handed_over() {
    assert_each_of_local_fs(Threads::Calling, "hit", 3, &[]);
}

#[test]
fn a_prefetch_of_local_fs_is_four_calls_and_no_copy() {
    let expected = [("close", 1), ("fstat", 1), ("openat2", 1), ("preadv2", 1)];
    assert_each_of_local_fs(Threads::All, "prefetch", 0, &expected);
}

#[test]
fn a_buffered_put_is_one_copy_and_the_flush_none() {
    const SIZE: usize = 10_000;
    let (redis, memkv) = (RedisServer::start(&[]), MemkvServer::start(&[]));
    let redis_uri = |run: usize| format!("redis://127.0.0.1:{}/{run}", redis.port);
    let memkv_uri = |run: usize| memkv.uri(&format!("run-{run}"));
    let uris: [&dyn Fn(usize) -> String; 2] = [&redis_uri, &memkv_uri];
    for uri_of in uris {
        let uri = uri_of(9);
        let put = costs(&uri, "put", SIZE);
        assert_eq!(check_each(&put, 4, &[]), Ok(()), "{uri}");
        assert_eq!(put.copied, COUNT * SIZE, "{uri}");

        let few_waits = |costs: &Costs| costs.count("recvfrom") + costs.count("ppoll") < COUNT / 2;
        let publish = settled(|run| costs(&uri_of(run), "publish", SIZE), few_waits);
        assert!(publish.copied < LISTS, "{uri}: {publish:?}");
        // What exists, what is missing, the manifest: a question each, and no more than a few answers' worth of waiting.
        assert!((3..=6).contains(&publish.count("sendmsg")), "{uri}: {publish:?}");
        assert!(few_waits(&publish), "{uri}: {publish:?}");
    }
}

#[test]
fn a_save_of_what_is_there_copies_nothing_and_asks_once() {
    const SIZE: usize = 10_000;
    let (redis, memkv) = (RedisServer::start(&[]), MemkvServer::start(&[]));
    let redis_uri = |run| format!("redis://127.0.0.1:{}/{run}", redis.port);
    let memkv_uri = |run| memkv.uri(&format!("again-{run}"));
    let uris: [&dyn Fn(usize) -> String; 2] = [&redis_uri, &memkv_uri];
    for uri in uris {
        let again = settled(|run| costs(&uri(run), "again", SIZE), |again| again.count("sendmsg") == 2);
        assert!(again.copied < LISTS, "{}: {again:?}", uri(0));
        assert_eq!(again.count("sendmsg"), 2, "what exists, and the manifest of {}: {again:?}", uri(0));
    }
}

#[test]
fn an_answer_is_waited_for_before_it_is_received() {
    let (redis, memkv) = (RedisServer::start(&[]), MemkvServer::start(&[]));
    for uri in [format!("redis://127.0.0.1:{}", redis.port), memkv.uri("get")] {
        let get = costs(&uri, "get", 64);
        // One look at the kept connection, and one receive.
        assert!(get.count("recvfrom") <= 2 * COUNT + COUNT / 10, "{uri}: {get:?}");
    }
}

#[test]
fn what_comes_from_a_server_is_received_where_it_stays() {
    const SIZE: usize = 1 << 20;
    let (redis, memkv) = (RedisServer::start(&[]), MemkvServer::start(&["--memory", "1GiB"]));
    for uri in [format!("redis://127.0.0.1:{}", redis.port), memkv.uri("get")] {
        let get = costs(&uri, "get", SIZE);
        // What came with the line or header before it, at most what is received for a line.
        assert!(get.copied <= COUNT * 4096, "{uri}: {get:?}");
        assert_about(&get, "sendmsg", COUNT);
    }
}

#[test]
fn a_prefetch_from_a_server_is_a_question_for_each_batch() {
    const SIZE: usize = 10_000;
    /// Threads that help with the batches of a call.
    const HELPERS: usize = 4;
    let (redis, memkv) = (RedisServer::start(&[]), MemkvServer::start(&[]));
    for uri in [format!("redis://127.0.0.1:{}", redis.port), memkv.uri("prefetch")] {
        let prefetch = costs_of(Threads::All, &uri, "prefetch", SIZE);
        // Two batches for each thread that takes part; what comes with a line or header is all that is copied.
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(HELPERS + 1);
        assert_about(&prefetch, "sendmsg", COUNT.div_ceil(COUNT.div_ceil(2 * threads)));
        assert!(prefetch.count("recvfrom") <= 3 * COUNT, "{uri}: {prefetch:?}");
        assert!(prefetch.copied <= (COUNT + 1) * 4096, "{uri}: {prefetch:?}");
    }
}
