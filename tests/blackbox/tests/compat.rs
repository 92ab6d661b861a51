//! Components that were built for 1.0 of the contract, as bytes: what they pass now, they pass for ever. And those that were built for
//! 0.2 and for a draft, which are refused with a line that says what to do. `tests/compat/README.md` says where they come from.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

#[path = "compat/data.rs"]
mod data;
#[path = "compat/former.rs"]
mod former;
#[path = "compat/programs.rs"]
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use kv_store_tests::consumer::{Finished, finish_within};
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::mooncake::{self, GRANTS, Mooncake};
use kv_store_tests::redis::RedisServer;
use kv_store_tests::seaweed::{ACCESS_KEY_ID, SECRET_ACCESS_KEY, Seaweed};
use kv_store_tests::{kv_store, root};

/// Those that are there, by name, unpacked into a folder under the name that is their scheme's.
fn components(folder: &Path, beginning: &str) -> BTreeMap<String, PathBuf> {
    let mut unpacked = BTreeMap::new();
    for entry in std::fs::read_dir(root().join("tests/compat")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some(name) = name.strip_suffix(".wasm.zst").and_then(|name| name.strip_prefix(beginning)) else { continue };
        // The template's backend serves the scheme of its name; that of the draft, and that with maintenance, are `memory`.
        let scheme = match name {
            "rust" if beginning == "draft-" => "memory".to_owned(),
            "rust-maintenance" => "memory".to_owned(),
            language if TEMPLATES.contains(&language) => format!("{language}-memory"),
            shipped => shipped.to_owned(),
        };
        let own = folder.join(name);
        std::fs::create_dir(&own).unwrap();
        let component = own.join(format!("{scheme}.wasm"));
        kv_store_tests::compat::unpack(&path, &component);
        unpacked.insert(name.to_owned(), component);
    }
    unpacked
}

/// What `kv-store new` made, in each language.
const TEMPLATES: [&str; 4] = ["rust", "c", "javascript", "python"];

/// JavaScript's and Python's take 10 to 20 s of two cores to compile, where their code is not in the cache.
const BOUND: Duration = Duration::from_secs(1800);

/// `kv-store check` of a component, on stores that are given so.
fn checking(component: &Path, stores: &[&str]) -> Command {
    let mut check = kv_store();
    check.arg("check").arg(component).args(stores).args(["--compile-timeout", "1200"]);
    // A component that does not list its schemes has the name of the URI's, here s3+http, and its secrets by that.
    for prefix in ["S3", "S3_HTTP"] {
        check.env(format!("{prefix}_ACCESS_KEY_ID"), ACCESS_KEY_ID);
        check.env(format!("{prefix}_SECRET_ACCESS_KEY"), SECRET_ACCESS_KEY);
    }
    check.env("MEMKV_AUTH_KEY", AUTH_KEY);
    check
}

fn check(component: &Path, stores: &[&str]) -> Finished {
    finish_within(BOUND, &mut checking(component, stores))
}

/// Everything passes. What is left out is left out for one of these reasons.
#[track_caller]
fn passes(component: &Path, stores: &[&str], reasons: &[&str]) {
    all_passed(component, &check(component, stores), reasons);
}

#[track_caller]
fn all_passed(component: &Path, checked: &Finished, reasons: &[&str]) {
    let told = format!("{}: {}{}", component.display(), checked.stdout, checked.stderr);
    assert_eq!(checked.status.code(), Some(0), "{told}");
    for line in checked.stdout.lines().filter(|line| line.trim_start().starts_with("skip")) {
        assert!(reasons.iter().any(|reason| line.contains(reason)), "{line} in {told}");
    }
}

#[test]
fn components_built_for_1_0_pass_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let components = components(folder.path(), "1.0.0-");
    for name in TEMPLATES.into_iter().chain(["rust-maintenance"]) {
        // Nothing is left out but what a store in memory makes no sense of.
        let reasons = [
            "keeps nothing after its last handle",
            "is not shared by processes",
            "commit is not told which chunks are fresh",
            "does not export kv-store:backend/maintenance",
            "does not say that it is `durable`",
        ];
        passes(&components[name], &["--stores", "names"], &reasons);
    }
}

#[test]
fn the_component_over_records_passes_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let component = &components(folder.path(), "1.1.0-")["segments"];
    // A value is shorter than a file of records.
    passes(component, &["--stores", "directories"], &["the backend takes values of at most"]);
}

#[test]
fn shipped_components_of_1_0_pass_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let components = components(folder.path(), "1.0.0-");
    passes(&components["local-fs"], &["--stores", "directories"], &[]);
    // What one store cannot show that others may use.
    let reasons = [
        "only one store was given",
        "in a store that may be in use",
        "it would remove what others have put",
        "commit is not told which chunks are fresh",
        "does not say that it is `durable`",
        "writes neither files nor records",
        "give it as --refusal",
    ];
    // Servers that hang are waited for, several times.
    let config = folder.path().join("config.toml");
    let limits = "limits = { patience_ms = 2000, breaker_failures = 0 }";
    let tables = ["redis", "memkv"].map(|name| format!("[backend.{name}]\n{limits}\n")).concat();
    std::fs::write(&config, format!("{tables}[backend.mooncake]\n{GRANTS}\n{limits}\n")).unwrap();
    let passes = |name: &str, uri: &str| {
        let mut check = checking(&components[name], &["--uri", uri]);
        let checked = finish_within(BOUND, check.env("KV_STORE_WASM_CONFIG", &config));
        all_passed(&components[name], &checked, &reasons);
    };
    let redis = RedisServer::start(&[]);
    passes("redis", &format!("redis://127.0.0.1:{}/0", redis.port));
    let memkv = MemkvServer::start(&["--memory", "2GiB"]);
    passes("memkv", &memkv.uri("compat"));
    if let Some(seaweed) = Seaweed::start(1, 1) {
        passes("s3", &seaweed.uri("compat"));
    }
    if let Some(mooncake) = Mooncake::start(1) {
        let component = &components["mooncake"];
        let mut check = checking(component, &["--uri", &mooncake::uri("compat")]);
        let checked = mooncake.namespace.finish(check.env("KV_STORE_WASM_CONFIG", config));
        all_passed(component, &checked, &[&reasons[..], &["the backend evicts nothing"]].concat());
    }
}

#[test]
fn components_of_0_2_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let components = components(folder.path(), "0.2-");
    assert_eq!(components.len(), 9);
    for component in components.values() {
        let to_do = "was built for an earlier version of the contract: run kv-store update && kv-store build";
        let checked = check(component, &["--stores", "names"]);
        assert_eq!(checked.status.code(), Some(2), "{}{}", checked.stdout, checked.stderr);
        let lines: Vec<&str> = checked.stderr.lines().collect();
        assert!(lines.last().is_some_and(|line| line.contains(to_do)), "{lines:?}");
        let inspected = finish_within(BOUND, kv_store().arg("inspect").arg(component));
        assert_eq!(inspected.status.code(), Some(1), "{}", inspected.stdout);
        assert!(inspected.stdout.contains(&format!("PROBLEM  {to_do}")), "{}", inspected.stdout);
    }
}

#[test]
fn a_component_of_a_draft_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let components = components(folder.path(), "draft-");
    assert!(!components.is_empty());
    for component in components.values() {
        let checked = check(component, &["--stores", "names"]);
        assert_eq!(checked.status.code(), Some(2), "{}{}", checked.stdout, checked.stderr);
        let lines: Vec<&str> = checked.stderr.lines().collect();
        let refused = lines.last().unwrap_or(&"");
        assert!(refused.contains("a draft of the contract") && refused.contains("rebuild the component"), "{lines:?}");
    }
}
