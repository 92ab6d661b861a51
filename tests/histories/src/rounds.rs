//! Rounds: processes at work on a store of one backend while one nemesis strikes, and what their history is found to be.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kv_store_tests::root;

use crate::backends::Store;
use crate::check::{Report, ShownViolation, check};
use crate::engines::Engines;
use crate::promise::Promise;
use crate::record::History;
use crate::setting::{Backend, Nemesis, Setting};
use crate::values::Random;

/// What a round came to.
pub struct Round {
    pub backend: Backend,
    pub nemesis: Nemesis,
    pub seed: u64,
    pub history: History,
    pub report: Report,
    /// What is wrong besides: processes that hang.
    pub wrong: Vec<String>,
    pub kills: u64,
}

/// Run one. None: its servers cannot run here, and why is said.
pub fn round(backend: Backend, nemesis: Nemesis, seed: u64, setting: &Setting) -> Option<Round> {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let mut store = Store::start(backend, nemesis, scratch.path(), setting)?;
    let mut engines = Engines::new(scratch.path(), &setting.dist.join("lib/libkv_store_wasm.so"), seed, nemesis);
    engines.warm_up(&store);
    engines.fill(&store);
    engines.wait();
    let mut random = Random(seed);
    // Some bouts that are longer than a deadline, and between them time for changes to be acknowledged.
    let deadline = store.promise.deadline;
    let end = Instant::now() + setting.time.max(deadline * 4);
    while Instant::now() < end && engines.wrong.is_empty() {
        std::thread::sleep(Duration::from_millis(100 + random.below(deadline.as_millis() as u64)));
        nemesis.strike(&mut store, &mut engines, &mut random);
    }
    let promise = store.promise;
    let (history, wrong, kills) = engines.finish();
    let report = check(&history, &promise);
    let mut round = Round { backend, nemesis, seed, history, report, wrong, kills };
    if round.report.acknowledged < LEAST {
        let done = round.report.acknowledged;
        round.wrong.push(format!("only {done} changes were acknowledged: this history shows nothing"));
    }
    if !round.holds() {
        round.keep(scratch.path(), &promise);
    }
    Some(round)
}

/// Changes that a history has at least.
const LEAST: usize = 30;

impl Round {
    pub fn holds(&self) -> bool {
        self.report.violations.is_empty() && self.wrong.is_empty()
    }

    pub fn name(&self) -> String {
        format!("{}-{}-{}", self.backend.name(), self.nemesis.name(), self.seed)
    }

    /// Where it is kept, if it does not hold.
    pub fn folder(&self) -> PathBuf {
        root().join("target/histories").join(self.name())
    }

    /// Keep what its processes recorded and logged, and what was found.
    fn keep(&self, scratch: &Path, promise: &Promise) {
        let folder = self.folder();
        let _ = std::fs::remove_dir_all(&folder);
        let keep = || -> std::io::Result<()> {
            std::fs::create_dir_all(&folder)?;
            let head = format!("# {} {} seed {}: {promise:?}\n", self.backend.name(), self.nemesis.name(), self.seed);
            std::fs::write(folder.join("history"), head + &self.history.to_string())?;
            std::fs::write(folder.join("violations"), self.found())?;
            for entry in std::fs::read_dir(scratch)?.flatten() {
                if entry.file_name().to_string_lossy().starts_with("log-") {
                    std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
                }
            }
            Ok(())
        };
        if let Err(error) = keep() {
            eprintln!("the history of {} is not kept: {error}", self.name());
        }
    }

    /// What was found, for a person.
    pub fn found(&self) -> String {
        let violations =
            self.report.violations.iter().map(|violation| ShownViolation(&self.history, violation).to_string());
        violations.chain(self.wrong.iter().map(|wrong| format!("{wrong}\n"))).collect()
    }
}
