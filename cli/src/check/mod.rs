//! `kv-store check`: the conformance suite against a component or a native library.
//!
//! The cases run in a process of their own, which a bad library may bring down; [`run`] says so and goes on with the next
//! case. They know the library only through its C ABI.

mod beside;
mod calls;
pub mod cases;
mod durable;
mod eviction;
mod existence;
mod items;
mod maintenance;
mod names;
mod network;
mod pairs;
mod parameters;
mod relay;
mod report;
mod runner;
mod soak;
mod subject;
mod tap;
mod times;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::failure::{Failure, Outcome};
use crate::show::{self, Tone};
use report::{Judged, Report, Verdict};
use runner::{Runner, Server};
pub use subject::Stores;
use subject::{Kind, Tested};

/// Run the conformance suite of the ABI kv_store_v1 against a backend
///
/// SUBJECT is a component (acme.wasm) or a native library (libkv_store_acme.so). In the folder of a backend project it may be
/// left out: then it is that project's component.
///
/// The scheme is the file's name, or that of --uri. Without --uri, a component that imports no network is tested in temporary
/// directories, or under names of its own. A store given with --uri may be in use: the suite's keys and names are random, its
/// manifests are removed again, and its chunks stay.
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  kv-store check acme.wasm\n  kv-store check redis.wasm --uri redis://127.0.0.1:6379/15\n\n\
    Exit codes: 0 all cases passed; 1 a case failed; 2 the suite could not run."
)]
pub struct Arguments {
    subject: Option<PathBuf>,
    /// The store to test in
    #[arg(long)]
    uri: Option<String>,
    /// Without --uri: whether its URIs name directories or names. Default: as its imports, or its project's backend.toml, say
    #[arg(long, value_name = "KIND", conflicts_with = "uri")]
    stores: Option<Stores>,
    /// What the server of --uri says when it refuses a request, for `net-refusals`; \r, \n, \0 and \xNN are bytes
    #[arg(long, value_name = "TEXT", requires = "uri")]
    refusal: Option<String>,
    /// Another store on the server of --uri, such as another database, for `beside`
    #[arg(long, value_name = "URI", requires = "uri")]
    beside: Option<String>,
    /// A program that restarts the server of --uri, for `server-restart`
    #[arg(long, value_name = "PROGRAM", requires = "uri")]
    restart: Option<PathBuf>,
    /// Run only the cases whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Seconds after which a case counts as hanging
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    timeout: u64,
    /// Seconds that compiling the component may take
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    compile_timeout: u64,
    /// The memory that the process of a case may take: bytes, or as in 512MiB, 8GiB
    #[arg(long, value_name = "SIZE", default_value = "8GiB", value_parser = memory)]
    memory: u64,
    /// After the cases, run random operations for so many minutes, under injected faults: calls that fail, wait, trap or are answered in part
    #[arg(long, value_name = "MINUTES")]
    soak: Option<f64>,
    /// After the cases, measure an open, a put and a get of 64 KiB
    #[arg(long)]
    times: bool,
    /// Write the result to this file, whose name must end in .json, and a badge (.svg) beside it
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// One JSON object on standard output
    #[arg(long)]
    pub json: bool,
}

/// At least what a process needs to start. Without a unit MiB were meant once, so a small number is refused, not obeyed.
fn memory(text: &str) -> Result<u64, String> {
    let bytes = kv_size::Bytes::flag(text)?;
    if bytes >= 1 << 20 { Ok(bytes) } else { Err("less than 1MiB: write the unit, as in 8GiB".into()) }
}

pub fn run(arguments: &Arguments) -> Outcome {
    let given = arguments.uri.clone().map(Stores::Given).or_else(|| arguments.stores.clone());
    let (file, stores) = match &arguments.subject {
        Some(file) => (file.clone(), given),
        None => {
            let project = crate::build::built_project(Path::new("."))?;
            (project.component(), given.or(project.stores))
        }
    };
    let tested = Tested::find(&file, stores.as_ref())?;
    let wanted = |name: &str| arguments.filter.as_deref().is_none_or(|text| name.contains(text));
    let show = !arguments.json;
    let timeout = Duration::from_secs(arguments.timeout.max(1));
    let server = Server { refusal: arguments.refusal.clone(), beside: arguments.beside.clone() };
    let runner = Runner::new(&tested, timeout, arguments.memory, server)?;
    let bar = show::spinner("compiling");
    let compiled = runner.compile(arguments.compile_timeout.max(1));
    bar.finish_and_clear();
    let compiled = compiled?;
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
    for killed in kv_store_conformance::KILLED.iter().filter(|killed| wanted(killed.name)) {
        judge(killed.name, killed.asks, runner.killed(killed.name)?);
    }
    for pair in kv_store_conformance::PAIRS.iter().filter(|pair| wanted(pair.name)) {
        judge(pair.name, pair.asks, runner.pair(pair.name)?);
    }
    if tested.kind == Kind::Component && wanted(existence::NAME) {
        judge(existence::NAME, existence::ASKS, runner.case(existence::NAME)?);
    }
    if tested.kind == Kind::Component {
        for case in items::CASES.iter().filter(|case| wanted(case.name)) {
            judge(case.name, case.asks, runner.case(case.name)?);
        }
        for case in calls::CASES.iter().filter(|case| wanted(case.name)) {
            judge(case.name, case.asks, runner.case(case.name)?);
        }
        if wanted(durable::NAME) {
            judge(durable::NAME, durable::ASKS, runner.case(durable::NAME)?);
        }
        if wanted(pairs::NAME) {
            judge(pairs::NAME, pairs::ASKS, runner.pair(pairs::NAME)?);
        }
    }
    if tested.kind == Kind::Component && wanted(parameters::NAME) {
        judge(parameters::NAME, parameters::ASKS, runner.case(parameters::NAME)?);
    }
    if tested.kind == Kind::Component && wanted(parameters::OPTION) {
        judge(parameters::OPTION, parameters::OPTION_ASKS, runner.unknown_option()?);
    }
    if tested.kind == Kind::Component {
        for case in maintenance::CASES.iter().chain(eviction::CASES).filter(|case| wanted(case.name)) {
            judge(case.name, case.asks, runner.case(case.name)?);
        }
    }
    if matches!(tested.stores, Stores::Given(_)) {
        for case in network::CASES.iter().filter(|case| wanted(case.name) && case.is_for(&tested.imports)) {
            judge(case.name, case.asks, runner.case(case.name)?);
        }
    }
    if arguments.beside.is_some() && tested.kind == Kind::Component && wanted(beside::NAME) {
        judge(beside::NAME, beside::ASKS, runner.case(beside::NAME)?);
    }
    if let Some(program) = arguments.restart.as_deref().filter(|_| wanted(network::RESTARTED)) {
        judge(network::RESTARTED, network::RESTARTED_ASKS, runner.restarted(network::RESTARTED, program)?);
    }
    if let Some(minutes) = arguments.soak {
        if tested.kind == Kind::Native {
            return Err(Failure::unable(
                "check: --soak injects faults into calls of a component, and this is native code: leave --soak out",
            ));
        }
        let bar = show::spinner(&format!("soak: {minutes} min"));
        let soaked =
            Duration::try_from_secs_f64(minutes * 60.0).map_err(Failure::unable).and_then(|length| runner.soak(length));
        bar.finish_and_clear();
        let (verdict, done) = soaked?;
        let passed = matches!(verdict, Verdict::Passed);
        judge("soak", "what was acknowledged is there and right, while calls into the component fail", verdict);
        if show && passed {
            println!("        {minutes} min: {done}");
        }
    }
    if judged.is_empty() {
        return Err(Failure::unable(
            "check: no case has this text in its name; without a filter all cases are run and named",
        ));
    }

    let sha256 = runner.sha256().map(str::to_owned);
    let mut report = Report::new(file.display().to_string(), label, sha256, judged);
    report.compile_ms = compiled.and_then(|(took, _)| u64::try_from(took.as_millis()).ok());
    report.filter = arguments.filter.clone();
    if arguments.times {
        if tested.kind == Kind::Native {
            return Err(Failure::unable(
                "check: --times measures a component, and this is native code: leave --times out",
            ));
        }
        let times = runner.times()?;
        report.times = Some(times);
        if show {
            let open = times.open_us as f64 / 1e3;
            println!("open {open:.1} ms, put of 64 KiB {:.0} us, get of 64 KiB {:.0} us", times.put_us, times.get_us);
        }
    }
    if let Some(path) = &arguments.report {
        report.write(path)?;
    }
    if arguments.json {
        show::json(&report);
    } else {
        println!("{} passed, {} failed, {} skipped", report.passed, report.failed, report.skipped);
    }
    if report.failed > 0 { Err(Failure::Not(None)) } else { Ok(()) }
}

fn print(name: &str, asks: &str, verdict: &Verdict) {
    match verdict {
        Verdict::Passed => println!("  {}    {name}", show::paint(Tone::Good, "ok")),
        Verdict::Skipped(why) => println!("  {}  {name}: {why}", show::paint(Tone::Note, "skip")),
        Verdict::Failed(why) => {
            let why = why.replace('\n', "\n        ");
            println!("  {}  {name}: {asks}\n        {why}", show::paint(Tone::Bad, "FAIL"));
        }
    }
}
