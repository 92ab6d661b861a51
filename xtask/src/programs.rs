//! The test programs of the workspace. Those that wait more than they work run beside the others, so that a whole run is not as long as all
//! their waits together.

use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::place::Place;
use crate::{dist, step};

/// They wait more than they work: for deadlines, for servers that are frozen, for locks of their own.
const WAITING: &[&str] = &["hostile", "limited", "short"];

/// The names of the files below `*/tests/` that are programs, but for those of this one, which is built apart.
pub fn names(place: &Place) -> Result<BTreeSet<String>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&place.root).args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&step::output(&mut cargo)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let packages = packages.iter().filter(|package| package["name"] != "xtask");
    let targets = packages.filter_map(|package| package["targets"].as_array()).flatten();
    let tests =
        targets.filter(|target| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "test")));
    Ok(tests.filter_map(|target| Some(target["name"].as_str()?.to_owned())).collect())
}

/// Run all of them, and the examples in the documentation, to the end, so that one run tells all that fails. `prepare` is what each run of
/// cargo is given.
pub fn run(place: &Place, prepare: impl Fn(&mut Command)) -> Result<()> {
    let cargo = |arguments: &[&str]| {
        let mut cargo = dist::cargo(place, "test");
        cargo.arg("--no-fail-fast").args(arguments);
        prepare(&mut cargo);
        cargo
    };
    step::run_shown("building the tests", &mut cargo(&["--no-run"]))?;
    let names = names(place)?;
    let chosen = |waiting: bool| -> Vec<&str> {
        let chosen = names.iter().filter(|name| WAITING.contains(&name.as_str()) == waiting);
        chosen.flat_map(|name| ["--test", name]).collect()
    };

    let log = place.work().join("logs/tests-that-wait.log");
    let written = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    eprintln!("== beside the tests: {}, whose output follows theirs", WAITING.join(", "));
    let mut beside = cargo(&chosen(true));
    beside.stdin(Stdio::null()).stdout(written.try_clone()?).stderr(written);
    let mut beside = beside.spawn().context("cannot start cargo")?;
    let rest = step::run_shown("tests", &mut cargo(&[&["--lib", "--bins"], &chosen(false)[..]].concat()));
    let waited = step::run_waited("tests that wait", &mut beside);
    std::io::copy(&mut File::open(&log)?, &mut std::io::stdout())?;
    let examples = step::run_shown("examples of the documentation", &mut cargo(&["--doc"]));

    let failed: Vec<String> =
        [rest, waited, examples].into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_wait_are_there() {
        let names = names(&Place::find().unwrap()).unwrap();
        for name in WAITING {
            assert!(names.contains(*name), "{name} is no test program");
        }
        assert!(!names.contains("headers"), "cargo knows no such program without xtask, and runs none");
    }
}
