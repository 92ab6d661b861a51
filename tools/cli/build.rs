//! Lists the files of the SDK and of the contract, which `kv-store new` writes: none can be forgotten.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a build that fails panics")]

use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The sources below a folder.
fn files(folder: &Path, into: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
    Ok(())
}

/// The manifest of the SDK as a project has it: without the address of the sources, which the workspace of a project does not have to inherit.
fn manifest_of_projects(manifest: &str) -> String {
    manifest.lines().filter(|line| !line.starts_with("repository")).flat_map(|line| [line, "\n"]).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    let manifest = root.join("sdk/Cargo.toml");
    println!("cargo::rerun-if-changed={}", manifest.display());
    std::fs::write(out.join("sdk.toml"), manifest_of_projects(&std::fs::read_to_string(manifest)?))?;
    let mut found = vec![root.join("sdk/README.md"), root.join("sdk/wit/backend.wit")];
    // Cargo runs this again when a file is added below.
    println!("cargo::rerun-if-changed={}", root.join("sdk/src").display());
    files(&root.join("sdk/src"), &mut found)?;
    found.sort();
    let mut list = String::from("&[");
    write!(list, "(\"sdk/Cargo.toml\", include_str!({:?})),", out.join("sdk.toml"))?;
    for path in found {
        write!(list, "({:?}, include_str!({path:?})),", path.strip_prefix(&root)?)?;
    }
    list += "]";
    std::fs::write(out.join("sdk.rs"), list)?;
    Ok(())
}
