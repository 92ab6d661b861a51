//! Rust: cargo for wasm32-unknown-unknown, and wit-component.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::{Project, Tools, componentize};
use crate::failure::{Failure, Outcome};
use crate::sources;

const TARGET: &str = "wasm32-unknown-unknown";

/// The part of `cargo metadata` that is used.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
}

fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

fn can_not_run(error: std::io::Error) -> Failure {
    Failure::unable(format!("cargo can not be run: {error}; install Rust with rustup"))
}

/// The name of the package in a folder, and where cargo builds it.
pub fn package(folder: &Path) -> Outcome<(String, PathBuf)> {
    let unable = |what: &dyn std::fmt::Display| Failure::unable(format!("{}: {what}", folder.display()));
    let manifest = folder.join("Cargo.toml").canonicalize().map_err(|_| unable(&"no Cargo.toml, so no project"))?;
    let mut metadata = cargo();
    metadata.args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"]).arg(&manifest);
    let output = metadata.output().map_err(can_not_run)?;
    if !output.status.success() {
        return Err(unable(&String::from_utf8_lossy(&output.stderr).trim()));
    }
    let metadata: Metadata = serde_json::from_slice(&output.stdout).map_err(|error| unable(&error))?;
    let package = metadata.packages.into_iter().find(|package| package.manifest_path == manifest);
    let name = package.ok_or_else(|| unable(&"its Cargo.toml has no package"))?.name;
    Ok((name, metadata.target_directory))
}

pub fn build(project: &Project, tools: &Tools) -> Outcome<Vec<u8>> {
    let (name, target) = package(&project.folder)?;
    let mut build = cargo();
    build.current_dir(&project.folder).args(["build", "--release", "--target", TARGET]).args(tools.options);
    // Standard output is for the result.
    build.stdout(std::io::stderr());
    let status = build.status().map_err(can_not_run)?;
    if !status.success() {
        let stale = match project.component().is_file() {
            true => "; the component that is there is of an earlier build",
            false => "",
        };
        let hint = sources::hint_of_target(TARGET);
        return Err(Failure::not(format!("cargo build failed, see above{hint}{stale}")));
    }
    let module = target.join(TARGET).join("release").join(format!("{}.wasm", name.replace('-', "_")));
    let bytes = std::fs::read(&module).map_err(|error| Failure::not(format!("{}: {error}", module.display())))?;
    componentize(&bytes)
}
