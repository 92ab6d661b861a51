//! Two processes that read at once what is not in the page cache, each a store of its own, beside the disk itself.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use kv_store_conformance::Library;

use super::super::fs;
use super::{Cold, beside_the_device};
use crate::batch::Batches;
use crate::measure::Bench;
use crate::peers::disk::drop_from_cache;

/// What each process reads in a round.
const BYTES: usize = 128 << 20;
const SIZE: usize = 1 << 20;

pub fn run(bench: &Bench) -> Result<()> {
    const NAME: &str = "disk/get-many/1MiB/2-processes";
    if !bench.wants(NAME) {
        return Ok(());
    }
    let folders = [bench.folder("ours")?, bench.folder("ours-2")?];
    let mut files = Vec::new();
    for folder in &folders {
        files.extend(Cold::make(Batches::open(&bench.ours, &fs::uri(folder))?, folder, SIZE, BYTES)?.files);
    }
    let mut readers = folders.iter().map(|folder| Reader::start(&bench.library, folder)).collect::<Result<Vec<_>>>()?;
    let mut ours = || {
        drop_from_cache(&files)?;
        let begun = Instant::now();
        readers.iter_mut().try_for_each(Reader::begin)?;
        readers.iter_mut().try_for_each(Reader::end)?;
        Ok(begun.elapsed().as_secs_f64())
    };
    beside_the_device(bench, NAME, 2 * BYTES, &files, SIZE, &mut ours)
}

/// A process that reads all of a store each time that it is told to. It ends with its standard input.
struct Reader {
    process: Child,
    tell: Option<ChildStdin>,
    hear: BufReader<ChildStdout>,
}

impl Reader {
    fn start(library: &Path, folder: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--read-cold").arg(folder).arg("--library").arg(library);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let hear = BufReader::new(process.stdout.take().context("no output")?);
        let mut reader = Reader { tell: process.stdin.take(), process, hear };
        // It has opened its store.
        reader.end()?;
        Ok(reader)
    }

    fn begin(&mut self) -> Result<()> {
        Ok(self.tell.as_mut().context("it has ended")?.write_all(b"read\n")?)
    }

    fn end(&mut self) -> Result<()> {
        let mut line = String::new();
        self.hear.read_line(&mut line)?;
        ensure!(line == "done\n", "a process that reads said {line:?}");
        Ok(())
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.tell = None;
        let _ = self.process.wait();
    }
}

/// What such a process does.
pub fn read_cold(library: &Path, folder: &Path) -> Result<()> {
    let library = Library::load(library).map_err(anyhow::Error::msg)?;
    let mut cold = Cold::there(Batches::open(&library, &fs::uri(folder))?, folder, SIZE, BYTES)?;
    println!("done");
    for line in std::io::stdin().lines() {
        line?;
        cold.read()?;
        println!("done");
    }
    Ok(())
}
