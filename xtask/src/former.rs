//! `cargo xtask test --former`: libraries of former versions beside this one, on one store (`tests/compat/README.md`).

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::place::{LIBRARY, Place};
use crate::{dist, packages, servers, step};

/// The last commit of each released version whose data others may still have.
const RELEASES: &[(&str, &str)] = &[("0.1.0", "ba76df6"), ("0.2.0", "26476c9")];

/// `dists`: what `cargo xtask dist` laid out in clones of former versions; none: the releases are built.
pub fn test(place: &Place, dists: &[PathBuf]) -> Result<()> {
    packages::install(packages::TESTS)?;
    let dists = match dists {
        [] => {
            RELEASES.iter().map(|(version, commit)| build(place, version, commit)).collect::<Result<Vec<PathBuf>>>()?
        }
        named => named.iter().map(std::path::absolute).collect::<Result<Vec<PathBuf>, _>>()?,
    };
    for dist in &dists {
        ensure!(
            library(dist).exists(),
            "{} is not there: name what `cargo xtask dist` laid out",
            library(dist).display()
        );
    }
    dist::run(place)?;
    let mut tests = dist::cargo(place, "test");
    tests.args(["--test", "compat", "--", "--nocapture", "former::"]);
    tests.env(servers::VARIABLE, servers::install(place)?).env("KV_STORE_TEST_FORMER", std::env::join_paths(&dists)?);
    step::run_shown("former libraries beside this one", &mut tests)
}

fn library(dist: &Path) -> PathBuf {
    dist.join("lib").join(LIBRARY)
}

/// A clone of a release in `target/former`, built once.
fn build(place: &Place, version: &str, commit: &str) -> Result<PathBuf> {
    let clone = place.target.join("former").join(version);
    let dist = clone.join("target/dist");
    if library(&dist).exists() {
        return Ok(dist);
    }
    if !clone.join("Cargo.toml").exists() {
        let mut git = Command::new("git");
        git.args(["clone", "--quiet", "--shared", "--no-checkout"]).arg(&place.root).arg(&clone);
        step::output(&mut git)?;
        let mut git = Command::new("git");
        git.current_dir(&clone).args(["checkout", "--quiet", "--detach", commit]);
        step::output(&mut git).with_context(|| format!("{version} is commit {commit}: it takes the whole history"))?;
    }
    let mut build = Command::new("cargo");
    build.current_dir(&clone).args(["xtask", "dist"]).env("CARGO_TARGET_DIR", clone.join("target"));
    step::run(place, &format!("building {version} (it compiles wasmtime: 10 minutes and more)"), &mut build)?;
    Ok(dist)
}
