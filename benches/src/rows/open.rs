//! Opening: again in a process that has the store open, and in a fresh process up to its first answer, with the compiled
//! component in the cache.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kv_store_conformance::Library;

use super::fs::uri;
use crate::consumer::{Client, key};
use crate::measure::{Bench, Unit, each};

pub const KEY: u64 = 7;

pub fn run(bench: &Bench) -> Result<()> {
    if bench.wants("open/warm") {
        let (ours, peer) = (uri(&bench.folder("ours")?), uri(&bench.folder("peer")?));
        let round = |library, uri: &str| each(50, |_| Client::open(library, uri).map(drop));
        let rounds = bench.rounds(|| round(&bench.ours, &ours), || round(&bench.native, &peer))?;
        bench.report("open/warm", &rounds, Unit::Micros, 0, None)?;
    }
    if bench.wants("open/cold") {
        let (ours, peer) = (uri(&bench.folder("ours")?), uri(&bench.folder("peer")?));
        Client::open(&bench.ours, &ours)?.put(&key(KEY), b"an answer")?;
        Client::open(&bench.native, &peer)?.put(&key(KEY), b"an answer")?;
        let [of_ours, of_peer] = [&bench.library, &bench.native_library];
        let rounds = bench.rounds(|| fresh_process(of_ours, &ours), || fresh_process(of_peer, &peer))?;
        bench.report("open/cold", &rounds, Unit::Micros, 0, None)?;
    }
    Ok(())
}

/// The seconds that a fresh process of this program says it took.
pub fn fresh_process(library: &Path, uri: &str) -> Result<f64> {
    let mut process = Command::new(std::env::current_exe()?);
    let output = process.arg("--first-answer").arg(uri).arg("--library").arg(library).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "a fresh process failed: {}", String::from_utf8_lossy(&output.stderr));
    text.trim().parse().context("a fresh process did not say how long it took")
}

/// What a fresh process does: from loading the library to the first answer.
pub fn first_answer(library: &Path, uri: &str) -> Result<()> {
    let begun = Instant::now();
    let library = Library::load(library).map_err(anyhow::Error::msg)?;
    let client = Client::open(&library, uri)?;
    ensure!(client.get(&key(KEY))?.bytes() == b"an answer");
    println!("{}", begun.elapsed().as_secs_f64());
    Ok(())
}
