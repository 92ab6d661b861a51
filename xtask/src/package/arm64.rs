//! `cargo xtask package --target aarch64-unknown-linux-gnu`: the packages and the wheel for Linux on aarch64, linked by Debian's cross compiler.
//! `cargo xtask test --aarch64` runs them under qemu.
//!
//! They are linked as usual, for the glibc of that compiler: [`super::older_glibc`] knows the start files of x86-64 alone.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

pub use crate::aarch64::TARGET;

use super::{Release, assemble_for, foreign, glibc, linked, write_sums};
use crate::place::Place;
use crate::{aarch64, dist, packages, step};

const STRIP: &str = "aarch64-linux-gnu-strip";
/// What is built.
const PACKAGES: &[&str] = &[
    "kv-store-library",
    "kv-cache",
    "kv-store-llama",
    "kv-store",
    "kv-store-compiler",
    "memkv-server",
    "kv-store-python",
];

pub fn run(place: &Place, wheel: bool) -> Result<()> {
    let mut made = packed(place)?;
    let folder = release(place)?.folder;
    if wheel {
        made.push(pack_wheel(place)?);
    }
    write_sums(&made, &folder)
}

/// What an installation for aarch64 has, beside the components and headers, which are those of every processor.
pub fn installed(place: &Place) -> PathBuf {
    place.target.join("aarch64/dist")
}

/// What is packed for it.
pub fn release(place: &Place) -> Result<Release> {
    Ok(Release {
        machine: "aarch64",
        glibc: glibc::promised(&installed(place), false)?,
        folder: place.root.join("target/package-aarch64"),
        ..Release::find(place)?
    })
}

/// Build, and make every package but the wheel.
pub fn packed(place: &Place) -> Result<Vec<PathBuf>> {
    // Components, headers and manual pages are those of every processor.
    dist::run(place)?;
    packages::install(packages::AARCH64)?;
    aarch64::install_target()?;
    let mut build = aarch64::cargo("build", &place.root, &place.target.join("aarch64"));
    for package in PACKAGES {
        build.args(["--package", package]);
    }
    let name = format!("building for {TARGET} (the first build compiles wasmtime: some minutes)");
    step::run(place, &name, &mut build)?;
    dist::install_all(&built(place), &installed(place), STRIP)?;
    assemble_for(place, &installed(place), &release(place)?, &linked::find_for(place, TARGET)?)
}

/// The wheel of what [`packed`] has built.
pub fn pack_wheel(place: &Place) -> Result<PathBuf> {
    let installed = installed(place);
    let module = place.target.join("aarch64").join("_lib.abi3.so");
    step::output(
        Command::new(STRIP).arg("--strip-all").arg("-o").arg(&module).arg(built(place).join("libkv_store_python.so")),
    )?;
    let parts = [
        ("_lib.abi3.so", module),
        ("kv-store-compile", installed.join("libexec/kv-store-compile")),
        ("kv-store", installed.join("bin/kv-store")),
    ];
    let needs = glibc::of_all(&parts.each_ref().map(|(_, file)| file.clone()), false)?;
    let platform = format!("manylinux_{}_{}_aarch64", needs.0, needs.1);
    foreign::wheel(place, &release(place)?, &parts, &platform)
}

fn built(place: &Place) -> PathBuf {
    place.target.join("aarch64").join(TARGET).join("release")
}
