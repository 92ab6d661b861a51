//! `cargo xtask test`: everything that must hold.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use kv_store_tests::memkv::{self, MemkvServer};
use kv_store_tests::redis::RedisServer;

use crate::place::Place;
use crate::{bench, demo, dist, guests, llama, packages, step, toolchain};

pub fn run(place: &Place) -> Result<()> {
    packages::install(packages::TESTS)?;
    for component in ["fmt", "clippy"] {
        step::output(Command::new("cargo").args([component, "--version"]))
            .with_context(|| format!("cargo {component} is missing: rustup component add rustfmt clippy"))?;
    }
    for workspace in [".", "guests", "tests/guests"] {
        let mut fmt = Command::new("cargo");
        fmt.current_dir(place.root.join(workspace)).args(["fmt", "--all", "--check"]);
        step::run_shown(&format!("rustfmt in {workspace}"), &mut fmt)?;
    }
    if step::output(Command::new("cargo").args(["deny", "--version"])).is_ok() {
        let mut deny = Command::new("cargo");
        deny.current_dir(&place.root).args(["deny", "check", "licenses", "bans", "sources"]);
        step::run_shown("licences and sources of dependencies", &mut deny)?;
    } else {
        eprintln!("== skipped: licences and sources of dependencies, because cargo-deny is not installed");
    }
    dist::run(place)?;
    guests::build_for_tests(place)?;

    let mut clippy = dist::cargo(place, "clippy");
    clippy.args(["--all-targets", "--", "-D", "warnings"]);
    step::run_shown("clippy", &mut clippy)?;
    other_kernels(place)?;
    // As programs of this machine, for their lints and for what is pure in them.
    for (command, rest) in [("clippy", &["--all-targets", "--", "-D", "warnings"][..]), ("test", &[])] {
        let mut guests = Command::new("cargo");
        guests.current_dir(place.root.join("guests")).args([command, "--locked", "--target-dir"]);
        guests.arg(place.target.join("guests-native")).args(rest);
        step::run_shown(&format!("{command} of the guests"), &mut guests)?;
    }
    let mut tests = dist::cargo(place, "test");
    step::run_shown("tests", &mut tests)?;
    for (command, rest) in [("clippy", &["--all-targets", "--", "-D", "warnings"][..]), ("test", &[])] {
        let mut xtask = Command::new("cargo");
        xtask.current_dir(&place.root).args([command, "--locked", "--package", "xtask"]).args(rest);
        step::run_shown(&format!("{command} of xtask"), &mut xtask)?;
    }
    new_guest(place)?;
    eprintln!("== one row of the benchmarks, for that they run");
    bench::run(place, &bench::Options::one_row("prefetch/hit"))?;
    llama(place)
}

/// The kernels' NEON code is compiled and looked at, where the target is installed; no test runs it.
fn other_kernels(place: &Place) -> Result<()> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    let folder = step::output(Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]))?;
    if !Path::new(folder.trim()).exists() {
        eprintln!("== skipped: kvx for {TARGET}, because that is not installed: rustup target add {TARGET}");
        return Ok(());
    }
    let mut clippy = Command::new("cargo");
    clippy.current_dir(&place.root).args(["clippy", "--locked", "--package", "kvx", "--target", TARGET]);
    step::run_shown(&format!("clippy of kvx for {TARGET}"), clippy.args(["--", "-D", "warnings"]))
}

/// What `kv-store new` makes builds and passes `kv-store check` as it is.
fn new_guest(place: &Place) -> Result<()> {
    let folder = place.work().join("new-guest");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let kv_store = place.dist.join("bin/kv-store");
    let toolchain = toolchain::choose(toolchain::Target::Unknown)?;
    let run = |title: &str, arguments: &[&str], within: &Path| {
        let mut command = toolchain.user(&kv_store);
        command.current_dir(within).args(arguments).env("KV_STORE_WASM_CONFIG", place.empty_config()?);
        // The SDK's own dependencies are there already.
        command.env("CARGO_TARGET_DIR", place.target.join("guests"));
        if arguments == ["build"] {
            command.arg("--").args(toolchain.cargo_options());
        }
        step::run_shown(title, &mut command)
    };
    let project = folder.join("a-new-guest");
    run("a new guest project", &["new", "a-new-guest"], &folder)?;
    run("its component", &["build"], &project)?;
    run("kv-store check of it", &["check"], &project)
}

/// A real llama.cpp saves and restores through the library with each backend that lasts, and through the native one.
fn llama(place: &Place) -> Result<()> {
    let llama = demo::prepare(place)?;
    step::run_shown("hostile bytes for the client's parsers", &mut Command::new(&llama.fuzz))?;
    let model = llama.model(&llama::SMALL)?;
    let native = llama::native_store(&place.llama(), &place.root, &|step| eprintln!("   {step}"))?;
    let check = |name: &str, library: &Path, uri: &str, files: Option<&Path>| {
        let mut check = llama.check(library, uri, files, &model, &[100, 512]);
        check.env("KV_STORE_WASM_CACHE", place.work().join("aot")).env_remove("KV_STORE_WASM_PATH");
        check.env("KV_STORE_WASM_CONFIG", place.empty_config()?).env("MEMKV_AUTH_KEY", memkv::AUTH_KEY);
        if files.is_none() {
            // A new process learns only with the manifest what a server has.
            check.arg("--no-dedup");
        }
        step::run_shown(&format!("llama.cpp through {name}"), &mut check)
    };
    for (name, library) in [("local-fs", place.library()), ("native", native)] {
        let folder = place.root.join("target/llama-store").join(name);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        check(name, &library, &format!("local-fs://{}", folder.display()), Some(&folder))?;
    }
    let redis = RedisServer::start(&[]);
    check("redis", &place.library(), &format!("redis://127.0.0.1:{}/0", redis.port), None)?;
    let memkv = MemkvServer::start(&[]);
    check("memkv", &place.library(), &memkv.uri("llama"), None)?;
    step::run_shown("llama.cpp with the token-exact cache", &mut llama.check_cache(&place.cache_library(), &model))
}
