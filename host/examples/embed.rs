//! A program that embeds the host: with a config, components and a cache of its own, whatever the environment says, and with the
//! lines of the log in its own logger.
//!
//! `cargo run --release --locked --example embed COMPONENTS CACHE URI`, after `cargo xtask dist`, keeps a prompt's state under
//! the URI and reads it back: `embed $PWD/target/dist/components /tmp/embed-cache local-fs:///tmp/embed`.

use std::error::Error as _;
use std::path::Path;

use kv_store_wasm::{BatchOptions, Error, Fetch, Fetched, Host, Memory, NewChunk, SaveOutcome};

/// A logger as a program has it: here one that prints. `log::logger()` in its place is the one that the program has set.
struct Printed;

impl log::Log for Printed {
    fn enabled(&self, line: &log::Metadata<'_>) -> bool {
        line.level() <= log::Level::Info
    }

    fn log(&self, line: &log::Record<'_>) {
        println!("[{}] {}: {}", line.level(), line.target(), line.args());
    }

    fn flush(&self) {}
}

/// Save a state and restore it.
pub fn run(components: &Path, cache: &Path, uri: &str) -> Result<(), Error> {
    let host = Host::builder()
        .config_text("[backend.local-fs.limits]\ndeadline_ms = 5000\n")
        .components([components])
        // This program is not shipped with the compile helper, and its components are its own.
        .compile_in_process()
        .cache(cache)
        .log(Printed)
        .build()?;
    let store = host.open(uri)?;
    println!("opened {}", store.info().label);

    // A state in two chunks, each under its key, in a save of its own.
    let save = store.begin_save()?;
    let chunks = [NewChunk::new(b"embed/1", &[b"what the ", b"prompt"]), NewChunk::new(b"embed/2", &[b" came to"])];
    for outcome in store.put_many(&chunks, &BatchOptions::default(), Some(&save))? {
        outcome?;
    }
    match save.commit(Some(("prompt", b"embed/1 embed/2")))? {
        SaveOutcome::Published => println!("published"),
        // A backend that evicts may have dropped some meanwhile: put those again.
        SaveOutcome::Lost(hashes) => println!("{} chunks are lost", hashes.len()),
    }

    // Read into memory of the program's own.
    let mut memory = [0; 64];
    let mut pieces = [&mut memory[..]];
    let mut items = [Fetch::new(b"embed/1", Memory::Pieces(&mut pieces))];
    if let Some(Ok(Some(Fetched::Placed(len)))) = store.get_many(&mut items, &BatchOptions::default())?.pop() {
        println!("the first chunk has {len} bytes");
    }
    store.delete_manifest("prompt")
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [components, cache, uri] = &arguments[..] else {
        eprintln!("usage: embed COMPONENTS CACHE URI");
        return;
    };
    if let Err(error) = run(components.as_ref(), cache.as_ref(), uri) {
        eprintln!("{error}");
        eprintln!("kind {:?}, source {:?}, a retry can help: {}", error.kind(), error.source(), error.can_retry());
        std::process::exit(1);
    }
}
