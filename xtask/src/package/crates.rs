//! The crates as crates.io would take them: what each must say of itself, that each compiles from its own archive, and that a program
//! elsewhere can use them. Nothing is published.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};
use serde::Deserialize;

use crate::place::Place;
use crate::step;

/// What crates.io takes at most.
const MAX_KEYWORDS: usize = 5;
const MAX_KEYWORD_BYTES: usize = 20;
const MAX_CATEGORIES: usize = 5;
/// An address that leads nowhere ends with this (RFC 2606).
const NOWHERE: &str = ".example";
/// What `kv-store build` compiles a backend for.
const GUEST: &str = "wasm32-unknown-unknown";

/// Whether what is packed is compiled too, which compiles wasmtime in a profile of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    Yes,
    No,
}

#[derive(Deserialize)]
struct WorkspaceMetadata {
    packages: Vec<Manifest>,
}

/// What a manifest says.
#[derive(Deserialize)]
struct Manifest {
    name: String,
    description: Option<String>,
    license: Option<String>,
    repository: Option<String>,
    readme: Option<PathBuf>,
    keywords: Vec<String>,
    categories: Vec<String>,
    /// None: to wherever somebody publishes it. Empty: nowhere.
    publish: Option<Vec<String>>,
    metadata: Option<serde_json::Value>,
    manifest_path: PathBuf,
    dependencies: Vec<ManifestDependency>,
}

#[derive(Deserialize)]
struct ManifestDependency {
    name: String,
    /// None: a normal one.
    kind: Option<String>,
    path: Option<PathBuf>,
}

pub fn pack(place: &Place, verify: Verify) -> Result<()> {
    let crates = to_publish(place)?;
    let wrong: Vec<String> = crates.iter().flat_map(|package| lacks(package, &crates)).collect();
    ensure!(wrong.is_empty(), "the crates cannot be published as they are:\n{}", wrong.join("\n"));
    let cargo = |names: &[&str]| {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&place.root).args(["package", "--locked", "--allow-dirty"]);
        // What is compiled to be looked at is not debugged.
        cargo.env("CARGO_TARGET_DIR", &place.target).env("CARGO_PROFILE_DEV_DEBUG", "0");
        names.iter().for_each(|name| _ = cargo.args(["--package", name]));
        cargo
    };
    let names: Vec<&str> = crates.iter().map(|package| &*package.name).collect();
    if verify == Verify::No {
        step::run(place, "packing the crates", cargo(&names).arg("--no-verify"))?;
    } else {
        step::run(place, "packing the crates, and compiling each from its archive", &mut cargo(&names))?;
        let mut sdk = cargo(&["kv-store-sdk"]);
        step::run(place, "compiling the SDK from its archive, for components", sdk.args(["--target", GUEST]))?;
    }
    for name in &names {
        let archive = archive(place, name);
        ensure!(archive.exists(), "cargo has not made {}", archive.display());
        eprintln!("packed {}", archive.display());
    }
    if verify == Verify::No {
        eprintln!("not verified: that they compile from their archives (`cargo xtask package --crates`)");
    }
    eprintln!("not verified: what crates.io and docs.rs make of them, and that their names are free");
    let nowhere = crates.iter().filter_map(|package| package.repository.as_ref()).find(|url| url.ends_with(NOWHERE));
    if let Some(url) = nowhere {
        eprintln!("not ready to be published: `repository` in Cargo.toml is {url}, which leads nowhere");
    }
    Ok(())
}

/// Fails unless the repository is a real one: the last thing that only its owner can say.
pub fn has_a_home(place: &Place) -> Result<()> {
    for package in to_publish(place)? {
        let url = package.repository.unwrap_or_default();
        ensure!(!url.ends_with(NOWHERE), "`repository` in Cargo.toml is {url}: say where the sources are");
    }
    Ok(())
}

fn archive(place: &Place, name: &str) -> PathBuf {
    place.target.join("package").join(format!("{name}-{}.crate", env!("CARGO_PKG_VERSION")))
}

/// The members of the workspace that do not say `publish = false`.
fn to_publish(place: &Place) -> Result<Vec<Manifest>> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&place.root).args(["metadata", "--no-deps", "--locked", "--format-version", "1"]);
    let metadata: WorkspaceMetadata = serde_json::from_str(&step::output(&mut cargo)?)?;
    Ok(metadata.packages.into_iter().filter(|package| package.publish.is_none()).collect())
}

/// What a reader of crates.io or docs.rs would miss, and what crates.io refuses.
fn lacks(package: &Manifest, all: &[Manifest]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut want = |holds: bool, what: &str| {
        if !holds {
            wrong.push(format!("{}: {what}", package.name));
        }
    };
    let says = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    want(says(&package.description), "no description");
    want(says(&package.license), "no license");
    want(says(&package.repository), "no repository");
    let folder = package.manifest_path.parent().unwrap_or(Path::new(""));
    let readme = package.readme.as_ref().map(|readme| folder.join(readme));
    want(readme.is_some_and(|readme| readme.is_file()), "no README");
    want((1..=MAX_KEYWORDS).contains(&package.keywords.len()), "needs 1 to 5 keywords");
    want(package.keywords.iter().all(|word| word.len() <= MAX_KEYWORD_BYTES), "a keyword has more than 20 bytes");
    want((1..=MAX_CATEGORIES).contains(&package.categories.len()), "needs 1 to 5 categories");
    let docs = package.metadata.as_ref().and_then(|metadata| metadata.get("docs")?.get("rs"));
    want(docs.is_some(), "no settings for docs.rs");
    for dependency in package.dependencies.iter().filter(|dependency| dependency.path.is_some()) {
        let is_published = all.iter().any(|other| other.name == dependency.name);
        let is_for_tests = dependency.kind.as_deref() == Some("dev");
        want(is_published || is_for_tests, &format!("needs {}, which is not published", dependency.name));
    }
    wrong
}

/// A program outside the clone that has the crates from their archives, and saves and restores through what was unpacked in `tree`.
pub fn used_elsewhere(place: &Place, tree: &Path, work: &Path) -> Result<()> {
    let folder = work.join("crates");
    let source = folder.join("program/src");
    std::fs::create_dir_all(&source)?;
    let mut patches = String::new();
    for package in to_publish(place)? {
        let mut tar = Command::new("tar");
        step::output(tar.arg("-xzf").arg(archive(place, &package.name)).arg("-C").arg(&folder))?;
        let path = folder.join(format!("{}-{}", package.name, env!("CARGO_PKG_VERSION")));
        patches += &format!("{} = {{ path = \"{}\" }}\n", package.name, path.display());
    }
    let version = env!("CARGO_PKG_VERSION");
    let manifest = format!(
        "[package]\nname = \"program\"\nedition = \"2024\"\n[dependencies]\nkv-store-wasm = \"{version}\"\n\
         [workspace]\n[patch.crates-io]\n{patches}"
    );
    std::fs::write(folder.join("program/Cargo.toml"), manifest)?;
    std::fs::copy(place.root.join("Cargo.lock"), folder.join("program/Cargo.lock"))?;
    let program = include_str!("program.rs.in");
    std::fs::write(source.join("main.rs"), program)?;
    let mut build = Command::new("cargo");
    build.current_dir(folder.join("program")).args(["build", "--quiet"]);
    build.env("CARGO_TARGET_DIR", &place.target).env("CARGO_PROFILE_DEV_DEBUG", "0");
    step::run(place, "compiling a program that has the crates from their archives", &mut build)?;
    let mut program = Command::new(place.target.join("debug/program"));
    let store = format!("local-fs://{}", work.join("crates/store").display());
    place.for_consumers(program.arg(store).arg(tree.join("components")))?;
    let said = step::output(&mut program)?;
    ensure!(said.contains("restored 4 bytes"), "the program said: {said}");
    eprintln!("ok a program that has the crates from their archives saves and restores");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependency: Option<(&str, Option<&str>)>) -> Manifest {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("core/size");
        let says = || Some("says".to_owned());
        Manifest {
            name: name.to_owned(),
            description: says(),
            license: says(),
            repository: says(),
            readme: Some("README.md".into()),
            keywords: vec!["word".to_owned()],
            categories: vec!["word".to_owned()],
            publish: None,
            metadata: Some(serde_json::json!({ "docs": { "rs": {} } })),
            manifest_path: root.join("Cargo.toml"),
            dependencies: Vec::from_iter(dependency.map(|(name, kind)| ManifestDependency {
                name: name.to_owned(),
                kind: kind.map(str::to_owned),
                path: Some(PathBuf::new()),
            })),
        }
    }

    #[test]
    fn what_a_crate_lacks_is_named() {
        let whole = package("one", None);
        assert!(lacks(&whole, &[]).is_empty(), "{:?}", lacks(&whole, &[]));
        let bare = Manifest {
            description: None,
            repository: Some(String::new()),
            readme: Some("NONE.md".into()),
            keywords: vec!["a keyword of more than twenty bytes".to_owned()],
            categories: Vec::new(),
            metadata: None,
            ..package("two", None)
        };
        let found = lacks(&bare, &[]).join("\n");
        for what in ["description", "repository", "README", "20 bytes", "categories", "docs.rs"] {
            assert!(found.contains("two: ") && found.contains(what), "{what}: {found}");
        }
    }

    #[test]
    fn what_is_published_needs_nothing_that_is_not() {
        let all = [package("one", None)];
        assert!(lacks(&package("two", Some(("one", None))), &all).is_empty());
        assert!(lacks(&package("two", Some(("tests", Some("dev")))), &all).is_empty());
        assert_eq!(lacks(&package("two", Some(("tests", None))), &all), ["two: needs tests, which is not published"]);
        assert_eq!(lacks(&package("two", Some(("tests", Some("build")))), &all).len(), 1);
    }

    #[test]
    fn every_crate_of_ours_says_what_it_should() {
        let place = Place::find().unwrap();
        let crates = to_publish(&place).unwrap();
        assert!(crates.iter().any(|package| package.name == "kv-store-wasm"));
        let wrong: Vec<String> = crates.iter().flat_map(|package| lacks(package, &crates)).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
