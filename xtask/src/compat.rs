//! `cargo xtask compat-data`: what a version stores, as bytes that each later version must read. `tests/compat/data/README.md` says what is
//! in them. A version writes them once, before it is released; nothing here replaces what is there.

use std::path::PathBuf;

use anyhow::{Result, bail};

use crate::place::Place;
use crate::{dist, packages, step};

#[derive(clap::Args)]
pub struct CompatDataOptions {
    /// What `cargo xtask dist` has laid out in a clone of another version; with --release, which names it
    #[arg(long, requires = "release")]
    dist: Option<PathBuf>,
    /// The version to write the data of
    #[arg(long, requires = "dist")]
    release: Option<String>,
}

pub fn run(place: &Place, options: &CompatDataOptions) -> Result<()> {
    let version = options.release.as_deref().unwrap_or(env!("CARGO_PKG_VERSION"));
    let folder = kv_store_tests::compat::folder_of(version);
    if folder.exists() {
        bail!("{} is there already. Remove it first, if {version} is not released yet", folder.display());
    }
    packages::install(packages::ZSTD)?;
    packages::install(packages::TESTS)?;
    let dist = match &options.dist {
        Some(dist) => std::path::absolute(dist)?,
        None => dist::run(place).map(|()| place.dist.clone())?,
    };
    let progress = step::Progress::start(&format!("writing the data of {version}"));
    kv_store_tests::compat::write(&dist, &folder);
    progress.done();
    eprintln!("wrote {}; commit it", folder.display());
    Ok(())
}
