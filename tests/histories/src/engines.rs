//! The processes of a history, as the runner sees them.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kv_store_tests::clock::Clock;
use kv_store_tests::consumer::{Running, finish, start};
use kv_store_tests::{built, memkv, root, seaweed};

use crate::backends::{PROCESSES, Store};
use crate::record::{History, now};
use crate::setting::{Backend, Nemesis};

/// One that says nothing for so long hangs: no call takes a tenth of it.
const SILENCE: Duration = Duration::from_secs(120);

struct Engine {
    process: u32,
    running: Running,
    said: Receiver<String>,
    record: PathBuf,
}

/// Whether the process of a slot has a store evict, under the nemesis of that: each second one.
pub fn presses(slot: usize) -> bool {
    slot % 2 == 1
}

/// What processes run with.
pub struct Engines {
    folder: PathBuf,
    library: PathBuf,
    seed: u64,
    slots: Vec<Option<Engine>>,
    clocks: Vec<Clock>,
    nemesis: Nemesis,
    last: u32,
    /// Of those that are over.
    history: History,
    pub kills: u64,
    /// What went wrong with processes themselves.
    pub wrong: Vec<String>,
}

impl Engines {
    pub fn new(folder: &Path, library: &Path, seed: u64, nemesis: Nemesis) -> Self {
        let clocks = (0..PROCESSES).map(|slot| Clock::create(&folder.join(format!("clock-{slot}")))).collect();
        Engines {
            folder: folder.to_owned(),
            library: library.to_owned(),
            seed,
            slots: (0..PROCESSES).map(|_| None).collect(),
            clocks,
            nemesis,
            last: 0,
            history: History::default(),
            kills: 0,
            wrong: Vec::new(),
        }
    }

    /// Start a process in each slot that has none.
    pub fn fill(&mut self, store: &Store) {
        for slot in 0..PROCESSES {
            if self.slots[slot].is_none() {
                self.last += 1;
                self.slots[slot] = Some(self.start(slot, store));
            }
        }
    }

    /// Wait until all are at work.
    pub fn wait(&mut self) {
        for engine in self.slots.iter().flatten() {
            if engine.said.recv_timeout(SILENCE).as_deref() != Ok("ready") {
                self.wrong.push(format!("process {} does not begin: {}", engine.process, self.log(engine.process)));
                return;
            }
        }
    }

    /// This program, about to run where it reaches the store.
    fn command(&self, store: &Store, config: &str) -> Command {
        let path = self.folder.join(format!("config-{}.toml", config.len()));
        // At once: a process that was started before may be reading it.
        let new = path.with_extension("new");
        std::fs::write(&new, config)
            .and_then(|()| std::fs::rename(&new, &path))
            .expect("a temporary directory can be written to");
        let program = std::env::current_exe().expect("the program has a path").display().to_string();
        let words: Vec<String> = store.words().into_iter().chain([program]).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("KV_STORE_WASM_CONFIG", path)
            .env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"))
            .env("MEMKV_AUTH_KEY", memkv::AUTH_KEY)
            .env("S3_ACCESS_KEY_ID", seaweed::ACCESS_KEY_ID)
            .env("S3_SECRET_ACCESS_KEY", seaweed::SECRET_ACCESS_KEY)
            .envs(std::env::var_os(built::ANY).map(|any| (built::ANY, any)))
            // Which planted bug is on, in a library that has some.
            .envs(std::env::var_os(PLANTED).map(|bug| (PLANTED, bug)));
        command
    }

    /// Have the component compiled before calls have deadlines.
    pub fn warm_up(&mut self, store: &Store) {
        let mut command = self.command(store, store.patient_config());
        command.args(["open", "--uri", &store.uri(0)]).arg("--library").arg(&self.library);
        let finished = finish(&mut command);
        if !finished.status.success() {
            self.wrong.push(format!("the store does not open: {}{}", finished.stdout, finished.stderr));
        }
    }

    fn start(&self, slot: usize, store: &Store) -> Engine {
        let process = self.last;
        let record = self.folder.join(format!("calls-{process}"));
        let settle = store.promise.deadline.as_millis() + 600;
        let mut command = self.command(store, &store.config(slot, self.seed));
        command.args(["worker", "--uri", &store.uri(slot)]);
        command.arg("--library").arg(&self.library).arg("--record").arg(&record);
        let numbers =
            [("--seed", self.seed.to_string()), ("--process", process.to_string()), ("--settle", settle.to_string())];
        command.args(numbers.iter().flat_map(|(name, number)| [*name, number.as_str()]));
        // "Manifests that name it are missing until it is put again."
        command.args(if store.backend == Backend::Memkv { &["--apart"][..] } else { &[] });
        command.args(if self.nemesis == Nemesis::Evict && presses(slot) { &["--press"][..] } else { &[] });
        if self.nemesis == Nemesis::Clock {
            command.envs(self.clocks[slot].environment());
        }
        let said = std::fs::File::create(self.log_path(process)).expect("a temporary directory can be written to");
        let mut running = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said));
        let stdout = running.0.stdout.take().expect("a pipe");
        let (hears, heard) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if hears.send(line).is_err() {
                    return;
                }
            }
        });
        Engine { process, running, said: heard, record }
    }

    fn log_path(&self, process: u32) -> PathBuf {
        self.folder.join(format!("log-{process}"))
    }

    /// The end of what a process has logged.
    fn log(&self, process: u32) -> String {
        let text = std::fs::read_to_string(self.log_path(process)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }

    pub fn kill(&mut self, slot: usize) {
        if let Some(mut engine) = self.slots[slot].take() {
            engine.running.kill();
            // It has done nothing since.
            self.history.deaths.insert(engine.process, now());
            self.kills += 1;
            self.collect(&engine);
        }
    }

    pub fn freeze(&mut self, slot: usize, frozen: bool) {
        if let Some(engine) = &self.slots[slot] {
            engine.running.freeze(frozen);
        }
    }

    pub fn set_clock(&self, slot: usize, ms: i64) {
        self.clocks[slot].set(ms);
    }

    fn collect(&mut self, engine: &Engine) {
        let recorded = std::fs::read_to_string(&engine.record).unwrap_or_default();
        if let Err(error) = self.history.add(engine.process, &recorded) {
            self.wrong.push(error);
        }
    }

    /// Have all end their work, and answer what all have recorded.
    pub fn finish(mut self) -> (History, Vec<String>, u64) {
        for engine in self.slots.iter_mut().flatten() {
            if let Some(mut stdin) = engine.running.0.stdin.take() {
                let _ = writeln!(stdin, "finish");
            }
        }
        for slot in 0..PROCESSES {
            let Some(mut engine) = self.slots[slot].take() else { continue };
            let mut ended = false;
            while let Ok(line) = engine.said.recv_timeout(SILENCE) {
                ended |= line == "end";
            }
            if !ended {
                let log = self.log(engine.process);
                self.wrong.push(format!("process {} hangs, or ended before it was told to: {log}", engine.process));
            }
            engine.running.kill();
            self.collect(&engine);
        }
        self.history.sort();
        (self.history, self.wrong, self.kills)
    }
}

/// The variable that says which planted bug is on.
pub const PLANTED: &str = "KV_STORE_PLANTED";
