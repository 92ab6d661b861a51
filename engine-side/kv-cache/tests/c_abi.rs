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
    // That of the processor that an emulator stands for, which runs this test.
    let cross = std::env::var("CROSS_COMPILE").unwrap_or_default();
    let built = Command::new(cross + compiler)
        .args(language)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-D_POSIX_C_SOURCE=200809L"])
        .arg(concat!("-DKV_CACHE_EXPECTED_VERSION=\"", env!("CARGO_PKG_VERSION"), "\""))
        .arg("-I")
        .arg(root().join("../../include"))
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

/// What a compiler says of a program that includes the header and nothing else; empty where it compiles.
fn of_the_header(compiler: &str, options: &[&str]) -> String {
    let compiled = Command::new(compiler)
        .args(options)
        .args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-include", "kv_cache.h", "-I"])
        .arg(root().join("../../include"))
        .arg("/dev/null")
        .output()
        .unwrap();
    let said = String::from_utf8(compiled.stderr).unwrap();
    assert_eq!(compiled.status.success(), said.is_empty(), "{said}");
    said
}

#[test]
fn the_header_serves_old_compilers_and_refuses_short_enums() {
    for (compiler, language, standards) in
        [("gcc", "c", ["-std=c99", "-std=c11", "-std=c23"]), ("g++", "c++", ["-std=c++98", "-std=c++11", "-std=c++20"])]
    {
        for standard in standards {
            let standard = if standard == "-std=c23" { "-std=c2x" } else { standard };
            assert_eq!(of_the_header(compiler, &["-x", language, standard]), "", "{standard}");
            let said = of_the_header(compiler, &["-x", language, standard, "-fshort-enums"]);
            assert!(said.contains("enums_have_4_bytes"), "{standard}: {said}");
        }
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

/// The header's example config, with its directory elsewhere.
fn example_config(directory: &Path) -> String {
    let header = std::fs::read_to_string(root().join("../../include/kv_cache.h")).unwrap();
    let lines = header.lines().skip_while(|line| !line.contains("static const char config[]")).skip(1);
    let config: Vec<&str> =
        lines.map_while(|line| line.split_once("\"")?.1.split_once("\\n\"")).map(|(line, _)| line).collect();
    assert_eq!(config.len(), 6, "{config:?}");
    config.join("\n").replace("/var/cache/kv", directory.to_str().unwrap())
}

/// What the header says to a first program: its config opens, and the default gates are those it names.
#[test]
fn what_the_header_says_of_configs_and_gates_is_so() {
    let (_folder, path) = common::folder();
    let config = kv_cache::Config::parse(&example_config(&path)).unwrap();
    assert_eq!((config.ram.as_ref().unwrap().budget.0, config.disk.as_ref().unwrap().budget.0), (4 << 30, 200 << 30));
    let cache = kv_cache::Cache::open(config).unwrap();
    assert!(path.is_dir(), "made");
    let policy = cache.policy();
    assert_eq!(
        [2079, 2080, 4127, 4128, 30_000].map(|n| policy.cold(n).ok()),
        [None, Some(2048), Some(2048), Some(4096), Some(28_672)]
    );
    assert!(policy.cold(30_001).is_err());
    let small = kv_cache::Policy { boundary_align_tokens: 256, ..policy.clone() };
    assert_eq!([543, 544].map(|n| small.cold(n).ok()), [None, Some(512)]);
    assert!(policy.continued(2048, 0).is_ok() && policy.continued(2047, 0).is_err());
    assert!(policy.finish(512).is_ok() && policy.finish(511).is_err());
}

/// The table of the header and of docs/cache.md is one.
#[test]
fn both_tables_of_quantisations_are_the_same_and_whole() {
    let table = |text: &str| -> Vec<(u8, String)> {
        let words: Vec<&str> = text.split_whitespace().filter(|word| !matches!(*word, "*" | "|")).collect();
        let mut table: Vec<(u8, String)> =
            words.chunks(2).map(|pair| (pair[0].parse().unwrap(), pair[1].to_owned())).collect();
        table.sort();
        table
    };
    let between = |file: &str, begin: &str, end: &str| {
        let text = std::fs::read_to_string(root().join(file)).unwrap();
        let text = text.split_once(begin).unwrap().1;
        table(text.split_once(end).unwrap().0)
    };
    let header = between("../../include/kv_cache.h", "is logged once.)\n", " *\n");
    assert_eq!(header.iter().map(|(number, _)| *number).collect::<Vec<_>>(), (0..30).collect::<Vec<_>>());
    assert_eq!(header.len(), usize::from(kv_cache::row::KNOWN_QUANTS));
    assert_eq!(
        between("../../docs/cache.md", "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n", "\n\n"),
        header
    );
}

#[test]
fn the_library_exports_what_the_header_declares() {
    let headers = ["kv_cache.h", "kv_store_deprecated.h"];
    let headers =
        headers.map(|header| std::fs::read_to_string(root().join("../../include").join(header)).unwrap()).concat();
    let code: String = headers.split("*/").map(|part| part.split("/*").next().unwrap()).collect();
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
