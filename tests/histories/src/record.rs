//! What a process called and what it was answered, as lines of a file. A line is written before a call begins and another after it has
//! returned, each by one `write`, so that a process that is killed leaves the calls that nobody knows the end of.
//!
//! Times are nanoseconds of `CLOCK_MONOTONIC`, which all processes of a machine share and which nothing sets.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use kv_platform::sync::Mutex;

/// The time in nanoseconds.
pub fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a place for a timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// What a call does to its key. The first letter of a key says what it is of: `m` a manifest, `c` a chunk whose key is the hash of its
/// content, `w` any other chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `put_manifest`, `save_commit`, a replacing `put_many`: the value is there from now on.
    Set,
    /// `put_many` that replaces nothing.
    Put,
    /// `put_chunk` of a handle that may keep it until the next `put_manifest` of that handle.
    Buffer,
    Remove,
    Get,
}

const KINDS: [(Kind, &str); 5] =
    [(Kind::Set, "set"), (Kind::Put, "put"), (Kind::Buffer, "buffer"), (Kind::Remove, "remove"), (Kind::Get, "get")];

/// What a call was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was acknowledged. Of a get: this value, by its digest.
    Done(Option<u64>),
    /// There was nothing under the key.
    Missing,
    /// With this status; it may have been carried out all the same, or be carried out later.
    Failed(i32),
    /// Its process was killed before it returned, or the recording ended.
    Unknown,
}

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub process: u32,
    pub thread: u32,
    /// Which handle of the process, or which save.
    pub handle: u32,
    pub kind: Kind,
    pub key: String,
    /// Of what is stored.
    pub value: Option<u64>,
    pub invoked: u64,
    /// None: nobody knows that it has returned.
    pub answered: Option<u64>,
    pub outcome: Outcome,
}

/// The calls of all processes, and when those died that were killed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub calls: Vec<Call>,
    pub deaths: BTreeMap<u32, u64>,
}

/// Where a process writes its calls.
pub struct Recorder {
    file: Mutex<File>,
    last: AtomicU64,
}

/// What is about to be called.
pub struct Begun<'a> {
    pub thread: u32,
    pub handle: u32,
    pub kind: Kind,
    pub key: &'a str,
    pub value: Option<u64>,
}

impl Recorder {
    pub fn create(path: &Path) -> std::io::Result<Self> {
        let file = File::options().create_new(true).append(true).open(path)?;
        Ok(Recorder { file: Mutex::new(file), last: AtomicU64::new(0) })
    }

    /// A call is about to begin; answers its number.
    pub fn begin(&self, begun: &Begun<'_>) -> u64 {
        let number = self.last.fetch_add(1, Relaxed);
        let Begun { thread, handle, kind, key, value } = begun;
        self.line(|time| format!("> {number} {thread} {handle} {} {key} {} {time}\n", word(*kind), Digest(*value)));
        number
    }

    /// It has returned.
    pub fn end(&self, number: u64, outcome: Outcome) {
        self.line(|time| format!("< {number} {} {time}\n", ShownOutcome(outcome)));
    }

    /// `CLOCK_MONOTONIC` is read under the lock: before what is called, after what was answered.
    fn line(&self, line: impl FnOnce(u64) -> String) {
        let mut file = self.file.lock();
        let line = line(now());
        // A recording that cannot be written is none: the runner counts what it finds.
        let _ = file.write_all(line.as_bytes());
    }
}

fn word(kind: Kind) -> &'static str {
    KINDS.iter().find(|(own, _)| *own == kind).map_or("?", |(_, word)| word)
}

fn kind(word: &str) -> Option<Kind> {
    KINDS.iter().find(|(_, own)| *own == word).map(|(kind, _)| *kind)
}

struct Digest(Option<u64>);

impl Display for Digest {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(digest) => write!(to, "{digest:016x}"),
            None => write!(to, "-"),
        }
    }
}

fn digest(text: &str) -> Option<Option<u64>> {
    if text == "-" { Some(None) } else { u64::from_str_radix(text, 16).ok().map(Some) }
}

struct ShownOutcome(Outcome);

impl Display for ShownOutcome {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Outcome::Done(value) => write!(to, "done {}", Digest(value)),
            Outcome::Missing => write!(to, "missing -"),
            Outcome::Failed(status) => write!(to, "failed {status}"),
            Outcome::Unknown => write!(to, "unknown -"),
        }
    }
}

fn outcome(word: &str, rest: &str) -> Option<Outcome> {
    Some(match word {
        "done" => Outcome::Done(digest(rest)?),
        "missing" => Outcome::Missing,
        "failed" => Outcome::Failed(rest.parse().ok()?),
        "unknown" => Outcome::Unknown,
        _ => return None,
    })
}

impl History {
    /// Add what a process has recorded. A last line that was cut is none.
    pub fn add(&mut self, process: u32, recorded: &str) -> Result<(), String> {
        let mut open: HashMap<u64, Call> = HashMap::new();
        let whole = recorded.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let bad = || format!("process {process} recorded {line:?}");
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                [">", number, thread, handle, kind_word, key, value, time] => {
                    let call = Call {
                        process,
                        thread: thread.parse().map_err(|_| bad())?,
                        handle: handle.parse().map_err(|_| bad())?,
                        kind: kind(kind_word).ok_or_else(bad)?,
                        key: (*key).to_owned(),
                        value: digest(value).ok_or_else(bad)?,
                        invoked: time.parse().map_err(|_| bad())?,
                        answered: None,
                        outcome: Outcome::Unknown,
                    };
                    open.insert(number.parse().map_err(|_| bad())?, call);
                }
                ["<", number, word, rest, time] => {
                    let number = number.parse().map_err(|_| bad())?;
                    let mut call: Call = open.remove(&number).ok_or_else(bad)?;
                    call.outcome = outcome(word, rest).ok_or_else(bad)?;
                    call.answered = Some(time.parse().map_err(|_| bad())?);
                    self.calls.push(call);
                }
                _ => return Err(bad()),
            }
        }
        self.calls.extend(open.into_values());
        Ok(())
    }

    /// Order the calls by when they began.
    pub fn sort(&mut self) {
        self.calls.sort_by_key(|call| (call.invoked, call.process, call.thread));
    }

    pub fn parse(text: &str) -> Result<Self, String> {
        let mut history = History::default();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let bad = || format!("not a line of a history: {line:?}");
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["killed", process, time] => {
                    history.deaths.insert(process.parse().map_err(|_| bad())?, time.parse().map_err(|_| bad())?);
                }
                [process, thread, handle, kind_word, key, value, invoked, answered, word, rest] => {
                    history.calls.push(Call {
                        process: process.parse().map_err(|_| bad())?,
                        thread: thread.parse().map_err(|_| bad())?,
                        handle: handle.parse().map_err(|_| bad())?,
                        kind: kind(kind_word).ok_or_else(bad)?,
                        key: (*key).to_owned(),
                        value: digest(value).ok_or_else(bad)?,
                        invoked: invoked.parse().map_err(|_| bad())?,
                        answered: if *answered == "-" { None } else { Some(answered.parse().map_err(|_| bad())?) },
                        outcome: outcome(word, rest).ok_or_else(bad)?,
                    });
                }
                _ => return Err(bad()),
            }
        }
        history.sort();
        Ok(history)
    }
}

impl Display for Call {
    /// The process, thread and handle, what was called and with which value, when it was called and answered, and the answer.
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { process, thread, handle, kind, key, value, invoked, answered, outcome } = self;
        let answered = answered.map_or("-".to_owned(), |answered| answered.to_string());
        let (kind, value, outcome) = (word(*kind), Digest(*value), ShownOutcome(*outcome));
        write!(to, "{process} {thread} {handle} {kind} {key} {value} {invoked} {answered} {outcome}")
    }
}

impl Display for History {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        for call in &self.calls {
            writeln!(to, "{call}")?;
        }
        for (process, time) in &self.deaths {
            writeln!(to, "killed {process} {time}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_back_and_what_was_cut_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("calls");
        let recorder = Recorder::create(&path).unwrap();
        let begun = |kind, key, value| Begun { thread: 1, handle: 2, kind, key, value };
        let first = recorder.begin(&begun(Kind::Set, "m/1", Some(0xabc)));
        let second = recorder.begin(&begun(Kind::Get, "c/1", None));
        recorder.end(second, Outcome::Done(Some(5)));
        recorder.end(first, Outcome::Failed(-1));
        recorder.begin(&begun(Kind::Remove, "m/1", None));
        let third = recorder.begin(&begun(Kind::Put, "c/1", Some(5)));
        recorder.end(third, Outcome::Missing);
        let text = std::fs::read_to_string(&path).unwrap();

        let mut history = History::default();
        history.add(7, &text[..text.len() - 3]).unwrap();
        history.sort();
        let of: Vec<(Kind, bool, Outcome)> =
            history.calls.iter().map(|call| (call.kind, call.answered.is_some(), call.outcome)).collect();
        let expected = [
            (Kind::Set, true, Outcome::Failed(-1)),
            (Kind::Get, true, Outcome::Done(Some(5))),
            (Kind::Remove, false, Outcome::Unknown),
            (Kind::Put, false, Outcome::Unknown),
        ];
        assert_eq!(of, expected);
        assert!(history.calls.windows(2).all(|pair| pair[0].invoked <= pair[1].invoked));
        history.deaths.insert(7, now());
        assert_eq!(History::parse(&history.to_string()), Ok(history));
        assert!(History::default().add(1, "> 1 2\n").is_err() && History::parse("1 2 3").is_err());
        assert!(History::default().add(1, "< 0 done - 5\n").is_err(), "an answer to nothing");
    }
}
