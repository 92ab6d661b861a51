//! The header compiles without a warning as C11 and as C++17, and a program that includes only it
//! links with the static library and runs. A consumer of the published header compiles from C99 and
//! C++98 on.

#![allow(clippy::unwrap_used, clippy::expect_used)]

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
            name.starts_with("libkvx_c") && name.ends_with(".a")
        })
        .max_by_key(|path| path.metadata().unwrap().modified().unwrap());
    newest.expect("cargo builds libkvx_c.a with the crate")
}

fn build_and_run(compiler: &str, language: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("kvx_{compiler}"));
    let built = Command::new(compiler)
        .args(language)
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(root.join("../../../include"))
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

#[test]
fn a_consumer_of_the_published_header_compiles_in_every_language() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (compiler, language, standards) in
        [("gcc", "c", &["c99", "c11", "c17"][..]), ("g++", "c++", &["c++98", "c++03", "c++11", "c++17", "c++20"])]
    {
        for standard in standards {
            let built = Command::new(compiler)
                .args(["-x", language, &format!("-std={standard}"), "-fsyntax-only"])
                .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
                .arg(root.join("../../../include"))
                .arg(root.join("tests/c/published_names.c"))
                .output()
                .unwrap();
            assert!(built.status.success(), "{standard}: {}", String::from_utf8_lossy(&built.stderr));
        }
    }
}

/// What the examples of the documentation leave to the engine.
const ENGINE: &str = r"
#include <assert.h>
#include <stddef.h>
static kvx_tensor_desc_t my_tensor_desc(void *pool) { kvx_tensor_desc_t t = {0}; t.data = pool; return t; }
static kvx_write_desc_t my_write(void *k, void *v, int64_t *slots) {
    kvx_write_desc_t w = {0}; w.io.key.data = k; w.io.value.data = v; w.slots.slots = slots; return w; }
static kvx_gather_desc_t my_gather(void *k, void *v, int32_t *table, int32_t *lens) {
    kvx_gather_desc_t g = {0}; g.io.key.data = k; g.io.value.data = v; g.block_table.indices = table;
    g.seq_lens.lengths = lens; return g; }
static kvx_slot_mapping_t my_slots(int32_t *blocks) { kvx_slot_mapping_t s = {0}; s.slots = blocks; return s; }
";

/// The examples of `docs/kvx.md` are C that compiles without a warning.
#[test]
fn the_examples_of_the_documentation_compile() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let page = std::fs::read_to_string(root.join("docs/kvx.md")).unwrap();
    let arguments = [
        "uint32_t n, void *k_pool, void *v_pool, void *keys, void *values, int64_t *slot_mapping, void *out_k, \
         void *out_v, int32_t *block_tables, int32_t *seq_lens",
        "kv_store_v1 *store, kvx_cache_desc_t *caches, int32_t *block_ids, uint32_t n, uint32_t tokens, \
         int32_t *new_blocks",
    ];
    let examples: Vec<&str> = page
        .split("<!-- by=engine-side/kvx/c/tests/c_abi.rs -->\n```c\n")
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap())
        .collect();
    assert_eq!(examples.len(), arguments.len());
    for (number, (example, arguments)) in examples.iter().zip(arguments).enumerate() {
        let (include, body) = example.split_once('\n').unwrap();
        let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("example_{number}.c"));
        std::fs::write(&file, format!("{include}\n{ENGINE}\nint example({arguments}) {{\n{body}\nreturn 0;\n}}\n"))
            .unwrap();
        let built = Command::new("gcc")
            .args([
                "-std=c11",
                "-fsyntax-only",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-Wno-unused-function",
                "-I",
            ])
            .arg(root.join("include"))
            .arg(&file)
            .output()
            .unwrap();
        assert!(built.status.success(), "example {number}: {}", String::from_utf8_lossy(&built.stderr));
    }
}
