//! Guests in C: bindings made by wit-bindgen, compiled by clang against wasi-libc.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::Resolve;

use crate::place::Place;
use crate::{packages, step};

/// The folders of a workspace that hold C and no package.
pub fn folders(workspace: &Path) -> Result<Vec<PathBuf>> {
    let mut folders = Vec::new();
    for entry in std::fs::read_dir(workspace)? {
        let folder = entry?.path();
        if folder.is_dir() && !folder.join("Cargo.toml").exists() && !sources(&folder)?.is_empty() {
            folders.push(folder);
        }
    }
    folders.sort();
    Ok(folders)
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            sources.push(path);
        }
    }
    sources.sort();
    Ok(sources)
}

/// Build a folder's core module. Answers the guest's name and the module.
pub fn build(place: &Place, folder: &Path) -> Result<(String, PathBuf)> {
    let advice = format!("guests in C need Debian's {}", packages::C_GUESTS.join(", "));
    packages::install(packages::C_GUESTS).context(advice)?;
    let name = folder.file_name().and_then(|name| name.to_str()).context("a folder's name is not UTF-8")?;
    let built = place.target.join("guests/c").join(name);
    std::fs::create_dir_all(&built)?;
    bindings(&place.root.join("wit"), &built)?;

    let module = built.join("module.wasm");
    let mut clang = Command::new(packages::CLANG);
    clang.args([
        "--target=wasm32-wasi",
        "--sysroot=/usr",
        "-mexec-model=reactor",
        "-O2",
        "-std=c11",
        "-Wl,--strip-debug",
    ]);
    clang.args(["-Wall", "-Wextra", "-Werror", "-I"]).arg(&built).args(sources(folder)?);
    // Not ours, and not free of warnings.
    clang.arg("-Wno-unused-parameter").arg(built.join("backend.c")).arg(built.join("backend_component_type.o"));
    clang.arg("-o").arg(&module);
    step::run(place, &format!("building {name} with {}", packages::CLANG), &mut clang)?;
    Ok((name.to_owned(), module))
}

/// The contract as C: `backend.h`, `backend.c`, and an object file that carries the contract into the module.
fn bindings(wit: &Path, output: &Path) -> Result<()> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(wit)?;
    let world = resolve.select_world(&[package], Some("backend"))?;
    let mut files = Files::default();
    wit_bindgen_c::Opts::default().build().generate(&mut resolve, world, &mut files)?;
    for (name, content) in files.iter() {
        std::fs::write(output.join(name), content)?;
    }
    Ok(())
}
