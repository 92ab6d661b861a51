//! `cargo xtask package`: what is handed to people who do not build: a tarball, a Debian package, a container file, the wheel, and a list
//! of what is linked (SBOM). Two runs on one commit give the same bytes: every time is that of the commit, every list is sorted.

mod archive;
pub mod arm64;
mod crates;
pub mod elsewhere;
mod foreign;
pub mod glibc;
mod licences;
mod linked;
mod macho;
mod macos;
mod older_glibc;
mod sbom;
mod stage;
pub mod tests;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

pub use crates::Verify;

use crate::place::Place;
use crate::{dist, python, step};

#[derive(clap::Args)]
pub struct PackageOptions {
    /// Leave the wheel out, which needs Python's registry
    #[arg(long)]
    no_wheel: bool,
    /// Also make them twice and compare, and use them: in a root of their own, by find_package and by pkg-config
    #[arg(long)]
    test: bool,
    /// Also pack the crates for crates.io and compile each from its archive, which compiles wasmtime anew; nothing is published. --test does it, too
    #[arg(long)]
    crates: bool,
    /// Also fail where something is missing that only the owner can say: the address of the sources
    #[arg(long)]
    for_release: bool,
    /// Instead the tarball and the wheel for another system, with the Debian package where that is Linux. What is for macOS is linked by zig, looked at,
    /// and not run; what is for aarch64 is run by `cargo xtask test --aarch64`. Compiles wasmtime once for each
    #[arg(long, value_parser = targets(), conflicts_with_all = ["test", "crates"])]
    target: Option<String>,
}

fn targets() -> Vec<&'static str> {
    macos::targets().into_iter().chain([arm64::TARGET]).collect()
}

/// What is packed, and when.
pub struct Release {
    pub version: String,
    /// Seconds since 1970: `SOURCE_DATE_EPOCH`, or the time of the commit.
    pub time: u64,
    /// `x86_64`.
    pub machine: &'static str,
    /// The least that is promised to run what is packed, on Linux.
    pub glibc: glibc::Version,
    /// `linux` or `macos`.
    pub system: &'static str,
    /// `target/package`.
    pub folder: PathBuf,
}

impl Release {
    pub fn find(place: &Place) -> Result<Self> {
        let time = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(time) => time,
            Err(_) => step::output(Command::new("git").current_dir(&place.root).args(["log", "-1", "--format=%ct"]))?,
        };
        Ok(Release {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            time: time.trim().parse().context("SOURCE_DATE_EPOCH is a number of seconds")?,
            machine: std::env::consts::ARCH,
            glibc: glibc::promised(&place.dist, place.rustc_wrapper.is_some())?,
            system: "linux",
            folder: place.root.join("target/package"),
        })
    }

    /// The folder that the tarball holds.
    pub fn name(&self) -> String {
        format!("kv-store-wasm-{}-{}-{}", self.version, self.system, self.machine)
    }
}

/// Build, and make every package.
pub fn run(place: &Place, options: &PackageOptions) -> Result<()> {
    match options.target.as_deref() {
        Some(arm64::TARGET) => return arm64::run(place, !options.no_wheel),
        Some(target) => return macos::run(place, target, !options.no_wheel),
        None => {}
    }
    if options.for_release {
        crates::has_a_home(place)?;
    }
    let place = &Place { rustc_wrapper: older_glibc::wrapper(place)?, ..place.clone() };
    dist::run(place)?;
    if options.test {
        return tests::run(place, Verify::Yes);
    }
    let mut made = assemble(place)?;
    if !options.no_wheel {
        // hatchling takes the time from it.
        // SAFETY: xtask has no other thread now that reads the environment.
        unsafe { std::env::set_var("SOURCE_DATE_EPOCH", Release::find(place)?.time.to_string()) };
        let wheel = python::pack(place)?;
        // Beside the others, for who takes all of them.
        let beside = place.root.join("target/package").join(wheel.file_name().context("a wheel has a name")?);
        std::fs::copy(wheel, &beside)?;
        made.push(beside);
    }
    if options.crates {
        crates::pack(place, Verify::Yes)?;
    }
    write_sums(&made, &place.root.join("target/package"))
}

/// Say what was made, with its digests, and write `SHA256SUMS` beside it.
fn write_sums(made: &[PathBuf], folder: &Path) -> Result<()> {
    let mut sums = String::new();
    for path in made {
        let (digest, name) = (digest(path)?, path.file_name().context("a file has a name")?);
        sums += &format!("{digest}  {}\n", name.display());
        println!("{digest}  {}", path.display());
    }
    std::fs::write(folder.join("SHA256SUMS"), sums)?;
    Ok(())
}

/// Every package but the wheel, of what has been built and laid out.
pub fn assemble(place: &Place) -> Result<Vec<PathBuf>> {
    assemble_for(place, &place.dist, &Release::find(place)?, &linked::find(place)?)
}

/// The same of the libraries and programs in `dist`, which may be for another processor.
fn assemble_for(place: &Place, dist: &Path, release: &Release, linked: &linked::Linked) -> Result<Vec<PathBuf>> {
    let progress = step::Progress::start("assembling packages");
    progress.say(&format!("needs glibc {} or later", release.glibc));
    if release.folder.exists() {
        std::fs::remove_dir_all(&release.folder)?;
    }
    std::fs::create_dir_all(&release.folder)?;
    let sbom = release.folder.join(format!("{}.cdx.json", release.name()));
    sbom::write(release, linked, &sbom)?;
    let tree = stage::lay_out(place, dist, release, linked)?;
    let tarball = archive::tarball(release, &tree)?;
    let deb = archive::deb(place, release, &tree)?;
    std::fs::remove_dir_all(tree.parent().context("the tree has a folder")?)?;
    let container = release.folder.join("Containerfile");
    std::fs::copy(place.root.join("packaging/Containerfile"), &container)?;
    progress.done();
    Ok(vec![tarball, deb, sbom, container])
}

/// The tarball of what has been built and laid out, unpacked into an empty folder.
pub fn unpacked(place: &Place, folder: &Path) -> Result<PathBuf> {
    assemble(place)?;
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    unpack(&Release::find(place)?, folder)
}

fn unpack(release: &Release, folder: &Path) -> Result<PathBuf> {
    let tarball = release.folder.join(format!("{}.tar.gz", release.name()));
    step::output(Command::new("tar").arg("--extract").arg("--file").arg(tarball).arg("--directory").arg(folder))?;
    Ok(folder.join(release.name()))
}

/// The SHA-256 of a file, in hex.
pub fn digest(path: &Path) -> Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(hex::encode(Sha256::digest(bytes)))
}
