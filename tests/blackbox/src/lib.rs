//! What the tests share: where the library and the components are, and how to build a C program against them.
//!
//! [`consumer`] runs such programs.
//!
//! The tests run against `target/dist`, which `cargo xtask test` lays out: what is tested is what is installed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Once};
use std::time::Duration;

use kv_platform::sync::{Mutex, MutexGuard};

pub mod batch;
pub mod book;
pub mod built;
pub mod clock;
pub mod cluster;
pub mod compat;
pub mod consumer;
pub mod disk;
pub mod echo;
pub mod link;
pub mod memkv;
pub mod mooncake;
pub mod moto;
pub mod namespace;
pub mod objects;
pub mod proxy;
pub mod redis;
pub mod scratch;
pub mod seaweed;
pub mod servers;
pub mod tls;

pub use kv_store_conformance::{Handle, Library};

/// The counters of this process, as the library has them in the text format of Prometheus.
pub fn metrics(library: &Library) -> String {
    // SAFETY: as include/kv_store_wasm.h declares it.
    let metrics = unsafe { library.function::<extern "C" fn(*mut u8, usize) -> usize>("kv_store_wasm_metrics") };
    let metrics = metrics.expect("the library has counters");
    // They may grow between the two calls.
    let mut text = vec![0; metrics(std::ptr::null_mut(), 0) + 4096];
    let len = metrics(text.as_mut_ptr(), text.len());
    String::from_utf8(text[..len].to_vec()).expect("they are text")
}

/// Say that something is not tested here, and why, past what the tests' runner keeps of a test that passes.
pub fn skipped(why: impl Display) {
    let test = std::thread::current();
    let _ = writeln!(std::io::stderr(), "skipped: {}: {why}", test.name().unwrap_or("a test"));
}

/// The same of a program that `cargo xtask test` installs. It names the folder, and then the program must be there.
pub fn not_installed(program: &str) {
    let named = std::env::var_os(seaweed::FOLDER);
    assert!(named.is_none(), "{program} is not in {}={named:?}", seaweed::FOLDER);
    skipped(format_args!("{program} is not installed; `cargo xtask test` installs it"));
}

/// The clone.
pub fn root() -> PathBuf {
    // Where cargo or `cargo xtask` runs this from: in a build folder that several clones share, another of them may have compiled it.
    let run_from = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let is_clone = |folder: &&Path| folder.join("xtask/Cargo.toml").exists();
    Path::new(&run_from).ancestors().find(is_clone).expect("tests/blackbox lies in the clone").to_owned()
}

/// What an operator installs, built from the sources as they are, see [`built`].
pub fn dist() -> PathBuf {
    built::require("target/dist", "cargo xtask dist");
    built::require("target/dist/components", "cargo xtask dist");
    root().join("target/dist")
}

/// The names of the backends that ship.
pub fn shipped() -> BTreeSet<String> {
    let folder = std::fs::read_dir(dist().join("components")).expect("the components are laid out");
    let names = folder.map(|entry| entry.expect("the folder can be read").file_name());
    names.filter_map(|name| Some(name.to_str()?.strip_suffix(".wasm")?.to_owned())).collect()
}

/// The library's file.
pub fn library_path() -> PathBuf {
    emulated().unwrap_or_else(|| dist().join("lib/libkv_store_wasm.so"))
}

/// A library for the processor that an emulator stands for, which runs this process. Programs of that processor, such as its compile helper, cannot be started.
fn emulated() -> Option<PathBuf> {
    std::env::var_os("KV_STORE_TEST_EMULATED").map(PathBuf::from)
}

/// The file of the library that obeys the table `fault` of a backend's config.
pub fn faulty_library_path() -> PathBuf {
    // Laid out with it.
    dist();
    root().join("target/faults/lib/libkv_store_faults.so")
}

/// The folder of the components that only tests use.
pub fn test_components() -> PathBuf {
    built::require("target/test-components", "cargo xtask guests");
    root().join("target/test-components")
}

/// The library, loaded once, with a config that has the probe under many schemes, see [`PROBES`], and [`WASI_GUESTS`], and
/// trusts [`tls::certificates`].
pub fn library() -> &'static Library {
    static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
        set_environment();
        Library::load(&library_path()).expect("the library loads")
    });
    &LIBRARY
}

/// A library with the same config, and a clock of its stores that only [`Timed::pass`] moves.
pub struct Timed {
    pub library: Library,
    pass: extern "C" fn(u64),
}

impl Timed {
    /// Let time pass for what the stores know of their chunks.
    pub fn pass(&self, time: Duration) {
        (self.pass)(u64::try_from(time.as_millis()).expect("some seconds"));
    }
}

/// That library, for one test at a time.
pub fn timed() -> MutexGuard<'static, Timed> {
    static TIMED: LazyLock<Mutex<Timed>> = LazyLock::new(|| {
        set_environment();
        let library = Library::load(&faulty_library_path()).expect("the library loads");
        // SAFETY: as tests/library declares it.
        let pass = unsafe { library.function("kv_store_faults_pass") }.expect("its clock can be set");
        let timed = Timed { library, pass };
        timed.pass(Duration::ZERO);
        Mutex::new(timed)
    });
    TIMED.lock()
}

/// What the libraries that this process loads take from the environment.
fn set_environment() {
    static SET: Once = Once::new();
    SET.call_once(|| {
        let config = root().join("target/test-consumers").join(format!("library-{}.toml", std::process::id()));
        std::fs::create_dir_all(root().join("target/test-consumers")).expect("the target folder can be written to");
        std::fs::write(&config, probe_config()).expect("the target folder can be written to");
        // SAFETY: before a library is loaded, nobody else reads the environment: tests use it only by this function.
        unsafe {
            std::env::set_var("KV_STORE_WASM_CONFIG", &config);
            std::env::set_var("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"));
            std::env::set_var("MEMKV_AUTH_KEY", memkv::AUTH_KEY);
            std::env::set_var("S3_ACCESS_KEY_ID", seaweed::ACCESS_KEY_ID);
            std::env::set_var("S3_SECRET_ACCESS_KEY", seaweed::SECRET_ACCESS_KEY);
        }
    });
}

/// Schemes that the probe serves, each with what its config table holds besides the component.
pub const PROBES: &[(&str, &str)] = &[
    (
        "probe",
        // Its tests make it fail again and again, each on purpose.
        "options.write-through = '1'\nlimits.deadline_ms = 400\nlimits.memory_bytes = 33554432\nlimits.payload_bytes = 67108864\nlimits.breaker_failures = 0",
    ),
    ("probe-buffered", "options = {}"),
    ("probe-volatile", "options = { volatile = \"yes\" }"),
    ("probe-soon", "limits = { damaged_ms = 0 }"),
    ("probe-batches", "options = { batch = '4', answers = '3' }"),
    ("probe-slow", "options = { answers = '1', slow-puts = '200' }\nlimits.deadline_ms = 500"),
    ("probe-cheap", "options.cheap-repeat = '1'"),
    ("probe-failing", "options.failing-puts = '1'"),
    ("probe-keeps", "options = { failing-deletes = 'unsupported', write-through = '1' }\nlimits = { damaged_ms = 0 }"),
    ("probe-stuck", "options = { failing-deletes = 'unavailable' }\nlimits = { damaged_ms = 0 }"),
    ("probe-small", "options.max-value = '1000'"),
    ("probe-unverified", "verify = 'off'\noptions.write-through = '1'"),
    ("probe-strict", "verify = 'xxh3'\noptions.write-through = '1'"),
    ("probe-open-trap", "options.open = 'trap'"),
    ("probe-open-loop", "options.open = 'loop'\nlimits.deadline_ms = 200"),
    ("probe-option", "options.no-such-option = '1'"),
    ("probe-late", "options.write-through = '1'\nlimits = { deadline_ms = 400, breaker_failures = 0 }"),
    (
        "probe-settles",
        "options = { write-through = '1', settles = '1' }\nlimits = { deadline_ms = 60000, breaker_failures = 0 }",
    ),
    ("probe-breaker", "limits = { breaker_failures = 3, breaker_ms = 200 }"),
    ("probe-busy", "layout1 = 'off'\nlimits.waiting = 0"),
    ("probe-few", "limits = { connections = 3, idle_ms = 200 }"),
    ("probe-public", "connect = ['localhost:*', '127.0.0.1:*']"),
    ("probe-names", "connect = ['localhost:*']"),
    ("probe-private", "connect = ['localhost:*']\nprivate_networks = true"),
    ("probe-secret", "secrets = { token = 'ANOTHER_TOKEN' }"),
    ("probe-tenants", "secrets = { token = 'ANOTHER_TOKEN' }"),
];

/// Guests whose language brings WASI, each under the scheme of its name, with what its config table holds besides.
pub const WASI_GUESTS: &[(&str, &str)] = &[("std-fs", ""), ("c-fs", ""), ("wasi-probe", "limits.deadline_ms = 400")];
/// Directories that the probe is granted under `probe-folders`: `ro` to read and `rw` to write.
pub fn granted_folders() -> PathBuf {
    let folder = root().join("target/test-consumers/granted").join(std::process::id().to_string());
    for name in ["ro", "rw"] {
        std::fs::create_dir_all(folder.join(name)).expect("the target folder can be written to");
    }
    folder
}

fn probe_config() -> String {
    let table = |scheme: &str, component: &str, rest: &str| {
        let component = test_components().join(format!("{component}.wasm"));
        format!("[backend.{scheme}]\ncomponent = '{}'\n{rest}\n", component.display())
    };
    let probes = PROBES.iter().map(|(scheme, rest)| table(scheme, "probe", rest));
    let wasi = WASI_GUESTS.iter().map(|(name, rest)| table(name, name, rest));
    let ca = tls::certificates().ca.display();
    let folders = granted_folders();
    let folder =
        |name: &str| format!("fs.{name} = {{ path = '{}', access = '{name}' }}\n", folders.join(name).display());
    let folders = table("probe-folders", "probe", &(folder("ro") + &folder("rw")));
    // For tests with many servers, none of which is named in the URI.
    let nodes = table(
        "probe-nodes",
        "probe",
        &format!(
            "connect = ['127.0.0.1:*', 'cache.example:*']\nlimits = {{ deadline_ms = 60000, patience_ms = 20000, breaker_failures = 0 }}\ntls.ca = '{ca}'\n"
        ),
    );
    let hasty =
        table("probe-hasty", "probe", "connect = ['127.0.0.1:*']\nlimits = { deadline_ms = 60000, patience_ms = 100 }");
    let tenants = ["a", "b"].map(|name| format!("[[tenant]]\nuri = 'probe-tenants://x/{name}'\n"));
    let redis = format!("[backend.redis]\ntls.ca = '{ca}'\n");
    let objects = table("objects", "objects", "");
    // Manifests of more than a part.
    let limits = "breaker_failures = 0, patience_ms = 20000, deadline_ms = 60000, max_manifest_bytes = 134217728";
    let s3 = format!("[backend.s3]\nlimits = {{ {limits} }}\ntls.ca = '{ca}'\n");
    let compile = emulated().map(|_| "compile = 'in-process'\n".to_owned());
    let tables = probes.chain(wasi).chain([folders, redis, nodes, hasty, objects, s3]).chain(tenants);
    compile.into_iter().chain(tables).collect()
}

/// A C program from `tests/consumer`, built with every warning an error against the installed header.
pub fn compile(source: &str, language: &str, output: &Path) {
    compile_against(&dist(), source, language, &[], output);
}

/// The same with further options, against the headers of another installation.
pub fn compile_against(dist: &Path, source: &str, language: &str, options: &[&str], output: &Path) {
    let example = root().join("examples").join(source);
    let source = if example.exists() { example } else { root().join("tests/consumer").join(source) };
    let mut compiler = Command::new("cc");
    let standard = if language == "c" { "-std=c11" } else { "-std=c++17" };
    compiler.args([standard, "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", language]);
    compiler.arg(&source).arg("-I").arg(dist.join("include")).arg("-o").arg(output).args(["-pthread", "-ldl"]);
    compiler.args(options);
    let built = compiler.output().expect("cc runs: install gcc");
    assert!(built.status.success(), "{}:\n{}", source.display(), String::from_utf8_lossy(&built.stderr));
}

/// The native local-fs store, built from `tests/native`.
pub fn native_library(output: &Path) -> PathBuf {
    let output = output.join("libkv_store_native.so");
    let folder = root().join("tests/native");
    let sources = std::fs::read_dir(&folder).expect("tests/native is there").flatten().map(|entry| entry.path());
    let sources = sources.filter(|path| path.extension().is_some_and(|extension| extension == "c"));
    let cross = std::env::var("CROSS_COMPILE");
    let mut compiler = Command::new(cross.map_or("cc".to_owned(), |cross| cross + "gcc"));
    compiler.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]);
    compiler.args(sources).arg("-I").arg(root().join("include")).arg("-o").arg(&output).arg("-pthread");
    let built = compiler.output().expect("cc runs: install gcc");
    assert!(built.status.success(), "{}:\n{}", folder.display(), String::from_utf8_lossy(&built.stderr));
    output
}

/// The program `kv-store`, as it is installed, with an environment that says nothing but where it keeps code.
pub fn kv_store() -> Command {
    let program = dist().join("bin/kv-store");
    let made = root().join("target/test-consumers");
    std::fs::create_dir_all(&made).expect("a folder for what tests make");
    let config = made.join(format!("empty-{}.toml", std::process::id()));
    std::fs::write(&config, "").expect("an empty config");
    let mut command = Command::new(program);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("KV_STORE_WASM_CONFIG", config).env("KV_STORE_WASM_CACHE", made.join("cache"));
    command
}
