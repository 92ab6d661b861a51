//! `cargo xtask package --target aarch64-apple-darwin`: the tarball and the wheel for macOS, linked on Linux by zig, which has what a linker
//! needs of macOS. Nothing of it is run here: the files are looked at ([`macho`]), and the portable ways that they take are run on Linux
//! (`cargo xtask test --portable`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::stage::{copy_all, normalise, pages, write};
use super::{Release, archive, foreign, licences, linked, macho};
use crate::place::Place;
use crate::python::Environment;
use crate::{dist, step};

/// What a target is called by rustc, by Apple, and by the number of its processor.
struct MacTarget {
    triple: &'static str,
    machine: &'static str,
    cpu: u32,
}

const TARGETS: [MacTarget; 2] = [
    MacTarget { triple: "aarch64-apple-darwin", machine: "arm64", cpu: object::macho::CPU_TYPE_ARM64 },
    MacTarget { triple: "x86_64-apple-darwin", machine: "x86_64", cpu: object::macho::CPU_TYPE_X86_64 },
];

/// The least macOS: `preadv` is since 11.
const LEAST: (u32, u32) = (11, 0);
/// What links.
const TOOLS: &[&str] = &["cargo-zigbuild==0.24.*", "ziglang==0.17.*"];
/// What is built. The llama library is not: it takes the place of functions of libllama by ways of ELF.
const PACKAGES: &[&str] =
    &["kv-store-library", "kv-cache", "kv-store", "kv-store-compiler", "memkv-server", "kv-store-python"];
/// What each system has.
const SYSTEM: &[&str] = &["/usr/lib/libSystem.B.dylib", "/usr/lib/libcharset.1.dylib", "/usr/lib/libiconv.2.dylib"];

const LIBRARY: &str = "libkv_store_wasm.dylib";
/// The name for programs that are linked with it; the other is a link to it.
const VERSIONED: &str = "libkv_store_wasm.1.dylib";
const CACHE_LIBRARY: &str = "libkv_cache.dylib";
const MODULE: &str = "libkv_store_python.dylib";
const PROGRAMS: [(&str, &str); 3] = [("kv-store", "bin"), ("memkv-server", "bin"), ("kv-store-compile", "libexec")];

/// Names of targets, for the command line.
pub fn targets() -> [&'static str; 2] {
    TARGETS.map(|target| target.triple)
}

pub fn run(place: &Place, triple: &str, wheel: bool) -> Result<()> {
    let target = TARGETS.iter().find(|target| target.triple == triple).context("a target of macOS")?;
    // Components, headers and manual pages are those of every system.
    dist::run(place)?;
    let built = build(place, target)?;
    check(place, target, &built)?;
    let release = Release {
        machine: target.machine,
        system: "macos",
        folder: place.root.join("target/package-macos").join(target.machine),
        ..Release::find(place)?
    };
    if release.folder.exists() {
        std::fs::remove_dir_all(&release.folder)?;
    }
    std::fs::create_dir_all(&release.folder)?;
    let tree = lay_out(place, target, &release, &built)?;
    let mut made = vec![archive::tarball(&release, &tree)?];
    std::fs::remove_dir_all(tree.parent().context("the tree has a folder")?)?;
    if wheel {
        let parts = [("_lib.abi3.so", MODULE), ("kv-store-compile", "kv-store-compile"), ("kv-store", "kv-store")];
        let parts = parts.map(|(name, made)| (name, built.join(made)));
        let platform = format!("macosx_{}_{}_{}", LEAST.0, LEAST.1, target.machine);
        made.push(foreign::wheel(place, &release, &parts, &platform)?);
    }
    for path in &made {
        println!("{}  {}", super::digest(path)?, path.display());
    }
    eprintln!("built and linked for macOS on {}, and looked at; never run there by this command", target.machine);
    Ok(())
}

/// Build for the target. Answers the folder of what was built.
fn build(place: &Place, target: &MacTarget) -> Result<PathBuf> {
    let tools = Environment::kept(place, "macos", TOOLS)?;
    let add = format!("rustup target add {}", target.triple);
    step::output(Command::new("rustup").args(["target", "add", target.triple])).with_context(|| add)?;
    let folder = place.target.join("macos");
    let mut build = tools.program("cargo-zigbuild");
    build.current_dir(&place.root).args(["zigbuild", "--release", "--locked", "--target", target.triple]);
    for package in PACKAGES {
        build.args(["--package", package]);
    }
    build.env("CARGO_TARGET_DIR", &folder).env("MACOSX_DEPLOYMENT_TARGET", format!("{}.{}", LEAST.0, LEAST.1));
    // cargo-zigbuild looks for zig beside Python's packages, by the first Python that it finds.
    build.env("PATH", tools.path_first()?);
    let name = format!("building for {} (the first build compiles wasmtime: some minutes)", target.triple);
    step::run(place, &name, &mut build)?;
    Ok(folder.join(target.triple).join("release"))
}

/// Each file is what macOS and those who load it need.
fn check(place: &Place, target: &MacTarget, built: &Path) -> Result<()> {
    let exports = std::fs::read_to_string(place.root.join("include/exports.txt"))?;
    let exports: BTreeSet<String> = exports.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
    let cache = declared(&place.root.join("include/kv_cache.h"))?;
    let module = BTreeSet::from(["PyInit__lib".to_owned()]);
    let libraries = [
        (LIBRARY, format!("@rpath/{VERSIONED}"), Some(exports)),
        (CACHE_LIBRARY, format!("@rpath/{CACHE_LIBRARY}"), Some(cache)),
        // Python loads it by its path. The name is kv-cache's, whose arguments for the linker reach whoever links it.
        (MODULE, format!("@rpath/{CACHE_LIBRARY}"), Some(module)),
    ];
    let programs = PROGRAMS.map(|(name, _)| (name, String::new(), None));
    for (name, install_name, exported) in libraries.into_iter().chain(programs) {
        let image = macho::read(&built.join(name))?;
        ensure!(image.cpu == target.cpu, "{name} is for another processor");
        ensure!(
            image.library == exported.is_some(),
            "{name} is no {}",
            if image.library { "program" } else { "library" }
        );
        ensure!(image.least <= LEAST, "{name} needs macOS {:?}, and {LEAST:?} is promised", image.least);
        ensure!(
            image.signed_pages > 0 || target.machine != "arm64",
            "{name} is not signed, and Apple's processors run nothing unsigned"
        );
        let foreign: Vec<_> = image.needs.iter().filter(|needed| !SYSTEM.contains(&needed.as_str())).collect();
        ensure!(foreign.is_empty(), "{name} is linked with {foreign:?}");
        if let Some(exported) = exported {
            ensure!(
                image.install_name.as_deref() == Some(&install_name),
                "{name} has the install name {:?}, and not {install_name}",
                image.install_name
            );
            // More than these: zig's linker takes no list of exports. A program names the library of each function that it takes, so that
            // those of others are not mistaken for them.
            let missing: Vec<_> = exported.difference(&image.exports).collect();
            ensure!(missing.is_empty(), "{name} does not export {missing:?}");
        }
        eprintln!(
            "   {name}: {} KiB, macOS {}.{}, {} exports, {} pages signed, {}",
            built.join(name).metadata()?.len() >> 10,
            image.least.0,
            image.least.1,
            image.exports.len(),
            image.signed_pages,
            image.install_name.as_deref().unwrap_or("a program")
        );
    }
    Ok(())
}

/// The functions that a header declares: names before a parenthesis at the beginning of a declaration.
fn declared(header: &Path) -> Result<BTreeSet<String>> {
    let text = std::fs::read_to_string(header)?;
    let declarations =
        text.lines().filter(|line| !line.starts_with([' ', '/', '#', '*']) && !line.starts_with("typedef"));
    let names = declarations.filter_map(|line| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("kv_").then(|| name.to_owned())
    });
    Ok(names.collect())
}

/// The tree of the tarball.
fn lay_out(place: &Place, target: &MacTarget, release: &Release, built: &Path) -> Result<PathBuf> {
    let tree = release.folder.join("stage").join(release.name());
    for folder in ["components", "include"] {
        copy_all(&place.dist.join(folder), &tree.join(folder))?;
    }
    let copied = |from: &str, to: &str| -> Result<()> {
        let to = tree.join(to);
        std::fs::create_dir_all(to.parent().context("a file has a folder")?)?;
        std::fs::copy(built.join(from), to).map(drop).with_context(|| format!("cannot copy {from}"))
    };
    copied(LIBRARY, &format!("lib/{VERSIONED}"))?;
    std::os::unix::fs::symlink(VERSIONED, tree.join("lib").join(LIBRARY))?;
    copied(CACHE_LIBRARY, &format!("lib/{CACHE_LIBRARY}"))?;
    for (program, folder) in PROGRAMS {
        copied(program, &format!("{folder}/{program}"))?;
    }
    pages(place, &tree)?;
    for file in ["LICENSE", "CHANGELOG.md"] {
        write(&tree.join(file), &std::fs::read_to_string(place.root.join(file))?)?;
    }
    let linked = linked::find_for(place, target.triple)?;
    write(&tree.join("THIRD-PARTY-LICENCES"), &licences::text(&linked)?)?;
    write(&tree.join("README"), &readme(release))?;
    normalise(&tree, release.time)?;
    Ok(tree)
}

fn readme(release: &Release) -> String {
    let name = release.name();
    format!(
        "kv-store-wasm {version}, for macOS {} or later on {machine}. Built and linked on Linux, and not yet run on a Mac.\n\n\
         Unpack it anywhere; the parts find each other. What a browser has downloaded is first freed of its mark:\n\n\
         \x20   xattr -d -r com.apple.quarantine {name}\n\
         \x20   {name}/bin/kv-store save local-fs:///private/tmp/kv FILE --name first\n\
         \x20   {name}/bin/kv-store restore local-fs:///private/tmp/kv COPY --name first\n\n\
         An engine loads lib/{LIBRARY}; one that looks for libkv_store_SCHEME.dylib finds a copy or link of that name in the\n\
         folder that KV_STORE_LIBRARY_PATH names. `kv-store doctor` says what does not hold on this system.\n",
        LEAST.0,
        version = release.version,
        machine = release.machine,
    )
}
