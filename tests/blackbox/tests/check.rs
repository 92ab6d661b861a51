//! `kv-store check` beyond one process that calls the ABI: two processes, killed ones, servers that hang and refuse, maintenance, a
//! soak with faults, and what it reports. For each case a backend with a fault is planted that no other case is meant to find, and a
//! sound one beside it. The backends that ship pass.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::{Path, PathBuf};

use kv_store_tests::consumer::{Finished, expect, finish};
use kv_store_tests::memkv::{self, MemkvServer};
use kv_store_tests::objects::ObjectServer;
use kv_store_tests::redis::RedisServer;
use kv_store_tests::scratch::in_memory;
use kv_store_tests::seaweed::{ACCESS_KEY_ID, SECRET_ACCESS_KEY};
use kv_store_tests::{dist, kv_store, root, test_components};
use sha2::{Digest, Sha256};

/// A component under the name of a fault, which is what is wrong with it.
fn planted(folder: &Path, component: &str, fault: &str) -> PathBuf {
    let path = folder.join(format!("{fault}.wasm"));
    std::fs::copy(test_components().join(format!("{component}.wasm")), &path).unwrap();
    path
}

fn check(component: &Path, arguments: &[&str]) -> Finished {
    finish(kv_store().arg("check").arg(component).args(arguments))
}

fn component(name: &str) -> PathBuf {
    dist().join(format!("components/{name}.wasm"))
}

#[track_caller]
fn expect_failure(checked: &Finished, case: &str, why: &str) {
    expect(1, checked);
    let failure = checked.stdout.split("  FAIL  ").find(|part| part.starts_with(&format!("{case}:")));
    assert!(failure.is_some_and(|part| part.contains(why)), "{case}, {why}: {}", checked.stdout);
}

#[test]
fn the_backends_that_ship_pass() {
    for (name, skipped) in [("local-fs", 0), ("memory", 12)] {
        let checked = check(&component(name), &[]);
        expect(0, &checked);
        assert!(checked.stdout.contains(&format!("0 failed, {skipped} skipped")), "{}", checked.stdout);
    }
    // Servers that hang are waited for, several times.
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    let limits = "limits = { patience_ms = 2000, breaker_failures = 0 }\n";
    std::fs::write(&config, ["redis", "memkv", "s3"].map(|name| format!("[backend.{name}]\n{limits}")).concat())
        .unwrap();
    let reaching = |name: &str, uri: &str| {
        let mut check = kv_store();
        check.arg("check").arg(component(name)).args(["--uri", uri]).env("KV_STORE_WASM_CONFIG", &config);
        check
    };
    let redis = RedisServer::start(&[]);
    let uri = format!("redis://127.0.0.1:{}/0", redis.port);
    redis.ask("SET kv:m:slot others");
    for _ in 0..2 {
        // The second finds what the first has left.
        let checked = finish(&mut reaching("redis", &uri));
        expect(0, &checked);
        assert!(checked.stdout.contains("skip  handles: only one store was given"), "{}", checked.stdout);
    }
    let memkv = MemkvServer::start(&["--memory", "2GiB"]);
    expect(0, &finish(reaching("memkv", &memkv.uri("check")).env("MEMKV_AUTH_KEY", memkv::AUTH_KEY)));
    let objects = ObjectServer::start();
    let uri = format!("s3+http://127.0.0.1:{}/bucket/check", objects.port);
    let mut s3 = reaching("s3", &uri);
    // Its objects are of 2020, which other cases find wrong.
    s3.args(["--filter", "calls-"])
        .env("S3_ACCESS_KEY_ID", ACCESS_KEY_ID)
        .env("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
    expect(0, &finish(&mut s3));
    assert!(redis.ask("GET kv:m:slot").contains("others"));
    // What a deleted manifest leaves for ten minutes ends by itself.
    let lasting = "local n = 0 for _, key in ipairs(redis.call('KEYS', 'kv:m:*')) do \
                   if redis.call('PTTL', key) < 0 then n = n + 1 end end return n";
    let left = redis.ask(&format!("EVAL \"{lasting}\" 0"));
    assert!(left.starts_with(":1\r\n"), "only manifests of others are left: {left}");
}

#[test]
fn guests_that_bring_wasi_pass() {
    // These guests sync each file.
    let folder = in_memory();
    for name in ["std-fs", "c-fs"] {
        let component = test_components().join(format!("{name}.wasm"));
        let uri = format!("{name}://{}/{name}", folder.path().display());
        let checked = check(&component, &["--uri", &uri]);
        expect(0, &checked);
        assert!(checked.stdout.contains("0 failed, 12 skipped"), "{}", checked.stdout);
    }
}

#[test]
fn faults_that_show_between_processes_are_found() {
    let folder = tempfile::tempdir().unwrap();
    for case in ["two-processes", "killed"] {
        let sound = planted(folder.path(), "broken", "sound");
        let checked = check(&sound, &["--stores", "directories", "--filter", case]);
        expect(0, &checked);
        assert!(checked.stdout.contains("1 passed, 0 failed, 0 skipped"), "{}", checked.stdout);
    }
    let caches = planted(folder.path(), "broken", "caches-manifests");
    let checked = check(&caches, &["--stores", "directories", "--filter", "two-processes"]);
    expect_failure(
        &checked,
        "two-processes",
        "the manifest here is Ok(\"1\"), and the other process made it Some(\"2\")",
    );
    let late = planted(folder.path(), "broken", "writes-late");
    let checked = check(&late, &["--stores", "directories", "--filter", "killed"]);
    expect_failure(&checked, "killed", "get_chunk of what the manifest of the killed process names");
}

/// What the C ABI, chunk by chunk and with one answer for a miss and a failure, does not show.
#[test]
fn faults_of_batches_misses_and_commits_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let run = |fault: &str, case: &str| {
        let component = planted(folder.path(), "broken", fault);
        check(&component, &["--stores", "directories", "--filter", case])
    };
    for case in ["batch-", "misses", "commit-a", "calls-", "shared-chunks", "durable-files", "unknown-option"] {
        let sound = run("sound", case);
        expect(0, &sound);
        assert!(sound.stdout.contains("0 failed, 0 skipped"), "{}", sound.stdout);
    }
    for (fault, case, why) in [
        ("shifts-items", "batch-items", "after a batch was put, chunk"),
        ("swaps-answers", "batch-existed", "is answered `"),
        ("stale-existed", "batch-existed", "after items 2 and 3 were removed"),
        ("fails-misses", "misses", "get-chunks: "),
        ("removes-others", "batch-items", "after 0, 2 and 4 were removed, chunk"),
        ("refuses-absent", "misses", "delete-chunks: "),
        ("needs-manifest", "commit-alone", "a commit without a manifest failed"),
        ("publishes-over-gone", "commit-absent", "a chunk of `fresh` was gone"),
        ("shifts-items", "calls-batch", "get-chunks: answered other bytes"),
        ("stale-existed", "calls-batch", "is `existed`, and it was removed"),
        ("publishes-over-gone", "calls-fresh", "commit published over a chunk that is gone"),
        ("keeps-damaged", "calls-batch", "it is not there"),
        ("trims-names", "calls-names", "is not what was published under this name"),
        ("ignores-parameters", "unknown-parameter", "it opened as if it were not there"),
    ] {
        expect_failure(&run(fault, case), case, why);
    }
}

#[test]
fn two_stores_of_one_server_have_nothing_of_each_other() {
    let redis = RedisServer::start(&[]);
    let database = |number: u32| format!("redis://127.0.0.1:{}/{number}", redis.port);
    let beside =
        |other: String| check(&component("redis"), &["--uri", &database(1), "--beside", &other, "--filter", "beside"]);
    let apart = beside(database(2));
    expect(0, &apart);
    assert!(apart.stdout.contains("1 passed, 0 failed, 0 skipped"), "{}", apart.stdout);
    expect_failure(&beside(database(1)), "beside", "put into it");
}

#[test]
fn faults_of_maintenance_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let run = |fault: &str| {
        let component = planted(folder.path(), "broken-maintenance", fault);
        check(&component, &["--stores", "names", "--filter", "maintenance"])
    };
    let sound = run("sound-maintenance");
    expect(0, &sound);
    assert!(sound.stdout.contains("9 passed, 0 failed, 0 skipped"), "{}", sound.stdout);
    for (fault, case, why) in [
        ("lists-short", "maintenance-list", "is not listed"),
        ("lists-removed", "maintenance-delete", "exists and list-chunks disagree"),
        ("miscounts", "maintenance-usage", "8 manifests were stored, and usage grew by 0"),
        ("evicts-fresh", "maintenance-evict", "chunks were removed that were stored after keep-since"),
        ("lists-digests", "maintenance-long-name", "nothing is found under it"),
        ("commits-over-gone", "maintenance-commit", "a chunk of `fresh` was gone"),
        ("lists-in-circles", "maintenance-list", "the listing goes in a circle"),
        ("lists-nothing", "maintenance-list", "listed nothing on 262144 pages in a row"),
    ] {
        expect_failure(&run(fault), case, why);
    }
}

/// Commands that go through a whole store end with a component that would never let them.
#[test]
fn what_is_listed_or_evicted_without_end_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    for fault in ["sound-maintenance", "lists-in-circles", "evicts-nothing"] {
        planted(folder.path(), "broken-maintenance", fault);
    }
    let circles = "lists-in-circles://x";
    for (arguments, said) in [
        (&["ls", "--chunks", circles][..], "the listing goes in a circle"),
        (&["verify", circles], "the listing goes in a circle"),
        (&["copy", circles, "sound-maintenance://x"], "the listing goes in a circle"),
        (&["gc", circles, "--older-than", "1s", "--dry-run"], "the listing goes in a circle"),
        (&["gc", "evicts-nothing://x", "--older-than", "0s"], "evicted nothing in 64 calls in a row"),
    ] {
        let ended = finish(kv_store().args(arguments).env("KV_STORE_WASM_PATH", folder.path()));
        expect(2, &ended);
        assert!(ended.stderr.contains(said), "{arguments:?}: {}", ended.stderr);
    }
}

#[test]
fn what_a_server_that_hangs_or_refuses_brings_out_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let server = ObjectServer::start();
    let config = folder.path().join("config.toml");
    // Stores go on 40 s after their server at most: a breaker must not be what holds them up, nor a long patience.
    let limits = "limits = { patience_ms = 500, deadline_ms = 2000, breaker_failures = 0 }\n";
    let faults = ["sound-http", "gives-up", "misses-failures", "believes-refusals"];
    std::fs::write(&config, faults.map(|fault| format!("[backend.{fault}]\n{limits}")).concat()).unwrap();
    let run = |fault: &str, case: &str| {
        let component = planted(folder.path(), "broken-http", fault);
        let uri = format!("{fault}://127.0.0.1:{}/{fault}-{case}", server.port);
        let mut command = kv_store();
        command.arg("check").arg(component).args(["--uri", &uri, "--filter", case]);
        finish(command.env("KV_STORE_WASM_CONFIG", &config))
    };
    for case in ["patience", "http-refusals"] {
        let sound = run("sound-http", case);
        expect(0, &sound);
        assert!(sound.stdout.contains("1 passed, 0 failed, 0 skipped"), "{}", sound.stdout);
    }
    expect_failure(&run("gives-up", "patience"), "patience", "it still fails, and the server is as it was before");
    let misses = run("misses-failures", "patience");
    // On a busy machine the chunk that is there has its deadline first, and the one that is not is the first to be missing.
    expect_failure(&misses, "patience", "was answered as missing");
    let believes = run("believes-refusals", "http-refusals");
    expect_failure(&believes, "http-refusals", "while the server answers each request with status 503, a");
}

#[test]
fn a_soak_finds_what_is_lost_and_bears_what_only_fails() {
    let folder = tempfile::tempdir().unwrap();
    let soak = |fault: &str| {
        let component = planted(folder.path(), "broken", fault);
        check(&component, &["--stores", "directories", "--filter", "none of the cases", "--soak", "0.1"])
    };
    let sound = soak("sound");
    expect(0, &sound);
    let done = sound.stdout.lines().find(|line| line.contains("operations, ")).unwrap_or_default();
    let failed = done.rsplit(", ").next().and_then(|last| last.strip_suffix(" calls failed"));
    assert!(failed.is_some_and(|failed| failed != "0"), "faults are injected: {}", sound.stdout);
    expect_failure(&soak("loses-chunks"), "soak", "a chunk of an acknowledged manifest is not there");
    // Which only batches show.
    expect_failure(&soak("shifts-items"), "soak", "get_many answered other bytes than those put");
}

#[test]
fn a_report_says_what_was_checked_and_its_badge_too() {
    let folder = tempfile::tempdir().unwrap();
    let memory = component("memory");
    let report = folder.path().join("badge.json");
    let arguments = ["--filter", "chunk-roundtrip", "--times", "--report", report.to_str().unwrap()];
    let checked = check(&memory, &arguments);
    expect(0, &checked);
    assert!(checked.stdout.contains("get of 64 KiB"), "{}", checked.stdout);
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(report).unwrap()).unwrap();
    let digest = Sha256::digest(std::fs::read(&memory).unwrap());
    let digest = hex::encode(digest);
    assert_eq!(report["sha256"], digest);
    assert_eq!(report["contract"], "kv-store:backend@1.0.0-rc");
    let text = std::fs::read(root().join("wit/backend.wit")).unwrap();
    let text = hex::encode(Sha256::digest(text));
    assert_eq!(report["contract_sha256"], text);
    let version: serde_json::Value =
        serde_json::from_str(&finish(kv_store().args(["--version", "--json"])).stdout).unwrap();
    assert_eq!(version["contract"], serde_json::json!({ "name": "kv-store:backend@1.0.0-rc", "sha256": text }));
    let inspected = finish(kv_store().arg("inspect").arg(&memory)).stdout;
    assert!(
        inspected.contains(&format!("serves kv-store:backend@1.0.0-rc, whose text has sha256 {text}")),
        "{inspected}"
    );
    assert_eq!((&report["passed"], &report["failed"]), (&1.into(), &0.into()));
    assert!(report["times"]["get_us"].as_f64().unwrap() > 0.0, "{report}");
    let badge = std::fs::read_to_string(folder.path().join("badge.svg")).unwrap();
    let date = report["date"].as_str().unwrap();
    for told in ["kv-store:backend@1.0.0-rc", &text[..12], &digest[..12], report["suite"].as_str().unwrap(), date] {
        assert!(badge.contains(told), "{told} in {badge}");
    }
    let checked = check(&memory, &["--filter", "chunk-roundtrip", "--report", "/nowhere/badge.json"]);
    expect(2, &checked);
    let checked = check(&memory, &["--filter", "chunk-roundtrip", "--report", "badge.txt"]);
    expect(2, &checked);
    assert!(checked.stderr.contains("must end in .json"), "{}", checked.stderr);
}

#[test]
fn a_project_says_which_tool_is_missing_and_how_to_install_it() {
    let folder = tempfile::tempdir().unwrap();
    let without_tools = |arguments: &[&str], within: &Path| {
        finish(kv_store().env("PATH", "/nowhere").current_dir(within).args(arguments))
    };
    for (language, told) in [
        ("c", "apt-get install clang-19"),
        ("javascript", "install Node.js 20 or later"),
        ("python", "pip install -r requirements.txt"),
    ] {
        let name = format!("in-{language}");
        let made = without_tools(&["new", &name, "--language", language], folder.path());
        expect(0, &made);
        let project = folder.path().join(&name);
        let built = without_tools(&["build"], &project);
        expect(2, &built);
        assert!(built.stderr.lines().count() == 1 && built.stderr.contains(told), "{language}: {}", built.stderr);
        let checked = without_tools(&["check"], &project);
        expect(2, &checked);
        assert!(checked.stderr.contains("is not there yet: kv-store build makes it"), "{}", checked.stderr);
    }
    let go = without_tools(&["new", "in-go", "--language", "go"], folder.path());
    expect(2, &go);
    assert!(go.stderr.lines().count() == 1 && go.stderr.contains("TinyGo"), "{}", go.stderr);
    assert!(!folder.path().join("in-go").exists());
    std::fs::write(folder.path().join("in-c/backend.toml"), "name = \"../x\"\nlanguage = \"c\"\n").unwrap();
    let named = without_tools(&["build"], &folder.path().join("in-c"));
    expect(2, &named);
    assert!(named.stderr.contains("can not be a backend's name"), "{}", named.stderr);
}
