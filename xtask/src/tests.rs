//! `cargo xtask test`: everything that must hold.

use std::process::Command;

use anyhow::Result;

use crate::place::Place;
use crate::{dist, guests, step};

pub fn run(place: &Place) -> Result<()> {
    for workspace in [".", "guests", "tests/guests"] {
        let mut fmt = Command::new("cargo");
        fmt.current_dir(place.root.join(workspace)).args(["fmt", "--all", "--check"]);
        step::run_shown(&format!("rustfmt in {workspace}"), &mut fmt)?;
    }
    dist::run(place)?;
    guests::build_workspace(place, &place.root.join("tests/guests"), &place.root.join("target/test-components"))?;

    let mut clippy = dist::cargo(place, "clippy");
    clippy.args(["--all-targets", "--", "-D", "warnings"]);
    step::run_shown("clippy", &mut clippy)?;
    let mut tests = dist::cargo(place, "test");
    step::run_shown("tests", &mut tests)?;
    Ok(())
}
