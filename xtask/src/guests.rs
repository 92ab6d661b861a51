//! Guests: compile them, and make components of those that are core modules.

mod c;
mod wat;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use wit_component::ComponentEncoder;

use crate::place::Place;
use crate::sources::Sources;
use crate::step::{self, Progress};
use crate::toolchain::{self, Target};

/// Build the backends that ship into `target/dist/components`.
pub fn build(place: &Place) -> Result<Vec<PathBuf>> {
    let (workspace, output) = (place.root.join("guests"), place.components());
    let mut sources = Sources::begin(place, &output)?;
    let made = build_workspace(place, &workspace, &output, &mut sources)?;
    sources.write(&workspace)?;
    Ok(made)
}

/// Build those that only tests use into `target/test-components`.
pub fn build_for_tests(place: &Place) -> Result<Vec<PathBuf>> {
    let (workspace, output) = (place.root.join("tests/guests"), place.root.join("target/test-components"));
    let mut sources = Sources::begin(place, &output)?;
    let mut made = build_workspace(place, &workspace, &output, &mut sources)?;
    made.extend(wat::build(place, &workspace.join("hostile"), &output.join("hostile"))?);
    sources.add(&workspace.join("hostile"))?;
    sources.write(&workspace)?;
    Ok(made)
}

/// Build those with planted bugs. Answers the component of each, by its name without `planted-`.
pub fn build_planted(place: &Place) -> Result<BTreeMap<String, PathBuf>> {
    let (workspace, output) = (place.root.join("tests/planted"), place.target.join("planted"));
    let made = build_workspace(place, &workspace, &output, &mut Sources::begin(place, &output)?)?;
    let named = |path: PathBuf| {
        let name = path.file_stem()?.to_str()?.strip_prefix("planted-")?.to_owned();
        Some((name, path))
    };
    Ok(made.into_iter().filter_map(named).collect())
}

/// Build each guest of a workspace into `<output>/<name>.wasm`: its packages, each for the target that it asks for, and its
/// folders of C.
fn build_workspace(place: &Place, workspace: &Path, output: &Path, sources: &mut Sources) -> Result<Vec<PathBuf>> {
    let name = workspace.file_name().unwrap_or_default().display().to_string();
    let packages = packages(workspace)?;
    let mut modules = Vec::new();
    for target in [Target::Unknown, Target::Wasip2] {
        let here: Vec<&str> =
            packages.iter().filter(|(_, wanted)| *wanted == target).map(|(name, _)| name.as_str()).collect();
        if here.is_empty() {
            continue;
        }
        let toolchain = toolchain::choose(target)?;
        let folder = place.target.join("guests");
        let mut cargo = toolchain.cargo_build();
        cargo.current_dir(workspace).arg("--target-dir").arg(&folder);
        cargo.args(here.iter().flat_map(|package| ["--package", package]));
        let name = format!("building {name} for {} with {}", target.name(), toolchain.describe());
        step::run(place, &name, &mut cargo)?;
        let built = folder.join(target.name()).join("release");
        for name in here {
            let module = built.join(format!("{}.wasm", name.replace('-', "_")));
            sources.add_built(&module)?;
            modules.push((name.to_owned(), module));
        }
    }
    for folder in c::folders(workspace)? {
        modules.push(c::build(place, &folder)?);
        sources.add(&folder)?;
    }
    sources.add(&place.root.join("wit"))?;

    let progress = Progress::start("making components");
    std::fs::create_dir_all(output)?;
    let mut made = Vec::new();
    for (name, module) in modules {
        let component = output.join(format!("{name}.wasm"));
        componentize(&module, &component)?;
        made.push(component);
    }
    progress.done();
    Ok(made)
}

/// The packages of a workspace and the target that each is built for: `package.metadata.kv-store.target`, or else the one
/// without WASI.
fn packages(workspace: &Path) -> Result<Vec<(String, Target)>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(workspace).args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let metadata: serde_json::Value = serde_json::from_str(&step::output(&mut cargo)?)?;
    let packages = metadata["packages"].as_array().context("cargo metadata names no packages")?;
    let described = packages.iter().map(|package| {
        let name = package["name"].as_str().context("a package has a name")?;
        let target = match package["metadata"]["kv-store"]["target"].as_str() {
            Some(target) => Target::named(target).with_context(|| format!("{name} is for {target}"))?,
            None => Target::Unknown,
        };
        Ok((name.to_owned(), target))
    });
    described.collect()
}

/// A component of a core module. What is a component already, as wasm32-wasip2 makes, stays what it is.
fn componentize(module: &Path, component: &Path) -> Result<()> {
    let bytes = std::fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
    let encoded = match bytes.get(4..8) {
        Some([0x0d, 0, 1, 0]) => bytes,
        _ => ComponentEncoder::default()
            .validate(true)
            .module(&bytes)
            .and_then(|encoder| {
                use wasi_preview1_component_adapter_provider as preview1;
                // For libraries that know WASI 0.1 only, as Debian's libc for C. Left out where nothing asks for it.
                let adapter = preview1::WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER;
                encoder.adapter(preview1::WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, adapter)
            })
            .and_then(|encoder| encoder.encode())
            .map_err(|error| anyhow::anyhow!("{} makes no component: {error:#}", module.display()))?,
    };
    replace(component, &encoded)
}

/// Write a file by way of a temporary one.
fn replace(file: &Path, bytes: &[u8]) -> Result<()> {
    // Not touched where nothing changed, so that what is known by its time of change stays known.
    if std::fs::read(file).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let temporary = file.with_extension("wasm.tmp");
    std::fs::write(&temporary, bytes)?;
    std::fs::rename(&temporary, file)?;
    Ok(())
}
