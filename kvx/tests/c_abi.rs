//! The header compiles without a warning as C11 and as C++17, and a program that includes only it
//! links with the static library and runs.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The newest static library that cargo has built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let newest = [deps, deps.parent().unwrap()]
        .iter()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap().flatten())
        .map(|entry| entry.path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libkvx") && name.ends_with(".a")
        })
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.expect("cargo builds libkvx.a with the crate")
}

fn build_and_run(compiler: &str, language: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kvx_{compiler}"));
    let built = Command::new(compiler)
        .args(language)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(root.join("../include"))
        .arg(root.join("tests/c/program.c"))
        .args(["-x", "none"])
        .arg(library())
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(&program)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).status().unwrap();
    assert_eq!(ran.code(), Some(0), "{compiler}: exits with its line, modulo 255, plus 1");
}

#[test]
fn as_c11() {
    build_and_run("gcc", &["-std=c11"]);
}

#[test]
fn as_cpp17() {
    build_and_run("g++", &["-std=c++17", "-x", "c++"]);
}
