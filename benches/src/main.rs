//! How fast the library is, beside its peers: a program that `cargo xtask bench` runs with what it has built.
//!
//! The library is loaded and called as an engine does it, through the C ABI. Standard output holds one JSON object for each
//! row; everything else is on standard error.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a benchmark that fails ends")]

mod against;
mod batch;
mod consumer;
mod instructions;
mod measure;
mod peers;
mod rows;
mod spread;
mod steps;

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use kv_store_conformance::Library;

use measure::{Bench, Mode};

#[derive(Parser)]
#[command(name = "kv-store-bench", about = "Measure the library beside its peers, in one run")]
struct Arguments {
    /// libkv_store_wasm.so, as it is installed
    #[arg(long)]
    library: PathBuf,
    /// The native local-fs store of tests/native
    #[arg(long)]
    native: Option<PathBuf>,
    /// A former library, with what was installed beside it: only the single calls are measured, against it
    #[arg(long, value_name = "LIB")]
    against: Option<PathBuf>,
    /// Only count the instructions of calls. SYMBOLS is the library before its names were stripped
    #[arg(long, value_name = "SYMBOLS")]
    instructions: Option<PathBuf>,
    /// Where stores are made, on the disk to be measured
    #[arg(long)]
    work: Option<PathBuf>,
    /// Fewer rounds, and without the rows that take longest
    #[arg(long)]
    quick: bool,
    /// Only rows whose name holds this
    #[arg(long)]
    filter: Option<String>,
    /// Write the value of each round here, one row a line
    #[arg(long)]
    samples: Option<PathBuf>,
    /// Only the rows whose servers take the ports of the whole machine: this process is in a network namespace of its own
    #[arg(long, hide = true)]
    isolated: bool,
    /// Open this URI, fetch one chunk, print the seconds that it took: what a fresh process does
    #[arg(long, hide = true)]
    first_answer: Option<String>,
    /// Read all of the store in this folder each time that a line comes: what one of several processes does
    #[arg(long, hide = true)]
    read_cold: Option<PathBuf>,
    /// Do the operation of a row so many times: what is counted from outside
    #[arg(long, hide = true, requires = "times")]
    perform: Option<String>,
    #[arg(long, hide = true)]
    times: Option<u64>,
    /// Have the process that started this one count each instruction of it
    #[arg(long, hide = true, requires = "perform")]
    stepped: bool,
    /// The same on this URI of a server
    #[arg(long, hide = true, requires = "perform")]
    on: Option<String>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(uri) = &arguments.first_answer {
        return rows::open::first_answer(&arguments.library, uri);
    }
    if let Some(folder) = &arguments.read_cold {
        return rows::disk::processes::read_cold(&arguments.library, folder);
    }
    let work = arguments.work.context("--work is missing")?;
    if let (Some(name), Some(times)) = (&arguments.perform, arguments.times) {
        if let (true, Some(uri)) = (name.starts_with("instructions/"), &arguments.on) {
            return instructions::perform(name, times, &arguments.library, uri);
        }
        let times = against::Times { times, stepped: arguments.stepped };
        return against::perform(name, times, &arguments.library, &work, arguments.on.as_deref());
    }
    let config = work.join(measure::CONFIG);
    // The nodes of Mooncake are granted by whoever runs this in their network.
    let granted = arguments.isolated.then(|| std::env::var_os("KV_STORE_WASM_CONFIG")).flatten();
    let text = granted.map(std::fs::read_to_string).transpose().context("cannot read the config")?;
    std::fs::write(&config, text.unwrap_or_default()).context("cannot write a config")?;
    // SAFETY: nothing else runs yet.
    unsafe {
        std::env::set_var("MEMKV_AUTH_KEY", kv_store_tests::memkv::AUTH_KEY);
        std::env::set_var("KV_STORE_WASM_CONFIG", config);
    }
    if let Some(symbols) = &arguments.instructions {
        return instructions::run(&arguments.library, symbols, &work, arguments.filter.as_deref());
    }
    let samples = match &arguments.samples {
        Some(path) => Some(File::create(path).context("cannot write the samples")?),
        None => None,
    };
    let samples = RefCell::new(samples);
    let bench = |ours: &Path, peer: &Path, mode: Mode| -> Result<Bench> {
        Ok(Bench {
            ours: load(ours)?,
            native: load(peer)?,
            library: ours.to_owned(),
            native_library: peer.to_owned(),
            work: work.clone(),
            quick: arguments.quick,
            filter: arguments.filter.clone(),
            samples: samples.take().map(RefCell::new),
            mode,
        })
    };
    if let Some(former) = arguments.against {
        return against::run(&arguments.library, &against::found(former)?, &work, bench);
    }
    let native = arguments.native.context("--native is missing")?;
    let bench = bench(&arguments.library, &native, Mode::Peers)?;
    if arguments.isolated {
        return rows::mooncake::run(&bench);
    }
    rows::fs::run(&bench)?;
    rows::batch::run(&bench)?;
    rows::descriptor::run(&bench)?;
    rows::segments::run(&bench)?;
    rows::disk::run(&bench)?;
    rows::prefetch::run(&bench)?;
    rows::threads::run(&bench)?;
    rows::open::run(&bench)?;
    rows::redis::run(&bench)?;
    rows::cluster::run(&bench)?;
    rows::s3::run(&bench)?;
    rows::save::run(&bench)?;
    rows::fence::run(&bench)?;
    rows::near::run(&bench)?;
    rows::growth::run(&bench)
}

fn load(path: &Path) -> Result<Library> {
    Library::load(path).map_err(anyhow::Error::msg)
}
