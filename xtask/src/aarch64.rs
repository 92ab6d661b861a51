//! `cargo xtask test --aarch64`: what runs for Linux on aarch64 on a machine of another kind, under qemu's user mode.
//!
//! qemu carries out each instruction of the program by itself and hands its system calls to this machine's kernel. So the code that is made
//! for aarch64 runs, NEON and its memory order included, but neither its kernel nor its speed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::place::Place;
use crate::{packages, step};

pub const TARGET: &str = "aarch64-unknown-linux-gnu";

/// What is run: all of the workspace that links no wasmtime and is more than a tool.
const PACKAGES: &[&str] =
    &["kvx", "kv-cache", "kv-blocks", "kv-http-wire", "kv-platform", "kv-size", "kv-store-abi", "kv-store-core"];

/// Tests that fail because of what runs them, with the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    ("no_path_leads_into_a_file_system_of_the_kernel", "qemu shows the folder of its libraries (-L) as /"),
    ("child::tests::how_it_ends_is_told", "qemu starts no process that shares memory (CLONE_VM)"),
    ("child::tests::it_has_three_descriptors", "qemu starts no process that shares memory (CLONE_VM)"),
    ("confine::tests::it_can_take_memory", "qemu has no seccomp"),
];

/// What is not tried.
const NOT_RUN: &[&str] = &[
    "libkv_store_wasm.so and what links it: wasmtime's own code generation for aarch64",
    "the wheel, the tarball and the Debian package for arm64",
    "the llama library and engines",
];

pub fn test(place: &Place) -> Result<()> {
    packages::install(packages::AARCH64)?;
    install_target()?;
    let mut tests = cargo(&place.root, &place.target.join("aarch64"));
    for package in PACKAGES {
        tests.args(["--package", package]);
    }
    tests.arg("--");
    for (test, _) in LEFT_OUT {
        tests.args(["--skip", test]);
    }
    step::run_shown(&format!("tests of {} for {TARGET}", PACKAGES.join(", ")), &mut tests)?;
    let mut guests = cargo(&place.root.join("guests"), &place.target.join("aarch64-guests"));
    step::run_shown(&format!("tests of the guests, as programs for {TARGET}"), &mut guests)?;

    eprintln!("== not run for {TARGET}");
    for (test, why) in LEFT_OUT {
        eprintln!("   {test}: {why}");
    }
    for what in NOT_RUN {
        eprintln!("   {what}");
    }
    Ok(())
}

/// `cargo test` for the target, of a workspace.
fn cargo(workspace: &Path, target: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(workspace).args([
        "test",
        "--release",
        "--locked",
        "--no-fail-fast",
        "--target",
        TARGET,
        "--target-dir",
    ]);
    cargo.arg(target).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc");
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", "qemu-aarch64 -L /usr/aarch64-linux-gnu");
    cargo.env("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc");
    cargo
}

fn install_target() -> Result<()> {
    if is_installed()? {
        return Ok(());
    }
    let add = format!("rustup target add {TARGET}");
    step::output(Command::new("rustup").args(["target", "add", TARGET]))
        .with_context(|| format!("try by hand: {add}"))
        .map(drop)
}

/// Whether the compiler has the target's standard library.
pub fn is_installed() -> Result<bool> {
    let folder = step::output(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]))?;
    Ok(Path::new(folder.trim()).exists())
}
