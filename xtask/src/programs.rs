//! The test programs of the workspace.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context, Result};

use crate::place::Place;
use crate::step;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_xtask_are_not_among_them() {
        let names = names(&Place::find().unwrap()).unwrap();
        assert!(names.contains("hostile"));
        assert!(!names.contains("headers"), "cargo refuses a name that only an excluded package has");
    }
}
