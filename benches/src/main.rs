//! How fast the library is, beside its peers: a program that `cargo xtask bench` runs with what it has built.
//!
//! The library is loaded and called as an engine does it, through the C ABI. Standard output holds one JSON object for each
//! row; everything else is on standard error.

mod batch;
mod consumer;
mod measure;
mod peers;
mod rows;

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use kv_store_conformance::Library;

use measure::Bench;

#[derive(Parser)]
#[command(name = "kv-store-bench", about = "Measure the library beside its peers, in one run")]
struct Arguments {
    /// libkv_store_wasm.so, as it is installed
    #[arg(long)]
    library: PathBuf,
    /// The native local-fs store of tests/native
    #[arg(long, required_unless_present = "first_answer")]
    native: Option<PathBuf>,
    /// Where stores are made, on the disk to be measured
    #[arg(long, required_unless_present = "first_answer")]
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
    /// Open this URI, fetch one chunk, print the seconds that it took: what a fresh process does
    #[arg(long, hide = true)]
    first_answer: Option<String>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(uri) = &arguments.first_answer {
        return rows::open::first_answer(&arguments.library, uri);
    }
    // SAFETY: nothing else runs yet.
    unsafe { std::env::set_var("MEMKV_AUTH_KEY", kv_store_tests::memkv::AUTH_KEY) };
    let native_library = arguments.native.context("--native is missing")?;
    let samples = arguments.samples.map(File::create).transpose().context("cannot write the samples")?;
    let bench = Bench {
        ours: load(&arguments.library)?,
        native: load(&native_library)?,
        library: arguments.library,
        native_library,
        work: arguments.work.context("--work is missing")?,
        quick: arguments.quick,
        filter: arguments.filter,
        samples: samples.map(RefCell::new),
    };
    rows::fs::run(&bench)?;
    rows::batch::run(&bench)?;
    rows::prefetch::run(&bench)?;
    rows::threads::run(&bench)?;
    rows::open::run(&bench)?;
    rows::redis::run(&bench)?;
    rows::save::run(&bench)?;
    rows::growth::run(&bench)
}

fn load(path: &Path) -> Result<Library> {
    Library::load(path).map_err(anyhow::Error::msg)
}
