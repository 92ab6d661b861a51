//! `cargo xtask torture`: what kv-store-wasm promises, while it is killed, starved and lied to.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

mod held;
mod late;
mod lies;
mod oracle;
mod process;
mod soak;
mod states;
mod suites;
mod worker;
mod workload;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use process::Story;
use suites::{SUITES, Suite, far};
use workload::GOLDEN;

/// Torment the library as it lies in target/dist, suite by suite, round by round, until the time is up.
///
/// Every round follows from its seed: what is saved, when is killed, which calls are spoiled. What was acknowledged and is
/// gone, a wrong byte, a hang or a leak is a violation; the exit code is then 1, and the command that runs that round again is shown.
#[derive(Parser)]
#[command(name = "kv-store-torture", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    /// For how long; the round at hand is finished
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    minutes: f64,
    /// The same in hours
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    hours: Option<f64>,
    /// Of the first round; each that follows has one of its own
    #[arg(long, value_name = "S", default_value_t = 1)]
    seed: u64,
    /// Only these suites, separated by commas; `late`, `segments`: all that begin with that and `-`; all: see --list
    #[arg(long, value_name = "SUITE", value_delimiter = ',', value_parser = suite_names())]
    only: Vec<String>,
    /// So many rounds, whatever time they take
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// The suites that take servers away from storage systems of more than one machine, in place of the others
    #[arg(long)]
    far: bool,
    /// In place of the suites: processes on bounded stores and on stores that keep everything, while clocks pass a year, disks fill, servers are
    /// killed and what is sent arrives late. Fails on a wrong byte, a lost value, and memory, descriptors or logs that grow
    #[arg(long)]
    soak: bool,
    /// With --soak: only these stores, separated by commas
    #[arg(long, value_name = "STORE", value_delimiter = ',', requires = "soak", value_parser = soak::store_names())]
    stores: Vec<String>,
    /// With --soak: what each process may log in an hour, in KiB
    #[arg(long, value_name = "KIB", requires = "soak", default_value_t = 256)]
    log_budget: u64,
    /// With --soak: its result as JSON
    #[arg(long, requires = "soak")]
    json: bool,
    /// With --soak: do something that it must find
    #[arg(long, requires = "soak", hide = true)]
    plant: Option<soak::Plant>,
    /// Name the suites
    #[arg(long)]
    list: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand)]
enum Command {
    /// The consumer that is tormented
    #[command(hide = true)]
    Worker(worker::WorkerOptions),
    /// A consumer that fetches one chunk without end
    #[command(hide = true)]
    Watch(worker::Watch),
    /// The saves whose system calls are recorded
    #[command(hide = true)]
    Script(states::Script),
    /// Check what a crash in the midst of such saves may leave
    #[command(hide = true)]
    States(states::StateOptions),
    /// States that a power loss may leave of what another program wrote
    #[command(hide = true)]
    Images(states::images::ImageOptions),
    /// A consumer that does what it is told
    #[command(hide = true)]
    LateConsumer(late::ConsumerOptions),
    /// One of the writers of --soak
    #[command(hide = true)]
    SoakWriter(soak::WriterOptions),
}

fn suite_names() -> Vec<&'static str> {
    all().map(|suite| suite.name).chain(GROUPS).collect()
}

/// Each stands for all suites that begin with it and `-`.
const GROUPS: [&str; 2] = ["late", "segments"];

/// The suites that run when none is named.
fn near() -> impl Iterator<Item = &'static Suite> {
    SUITES.iter().chain(late::SUITES)
}

fn all() -> impl Iterator<Item = &'static Suite> {
    near().chain(far::SUITES)
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(command) = arguments.command {
        let held = match command {
            Command::Worker(options) => worker::run(options),
            Command::Watch(options) => worker::watch(&options),
            Command::Script(script) => states::record(&script),
            Command::States(options) => states::run(&options),
            Command::Images(options) => states::images::run(&options),
            Command::LateConsumer(options) => late::run(&options),
            Command::SoakWriter(options) => soak::write(options),
        };
        return ExitCode::from(u8::from(!held));
    }
    if arguments.soak {
        return soak::soak(&soak::SoakSetting {
            time: arguments.time(),
            seed: arguments.seed,
            json: arguments.json,
            stores: arguments.stores,
            log_bytes_per_hour: arguments.log_budget << 10,
            plant: arguments.plant,
        });
    }
    if arguments.list {
        let suites: Vec<&Suite> = if arguments.far { far::SUITES.iter().collect() } else { near().collect() };
        suites.iter().for_each(|suite| println!("{:<16} {}", suite.name, suite.about));
        return ExitCode::SUCCESS;
    }
    torture(&arguments)
}

impl Arguments {
    fn time(&self) -> Duration {
        let minutes = self.hours.map_or(self.minutes, |hours| hours * 60.0);
        Duration::from_secs_f64(minutes.clamp(0.0, 1e6) * 60.0)
    }
}

/// What a suite has come to.
struct SuiteRow {
    suite: &'static Suite,
    rounds: u64,
    total: Story,
    took: Duration,
}

fn torture(arguments: &Arguments) -> ExitCode {
    let named = |suite: &Suite| {
        let is_of = |name: &String| {
            let group = GROUPS.iter().any(|group| group == name);
            name == suite.name || (group && suite.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')))
        };
        arguments.only.iter().any(is_of)
    };
    let wanted = |suite: &&Suite| {
        let of_kind = far::SUITES.iter().any(|far| far.name == suite.name) == arguments.far;
        if arguments.only.is_empty() { of_kind } else { named(suite) }
    };
    let fresh = |suite| SuiteRow { suite, rounds: 0, total: Story::new(), took: Duration::ZERO };
    let mut rows: Vec<SuiteRow> = all().filter(wanted).map(fresh).collect();
    let time = arguments.time();
    let (begun, mut violations) = (Instant::now(), Vec::new());
    let bar = bar(arguments, time, rows.len() as u64);
    'rounds: for round in 0.. {
        if arguments.rounds.is_some_and(|rounds| round >= rounds) {
            break;
        }
        let seed = arguments.seed.wrapping_add(GOLDEN.wrapping_mul(round));
        for row in &mut rows {
            // Each suite has its turn once.
            if arguments.rounds.is_none() && round > 0 && begun.elapsed() >= time {
                break 'rounds;
            }
            bar.set_message(format!(
                "{} with seed {seed}, {} rounds with violations",
                row.suite.name,
                violations.len()
            ));
            let start = Instant::now();
            let story = (row.suite.round)(seed);
            row.took += start.elapsed();
            row.rounds += 1;
            if bar.is_hidden() {
                // No terminal: a line for each round.
                let found = if story.wrong.is_empty() { "held" } else { "VIOLATED" };
                eprintln!("{} with seed {seed}: {found}, {:.1} s", row.suite.name, start.elapsed().as_secs_f64());
            }
            if !story.wrong.is_empty() {
                let (name, found) = (row.suite.name, indented(&story.wrong.join("\n")));
                let far = if far::SUITES.iter().any(|suite| suite.name == name) { " --far" } else { "" };
                let replay = format!("cargo xtask torture{far} --only {name} --seed {seed} --rounds 1");
                let log = indented(&story.log);
                violations.push(format!("of {name}:\n{found}\nthe end of the log:\n{log}\nagain: {replay}"));
            }
            row.total.add(story);
            match arguments.rounds {
                Some(_) => bar.inc(1),
                None => bar.set_position(begun.elapsed().min(time).as_secs()),
            }
        }
    }
    bar.finish_and_clear();
    show(&rows);
    violations.iter().for_each(|violation| eprintln!("VIOLATIONS {violation}\n"));
    let rounds: u64 = rows.iter().map(|row| row.rounds).sum();
    println!("{rounds} rounds, {} of them with violations", violations.len());
    let idle: Vec<&str> = rows.iter().filter(|row| row.total.operations == 0).map(|row| row.suite.name).collect();
    if !idle.is_empty() {
        println!("did nothing, for a reason that is printed above: {}", idle.join(", "));
    }
    if violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn bar(arguments: &Arguments, time: Duration, suites: u64) -> ProgressBar {
    let bar = ProgressBar::new(arguments.rounds.map_or(time.as_secs(), |rounds| rounds * suites));
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}% [{elapsed}] {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn indented(log: &str) -> String {
    log.lines().map(|line| format!("  {line}\n")).collect::<String>().trim_end().to_owned()
}

fn show(rows: &[SuiteRow]) {
    let line = |cells: [String; 8]| {
        let [suite, rounds, operations, saves, failed, kills, violations, seconds] = cells;
        println!(
            "{suite:<16} {rounds:>7} {operations:>11} {saves:>8} {failed:>8} {kills:>7} {violations:>11} {seconds:>8}"
        );
    };
    line(["suite", "rounds", "operations", "saves", "failed", "kills", "violations", "seconds"].map(str::to_owned));
    for SuiteRow { suite, rounds, total, took } in rows {
        let Story { operations, saves, failed, kills, wrong, .. } = total;
        let numbers =
            [*rounds, *operations, *saves, *failed, *kills, wrong.len() as u64].map(|number| number.to_string());
        let [rounds, operations, saves, failed, kills, violations] = numbers;
        line([
            suite.name.to_owned(),
            rounds,
            operations,
            saves,
            failed,
            kills,
            violations,
            format!("{:.1}", took.as_secs_f64()),
        ]);
    }
}
