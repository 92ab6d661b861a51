//! The compiler for guests. rustup's where it has the target or can fetch it; Debian's elsewhere, which builds the
//! standard library from its sources. What this process inherited about compilers must not leak into either, but for the
//! name of rustup's toolchain: a guest is also built outside of the clone, where no rust-toolchain.toml chooses it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use crate::{packages, step};

/// What guests are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// No system at all: what ships.
    Unknown,
    /// A standard library that asks WASI 0.2.
    Wasip2,
}

impl Target {
    pub fn name(self) -> &'static str {
        match self {
            Target::Unknown => "wasm32-unknown-unknown",
            Target::Wasip2 => "wasm32-wasip2",
        }
    }

    pub fn named(name: &str) -> Option<Self> {
        [Target::Unknown, Target::Wasip2].into_iter().find(|target| target.name() == name)
    }
}

/// A way to compile for a [`Target`].
pub struct Toolchain {
    target: Target,
    compiler: Compiler,
}

enum Compiler {
    Rustup,
    /// Debian's `cargo-web` and `rustc-web`, with `-Zbuild-std`.
    Debian {
        cargo: PathBuf,
        rustc: PathBuf,
        linkers: Vec<PathBuf>,
        /// Where the libraries are that the standard library links with.
        libraries: Option<PathBuf>,
    },
}

/// Choose a toolchain, installing one if that is what it takes.
pub fn choose(target: Target) -> Result<Toolchain> {
    let name = target.name();
    let rustup = Toolchain { target, compiler: Compiler::Rustup };
    if rustup_has(name) {
        return Ok(rustup);
    }
    eprintln!("   asking rustup for {name}");
    let fetched = clean("rustup").args(["target", "add", name]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if fetched.is_ok_and(|status| status.success()) && rustup_has(name) {
        return Ok(rustup);
    }
    eprintln!("   rustup cannot fetch it: using Debian's compiler");
    let advice = format!("guests need `rustup target add {name}` or Debian's {}", packages::GUESTS.join(", "));
    packages::install(packages::GUESTS).context(advice.clone())?;
    let cargo = package_file("cargo-web", "/bin/cargo").context(advice.clone())?;
    let rustc = package_file("rustc-web", "/bin/rustc").context(advice)?;
    let libraries = match target {
        Target::Unknown => None,
        Target::Wasip2 => {
            packages::install(packages::WASI)?;
            package_file("wasi-libc", "/libc.a")?.parent().map(Path::to_owned)
        }
    };
    let compiler = Compiler::Debian { cargo, rustc, linkers: rustup_linkers(), libraries };
    Ok(Toolchain { target, compiler })
}

impl Toolchain {
    /// A `cargo build` for guests, in nobody's way.
    pub fn cargo_build(&self) -> Command {
        let mut command = match &self.compiler {
            Compiler::Rustup => clean("cargo"),
            Compiler::Debian { cargo, .. } => clean(cargo),
        };
        self.prepare(&mut command);
        command.args(["build", "--release", "--locked", "--target", self.target.name()]).args(self.cargo_options());
        command
    }

    /// A program that runs cargo for guests by itself.
    pub fn user(&self, program: &Path) -> Command {
        let mut command = clean(program);
        self.prepare(&mut command);
        if let Compiler::Debian { cargo, .. } = &self.compiler {
            command.env("CARGO", cargo);
        }
        command
    }

    fn prepare(&self, command: &mut Command) {
        let Compiler::Debian { rustc, linkers, libraries, .. } = &self.compiler else { return };
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = linkers.iter().cloned().chain(std::env::split_paths(&path));
        if let Ok(path) = std::env::join_paths(path) {
            command.env("PATH", path);
        }
        // Debian's compiler is a stable one; building std is still behind this switch.
        command.env("RUSTC", rustc).env("RUSTC_BOOTSTRAP", "1");
        if let Some(libraries) = libraries {
            command.env("RUSTFLAGS", format!("-L native={}", libraries.display()));
        }
    }

    /// What cargo must be told besides.
    pub fn cargo_options(&self) -> &'static [&'static str] {
        match self.compiler {
            Compiler::Rustup => &[],
            Compiler::Debian { .. } => &["-Zbuild-std=std,panic_abort"],
        }
    }

    /// What was chosen, for people.
    pub fn describe(&self) -> String {
        match &self.compiler {
            Compiler::Rustup => "rustup's toolchain".into(),
            Compiler::Debian { rustc, .. } => format!("Debian's rustc-web at {}", rustc.display()),
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
    name == "CARGO" || BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

fn rustup_has(target: &str) -> bool {
    let listed = step::output(clean("rustup").args(["target", "list", "--installed"]));
    listed.is_ok_and(|list| list.lines().any(|line| line.trim() == target))
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

fn package_file(package: &str, end: &str) -> Result<PathBuf> {
    let list = step::output(Command::new("dpkg").args(["-L", package]))?;
    let found = list.lines().find(|line| line.ends_with(end)).map(PathBuf::from);
    found.with_context(|| format!("the package {package} has no {end}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_compilers_and_flags_does_not_leak() {
        let leaking = ["RUSTC", "RUSTC_WRAPPER", "RUSTFLAGS", "CARGO", "CARGO_TARGET_DIR", "CARGO_ENCODED_RUSTFLAGS"];
        for name in leaking {
            assert!(leaks(name), "{name}");
        }
        let kept = [
            "PATH",
            "HOME",
            "CARGO_HOME",
            "RUSTUP_HOME",
            "RUSTUP_TOOLCHAIN",
            "CARGO_HTTP_PROXY",
            "CARGO_NET_OFFLINE",
            "RUST_BACKTRACE",
        ];
        for name in kept {
            assert!(!leaks(name), "{name}");
        }
    }
}
