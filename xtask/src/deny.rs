//! cargo-deny: the licences, bans, sources and advisories of what we depend on, by `deny.toml`.
//!
//! It is part of each run of the tests and never left out, so it is built from crates.io once, without optimisation (about 100 s of one
//! core; optimised it takes many times that, and checks in 2 s either way), and kept. PyPI has a program of it too, which is too old for our `deny.toml`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::place::Place;
use crate::step;

const VERSION: &str = "0.20.2";

/// The workspaces that something of ours that ships is built from.
const WORKSPACES: &[&str] = &[".", "guests"];

/// What cargo-deny says where it cannot clone or fetch the database.
const UNREACHABLE: &str = "failed to fetch advisory database";

/// Licences, bans and sources, which need no network but the index of crates.io.
pub fn check(place: &Place) -> Result<()> {
    let program = program(place)?;
    for workspace in WORKSPACES {
        let mut deny = deny(place, &program, workspace);
        step::run_shown(&format!("licences and sources in {workspace}"), deny.args(["licenses", "bans", "sources"]))?;
    }
    Ok(())
}

/// `cargo xtask advisories`: known holes and withdrawn versions.
pub fn advisories(place: &Place) -> Result<()> {
    let program = program(place)?;
    for workspace in WORKSPACES {
        let output = deny(place, &program, workspace).arg("advisories").output()?;
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        eprint!("{said}");
        if said.contains(UNREACHABLE) {
            bail!(
                "nothing was checked: the advisory database at github.com/RustSec/advisory-db cannot be reached from here"
            );
        }
        if !output.status.success() {
            bail!(
                "an advisory applies to {workspace}: update the crate, or list the advisory with its reason in deny.toml"
            );
        }
    }
    eprintln!("ok no advisory applies to what we depend on");
    Ok(())
}

fn deny(place: &Place, program: &Path, workspace: &str) -> Command {
    let mut deny = Command::new(program);
    deny.arg("--manifest-path").arg(place.root.join(workspace).join("Cargo.toml"));
    deny.arg("--config").arg(place.root.join("deny.toml")).args(["--locked", "--log-level", "error", "check"]);
    deny
}

/// The program, built where it is not there yet.
fn program(place: &Place) -> Result<PathBuf> {
    let folder = place.work().join(format!("cargo-deny-{VERSION}"));
    let program = folder.join("bin/cargo-deny");
    if program.exists() {
        return Ok(program);
    }
    let built = place.work().join("cargo-deny-build");
    let mut install = Command::new("cargo");
    install.current_dir(&place.root).args(["install", "--locked", "--debug", "--force", "cargo-deny"]);
    install.args(["--version", &format!("={VERSION}"), "--root"]).arg(&folder).arg("--target-dir").arg(&built);
    // A tenth of the size, and not to be debugged.
    install.env("CARGO_PROFILE_DEV_DEBUG", "0");
    step::run(place, &format!("building cargo-deny {VERSION} (once)"), &mut install)
        .context("the licences of dependencies are never left unchecked: this needs crates.io once")?;
    std::fs::remove_dir_all(&built).with_context(|| format!("cannot remove {}", built.display()))?;
    Ok(program)
}
