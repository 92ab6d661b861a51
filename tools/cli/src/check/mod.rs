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
use crate::stores::Stores;
use report::{Judged, Report, Verdict};
use runner::{Runner, Server};
use subject::{SubjectKind, Tested};
use times::Times;

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
pub struct CheckArguments {
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

/// What a case of this program's own finds: nothing, or what was wrong, in words for the author of the backend.
type CaseResult = Result<(), String>;

/// At least what a process needs to start. Without a unit MiB were meant once, so a small number is refused, not obeyed.
fn memory(text: &str) -> Result<u64, String> {
    let bytes = kv_size::Bytes::flag(text)?;
    if bytes >= 1 << 20 { Ok(bytes) } else { Err("less than 1MiB: write the unit, as in 8GiB".into()) }
}

pub fn run(arguments: &CheckArguments) -> Outcome {
    let given = arguments.uri.clone().map(Stores::Given).or_else(|| arguments.stores.clone());
    let (file, stores) = match &arguments.subject {
        Some(file) => (file.clone(), given),
        None => {
            let project = crate::build::built_project(Path::new("."))?;
            (project.component(), given.or(project.stores))
        }
    };
    let tested = Tested::find(&file, stores.as_ref())?;
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
    if show {
        println!("{}: {label}", file.display());
    }

    let mut suite = Suite { arguments, tested: &tested, runner: &runner, judged: Vec::new() };
    suite.run_cases_of_the_abi()?;
    if tested.kind == SubjectKind::Component {
        suite.run_cases_of_components()?;
    }
    suite.run_cases_of_servers()?;
    if let Some(minutes) = arguments.soak {
        suite.soak(minutes)?;
    }
    if suite.judged.is_empty() {
        return Err(Failure::unable(
            "check: no case has this text in its name; without a filter all cases are run and named",
        ));
    }

    let sha256 = runner.sha256().map(str::to_owned);
    let mut report = Report::new(file.display().to_string(), label, sha256, suite.judged);
    report.compile_ms = compiled.and_then(|(took, _)| u64::try_from(took.as_millis()).ok());
    report.filter = arguments.filter.clone();
    if arguments.times {
        report.times = Some(measure(&tested, &runner, show)?);
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

/// The cases that were run, in the order of the report.
struct Suite<'a> {
    arguments: &'a CheckArguments,
    tested: &'a Tested,
    runner: &'a Runner<'a>,
    judged: Vec<Judged>,
}

impl Suite<'_> {
    fn is_wanted(&self, name: &str) -> bool {
        self.arguments.filter.as_deref().is_none_or(|text| name.contains(text))
    }

    fn judge(&mut self, name: &str, asks: &str, verdict: Verdict) {
        if !self.arguments.json {
            print(name, asks, &verdict);
        }
        self.judged.push(Judged { name: name.to_owned(), asks: asks.to_owned(), verdict });
    }

    /// Run a case if it is wanted, in one way of the runner's.
    fn run(&mut self, name: &str, asks: &str, run: impl FnOnce(&Runner<'_>) -> Outcome<Verdict>) -> Outcome {
        if self.is_wanted(name) {
            self.judge(name, asks, run(self.runner)?);
        }
        Ok(())
    }

    /// What a native library must do too.
    fn run_cases_of_the_abi(&mut self) -> Outcome {
        if let Some((verdict, asks)) = self.tested.file_name().filter(|_| self.is_wanted("file-name")) {
            self.judge("file-name", asks, verdict);
        }
        for case in kv_store_conformance::CASES.iter().copied().flatten() {
            self.run(case.name, case.asks, |runner| runner.case(case.name))?;
        }
        for restart in kv_store_conformance::RESTARTS {
            self.run(restart.name, restart.asks, |runner| runner.restart(restart.name))?;
        }
        for killed in kv_store_conformance::KILLED {
            self.run(killed.name, killed.asks, |runner| runner.killed(killed.name))?;
        }
        for pair in kv_store_conformance::PAIRS {
            self.run(pair.name, pair.asks, |runner| runner.pair(pair.name))?;
        }
        Ok(())
    }

    /// What only the host can ask of its guest.
    fn run_cases_of_components(&mut self) -> Outcome {
        self.run(existence::NAME, existence::ASKS, |runner| runner.case(existence::NAME))?;
        for case in items::CASES {
            self.run(case.name, case.asks, |runner| runner.case(case.name))?;
        }
        for case in calls::CASES {
            self.run(case.name, case.asks, |runner| runner.case(case.name))?;
        }
        self.run(durable::NAME, durable::ASKS, |runner| runner.case(durable::NAME))?;
        self.run(pairs::NAME, pairs::ASKS, |runner| runner.pair(pairs::NAME))?;
        self.run(parameters::NAME, parameters::ASKS, |runner| runner.case(parameters::NAME))?;
        self.run(parameters::OPTION, parameters::OPTION_ASKS, |runner| runner.unknown_option())?;
        for case in maintenance::CASES.iter().chain(eviction::CASES) {
            self.run(case.name, case.asks, |runner| runner.case(case.name))?;
        }
        Ok(())
    }

    /// What is asked of a store that was given with its server.
    fn run_cases_of_servers(&mut self) -> Outcome {
        if matches!(self.tested.stores, Stores::Given(_)) {
            for case in network::CASES.iter().filter(|case| case.is_for(&self.tested.imports)) {
                self.run(case.name, case.asks, |runner| runner.case(case.name))?;
            }
        }
        if self.arguments.beside.is_some() && self.tested.kind == SubjectKind::Component {
            self.run(beside::NAME, beside::ASKS, |runner| runner.case(beside::NAME))?;
        }
        if let Some(program) = self.arguments.restart.as_deref() {
            let (name, asks) = (network::RESTARTED, network::RESTARTED_ASKS);
            self.run(name, asks, |runner| runner.restarted(name, program))?;
        }
        Ok(())
    }

    fn soak(&mut self, minutes: f64) -> Outcome {
        if self.tested.kind == SubjectKind::Native {
            return Err(Failure::unable(
                "check: --soak injects faults into calls of a component, and this is native code: leave --soak out",
            ));
        }
        let bar = show::spinner(&format!("soak: {minutes} min"));
        let length = Duration::try_from_secs_f64(minutes * 60.0).map_err(Failure::unable);
        let soaked = length.and_then(|length| self.runner.soak(length));
        bar.finish_and_clear();
        let (verdict, done) = soaked?;
        let passed = matches!(verdict, Verdict::Passed);
        self.judge("soak", "what was acknowledged is there and right, while calls into the component fail", verdict);
        if passed && !self.arguments.json {
            println!("        {minutes} min: {done}");
        }
        Ok(())
    }
}

/// What `--times` adds to the report.
fn measure(tested: &Tested, runner: &Runner<'_>, show: bool) -> Outcome<Times> {
    if tested.kind == SubjectKind::Native {
        return Err(Failure::unable("check: --times measures a component, and this is native code: leave --times out"));
    }
    let times = runner.times()?;
    if show {
        let open = times.open_us as f64 / 1e3;
        println!("open {open:.1} ms, put of 64 KiB {:.0} us, get of 64 KiB {:.0} us", times.put_us, times.get_us);
    }
    Ok(times)
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
