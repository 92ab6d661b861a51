//! `cargo xtask torture`: build what is installed, and hand it to `tests/torture`.

use std::process::Command;

use anyhow::Result;

use crate::place::Place;
use crate::{dist, packages, servers, step};

pub fn run(place: &Place, arguments: &[String]) -> Result<()> {
    packages::install(packages::TESTS)?;
    dist::run_for_long(place)?;
    let mut torture = Command::new(place.target.join("release/kv-store-torture"));
    if !arguments.iter().any(|argument| argument == "--list") {
        torture.env(servers::VARIABLE, servers::install(place)?);
    }
    step::run_shown("torture", torture.args(arguments))
}
