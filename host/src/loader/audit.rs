//! What a component imports and exports, held against what this host offers. wasmtime would refuse it too, with a message
//! about missing implementations that helps nobody.

use wasmparser::{Validator, WasmFeatures};
use wasmtime::component::Component;

use crate::error::{Error, ErrorKind};

/// The contract that this host serves.
const CONTRACT: &str = "kv-store:backend";
const VERSION: (u64, u64) = (1, 1);
const OFFERED: &[&str] = &["types", "store-types", "payloads", "net", "http", "files", "system", "changes", "records"];

/// Interfaces that only drafts of the contract had. `store` itself used `payload`, so every component built for a draft imports it.
const DRAFT: &[&str] = &["payload", "host"];

/// What it offers of WASI to components whose language brings it.
const WASI_VERSION: &str = "0.2";
const WASI: &[(&str, &[&str])] = &[
    (
        "cli",
        &[
            "environment",
            "exit",
            "stdin",
            "stdout",
            "stderr",
            "terminal-input",
            "terminal-output",
            "terminal-stdin",
            "terminal-stdout",
            "terminal-stderr",
        ],
    ),
    ("clocks", &["monotonic-clock", "wall-clock"]),
    ("filesystem", &["preopens", "types"]),
    ("io", &["error", "poll", "streams"]),
    ("random", &["insecure", "insecure-seed", "random"]),
    (
        "sockets",
        &["instance-network", "ip-name-lookup", "network", "tcp", "tcp-create-socket", "udp", "udp-create-socket"],
    ),
];

/// An interface's name in a component: `kv-store:backend/files@1.0.0`.
#[derive(Debug, PartialEq, Eq)]
struct Interface<'a> {
    package: &'a str,
    name: &'a str,
    version: Option<(u64, u64)>,
}

impl<'a> Interface<'a> {
    fn parse(full: &'a str) -> Self {
        let (path, version) = full.split_once('@').map_or((full, None), |(path, version)| (path, Some(version)));
        let (package, name) = path.split_once('/').unwrap_or((path, ""));
        let version = version.and_then(|version| {
            let mut numbers = version.split('.').map(|part| part.parse().ok());
            Some((numbers.next()??, numbers.next()??))
        });
        Interface { package, name, version }
    }
}

/// Check that a component is a backend that this host can serve. Its names were checked before it was compiled, but for one
/// that was compiled by an earlier version of this library.
pub(super) fn check(component: &Component) -> Result<(), Error> {
    let (ty, engine) = (component.component_type(), component.engine());
    let imports: Vec<String> = ty.imports(engine).map(|(name, _)| name.to_owned()).collect();
    let exports: Vec<String> = ty.exports(engine).map(|(name, _)| name.to_owned()).collect();
    check_names(&imports, &exports)
}

/// Whether a component can open files through WASI.
pub(super) fn imports_wasi_files(component: &Component) -> bool {
    let ty = component.component_type();
    ty.imports(component.engine()).any(|(name, _)| Interface::parse(name).package == "wasi:filesystem")
}

/// Whether a component can be listed and cleaned.
pub(super) fn exports_maintenance(component: &Component) -> bool {
    let ty = component.component_type();
    ty.exports(component.engine()).any(|(name, _)| is_maintenance(&Interface::parse(name)))
}

fn is_maintenance(export: &Interface) -> bool {
    export.package == CONTRACT && export.name == "maintenance"
}

/// Why this host does not offer what a component imports under a name; none if it does.
pub(crate) fn why_not_offered(import: &str) -> Option<String> {
    refuse_import(&Interface::parse(import))
}

/// Why what a component exports makes it no backend; none if it is one.
pub(crate) fn missing_export(exports: &[String]) -> Option<String> {
    check_names(&[], exports).err().map(|error| error.to_string())
}

/// Check the names of what a component imports and exports at its outside.
pub(super) fn check_names(imports: &[String], exports: &[String]) -> Result<(), Error> {
    for full in imports {
        if let Some(why) = refuse_import(&Interface::parse(full)) {
            return Err(Error::new(ErrorKind::Unsupported, format!("imports {full}, {why}")));
        }
    }
    if let Some(why) = outdated(imports) {
        return Err(Error::new(ErrorKind::Unsupported, why));
    }
    let store = exports.iter().map(|full| Interface::parse(full)).find(|i| i.package == CONTRACT && i.name == "store");
    match store.map(|interface| interface.version) {
        Some(Some((major, _))) if major == VERSION.0 => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::Unsupported,
            format!("exports another version of {CONTRACT}/store than {}.x, which this host serves", VERSION.0),
        )),
        None => {
            let exported = if exports.is_empty() { "nothing".to_owned() } else { exports.join(", ") };
            Err(Error::invalid(format!("exports no {CONTRACT}/store, so it is no backend (it exports {exported})")))
        }
    }
}

fn refuse_import(import: &Interface) -> Option<String> {
    if let Some(wasi) = import.package.strip_prefix("wasi:") {
        return refuse_wasi(wasi, import);
    }
    if import.package != CONTRACT {
        return Some(format!("which this host does not offer: it offers {CONTRACT} and WASI {WASI_VERSION}"));
    }
    if DRAFT.contains(&import.name) {
        return Some(format!(
            "an interface of a draft of the contract: rebuild the component with wit/backend.wit, or the SDK, of {CONTRACT} \
             {}.{}",
            VERSION.0, VERSION.1
        ));
    }
    if !OFFERED.contains(&import.name) {
        return Some("an interface that this host does not have: it may be newer than this host".into());
    }
    match import.version {
        Some((major, _)) if major == VERSION.0 => None,
        _ => Some(format!("but this host serves {CONTRACT} {}.{}", VERSION.0, VERSION.1)),
    }
}

fn refuse_wasi(package: &str, import: &Interface) -> Option<String> {
    let offered = WASI.iter().find(|(name, _)| *name == package);
    match (offered, import.version) {
        (Some((_, interfaces)), Some((0, 2))) if interfaces.contains(&import.name) => None,
        (Some(_), Some((0, 2))) => Some(match import.name {
            "run" => "which the host does not have: it is what a command exports, and a backend is a library".into(),
            _ => format!("an interface that this host's WASI {WASI_VERSION} does not have"),
        }),
        (Some(_), _) => Some(format!("but this host offers WASI {WASI_VERSION} only: build for wasm32-wasip2")),
        (None, _) if package == "http" => Some(
            "but this host makes no HTTP requests through WASI: make them through the contract's http interface".into(),
        ),
        (None, _) => {
            let packages: Vec<&str> = WASI.iter().map(|(name, _)| *name).collect();
            Some(format!("which this host does not offer: of WASI {WASI_VERSION} it offers {}", packages.join(", ")))
        }
    }
}

/// Why a component must be rebuilt that was built for the contract of 0.2; none: it was not. The names that it imports are those of today, and
/// their types are others. Whatever exports `store` imports the interface of its types, which 0.2 did not have.
pub(crate) fn outdated(imports: &[String]) -> Option<&'static str> {
    let has =
        |name: &str| imports.iter().map(|full| Interface::parse(full)).any(|i| i.package == CONTRACT && i.name == name);
    (has("types") && !has("store-types"))
        .then_some("was built for an earlier version of the contract: run kv-store update && kv-store build")
}

/// What wasmtime says when names match and types do not: a function of a newer contract, or a changed one.
pub(super) fn explain_mismatch(error: &wasmtime::Error) -> String {
    format!(
        "was built against a version of the contract or of WASI that this host, which serves {CONTRACT} {}.{} and WASI \
         {WASI_VERSION}, does not have: {error:#}",
        VERSION.0, VERSION.1
    )
}

/// Why the loader would not compile a component; none if it would. The features are those of `kv_store_compiler::config`.
pub(crate) fn invalid(bytes: &[u8]) -> Option<String> {
    let features = WasmFeatures::WASM2
        | WasmFeatures::COMPONENT_MODEL
        | WasmFeatures::TAIL_CALL
        | WasmFeatures::RELAXED_SIMD
        | WasmFeatures::EXTENDED_CONST
        | WasmFeatures::MULTI_MEMORY;
    let checked = Validator::new_with_features(features).validate_all(bytes);
    checked.err().map(|error| format!("does not compile: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_lists(imports: &[&str], exports: &[&str]) -> Result<(), Error> {
        let owned = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        check_names(&owned(imports), &owned(exports))
    }

    const STORE: &str = "kv-store:backend/store@1.0.0";

    #[test]
    fn a_backend_of_this_contract_passes() {
        let types = ["kv-store:backend/types@1.0.0", "kv-store:backend/store-types@1.0.0"];
        check_lists(&[types[0], types[1], "kv-store:backend/files@1.3.0"], &[STORE]).unwrap();
    }

    #[test]
    fn a_backend_of_an_earlier_text_is_told_how_to_be_rebuilt() {
        let former = ["kv-store:backend/types@1.0.0", "kv-store:backend/payloads@1.0.0"];
        let error = check_lists(&former, &[STORE]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("kv-store update && kv-store build"), "{error}");
    }

    #[test]
    fn wasi_of_the_version_that_is_offered_passes() {
        check_lists(&["wasi:cli/environment@0.2.0", "wasi:io/streams@0.2.9", "wasi:sockets/tcp@0.2.3"], &[STORE])
            .unwrap();
    }

    #[test]
    fn the_wasi_that_is_listed_is_the_wasi_that_is_linked() {
        let engine = wasmtime::Engine::default();
        let mut linker = wasmtime::component::Linker::new(&engine);
        crate::contract::wasi::add_to_linker(&mut linker).unwrap();
        let linked = |name: &str| {
            // A component that imports a function of that name: where there is an interface, it is told so.
            let mut bytes = b"\0asm\x0d\0\x01\0\x07\x05\x01\x40\0\x01\0\x0a".to_vec();
            bytes.extend([name.len() as u8 + 5, 1, 0, name.len() as u8]);
            bytes.extend(name.bytes().chain([1, 0]));
            let refused = linker.instantiate_pre(&Component::new(&engine, bytes).unwrap()).err();
            format!("{:#}", refused.expect("it is no function")).contains("found instance")
        };
        assert!(!linked("wasi:http/types@0.2.0"));
        for (package, interfaces) in WASI {
            for interface in *interfaces {
                let name = format!("wasi:{package}/{interface}@0.2.0");
                assert!(linked(&name), "{name}");
            }
        }
    }

    #[test]
    fn what_is_not_offered_is_named_with_the_reason() {
        for (import, said) in [
            ("wasi:cli/environment@0.3.0", "WASI 0.2 only"),
            ("wasi:cli/environment", "WASI 0.2 only"),
            ("wasi:cli/run@0.2.0", "a backend is a library"),
            ("wasi:clocks/timezone@0.2.0", "does not have"),
            ("wasi:http/outgoing-handler@0.2.0", "http interface"),
            ("wasi:nn/tensor@0.2.0-rc", "it offers cli, clocks"),
            ("acme:thing/x@1.0.0", "does not offer"),
            ("kv-store:backend/tape@1.1.0", "newer"),
            ("kv-store:backend/payload@1.0.0", "rebuild the component with wit/backend.wit, or the SDK"),
            ("kv-store:backend/host@1.0.0", "a draft of the contract"),
            ("kv-store:backend/files@2.0.0", "serves kv-store:backend 1.1"),
            ("stray", "does not offer"),
        ] {
            let error = check_lists(&[import], &[STORE]).unwrap_err().to_string();
            assert!(error.contains(import) && error.contains(said), "{error}");
        }
    }

    #[test]
    fn what_is_no_backend_is_refused() {
        assert!(check_lists(&[], &[]).unwrap_err().to_string().contains("nothing"));
        assert!(check_lists(&[], &["wasi:cli/run@0.2.0"]).unwrap_err().to_string().contains("wasi:cli/run"));
        assert!(check_lists(&[], &["kv-store:backend/store@2.0.0"]).is_err());
    }
}
