//! `--soak`: writers that outrun the bound of a store in a directory, for as long as is asked.
//!
//! Each writer is a process: it saves chunks that nobody has saved before, reads earlier saves again, and holds what it reads against
//! what it wrote. Beside them the directory is weighed, and the memory of the writers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use kv_store_tests::{Library, library_path, root};

use crate::workload::{Random, hash};

/// What the store may hold.
const BOUND: u64 = 256 << 20;
/// How far over it the files may be, in percent.
const OVER: u64 = 105;
const WRITERS: u64 = 4;
/// Chunks of one save.
const CHUNKS: u64 = 8;
/// Saves of one writer that it reads again.
const REMEMBERED: u64 = 1000;
/// How often the directory is weighed.
const WEIGHED: Duration = Duration::from_millis(100);
/// What a process may take more in the end than when it had filled the store: its allocator is not exact.
const GROWTH_KIB: u64 = 32 << 10;

/// The writer: `soak-writer`.
#[derive(Clone, clap::Args)]
pub struct Options {
    #[arg(long)]
    uri: String,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    seconds: f64,
}

/// The bytes of a chunk, which no other has.
fn content(seed: u64, chunk: u64) -> Vec<u8> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ chunk);
    let len = (16 << 10) + random.below(240 << 10) as usize;
    let mut bytes: Vec<u8> = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        bytes.extend(random.next().to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// Save and read until the time is up. What was found goes to standard output, in one line of words and numbers.
pub fn write(options: &Options) -> bool {
    let Options { uri, seed, seconds } = options;
    let library = Library::load(&library_path()).expect("the library loads");
    let store = library.open(uri).expect("the store opens");
    let end = Instant::now() + Duration::from_secs_f64(*seconds);
    let (mut saved, mut refused, mut whole, mut gone, mut dangling, mut wrong) =
        (0_u64, 0_u64, 0_u64, 0_u64, 0_u64, 0_u64);
    let mut random = Random(*seed);
    let mut save = 0;
    while Instant::now() < end {
        let chunks: Vec<Vec<u8>> = (0..CHUNKS).map(|chunk| content(*seed, save * CHUNKS + chunk)).collect();
        let keys: Vec<u8> = chunks.iter().flat_map(|chunk| hash(chunk)).collect();
        let put = |chunk: &Vec<u8>| store.put_chunk(&hash(chunk), chunk).is_ok_and(|answer| answer >= 0);
        let all = chunks.iter().all(put);
        match all && store.put_manifest(&format!("{seed}/{save}"), &keys) == Ok(0) {
            true => saved += 1,
            false => refused += 1,
        }
        save += 1;
        let earlier = save - 1 - random.below(save.min(REMEMBERED));
        match store.get_manifest(&format!("{seed}/{earlier}")) {
            Ok(Ok(keys)) => {
                let mut found = true;
                for chunk in 0..CHUNKS {
                    let expected = content(*seed, earlier * CHUNKS + chunk);
                    let at = chunk as usize * 8;
                    wrong += u64::from(keys.get(at..at + 8) != Some(&hash(&expected)[..]));
                    match store.get_chunk(&hash(&expected)) {
                        Ok(Ok(bytes)) => wrong += u64::from(bytes != expected),
                        _ => found = false,
                    }
                }
                *(if found { &mut whole } else { &mut dangling }) += 1;
            }
            _ => gone += 1,
        }
    }
    println!("saved {saved} refused {refused} whole {whole} gone {gone} dangling {dangling} wrong {wrong}");
    wrong == 0
}

/// What a directory holds: bytes of chunks and manifests, and files of writers at work.
fn weigh(path: &Path) -> (u64, u64) {
    let (mut bytes, mut temporaries) = (0, 0);
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            match entry.metadata() {
                Ok(meta) if meta.is_dir() => folders.push(entry.path()),
                Ok(_) if folder.ends_with(".kv-tmp") => temporaries += 1,
                Ok(meta) if name != ".kv-usage" => bytes += meta.len(),
                _ => {}
            }
        }
    }
    (bytes, temporaries)
}

/// What a process takes of memory now, in KiB.
fn resident(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok()).unwrap_or(0)
}

/// What a process has open.
fn open_files(child: &Child) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", child.id())).map_or(0, Iterator::count)
}

pub fn soak(minutes: f64, seed: u64) -> ExitCode {
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let store = scratch.path().join("store");
    let config = scratch.path().join("config.toml");
    let table =
        format!("[backend.local-fs]\nverify = 'xxh3'\noptions = {{ max_bytes = '{BOUND}', save_grace_s = '1' }}\n");
    std::fs::write(&config, table).expect("a temporary directory can be written to");
    let seconds = minutes * 60.0;
    let writer = |number: u64| {
        let mut command = Command::new(std::env::current_exe().expect("the program has a path"));
        command.args(["soak-writer", "--uri", &format!("local-fs://{}", store.display())]);
        command.args(["--seed", &seed.wrapping_add(number).to_string(), "--seconds", &seconds.to_string()]);
        command
            .env("KV_STORE_WASM_CONFIG", &config)
            .env("KV_STORE_WASM_CACHE", root().join("target/test-consumers/cache"));
        command.stdout(Stdio::piped()).spawn().expect("it runs")
    };
    let begun = Instant::now();
    let mut writers: Vec<Child> = (0..WRITERS).map(writer).collect();
    let (mut most, mut settled) = (0, None);
    let mut last = (Vec::new(), Vec::new());
    while writers.iter_mut().any(|writer| matches!(writer.try_wait(), Ok(None))) {
        most = most.max(weigh(&store).0);
        let now: (Vec<u64>, Vec<usize>) =
            (writers.iter().map(resident).collect(), writers.iter().map(open_files).collect());
        if now.0.iter().all(|kib| *kib > 0) {
            last = now;
        }
        if settled.is_none() && begun.elapsed().as_secs_f64() > seconds / 5.0 {
            settled = Some(last.clone());
        }
        std::thread::sleep(WEIGHED);
    }
    let mut totals: BTreeMap<String, u64> = BTreeMap::new();
    let mut failures = Vec::new();
    for writer in &mut writers {
        let lines = BufReader::new(writer.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            for pair in words.chunks_exact(2) {
                *totals.entry(pair[0].to_owned()).or_default() += pair[1].parse::<u64>().unwrap_or(0);
            }
        }
        if !writer.wait().is_ok_and(|status| status.success()) {
            failures.push("a writer failed, or read a wrong byte".to_owned());
        }
    }
    let (left, temporaries) = weigh(&store);
    let percent = |bytes: u64| bytes as f64 * 100.0 / BOUND as f64;
    println!("seed {seed}, {:.1} minutes, {WRITERS} writers, a bound of {} MiB", minutes, BOUND >> 20);
    println!("saves: {totals:?}");
    println!(
        "at most {:.1}% of the bound, {:.1}% in the end; {temporaries} temporary files left",
        percent(most),
        percent(left)
    );
    if most * 100 > BOUND * OVER {
        failures.push(format!("the store had {most} bytes, more than {OVER}% of its bound"));
    }
    if temporaries > 0 {
        failures.push(format!("{temporaries} temporary files are left"));
    }
    if totals.get("wrong").copied().unwrap_or(0) > 0 {
        failures.push("a wrong byte was read".to_owned());
    }
    let written = totals.get("saved").copied().unwrap_or(0) * CHUNKS * (136 << 10);
    if written < 2 * BOUND {
        failures.push(format!("the writers did not outrun the bound: they saved about {} MiB", written >> 20));
    }
    if let Some((memory, files)) = settled {
        println!(
            "memory of the writers in KiB: {memory:?}, then {:?}; open files: {files:?}, then {:?}",
            last.0, last.1
        );
        if memory.iter().zip(&last.0).any(|(before, after)| *after > before + GROWTH_KIB) {
            failures.push("a writer's memory has grown".to_owned());
        }
        if files.iter().zip(&last.1).any(|(before, after)| *after > before + 32) {
            failures.push("a writer leaks files".to_owned());
        }
    }
    failures.iter().for_each(|failure| eprintln!("VIOLATION {failure}"));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
