//! The library as a guest in a consumer's process: fork, dlclose, exit, signals, asynchronous runtimes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

#[path = "process/runtime.rs"]
mod runtime;

use std::path::Path;

use kv_store_tests::consumer::{consumer, succeed};

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn local_fs(directory: &Path) -> String {
    format!("local-fs://{}", directory.display())
}

/// A program that checks by itself. It must end well and without a word, but for the lines that `expected` allows.
#[track_caller]
fn check(program: &str, arguments: &[&str], expected: impl Fn(&str) -> bool) {
    let finished = succeed(consumer(program).args(arguments));
    let unexpected: Vec<&str> = finished.stderr.lines().filter(|line| !expected(line)).collect();
    assert!(unexpected.is_empty(), "{program} {arguments:?}: {unexpected:#?}");
    assert_eq!(finished.stdout, "", "{program} {arguments:?}");
}

/// What each refused call says in a child that uses its parent's handle.
fn before_the_fork(line: &str) -> bool {
    line.contains("this store was opened before a fork")
}

fn none(_line: &str) -> bool {
    false
}

#[test]
fn a_forked_child_is_refused_its_parents_store_and_opens_its_own_and_so_does_its_child() {
    let directory = scratch();
    check("forks", &["idle", &local_fs(directory.path())], before_the_fork);
}

#[test]
fn a_refused_call_in_a_forked_child_says_so_in_one_line() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    let finished = succeed(consumer("forks").args(["idle", &uri]));
    // Six functions, of which one is called twice, fail for one cause: the first says so, and the rest are counted.
    let lines: Vec<&str> = finished.stderr.lines().collect();
    let [line] = lines.as_slice() else { panic!("{lines:#?}") };
    assert!(line.contains(&format!("put_chunk {uri}: ")) && before_the_fork(line), "{line}");
}

#[test]
fn a_fork_in_the_midst_of_other_threads_calls_hurts_neither_side() {
    let directory = scratch();
    check("forks", &["busy", &local_fs(directory.path())], before_the_fork);
}

#[test]
fn a_fork_while_other_threads_open_and_close_hurts_neither_side() {
    let directory = scratch();
    check("forks", &["opening", &local_fs(directory.path())], before_the_fork);
}

#[test]
fn a_forked_child_neither_flushes_nor_discards_what_its_parent_buffered() {
    check("forks", &["buffered", "probe-buffered://fork"], before_the_fork);
}

#[test]
fn a_forked_child_compiles_a_component_where_its_parent_had_compiled_another() {
    let (directory, cache) = (scratch(), scratch());
    let mut command = consumer("forks");
    command.env("KV_STORE_WASM_CACHE", cache.path().join("aot"));
    let finished = succeed(command.args(["compile", &local_fs(directory.path()), "memory://"]));
    assert_eq!(finished.stderr, "");
    // One for each component: the child's was compiled, and the parent then took what the child had kept.
    let kept = std::fs::read_dir(cache.path().join("aot")).expect("the cache was made").count();
    assert!(kept >= 2, "{kept} compiled components were kept: the test compiled nothing");
}

#[test]
fn a_forked_child_compiles_a_component_while_its_parent_is_starting_or_compiling_another() {
    // From the first steps of the first open to the midst of a compilation.
    for microseconds in [0, 300, 1000, 3000, 10_000, 30_000, 60_000, 100_000] {
        let (directory, cache) = (scratch(), scratch());
        let (uri, delay) = (local_fs(directory.path()), microseconds.to_string());
        let mut command = consumer("forks");
        command.env("KV_STORE_WASM_CACHE", cache.path().join("aot"));
        let finished = succeed(command.args(["compiling", &uri, "memory://", &delay]));
        assert_eq!(finished.stderr, "", "after {microseconds} us");
    }
}

/// A fork that meets the first open at a place where it reads its environment. Whatever lock or `Once` is held there
/// stays held in the child for ever.
fn paused_at(variable: &str) {
    let (directory, cache) = (scratch(), scratch());
    let mut command = consumer("forks");
    command.env("KV_STORE_WASM_CACHE", cache.path().join("aot"));
    let finished = succeed(command.args(["paused", &local_fs(directory.path()), variable]));
    assert_eq!((&*finished.stdout, &*finished.stderr), ("paused\n", ""), "{variable}");
}

#[test]
fn a_fork_while_another_thread_reads_the_config_hurts_neither_side() {
    paused_at("KV_STORE_WASM_CONFIG");
}

#[test]
fn a_fork_while_another_thread_starts_the_library_hurts_neither_side() {
    paused_at("KV_STORE_WASM_CACHE");
}

#[test]
fn a_fork_while_another_thread_looks_for_the_component_hurts_neither_side() {
    paused_at("KV_STORE_WASM_PATH");
}

#[test]
fn a_fork_while_another_thread_writes_its_first_log_line_hurts_neither_side() {
    paused_at("KV_STORE_WASM_LOG");
}

#[test]
fn the_library_and_its_threads_outlive_dlclose_and_it_can_be_loaded_again() {
    let directory = scratch();
    check("reload", &[&local_fs(directory.path())], none);
}

#[test]
fn the_process_ends_well_with_threads_inside_calls() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    for round in 0..15_u64 {
        // At other places each time, from the first calls on.
        let delay = (round * 7919 % 40_000).to_string();
        for how in ["return", "exit", "thread"] {
            check("exits", &[how, &uri, "probe://waiting", &delay], none);
        }
    }
}

/// What the guest's traps in signals.c say, each in its line.
fn traps(line: &str) -> bool {
    line.contains("get_manifest probe://signals: ") && (line.contains("trapped") || line.contains("deadline"))
}

fn signals(mode: &str) {
    let directory = scratch();
    check("signals", &[mode, &local_fs(directory.path()), "probe://signals"], traps);
}

#[test]
fn no_signals_handler_is_changed_by_open_calls_and_traps() {
    signals("dispositions");
}

#[test]
fn a_handler_installed_before_the_library_catches_the_consumers_fault_and_no_trap() {
    signals("before");
}

#[test]
fn a_handler_installed_after_the_library_catches_the_consumers_fault_and_no_trap() {
    signals("after");
}

#[test]
fn the_alternate_signal_stack_of_the_consumers_thread_is_left_alone() {
    signals("stack");
}

#[test]
fn the_librarys_threads_block_all_signals_and_leave_them_to_the_consumer() {
    // A cache of its own, so that the threads that compile are there, too.
    let (directory, cache) = (scratch(), scratch());
    let mut command = consumer("signals");
    command.env("KV_STORE_WASM_CACHE", cache.path().join("aot"));
    let finished = succeed(command.args(["threads", &local_fs(directory.path()), "probe://signals"]));
    assert!(finished.stderr.lines().all(traps), "{}", finished.stderr);
}
