//! A writer as the runner sees it.

use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use kv_store_tests::consumer::Running;

use super::measure::Series;
use super::writer::COUNTS;
use crate::process::{end_of, lines_of};

/// One that says nothing for so long hangs: a writer says twice a second what it has done.
const SILENCE: Duration = Duration::from_secs(120);
/// Violations that are kept of one writer: what is wrong once is often wrong again and again.
const KEPT: usize = 20;

pub struct RunningWriter {
    pub series: Series,
    running: Running,
    lines: Receiver<String>,
    heard: Instant,
    looked: f64,
    log: PathBuf,
    counts: [u64; COUNTS.len()],
    pub wrong: Vec<String>,
    /// It has said that it is at work; that it has ended.
    ready: bool,
    ended: bool,
}

impl RunningWriter {
    pub fn new(name: String, mut running: Running, log: PathBuf) -> Self {
        let lines = lines_of(&mut running);
        let series = Series::new(name);
        let (heard, counts, wrong) = (Instant::now(), Default::default(), Vec::new());
        RunningWriter { series, running, lines, heard, looked: 0.0, log, counts, wrong, ready: false, ended: false }
    }

    /// Wait until it is at work. Answers what is wrong.
    pub fn wait(&mut self) -> Option<String> {
        self.hear_until(|writer| writer.ready)
    }

    /// Hear what it has said.
    pub fn hear(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.take(&line);
        }
    }

    fn take(&mut self, line: &str) {
        self.heard = Instant::now();
        match line.split_once(' ') {
            Some(("counts", numbers)) => {
                for (count, number) in self.counts.iter_mut().zip(numbers.split(' ')) {
                    *count = number.parse().unwrap_or(*count);
                }
            }
            Some(("wrong", what)) if self.wrong.len() < KEPT => {
                self.wrong.push(format!("{}: {what}", self.series.name));
            }
            None if line == "ready" => self.ready = true,
            None if line == "end" => self.ended = true,
            _ => {}
        }
    }

    fn hear_until(&mut self, done: impl Fn(&Self) -> bool) -> Option<String> {
        while !done(self) {
            match self.lines.recv_timeout(SILENCE) {
                Ok(line) => self.take(&line),
                Err(RecvTimeoutError::Timeout) => return Some(self.about("hangs")),
                Err(RecvTimeoutError::Disconnected) => return Some(self.about("ended before it was told to")),
            }
        }
        None
    }

    /// What has become of it, with the end of its log.
    fn about(&self, what: &str) -> String {
        format!("{} {what}: {}", self.series.name, end_of(&self.log, 8))
    }

    /// Note what it takes, where it was not looked at for so many seconds.
    pub fn look(&mut self, at: f64, every: f64) {
        if at - self.looked >= every {
            self.looked = at;
            self.series.look(self.running.0.id(), at);
        }
    }

    /// Whether it has ended, or hangs, while it is to be at work. Answers what is wrong.
    pub fn ended(&mut self) -> Option<String> {
        if !matches!(self.running.0.try_wait(), Ok(None)) {
            return Some(self.about("ended before it was told to"));
        }
        (self.heard.elapsed() > SILENCE).then(|| self.about("hangs"))
    }

    /// Have it end its work.
    pub fn finish(&mut self) {
        if let Some(mut stdin) = self.running.0.stdin.take() {
            // Who has ended by itself was noted.
            let _ = writeln!(stdin, "finish");
        }
    }

    /// Hear it out. Answers what is wrong.
    pub fn complete(&mut self) -> Option<String> {
        let wrong = self.hear_until(|writer| writer.ended);
        self.running.kill();
        wrong
    }

    pub fn count(&self, name: &str) -> u64 {
        COUNTS.iter().position(|own| *own == name).map_or(0, |place| self.counts[place])
    }

    /// Bytes that it has logged.
    pub fn logged(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |meta| meta.len())
    }
}
