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

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("..").canonicalize()?;
    let mut found = vec![root.join("sdk/Cargo.toml"), root.join("sdk/wit/backend.wit")];
    // Cargo runs this again when a file is added below.
    println!("cargo::rerun-if-changed={}", root.join("sdk/src").display());
    files(&root.join("sdk/src"), &mut found)?;
    found.sort();
    let mut list = String::from("&[");
    for path in found {
        write!(list, "({:?}, include_str!({path:?})),", path.strip_prefix(&root)?)?;
    }
    list += "]";
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("sdk.rs"), list)?;
    Ok(())
}
