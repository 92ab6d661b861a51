//! Guests: compile them to core modules and make components of those.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use wit_component::ComponentEncoder;

use crate::place::Place;
use crate::step::{self, Progress};
use crate::toolchain::{self, TARGET};

/// Build the backends that ship into `target/dist/components`.
pub fn build(place: &Place) -> Result<Vec<PathBuf>> {
    build_workspace(place, &place.root.join("guests"), &place.components())
}

/// Build those that only tests use into `target/test-components`.
pub fn build_for_tests(place: &Place) -> Result<Vec<PathBuf>> {
    build_workspace(place, &place.root.join("tests/guests"), &place.root.join("target/test-components"))
}

/// Build each package of a workspace of guests into `<output>/<package>.wasm`.
fn build_workspace(place: &Place, workspace: &Path, output: &Path) -> Result<Vec<PathBuf>> {
    let toolchain = toolchain::choose()?;
    let name = workspace.file_name().unwrap_or_default().display().to_string();
    let target = place.target.join("guests");
    let mut cargo = toolchain.cargo_build();
    cargo.current_dir(workspace).arg("--target-dir").arg(&target);
    step::run(place, &format!("building {name} with {}", toolchain.describe()), &mut cargo)?;

    let progress = Progress::start("making components");
    std::fs::create_dir_all(output)?;
    let mut made = Vec::new();
    for package in packages(workspace)? {
        let module = target.join(TARGET).join("release").join(format!("{}.wasm", package.replace('-', "_")));
        let component = output.join(format!("{package}.wasm"));
        componentize(&module, &component)?;
        made.push(component);
    }
    progress.done();
    Ok(made)
}

/// The workspace's packages: its folders that have a manifest.
fn packages(workspace: &Path) -> Result<Vec<String>> {
    let mut packages = Vec::new();
    for entry in std::fs::read_dir(workspace)? {
        let entry = entry?;
        if entry.path().join("Cargo.toml").is_file() {
            packages.push(entry.file_name().into_string().ok().context("a folder's name is not UTF-8")?);
        }
    }
    packages.sort();
    Ok(packages)
}

fn componentize(module: &Path, component: &Path) -> Result<()> {
    let bytes = std::fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
    let encoded = ComponentEncoder::default()
        .validate(true)
        .module(&bytes)
        .and_then(|encoder| encoder.encode())
        .map_err(|error| anyhow::anyhow!("{} makes no component: {error:#}", module.display()))?;
    // Not touched where nothing changed, so that what is known by its time of change stays known.
    if std::fs::read(component).is_ok_and(|there| there == encoded) {
        return Ok(());
    }
    let temporary = component.with_extension("wasm.tmp");
    std::fs::write(&temporary, encoded)?;
    std::fs::rename(&temporary, component)?;
    Ok(())
}
