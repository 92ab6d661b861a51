//! Every state of the disk that a power loss may leave, opened and held against what was acknowledged.
//!
//! A script saves under strace ([`script`]); the calls on its folder ([`trace`]) become a model of the disk ([`disk`]), which names
//! the states that a crash after each call may leave; each is made in a fresh folder and opened by the real library, cache or server
//! ([`judge`]).

mod disk;
pub mod images;
mod judge;
mod pages;
mod script;
mod trace;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::{Command, Stdio};

use kv_store_tests::scratch::in_memory;

use crate::process::{Process, Setting, Story, config, scratch};
use crate::workload::Random;
use disk::Disk;
use judge::Judge;
pub use script::{Script, run as record};

/// What saves, and what opens the states.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// local-fs with `durability = full`.
    Full,
    /// local-fs with `durability = rename`.
    Rename,
    /// local-fs with a bound that is never reached.
    Bounded,
    /// local-fs with a bound that each save passes: what was saved may be gone.
    Evicting,
    /// segments with a bound that is never reached.
    Segments,
    /// segments with a bound that most saves pass: what was saved may be gone.
    SegmentsEvicting,
    /// The rows of the token-exact cache.
    Rows,
    /// memkv-server with `--data`.
    Memkv,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Full => "full",
            Kind::Rename => "rename",
            Kind::Bounded => "bounded",
            Kind::Evicting => "evicting",
            Kind::Segments => "segments",
            Kind::SegmentsEvicting => "segments-evicting",
            Kind::Rows => "rows",
            Kind::Memkv => "memkv",
        }
    }

    /// The config of the process that saves and of the one that looks.
    fn config(self) -> String {
        let options = match self {
            Kind::Full => "",
            Kind::Rename => "durability = 'rename'",
            Kind::Bounded => "max_bytes = '100000000'",
            Kind::Evicting => "max_bytes = '10000', save_grace_s = '0'",
            Kind::Segments => return segments("max_bytes = '4 MiB', segment_bytes = '128 KiB'"),
            Kind::SegmentsEvicting => return segments("max_bytes = '192 KiB', segment_bytes = '64 KiB'"),
            Kind::Rows | Kind::Memkv => return config("memkv", ""),
        };
        // How full the disk is that this runs on is not the matter.
        let keep_free = if options.is_empty() { "keep_free = '0'" } else { "keep_free = '0', " };
        config("local-fs", &format!("options = {{ {keep_free}{options} }}"))
    }

    /// What a manifest that is there names is there too.
    fn keeps_chunks(self) -> bool {
        !matches!(self, Kind::Rename) && !self.evicts()
    }

    /// What was saved may be gone.
    fn evicts(self) -> bool {
        matches!(self, Kind::Evicting | Kind::SegmentsEvicting)
    }

    /// The URI of a store of this kind in a folder.
    fn uri(self, folder: &Path) -> String {
        let scheme = if matches!(self, Kind::Segments | Kind::SegmentsEvicting) { "segments" } else { "local-fs" };
        format!("{scheme}://{}", folder.display())
    }

    /// States of one round. A server is started for each of its states.
    fn states(self) -> usize {
        match self {
            Kind::Full | Kind::Rename | Kind::Segments => 600,
            Kind::Bounded | Kind::Evicting | Kind::SegmentsEvicting => 200,
            Kind::Rows => 400,
            Kind::Memkv => 40,
        }
    }
}

const KINDS: [Kind; 6] = [Kind::Full, Kind::Rename, Kind::Bounded, Kind::Evicting, Kind::Rows, Kind::Memkv];
const OF_SEGMENTS: [Kind; 2] = [Kind::Segments, Kind::SegmentsEvicting];

fn segments(options: &str) -> String {
    config("segments", &format!("options = {{ {options} }}"))
}

/// A round of the suite.
pub fn round(seed: u64) -> Story {
    of(&KINDS, seed)
}

/// The same over the segment store.
pub fn round_of_segments(seed: u64) -> Story {
    of(&OF_SEGMENTS, seed)
}

fn of(kinds: &[Kind], seed: u64) -> Story {
    let mut story = Story::new();
    for kind in kinds {
        let scratch = scratch();
        let words =
            ["states", "--kind", kind.name(), "--seed", &seed.to_string(), "--states", &kind.states().to_string()];
        let setting = Setting { config: kind.config(), ..Setting::default() };
        let mut of_one = Story::new();
        Process::run(scratch.path(), words.map(str::to_owned).to_vec(), &setting).complete(&mut of_one);
        story.add(of_one);
        if !story.wrong.is_empty() {
            break;
        }
    }
    story
}

#[derive(Clone, clap::Args)]
pub struct StateOptions {
    #[arg(long)]
    kind: Kind,
    #[arg(long)]
    seed: u64,
    /// States to check, about.
    #[arg(long)]
    states: usize,
    /// Take each sync for none: for the test that a missing one is seen.
    #[arg(long)]
    without_syncs: bool,
}

/// Record a script, and check states of its disk. Says what is wrong, and how many states were checked.
pub fn run(options: &StateOptions) -> bool {
    let scratch = scratch();
    let folder = scratch.path().join("recorded");
    std::fs::create_dir(&folder).expect("a temporary directory can be written to");
    let log = traced(options, scratch.path(), &folder);
    let mut calls = trace::parse(&log, &folder);
    if options.without_syncs {
        calls.iter_mut().for_each(|call| call.forget_sync());
    }
    let disk = Disk::replay(&folder, &calls);
    let mut judge = Judge::new(options.kind, options.seed, &calls);
    let (mut seen, mut random, mut wrong) = (HashSet::new(), Random(options.seed), 0);
    let points = judge.points(&mut random, options.states);
    let each = (options.states / points.len()).max(4);
    for point in points {
        judge.crash_after(point);
        for state in disk.states(point, each, &mut random) {
            let mut hasher = DefaultHasher::new();
            (&state, judge.expectation()).hash(&mut hasher);
            if !seen.insert(hasher.finish()) {
                continue;
            }
            if seen.len().is_multiple_of(20) {
                crate::worker::say("did 20");
            }
            // What is tested is what is read, and not how fast a disk is.
            let place = in_memory();
            disk::make(&state, place.path());
            if let Err(why) = judge.look(place.path(), &mut random) {
                let kind = options.kind.name();
                crate::worker::say(format_args!(
                    "wrong {kind}, after call {point} ({}): {why}",
                    disk.describe(point, &calls)
                ));
                wrong += 1;
                if wrong == 3 {
                    return false;
                }
            }
        }
    }
    crate::worker::say(format_args!("did {}", seen.len() % 20));
    wrong == 0
}

/// Run the script under strace; what that wrote.
fn traced(options: &StateOptions, scratch: &Path, folder: &Path) -> String {
    let (log, config_file) = (scratch.join("trace"), scratch.join("script.toml"));
    std::fs::write(&config_file, options.kind.config()).expect("a temporary directory can be written to");
    let status = Command::new("strace")
        .args(["-f", "-y", "-xx", "-qqq", "-s", "4194304", "-e", trace::CALLS, "-o"])
        .arg(&log)
        .arg(std::env::current_exe().expect("the program has a path"))
        .args(["script", "--kind", options.kind.name(), "--seed", &options.seed.to_string(), "--folder"])
        .arg(folder)
        .env("KV_STORE_WASM_CONFIG", &config_file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status();
    assert!(status.is_ok_and(|status| status.success()), "the script fails, or strace cannot be run");
    std::fs::read_to_string(&log).expect("strace writes text")
}
