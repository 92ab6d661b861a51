//! A peer that is a process of its own: it does a round for each line that it gets, and answers with the seconds that the round took.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};

/// The variable that names the folder of the programs of `benches/far-peers`.
const PEERS: &str = "KV_STORE_FAR_PEERS";

/// A program of `benches/far-peers`. None: it is not built, which is said.
pub fn program(name: &str) -> Option<Command> {
    let program =
        std::env::var_os(PEERS).map(|folder| Path::new(&folder).join(name)).filter(|program| program.exists());
    if program.is_none() {
        eprintln!("skipped: the rows of {name}, because it is not built; `cargo xtask bench` builds it");
    }
    program.map(Command::new)
}

pub struct Peer {
    process: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(program: &mut Command) -> Result<Self> {
        let mut process =
            program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("the peer does not start")?;
        let asks = process.stdin.take().context("a pipe")?;
        let answers = BufReader::new(process.stdout.take().context("a pipe")?);
        Ok(Peer { process, asks, answers })
    }

    /// The seconds of a round.
    pub fn round(&mut self, what: &str, first: u64) -> Result<f64> {
        writeln!(self.asks, "{what} {first}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("the peer failed at {what}: {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
