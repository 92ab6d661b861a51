//! The licences of what is linked: the texts that come with each crate, each text once.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Result, ensure};

use super::linked::{Linked, Package};

/// The text of `THIRD-PARTY-LICENCES`.
pub fn text(linked: &Linked) -> Result<String> {
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut list = String::from(
        "What the programs and libraries of this package are linked with, by crate, version and licence.\n\n",
    );
    for package in linked.packages.iter().filter(|package| package.source.is_some()) {
        let name = format!("{} {}", package.name, package.version);
        let licence = package.license.as_deref().unwrap_or("see its text below");
        writeln!(list, "{name}: {licence}")?;
        for file in files(package)? {
            texts
                .entry(String::from_utf8_lossy(&std::fs::read(file)?).trim().to_owned())
                .or_default()
                .push(name.clone());
        }
    }
    ensure!(!texts.is_empty(), "no crate has a licence's text: were the sources fetched?");
    let mut texts: Vec<(String, Vec<String>)> = texts.into_iter().collect();
    texts.sort_by(|a, b| a.1.cmp(&b.1));
    for (text, crates) in texts {
        write!(list, "\n{}\n{}\n\n{text}\n", "-".repeat(80), crates.join(", "))?;
    }
    Ok(list)
}

/// The files of a crate that are licences or notices, by their names.
fn files(package: &Package) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(package.folder())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_text = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE"];
        if entry.file_type()?.is_file() && is_text.iter().any(|start| name.starts_with(start)) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}
