//! `cargo xtask simulate`: histories of engines over a simulated store. `docs/proof.md` is about it.

use std::process::Command;

use anyhow::Result;

use crate::place::Place;
use crate::step;

/// Where it is built. The program builds its copy with planted bugs below it.
const FOLDER: &str = "simulate";

fn program(place: &Place) -> Command {
    let target = place.target.join(FOLDER);
    let mut program = Command::new("cargo");
    program.current_dir(place.root.join("tests/simulate")).args(["run", "--release", "--quiet", "--locked"]);
    program.arg("--target-dir").arg(&target).arg("--").env("KV_SIMULATE_TARGET", &target);
    program
}

pub fn run(place: &Place, arguments: &[String]) -> Result<()> {
    step::run_shown("histories of engines over a simulated store", program(place).args(arguments))
}

/// Histories of `cargo xtask test`: as many on each machine, so that what it finds does not depend on how fast that is.
const HISTORIES: u64 = 20_000;

/// And of those about what is rare.
const RARE: u64 = 4_000;

/// The part that `cargo xtask test` has: lints, tests, and these histories.
pub fn test(place: &Place) -> Result<()> {
    step::lint_and_test("the simulation", |command| {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(place.root.join("tests/simulate")).args([command, "--release", "--locked", "--target-dir"]);
        cargo.arg(place.target.join(FOLDER));
        cargo
    })?;
    run(place, &["--histories".to_owned(), HISTORIES.to_string()])?;
    run(place, &["--rare".to_owned(), "--histories".to_owned(), RARE.to_string()])
}
