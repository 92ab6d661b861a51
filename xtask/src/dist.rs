//! `cargo xtask dist`: what an operator installs.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::place::{CACHE_LIBRARY, LIBRARY, Place};
use crate::{guests, step};

/// What goes to `bin`.
const PROGRAMS: &[&str] = &["kv-store"];

/// Lay out `target/dist/{lib,components,include,bin}`.
pub fn run(place: &Place) -> Result<()> {
    guests::build(place)?;
    build_libraries(place)?;
    let include = place.dist.join("include");
    std::fs::create_dir_all(&include)?;
    for header in std::fs::read_dir(place.root.join("include"))? {
        let header = header?.path();
        if header.extension().is_some_and(|extension| extension == "h") {
            copy(&header, &include)?;
        }
    }
    let bin = place.dist.join("bin");
    std::fs::create_dir_all(&bin)?;
    for program in PROGRAMS {
        copy(&place.target.join("release").join(program), &bin)?;
    }
    eprintln!("laid out {}", place.dist.display());
    Ok(())
}

/// Every build of the workspace is of the same packages and profile, so that wasmtime is compiled once.
pub fn cargo(place: &Place, command: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&place.root).args([command, "--release", "--locked", "--workspace", "--exclude", "xtask"]);
    cargo
}

fn build_libraries(place: &Place) -> Result<()> {
    let name = "building the libraries (the first build compiles wasmtime: some minutes)";
    step::run(place, name, &mut cargo(place, "build"))?;
    let lib = place.dist.join("lib");
    std::fs::create_dir_all(&lib)?;
    [LIBRARY, CACHE_LIBRARY].into_iter().try_for_each(|name| copy(&place.target.join("release").join(name), &lib))
}

/// Copy by way of a temporary, so that a process that has the former file open keeps it.
fn copy(file: &Path, folder: &Path) -> Result<()> {
    let name = file.file_name().context("a file has a name")?;
    let temporary = folder.join(".new");
    std::fs::copy(file, &temporary).with_context(|| format!("cannot copy {}", file.display()))?;
    std::fs::rename(&temporary, folder.join(name))?;
    Ok(())
}
