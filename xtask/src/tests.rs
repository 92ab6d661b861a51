//! `cargo xtask test`: everything that must hold.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use kv_store_tests::cluster::RedisCluster;
use kv_store_tests::memkv::{self, MemkvServer};
use kv_store_tests::mooncake::{self, GRANTS, Mooncake};
use kv_store_tests::redis::RedisServer;
use kv_store_tests::seaweed::{ACCESS_KEY_ID, SECRET_ACCESS_KEY, Seaweed};

use crate::compiled::Compiled;
use crate::languages::{self, Language};
use crate::place::Place;
use crate::{
    aarch64, bench, book, demo, deny, dist, former, guests, llama, llama_servers, package, packages, portable, python,
    quick, second_host, servers, simulate, step,
};

#[derive(clap::Args)]
pub struct TestOptions {
    /// Only what is worth running after each change: 3 minutes, without root and without servers; says what it left out
    #[arg(long, conflicts_with_all = ["engines", "languages"])]
    quick: bool,
    /// Only the engines that are too large for each run: llama-server (5 minutes the first time, then half a minute), and the adapters
    /// in their engines on a CPU, a vLLM that serves models among them (6.5 GB and 10 minutes the first time)
    #[arg(long)]
    engines: bool,
    /// Only Debian's newest llama-server, whatever its version is; `--engines` runs it only if it has the version that the checks name. With
    /// `--engines`: only the adapters in the newest releases that PyPI has of their engines; writes the table of docs/engines/index.md
    #[arg(long, conflicts_with_all = ["quick", "languages", "aarch64", "second_host"])]
    newest: bool,
    /// Mixed requests to servers with the automatic cache, for each of the four kinds of models
    #[arg(long, default_value_t = 200)]
    requests: u32,
    /// Only `kv-store new`, `build` and `check` in each language, JavaScript and Python included (400 MB and a minute of npm and pip the
    /// first time, then about two minutes)
    #[arg(long, conflicts_with = "engines")]
    languages: bool,
    /// Only what runs for Linux on aarch64, under qemu; says what it left out
    #[arg(long, conflicts_with_all = ["engines", "languages", "quick"])]
    aarch64: bool,
    /// Only what runs with the portable ways of the platform, those of macOS, on Linux: unit tests, conformance, guests that misbehave,
    /// torture
    #[arg(long, conflicts_with_all = ["engines", "languages", "quick", "aarch64"])]
    portable: bool,
    /// Only the second host: components of tests/compat on jco and Node.js (110 MB of npm the first time, then a minute)
    #[arg(long, conflicts_with_all = ["quick", "engines", "languages"])]
    second_host: bool,
    /// Only the libraries of former versions beside this one, on one store. DIST is what `cargo xtask dist` laid out in a clone of a
    /// former version; without one 0.1.0 and 0.2.0 are built first, in target/former (git's whole history, 4 GB, half an hour)
    #[arg(long, value_name = "DIST", num_args = 0.., conflicts_with_all = ["quick", "engines", "languages", "aarch64", "second_host"])]
    former: Option<Vec<PathBuf>>,
}

pub fn run(place: &Place, options: &TestOptions) -> Result<()> {
    let start = step::Moment::now();
    if options.quick {
        quick::run(place)?;
    } else if options.engines && options.newest {
        crate::engines::test_newest(place)?;
    } else if options.engines {
        engines(place, options.requests)?;
    } else if options.newest {
        dist::run(place)?;
        llama_servers::test_newest(place, None, options.requests)?;
    } else if options.languages {
        dist::run(place)?;
        languages::test(place, &Language::ALL)?;
    } else if options.aarch64 {
        aarch64::test(place)?;
    } else if options.portable {
        portable::test(place)?;
    } else if options.second_host {
        second_host::test(place)?;
    } else if let Some(dists) = &options.former {
        former::test(place, dists)?;
    } else {
        all(place)?;
    }
    step::say_times(start);
    Ok(())
}

/// All but what is too large for each run.
fn all(place: &Place) -> Result<()> {
    packages::install(packages::TESTS)?;
    for component in ["fmt", "clippy"] {
        step::output(Command::new("cargo").args([component, "--version"]))
            .with_context(|| format!("cargo {component} is missing: rustup component add rustfmt clippy"))?;
    }
    for workspace in [
        ".",
        "engine-side/blocks/loom",
        "guests",
        "tests/guests",
        "tests/planted",
        "tests/models",
        "tests/simulate",
        "core/http-wire/oracle",
        "benches/far-peers",
    ] {
        quick::rustfmt(place, workspace)?;
    }
    deny::check(place)?;
    // One crate after another is most of what is built here: the second processor has the tests that need nothing of it.
    let row: [step::Step; 5] =
        [&|| simulate::test(place), &|| alone(place), &|| portable::units(place), &|| natively(place), &|| {
            xtask(place)
        }];
    step::beside(&row, || built(place))?;
    // First, because the tests run the pages for Python too.
    let wheel = python::test(place)?;
    let compiled = Compiled::take(place)?;
    workspace(place, &wheel)?;
    compiled.keep()?;
    languages::test(place, &Language::QUICK)?;
    package::tests::run(place, package::Verify::No)?;
    eprintln!("== one row of the benchmarks, for that they run");
    bench::run(place, &bench::BenchOptions::one_row("prefetch/hit"))?;
    llama(place, &wheel)
}

/// What is installed, its lints and its pages, and the programs of the tests.
fn built(place: &Place) -> Result<()> {
    dist::run(place)?;
    guests::build_for_tests(place)?;
    clippy(place)?;
    let mut doc = dist::cargo(place, "doc");
    step::run_shown("API docs, without warnings", doc.arg("--no-deps").env("RUSTDOCFLAGS", "-D warnings"))?;
    let _ = book::run(place)?;
    other_kernels(place)?;
    step::run_shown("building the tests", dist::cargo(place, "test").arg("--no-run"))
}

/// Test programs that wait for most of their time: for deadlines, for processes, for components that are compiled. They run beside the others.
const WAITING: &[&str] = &["check", "cli", "compat", "distributed"];

/// The tests of the workspace, all of them to the end, so that one run tells all that fails.
fn workspace(place: &Place, wheel: &python::Environment) -> Result<()> {
    let servers = servers::install(place)?;
    let (aside, rest): (Vec<String>, Vec<String>) =
        quick::test_programs(place)?.into_iter().partition(|name| WAITING.contains(&name.as_str()));
    ensure!(aside.len() == WAITING.len(), "xtask/src/tests.rs names a test program that is none: {WAITING:?}");
    let test = |what: &str, kinds: &[&str], names: &[String]| {
        let mut tests = dist::cargo(place, "test");
        tests.arg("--no-fail-fast").args(kinds).args(names.iter().flat_map(|name| ["--test", name]));
        step::run_shown(what, tests.env(servers::VARIABLE, &servers).env("KV_STORE_TEST_PYTHON", wheel.programs()))
    };
    step::beside(&[&|| test("tests that wait", &[], &aside)], || {
        let tests = test("tests", &["--lib", "--bins"], &rest);
        tests.and(test("tests of the API docs", &["--doc"], &[]))
    })
}

/// Tests with dependencies of their own, so that wasmtime is not compiled anew.
fn alone(place: &Place) -> Result<()> {
    for (what, workspace, target) in [
        ("the block cache's threads under loom", "engine-side/blocks/loom", "loom"),
        ("the models of the protocols", "tests/models", "models"),
    ] {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(place.root.join(workspace)).args(["test", "--release", "--locked", "--target-dir"]);
        step::run_shown(what, cargo.arg(place.target.join(target)))?;
    }
    Ok(())
}

/// The guests as programs of this machine, for their lints and for what is pure in them.
fn natively(place: &Place) -> Result<()> {
    for (what, workspace, target) in
        [("the guests", "guests", "guests-native"), ("http-wire beside hyper", "core/http-wire/oracle", "http-oracle")]
    {
        step::lint_and_test(what, |command| {
            let mut cargo = Command::new("cargo");
            cargo.current_dir(place.root.join(workspace)).args([command, "--locked", "--target-dir"]);
            cargo.arg(place.target.join(target));
            cargo
        })?;
    }
    Ok(())
}

fn xtask(place: &Place) -> Result<()> {
    step::lint_and_test("xtask", |command| {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&place.root).args([command, "--locked", "--package", "xtask"]);
        cargo
    })
}

fn clippy(place: &Place) -> Result<()> {
    let mut clippy = dist::cargo(place, "clippy");
    step::run_shown("clippy", clippy.args(["--all-targets", "--", "-D", "warnings"]))
}

/// The kernels' NEON code is compiled and looked at, where the target is installed; `cargo xtask test --aarch64` runs it.
fn other_kernels(place: &Place) -> Result<()> {
    use aarch64::TARGET;
    if !aarch64::is_installed()? {
        eprintln!("== skipped: kvx for {TARGET}, because that is not installed: rustup target add {TARGET}");
        return Ok(());
    }
    let mut clippy = Command::new("cargo");
    clippy.current_dir(&place.root).args(["clippy", "--locked", "--package", "kvx", "--target", TARGET]);
    step::run_shown(&format!("clippy of kvx for {TARGET}"), clippy.args(["--", "-D", "warnings"]))
}

/// Engines as people run them.
fn engines(place: &Place, requests: u32) -> Result<()> {
    packages::install(packages::TESTS)?;
    dist::run(place)?;
    llama_servers::test(place)?;
    llama_servers::test_newest(place, Some(llama::newest::VERSION), requests)?;
    crate::engines::test(place)
}

/// A real llama.cpp saves and restores through the library with each backend that lasts, and through the native one.
fn llama(place: &Place, wheel: &python::Environment) -> Result<()> {
    let llama = demo::prepare(place)?;
    step::run_shown("hostile bytes for the client's parsers", &mut Command::new(&llama.fuzz))?;
    let model = llama.model(&llama::SMALL)?;
    let native = llama::native_store(&place.llama(), &place.root, &|step| eprintln!("   {step}"))?;
    let check = |name: &str, library: &Path, uri: &str, files: Option<&Path>| {
        let mut check = llama.check(library, uri, files, &model, &[100, 512]);
        check.env("KV_STORE_WASM_CACHE", place.work().join("aot")).env_remove("KV_STORE_WASM_PATH");
        check.env("KV_STORE_WASM_CONFIG", place.empty_config()?).env("MEMKV_AUTH_KEY", memkv::AUTH_KEY);
        check.env("S3_ACCESS_KEY_ID", ACCESS_KEY_ID).env("S3_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY);
        if files.is_none() {
            // A new process learns only with the manifest what a server has.
            check.arg("--no-dedup");
        }
        step::run_shown(&format!("llama.cpp through {name}"), &mut check)
    };
    for (name, library) in [("local-fs", place.library()), ("native", native)] {
        let folder = llama_servers::empty_store(place, name)?;
        check(name, &library, &format!("local-fs://{}", folder.display()), Some(&folder))?;
    }
    let redis = RedisServer::start(&[]);
    check("redis", &place.library(), &format!("redis://127.0.0.1:{}/0", redis.port), None)?;
    let memkv = MemkvServer::start(&[]);
    check("memkv", &place.library(), &memkv.uri("llama"), None)?;
    let cluster = RedisCluster::start(3);
    check("Redis Cluster", &place.library(), &cluster.uri(), None)?;
    // SAFETY: nothing else runs in this process now that reads the environment.
    unsafe { std::env::set_var(servers::VARIABLE, servers::install(place)?) };
    if let Some(seaweed) = Seaweed::start(1, 1) {
        check("SeaweedFS", &place.library(), &seaweed.uri("llama"), None)?;
    }
    if let Some(mooncake) = Mooncake::start(1) {
        let config = place.work().join("mooncake.toml");
        std::fs::write(&config, format!("[backend.mooncake]\n{GRANTS}\n"))?;
        let mut check = llama.check(&place.library(), &mooncake::uri("llama"), None, &model, &[100, 512]);
        check.arg("--no-dedup").env("KV_STORE_WASM_CACHE", place.work().join("aot"));
        check.env("KV_STORE_WASM_CONFIG", config).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        step::run_shown("llama.cpp through Mooncake", &mut mooncake.namespace.enter(&check))?;
    }
    let slots = |name: &str, uri: &str, files: Option<&Path>| {
        let mut check = llama.check_slots(&place.llama_library(), uri, files, &model)?;
        check.env("KV_STORE_WASM_CACHE", place.work().join("aot")).env_remove("KV_STORE_WASM_PATH");
        check.env("KV_STORE_WASM_CONFIG", place.empty_config()?).env("MEMKV_AUTH_KEY", memkv::AUTH_KEY);
        step::run_shown(&format!("slots of an unmodified program through {name}"), &mut check)
    };
    let folder = llama_servers::empty_store(place, "slots")?;
    slots("local-fs", &format!("wasm://local-fs://{}", folder.display()), Some(&folder))?;
    slots("redis", &format!("wasm://redis://127.0.0.1:{}/1", redis.port), None)?;
    slots("memkv", &memkv.uri("slots"), None)?;
    step::run_shown("llama.cpp with the token-exact cache", &mut llama.check_cache(&place.cache_library(), &model))?;
    python::llama(place, wheel, &llama, &model)
}
