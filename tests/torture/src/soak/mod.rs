//! `--soak`: stores at their bounds, and stores that keep everything, each with processes that save and read without end while clocks pass a
//! year, disks fill, servers go and come, and what is sent arrives late. Nothing wrong may be read, nothing acknowledged be lost where the
//! backend promises to keep it, and neither memory nor descriptors nor logs may grow over what the begin of the run allows them.

mod fields;
mod measure;
mod report;
mod running;
mod writer;

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use kv_store_tests::consumer::{finish, start};
use kv_store_tests::{faulty_library_path, library_path};

use crate::process::environment;
use crate::workload::GOLDEN;
use fields::{BOUND, DEADLINE, Field, KINDS, Seen, StoreKind, WRITERS};
use measure::{Series, bytes_of_files};
use report::{Report, Row};
use running::RunningWriter;

pub use writer::{WriterOptions, write};

/// What is done on purpose, to see that a soak sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Plant {
    /// Writers take 40 MiB a second more
    Memory,
    /// Writers keep 40 descriptors a second
    Files,
    /// Writers log 20 KB a second
    Log,
    /// Writers remove manifests behind their own backs
    Lost,
    /// The backend flips bits, and the library does not check
    Wrong,
}

/// How a soak is run.
pub struct SoakSetting {
    pub time: Duration,
    pub seed: u64,
    pub json: bool,
    /// Names of stores; none: all.
    pub stores: Vec<String>,
    /// What the log of a process may have in an hour, in bytes.
    pub log_bytes_per_hour: u64,
    pub plant: Option<Plant>,
}

pub fn store_names() -> [&'static str; KINDS.len()] {
    KINDS.map(|kind| kind.name)
}

/// How far over its bound the files of a store may be, in percent.
const OVER: u64 = 105;
/// A shorter run need not fill its stores.
const FILLS: Duration = Duration::from_secs(60);
/// Between two looks at processes and folders.
const LOOK: Duration = Duration::from_millis(100);
/// What may still come late when all is over: the deadline of a call, and what servers take more.
const SETTLE: Duration = Duration::from_millis(900);

/// A store with its writers, and what was seen of them.
struct Ground {
    kind: &'static StoreKind,
    writers: Vec<RunningWriter>,
    seen: Arc<Seen>,
    server: Series,
    folder: Option<std::path::PathBuf>,
    /// Most bytes of its files.
    most: u64,
}

pub fn soak(setting: &SoakSetting) -> ExitCode {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let wanted = |kind: &&StoreKind| setting.stores.is_empty() || setting.stores.iter().any(|name| name == kind.name);
    let mut fields: Vec<Field> = KINDS
        .iter()
        .filter(wanted)
        .map(|kind| Field::start(kind, &scratch.path().join(kind.name), &setting.further()))
        .collect();
    let mut wrong: Vec<String> = fields.iter().filter_map(|field| warm_up(field, scratch.path(), setting)).collect();
    if wrong.is_empty() {
        let mut grounds: Vec<Ground> = fields.iter().map(|field| ground(field, scratch.path(), setting)).collect();
        wrong.extend(grounds.iter_mut().flat_map(|ground| &mut ground.writers).filter_map(RunningWriter::wait));
        let report = run(&mut fields, grounds, wrong, setting);
        return report.show(setting);
    }
    wrong.iter().for_each(|wrong| eprintln!("VIOLATION {wrong}"));
    ExitCode::FAILURE
}

impl SoakSetting {
    /// Lines of the config of all stores.
    fn further(&self) -> String {
        match self.plant {
            Some(Plant::Wrong) => format!("verify = 'off'\nfault = {{ seed = {}, flip = 0.05 }}\n", self.seed),
            _ => "verify = 'xxh3'\n".to_owned(),
        }
    }

    /// A writer of this field, with further options.
    fn writer(&self, field: &Field, writer: usize, config: &Path, options: &[String]) -> Command {
        let program = std::env::current_exe().expect("the program has a path").display().to_string();
        let words: Vec<String> = field.words().into_iter().chain([program]).collect();
        let mut command = Command::new(&words[0]);
        let library = if self.plant == Some(Plant::Wrong) { faulty_library_path() } else { library_path() };
        command.args(&words[1..]).args(["soak-writer", "--uri", &field.uri(writer)]).arg("--library").arg(library);
        command.args(["--seed", &self.seed.to_string(), "--process", &writer.to_string()]).args(options);
        environment(&mut command, config);
        command
    }
}

/// Have the component compiled before calls have deadlines. Answers what is wrong.
fn warm_up(field: &Field, scratch: &Path, setting: &SoakSetting) -> Option<String> {
    let config = scratch.join(field.kind.name).join("patient.toml");
    std::fs::write(&config, field.config(true)).expect("a temporary directory can be written to");
    let finished = finish(&mut setting.writer(field, 0, &config, &["--warm-up".to_owned()]));
    let said = || format!("the store of {} does not open: {}{}", field.kind.name, finished.stdout, finished.stderr);
    (!finished.status.success()).then(said)
}

/// Start the writers of a store.
fn ground(field: &Field, scratch: &Path, setting: &SoakSetting) -> Ground {
    let (kind, folder) = (field.kind, scratch.join(field.kind.name));
    let config = folder.join("config.toml");
    std::fs::write(&config, field.config(false)).expect("a temporary directory can be written to");
    let settle = (DEADLINE + SETTLE).as_millis().to_string();
    let mut options = vec!["--settle".to_owned(), settle];
    options.extend(kind.keeps.then(|| "--keeps".to_owned()));
    if let Some(plant) = setting.plant {
        let name = clap::ValueEnum::to_possible_value(&plant).expect("each can be named");
        options.extend(["--plant".to_owned(), name.get_name().to_owned()]);
    }
    let writers = (0..WRITERS).map(|number| {
        let log = folder.join(format!("log-{number}"));
        let said = std::fs::File::create(&log).expect("a temporary directory can be written to");
        let mut command = setting.writer(field, number, &config, &options);
        command.envs(field.clock(number)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said);
        RunningWriter::new(format!("{} {number}", kind.name), start(&mut command), log)
    });
    let server = Series::new(format!("{} memkv-server", kind.name));
    Ground { kind, writers: writers.collect(), seen: field.seen.clone(), server, folder: field.folder(), most: 0 }
}

/// Let them work while they are struck, and have them look at everything in the end.
fn run(fields: &mut [Field], mut grounds: Vec<Ground>, mut wrong: Vec<String>, setting: &SoakSetting) -> Report {
    let (begun, over) = (Instant::now(), AtomicBool::new(false));
    let bar = bar(setting);
    std::thread::scope(|scope| {
        let strikers: Vec<_> = fields
            .iter_mut()
            .zip(1..)
            .map(|(field, number)| {
                let seed = setting.seed.wrapping_add(GOLDEN.wrapping_mul(number));
                let (name, over) = (field.kind.name, &over);
                (name, scope.spawn(move || field.strike_until(over, begun, setting.time, seed)))
            })
            .collect();
        let mut said = Instant::now();
        while begun.elapsed() < setting.time && wrong.is_empty() {
            look(&mut grounds, begun, setting);
            wrong.extend(grounds.iter_mut().flat_map(|ground| &mut ground.writers).filter_map(RunningWriter::ended));
            bar.set_position(begun.elapsed().as_secs());
            let line = progress(&grounds);
            // No terminal: a line now and then.
            if bar.is_hidden()
                && said.elapsed() > (setting.time / 10).clamp(Duration::from_secs(5), Duration::from_secs(600))
            {
                eprintln!("{:.0} s: {line}", begun.elapsed().as_secs_f64());
                said = Instant::now();
            }
            bar.set_message(line);
            std::thread::sleep(LOOK);
        }
        over.store(true, Relaxed);
        // It has said why.
        let failed = strikers.into_iter().filter_map(|(name, striker)| striker.join().is_err().then_some(name));
        wrong.extend(failed.map(|name| format!("{name}: could not be struck to the end: its server does not start?")));
    });
    let seconds = begun.elapsed().as_secs_f64();
    grounds.iter_mut().flat_map(|ground| &mut ground.writers).for_each(RunningWriter::finish);
    wrong.extend(grounds.iter_mut().flat_map(|ground| &mut ground.writers).filter_map(RunningWriter::complete));
    bar.finish_and_clear();
    let rows = grounds.into_iter().map(|ground| Row::of(ground, seconds, &mut wrong, setting)).collect();
    Report { seconds, rows, wrong }
}

/// Look at all processes and folders once.
fn look(grounds: &mut [Ground], begun: Instant, setting: &SoakSetting) {
    let at = begun.elapsed().as_secs_f64();
    // A long run is not looked at more often: at most some ten thousand times.
    let every = (setting.time.as_secs_f64() / 10_000.0).max(0.2);
    for ground in grounds {
        if let Some(folder) = &ground.folder {
            ground.most = ground.most.max(bytes_of_files(folder, BOUND));
        }
        for writer in &mut ground.writers {
            writer.hear();
            writer.look(at, every);
        }
        let pid = ground.seen.server.load(Relaxed);
        if pid != 0 {
            ground.server.look(pid, at);
        }
    }
}

fn progress(grounds: &[Ground]) -> String {
    let writers = || grounds.iter().flat_map(|ground| &ground.writers);
    let sum = |name: &str| writers().map(|writer| writer.count(name)).sum::<u64>();
    let strikes: u64 = grounds.iter().map(|ground| ground.seen.strikes.load(Relaxed)).sum();
    let found: usize = writers().map(|writer| writer.wrong.len()).sum();
    format!(
        "{} calls, {} saves, {} refused, {strikes} strikes, {found} violations",
        sum("calls"),
        sum("saved"),
        sum("refused")
    )
}

fn bar(setting: &SoakSetting) -> ProgressBar {
    let bar = ProgressBar::new(setting.time.as_secs());
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {percent:>3}% [{elapsed}] {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
