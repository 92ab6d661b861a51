//! `cargo xtask test --portable`: the same tests with the portable ways of `core/platform/`, which are those of macOS. So most of what runs there
//! has run here; what is macOS's own, its kernel above all, has not.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::place::Place;
use crate::{dist, guests, packages, servers, step};

/// Has Linux take the portable ways.
const FEATURE: &str = "kv-platform/portable";

/// What is made of the platform and links no wasmtime.
const UNITS: &[&str] = &["kv-platform", "kv-blocks", "kv-cache", "kv-store-core", "memkv-server"];

/// Test programs that run whole libraries: files, sockets, threads, the compile helper, what guests may not do, kills.
const PROGRAMS: &[&str] = &[
    "answers",
    "batch",
    "bounded",
    "buffering",
    "changes",
    "conformance",
    "consumer",
    "hostile",
    "limited",
    "loading",
    "memkv",
    "no_helper",
    "policy",
    "process",
    "redis",
    "sandbox",
    "schemes",
    "short",
    "ulimits",
    "wasi",
];

/// Tests of these programs that look for something that Linux alone has, with what that is. `durability` is left out whole: it counts calls of
/// `fdatasync` and `sync_file_range`, in whose place the portable way has `fsync`.
const LEFT_OUT: &[(&str, &str)] = &[
    ("a_late_compilation_is_given_up_goes_on", "a priority of single threads"),
    ("large file", "advice by which the pages of a file's mapping leave a process at once"),
];

/// The part that `cargo xtask test` has: what links no wasmtime.
pub fn units(place: &Place) -> Result<()> {
    let mut tests = Command::new("cargo");
    tests.current_dir(&place.root).args(["test", "--locked", "--no-fail-fast", "--lib", "--features", FEATURE]);
    for package in UNITS {
        tests.args(["--package", package]);
    }
    step::run_shown("unit tests with the portable ways of the platform", &mut tests)
}

pub fn test(place: &Place) -> Result<()> {
    packages::install(packages::TESTS)?;
    units(place)?;
    dist::run(place)?;
    guests::build_for_tests(place)?;
    let portable = Place {
        root: place.root.clone(),
        target: place.target.join("portable"),
        dist: place.dist.clone(),
        features: &[FEATURE],
        rustc_wrapper: None,
    };
    take_dependencies(place, &portable)?;
    let servers = &servers::install(place)?;
    let tested = dist::libraries(&portable).and_then(|()| programs(&portable, servers));
    // What is installed is that of Linux again, whatever came of the tests.
    dist::libraries(place)?;
    tested?;
    for (test, lack) in LEFT_OUT {
        eprintln!("== not run: {test}: it looks for {lack}");
    }
    Ok(())
}

fn programs(portable: &Place, servers: &Path) -> Result<()> {
    let mut tests = dist::cargo(portable, "test");
    tests.args(["--no-fail-fast", "--lib"]);
    for program in PROGRAMS {
        tests.args(["--test", program]);
    }
    tests.arg("--");
    for (test, _) in LEFT_OUT {
        tests.args(["--skip", test]);
    }
    tests.env(servers::VARIABLE, servers);
    step::run_shown("tests with the portable ways of the platform", &mut tests)
}

/// The same profile and features of what is not ours: it is copied and not compiled again. A folder of its own, because libraries that
/// differ in the feature alone have one name there.
fn take_dependencies(place: &Place, portable: &Place) -> Result<()> {
    let to = portable.target.join("release");
    if to.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(&portable.target)?;
    let from = place.target.join("release");
    let half = portable.target.join("release.new");
    let _ = std::fs::remove_dir_all(&half);
    step::output(Command::new("cp").arg("--archive").arg(&from).arg(&half)).context("copying what is compiled")?;
    clear_incremental(&half)?;
    std::fs::rename(half, to)?;
    Ok(())
}

fn clear_incremental(release: &Path) -> Result<()> {
    match std::fs::remove_dir_all(release.join("incremental")) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
