//! What others build against: the contract's text, the exported symbols, and what our guests ask for.

use std::collections::BTreeSet;
use std::process::Command;

use kv_store_tests::{dist, library_path, root, test_components};
use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload, Validator, WasmFeatures};

/// SHA-256 of `wit/backend.wit`. Guests are built against that text: to change it is a decision, which this line and the
/// CHANGELOG record.
const CONTRACT_SHA256: &str = "c048809de6814c5c5c0fbe4e5651902666b5928e0cf74f1e5fb8408ee6d886c0";

#[test]
fn the_contract_changes_only_by_decision() {
    let text = std::fs::read(root().join("wit/backend.wit")).unwrap();
    let digest: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        digest, CONTRACT_SHA256,
        "wit/backend.wit changed; if that was decided, say so here and in CHANGELOG.md"
    );
}

#[test]
fn the_library_exports_what_is_listed_and_nothing_else() {
    let listed = std::fs::read_to_string(root().join("include/exports.txt")).unwrap();
    let listed: BTreeSet<&str> = listed.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library_path()).output().expect("nm runs");
    let output = String::from_utf8(output.stdout).unwrap();
    let exported: BTreeSet<&str> = output.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert_eq!(exported, listed);
}

fn component(name: &str) -> Vec<u8> {
    std::fs::read(dist().join("components").join(format!("{name}.wasm"))).unwrap()
}

#[test]
fn our_guests_are_valid_components_and_need_no_wasi() {
    for name in ["local-fs", "memkv", "memory", "redis"] {
        let bytes = component(name);
        // The features that the host runs with: nothing newer than WASI 0.2's component model.
        let features = WasmFeatures::WASM2 | WasmFeatures::COMPONENT_MODEL;
        Validator::new_with_features(features).validate_all(&bytes).unwrap();
        let decoded = wit_component::decode(&bytes).unwrap();
        let world = decoded.resolve().worlds.iter().next().unwrap().1;
        let name_of = |key| decoded.resolve().name_world_key(key);
        let imports: BTreeSet<String> = world.imports.keys().map(name_of).collect();
        let exports: BTreeSet<String> = world.exports.keys().map(name_of).collect();
        assert!(imports.iter().all(|import| import.starts_with("kv-store:backend/")), "{name} imports {imports:?}");
        assert_eq!(exports, BTreeSet::from(["kv-store:backend/store@1.0.0".to_owned()]), "{name}");
        let expected: &[&str] = match name {
            "local-fs" => &["files", "payload", "types"],
            "memkv" | "redis" => &["host", "net", "payload", "types"],
            _ => &["payload", "types"],
        };
        let expected = expected.iter().map(|interface| format!("kv-store:backend/{interface}@1.0.0")).collect();
        assert_eq!(imports, expected, "{name} imports what it uses");
    }
}

#[test]
fn the_guests_for_wasi_reach_their_files_through_it() {
    for (name, through_us) in [("std-fs", false), ("c-fs", true)] {
        let bytes = std::fs::read(test_components().join(format!("{name}.wasm"))).unwrap();
        let decoded = wit_component::decode(&bytes).unwrap();
        let world = decoded.resolve().worlds.iter().next().unwrap().1;
        let imports: Vec<String> = world.imports.keys().map(|key| decoded.resolve().name_world_key(key)).collect();
        let imports = |interface: &str| imports.iter().any(|import| import.starts_with(interface));
        assert!(imports("wasi:filesystem/types@0.2."), "{name}");
        assert_eq!(imports("kv-store:backend/files@"), through_us, "{name}");
    }
}

#[test]
fn what_local_fs_asks_for_changes_only_by_decision() {
    let bytes = component("local-fs");
    let decoded = wit_component::decode(&bytes).unwrap();
    let mut printer = wit_component::WitPrinter::default();
    printer.print(decoded.resolve(), decoded.package(), &[]).unwrap();
    let printed = printer.output.to_string();
    let snapshot = root().join("tests/blackbox/snapshots/local-fs.wit");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&snapshot, &printed).unwrap();
    }
    let expected = std::fs::read_to_string(&snapshot).unwrap_or_default();
    assert!(
        printed == expected,
        "the world of local-fs.wasm is not {}; if that was decided, run this test with UPDATE_SNAPSHOTS=1. It is:\n{printed}",
        snapshot.display()
    );
}

#[test]
fn the_stamp_says_what_a_component_was_made_of() {
    let probe = std::fs::read(test_components().join("probe.wasm")).unwrap();
    let mut stamps = Vec::new();
    for payload in Parser::new(0).parse_all(&probe) {
        if let Payload::CustomSection(section) = payload.unwrap()
            && section.name() == "kv-store-backend"
        {
            stamps.push(String::from_utf8(section.data().to_vec()).unwrap());
        }
    }
    let [stamp] = stamps.as_slice() else { panic!("{} stamps", stamps.len()) };
    for line in
        ["component: probe 0.1.0", "sdk: kv-store-sdk 0.1.0", "contract: kv-store:backend@1.0.0", "wish: nothing"]
    {
        assert!(stamp.lines().any(|there| there == line), "no {line:?} in {stamp:?}");
    }
}

#[test]
fn the_readme_shows_the_program_that_is_tested() {
    let program = std::fs::read_to_string(root().join("tests/consumer/twenty_lines.c")).unwrap();
    let shown = &program[program.find("#include").unwrap()..];
    assert!(
        std::fs::read_to_string(root().join("README.md")).unwrap().contains(shown),
        "README.md shows another program"
    );
}
