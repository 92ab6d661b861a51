//! What others build against: the contract's text, the exported symbols, and what our guests ask for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::collections::BTreeSet;
use std::process::Command;

use kv_store_tests::{dist, root, shipped, test_components};
use sha2::{Digest, Sha256};
use wasmparser::{Parser, Payload, Validator, WasmFeatures};

/// SHA-256 of `wit/backend.wit`. Guests are built against that text: to change it is a decision, which this line and the
/// CHANGELOG record.
const CONTRACT_SHA256: &str = "342252076aa873d58cd91a098b9f6a9a9c2508f5d9e2301d99d5a9aaaac5fc82";

#[test]
fn the_contract_changes_only_by_decision() {
    let text = std::fs::read(root().join("wit/backend.wit")).unwrap();
    let digest = hex::encode(Sha256::digest(text));
    assert_eq!(
        digest, CONTRACT_SHA256,
        "wit/backend.wit changed; if that was decided, say so here and in CHANGELOG.md"
    );
}

/// The symbols of a list.
fn listed<T: FromIterator<String>>(list: &str) -> T {
    let text = std::fs::read_to_string(root().join(list)).unwrap();
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_library_exports_what_is_listed_and_nothing_else() {
    assert_eq!(exports("libkv_store_wasm.so"), listed("include/exports.txt"));
}

/// A preloaded library comes before all others: what it exports too much, it takes from them.
#[test]
fn the_preloaded_library_exports_its_own_functions_and_those_it_takes_the_place_of() {
    assert_eq!(exports("libkv_store_llama.so"), listed("bindings/llama/exports.txt"));
}

#[test]
fn the_header_of_the_preloaded_library_is_complete_in_both_languages() {
    let source = "#include \"kv_store_llama.h\"\nint main(void) { kv_store_llama_get_vtable()->close(0); return 0; }\n";
    for (standard, language) in [("-std=c11", "c"), ("-std=c++17", "c++")] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("only.c");
        std::fs::write(&path, source).unwrap();
        let mut cc = Command::new("cc");
        cc.args([standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", language]);
        let built = cc.arg("-I").arg(dist().join("include")).arg(&path).output().expect("cc runs: install gcc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    }
}

fn exports(library: &str) -> BTreeSet<String> {
    let mut nm = Command::new("nm");
    let output = nm.args(["-D", "--defined-only"]).arg(dist().join("lib").join(library)).output().expect("nm runs");
    let output = String::from_utf8(output.stdout).unwrap();
    // `name@@version`; the version itself is listed as an absolute symbol.
    let named = output.lines().filter(|line| !line.contains(" A ")).filter_map(|line| line.split_whitespace().last());
    named.map(|name| name.split_once('@').map_or(name, |(name, _version)| name).to_owned()).collect()
}

/// A program that is linked with the library names it by this, and holds each symbol to this version.
#[test]
fn the_library_has_a_name_and_a_version_for_programs_that_are_linked_with_it() {
    const SONAME: &str = "libkv_store_wasm.so.1";
    let library = dist().join("lib/libkv_store_wasm.so");
    let ask = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).arg(&library).output().expect("binutils are there");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(ask("readelf", &["--dynamic", "--wide"]).contains(&format!("Library soname: [{SONAME}]")));
    let exported = ask("nm", &["--dynamic", "--defined-only"]);
    for line in exported.lines().filter(|line| !line.contains(" A ")) {
        assert!(line.ends_with(&format!("@@{SONAME}")), "{line} has no version");
    }
}

/// A program that is linked with `-lkv_store_wasm` starts: each library is there under the name that such a program looks for.
#[test]
fn a_program_that_is_linked_with_a_library_starts() {
    const LINKED: [(&str, &str, &str); 3] = [
        ("kv_store_wasm", "kv_store_wasm.h", "kv_store_wasm_get_vtable()->metrics(0, 0) == 0"),
        ("kv_cache", "kv_cache.h", "kv_cache_get_vtable()->size != sizeof(kv_cache_vtable_t)"),
        ("kv_store_llama", "kv_store_llama.h", "kv_store_llama_get_vtable()->open(\"no uri\", 0) != 0"),
    ];
    let folder = tempfile::tempdir().unwrap();
    for (library, header, failed) in LINKED {
        let (source, program) = (folder.path().join("linked.c"), folder.path().join("linked"));
        std::fs::write(&source, format!("#include \"{header}\"\nint main(void) {{ return {failed}; }}\n")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Werror", "-I"]).arg(dist().join("include")).arg(&source);
        cc.arg("-L").arg(dist().join("lib")).arg(format!("-l{library}")).arg("-o").arg(&program);
        let built = cc.output().expect("cc runs: install gcc");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let ran = Command::new(&program).env("LD_LIBRARY_PATH", dist().join("lib")).output().unwrap();
        assert!(ran.status.success(), "{library}: {}: {}", ran.status, String::from_utf8_lossy(&ran.stderr));
    }
}

/// By `kv_store_deprecated.h`. `compat.rs` runs what these sources were in 0.2.
#[test]
fn programs_that_were_written_for_0_2_compile() {
    let folder = root().join("tests/compat/programs/0.2.0");
    let sources = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let sources: Vec<_> = sources.filter(|path| path.extension().is_some_and(|extension| extension == "c")).collect();
    assert_eq!(sources.len(), 6);
    for source in sources {
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-I"]);
        let built = cc.arg(root().join("include")).arg(&source).output().expect("cc runs: install gcc");
        assert!(built.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&built.stderr));
    }
}

fn component(name: &str) -> Vec<u8> {
    std::fs::read(dist().join("components").join(format!("{name}.wasm"))).unwrap()
}

#[test]
fn our_guests_are_valid_components_and_need_no_wasi() {
    for name in shipped() {
        let bytes = component(&name);
        // The features that the host runs with: nothing newer than WASI 0.2's component model.
        let features = WasmFeatures::WASM2 | WasmFeatures::COMPONENT_MODEL;
        Validator::new_with_features(features).validate_all(&bytes).unwrap();
        let decoded = wit_component::decode(&bytes).unwrap();
        let world = decoded.resolve().worlds.iter().next().unwrap().1;
        let name_of = |key| decoded.resolve().name_world_key(key);
        let imports: BTreeSet<String> = world.imports.keys().map(name_of).collect();
        let exports: BTreeSet<String> = world.exports.keys().map(name_of).collect();
        assert!(imports.iter().all(|import| import.starts_with("kv-store:backend/")), "{name} imports {imports:?}");
        let own = ["store", "maintenance"].map(|interface| format!("kv-store:backend/{interface}@1.1.0"));
        assert_eq!(exports, BTreeSet::from(own), "{name}");
        let expected: &[&str] = match name.as_str() {
            "local-fs" => &["files", "payloads", "store-types", "system", "types"],
            "segments" => &["payloads", "records", "store-types", "system", "types"],
            "s3" => &["changes", "http", "payloads", "store-types", "system", "types"],
            "redis" | "memkv" | "mooncake" => &["changes", "net", "payloads", "store-types", "system", "types"],
            "memory" => &["payloads", "store-types", "system", "types"],
            other => panic!("state here what {other} imports"),
        };
        let expected = expected.iter().map(|interface| format!("kv-store:backend/{interface}@1.1.0")).collect();
        assert_eq!(imports, expected, "{name} imports what it uses");
    }
}

#[test]
fn the_guests_for_wasi_reach_their_files_through_it() {
    for (name, through_us) in [("std-fs", false), ("c-fs", true)] {
        let bytes = std::fs::read(test_components().join(format!("{name}.wasm"))).unwrap();
        let decoded = wit_component::decode(&bytes).unwrap();
        let world = decoded.resolve().worlds.iter().next().unwrap().1;
        let imports: Vec<String> = world.imports.keys().map(|key| decoded.resolve().name_world_key(key)).collect();
        let imports = |interface: &str| imports.iter().any(|import| import.starts_with(interface));
        assert!(imports("wasi:filesystem/types@0.2."), "{name}");
        assert_eq!(imports("kv-store:backend/files@"), through_us, "{name}");
    }
}

/// A text that is kept under `snapshots`, and that only a decision changes. `UPDATE_SNAPSHOTS=1` writes it anew.
#[track_caller]
fn is_as_kept(name: &str, what: &str, text: &str) {
    let snapshot = root().join("tests/blackbox/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&snapshot, text).unwrap();
    }
    let kept = std::fs::read_to_string(&snapshot).unwrap_or_default();
    assert!(
        text == kept,
        "{what} is not {}; if that was decided, run this test with UPDATE_SNAPSHOTS=1. It is:\n{text}",
        snapshot.display()
    );
}

/// The contract with its prose, as `wasm-tools component wit wit` prints it: what a later 1.x keeps, line for line.
#[test]
fn the_contract_is_that_of_1_1_0_and_only_adds_to_1_0_0() {
    let mut resolve = wit_parser::Resolve::default();
    let text = std::fs::read_to_string(root().join("wit/backend.wit")).unwrap();
    let package = resolve.push_str("backend.wit", &text).unwrap();
    let mut printer = wit_component::WitPrinter::default();
    printer.print(&resolve, package, &[]).unwrap();
    let printed = printer.output.to_string();
    is_as_kept("contract-1.1.0.wit", "the contract", &printed);
    let former = std::fs::read_to_string(root().join("tests/blackbox/snapshots/contract-1.0.0.wit")).unwrap();
    let code = |text: &str| -> (Vec<String>, Vec<String>) {
        let is_prose =
            |line: &&str| ["///", "@since", "package "].iter().any(|begin| line.trim_start().starts_with(begin));
        let is_code = |line: &&str| !line.is_empty() && !is_prose(line);
        let lines = text.lines().filter(is_code);
        // The printer has the imports of a world in an order of its own.
        lines.map(str::to_owned).partition(|line| line.trim_start().starts_with("import "))
    };
    let ((imports, now), (former_imports, former)) = (code(&printed), code(&former));
    assert!(former_imports.iter().all(|import| imports.contains(import)), "{imports:?}");
    let mut now = now.into_iter();
    for line in former {
        assert!(now.any(|now| now == line), "1.0.0 has this line, and 1.1.0 has not, or in another order: {line}");
    }
}

/// What a component asks for: its functions as `INTERFACE.RESOURCE.FUNCTION`.
fn functions<'a>(
    resolve: &wit_parser::Resolve,
    items: impl Iterator<Item = (&'a wit_parser::WorldKey, &'a wit_parser::WorldItem)>,
) -> BTreeSet<String> {
    let mut functions = BTreeSet::new();
    for (_, item) in items {
        let wit_parser::WorldItem::Interface { id, .. } = item else { continue };
        let interface = &resolve.interfaces[*id];
        let name = interface.name.as_deref().unwrap();
        for function in interface.functions.keys() {
            let function = match function.strip_prefix("[constructor]") {
                Some(resource) => format!("{resource}.constructor"),
                None => function.split(']').next_back().unwrap().to_owned(),
            };
            functions.insert(format!("{name}.{function}"));
        }
    }
    functions
}

/// A text of the contract, from the clone.
fn text_of_contract(path: &str) -> (wit_parser::Resolve, wit_parser::PackageId) {
    let mut resolve = wit_parser::Resolve::default();
    let text = std::fs::read_to_string(root().join(path)).unwrap();
    let package = resolve.push_str(path, &text).unwrap();
    (resolve, package)
}

/// Those of the world `backend`: what it imports, and what it exports.
fn of_world(resolve: &wit_parser::Resolve, package: wit_parser::PackageId) -> (BTreeSet<String>, BTreeSet<String>) {
    let world = &resolve.worlds[resolve.select_world(&[package], Some("backend")).unwrap()];
    (functions(resolve, world.imports.iter()), functions(resolve, world.exports.iter()))
}

/// Those of a component of `tests/compat`: what it imports, and what it exports. Tools for Rust leave out what is not called.
fn of_component(name: &str) -> (BTreeSet<String>, BTreeSet<String>) {
    let folder = tempfile::tempdir().unwrap();
    let component = folder.path().join("component.wasm");
    kv_store_tests::compat::unpack(&root().join("tests/compat").join(name), &component);
    let decoded = wit_component::decode(&std::fs::read(component).unwrap()).unwrap();
    let resolve = decoded.resolve();
    let world = resolve.worlds.iter().next().unwrap().1;
    (functions(resolve, world.imports.iter()), functions(resolve, world.exports.iter()))
}

/// Components in JavaScript and Python import whole interfaces, so their own table says what they call. `host/tests/edges.rs` holds them, and
/// the component `edges`, to what they find.
#[test]
fn each_function_of_the_contract_is_called_by_a_component_that_must_load_for_ever() {
    let (resolve, package) = text_of_contract("wit/backend.wit");
    let (offered, exports) = of_world(&resolve, package);
    assert!(offered.len() > 60 && exports.len() == 8, "{offered:?} {exports:?}");

    let table = std::fs::read_to_string(root().join("tests/compat/calls.txt")).unwrap();
    let rows = table.lines().filter_map(|line| line.split_once(": "));
    let called: BTreeSet<String> = rows.map(|(function, _)| function.to_owned()).collect();
    let (former, package_of_former) = text_of_contract("tests/blackbox/snapshots/contract-1.0.0.wit");
    let (first, _) = of_world(&former, package_of_former);
    assert_eq!(called, first, "tests/compat/calls.txt has a row of each function of 1.0.0");
    let (imported, _) = of_component("1.1.0-edges.wasm.zst");
    let uncalled: Vec<&String> = offered.difference(&first).filter(|function| !imported.contains(*function)).collect();
    assert!(
        uncalled.is_empty(),
        "tests/compat/1.1.0-edges.wasm.zst, of tests/guests/edges, calls none of {uncalled:?}"
    );

    let maintenance = resolve.packages[package].interfaces["maintenance"];
    let optional = resolve.interfaces[maintenance].functions.keys().map(|name| format!("maintenance.{name}"));
    let (_, exported) = of_component("1.0.0-rust-maintenance.wasm.zst");
    assert_eq!(exported, exports.into_iter().chain(optional).collect(), "kv-store check calls these");
}

#[test]
fn what_local_fs_asks_for_changes_only_by_decision() {
    let bytes = component("local-fs");
    let decoded = wit_component::decode(&bytes).unwrap();
    let mut printer = wit_component::WitPrinter::default();
    printer.print(decoded.resolve(), decoded.package(), &[]).unwrap();
    is_as_kept("local-fs.wit", "the world of local-fs.wasm", &in_order(&printer.output.to_string()));
}

/// A world with its imports, and its exports, sorted: their order in a component is the linker's, and differs between machines.
fn in_order(world: &str) -> String {
    let mut lines: Vec<&str> = world.lines().collect();
    for group in lines.split_mut(|line| line.is_empty() || line.ends_with('{')) {
        group.sort_unstable_by_key(|line| (*line == "}", *line));
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_stamp_says_what_a_component_was_made_of() {
    let probe = std::fs::read(test_components().join("probe.wasm")).unwrap();
    let mut stamps = Vec::new();
    for payload in Parser::new(0).parse_all(&probe) {
        if let Payload::CustomSection(section) = payload.unwrap()
            && section.name() == "kv-store-backend"
        {
            stamps.push(String::from_utf8(section.data().to_vec()).unwrap());
        }
    }
    let [stamp] = stamps.as_slice() else { panic!("{} stamps", stamps.len()) };
    for line in [
        "component: probe 0.1.0",
        concat!("sdk: kv-store-sdk ", env!("CARGO_PKG_VERSION")),
        "contract: kv-store:backend@1.0.0-rc",
        "wish: nothing",
    ] {
        assert!(stamp.lines().any(|there| there == line), "no {line:?} in {stamp:?}");
    }
}

/// `inspect` validates a component as the loader does, which `tests/hostile` shows of the same components.
#[test]
fn inspect_tells_what_would_not_compile() {
    for name in ["async", "exceptions", "gc", "memory64", "threads"] {
        let component = test_components().join("hostile").join(format!("{name}.wasm"));
        let inspected = kv_store_tests::consumer::finish(kv_store_tests::kv_store().arg("inspect").arg(component));
        assert_eq!(inspected.status.code(), Some(1), "{name}: {}{}", inspected.stdout, inspected.stderr);
        assert!(inspected.stdout.contains("PROBLEM  does not compile: "), "{name}: {}", inspected.stdout);
    }
}

/// An interface of a later version, or of a component between host and backend, can use the types of `store` without its functions.
#[test]
fn the_types_of_store_can_be_imported_without_its_functions() {
    let contract = std::fs::read_to_string(root().join("wit/backend.wit")).unwrap();
    let inner = "package acme:mirror;
        interface inner { use kv-store:backend/store-types@1.1.0.{hashes, get-outcome}; get: func(hashes: hashes) -> list<get-outcome>; }
        world mirror { import inner; }";
    let mut resolve = wit_parser::Resolve::default();
    resolve.push_str("backend.wit", &contract).unwrap();
    let package = resolve.push_str("mirror.wit", inner).unwrap();
    let world = resolve.select_world(&[package], None).unwrap();
    let imports: BTreeSet<String> =
        resolve.worlds[world].imports.keys().map(|key| resolve.name_world_key(key)).collect();
    let expected = ["payloads", "store-types", "types"].map(|name| format!("kv-store:backend/{name}@1.1.0"));
    assert_eq!(imports, expected.into_iter().chain(["acme:mirror/inner".to_owned()]).collect());
}
