//! What is asked of the program.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::draw::Draw;
use crate::plan::{Less, Which};

pub struct Arguments {
    /// How long to search.
    time: Option<Duration>,
    /// Run so many histories.
    pub histories: Option<u64>,
    /// Until so many operations have reached a backend.
    pub operations: Option<u64>,
    /// The first seed.
    pub from: u64,
    /// Run this history alone, and tell it.
    pub seed: Option<u64>,
    pub less: Less,
    pub draw: Draw,
    /// A history that breaks a rule is told, and does not end the search.
    pub goes_on: bool,
    pub json: bool,
    /// Tell how often each action met each fault.
    pub table: bool,
    pub jobs: usize,
    /// Search for planted bugs: those whose names contain a text.
    pub planted: bool,
    pub only: Option<String>,
}

pub const USAGE: &str = "\
kv-store-simulate [--seconds N | --minutes N | --hours N] [--histories N] [--operations N] [--from SEED] [--jobs N]
                  [--backend NAME] [--rare] [--go-on] [--json] [--table]
kv-store-simulate --planted [--only TEXT] [--seconds N] [--json]
kv-store-simulate --seed N [--backend NAME] [--rare] [--keep N,N,...] [--calm N,N,...] [--json]

Runs histories of engines over a simulated store, by simulated time: one seed is one history. Ends with 1 at the first one that
breaks a rule, told as the shortest history that was found and the command that runs it again. Otherwise it ends after a time, so many histories or
operations that reached a backend, whichever comes first, or 60 s where none is given. SIGINT or SIGTERM ends it after the histories that run.
--go-on: a history that breaks a rule is told on stderr, and the search goes on.
--planted tells which planted bugs are found, in 60 s each.
--backend: all histories over contract (a simulated storage system that keeps the contract), memkv (the shipped backend and its server,
over simulated connections), redis, s3 or mooncake (the shipped backend, over a simulated server), local-fs or segments (the shipped backend
over simulated files). Without it 10 % of the seeds are over each of these six, and the others over contract.
--rare: each history is about one action, one event and one fault of calls, all as likely: what seldom meets meets.
";

impl Arguments {
    pub fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let mut parsed = Arguments {
            time: None,
            histories: None,
            operations: None,
            from: 1,
            seed: None,
            less: Less::default(),
            draw: Draw::default(),
            goes_on: false,
            json: false,
            table: false,
            jobs,
            planted: false,
            only: None,
        };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("{argument} needs a value"));
            let number = |text: String| text.parse::<u64>().map_err(|_| format!("{argument}: {text:?} is no number"));
            match argument.as_str() {
                "--seconds" => parsed.time = Some(Duration::from_secs(number(value()?)?)),
                "--minutes" => parsed.time = Some(Duration::from_secs(60 * number(value()?)?)),
                "--hours" => parsed.time = Some(Duration::from_secs(3600 * number(value()?)?)),
                "--histories" => parsed.histories = Some(number(value()?)?),
                "--operations" => parsed.operations = Some(number(value()?)?),
                "--from" => parsed.from = number(value()?)?,
                "--seed" => parsed.seed = Some(number(value()?)?),
                "--jobs" => parsed.jobs = number(value()?)?.clamp(1, 256) as usize,
                "--keep" => parsed.less.keep = Some(numbers(&value()?)?),
                "--backend" => {
                    let name = value()?;
                    let unknown =
                        || format!("--backend: {name:?} is none of {}", Which::ALL.map(Which::name).join(", "));
                    parsed.draw.backend = Some(Which::named(&name).ok_or_else(unknown)?);
                }
                "--calm" => parsed.less.calm = numbers(&value()?)?,
                "--rare" => parsed.draw.rare = true,
                "--go-on" => parsed.goes_on = true,
                "--json" => parsed.json = true,
                "--planted" => parsed.planted = true,
                "--only" => parsed.only = Some(value()?),
                "--table" => parsed.table = true,
                other => return Err(format!("{other} is no argument of this program\n\n{USAGE}")),
            }
        }
        Ok(parsed)
    }

    /// How long to search for one bug.
    pub fn time(&self) -> Duration {
        self.time.unwrap_or(Duration::from_secs(60))
    }

    /// When to end. None: something else ends it.
    pub fn until(&self) -> Option<Duration> {
        let others = self.histories.is_some() || self.operations.is_some();
        self.time.or_else(|| (!others).then(|| self.time()))
    }
}

fn numbers(text: &str) -> Result<BTreeSet<u32>, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("{text:?} is no number of a step"));
    text.split(',').filter(|text| !text.is_empty()).map(number).collect()
}
