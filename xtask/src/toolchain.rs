//! The compiler for guests. rustup's where it has the target or can fetch it; Debian's elsewhere, which builds the
//! standard library from its sources. What this process inherited about compilers must not leak into either.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{packages, step};

pub const TARGET: &str = "wasm32-unknown-unknown";

/// A way to compile for [`TARGET`].
pub enum Toolchain {
    Rustup,
    /// Debian's `cargo-web` and `rustc-web`, with `-Zbuild-std`.
    Debian {
        cargo: PathBuf,
        rustc: PathBuf,
        linkers: Vec<PathBuf>,
    },
}

/// Choose a toolchain, installing one if that is what it takes.
pub fn choose() -> Result<Toolchain> {
    if rustup_has_target() {
        return Ok(Toolchain::Rustup);
    }
    eprintln!("   asking rustup for {TARGET}");
    let fetched = clean("rustup").args(["target", "add", TARGET]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if fetched.is_ok_and(|status| status.success()) && rustup_has_target() {
        return Ok(Toolchain::Rustup);
    }
    eprintln!("   rustup cannot fetch it: using Debian's compiler");
    let advice = format!("guests need `rustup target add {TARGET}` or Debian's {}", packages::GUESTS.join(", "));
    packages::install(packages::GUESTS).context(advice.clone())?;
    let cargo = package_binary("cargo-web", "cargo").context(advice.clone())?;
    let rustc = package_binary("rustc-web", "rustc").context(advice)?;
    Ok(Toolchain::Debian { cargo, rustc, linkers: rustup_linkers() })
}

impl Toolchain {
    /// A `cargo build` for guests, in nobody's way.
    pub fn cargo_build(&self) -> Command {
        let mut command = match self {
            Toolchain::Rustup => clean("cargo"),
            Toolchain::Debian { cargo, .. } => clean(cargo),
        };
        self.prepare(&mut command);
        command.args(["build", "--release", "--locked", "--target", TARGET]).args(self.cargo_options());
        command
    }

    /// A program that runs cargo for guests by itself.
    pub fn user(&self, program: &Path) -> Command {
        let mut command = clean(program);
        self.prepare(&mut command);
        if let Toolchain::Debian { cargo, .. } = self {
            command.env("CARGO", cargo);
        }
        command
    }

    fn prepare(&self, command: &mut Command) {
        let Toolchain::Debian { rustc, linkers, .. } = self else { return };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = linkers.iter().cloned().chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(path) {
            command.env("PATH", path);
        }
        // Debian's compiler is a stable one; building std is still behind this switch.
        command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
    }

    /// What cargo must be told besides.
    pub fn cargo_options(&self) -> &'static [&'static str] {
        match self {
            Toolchain::Rustup => &[],
            Toolchain::Debian { .. } => &["-Zbuild-std=std,panic_abort"],
        }
    }

    /// What was chosen, for people.
    pub fn describe(&self) -> String {
        match self {
            Toolchain::Rustup => "rustup's toolchain".into(),
            Toolchain::Debian { rustc, .. } => format!("Debian's rustc-web at {}", rustc.display()),
        }
    }
}

/// A command that inherits nothing about Rust compilers and their flags.
fn clean(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(leaks)) {
        command.env_remove(name);
    }
    command
}

/// Whether a variable says something about compilers and their flags. What says where cargo and rustup keep their files,
/// and how they reach a registry, does not.
fn leaks(name: &str) -> bool {
    const BEGINNINGS: &[&str] = &[
        "RUSTC",
        "RUSTDOC",
        "RUSTFLAGS",
        "CARGO_BUILD_",
        "CARGO_TARGET_",
        "CARGO_PROFILE_",
        "CARGO_UNSTABLE_",
        "CARGO_ENCODED_",
        "CARGO_CFG_",
    ];
    matches!(name, "CARGO" | "RUSTUP_TOOLCHAIN") || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

fn rustup_has_target() -> bool {
    let listed = step::output(clean("rustup").args(["target", "list", "--installed"]));
    listed.is_ok_and(|list| list.lines().any(|line| line.trim() == TARGET))
}

/// rustup's own linkers, where it is installed; Debian's `rust-lld` serves otherwise.
fn rustup_linkers() -> Vec<PathBuf> {
    let Ok(sysroot) = step::output(clean("rustc").args(["--print", "sysroot"])) else { return Vec::new() };
    let Ok(version) = step::output(clean("rustc").arg("-vV")) else { return Vec::new() };
    let Some(host) = version.lines().find_map(|line| line.strip_prefix("host: ")) else { return Vec::new() };
    let bin = Path::new(sysroot.trim()).join("lib/rustlib").join(host).join("bin");
    let folders = vec![bin.clone(), bin.join("gcc-ld")];
    folders.into_iter().filter(|folder| folder.is_dir()).collect()
}

fn package_binary(package: &str, name: &str) -> Result<PathBuf> {
    let list = step::output(Command::new("dpkg").args(["-L", package]))?;
    let end = format!("/bin/{name}");
    let found = list.lines().find(|line| line.ends_with(&end)).map(PathBuf::from);
    found.with_context(|| format!("the package {package} has no {end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_compilers_and_flags_does_not_leak() {
        let leaking = [
            "RUSTC",
            "RUSTC_WRAPPER",
            "RUSTFLAGS",
            "RUSTUP_TOOLCHAIN",
            "CARGO",
            "CARGO_TARGET_DIR",
            "CARGO_ENCODED_RUSTFLAGS",
        ];
        for name in leaking {
            assert!(leaks(name), "{name}");
        }
        let kept =
            ["PATH", "HOME", "CARGO_HOME", "RUSTUP_HOME", "CARGO_HTTP_PROXY", "CARGO_NET_OFFLINE", "RUST_BACKTRACE"];
        for name in kept {
            assert!(!leaks(name), "{name}");
        }
    }
}
