//! Lists the files of the SDK and of the contract, which `kv-store new` writes: none can be forgotten. And makes the bindings for C, with
//! which `kv-store build` compiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a build that fails panics")]

use std::fmt::Write;
use std::path::{Path, PathBuf};

use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::{Resolve, WorldId, WorldKey};

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

/// A world of its own, because the contract has the one that every backend is.
const MAINTAINED: &str = "package kv-store:c;
world maintained-backend {
  include kv-store:backend/backend@1.0.0;
  export kv-store:backend/maintenance@1.0.0;
}";

/// A world as C: `backend.h`, `backend.c`, and an object file that carries the world into the module.
fn bindings(wit: &Path, world: &str, output: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let mut resolve = Resolve::default();
    let (contract, _) = resolve.push_dir(wit)?;
    let own = resolve.push_str("maintained.wit", MAINTAINED)?;
    let world = resolve.select_world(&[contract, own], Some(world))?;
    let mut files = Files::default();
    let options = wit_bindgen_c::Opts {
        rename: short_names(&resolve, world),
        rename_world: Some("backend".to_owned()),
        ..Default::default()
    };
    options.build().generate(&mut resolve, world, &mut files)?;
    std::fs::create_dir_all(output)?;
    for (name, content) in files.iter() {
        std::fs::write(output.join(name), content)?;
    }
    Ok(())
}

/// What begins the C names of the contract's interfaces: `payloads` in place of `kv_store_backend_payloads`.
fn short_names(resolve: &Resolve, world: WorldId) -> Vec<(String, String)> {
    let world = &resolve.worlds[world];
    let names = world.imports.keys().chain(world.exports.keys()).filter_map(|key| {
        let WorldKey::Interface(id) = key else { return None };
        Some((resolve.name_world_key(key), resolve.interfaces[*id].name.as_ref()?.replace('-', "_")))
    });
    names.collect()
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
    println!("cargo::rerun-if-changed={}", root.join("wit/backend.wit").display());
    for (name, world) in
        [("backend", "kv-store:backend/backend"), ("maintained-backend", "kv-store:c/maintained-backend")]
    {
        bindings(&root.join("wit"), world, &out.join(name))?;
    }
    Ok(())
}
