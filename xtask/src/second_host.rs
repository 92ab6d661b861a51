//! `cargo xtask test --second-host`: the components of `tests/compat` on another runtime, jco on Node.js, and what the guest `edges` finds
//! there. The host is `tests/second-host`.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use kv_store_tests::echo;
use kv_store_tests::memkv::{AUTH_KEY, MemkvServer};
use kv_store_tests::objects::ObjectServer;
use kv_store_tests::redis::RedisServer;

use crate::place::Place;
use crate::{dist, guests, packages, step};

/// The version of Node.js that runs all of it. On an older one Python's component is left out: it has constant expressions with additions.
const NODE: u32 = 22;
/// The oldest that runs the rest.
const OLDEST: u32 = 20;

pub fn test(place: &Place) -> Result<()> {
    packages::install(packages::ZSTD)?;
    packages::install(&["redis-server"])?;
    let folder = place.work().join("second-host");
    let Some(host) = install(place, &folder)? else { return Ok(()) };
    dist::run(place)?;
    guests::build_for_tests(place)?;

    let scratch = tempfile::tempdir()?;
    let mut failed = Vec::new();
    let mut judge = |name: &str, outcome: Result<()>| match outcome {
        Ok(()) => eprintln!("   {name}: ok"),
        Err(error) => {
            eprintln!("   {name}: {error:#}");
            failed.push(name.to_owned());
        }
    };
    let (echo, objects) = (echo::start(), ObjectServer::start());
    let network = format!("127.0.0.1:{echo},127.0.0.1:{}", objects.port);
    let redis = RedisServer::start(&[]);
    let memkv = MemkvServer::start(&["--memory", "1GiB"]);
    let authority = |uri: &str| uri.split('/').nth(2).unwrap_or_default().to_owned();
    for (name, component) in unpack(place, scratch.path())? {
        let directory = scratch.path().join(format!("{name}-store"));
        std::fs::create_dir_all(&directory)?;
        let directory = directory.display().to_string();
        if name.starts_with("python") && host.version < NODE {
            eprintln!(
                "   {name}: left out: it takes Node.js {NODE} (this is {}): constant expressions with additions",
                host.version
            );
            continue;
        }
        if name.ends_with("-calls") {
            let found =
                host.run("rows", &component, &format!("{name}://{directory}"), &directory, "", "").and_then(|files| {
                    Ok(files + &host.run("rows", &component, &format!("{name}://{network}/x"), "", &network, "")?)
                });
            judge(&name, found.and_then(|found| compare(&place.root.join("tests/compat/calls.txt"), &found)));
            continue;
        }
        let (uri, servers, secrets) = match name.as_str() {
            "local-fs" | "segments" => (format!("{name}://{directory}"), String::new(), String::new()),
            "edges" => {
                for (what, outcome) in edges(place, &host, &component, scratch.path(), &network)? {
                    judge(&what, outcome);
                }
                continue;
            }
            "redis" => {
                (format!("redis://127.0.0.1:{}/0", redis.port), format!("127.0.0.1:{}", redis.port), String::new())
            }
            "memkv" => {
                let uri = memkv.uri("second-host");
                (uri.clone(), authority(&uri), format!("auth-key={AUTH_KEY}"))
            }
            "s3" | "mooncake" => {
                eprintln!("   {name}: left out: its servers are those of `cargo xtask test`, and this host has no TLS");
                continue;
            }
            "rust-maintenance" => ("memory://second-host".into(), String::new(), String::new()),
            template => (format!("{template}-memory://second-host"), String::new(), String::new()),
        };
        judge(&name, host.run("check", &component, &uri, &directory, &servers, &secrets).map(drop));
    }

    let component = place.root.join("target/test-components/edges.wasm");
    for (what, outcome) in edges(place, &host, &component, scratch.path(), &network)? {
        judge(&format!("{what}, as it is built now"), outcome);
    }
    ensure!(failed.is_empty(), "on the second host these differ: {}", failed.join(", "));
    Ok(())
}

/// The program that runs a component.
struct Host {
    node: PathBuf,
    /// Node.js's.
    version: u32,
    folder: PathBuf,
}

impl Host {
    /// Run a component: what is asked of it, its URI, and the directory, servers and secrets that it is granted. Answers what is said.
    fn run(
        &self,
        what: &str,
        component: &Path,
        uri: &str,
        directory: &str,
        servers: &str,
        secrets: &str,
    ) -> Result<String> {
        let mut command = Command::new(&self.node);
        command.current_dir(&self.folder).args(["run.mjs", what]).arg(component);
        let output = command.args([uri, directory, servers, secrets]).output().context("cannot run Node.js")?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(output.status.success(), "{}{}", said.trim(), String::from_utf8_lossy(&output.stderr).trim());
        Ok(said)
    }
}

/// What the guest `edges` finds, by table.
fn edges(
    place: &Place,
    host: &Host,
    component: &Path,
    scratch: &Path,
    servers: &str,
) -> Result<Vec<(String, Result<()>)>> {
    let folder = tempfile::tempdir_in(scratch)?;
    let table = |name: &str| place.root.join("tests/second-host").join(format!("edges-{name}.txt"));
    let mut judged = Vec::new();
    for name in ["files", "records"] {
        let directory = folder.path().join(name);
        std::fs::create_dir(&directory)?;
        let directory = directory.display().to_string();
        let found = host.run("edges", component, &format!("edges://{directory}"), &directory, "", "");
        judged.push((format!("edges-{name}"), found.and_then(|found| compare(&table(name), &found))));
    }
    let found = host.run("edges", component, &format!("edges://{servers}/x"), "", servers, "");
    judged.push(("edges-network".into(), found.and_then(|found| compare(&table("network"), &found))));
    Ok(judged)
}

/// The program's folder with what it imports, and the Node.js that runs it. None: there is none, which is said.
fn install(place: &Place, folder: &Path) -> Result<Option<Host>> {
    std::fs::create_dir_all(folder)?;
    let sources = place.root.join("tests/second-host");
    for entry in std::fs::read_dir(&sources)? {
        let entry = entry?;
        std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    let version = |node: &Path| -> Option<u32> {
        let said = step::output(Command::new(node).arg("--version")).ok()?;
        said.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
    };
    let own = version(Path::new("node"));
    if own.is_none_or(|own| own < OLDEST) {
        let found = own.map_or_else(|| "there is none".to_owned(), |own| format!("this is {own}"));
        eprintln!("skipped: the second host: it takes Node.js {OLDEST}, and {NODE} for all of it; {found}");
        return Ok(None);
    }
    let (stamp, wanted) = (folder.join("installed"), std::fs::read_to_string(sources.join("package.json"))?);
    if !std::fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
        let mut npm = Command::new("npm");
        npm.current_dir(folder).args(["install", "--no-audit", "--no-fund", "--no-save", "--no-package-lock"]);
        step::run(place, "installing jco", &mut npm)?;
        std::fs::write(&stamp, &wanted)?;
    }
    // That of the package `node`, where npm has a program for this machine.
    let installed = folder.join("node_modules/.bin/node");
    let found = match version(&installed) {
        Some(version) => Some((installed, version)),
        None => own.map(|own| ("node".into(), own)),
    };
    Ok(found.map(|(node, version)| Host { node, version, folder: folder.to_owned() }))
}

/// The components of 1.0 and 1.1, by name, under the names of their schemes.
fn unpack(place: &Place, folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut unpacked = Vec::new();
    for entry in std::fs::read_dir(place.root.join("tests/compat"))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let name = ["1.0.0-", "1.1.0-"].into_iter().find_map(|version| name.strip_prefix(version));
        let Some(name) = name.and_then(|name| name.strip_suffix(".wasm.zst")) else { continue };
        let component = folder.join(format!("{name}.wasm"));
        let mut zstd = Command::new("zstd");
        step::output(zstd.args(["--decompress", "--quiet", "--force"]).arg(&path).arg("-o").arg(&component))?;
        unpacked.push((name.to_owned(), component));
    }
    unpacked.sort();
    ensure!(!unpacked.is_empty(), "tests/compat has no components of 1.0.0");
    Ok(unpacked)
}

fn compare(path: &Path, found: &str) -> Result<()> {
    let table = path.file_name().unwrap_or_default().display();
    let expected = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let (found, expected): (Vec<&str>, Vec<&str>) = (found.lines().collect(), expected.lines().collect());
    let differ = |these: &[&str], those: &[&str]| {
        these.iter().filter(|line| !those.contains(line)).map(|line| format!("\n      {line}")).collect::<String>()
    };
    if found == expected {
        return Ok(());
    }
    bail!("{table} has{}\n   and this host{}", differ(&expected, &found), differ(&found, &expected))
}
