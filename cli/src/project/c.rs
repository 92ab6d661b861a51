//! C: bindings by wit-bindgen, made when this program was built, and clang or zig.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Project, Tools, componentize, tool};
use crate::failure::{Failure, Outcome};

/// The newest clang that is looked for by its number, as Debian names them, and the oldest.
const NEWEST: u32 = 30;
const OLDEST: u32 = 14;

const MISSING: &str = "no C compiler for WebAssembly: apt-get install clang-19 lld-19 libclang-rt-19-dev-wasm32 wasi-libc, or pip install ziglang, \
    or name wasi-sdk's folder in WASI_SDK_PATH";

pub fn build(project: &Project, tools: &Tools) -> Outcome<Vec<u8>> {
    let made = project.made()?;
    check_contract(&project.folder)?;
    bindings(&project.folder.join("wit/world.wit"), &made)?;
    let module = made.join("module.wasm");
    let mut cc = compiler()?;
    cc.args(["-mexec-model=reactor", "-std=c11", "-O2", "-Wall", "-Wl,--strip-debug", "-I"]).arg(&made);
    cc.args(sources(&project.folder.join("src"))?);
    cc.arg(made.join("backend.c")).arg(made.join(OBJECT)).args(tools.options);
    tool::run_shown(cc.arg("-o").arg(&module), "the C compiler found errors; they are above")?;
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

/// The bindings are those of this program's contract: a project with another text would be compiled against what it does not say.
fn check_contract(folder: &Path) -> Outcome {
    let path = folder.join(crate::new::CONTRACT_OF_OTHERS);
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|error| Failure::unable(format!("{}: {error}: run kv-store update", path.display())))?;
    if text == crate::new::contract() {
        return Ok(());
    }
    let shown = path.display();
    Err(Failure::unable(format!(
        "{shown} is not the contract of this kv-store, which its bindings for C are made of: run kv-store update"
    )))
}

/// The contract as C, by wit-bindgen: `backend.h`, `backend.c`, and an object file that carries the world into the module.
macro_rules! bindings {
    ($world:literal) => {
        [
            ("backend.h", include_bytes!(concat!(env!("OUT_DIR"), "/", $world, "/backend.h")).as_slice()),
            ("backend.c", include_bytes!(concat!(env!("OUT_DIR"), "/", $world, "/backend.c"))),
            (OBJECT, include_bytes!(concat!(env!("OUT_DIR"), "/", $world, "/backend_component_type.o"))),
        ]
    };
}

const OBJECT: &str = "backend_component_type.o";

/// The exports of `backend.h` over functions for single items.
const ITEMS: &str = include_str!("../../template/c/kv_backend.h");

/// Write the bindings. They have all that the contract offers: the linker leaves out what is not used. So of the project's world it matters
/// only what it exports.
fn bindings(world: &Path, output: &Path) -> Outcome {
    let unable = |path: &Path, error: std::io::Error| Failure::unable(format!("{}: {error}", path.display()));
    let text = std::fs::read_to_string(world).map_err(|error| unable(world, error))?;
    let mut exports = text.lines().filter_map(|line| line.trim().strip_prefix("export "));
    let maintained = exports.any(|exported| exported.starts_with("kv-store:backend/maintenance@"));
    let files = if maintained { bindings!("maintained-backend") } else { bindings!("backend") };
    for (name, content) in files.into_iter().chain([("kv_backend.h", ITEMS.as_bytes())]) {
        let path = output.join(name);
        std::fs::write(&path, content).map_err(|error| unable(&path, error))?;
    }
    Ok(())
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

    #[test]
    fn a_project_with_another_contract_is_told_to_update() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(crate::new::CONTRACT_OF_OTHERS);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let told = || check_contract(folder.path()).map_err(|failure| format!("{failure:?}"));
        assert!(told().unwrap_err().contains("run kv-store update"));
        std::fs::write(&path, "package kv-store:backend@1.0.0;").unwrap();
        assert!(told().unwrap_err().contains("is not the contract of this kv-store"));
        std::fs::write(&path, crate::new::contract()).unwrap();
        told().unwrap();
    }
}
