//! `cargo xtask torture`: build what is installed, and hand it to `tests/torture`.

use std::process::Command;

use anyhow::Result;

use crate::place::Place;
use crate::{dist, packages, step};

pub fn run(place: &Place, arguments: &[String]) -> Result<()> {
    packages::install(packages::TESTS)?;
    dist::run(place)?;
    let mut torture = Command::new(place.target.join("release/kv-store-torture"));
    step::run_shown("torture", torture.args(arguments))
}
