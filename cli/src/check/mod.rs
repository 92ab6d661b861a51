//! `kv-store check`: the conformance suite against a component or a native library.
//!
//! The cases run in a process of their own, which a bad library may bring down; [`run`] says so and goes on with the next
//! case. They know the library only through its C ABI.

pub mod cases;
mod runner;
mod subject;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use crate::failure::{Failure, Outcome};
use crate::show;
use runner::Runner;
use subject::Tested;

/// Check that a backend does what the ABI kv_store_v1 asks for
///
/// SUBJECT is a component (acme.wasm) or a native library (libkv_store_acme.so). In the folder of a guest project it may be
/// left out: that project's component is meant.
///
/// The scheme is the file's name, or that of --uri. Without --uri a component that imports no network gets directories, or
/// names, of its own. A store given with --uri may be in use: keys and names are chosen so that nobody's are met, manifests
/// are removed again, chunks stay.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store check acme.wasm\n  kv-store check redis.wasm --uri redis://127.0.0.1:6379/15\n\n\
    Exit codes: 0 all cases passed; 1 a case failed; 2 the suite could not run."
)]
pub struct Arguments {
    subject: Option<PathBuf>,
    /// A store to check with
    #[arg(long)]
    uri: Option<String>,
    /// Only the cases whose name holds this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Seconds after which a case counts as hanging
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    timeout: u64,
    /// Seconds that compiling the component may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    compile_timeout: u64,
    /// MiB of memory that the process of a case may take
    #[arg(long, value_name = "MIB", default_value_t = 8192)]
    memory: u64,
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    subject: String,
    /// What the backend says it reached.
    label: String,
    /// How long compiling took. None: native code.
    compile_ms: Option<u64>,
    passed: usize,
    failed: usize,
    skipped: usize,
    cases: Vec<Judged>,
}

/// A case and its verdict.
#[derive(Debug, Serialize)]
struct Judged {
    name: String,
    asks: String,
    #[serde(flatten)]
    verdict: Verdict,
}

#[derive(Debug, Serialize)]
#[serde(tag = "verdict", content = "why", rename_all = "lowercase")]
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

pub fn run(arguments: &Arguments) -> Outcome {
    let file = match &arguments.subject {
        Some(file) => file.clone(),
        None => crate::build::component_of_project(std::path::Path::new("."))?,
    };
    let tested = Tested::find(&file, arguments.uri.as_deref())?;
    let wanted = |name: &str| arguments.filter.as_deref().is_none_or(|text| name.contains(text));
    let show = !arguments.json;
    let runner = Runner::new(&tested, Duration::from_secs(arguments.timeout.max(1)), arguments.memory)?;
    let compiled = runner.compile(arguments.compile_timeout.max(1))?;
    if let Some((took, kept)) = compiled.filter(|_| show) {
        let again = if kept { "" } else { ", and so it takes at each start: the cache is not used" };
        println!("compiled in {:.1} s{again}", took.as_secs_f64());
    }
    let label = runner.probe()?;

    let mut judged = Vec::new();
    let mut judge = |name: &str, asks: &str, verdict: Verdict| {
        if show {
            print(name, asks, &verdict);
        }
        judged.push(Judged { name: name.to_owned(), asks: asks.to_owned(), verdict });
    };
    if show {
        println!("{}: {label}", file.display());
    }
    if let Some((verdict, asks)) = tested.file_name().filter(|_| wanted("file-name")) {
        judge("file-name", asks, verdict);
    }
    for case in kv_store_conformance::CASES.iter().copied().flatten().filter(|case| wanted(case.name)) {
        judge(case.name, case.asks, runner.case(case.name)?);
    }
    for restart in kv_store_conformance::RESTARTS.iter().filter(|restart| wanted(restart.name)) {
        judge(restart.name, restart.asks, runner.restart(restart.name)?);
    }
    if judged.is_empty() {
        return Err(Failure::unable("no case has this text in its name"));
    }

    let count = |is: fn(&Verdict) -> bool| judged.iter().filter(|case| is(&case.verdict)).count();
    let (passed, failed) = (count(|v| matches!(v, Verdict::Passed)), count(|v| matches!(v, Verdict::Failed(_))));
    let skipped = judged.len() - passed - failed;
    if arguments.json {
        let subject = file.display().to_string();
        let compile_ms = compiled.and_then(|(took, _)| u64::try_from(took.as_millis()).ok());
        show::json(&Report { subject, label, compile_ms, passed, failed, skipped, cases: judged });
    } else {
        println!("{passed} passed, {failed} failed, {skipped} skipped");
    }
    if failed > 0 { Err(Failure::Not(None)) } else { Ok(()) }
}

fn print(name: &str, asks: &str, verdict: &Verdict) {
    match verdict {
        Verdict::Passed => println!("  ok    {name}"),
        Verdict::Skipped(why) => println!("  skip  {name}: {why}"),
        Verdict::Failed(why) => println!("  FAIL  {name}: {asks}\n        {}", why.replace('\n', "\n        ")),
    }
}
