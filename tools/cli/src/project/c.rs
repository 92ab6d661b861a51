//! C: bindings by wit-bindgen, of the texts in the project's folder `wit`, and clang or zig.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::{PackageName, Resolve, WorldId, WorldKey};

use super::{Project, Tools, componentize, tool};
use crate::failure::{Failure, Outcome};

/// The newest clang that is looked for by its number, as Debian names them, and the oldest.
const NEWEST: u32 = 30;
const OLDEST: u32 = 14;

const MISSING: &str = "no C compiler for WebAssembly: apt-get install clang-19 lld-19 libclang-rt-19-dev-wasm32 wasi-libc, or pip install ziglang, \
    or name wasi-sdk's folder in WASI_SDK_PATH";

pub fn build(project: &Project, tools: &Tools) -> Outcome<Vec<u8>> {
    let made = project.made()?;
    bindings(&project.folder.join("wit"), &made)?;
    let module = made.join("module.wasm");
    let mut cc = compiler()?;
    cc.args(["-mexec-model=reactor", "-std=c11", "-O2", "-Wall", "-Wl,--strip-debug", "-I"]).arg(&made);
    cc.args(sources(&project.folder.join("src"))?);
    cc.arg(made.join("backend.c")).arg(made.join("backend_component_type.o")).args(tools.options);
    let failed = format!("the C compiler found errors; they are above{}", hint(&project.folder));
    tool::run_shown(cc.arg("-o").arg(&module), &failed)?;
    let bytes = std::fs::read(&module).map_err(|error| Failure::unable(format!("{}: {error}", module.display())))?;
    componentize(&bytes)
}

fn sources(folder: &Path) -> Outcome<Vec<PathBuf>> {
    let unable = |error: std::io::Error| Failure::unable(format!("{}: {error}", folder.display()));
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unable)? {
        let path = entry.map_err(unable)?.path();
        if path.extension().is_some_and(|extension| extension == "c") {
            sources.push(path);
        }
    }
    sources.sort();
    if sources.is_empty() {
        return Err(Failure::unable(format!("{}: no .c file", folder.display())));
    }
    Ok(sources)
}

/// `kv_backend.h` is written for the contract of this program: what a compiler says of another text may come of that.
fn hint(folder: &Path) -> &'static str {
    let text = std::fs::read_to_string(folder.join(crate::sdk::CONTRACT_OF_OTHERS));
    if text.is_ok_and(|text| text == crate::sdk::contract()) {
        ""
    } else {
        ". The contract in wit/deps is not that of this kv-store: kv-store update brings it up to date"
    }
}

/// The exports of `backend.h` over functions for single items.
const ITEMS: &str = include_str!("../../template/c/kv_backend.h");

/// The world that bindings are made of: the project's, and what the contract offers beside. The linker leaves out what is not used.
const WORLD: &str = "package kv-store:c;\nworld backend {\n  include @PROJECT@;\n  include @CONTRACT@;\n}\n";

/// Write the bindings: `backend.h`, `backend.c`, an object file that carries the world into the module, and `kv_backend.h`.
fn bindings(wit: &Path, output: &Path) -> Outcome {
    let unable = |error: anyhow::Error| Failure::unable(format!("{}: {error:#}", wit.display()));
    let mut resolve = Resolve::default();
    let (project, _) = resolve.push_dir(wit).map_err(unable)?;
    let is_contract = |name: &&PackageName| name.namespace == "kv-store" && name.name == "backend";
    let contract = resolve.package_names.keys().find(is_contract).cloned().ok_or_else(|| {
        Failure::unable(format!("{}: it does not have the contract in deps: run kv-store update", wit.display()))
    })?;
    let project = resolve.packages.get(project).map(|package| package.name.interface_id("backend")).unwrap_or_default();
    let text = WORLD.replace("@PROJECT@", &project).replace("@CONTRACT@", &contract.interface_id("backend"));
    let own = resolve.push_str("backend.wit", &text).map_err(unable)?;
    let world = resolve.select_world(&[own], Some("backend")).map_err(unable)?;
    let mut files = Files::default();
    let options = wit_bindgen_c::Opts { rename: short_names(&resolve, world, &contract), ..Default::default() };
    // wit-bindgen panics at what it has no C for.
    let generate = AssertUnwindSafe(|| options.build().generate(&mut resolve, world, &mut files));
    let made = catch_unwind(generate);
    made.unwrap_or_else(|_| Err(anyhow::anyhow!("wit-bindgen can not make C of this world; it says why above")))
        .map_err(unable)?;
    for (name, content) in files.iter().chain([("kv_backend.h", ITEMS.as_bytes())]) {
        let path = output.join(name);
        std::fs::write(&path, content).map_err(|error| Failure::unable(format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

/// What begins the C names of the contract's interfaces: `payloads` in place of `kv_store_backend_payloads`.
fn short_names(resolve: &Resolve, world: WorldId, contract: &PackageName) -> Vec<(String, String)> {
    let Some(world) = resolve.worlds.get(world) else { return Vec::new() };
    let names = world.imports.keys().chain(world.exports.keys()).filter_map(|key| {
        let WorldKey::Interface(id) = key else { return None };
        let interface = resolve.interfaces.get(*id)?;
        let package = resolve.packages.get(interface.package?)?;
        let short = interface.name.as_ref()?.replace('-', "_");
        (package.name == *contract).then(|| (resolve.name_world_key(key), short))
    });
    names.collect()
}

/// A compiler with what it needs to make a module: wasi-sdk's, Debian's, zig's.
fn compiler() -> Outcome<Command> {
    if let Some(sdk) = std::env::var_os("WASI_SDK_PATH").map(PathBuf::from) {
        let clang = sdk.join("bin/clang");
        let clang = tool::find(std::slice::from_ref(&clang)).ok_or_else(|| {
            Failure::unable(format!("WASI_SDK_PATH names {}, and there is no {}", sdk.display(), clang.display()))
        })?;
        return Ok(Command::new(clang));
    }
    let numbered = (OLDEST..=NEWEST).rev().map(|version| PathBuf::from(format!("clang-{version}")));
    for name in std::iter::once(PathBuf::from("clang")).chain(numbered) {
        if let Some(clang) = tool::find(&[name]).filter(|clang| is_complete(clang)) {
            let mut command = Command::new(clang);
            command.args(["--target=wasm32-wasi", "--sysroot=/usr"]);
            return Ok(command);
        }
    }
    let zig = tool::find(&["zig".into(), "python-zig".into()]).ok_or_else(|| Failure::unable(MISSING))?;
    let mut command = Command::new(zig);
    command.args(["cc", "-target", "wasm32-wasi"]);
    Ok(command)
}

/// Whether a clang has a linker, run-time functions and a libc for WebAssembly.
fn is_complete(clang: &Path) -> bool {
    let asked = |what: &str| {
        let mut command = Command::new(clang);
        command.args(["--target=wasm32-wasi", "--sysroot=/usr", what]).stderr(Stdio::null()).stdin(Stdio::null());
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    };
    // What is not there is answered by its mere name.
    ["-print-libgcc-file-name", "-print-prog-name=wasm-ld", "-print-file-name=libc.a"]
        .into_iter()
        .all(|what| asked(what).is_some_and(|file| tool_or_library(&file)))
}

fn tool_or_library(file: &Path) -> bool {
    file.is_absolute() && file.exists() || tool::find(&[file.to_owned()]).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header that is made of a project's `wit`, with this contract and this world.
    fn header(contract: &str, world: &str) -> Result<String, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(crate::sdk::CONTRACT_OF_OTHERS);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, contract).unwrap();
        let wit = folder.path().join("wit");
        std::fs::write(wit.join("world.wit"), world).unwrap();
        bindings(&wit, folder.path()).map_err(|failure| format!("{failure:?}"))?;
        for name in ["backend.c", "backend_component_type.o", "kv_backend.h"] {
            assert!(std::fs::metadata(folder.path().join(name)).unwrap().len() > 0, "{name}");
        }
        Ok(std::fs::read_to_string(folder.path().join("backend.h")).unwrap())
    }

    const PROJECT: &str = "package local:project;\nworld backend {\n  import kv-store:backend/payloads@1.1.0;\n  export \
        kv-store:backend/store@1.1.0;\n";

    #[test]
    fn bindings_are_made_of_the_texts_of_the_project() {
        let contract = crate::sdk::contract();
        let plain = header(contract, &format!("{PROJECT}}}")).unwrap();
        // All that the contract offers, under short names.
        assert!(
            plain.contains(" exports_store_put_chunks(")
                && plain.contains(" http_send(")
                && plain.contains(" changes_begin(")
        );
        assert!(!plain.contains("exports_maintenance_evict"));
        let own = "interface store { tell: func() -> u32; }\n";
        let world = format!("{PROJECT}  export kv-store:backend/maintenance@1.1.0;\n  import store;\n}}\n{own}");
        let more = header(contract, &world).unwrap();
        assert!(
            more.contains(" exports_maintenance_evict(") && more.contains("uint32_t local_project_store_tell(void)")
        );
        let marked = contract.replace("  fact: func(", "  told-by-a-later-text: func() -> u32;\n  fact: func(");
        assert_ne!(marked, contract);
        assert!(header(&marked, &format!("{PROJECT}}}")).unwrap().contains("system_told_by_a_later_text(void)"));
    }

    #[test]
    fn texts_of_which_no_bindings_can_be_made_are_named() {
        let contract = crate::sdk::contract();
        let why = |contract: &str, world: &str| header(contract, world).unwrap_err();
        assert!(why("package acme:other;", "package local:project;\nworld backend {}").contains("run kv-store update"));
        assert!(why(contract, "package local:project;\nworld other {}").contains("backend"));
        let said = why(contract, "no wit");
        assert!(said.contains("/wit: "), "{said}");
    }

    #[test]
    fn a_compiler_that_fails_over_another_contract_has_a_hint() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(crate::sdk::CONTRACT_OF_OTHERS);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, "package kv-store:backend@1.1.0;").unwrap();
        assert!(hint(folder.path()).contains("kv-store update"));
        std::fs::write(&path, crate::sdk::contract()).unwrap();
        assert_eq!(hint(folder.path()), "");
    }
}
