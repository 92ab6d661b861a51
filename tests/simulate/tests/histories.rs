//! The program as it is run: histories replay, none breaks a rule, and what a planted bug breaks is told with the command that shows it.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kv-store-simulate");
const PLANTED: &str = "KV_SIMULATE_PLANTED";

fn run(planted: Option<&str>, arguments: &[&str]) -> (Output, Value) {
    let mut program = Command::new(PROGRAM);
    program.args(arguments).arg("--json").env_remove(PLANTED).envs(planted.map(|bug| (PLANTED, bug)));
    let output = program.output().unwrap();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    (output, report)
}

/// How often a fault was met.
fn met(report: &Value, fault: &str) -> u64 {
    let pairs = report["pairs"].as_array().unwrap().iter().filter(|pair| pair["fault"] == fault);
    pairs.filter_map(|pair| pair["count"].as_u64()).sum()
}

/// Histories over a shipped backend break no rule, and are the same whatever runs beside them.
fn holds_and_replays(backend: &str) -> Value {
    let (output, report) = run(None, &["--backend", backend, "--histories", "300", "--jobs", "1"]);
    assert!(output.status.success() && report["violation"].is_null(), "{report:#}");
    assert_eq!(report["backends"], serde_json::json!({backend: 300}));
    assert!(report["operations"].as_u64().unwrap() > 20_000, "{}", report["operations"]);
    let (_, again) = run(None, &["--backend", backend, "--histories", "300", "--jobs", "3"]);
    assert_eq!((&report["digest"], &report["pairs"]), (&again["digest"], &again["pairs"]));
    report
}

/// Each of these faults was met.
fn meets(report: &Value, faults: &[&str]) {
    for fault in faults {
        assert!(met(report, fault) > 0, "{fault} is not met: {}", report["pairs"]);
    }
}

#[test]
fn histories_break_no_rule_and_replay_whatever_runs_beside_them() {
    let (output, report) = run(None, &["--histories", "2000", "--jobs", "1"]);
    assert!(output.status.success() && report["violation"].is_null(), "{report:#}");
    assert_eq!(report["histories"], 2000);
    assert!(report["operations"].as_u64().unwrap() > 200_000, "{}", report["operations"]);
    let (_, again) = run(None, &["--histories", "2000", "--jobs", "3"]);
    assert_eq!(report["digest"], again["digest"]);
    assert_eq!(report["pairs"], again["pairs"]);
    let (_, others) = run(None, &["--histories", "2000", "--from", "2"]);
    assert_ne!(report["digest"], others["digest"]);
}

#[test]
fn histories_about_what_is_rare_meet_more_and_replay() {
    let rare = ["--rare", "--histories", "700"];
    let (output, report) = run(None, &[&rare[..], &["--jobs", "1"]].concat());
    assert!(output.status.success() && report["violation"].is_null(), "{report:#}");
    let (_, again) = run(None, &[&rare[..], &["--jobs", "3"]].concat());
    assert_eq!((&report["digest"], &report["pairs"]), (&again["digest"], &again["pairs"]));
    let (_, usual) = run(None, &["--histories", "700"]);
    for fault in ["instance lost", "node lost", "power loss", "failover", "clock jump", "rot"] {
        assert!(met(&report, fault) > 2 * met(&usual, fault), "{fault}: {report:#}");
    }
    let late = Some("store: a mooncake store changes chunks late");
    let (_, report) = run(late, &["--backend", "mooncake", "--rare"]);
    let command = report["violation"]["command"].as_str().unwrap_or_default();
    assert!(command.contains(" --backend mooncake --rare"), "{report:#}");
}

#[test]
fn a_shipped_backend_and_its_server_break_no_rule_and_replay() {
    holds_and_replays("memkv");
    // Nobody names a backend: each has some of the seeds.
    let (_, report) = run(None, &["--histories", "300"]);
    let over = |backend: &str| report["backends"][backend].as_u64().unwrap();
    let shipped = ["memkv", "redis", "s3", "mooncake", "local-fs", "segments"].map(over);
    assert!(shipped.iter().all(|over| (15..60).contains(over)), "{}", report["backends"]);
    assert_eq!(over("contract"), 300 - shipped.iter().sum::<u64>());
}

#[test]
fn a_shipped_backend_over_a_simulated_redis_breaks_no_rule_and_replays() {
    holds_and_replays("redis");
    // A server that carries out what is late is found.
    let (_, report) = run(Some("store: a script of redis sets what comes late"), &["--backend", "redis"]);
    assert!(!report["violation"].is_null(), "{report:#}");
}

#[test]
fn a_shipped_backend_over_a_simulated_s3_breaks_no_rule_and_replays() {
    let report = holds_and_replays("s3");
    meets(
        &report,
        &["refused", "twice", "late", "unanswered", "flipped", "stopped", "trap", "power loss", "rot", "evicted"],
    );
    // Of chunks nothing is promised of what comes late: a server that has it come is found.
    let (_, report) = run(Some("store: an s3 server puts chunks that come late"), &["--backend", "s3"]);
    assert!(!report["violation"].is_null(), "{report:#}");
}

#[test]
fn a_shipped_backend_over_a_simulated_mooncake_breaks_no_rule_and_replays() {
    let report = holds_and_replays("mooncake");
    meets(
        &report,
        &["refused", "late", "unanswered", "flipped", "stopped", "trap", "node lost", "failover", "rot", "evicted"],
    );
    // Of chunks nothing is promised of what comes late: a store that has it come is found.
    let (_, report) = run(Some("store: a mooncake store changes chunks late"), &["--backend", "mooncake"]);
    assert!(!report["violation"].is_null(), "{report:#}");
}

#[test]
fn a_shipped_backend_over_files_breaks_no_rule_and_replays() {
    over_files("local-fs");
}

#[test]
fn a_shipped_backend_over_segments_breaks_no_rule_and_replays() {
    over_files("segments");
}

fn over_files(backend: &str) {
    let report = holds_and_replays(backend);
    // What befalls system calls was met.
    meets(
        &report,
        &["disk full", "call fails", "slow", "stopped", "trap", "power loss", "kill", "freeze", "removed", "rot"],
    );
}

#[test]
fn what_breaks_a_rule_is_told_short_and_replays() {
    for bug in [
        "store: a commit publishes over chunks that are absent",
        "store: a commit syncs nothing",
        "store: a manifest is not synced",
        "store: a change is carried out after its end",
        "store: a change does not settle former ones",
    ] {
        let (output, report) = run(Some(bug), &["--histories", "20000"]);
        let violation = &report["violation"];
        assert!(!output.status.success() && !violation.is_null(), "{bug}: not found");
        let history = violation["history"].as_array().unwrap();
        assert!(history.len() < 60, "{bug}: {} lines", history.len());
        let command = violation["command"].as_str().unwrap();
        let arguments = command.strip_prefix("cargo xtask simulate ").unwrap().split(' ').collect::<Vec<_>>();
        let (_, again) = run(Some(bug), &arguments);
        assert_eq!(again["violation"]["text"], violation["text"], "{bug}: {command}");
        assert_eq!(again["violation"]["history"], violation["history"], "{bug}");
        let (_, without) = run(None, &arguments);
        assert!(without["violation"].is_null(), "{bug}: without it {command} breaks {}", without["violation"]["rule"]);
    }
}

#[test]
fn a_search_ends_after_so_many_operations() {
    let (output, report) = run(None, &["--operations", "20000", "--jobs", "1"]);
    let operations = report["operations"].as_u64().unwrap();
    assert!(output.status.success() && (20_000..22_000).contains(&operations), "{operations}");
    // The time ends it before.
    let (_, report) = run(None, &["--operations", "1000000000", "--seconds", "1"]);
    assert!((1..100_000_000).contains(&report["operations"].as_u64().unwrap()));
}

#[test]
fn a_search_that_goes_on_counts_what_breaks_rules_and_tells_the_first() {
    let bug = Some("store: a commit publishes over chunks that are absent");
    let (output, report) = run(bug, &["--histories", "500", "--jobs", "1", "--go-on"]);
    assert_eq!((output.status.code(), &report["histories"]), (Some(1), &500.into()));
    let told = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = told.lines().filter(|line| line.contains("published-over-missing")).collect();
    assert!(lines.len() > 1 && report["violations"].as_u64().unwrap() >= lines.len() as u64, "{told}");
    let command = report["violation"]["command"].as_str().unwrap();
    let first = lines[0].split(' ').nth(1).unwrap();
    assert!(command.contains(&format!("--seed {first} ")), "{command}: {told}");
}

#[test]
fn a_search_that_is_stopped_tells_what_it_did() {
    for signal in ["-INT", "-TERM"] {
        let mut program = Command::new(PROGRAM);
        let program = program.args(["--hours", "1", "--jobs", "2", "--json"]).env_remove(PLANTED);
        let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_secs(1));
        assert!(Command::new("kill").args([signal, &program.id().to_string()]).status().unwrap().success());
        let mut told = String::new();
        program.stdout.take().unwrap().read_to_string(&mut told).unwrap();
        assert!(program.wait().unwrap().success(), "{signal}: {told}");
        let report: Value = serde_json::from_str(&told).unwrap();
        assert!(report["operations"].as_u64().unwrap() > 0 && report["violation"].is_null(), "{report:#}");
    }
}

#[test]
fn wrong_arguments_are_told() {
    for (arguments, why) in [
        (&["--seed"][..], "needs a value"),
        (&["--seed", "x"], "no number"),
        (&["--what"], "no argument"),
        (&["--backend", "x"], "none of contract, memkv, redis, s3, mooncake, local-fs, segments"),
    ] {
        let output = Command::new(PROGRAM).args(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && told.contains(why), "{told}");
    }
}
