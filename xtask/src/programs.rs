//! The test programs of the workspace, several at a time.
//!
//! `cargo test` runs one after the other, and most of them wait for servers and deadlines while the processors rest. What one prints is
//! shown when it ends, whole, so that no two are mixed.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::place::Place;
use crate::{dist, quick, step};

/// A program of tests, as cargo has built it.
#[derive(Debug)]
struct Program {
    /// As a failure is to be run again: `-p PACKAGE --test NAME`.
    arguments: String,
    name: String,
    file: PathBuf,
    /// The folder of its package, where cargo would run it.
    folder: PathBuf,
}

/// Build all of them, run them, then the examples of the API docs. To the end, so that one run tells all that fails.
pub fn run(place: &Place, environment: &[(&str, PathBuf)]) -> Result<()> {
    let mut build = dist::cargo(place, "test");
    build.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    let programs = programs(&step::output_said("building the tests", &mut build)?)?;
    let failed = step::timed("tests", || run_all(programs, &place.work().join("logs/tests"), environment))?;
    let mut docs = dist::cargo(place, "test");
    docs.args(["--doc", "--no-fail-fast"]).envs(environment.iter().map(|(name, value)| (name, value)));
    let docs = step::run_shown("examples of the API docs", &mut docs);
    ensure!(failed.is_empty(), "test programs failed: {}", failed.join("; "));
    docs
}

/// The programs among what cargo says that it has built, those that take long first.
fn programs(said: &str) -> Result<Vec<Program>> {
    let mut programs = Vec::new();
    for line in said.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).context("cargo's messages are JSON")?;
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            continue;
        }
        let Some(file) = message["executable"].as_str() else { continue };
        programs.push(program(&message, file).with_context(|| format!("cargo says of {file} what is not understood"))?);
    }
    ensure!(!programs.is_empty(), "cargo has built no tests");
    programs.sort_by_key(|program| (!quick::takes_minutes(&program.name), program.name.clone()));
    Ok(programs)
}

fn program(message: &Value, file: &str) -> Option<Program> {
    let name = message["target"]["name"].as_str()?;
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    // path+file:///clone/core#kv-store-core@0.2.0, or #0.2.0 where the folder has the package's name.
    let (path, version) = message["package_id"].as_str()?.rsplit_once('#')?;
    let package = version.split_once('@').map_or_else(|| path.rsplit('/').next(), |(package, _)| Some(package))?;
    let arguments = match message["target"]["kind"][0].as_str()? {
        "test" => format!("-p {package} --test {name}"),
        "bin" => format!("-p {package} --bin {name}"),
        _ => format!("-p {package} --lib"),
    };
    Some(Program { arguments, name: name.to_owned(), file: file.into(), folder })
}

/// How many run at once: one more than there are processors, because most of them wait.
fn at_once() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from) + 1
}

/// Run them. Answers how those that failed are run again.
fn run_all(programs: Vec<Program>, logs: &Path, environment: &[(&str, PathBuf)]) -> Result<Vec<String>> {
    std::fs::create_dir_all(logs)?;

    let waiting = Mutex::new(VecDeque::from(programs));
    let failed = Mutex::new(Vec::new());
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || -> Result<()> {
        while let Some(program) = next() {
            if !run_one(&program, logs, environment)? {
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(program.arguments);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once()).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(_) => bail!("a thread that ran tests has panicked"),
        })
    })?;
    Ok(failed.into_inner().unwrap_or_else(PoisonError::into_inner))
}

fn run_one(program: &Program, logs: &Path, environment: &[(&str, PathBuf)]) -> Result<bool> {
    let start = Instant::now();
    // A file and no pipe, which would stay open as long as a server that a test has left behind.
    let log = logs.join(format!("{}.log", program.arguments.replace(' ', "_")));
    let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(&program.file);
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    let status = command.status().with_context(|| format!("cannot run {}", program.file.display()))?;
    let said = std::fs::read(&log)?;
    let said = String::from_utf8_lossy(&said);
    eprintln!("== {}: {status}, {:.1} s\n{}", program.arguments, start.elapsed().as_secs_f64(), said.trim());
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact(id: &str, kind: &str, name: &str, test: bool) -> String {
        serde_json::json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": "/clone/core/Cargo.toml",
            "target": {"kind": [kind], "name": name}, "profile": {"test": test}, "executable": format!("/built/{name}"),
        })
        .to_string()
    }

    #[test]
    fn what_cargo_has_built_is_found_and_what_takes_long_comes_first() {
        let said = [
            artifact("path+file:///clone/core#kv-store-core@0.2.0", "lib", "kv_store_core", true),
            artifact("path+file:///clone/kvx#0.2.0", "test", "bits", true),
            artifact("path+file:///clone/cli#kv-store@0.2.0", "bin", "kv-store", false),
            r#"{"reason": "build-finished", "success": true}"#.to_owned(),
            artifact("path+file:///clone/tests/blackbox#kv-store-tests@0.2.0", "test", "hostile", true),
        ]
        .join("\n");
        let programs = programs(&said).unwrap();
        let arguments: Vec<&str> = programs.iter().map(|program| &*program.arguments).collect();
        assert_eq!(arguments, ["-p kv-store-tests --test hostile", "-p kvx --test bits", "-p kv-store-core --lib"]);
        assert_eq!(programs[0].folder, PathBuf::from("/clone/core"));
        assert!(super::programs("").is_err());
    }

    #[test]
    fn one_that_fails_is_named_and_the_others_run() {
        let program = |name: &str| Program {
            arguments: name.to_owned(),
            name: name.to_owned(),
            file: format!("/bin/{name}").into(),
            folder: "/".into(),
        };
        let logs = tempfile::tempdir().unwrap();
        let failed = run_all(vec![program("false"), program("true")], logs.path(), &[]).unwrap();
        assert_eq!(failed, ["false"]);
    }
}
