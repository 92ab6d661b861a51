//! `cargo xtask histories`: processes on one store, what they called and were answered, and whether their backend's promises explain it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod backends;
mod check;
mod engines;
mod nemesis;
mod promise;
mod record;
mod register;
mod rounds;
mod setting;
mod values;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use kv_store_tests::dist;

use promise::Promise;
use record::History;
use rounds::{Round, round};
use setting::{BACKENDS, Backend, NEMESES, Nemesis, Setting};
use values::GOLDEN;

/// Record what eight processes call on one store while one nemesis strikes, and check it against what the backend promises.
///
/// Each pair of a backend and a nemesis has its turn, then all again, until the time is up. A history for which no order of the calls
/// explains the answers is kept in target/histories with the fewest calls that show it; the exit code is then 1. A seed repeats what is called
/// and what strikes; the order of the processes is the machine's, so run a round of which one violation is known some times.
#[derive(Parser)]
#[command(name = "kv-store-histories", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// For how long; the round at hand is finished, and each pair has its turn once
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    minutes: f64,
    /// Of the first round; each that follows has one of its own
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Only these backends, separated by commas
    #[arg(long, value_name = "BACKEND", value_delimiter = ',', value_parser = BACKENDS.map(|(_, name, _)| name))]
    only: Vec<String>,
    /// Only these nemeses, separated by commas
    #[arg(long, value_name = "NEMESIS", value_delimiter = ',', value_parser = nemesis_names())]
    nemesis: Vec<String>,
    /// So many rounds of each pair, whatever time they take
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// For how long the nemesis strikes in each round; four deadlines of a call at least
    #[arg(long, value_name = "N", default_value_t = 6.0)]
    seconds: f64,
    /// What `cargo xtask dist` has laid out elsewhere, in place of what is installed: the library, its components, and memkv-server
    #[arg(long, value_name = "DIR")]
    dist: Option<PathBuf>,
    /// The component that they use, in place of the installed one; with one backend
    #[arg(long, value_name = "FILE")]
    component: Option<PathBuf>,
    /// With redis: forbid the scripts by which the server refuses late changes, to see that histories show these
    #[arg(long)]
    unfenced: bool,
    /// End with the first history that breaks a rule
    #[arg(long)]
    first: bool,
    /// Name the backends and the nemeses
    #[arg(long)]
    list: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// One of the processes
    #[command(hide = true)]
    Worker(worker::Options),
    /// One that has the component compiled
    #[command(hide = true)]
    Open(worker::Open),
    /// Check a history that was kept
    Check {
        /// target/histories/.../history
        file: PathBuf,
        /// The backend whose promises it is checked against
        #[arg(long, value_parser = BACKENDS.map(|(_, name, _)| name))]
        backend: String,
        /// The deadline that its calls had, in milliseconds
        #[arg(long, value_name = "MS", default_value_t = 700)]
        deadline: u64,
        /// The store may lose what it has acknowledged
        #[arg(long)]
        loses: bool,
        /// Connections broke before what was sent on them had arrived
        #[arg(long)]
        breaks: bool,
    },
}

fn nemesis_names() -> Vec<&'static str> {
    NEMESES.iter().map(|(_, name, ..)| *name).collect()
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        Some(Command::Worker(options)) => ExitCode::from(u8::from(!worker::run(options))),
        Some(Command::Open(options)) => ExitCode::from(u8::from(!worker::open(&options))),
        Some(Command::Check { file, backend, deadline, loses, breaks }) => {
            let scheme = if backend == "cluster" { "redis" } else { &backend };
            let promise = Promise::of(scheme, Duration::from_millis(deadline)).map(|promise| {
                let promise = if loses { promise.losing() } else { promise };
                if breaks { promise.breaking(scheme) } else { promise }
            });
            check_kept(&file, promise)
        }
        None if arguments.list => {
            BACKENDS.iter().for_each(|(_, name, about)| println!("{name:<14} {about}"));
            println!();
            NEMESES.iter().for_each(|(_, name, backends, about)| {
                let of: Vec<&str> = backends.iter().map(|backend| backend.name()).collect();
                println!("{name:<14} {about}; of {}", of.join(", "));
            });
            ExitCode::SUCCESS
        }
        None => {
            raise_open_files();
            run(&arguments)
        }
    }
}

/// The links between processes and servers take more than the 1,024 files that a shell allows.
fn raise_open_files() {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is filled before it is read.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limits) == 0 {
            limits.rlim_cur = limits.rlim_max.min(1 << 16);
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limits);
        }
    }
}

fn check_kept(file: &std::path::Path, promise: Option<Promise>) -> ExitCode {
    let read = || -> Result<_, String> {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok((History::parse(&text)?, promise.ok_or("this backend promises nothing")?))
    };
    let (history, promise) = match read() {
        Ok(read) => read,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let report = check::check(&history, &promise);
    report.violations.iter().for_each(|violation| print!("{}", check::ShownViolation(&history, violation)));
    println!("{} calls, {} keys, {} violations", history.calls.len(), report.keys, report.violations.len());
    ExitCode::from(u8::from(!report.violations.is_empty()))
}

/// What a pair has come to.
struct Row {
    backend: Backend,
    nemesis: Nemesis,
    rounds: u64,
    calls: usize,
    acknowledged: usize,
    unknown: usize,
    seen: usize,
    kills: u64,
    undecided: usize,
    violated: u64,
    took: Duration,
}

fn rows(arguments: &Arguments) -> Vec<Row> {
    let wanted = |named: &[String], name: &str| named.is_empty() || named.iter().any(|own| own == name);
    let mut rows = Vec::new();
    for (backend, name, _) in BACKENDS.iter().filter(|(_, name, _)| wanted(&arguments.only, name)) {
        let met = NEMESES
            .iter()
            .filter(|(_, own, backends, _)| backends.contains(backend) && wanted(&arguments.nemesis, own));
        for (nemesis, ..) in met {
            let (backend, nemesis) = (*backend, *nemesis);
            let took = Duration::ZERO;
            let [calls, acknowledged, unknown, seen, undecided] = [0; 5];
            let [rounds, kills, violated] = [0; 3];
            rows.push(Row {
                backend,
                nemesis,
                rounds,
                calls,
                acknowledged,
                unknown,
                seen,
                kills,
                undecided,
                violated,
                took,
            });
        }
        debug_assert!(!name.is_empty());
    }
    rows
}

fn run(arguments: &Arguments) -> ExitCode {
    let setting = Setting {
        dist: arguments.dist.clone().unwrap_or_else(dist),
        unfenced: arguments.unfenced,
        component: arguments.component.clone(),
        time: Duration::from_secs_f64(arguments.seconds.clamp(0.0, 1e5)),
    };
    let mut rows = rows(arguments);
    let time = Duration::from_secs_f64(arguments.minutes.clamp(0.0, 1e6) * 60.0);
    let begun = Instant::now();
    'rounds: for number in 0.. {
        if arguments.rounds.is_some_and(|rounds| number >= rounds) {
            break;
        }
        let seed = arguments.seed.wrapping_add(GOLDEN.wrapping_mul(number));
        for row in &mut rows {
            if arguments.rounds.is_none() && number > 0 && begun.elapsed() >= time {
                break 'rounds;
            }
            let start = Instant::now();
            if let Some(round) = round(row.backend, row.nemesis, seed, &setting) {
                row.add(&round, start.elapsed());
                say(&round, start.elapsed());
                if arguments.first && !round.holds() {
                    break 'rounds;
                }
            }
        }
    }
    show(&rows)
}

/// A line for each round, and what was found.
fn say(round: &Round, took: Duration) {
    let Round { backend, nemesis, seed, history, report, .. } = round;
    let verdict = if round.holds() { "holds" } else { "VIOLATED" };
    let (backend, nemesis, calls) = (backend.name(), nemesis.name(), history.calls.len());
    let counts = format!("{calls} calls, {} of unknown end", report.unknown);
    eprintln!("{backend} {nemesis} with seed {seed}: {verdict}, {counts}, {:.1} s", took.as_secs_f64());
    if !round.holds() {
        let again = format!("cargo xtask histories --only {backend} --nemesis {nemesis} --seed {seed} --rounds 1");
        eprintln!("{}kept in {}\nagain: {again}\n", round.found(), round.folder().display());
    }
}

impl Row {
    fn add(&mut self, round: &Round, took: Duration) {
        self.rounds += 1;
        self.calls += round.history.calls.len();
        self.acknowledged += round.report.acknowledged;
        self.unknown += round.report.unknown;
        self.seen += round.report.seen;
        self.kills += round.kills;
        self.undecided += round.report.undecided.len();
        self.violated += u64::from(!round.holds());
        self.took += took;
    }
}

fn show(rows: &[Row]) -> ExitCode {
    let line = |cells: [String; 10]| {
        let [pair, rounds, calls, acknowledged, unknown, seen, kills, undecided, violated, seconds] = cells;
        println!(
            "{pair:<24} {rounds:>6} {calls:>8} {acknowledged:>12} {unknown:>8} {seen:>8} {kills:>6} {undecided:>9} {violated:>8} {seconds:>8}"
        );
    };
    let heads =
        ["pair", "rounds", "calls", "acknowledged", "unknown", "seen", "kills", "undecided", "violated", "seconds"];
    line(heads.map(str::to_owned));
    for row in rows.iter().filter(|row| row.rounds > 0) {
        let Row { backend, nemesis, rounds, calls, acknowledged, unknown, seen, kills, undecided, violated, took } =
            row;
        line([
            format!("{} {}", backend.name(), nemesis.name()),
            rounds.to_string(),
            calls.to_string(),
            acknowledged.to_string(),
            unknown.to_string(),
            seen.to_string(),
            kills.to_string(),
            undecided.to_string(),
            violated.to_string(),
            format!("{:.1}", took.as_secs_f64()),
        ]);
    }
    let idle =
        rows.iter().filter(|row| row.rounds == 0).map(|row| format!("{} {}", row.backend.name(), row.nemesis.name()));
    let idle: Vec<String> = idle.collect();
    if !idle.is_empty() {
        println!("did not run, for a reason that is printed above: {}", idle.join(", "));
    }
    let violated: u64 = rows.iter().map(|row| row.violated).sum();
    let rounds: u64 = rows.iter().map(|row| row.rounds).sum();
    println!("{rounds} histories, {violated} of them with violations");
    ExitCode::from(u8::from(violated > 0))
}
