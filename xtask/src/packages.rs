//! Debian packages that steps need. Installed where that can be done; named with the command to run where it cannot.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// A compiler for guests, where rustup cannot fetch the target.
pub const GUESTS: &[&str] = &["rustc-web", "cargo-web", "rust-web-src", "rust-web-llvm"];
/// What a guest for WASI links with, where the compiler is Debian's.
pub const WASI: &[&str] = &["wasi-libc"];
/// A compiler for guests in C, and what it links with.
pub const C_GUESTS: &[&str] = &["clang-19", "lld-19", "libclang-rt-19-dev-wasm32", "wasi-libc"];
/// What packs the components of tests/compat.
pub const ZSTD: &[&str] = &["zstd"];
/// What makes programs for aarch64, and what runs them.
pub const AARCH64: &[&str] = &["qemu-user", "gcc-aarch64-linux-gnu", "g++-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
pub const CLANG: &str = "clang-19";
/// What tests look through: system calls, memory, symbols.
pub const TESTS: &[&str] = &[
    "strace",
    "valgrind",
    "binutils",
    "gcc",
    "g++",
    "libxxhash-dev",
    // xtask/tests/headers.rs reads the headers as a compiler does.
    "libclang1-19",
    "libclang-common-19-dev",
    "redis-server",
    // Completions are opened in the shells that they are for.
    "fish",
    "zsh",
    // Mooncake links with the former, and runs in a network namespace, which the latter sets up.
    "libibverbs1",
    "iproute2",
];

/// Install what is missing.
pub fn install(packages: &[&str]) -> Result<()> {
    if !Path::new("/usr/bin/dpkg-query").exists() {
        eprintln!("not a Debian system: {} must be installed by hand if a step misses them", packages.join(", "));
        return Ok(());
    }
    let missing: Vec<&str> = packages.iter().copied().filter(|package| !is_installed(package)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let by_hand = format!("apt-get install {}", missing.join(" "));
    // apt-get itself would fail late and at length.
    let root = crate::step::output(Command::new("id").arg("-u"))?.trim() == "0";
    if !root {
        bail!("these packages are missing; as root, run: {by_hand}");
    }
    let progress = crate::step::Progress::start(&format!("installing {}", missing.join(", ")));
    apt(&["update"])
        .and_then(|_| {
            let arguments: Vec<&str> =
                ["install", "-y", "--no-install-recommends"].iter().chain(&missing).copied().collect();
            apt(&arguments)
        })
        .map_err(|error| error.context(format!("cannot install packages; try by hand: {by_hand}")))?;
    progress.done();
    Ok(())
}

/// Unpack a package's files below a folder without installing it, which would start its service.
pub fn unpack(package: &str, folder: &Path) -> Result<()> {
    let progress = crate::step::Progress::start(&format!("fetching {package}"));
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder)?;
    let fetch = || crate::step::output(Command::new("apt-get").args(["download", package]).current_dir(folder));
    // The lists may be older than what the registry has.
    fetch().or_else(|_| apt(&["update"]).and_then(|_| fetch()))?;
    let mut files = Command::new("sh");
    crate::step::output(files.args(["-c", "dpkg-deb -x ./*.deb . && rm ./*.deb"]).current_dir(folder))?;
    progress.done();
    Ok(())
}

fn apt(arguments: &[&str]) -> Result<String> {
    crate::step::output(Command::new("apt-get").args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
}

fn is_installed(package: &str) -> bool {
    let query =
        Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]).stderr(Stdio::null()).output();
    query.is_ok_and(|output| output.stdout == b"installed")
}
