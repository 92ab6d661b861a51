//! `cargo xtask test --aarch64`: what runs for Linux on aarch64 on a machine of another kind, under qemu's user mode.
//!
//! qemu carries out each instruction of the program by itself and hands its system calls to this machine's kernel. So the code that is made
//! for aarch64 runs, NEON and its memory order included, but neither its kernel nor its speed.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::place::Place;
use crate::{packages, step};

mod emulated;

pub const TARGET: &str = "aarch64-unknown-linux-gnu";

const CC: &str = "aarch64-linux-gnu-gcc";
const QEMU: &str = "qemu-aarch64";

/// Whose unit tests are run: all of the workspace that links no wasmtime and is more than a tool.
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
    "the compile helper: qemu starts no program of its own processor, and has no seccomp; components are compiled in the process",
    "what takes a second process of the library: kills, restarts, forks",
    "the llama library in a llama-server, and Python engines",
    "kernel and speed of such a machine",
];

pub fn test(place: &Place) -> Result<()> {
    packages::install(packages::AARCH64)?;
    install_target()?;
    let mut tests = cargo("test", &place.root, &place.target.join("aarch64"));
    tests.arg("--no-fail-fast");
    for package in PACKAGES {
        tests.args(["--package", package]);
    }
    tests.arg("--");
    for (test, _) in LEFT_OUT {
        tests.args(["--skip", test]);
    }
    step::run_shown(&format!("tests of {} for {TARGET}", PACKAGES.join(", ")), &mut tests)?;
    let mut guests = cargo("test", &place.root.join("guests"), &place.target.join("aarch64-guests"));
    step::run_shown(&format!("tests of the guests, as programs for {TARGET}"), guests.arg("--no-fail-fast"))?;
    emulated::test(place)?;

    eprintln!("== not run for {TARGET}");
    for (test, why) in LEFT_OUT {
        eprintln!("   {test}: {why}");
    }
    for what in NOT_RUN {
        eprintln!("   {what}");
    }
    Ok(())
}

/// cargo for the target, of a workspace.
pub fn cargo(command: &str, workspace: &Path, target: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(workspace).args([command, "--release", "--locked", "--target", TARGET, "--target-dir"]);
    cargo.arg(target).env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", CC);
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", format!("{QEMU} -L /usr/aarch64-linux-gnu"));
    cargo.env("CC_aarch64_unknown_linux_gnu", CC);
    cargo
}

pub fn install_target() -> Result<()> {
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
