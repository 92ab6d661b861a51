//! `open_components FOLDER`: opens each component of a folder under limits; tests/fuzz/components.sh makes them and starts it.
//!
//! What is held: the process lives, an open takes no more than [`RESIDENT_MOST`] and no longer than its `compile_ms` and a second (the
//! time in which a thread that only sleeps did not get the processor is not counted), and no compiler panics. The files that it does not hold for are left, and the others removed. Before each open the file's name
//! is written, so that what ends the process is the last one.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_store_hostile::{peak_of, prepare, table};
use kv_store_wasm::Store;

const COMPILE_MS: u64 = 2_000;
const RESIDENT_MOST: u64 = 64 << 20;

/// Microseconds for which a thread had to wait for a processor.
static STARVED: AtomicU64 = AtomicU64::new(0);

fn watch_the_machine() {
    const NAP: Duration = Duration::from_millis(5);
    std::thread::spawn(|| {
        loop {
            let begun = Instant::now();
            std::thread::sleep(NAP);
            STARVED.fetch_add(begun.elapsed().saturating_sub(NAP).as_micros() as u64, Relaxed);
        }
    });
}

fn main() {
    watch_the_machine();
    let folder = std::env::args_os().nth(1).expect("open_components FOLDER");
    let folder = std::path::absolute(folder).expect("a folder");
    let opened = tempfile::tempdir().expect("a temporary directory");
    let file = opened.path().join("fuzz.wasm");
    let limits = format!("limits = {{ compile_ms = {COMPILE_MS}, compile_bytes = 268435456, breaker_failures = 0 }}");
    prepare(&table("fuzz", &file, &limits));

    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    let (mut most, mut longest, mut failed) = (0, Duration::ZERO, false);
    for entry in std::fs::read_dir(&folder).expect("a folder").flatten().map(|entry| entry.path()) {
        println!("{}", entry.display());
        place_as(&file, &entry);
        let (start, starved) = (Instant::now(), STARVED.load(Relaxed));
        let mut outcome = None;
        let peak = peak_of(|| outcome = Some(Store::open("fuzz://x").map(drop)));
        let waited = Duration::from_micros(STARVED.load(Relaxed) - starved);
        let took = start.elapsed().saturating_sub(waited);
        let text = outcome.expect("it was opened").err().map_or_else(|| "opens".to_owned(), |error| error.to_string());
        let in_time = took <= Duration::from_millis(COMPILE_MS + 1000);
        if peak <= RESIDENT_MOST && in_time && !text.contains("panicked") {
            std::fs::remove_file(&entry).expect("the folder is ours");
        } else {
            failed = true;
            eprintln!("{}: {took:.1?}, {peak} bytes of memory: {text}", entry.display());
        }
        (most, longest) = (most.max(peak), longest.max(took));
        *outcomes.entry(class(&text)).or_default() += 1;
    }
    outcomes.iter().for_each(|(text, count)| eprintln!("{count:>7}  {text}"));
    eprintln!("at most {most} bytes of memory and {longest:.1?}; {} components", outcomes.values().sum::<u32>());
    std::process::exit(i32::from(failed));
}

/// What an outcome is in general: without the path, and what is of the one component.
fn class(text: &str) -> String {
    let text = text.split_once("fuzz.wasm: ").map_or(text, |(_, rest)| rest);
    let text = text.split(": ").next().unwrap_or_default();
    text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).take(60).collect()
}

/// Another file, and not the same one changed: the library knows a file by what the kernel says of it.
fn place_as(file: &Path, from: &Path) {
    let fresh = file.with_extension("new");
    std::fs::copy(from, &fresh).and_then(|_| std::fs::rename(&fresh, file)).expect("the folder is ours");
}
