//! A worker as a child process, and what is known from all the workers of a store.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use kv_store_tests::consumer::{Running, start};
use kv_store_tests::{built, memkv, root, seaweed};

use crate::oracle::Name;
use crate::workload::{NAMES, name};

/// Set, the component to use in place of the installed one: to see that a suite finds what is wrong with it.
const COMPONENT: &str = "KV_STORE_TORTURE_COMPONENT";
/// A worker that says nothing for so long hangs.
const SILENCE: Duration = Duration::from_secs(60);

/// What a worker runs with.
#[derive(Clone, Default)]
pub struct Setting {
    /// The config file's text.
    pub config: String,
    /// A program that runs it, with arguments.
    pub under: Vec<String>,
    /// Further options of the worker.
    pub options: Vec<String>,
}

/// What a consumer finds in its environment, and nothing else.
pub fn environment<'a>(command: &'a mut Command, config: &Path) -> &'a mut Command {
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("KV_STORE_WASM_CONFIG", config)
        .env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"))
        .env("MEMKV_AUTH_KEY", memkv::AUTH_KEY)
        .env("S3_ACCESS_KEY_ID", seaweed::ACCESS_KEY_ID)
        .env("S3_SECRET_ACCESS_KEY", seaweed::SECRET_ACCESS_KEY)
        // A run that takes long goes on though a source is edited.
        .envs(std::env::var_os(built::ANY).map(|any| (built::ANY, any)))
}

/// What a process says on its standard output, which is a pipe, line by line.
pub fn lines_of(running: &mut Running) -> Receiver<String> {
    let stdout = running.0.stdout.take().expect("a pipe");
    let (heard, lines) = channel();
    std::thread::spawn(move || {
        // What a killed process had not ended is no line.
        let mut reader = BufReader::new(stdout);
        let mut line = String::new();
        while reader.read_line(&mut line).is_ok_and(|read| read > 0) && line.ends_with('\n') {
            if heard.send(line.trim_end().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    lines
}

/// The last lines of a log.
pub fn end_of(log: &Path, count: usize) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Why hearing ended.
#[derive(PartialEq, Eq)]
pub enum Heard {
    /// The line that was awaited came.
    Awaited,
    /// The process has closed its output.
    End,
    /// Nothing more came until the time was up, or for so long that it hangs.
    Silence,
}

pub struct Process {
    running: Running,
    lines: Receiver<String>,
    log: PathBuf,
    /// It has said by itself that something is wrong.
    complained: bool,
    /// Something is wrong with what it has said.
    wrong: bool,
}

impl Process {
    /// Start a worker, with its config and what it logs in `scratch`.
    pub fn start(scratch: &Path, uri: &str, seed: u64, setting: &Setting) -> Self {
        let words = ["worker", "--uri", uri, "--seed", &seed.to_string()].map(str::to_owned);
        Process::run(scratch, words.into_iter().chain(setting.options.iter().cloned()).collect(), setting)
    }

    /// Start this program with these words.
    pub fn run(scratch: &Path, words: Vec<String>, setting: &Setting) -> Self {
        let (config, log) = (scratch.join("config.toml"), scratch.join("log"));
        std::fs::write(&config, &setting.config).expect("a temporary directory can be written to");
        let program = std::env::current_exe().expect("the program has a path").display().to_string();
        let words: Vec<String> = setting.under.iter().cloned().chain([program]).chain(words).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        let said = std::fs::File::create(&log).expect("a temporary directory can be written to");
        let mut running =
            start(environment(&mut command, &config).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(said));
        let lines = lines_of(&mut running);
        Process { running, lines, log, complained: false, wrong: false }
    }

    /// Hear what it says until a line, or its end, or until some time has passed; without a time: until it hangs.
    pub fn hear_until(&mut self, story: &mut Story, awaited: &str, end: Option<Instant>) -> Heard {
        loop {
            let left = end.map_or(SILENCE, |end| end.saturating_duration_since(Instant::now()));
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.hear(story, &line);
                    if line == awaited {
                        return Heard::Awaited;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return Heard::End,
                Err(RecvTimeoutError::Timeout) => return Heard::Silence,
            }
        }
    }

    fn hear(&mut self, story: &mut Story, line: &str) {
        let before = story.wrong.len();
        story.hear(line);
        self.complained |= line.starts_with("wrong ");
        self.wrong |= story.wrong.len() > before;
    }

    /// Kill it, if it lives, and hear the rest.
    pub fn kill(mut self, story: &mut Story) {
        self.running.kill();
        self.finish(story);
    }

    /// Hear it out, to its own end.
    pub fn complete(mut self, story: &mut Story) -> Option<ExitStatus> {
        if self.hear_until(story, "", None) == Heard::Silence {
            story.wrong.push(format!("it hangs: no word for {} s", SILENCE.as_secs()));
            self.wrong = true;
            self.running.kill();
        }
        self.finish(story)
    }

    fn finish(&mut self, story: &mut Story) -> Option<ExitStatus> {
        let before = story.wrong.len();
        let status = self.running.wait();
        while let Ok(line) = self.lines.recv_timeout(SILENCE) {
            self.hear(story, &line);
        }
        match status {
            None => story.wrong.push("it does not end".to_owned()),
            Some(status) if status.signal() == Some(libc::SIGKILL) || status.success() => {}
            // It has said why.
            Some(status) if status.code() == Some(1) && self.complained => {}
            Some(status) => story.wrong.push(format!("it ended with {status}")),
        }
        if self.wrong || story.wrong.len() > before {
            story.log = end_of(&self.log, 12);
        }
        status
    }
}

/// What the workers of one store have said.
pub struct Story {
    names: Vec<Name>,
    /// The backend makes answers up.
    pub lying: bool,
    /// The storage system may lose what it has acknowledged.
    pub losing: bool,
    pub operations: u64,
    /// Changes that were acknowledged, and those that were not.
    pub saves: u64,
    pub failed: u64,
    pub kills: u64,
    pub wrong: Vec<String>,
    /// The end of the log of the one that was wrong.
    pub log: String,
}

impl Story {
    pub fn new() -> Self {
        let names = vec![Name::default(); NAMES];
        Story {
            names,
            lying: false,
            losing: false,
            operations: 0,
            saves: 0,
            failed: 0,
            kills: 0,
            wrong: Vec::new(),
            log: String::new(),
        }
    }

    /// What another store's workers have said, for the sums.
    pub fn add(&mut self, other: Story) {
        self.operations += other.operations;
        self.saves += other.saves;
        self.failed += other.failed;
        self.kills += other.kills;
        self.wrong.extend(other.wrong);
        if !other.log.is_empty() {
            self.log = other.log;
        }
    }

    fn hear(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let of =
            rest.split_once(' ').and_then(|(number, save)| Some((number.parse::<usize>().ok()?, save.parse().ok())));
        match (word, of) {
            ("wrong", _) => self.wrong.push(rest.to_owned()),
            ("did", _) => self.operations += rest.parse().unwrap_or(0),
            ("try", Some((number, save))) => self.names[number].tries(save),
            ("done", Some((number, _))) => {
                self.saves += 1;
                self.names[number].acknowledge(!self.lying);
            }
            ("failed", Some(_)) => self.failed += 1,
            ("saw", Some((number, save))) => {
                let known = &mut self.names[number];
                let lost = self.losing && save.is_none();
                if !lost && !known.allows(known.begin(), save) {
                    let (seen, may) = (name(number), known.describe());
                    self.wrong.push(format!("after a restart {seen} is of save {save:?}; it may be {may}"));
                }
                known.is_now(save);
            }
            _ => {}
        }
    }
}

/// A table of the config that never lets the circuit breaker in the way, with `further` lines.
pub fn config(scheme: &str, further: &str) -> String {
    // None of what a suite saves is evicted, unless it says so.
    let bounded = scheme != "segments" || further.contains("options");
    let bounds = if bounded { "" } else { "options = { max_bytes = '4 GiB', segment_bytes = '2 MiB' }\n" };
    let component = std::env::var(COMPONENT).map(|path| format!("component = '{path}'\n")).unwrap_or_default();
    format!(
        "[backend.{scheme}]\nverify = 'xxh3'\nlimits.breaker_failures = 0\nlimits.idle_ms = 200\n{component}{bounds}{further}\n"
    )
}

pub fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}
