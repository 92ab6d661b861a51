//! `cargo xtask dist`: what an operator installs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use kv_store_tests::built;

use crate::place::{CACHE_LIBRARY, LIBRARY, LLAMA_LIBRARY, Place, SONAME};
use crate::sources::Sources;
use crate::{guests, step};

/// Lay out `target/dist/{lib,libexec,components,include,bin}`.
pub fn run(place: &Place) -> Result<()> {
    guests::build(place)?;
    libraries(place)
}

/// The same, where the components lie there already.
pub fn libraries(place: &Place) -> Result<()> {
    let mut sources = Sources::begin(place, &place.dist)?;
    build_workspace(place, &mut sources)?;
    let include = place.dist.join("include");
    std::fs::create_dir_all(&include)?;
    for header in std::fs::read_dir(place.root.join("include"))? {
        let header = header?.path();
        if header.extension().is_some_and(|extension| extension == "h") {
            copy(&header, &include)?;
            sources.add(&header)?;
        }
    }
    sources.write(&place.root)?;
    eprintln!("laid out {}", place.dist.display());
    Ok(())
}

/// The same for what runs long: an edit of a source meanwhile does not end it.
pub fn run_for_long(place: &Place) -> Result<()> {
    run(place)?;
    // SAFETY: nothing else runs in this process yet that reads the environment.
    unsafe { std::env::set_var(built::ANY, "1") };
    Ok(())
}

/// Every build of the workspace is of the same packages and profile, so that wasmtime is compiled once.
pub fn cargo(place: &Place, command: &str) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&place.root).args([command, "--release", "--locked", "--workspace", "--exclude", "xtask"]);
    cargo.env("CARGO_TARGET_DIR", &place.target);
    // The scripts of crates in C ask to be run again where it changes, and what they are a part of is compiled again: wasmtime, too.
    cargo.env_remove("SOURCE_DATE_EPOCH");
    if let Some(wrapper) = &place.rustc_wrapper {
        cargo.env("RUSTC_WORKSPACE_WRAPPER", wrapper);
    }
    for feature in place.features {
        cargo.args(["--features", feature]);
    }
    cargo
}

fn build_workspace(place: &Place, sources: &mut Sources) -> Result<()> {
    let name = "building the libraries (the first build compiles wasmtime: some minutes)";
    step::run(place, name, &mut cargo(place, "build"))?;
    for made in install_all(&place.target.join("release"), &place.dist, "strip")? {
        sources.add_built(&made)?;
    }
    // cargo writes one list for it and the crate of that name.
    sources.add(&place.root.join("ffi/library"))?;
    sources.add_built(&place.target.join("release/libkv_store_faults.so"))?;
    lay_out_faults(place)
}

/// Install libraries and programs from where cargo has made them. Answers those files.
pub fn install_all(release: &Path, dist: &Path, strip: &str) -> Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for (file, folder, installed) in [
        (LIBRARY, "lib", SONAME),
        (CACHE_LIBRARY, "lib", CACHE_LIBRARY),
        (LLAMA_LIBRARY, "lib", LLAMA_LIBRARY),
        ("kv-store-compile", "libexec", "kv-store-compile"),
        ("kv-store", "bin", "kv-store"),
        ("memkv-server", "bin", "memkv-server"),
    ] {
        let folder = dist.join(folder);
        std::fs::create_dir_all(&folder)?;
        let made = release.join(file);
        install(&made, &folder.join(installed), strip)?;
        all.push(made);
    }
    link(SONAME, &dist.join("lib").join(LIBRARY))?;
    Ok(all)
}

/// The library that injects faults, for tests: beside what is installed, with the same components and programs.
fn lay_out_faults(place: &Place) -> Result<()> {
    let faults = place.root.join("target/faults");
    std::fs::create_dir_all(faults.join("lib"))?;
    copy(&place.target.join("release/libkv_store_faults.so"), &faults.join("lib"))?;
    for folder in ["components", "libexec"] {
        let link = faults.join(folder);
        if link.symlink_metadata().is_err() {
            std::os::unix::fs::symlink(place.dist.join(folder), link)?;
        }
    }
    Ok(())
}

/// Copy without the names of functions that are not exported, a fifth of the bytes, which nothing here reads. Not by the profile's `strip`: with
/// another profile wasmtime is compiled anew, and what lies in the target folder keeps the names for profilers and debuggers.
fn install(file: &Path, to: &Path, strip: &str) -> Result<()> {
    let temporary = to.with_file_name(".new");
    let mut strip = Command::new(strip);
    step::output(strip.arg("--strip-all").arg("-o").arg(&temporary).arg(file))
        .with_context(|| format!("cannot strip {}: binutils are missing?", file.display()))?;
    std::fs::rename(&temporary, to)?;
    Ok(())
}

/// Copy under the same name.
fn copy(file: &Path, folder: &Path) -> Result<()> {
    copy_as(file, &folder.join(file.file_name().context("a file has a name")?))
}

/// Copy by way of a temporary, so that a process that has the former file open keeps it.
fn copy_as(file: &Path, to: &Path) -> Result<()> {
    let temporary = to.with_file_name(".new");
    std::fs::copy(file, &temporary).with_context(|| format!("cannot copy {}", file.display()))?;
    std::fs::rename(&temporary, to)?;
    Ok(())
}

/// A link, in place of what was there.
fn link(target: &str, at: &Path) -> Result<()> {
    let temporary = at.with_file_name(".new-link");
    // What a run that was killed has left.
    let _ = std::fs::remove_file(&temporary);
    std::os::unix::fs::symlink(target, &temporary).with_context(|| format!("cannot link {}", at.display()))?;
    std::fs::rename(&temporary, at)?;
    Ok(())
}
