//! The headers of `include/` declare what the crate `kv-store-abi` has, and the libraries export what they declare.
//!
//! The headers are written by hand, for their prose. What a C compiler makes of them (rust-bindgen, by libclang) is compared with the crate's
//! source: each type with its fields in order, each constant, each function. The layouts that the crate asserts are asserted of the headers by
//! gcc too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

#[path = "headers/declarations.rs"]
mod declarations;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use declarations::{Declarations, Value};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Every header, by name.
fn headers() -> String {
    let names = std::fs::read_dir(root().join("include")).unwrap().map(|entry| entry.unwrap().file_name());
    let names: BTreeSet<String> = names.map(|name| name.into_string().unwrap()).collect();
    let names = names.iter().filter(|name| name.ends_with(".h") && *name != "kv_store_deprecated.h");
    names.map(|name| format!("#include \"{name}\"\n")).collect()
}

/// What the headers declare, as rust-bindgen sees it.
fn declared(with_deprecated: bool) -> Declarations {
    let include = root().join("include");
    let mut builder = bindgen::Builder::default()
        .header_contents("all.h", &headers())
        .clang_args([&*format!("-I{}", include.display()), "-std=c11"])
        .allowlist_file(format!("{}/.*", include.display()))
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_copy(false)
        .derive_debug(false)
        .layout_tests(false);
    if !with_deprecated {
        builder = builder.clang_arg("-DKV_STORE_NO_DEPRECATED");
    }
    let made =
        builder.generate().expect("the headers can be read: apt-get install libclang1-19 libclang-common-19-dev");
    Declarations::of_bindgen(&made.to_string())
}

fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(sources(path.to_str().unwrap())),
            false => found.push(path),
        }
    }
    found
}

/// The crate's types and constants, and the functions that the libraries export; without what is deprecated.
fn ours() -> Declarations {
    let mut ours = Declarations::default();
    let current = |path: &PathBuf| !path.ends_with("deprecated.rs");
    for path in sources("ffi/abi/src").iter().filter(|path| current(path)) {
        ours.add_types(&std::fs::read_to_string(path).unwrap());
    }
    let exporting = ["ffi/src", "engine-side/kv-cache/src/ffi", "engine-side/kvx/c/src"].into_iter().flat_map(sources);
    for path in exporting.chain([root().join("bindings/llama/src/api.rs")]).filter(current) {
        ours.add_exports(&std::fs::read_to_string(path).unwrap());
    }
    ours
}

/// The differences, one a line.
fn differences<T: PartialEq + std::fmt::Debug>(
    what: &str,
    headers: &BTreeMap<String, T>,
    ours: &BTreeMap<String, T>,
) -> Vec<String> {
    let names: BTreeSet<&String> = headers.keys().chain(ours.keys()).collect();
    let differ = names.into_iter().filter(|name| headers.get(*name) != ours.get(*name));
    differ
        .map(|name| format!("{what} {name}:\n  headers {:?}\n  crates  {:?}", headers.get(name), ours.get(name)))
        .collect()
}

#[test]
fn the_headers_and_the_crate_declare_the_same() {
    let (headers, ours) = (declared(false), ours());
    let mut all = differences("type", &headers.types, &ours.types);
    all.extend(differences("function", &headers.functions, &ours.functions));
    // What bindgen makes no constant of (a cast, a macro of the C library) is compared by gcc below.
    let of_headers = &headers.constants;
    let computed = ["KV_STORE_LEN_UNKNOWN", "KV_STORE_WASM_MAX_VALUE_BYTES"];
    let constants = ours.constants.iter().filter(|(name, _)| !computed.contains(&name.as_str()));
    all.extend(differences(
        "constant",
        of_headers,
        &constants.map(|(name, value)| (name.clone(), value.clone())).collect(),
    ));
    assert!(all.is_empty(), "{}", all.join("\n"));
    assert!(ours.types.len() > 50 && ours.constants.len() > 90 && ours.functions.len() == 12, "too little was found");
}

#[test]
fn gcc_lays_the_headers_out_as_the_crate_asserts() {
    let ours = ours();
    let mut program = headers();
    for (name, (size, fields)) in &ours.layouts {
        program += &format!("_Static_assert(sizeof({name}) == {size}, \"{name}\");\n");
        for (field, offset) in fields {
            program += &format!("_Static_assert(offsetof({name}, {field}) == {offset}, \"{name}.{field}\");\n");
        }
    }
    let structs: BTreeSet<&String> =
        ours.types.iter().filter(|(_, what)| what.is_struct()).map(|(name, _)| name).collect();
    assert_eq!(ours.layouts.keys().collect::<BTreeSet<_>>(), structs, "each struct has an asserted layout");
    for (name, value) in &ours.constants {
        if let Value::Number(value) = value {
            let suffix = if *value > i64::MAX.into() { "u" } else { "" };
            program += &format!("_Static_assert({name} == {value}{suffix}, \"{name}\");\n");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("layouts.c");
    std::fs::write(&path, program).unwrap();
    let mut gcc = Command::new("gcc");
    let compiled =
        gcc.args(["-std=c11", "-fsyntax-only", "-I"]).arg(root().join("include")).arg(&path).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
}

/// A function of 0.2 takes what the function of the table takes that it forwards to, and the numbers of 0.2 are the crate's.
#[test]
fn what_is_deprecated_forwards() {
    let (headers, before) = (declared(true), declared(false));
    let mut ours = Declarations::default();
    ours.add_types(&std::fs::read_to_string(root().join("ffi/abi/src/deprecated.rs")).unwrap());
    assert_eq!(ours.constants.len(), 9);
    for (name, value) in &ours.constants {
        assert_eq!(headers.constants.get(name), Some(value), "{name}");
    }
    let deprecated: Vec<_> =
        headers.functions.iter().filter(|(name, _)| !before.functions.contains_key(*name)).collect();
    assert_eq!(deprecated.len(), 32, "{deprecated:?}");
    for (name, function) in deprecated {
        let member = match name.as_str() {
            "kv_cache_version" => Some("kv_cache_library_version".to_owned()),
            "kv_store_get_batch_vtable" => {
                assert_eq!(Some(function), headers.functions.get("kv_store_batch_get_vtable"));
                None
            }
            name => Some(name.to_owned()),
        };
        let Some(member) = member else { continue };
        let takes = |function: &str| function.split(" -> ").next().unwrap().to_owned();
        let found = headers.types.iter().find_map(|(table, what)| {
            let member = member.strip_prefix(table.strip_suffix("vtable_t")?)?;
            what.field(member)
        });
        assert_eq!(found.map(takes), Some(takes(function)), "{name}");
    }
}
