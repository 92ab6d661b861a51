//! A consumer that does what it is told, each call on a thread of its own.
//!
//! A line says `NUMBER CALL KEY VALUE BYTES`, where CALL is publish, unpublish or read of a manifest, put, replace, remove or get of a
//! chunk, or save: a chunk that is put, and a manifest of the same name and content, on a handle of its own. BYTES is the length of the value;
//! 0 for a read of one whose length is not known. It answers `NUMBER done`, `NUMBER failed`, and of read and get `NUMBER missing` or
//! `NUMBER value VALUE`, where all its bytes were right.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use kv_store_abi::batch::{KV_STORE_ALLOCATE, KV_STORE_REPLACE, kv_store_batch_vtable_t};
use kv_store_abi::status::KV_STORE_MISSING;
use kv_store_tests::batch::{batches, one};
use kv_store_tests::consumer::{Running, start};
use kv_store_tests::{Handle, Library, faulty_library_path};

use crate::process::environment;
use crate::worker::say;

/// Longer than any call, and the opening of a store that compiles its component.
const SILENCE: Duration = Duration::from_secs(60);

#[derive(Clone, clap::Args)]
pub struct ConsumerOptions {
    #[arg(long)]
    uri: String,
}

/// What a call came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    /// It did not succeed: nobody knows more of it.
    Failed,
    Missing,
    Value(u64),
    /// No value that was ever stored.
    Strange,
}

/// A consumer as a process.
pub struct Consumer {
    /// Killed when it is dropped.
    _running: Running,
    commands: ChildStdin,
    lines: Receiver<String>,
    log: PathBuf,
    last: u64,
}

impl Consumer {
    /// Start one, with its config and what it logs in `scratch`.
    pub fn start(scratch: &Path, uri: &str, config: &str) -> Result<Self, String> {
        let (path, log) = (scratch.join("config.toml"), scratch.join("log"));
        std::fs::write(&path, config).expect("a temporary directory can be written to");
        let mut command = Command::new(std::env::current_exe().expect("the program has a path"));
        command.args(["late-consumer", "--uri", uri]);
        let said = std::fs::File::create(&log).expect("a temporary directory can be written to");
        environment(&mut command, &path).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said);
        let mut running = start(&mut command);
        let commands = running.0.stdin.take().expect("a pipe");
        let stdout = running.0.stdout.take().expect("a pipe");
        let (heard, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if heard.send(line).is_err() {
                    return;
                }
            }
        });
        let mut consumer = Consumer { _running: running, commands, lines, log, last: 0 };
        match consumer.lines.recv_timeout(SILENCE).as_deref() {
            Ok("ready") => Ok(consumer),
            other => Err(format!("a consumer did not start: {other:?}\n{}", consumer.log())),
        }
    }

    /// The end of what it logged.
    pub fn log(&mut self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(6)..].iter().map(|line| format!("{line}\n")).collect()
    }

    /// Have it make these calls side by side; comes back with their numbers.
    pub fn say(&mut self, calls: Vec<String>) -> Vec<u64> {
        let mut numbers = Vec::with_capacity(calls.len());
        for call in calls {
            self.last += 1;
            numbers.push(self.last);
            writeln!(self.commands, "{} {call}", self.last).expect("it reads what it is told");
        }
        numbers
    }

    /// What calls came to.
    pub fn hear(&mut self, numbers: &[u64]) -> Vec<Answer> {
        let mut answers: HashMap<u64, Answer> = HashMap::new();
        while answers.len() < numbers.len() {
            let line = self.lines.recv_timeout(SILENCE).expect("each call ends");
            let mut words = line.split(' ');
            let number = words.next().and_then(|number| number.parse().ok()).expect("a number");
            let answer = match (words.next(), words.next().and_then(|value| value.parse().ok())) {
                (Some("done"), _) => Answer::Done,
                (Some("failed"), _) => Answer::Failed,
                (Some("missing"), _) => Answer::Missing,
                (Some("value"), Some(value)) => Answer::Value(value),
                _ => Answer::Strange,
            };
            answers.insert(number, answer);
        }
        numbers.iter().map(|number| answers[number]).collect()
    }

    pub fn ask(&mut self, calls: Vec<String>) -> Vec<Answer> {
        let numbers = self.say(calls);
        self.hear(&numbers)
    }
}

/// The consumer's own end.
pub fn run(options: &ConsumerOptions) -> bool {
    let library = Library::load(&faulty_library_path());
    let Some(store) = library.as_ref().ok().and_then(|library| library.open(&options.uri)) else {
        say("wrong the store does not open");
        return false;
    };
    let Some(batch) = library.as_ref().ok().and_then(batches) else {
        say("wrong the library has no batches");
        return false;
    };
    say("ready");
    std::thread::scope(|scope| {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let (store, open) = (&store, || library.as_ref().ok().and_then(|library| library.open(&options.uri)));
            scope.spawn(move || {
                let words: Vec<&str> = line.split(' ').collect();
                let [number, call, key, value, bytes] = words[..] else { return say("wrong a line") };
                let len = bytes.parse().unwrap_or(0);
                let answer = match call {
                    "save" => save(open(), key, &content(value, len)).to_owned(),
                    _ => carry_out(store, batch, call, key, value, len),
                };
                say(format_args!("{number} {answer}"));
            });
        }
    });
    true
}

/// What a value is stored as.
fn content(value: &str, len: usize) -> Vec<u8> {
    let mut bytes = format!("{value} ").into_bytes();
    bytes.resize(len.max(bytes.len()), b'.');
    bytes
}

fn save(store: Option<Handle<'_>>, key: &str, content: &[u8]) -> &'static str {
    let put = |store: Handle<'_>| {
        store.put_chunk(key.as_bytes(), content) == Ok(0) && store.put_manifest(key, content) == Ok(0)
    };
    if store.is_some_and(put) { "done" } else { "failed" }
}

fn carry_out(
    store: &Handle<'_>,
    batch: &kv_store_batch_vtable_t,
    call: &str,
    key: &str,
    value: &str,
    len: usize,
) -> String {
    let done = |answer: Result<i32, String>| match answer {
        Ok(0 | 1) => "done".to_owned(),
        _ => "failed".to_owned(),
    };
    let content = || self::content(value, len);
    let seen = |bytes: &[u8]| {
        let value = bytes.split(|byte| *byte == b' ').next().map(String::from_utf8_lossy).unwrap_or_default();
        let len = if len == 0 { bytes.len() } else { len };
        if self::content(&value, len) == bytes { format!("value {value}") } else { "strange".to_owned() }
    };
    match call {
        "publish" => done(store.put_manifest(key, &content())),
        "unpublish" => done(store.delete_manifest(key)),
        "read" => match store.get_manifest(key) {
            Ok(Ok(bytes)) => seen(&bytes),
            Ok(Err(KV_STORE_MISSING)) => "missing".to_owned(),
            _ => "failed".to_owned(),
        },
        "put" => done(Ok(one(store, batch.put_many, key.as_bytes(), 0, &mut content()).0)),
        "replace" => done(Ok(one(store, batch.put_many, key.as_bytes(), KV_STORE_REPLACE, &mut content()).0)),
        "remove" => done(Ok(one(store, batch.delete_many, key.as_bytes(), 0, &mut []).0)),
        "get" => match one(store, batch.get_many, key.as_bytes(), KV_STORE_ALLOCATE, &mut []) {
            (0, bytes) => seen(&bytes),
            (KV_STORE_MISSING, _) => "missing".to_owned(),
            _ => "failed".to_owned(),
        },
        _ => "strange".to_owned(),
    }
}
