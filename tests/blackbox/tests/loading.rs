//! From a file to code that runs: what is refused and why, and the cache of compiled components. Each case is a process of
//! its own, because the environment says where things are: this test's own program, told to open a URI.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use kv_store_tests::{Library, dist, library_path, test_components};

const URI: &str = "KV_STORE_TEST_URI";

/// Not a case: what the cases run. Opens a URI, and tells by its exit code whether that worked.
#[test]
fn open_as_told() {
    let Ok(uri) = std::env::var(URI) else { return };
    let opened = Library::load(&library_path()).unwrap().open(&uri).is_some();
    std::process::exit(if opened { 42 } else { 43 });
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("components")).unwrap();
        Place { folder }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn components(&self) -> PathBuf {
        self.folder.path().join("components")
    }

    fn put(&self, scheme: &str, bytes: &[u8]) {
        std::fs::write(self.components().join(format!("{scheme}.wasm")), bytes).unwrap();
    }

    /// Whether a fresh process can open the URI, and what it says on the way.
    fn open(&self, uri: &str) -> (bool, String) {
        self.open_under("", uri)
    }

    /// The same under a config.
    fn open_under(&self, text: &str, uri: &str) -> (bool, String) {
        let config = self.folder.path().join("config.toml");
        std::fs::write(&config, text).unwrap();
        self.open_with(&config, uri)
    }

    /// The same with this config.
    fn open_with(&self, config: &Path, uri: &str) -> (bool, String) {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "open_as_told", "--nocapture"])
            .env(URI, uri)
            .env("KV_STORE_WASM_PATH", self.components())
            .env("KV_STORE_WASM_CACHE", self.cache())
            .env("KV_STORE_WASM_LOG", "info")
            .env("KV_STORE_WASM_CONFIG", config)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(42) => (true, said),
            Some(43) => (false, said),
            _ => panic!("{}: {said}", output.status),
        }
    }

    /// The file of the only compiled component.
    fn compiled(&self) -> PathBuf {
        let entries: Vec<_> = std::fs::read_dir(self.cache()).unwrap().flatten().collect();
        assert_eq!(entries.len(), 1, "{entries:?}");
        entries[0].path()
    }
}

fn memory() -> Vec<u8> {
    std::fs::read(dist().join("components/memory.wasm")).unwrap()
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o777
}

#[test]
fn a_component_is_compiled_once() {
    let place = Place::new();
    place.put("memory", &memory());
    let (opened, said) = place.open("memory://x");
    assert!(opened && said.contains("compiling"), "{said}");
    assert_eq!((mode(&place.cache()), mode(&place.compiled())), (0o700, 0o600));
    let (opened, said) = place.open("memory://x");
    assert!(opened && !said.contains("compiling"), "{said}");
}

#[test]
fn a_changed_component_is_compiled_anew() {
    let place = Place::new();
    place.put("probe", &memory());
    assert!(place.open("memory://x").0);
    place.put("probe", &std::fs::read(test_components().join("probe.wasm")).unwrap());
    let (opened, said) = place.open("probe://x");
    assert!(opened && said.contains("a probe"), "{said}");
}

#[test]
fn damaged_compiled_code_is_replaced() {
    let place = Place::new();
    place.put("memory", &memory());
    assert!(place.open("memory://x").0);
    let compiled = place.compiled();
    for damage in [&b""[..], b"not what it was", &std::fs::read(&compiled).unwrap()[..1000]] {
        std::fs::write(&compiled, damage).unwrap();
        let (opened, said) = place.open("memory://x");
        assert!(opened && said.contains("compiling"), "{said}");
        let (opened, said) = place.open("memory://x");
        assert!(opened && !said.contains("compiling"), "{said}");
    }
}

#[test]
fn no_flipped_bit_of_compiled_code_is_run() {
    let place = Place::new();
    place.put("memory", &memory());
    assert!(place.open("memory://x").0);
    let sound = std::fs::read(place.compiled()).unwrap();
    // Code that wasmtime would map and run as it is, and the seal behind it.
    for at in [sound.len() / 3, sound.len() / 2, sound.len() - 100, sound.len() - 20, sound.len() - 1] {
        let mut damaged = sound.clone();
        damaged[at] ^= 0x10;
        std::fs::write(place.compiled(), &damaged).unwrap();
        let (opened, said) = place.open("memory://x");
        assert!(opened && said.contains("damaged") && said.contains("compiling"), "byte {at}: {said}");
        assert!(std::fs::read(place.compiled()).unwrap() != damaged, "byte {at} stays");
    }
}

#[test]
fn code_of_another_component_is_not_taken_for_this_one() {
    let place = Place::new();
    place.put("memory", &memory());
    assert!(place.open("memory://x").0);
    let of_memory = place.compiled();
    let probe = Place::new();
    probe.put("probe", &std::fs::read(test_components().join("probe.wasm")).unwrap());
    assert!(probe.open("probe://x").0);
    std::fs::copy(&of_memory, probe.compiled()).unwrap();
    let (opened, said) = probe.open("probe://x");
    assert!(opened && said.contains("damaged") && said.contains("a probe"), "{said}");
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    hex::encode(sha2::Sha256::digest(bytes))
}

#[test]
fn a_pinned_component_is_the_only_one_that_is_loaded() {
    let place = Place::new();
    place.put("memory", &memory());
    let (right, wrong) = (sha256(&memory()), "0".repeat(64));
    let pinned = |digest: &str| format!("[backend.memory]\nsha256 = '{digest}'");
    assert!(place.open_under(&pinned(&right), "memory://x").0);
    let (opened, said) = place.open_under(&pinned(&wrong), "memory://x");
    assert!(!opened && said.contains(&right) && said.contains(&wrong), "{said}");
    // Before it is compiled.
    let fresh = Place::new();
    fresh.put("memory", &memory());
    let (opened, said) = fresh.open_under(&pinned(&wrong), "memory://x");
    assert!(!opened && !said.contains("compiling"), "{said}");
}

#[test]
fn a_component_over_its_limit_is_refused() {
    let place = Place::new();
    place.put("memory", &memory());
    let (opened, said) = place.open_under("[backend.memory]\nlimits.component_bytes = 10000", "memory://x");
    assert!(!opened && said.contains("component_bytes"), "{said}");
}

#[test]
fn a_compilation_that_takes_too_long_is_not_waited_for() {
    let place = Place::new();
    place.put("memory", &memory());
    let (opened, said) = place.open_under("[backend.memory]\nlimits.compile_ms = 1", "memory://x");
    assert!(!opened && said.contains("compile_ms"), "{said}");
    assert!(place.open("memory://x").0);
}

#[test]
fn a_misspelt_key_is_named_with_its_line() {
    let place = Place::new();
    place.put("memory", &memory());
    let (opened, said) = place.open_under("[backend.memory]\nlimits.memory_byte = 1", "memory://x");
    assert!(!opened && said.contains("config.toml:2") && said.contains("did you mean `memory_bytes`?"), "{said}");
}

#[test]
fn a_grant_over_what_the_host_relies_on_is_refused() {
    let place = Place::new();
    let own = [place.cache(), place.components(), place.folder.path().to_owned()];
    std::fs::create_dir(place.cache()).unwrap();
    place.put("memory", &memory());
    for path in own {
        let config = format!("[backend.memory]\nfs.x = {{ path = '{}' }}", path.display());
        let (opened, said) = place.open_under(&config, "memory://x");
        assert!(!opened && said.contains("overlaps"), "{said}");
    }
    // A secret's file too.
    let elsewhere = tempfile::tempdir().unwrap();
    let (folder, secret) = (elsewhere.path().display(), elsewhere.path().join("token"));
    let config = format!(
        "[backend.memory]\nfs.x = {{ path = '{folder}' }}\n[[tenant]]\nuri = 'other://'\nsecrets.token = {{ file = '{}' }}",
        secret.display()
    );
    let (opened, said) = place.open_under(&config, "memory://x");
    assert!(!opened && said.contains("overlaps a secret"), "{said}");
}

#[test]
fn a_cache_that_others_can_reach_is_not_used() {
    let place = Place::new();
    place.put("memory", &memory());
    std::fs::create_dir(place.cache()).unwrap();
    std::fs::set_permissions(place.cache(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let (opened, said) = place.open("memory://x");
    assert!(opened && said.contains("chmod 700"), "{said}");
    assert_eq!(std::fs::read_dir(place.cache()).unwrap().count(), 0);

    std::fs::remove_dir(place.cache()).unwrap();
    std::os::unix::fs::symlink(place.components(), place.cache()).unwrap();
    let (opened, said) = place.open("memory://x");
    assert!(opened && said.contains("link"), "{said}");
}

#[test]
fn compiled_code_that_others_can_write_is_not_used() {
    let place = Place::new();
    place.put("memory", &memory());
    assert!(place.open("memory://x").0);
    std::fs::set_permissions(place.compiled(), std::fs::Permissions::from_mode(0o666)).unwrap();
    let (opened, said) = place.open("memory://x");
    assert!(opened && said.contains("ignored") && said.contains("compiling"), "{said}");
}

#[test]
fn what_is_no_backend_is_refused_with_what_it_is() {
    let place = Place::new();
    place.put("memory", &memory());
    assert!(place.open("memory://x").0);
    let compiled = std::fs::read(place.compiled()).unwrap();
    let component_of_nothing = b"\0asm\x0d\0\x01\0";
    for (what, bytes, said) in [
        ("empty", &b""[..], "an empty file, not a component"),
        ("text", b"hello, this is text", "a text file, not a component"),
        ("module", b"\0asm\x01\0\0\0", "wasm-tools component new"),
        ("compiled", &compiled, "never accepted"),
        ("nothing", component_of_nothing, "no backend"),
        ("truncated", &memory()[..20_000], "not a valid component"),
    ] {
        place.put(what, bytes);
        let (opened, heard) = place.open(&format!("{what}://x"));
        assert!(!opened && heard.contains(said), "{what}: {heard}");
        assert!(heard.contains(&format!("{what}.wasm")), "the file is not named: {heard}");
    }
}

#[test]
fn an_unknown_scheme_says_where_it_was_looked_for() {
    let place = Place::new();
    let (opened, said) = place.open("acme://x");
    assert!(!opened && said.contains("acme.wasm") && said.contains("KV_STORE_WASM_PATH"), "{said}");
    assert!(said.contains(&place.components().display().to_string()), "{said}");
}

/// A component that imports an instance of this name, of a type that asks for nothing, and exports nothing.
fn importing(name: &str) -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0\x07\x03\x01\x42\0\x0a".to_vec();
    bytes.extend([name.len() as u8 + 5, 1, 0, name.len() as u8]);
    bytes.extend(name.bytes().chain([5, 0]));
    bytes
}

#[test]
fn wasi_that_is_not_offered_is_refused_with_the_reason() {
    let place = Place::new();
    for (import, said) in [
        ("wasi:http/types@0.2.3", "makes no HTTP requests"),
        ("wasi:cli/environment@0.3.0", "offers WASI 0.2 only"),
        ("wasi:nn/graph@0.2.0", "it offers cli, clocks, filesystem, io, random, sockets"),
    ] {
        place.put("wants", &importing(import));
        let (opened, heard) = place.open("wants://x");
        assert!(!opened && heard.contains(import) && heard.contains(said), "{import}: {heard}");
    }
    place.put("wants", &importing("wasi:cli/environment@0.2.3"));
    let (_, heard) = place.open("wants://x");
    assert!(heard.contains("exports no kv-store:backend/store"), "what is offered is no reason: {heard}");
}

#[test]
fn a_config_that_cannot_be_believed_is_refused() {
    let place = Place::new();
    place.put("memory", &memory());
    let config = place.folder.path().join("config.toml");
    std::fs::write(&config, "").unwrap();
    assert!(place.open_with(&config, "memory://").0);
    assert!(place.open_with(Path::new("/dev/null"), "memory://").0);
    let refused = |config: &Path, said: &str| {
        let (opened, log) = place.open_with(config, "memory://");
        assert!(!opened && log.contains(said), "{}: {log}", config.display());
    };
    refused(Path::new("config.toml"), "must be an absolute path");
    refused(place.folder.path(), "is not a file");
    std::fs::set_permissions(&config, PermissionsExt::from_mode(0o666)).unwrap();
    refused(&config, "everybody may write to it");
    let fifo = place.folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    refused(&fifo, "is not a file");
}
