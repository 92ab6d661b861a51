//! `cargo xtask test --aarch64`: what runs for Linux on aarch64 on a machine of another kind, under qemu's user mode.
//!
//! qemu carries out each instruction of the program by itself and hands its system calls to this machine's kernel. So the code that is made
//! for aarch64 runs, NEON and its memory order included, but neither its kernel nor its speed. The kernel starts programs of aarch64 by qemu in a
//! namespace of the tests' own ([`emulated::within`]); the machine stays as it is.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::place::Place;
use crate::{packages, step};

mod emulated;

pub const TARGET: &str = "aarch64-unknown-linux-gnu";

/// What the names of the compiler's programs begin with.
const CROSS: &str = "aarch64-linux-gnu-";
const CC: &str = "aarch64-linux-gnu-gcc";

/// Whose unit tests are run: all of the workspace that links no wasmtime and is more than a tool.
const PACKAGES: &[&str] =
    &["kvx", "kv-cache", "kv-blocks", "kv-http-wire", "kv-platform", "kv-size", "kv-store-abi", "kv-store-core"];

/// Tests that fail because of what runs them, with the reason.
const LEFT_OUT: &[(&str, &str)] = &[
    ("no_path_leads_into_a_file_system_of_the_kernel", "qemu shows the folder of its libraries (-L) as /"),
    ("child::tests::how_it_ends_is_told", "qemu starts no process that shares memory (CLONE_VM)"),
    ("child::tests::it_has_three_descriptors", "qemu starts no process that shares memory (CLONE_VM)"),
    ("confine::tests::it_can_take_memory", "qemu has no seccomp"),
    ("a_directory_that_is_made_is_synchronised_by_name", "qemu has no seccomp, by which it forbids fsync"),
    ("what_its_holder_lets_go_of_is_synchronised_name_and_all", "qemu has no seccomp, by which it forbids fsync"),
    (
        "a_process_that_was_stopped_while_it_wrote_does_not_undo_what_came_later",
        "what it forks beside other threads does not go on under qemu",
    ),
    ("a_mapped_page_that_cannot_be_read_is_an_error_and_no_signal", "qemu carries out no MADV_POPULATE_READ"),
];

/// What is not tried.
const NOT_RUN: &[&str] = &[
    "the compile helper, which qemu cannot start (CLONE_VM) nor confine (seccomp); components are compiled in the process",
    "the llama library in a llama-server, and Python engines",
    "the kernel and the speed of such a machine",
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
    step::run_shown(&format!("tests of {} for {TARGET}", PACKAGES.join(", ")), &mut emulated::within(&tests)?)?;
    let mut guests = cargo("test", &place.root.join("guests"), &place.target.join("aarch64-guests"));
    let what = format!("tests of the guests, as programs for {TARGET}");
    step::run_shown(&what, &mut emulated::within(guests.arg("--no-fail-fast"))?)?;
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
