//! What a consumer does with the library, in processes of its own: the C programs of `tests/consumer`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

#[path = "consumer/crash.rs"]
mod crash;
#[path = "consumer/describe.rs"]
mod describe;
#[path = "consumer/integrity.rs"]
mod integrity;
#[path = "consumer/log.rs"]
mod log;
#[path = "consumer/messages.rs"]
mod messages;
#[path = "consumer/metrics.rs"]
mod metrics;
#[path = "consumer/names.rs"]
mod names;
#[path = "consumer/paged.rs"]
mod paged;
#[path = "consumer/uris.rs"]
mod uris;

use std::path::{Path, PathBuf};
use std::process::Command;

use kv_store_tests::consumer::{Finished, consumer, finish, succeed};
use kv_store_tests::{compile, dist, library_path, root, skipped};

/// A directory for one test's stores.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

fn local_fs(directory: &Path) -> String {
    format!("local-fs://{}", directory.display())
}

/// The calls program with its arguments.
fn calls<'a>(uri: &str, arguments: impl IntoIterator<Item = &'a str>) -> Command {
    let mut command = consumer("calls");
    command.arg(uri).args(arguments);
    command
}

/// FNV-1a, as in `tests/consumer/consumer.h`.
fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The key that the C programs give a chunk of this content, in hex.
fn content_key(bytes: &[u8]) -> String {
    format!("{:016x}{:016x}", fnv(0xcbf2_9ce4_8422_2325, bytes), fnv(0x9e37_79b9_7f4a_7c15, bytes))
}

/// The chunk files of a local-fs store.
fn chunk_files(directory: &Path) -> Vec<PathBuf> {
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    entries(&directory.join("chunks")).flat_map(|folder| entries(&folder).collect::<Vec<_>>()).collect()
}

#[test]
fn the_example_of_the_readme_works_and_is_as_short_as_it_says() {
    let directory = scratch();
    let mut example = consumer("twenty_lines");
    // As the README has it: the loader finds the library.
    example.env_remove("KV_STORE_LIBRARY").env("LD_LIBRARY_PATH", dist().join("lib"));
    succeed(example.arg(local_fs(directory.path())));
    assert_eq!(chunk_files(directory.path()).len(), 2, "it stored its chunks");
    assert!(directory.path().join("prompt-1%02").exists(), "it stored its manifest");

    let source = std::fs::read_to_string(root().join("tests/consumer/twenty_lines.c")).expect("the source is there");
    let (_, main) = source.split_once("int main").expect("there is a main");
    let lines = main.lines().filter(|line| line.ends_with([';', '{', '/'])).count();
    assert!(lines <= 25, "{lines} lines are not about twenty");
}

#[test]
fn the_example_of_the_readme_notices_a_store_that_does_not_open() {
    let mut example = consumer("twenty_lines");
    example.env_remove("KV_STORE_LIBRARY").env("LD_LIBRARY_PATH", dist().join("lib"));
    let finished = finish(example.arg("no-such-backend://x"));
    assert_eq!(finished.status.code(), Some(1), "{finished:?}");
    assert!(finished.stderr.contains("failed: store"), "{finished:?}");
}

#[test]
fn the_header_is_the_abi_in_c_and_in_cpp() {
    let folder = scratch();
    for (language, name) in [("c", "in-c"), ("c++", "in-cpp")] {
        let output = folder.path().join(name);
        compile("header_check.c", language, &output);
        succeed(&mut Command::new(&output));
    }
}

#[test]
fn a_state_saved_by_one_process_is_restored_by_another_bit_for_bit() {
    let directory = scratch();
    let uri = local_fs(directory.path());
    for (name, size) in [("empty", "0"), ("short", "1"), ("a chunk", "49152"), ("many", "5000000")] {
        succeed(consumer("state").args(["save", &uri, name, size]));
        let quiet = succeed(consumer("state").args(["restore", &uri, name, size]));
        assert_eq!(quiet.stderr, "", "nothing went wrong, so there is nothing to say");
    }
}

#[test]
fn the_restore_notices_a_chunk_that_is_gone_and_one_that_differs() {
    // Of the test itself: without it, a restore that compares nothing would pass the others.
    let directory = scratch();
    let uri = local_fs(directory.path());
    succeed(consumer("state").args(["save", &uri, "n", "100000"]));
    let chunk = chunk_files(directory.path()).pop().expect("there are chunks");
    // As an earlier version stored it, without an envelope that tells of the damage.
    let mut bytes = std::fs::read(&chunk).expect("a chunk's file");
    bytes[7] ^= 1;
    let plain =
        chunk.to_str().and_then(|path| path.strip_suffix("026b7632")).expect("it lies in an envelope").to_owned();
    std::fs::write(&plain, &bytes[..bytes.len() - 64]).expect("a chunk's file");
    std::fs::remove_file(&chunk).expect("a chunk's file");
    assert!(finish(consumer("state").args(["restore", &uri, "n", "100000"])).stdout.contains("differs"));
    std::fs::remove_file(&plain).expect("a chunk's file");
    assert!(finish(consumer("state").args(["restore", &uri, "n", "100000"])).stdout.contains("missing"));
}

#[test]
fn outputs_are_the_consumers_memory_aligned_and_hardly_larger_than_needed() {
    let directory = scratch();
    for uri in [&local_fs(directory.path()), "memory://outputs", "probe-buffered://outputs"] {
        succeed(consumer("memory").arg(uri));
    }
}

#[test]
fn valgrind_finds_no_wrong_access_and_no_leak() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skipped("valgrind is not installed");
    }
    let directory = scratch();
    let uri = local_fs(directory.path());
    // It knows no process that shares another one's memory, which the compile helper is started by.
    let elsewhere = scratch();
    let config = elsewhere.path().join("config.toml");
    std::fs::write(&config, "[compile]\nhelper = 'off'\n").unwrap();
    let under_valgrind = |checks: &[&str], name: &str, arguments: &[&str]| {
        let plain = consumer(name);
        let mut command = Command::new("valgrind");
        command.env_clear().envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.env("KV_STORE_WASM_CONFIG", &config);
        command.args(checks).arg(plain.get_program()).args(arguments);
        succeed(&mut command)
    };
    // Its processor is another one to wasmtime, so the component is compiled once for it. Unchecked: the compiler
    // branches on bits that the optimiser left undefined, and takes long.
    under_valgrind(&["--tool=none"], "state", &["save", &uri, "warm", "1"]);
    let checks = ["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"];
    let known = format!("--suppressions={}", root().join("tests/consumer/valgrind.supp").display());
    let checks = &[&checks[..], &["--show-leak-kinds=definite", &known]].concat();
    under_valgrind(checks, "state", &["save", &uri, "n", "150000"]);
    under_valgrind(checks, "state", &["restore", &uri, "n", "150000"]);
    under_valgrind(checks, "calls", &[&uri, "put", "0102", "bytes", "get", "0102", "get", "03", "read", "n"]);
}

/// The lines that the library wrote.
fn lines(finished: &Finished) -> Vec<&str> {
    finished.stderr.lines().collect()
}
