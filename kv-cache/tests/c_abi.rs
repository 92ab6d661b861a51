//! The C functions: the header compiles as C11 and C++17 without a warning, programs that include only it link with the
//! shared library and run, and the library exports what the header declares and nothing else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The newest shared library that cargo has built beside this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let deps = test.parent().unwrap();
    let places = [deps.join("libkv_cache.so"), deps.parent().unwrap().join("libkv_cache.so")];
    let built = places.into_iter().filter(|path| path.exists());
    built.max_by_key(|path| path.metadata().unwrap().modified().unwrap()).expect("cargo builds it with the crate")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn build_and_run(compiler: &str, language: &[&str], source: &str) -> Output {
    let (folder, path) = common::folder();
    let program = folder.path().join("program");
    let library = library();
    let built = Command::new(compiler)
        .args(language)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_POSIX_C_SOURCE=200809L", "-I"])
        .arg(root().join("../include"))
        .arg(root().join(source))
        .args(["-x", "none"])
        .arg(&library)
        .arg("-o")
        .arg(&program)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).arg(&path).env("LD_LIBRARY_PATH", library.parent().unwrap()).output().unwrap();
    assert!(ran.status.success(), "{compiler} {source}: {}", String::from_utf8_lossy(&ran.stderr));
    ran
}

const C11: (&str, &[&str]) = ("gcc", &["-std=c11"]);
const CPP17: (&str, &[&str]) = ("g++", &["-std=c++17", "-x", "c++"]);

#[test]
fn what_only_c_can_get_wrong() {
    for (compiler, language) in [C11, CPP17] {
        build_and_run(compiler, language, "tests/c/program.c");
    }
}

#[test]
fn the_example_does_what_it_says() {
    for (compiler, language) in [C11, CPP17] {
        let said = String::from_utf8(build_and_run(compiler, language, "examples/turns.c").stdout).unwrap();
        let prefilled: Vec<&str> = said.lines().filter_map(|line| line.trim().strip_prefix("prefilled ")).collect();
        let state = prefilled[1].rsplit(' ').next().unwrap();
        assert!(prefilled[0].starts_with("2200 of 2200 tokens"), "{said}");
        assert_eq!(prefilled[1], format!("552 of 2600 tokens, last state {state}"), "{said}");
        assert_eq!(prefilled[2], format!("0 of 2600 tokens, last state {state}"), "the same state: {said}");
        assert!(said.contains("hits: 1 exact, 1 longest prefix; misses: 1"), "{said}");
    }
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let header = std::fs::read_to_string(root().join("../include/kv_cache.h")).unwrap();
    let code: String = header.split("*/").map(|part| part.split("/*").next().unwrap()).collect();
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '(');
    let declared: BTreeSet<&str> = words
        .filter_map(|word| word.split_once('(').map(|(name, _)| name))
        .filter(|name| name.starts_with("kv_cache_"))
        .collect();
    assert!(declared.len() > 15, "{declared:?}");
    let symbols = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let exported: BTreeSet<&str> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert_eq!(exported, declared);
}
