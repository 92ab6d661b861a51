//! One round of each suite of `cargo xtask torture`; and that the suites see what is broken, and a seed replays a run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::Path;
use std::process::{Command, Output};

use kv_store_tests::root;

fn torture() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kv-store-torture"))
}

fn suite(name: &str) {
    let finished = torture().args(["--only", name, "--seed", "1", "--rounds", "1"]).output().expect("it runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&finished.stdout), String::from_utf8_lossy(&finished.stderr));
    // What was skipped, and why, and how much was done.
    eprint!("{stderr}");
    println!("{stdout}");
    assert!(finished.status.success(), "{stdout}{stderr}");
}

macro_rules! suites {
    ($($function:ident: $name:literal,)*) => {
        $(#[test] fn $function() { suite($name); })*
        #[test]
        fn every_suite_has_its_test() {
            let listed = torture().arg("--list").output().expect("it runs").stdout;
            let listed = String::from_utf8(listed).expect("it is text");
            let listed: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
            assert_eq!(listed, [$($name),*]);
        }
    };
}

suites! {
    killed_consumers_of_local_fs: "crash-local-fs",
    killed_consumers_and_servers_of_redis: "crash-redis",
    killed_consumers_and_servers_of_memkv: "crash-memkv",
    a_redis_server_that_is_frozen_and_killed: "server-redis",
    a_memkv_server_that_is_frozen_and_killed: "server-memkv",
    kills_at_each_writing_call: "crash-calls",
    errors_at_each_writing_call: "error-calls",
    faults_over_local_fs: "fault-local-fs",
    faults_over_redis: "fault-redis",
    faults_over_memkv: "fault-memkv",
    lies_over_local_fs: "lies-local-fs",
    lies_over_redis: "lies-redis",
    lies_over_s3: "lies-s3",
    states_that_a_power_loss_may_leave: "crash-states",
    killed_consumers_of_segments: "segments-crash",
    kills_at_each_writing_call_of_segments: "segments-calls",
    errors_at_each_writing_call_of_segments: "segments-errors",
    lies_over_segments: "segments-lies",
    states_of_segments_that_a_power_loss_may_leave: "segments-states",
    nothing_left_of_what_a_process_needs: "resources",
    late_changes_of_redis: "late-redis",
    late_changes_of_a_cluster: "late-cluster",
    late_changes_of_memkv: "late-memkv",
    late_changes_of_memkv_with_files: "late-memkv-disk",
    late_manifests_of_seaweedfs: "late-s3",
    late_manifests_of_a_stopped_seaweedfs: "late-s3-stop",
    late_manifests_of_moto: "late-moto",
}

/// A worker on a store of local-fs.
fn worker(scratch: &Path, table: &str, options: &str) -> Output {
    let config = scratch.join("config.toml");
    std::fs::write(&config, format!("[backend.local-fs]\nlimits.breaker_failures = 0\n{table}\n")).unwrap();
    let mut command = torture();
    command.args(["worker", "--seed", "7", "--uri", &format!("local-fs://{}", scratch.join("store").display())]);
    command.args(options.split_whitespace()).env("KV_STORE_WASM_CONFIG", config);
    command.env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache")).output().expect("it runs")
}

/// What a worker finds wrong.
fn wrongs(output: &Output) -> Vec<String> {
    let lines = String::from_utf8(output.stdout.clone()).expect("it is text");
    let wrongs: Vec<String> = lines.lines().filter(|line| line.starts_with("wrong ")).map(str::to_owned).collect();
    assert_eq!(output.status.success(), wrongs.is_empty(), "{lines}");
    wrongs
}

#[test]
fn wrong_bytes_are_seen_where_the_host_lets_them_pass() {
    let scratch = tempfile::tempdir().unwrap();
    let faults = "fault = { seed = 1, flip = 0.5 }";
    let options = "--threads 2 --operations 400 --unsure --damaging";
    let found = wrongs(&worker(scratch.path(), &format!("verify = 'off'\n{faults}"), options));
    assert!(found.iter().any(|wrong| wrong.contains("wrong bytes")), "{found:?}");
    let scratch = tempfile::tempdir().unwrap();
    assert!(wrongs(&worker(scratch.path(), &format!("verify = 'xxh3'\n{faults}"), options)).is_empty());
}

#[test]
fn a_chunk_that_a_manifest_names_and_is_gone_is_seen() {
    let scratch = tempfile::tempdir().unwrap();
    assert!(wrongs(&worker(scratch.path(), "", "--operations 200")).is_empty());
    let chunks = std::fs::read_dir(scratch.path().join("store/chunks")).unwrap().flatten();
    for folder in chunks.map(|folder| folder.path()) {
        std::fs::remove_dir_all(folder).unwrap();
    }
    let found = wrongs(&worker(scratch.path(), "", "--process 2 --operations 0"));
    assert!(found.iter().any(|wrong| wrong.contains("is not there")), "{found:?}");
}

#[test]
fn an_acknowledged_manifest_that_was_never_written_is_seen() {
    let scratch = tempfile::tempdir().unwrap();
    let found =
        wrongs(&worker(scratch.path(), "fault = { seed = 1, lie = 0.3 }", "--operations 400 --unsure --strict"));
    assert!(found.iter().any(|wrong| wrong.contains("it may be")), "{found:?}");
}

#[test]
fn a_sync_that_is_missing_is_seen() {
    for kind in ["full", "segments", "rows", "memkv"] {
        let scratch = tempfile::tempdir().unwrap();
        let config = scratch.path().join("config.toml");
        std::fs::write(&config, "").unwrap();
        let mut states = torture();
        states.args(["states", "--kind", kind, "--seed", "1", "--states", "100", "--without-syncs"]);
        states.env("KV_STORE_WASM_CONFIG", config).env("MEMKV_AUTH_KEY", kv_store_tests::memkv::AUTH_KEY);
        let checked = states.env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache")).output();
        let found = wrongs(&checked.expect("it runs"));
        assert!(!found.is_empty(), "{kind}");
    }
}

#[test]
fn late_changes_are_seen_where_servers_refuse_none() {
    for name in ["late-redis", "late-cluster", "late-memkv", "late-memkv-disk", "late-s3"] {
        // How late a change comes is also the machine's doing.
        let seen = (1..=12).any(|seed: u64| {
            let mut late = torture();
            late.args(["--only", name, "--rounds", "1", "--seed", &seed.to_string()]);
            let found = late.env("KV_STORE_TORTURE_UNFENCED", "1").output().expect("it runs");
            let said = String::from_utf8_lossy(&found.stderr);
            assert_eq!(found.status.success(), !said.contains("after a change that ended late"), "{name}: {said}");
            !found.status.success()
        });
        assert!(seen, "{name}");
    }
}

/// The first line in which two texts differ.
fn differing<'a>(one: &'a str, other: &'a str) -> Option<(Option<&'a str>, Option<&'a str>)> {
    let (mut one, mut other) = (one.lines(), other.lines());
    std::iter::repeat_with(|| (one.next(), other.next()))
        .find(|pair| pair.0 != pair.1 || pair.0.is_none())
        .filter(|pair| pair.0.is_some() || pair.1.is_some())
}

#[test]
fn a_seed_replays_a_run() {
    // One instance: the host's own batches go side by side otherwise, in any order.
    let faults = |seed| {
        let dice = format!("seed = {seed}, fail = 0.1, short = 0.3, flip = 0.1, trap = 0.05, lie = 0.05");
        format!("fault = {{ {dice} }}\nlimits.instances = 1")
    };
    let run = |seed| {
        let scratch = tempfile::tempdir().unwrap();
        let run = worker(scratch.path(), &faults(seed), "--operations 300 --unsure --damaging --lying");
        let log = String::from_utf8(run.stderr).expect("it is text");
        assert!(log.contains(&format!("their seed is {seed}")), "{log}");
        // Paths differ.
        let log = log.replace(&scratch.path().display().to_string(), "");
        (String::from_utf8(run.stdout).expect("it is text"), log)
    };
    let first = run(1);
    assert!(first.0.contains("failed ") && first.1.contains("injected"), "nothing went wrong: {first:?}");
    for _ in 0..5 {
        let again = run(1);
        assert_eq!(differing(&first.0, &again.0), None);
        assert_eq!(differing(&first.1, &again.1), None);
    }
    assert_ne!(first.0, run(2).0);
}

#[test]
fn a_crash_of_the_config_kills() {
    use std::os::unix::process::ExitStatusExt;
    let scratch = tempfile::tempdir().unwrap();
    let killed = worker(scratch.path(), "fault = { seed = 1, crash = 0.1 }", "--operations 1000 --unsure");
    assert_eq!(killed.status.signal(), Some(9), "{killed:?}");
}

/// Some seconds of `--soak`, with further options, and its result.
fn soak(further: &[&str]) -> (bool, serde_json::Value, String) {
    let finished = torture().args(["--soak", "--json", "--seed", "1"]).args(further).output().expect("it runs");
    let (stdout, stderr) = (String::from_utf8_lossy(&finished.stdout), String::from_utf8_lossy(&finished.stderr));
    let result = serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{error}: {stdout}{stderr}"));
    (finished.status.success(), result, stderr.into_owned())
}

#[test]
fn a_soak_of_all_stores_holds() {
    let (held, result, said) = soak(&["--minutes", "0.15"]);
    assert!(held && result["violations"] == serde_json::json!([]), "{said}{result}");
    let stores = result["stores"].as_array().expect("a list");
    assert_eq!(stores.len(), 6, "{result}");
    for store in stores {
        let count = |name: &str| store["counts"][name].as_u64().expect("a number");
        assert!(count("saved") > 0 && count("whole") > 0 && count("calls") > count("saved"), "{store}");
        assert!(
            store["strikes"].as_u64() > Some(0) && store["log_bytes"].as_u64() <= store["log_budget_bytes"].as_u64()
        );
        assert!(store["processes"].as_object().is_some_and(|processes| processes.len() >= 2), "{store}");
    }
}

#[test]
fn a_soak_sees_what_is_planted() {
    let planted = [
        ("memory", "memory has grown"),
        ("files", "open files have grown"),
        ("log", "bytes were logged"),
        ("lost", "lost: "),
        ("wrong", "wrong bytes: "),
    ];
    std::thread::scope(|scope| {
        for (plant, found) in planted {
            scope.spawn(move || {
                let (held, result, said) = soak(&["--minutes", "0.1", "--stores", "kept-local-fs", "--plant", plant]);
                let violations = result["violations"].as_array().expect("a list");
                let is_it = |violation: &serde_json::Value| violation.as_str().is_some_and(|text| text.contains(found));
                assert!(!held && violations.iter().any(is_it), "{plant}: {said}");
            });
        }
    });
}
