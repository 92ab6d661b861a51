//! Components that were built when 1.0 of the contract was settled, as bytes: what they pass now, they pass for ever. And one that was
//! built for a draft, which is refused with a line that says what to do. `tests/compat/README.md` says where they come from.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use kv_store_tests::consumer::{Finished, finish_within};
use kv_store_tests::{kv_store, root};

/// Those that are there, unpacked into a folder, under the name that is their scheme's.
fn components(folder: &Path, beginning: &str) -> Vec<PathBuf> {
    let mut unpacked = Vec::new();
    for entry in std::fs::read_dir(root().join("tests/compat")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        let Some(name) = name.strip_suffix(".wasm.zst").and_then(|name| name.strip_prefix(beginning)) else { continue };
        let mut decoder = ruzstd::decoding::StreamingDecoder::new(std::fs::File::open(&path).unwrap()).unwrap();
        // The template's backend serves the scheme of its name; that of the draft, and that with maintenance, are `memory`.
        let scheme = match name {
            "rust-maintenance" | "rust" if beginning == "draft-" || name == "rust-maintenance" => "memory".to_owned(),
            language => format!("{language}-acme"),
        };
        let own = folder.join(name);
        std::fs::create_dir(&own).unwrap();
        let component = own.join(format!("{scheme}.wasm"));
        std::io::copy(&mut decoder, &mut std::fs::File::create(&component).unwrap()).unwrap();
        unpacked.push(component);
    }
    unpacked.sort();
    unpacked
}

/// JavaScript's and Python's take 10 to 20 s of two cores to compile, where their code is not in the cache.
const BOUND: Duration = Duration::from_secs(1800);

fn check(component: &Path) -> Finished {
    let mut check = kv_store();
    check.arg("check").arg(component).args(["--stores", "names", "--compile-timeout", "1200"]);
    finish_within(BOUND, &mut check)
}

#[test]
fn components_built_for_1_0_pass_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    let components = components(folder.path(), "1.0.0-");
    for language in ["rust", "rust-maintenance", "c", "javascript", "python"] {
        assert!(
            components.iter().any(|component| component.parent().unwrap().ends_with(language)),
            "none in {language}"
        );
    }
    for component in components {
        let checked = check(&component);
        let told = format!("{}: {}{}", component.display(), checked.stdout, checked.stderr);
        assert_eq!(checked.status.code(), Some(0), "{told}");
        // Nothing is left out but what a store in memory makes no sense of.
        for line in checked.stdout.lines().filter(|line| line.trim_start().starts_with("skip")) {
            let reasons = [
                "keeps nothing after its last handle",
                "is not shared by processes",
                "does not export kv-store:backend/maintenance",
            ];
            assert!(reasons.iter().any(|reason| line.contains(reason)), "{line} in {told}");
        }
    }
}

#[test]
fn a_component_of_a_draft_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let components = components(folder.path(), "draft-");
    assert!(!components.is_empty());
    for component in components {
        let checked = check(&component);
        assert_eq!(checked.status.code(), Some(2), "{}{}", checked.stdout, checked.stderr);
        let lines: Vec<&str> = checked.stderr.lines().collect();
        let refused = lines.last().unwrap_or(&"");
        assert!(refused.contains("a draft of the contract") && refused.contains("rebuild the component"), "{lines:?}");
    }
}
