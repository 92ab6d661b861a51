//! `--against LIB`: the library beside a former one, in turns within one process, over the single calls of the ABI, on files and on servers.
//!
//! How far two runs of one library lie apart is measured first, with the former one against itself. Where that is over [`SPREAD`](crate::spread::SPREAD) the
//! times of this machine say nothing, and instructions and system calls of both are counted in processes of their own: by perf and strace,
//! or step by step, see [`steps`].

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use kv_store_conformance::Library;
use serde_json::json;

use crate::consumer::{Client, key};
use crate::measure::{Bench, Mode, rounded};
use crate::spread::GOAL;
use crate::{rows, steps};

/// Operations that are counted; as many before them are not.
const COUNTED: u64 = 200;
/// The same where each of their instructions takes microseconds.
const STEPPED: u64 = 16;

/// Measure two libraries. `bench` makes a run of two in a mode.
pub fn run(ours: &Path, former: &Path, work: &Path, bench: impl Fn(&Path, &Path, Mode) -> Result<Bench>) -> Result<()> {
    let itself = bench(former, former, Mode::Itself(RefCell::default()))?;
    measure(&itself)?;
    let Mode::Itself(spreads) = itself.mode else { bail!("a run keeps its mode") };
    let against = bench(ours, former, Mode::Former { spreads: spreads.into_inner(), uncertain: RefCell::default() })?;
    measure(&against)?;
    let Mode::Former { uncertain, .. } = against.mode else { bail!("a run keeps its mode") };
    for name in uncertain.into_inner() {
        count(&name, ours, former, work)?;
    }
    Ok(())
}

fn measure(bench: &Bench) -> Result<()> {
    rows::fs::singles(bench)?;
    rows::open::run(bench)?;
    rows::servers::run(bench)
}

/// What is counted of a process.
struct Counter {
    name: &'static str,
    program: &'static [&'static str],
    /// The number in what the program wrote.
    read: fn(&str) -> Option<f64>,
}

const COUNTERS: [Counter; 2] = [
    Counter {
        name: "instructions",
        program: &["perf", "stat", "-x,", "-e", "instructions:u", "-o"],
        read: |text| text.lines().find_map(|line| line.split(',').next()?.parse().ok()),
    },
    Counter {
        name: "system-calls",
        program: &["strace", "-f", "-c", "-U", "calls,name", "-o"],
        read: |text| {
            text.lines().find_map(|line| line.trim().strip_suffix("total")?.split_whitespace().next()?.parse().ok())
        },
    },
];

fn count(name: &str, ours: &Path, former: &Path, work: &Path) -> Result<()> {
    for counter in &COUNTERS {
        let count = |library: &Path| -> Result<Option<f64>> {
            let (few, more) = (process(counter, name, 1, library, work)?, process(counter, name, 2, library, work)?);
            Ok(few.zip(more).map(|(few, more)| (more - few) / COUNTED as f64))
        };
        let mut both = (count(ours)?, count(former)?);
        if both == (None, None) && counter.name == "instructions" {
            both = (stepped(name, ours, work)?, stepped(name, former, work)?);
        }
        let (Some(ours), Some(former)) = both else {
            eprintln!("skipped: {name}/{}, because {} cannot count here", counter.name, counter.program[0]);
            continue;
        };
        let row = json!({
            "name": format!("against/{name}/{}", counter.name), "ours": rounded(ours), "peer": rounded(former),
            "ratio": rounded(former / ours), "unit": "", "better": "lower", "goal": GOAL,
        });
        println!("{row}");
    }
    Ok(())
}

/// What a process counts that does so many times the operations that are counted. None: the program is not there, or may not.
fn process(counter: &Counter, name: &str, times: u64, library: &Path, work: &Path) -> Result<Option<f64>> {
    let said = work.join("counted");
    let (program, arguments) = counter.program.split_first().context("a counter has a program")?;
    let mut command = Command::new(program);
    command.args(arguments).arg(&said).arg(std::env::current_exe()?);
    let _server = performing(&mut command, name, times * COUNTED, library, work);
    match command.output() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
        Ok(output) if !output.status.success() => {
            bail!("{name} cannot be counted: {}", String::from_utf8_lossy(&output.stderr))
        }
        Ok(_) => Ok((counter.read)(&std::fs::read_to_string(&said)?)),
    }
}

/// Instructions of one operation. None: it is processes, or not of this machine's kind.
fn stepped(name: &str, library: &Path, work: &Path) -> Result<Option<f64>> {
    if name == "open/cold" {
        return Ok(None);
    }
    let mut command = Command::new(std::env::current_exe()?);
    let _server = performing(&mut command, name, STEPPED, library, work);
    let counted = steps::instructions(command.arg("--stepped")).with_context(|| format!("{name} cannot be counted"))?;
    Ok(counted.map(|counted| counted as f64 / STEPPED as f64))
}

/// Have a command perform operations. The server that some need is not among what is counted.
fn performing(
    command: &mut Command,
    name: &str,
    times: u64,
    library: &Path,
    work: &Path,
) -> Option<rows::servers::Server> {
    let server = rows::servers::NAMES.contains(&name).then(|| rows::servers::Server::start(name));
    if let Some(server) = &server {
        command.args(["--on", &server.uri(1)]);
    }
    command.args(["--perform", name, "--times", &times.to_string()]);
    command.arg("--library").arg(library).arg("--work").arg(work).stdin(Stdio::null());
    server
}

/// The operation of a row, so many times: what is counted from outside.
pub fn perform(name: &str, times: Times, library: &Path, work: &Path, on: Option<&str>) -> Result<()> {
    if let Some(uri) = on {
        let library = load(library)?;
        let mut work = rows::servers::Work::new(name, &library, uri)?;
        return times.repeat(|_| {
            work.prepare();
            work.once()
        });
    }
    let folder = work.join("performed");
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let uri = rows::fs::uri(&folder);
    if name == "open/cold" {
        Client::open(&load(library)?, &uri)?.put(&key(rows::open::KEY), b"an answer")?;
        // Processes of their own, which are counted with this one.
        return (0..times.times / 10).try_for_each(|_| rows::open::fresh_process(library, &uri).map(drop));
    }
    let library = load(library)?;
    if name == "open/warm" {
        let _kept = Client::open(&library, &uri)?;
        return times.repeat(|_| Client::open(&library, &uri).map(drop));
    }
    let single = rows::fs::single(name).with_context(|| format!("{name} is none of the rows"))?;
    let mut calls = rows::fs::Calls::new(&library, &folder, single)?;
    calls.prepare(COUNTED + times.times);
    times.repeat(|n| calls.once(n))
}

/// How often an operation is performed.
pub struct Times {
    pub times: u64,
    /// Counted step by step, after some that are not.
    pub stepped: bool,
}

impl Times {
    fn repeat(&self, mut once: impl FnMut(u64) -> Result<()>) -> Result<()> {
        if !self.stepped {
            return (0..self.times).try_for_each(once);
        }
        (0..COUNTED).try_for_each(&mut once)?;
        steps::counted(|| (COUNTED..COUNTED + self.times).try_for_each(once))
    }
}

fn load(path: &Path) -> Result<Library> {
    Library::load(path).map_err(anyhow::Error::msg)
}

/// Where the former library is: what was installed beside it is used with it.
pub fn found(path: PathBuf) -> Result<PathBuf> {
    ensure!(path.is_file(), "{} is no library: give a libkv_store_wasm.so as it is installed", path.display());
    Ok(path)
}
