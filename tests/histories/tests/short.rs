//! A short history of each backend and some nemeses; and that the program finds what is broken.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::process::{Command, Output};

fn histories(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kv-store-histories"));
    command.args(arguments).output().expect("it runs")
}

/// Two seconds of these nemeses.
fn hold(backend: &str, nemeses: &str) {
    let finished = histories(&["--only", backend, "--nemesis", nemeses, "--rounds", "1", "--seconds", "2"]);
    let (stdout, stderr) = (String::from_utf8_lossy(&finished.stdout), String::from_utf8_lossy(&finished.stderr));
    eprint!("{stderr}");
    println!("{stdout}");
    assert!(finished.status.success(), "{stdout}{stderr}");
}

#[test]
fn histories_of_local_fs_hold() {
    hold("local-fs", "kill,freeze");
}

#[test]
fn histories_of_segments_hold() {
    hold("segments", "kill,evict");
}

#[test]
fn histories_of_redis_hold() {
    hold("redis", "late,server-kill");
}

#[test]
fn histories_of_memkv_hold() {
    hold("memkv", "late,server-freeze");
}

#[test]
fn late_changes_are_seen_where_the_server_refuses_none() {
    let late = ["--only", "redis", "--nemesis", "late,server-freeze", "--unfenced", "--first", "--rounds", "6"];
    let finished = histories(&late);
    let said = String::from_utf8_lossy(&finished.stderr);
    assert_eq!(finished.status.code(), Some(1), "{said}");
    assert!(said.contains("brought-back: ") || said.contains("no-order: "), "{said}");
}
