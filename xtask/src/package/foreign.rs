//! The wheel for another system or processor than the one that packs it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::Release;
use super::stage::normalise;
use crate::place::Place;
use crate::python::{self, Environment};
use crate::step;

/// What makes a wheel of another's.
const TOOLS: &[&str] = &["wheel==0.48.*"];

/// The wheel, made of this system's: what is Python and what is a component is the same. `parts` are the others, each with the file that takes its place;
/// `platform` is the last part of the wheel's tag.
pub fn wheel(place: &Place, release: &Release, parts: &[(&str, PathBuf)], platform: &str) -> Result<PathBuf> {
    // SAFETY: xtask has no other thread now that reads the environment.
    unsafe { std::env::set_var("SOURCE_DATE_EPOCH", release.time.to_string()) };
    let of_here = python::pack(place)?;
    let tools = Environment::kept(place, "foreign", TOOLS)?;
    let folder = release.folder.join("wheel");
    let wheel = |arguments: &[&str], file: &Path| {
        let mut wheel = tools.python();
        wheel.args(["-m", "wheel"]).args(arguments).arg(file).current_dir(&release.folder);
        step::output(wheel.env("SOURCE_DATE_EPOCH", release.time.to_string()))
    };
    wheel(&["unpack", "--dest", "wheel"], &of_here)?;
    let unpacked = only(&folder)?;
    let package = unpacked.join("kv_store_wasm");
    for (name, made) in parts {
        let to = package.join(name);
        ensure!(to.exists(), "the wheel has no {name} in whose place {} could be", made.display());
        std::fs::copy(made, to).with_context(|| format!("cannot copy {}", made.display()))?;
    }
    normalise(&unpacked, release.time)?;
    let packed = release.folder.join("packed");
    std::fs::create_dir_all(&packed)?;
    wheel(&["pack", "--dest-dir", "packed"], &unpacked)?;
    wheel(&["tags", "--remove", "--platform-tag", platform], &only(&packed)?)?;
    let tagged = only(&packed)?;
    let made = release.folder.join(tagged.file_name().context("a wheel has a name")?);
    ensure!(made.to_string_lossy().ends_with(&format!("-{platform}.whl")), "the wheel is {}", made.display());
    std::fs::rename(tagged, &made)?;
    std::fs::remove_dir_all(folder)?;
    std::fs::remove_dir(packed)?;
    Ok(made)
}

/// The one thing in a folder.
fn only(folder: &Path) -> Result<PathBuf> {
    let mut found = std::fs::read_dir(folder)?;
    let first = found.next().context("nothing was made")??.path();
    ensure!(found.next().is_none(), "more than one thing is in {}", folder.display());
    Ok(first)
}
