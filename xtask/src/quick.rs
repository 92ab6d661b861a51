//! `cargo xtask test --quick`: what is worth running after each change, in about three minutes with dependencies built. It needs no root (once
//! `cargo xtask setup` was run), installs nothing and starts no server but ours.
//!
//! A test program runs unless it is named below with the reason, so a new one is in from the start. CI runs everything.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::place::Place;
use crate::{dist, guests, step};

/// Test programs of the workspace that are left out.
const LEFT_OUT: &[(&str, &[&str])] = &[
    (
        "servers that `cargo xtask test` installs: Redis, Valkey, SeaweedFS, Mooncake",
        &[
            "batch",
            "blocks",
            "closing",
            "cluster",
            "compat",
            "conformance",
            "cli",
            "distributed",
            "first_hour",
            "mooncake",
            "nodes",
            "redis",
            "s3",
            "shares",
            "tls",
            "valkey",
        ],
    ),
    ("strace or valgrind", &["consumer", "costs", "durability"]),
    (
        "minutes",
        &["answers", "book", "check", "children", "functions", "growth", "hostile", "limited", "sequences", "short"],
    ),
];

/// What is no test program of the workspace, and is left out too.
const NOT_RUN: &[&str] = &[
    "clippy, which compiles each crate once more; the API docs, their examples, and the book",
    "the block cache under loom, http-wire beside hyper, kvx for other processors",
    "licences and advisories",
    "new projects in each language, the packages, the wheel, the benchmarks, llama.cpp",
];

pub fn run(place: &Place) -> Result<()> {
    for workspace in [".", "guests", "tests/guests"] {
        rustfmt(place, workspace)?;
    }
    dist::run(place)?;
    guests::build_for_tests(place)?;
    let mut quick = dist::cargo(place, "test");
    quick.args(["--lib", "--bins"]);
    for name in wanted(place)? {
        quick.args(["--test", &name]);
    }
    step::run_shown("tests", &mut quick)?;
    let mut guests = Command::new("cargo");
    guests.current_dir(place.root.join("guests")).args(["test", "--locked", "--target-dir"]);
    step::run_shown("test of the guests", guests.arg(place.target.join("guests-native")))?;
    let mut xtask = Command::new("cargo");
    xtask.current_dir(&place.root).args(["test", "--locked", "--package", "xtask"]);
    step::run_shown("test of xtask", &mut xtask)?;

    eprintln!("== left out; `cargo xtask test` runs all of it");
    for (why, names) in LEFT_OUT {
        eprintln!("   tests that take {why}: {}", names.join(", "));
    }
    for what in NOT_RUN {
        eprintln!("   {what}");
    }
    Ok(())
}

pub fn rustfmt(place: &Place, workspace: &str) -> Result<()> {
    let mut fmt = Command::new("cargo");
    fmt.current_dir(place.root.join(workspace)).args(["fmt", "--all", "--check"]);
    step::run_shown(&format!("rustfmt in {workspace}"), &mut fmt)
}

/// The names of the test programs that are not left out.
fn wanted(place: &Place) -> Result<BTreeSet<String>> {
    let mut names = test_programs(place)?;
    for name in LEFT_OUT.iter().flat_map(|(_, names)| *names) {
        ensure!(names.remove(*name), "xtask/src/quick.rs leaves out {name}, which is no test program");
    }
    Ok(names)
}

/// The names of the files below `*/tests/` that are programs, but for those of this one, which is built apart.
pub fn test_programs(place: &Place) -> Result<BTreeSet<String>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_there() {
        let names = wanted(&Place::find().unwrap()).unwrap();
        assert!(names.contains("ulimits") && !names.contains("redis"));
    }

    #[test]
    fn those_of_xtask_are_not_among_them() {
        let names = test_programs(&Place::find().unwrap()).unwrap();
        assert!(names.contains("hostile"));
        assert!(!names.contains("headers"), "cargo refuses a name that only an excluded package has");
    }
}
