//! What the tests share: a small cache in a folder of its own, and rows that are easy to tell apart.
#![allow(dead_code)]

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use kv_cache::{Cache, Clock, Config, Fingerprint, Hit, Identity, Options, Query, Result, Save, Saved, Step, TierKind};
use tempfile::TempDir;

pub const IDENTITY: Identity = Identity {
    fingerprint: Fingerprint { bytes: [1; 32], mode: kv_cache::FingerprintMode::Safe },
    quant: 7,
    context_hash: [2; 32],
};

/// A policy for rows of a few tokens.
pub const POLICY: &str = "[policy]\nmin_tokens = 4\ncold_min_tokens = 4\ncold_max_tokens = 100\n\
    continued_interval = 8\nboundary_trim_tokens = 2\nboundary_align_tokens = 8\nsession_resume_wait_ms = 5000\n";

pub fn ram(budget: u64) -> String {
    format!("{POLICY}[ram]\nbudget = {budget}\n")
}

pub fn disk(path: &Path, budget: u64) -> String {
    format!("{POLICY}[disk]\npath = {path:?}\nbudget = {budget}\n")
}

/// All three tiers, of 100,000 bytes each, their files below `path`.
pub fn all_tiers(path: &Path) -> String {
    let disk = disk(&path.join("disk"), 100_000);
    format!("{disk}[ram_file]\npath = {:?}\nbudget = 100000\n[ram]\nbudget = 100000\n", path.join("ram"))
}

pub fn open(config: &str) -> Cache {
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match Cache::open(Config::parse(config).unwrap()) {
            // The lock of a cache that was closed lives on in a process that another test is just starting, until that has become
            // its program.
            Err(error) if error.to_string().contains("belongs to another cache") && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
}

pub fn open_with(config: &str, options: Options) -> Cache {
    Cache::open_with(Config::parse(config).unwrap(), options).unwrap()
}

/// The n-th sequence of `length` tokens; sequences of one n begin alike.
pub fn tokens(n: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|i| n.wrapping_mul(1_000_003).wrapping_add(i)).collect()
}

pub fn payload(n: u32, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i as u32 * 31 + n * 7 + (i as u32 >> 8)) as u8).collect()
}

pub fn save(cache: &Cache, tokens: &[u32], payload: &[u8]) -> Result<Saved> {
    cache.save(Save::new(&IDENTITY, tokens, payload))
}

pub fn save_to(cache: &Cache, tier: TierKind, tokens: &[u32], payload: &[u8]) -> Result<Saved> {
    cache.save(Save::new(&IDENTITY, tokens, payload).tier(tier))
}

pub fn lookup(cache: &Cache, tokens: &[u32]) -> Option<Hit> {
    cache.lookup(&Query::new(&IDENTITY, tokens)).unwrap()
}

pub fn load(hit: &Hit) -> Result<Vec<u8>> {
    let mut buffer = vec![0; hit.payload_len()];
    hit.load_into(&mut buffer).map(|()| buffer)
}

/// The row of exactly these tokens, loaded.
pub fn get(cache: &Cache, tokens: &[u32]) -> Option<Vec<u8>> {
    let hit = lookup(cache, tokens).filter(|hit| hit.tokens() == tokens.len())?;
    load(&hit).ok()
}

pub fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    (folder, path)
}

pub fn row_path(directory: &Path, tokens: &[u32]) -> PathBuf {
    directory.join(format!("{}.kvc", IDENTITY.key(tokens)))
}

/// The names in a directory but for the lock and the marker, sorted.
pub fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".lock" && name != ".token-cache")
        .collect();
    names.sort();
    names
}

/// A clock that stands still until it is set.
#[derive(Default)]
pub struct ManualClock {
    pub monotonic: Mutex<Duration>,
    pub wall: Mutex<Duration>,
}

impl Clock for ManualClock {
    fn monotonic(&self) -> Duration {
        *self.monotonic.lock().unwrap()
    }

    fn wall(&self) -> Duration {
        *self.wall.lock().unwrap()
    }
}

impl ManualClock {
    pub fn advance(&self, time: Duration) {
        *self.monotonic.lock().unwrap() += time;
        *self.wall.lock().unwrap() += time;
    }
}

/// Options with a hook after each step of the publish protocol.
pub fn hooked(hook: impl Fn(Step) -> io::Result<()> + Send + Sync + 'static) -> Options {
    Options { hook: Some(Arc::new(hook)), ..Options::default() }
}

/// A cache each of whose saves waits for a word once it has come to a step. When the sender is gone none waits any more.
pub fn stopped(config: &str, at: Step) -> (Cache, mpsc::Sender<()>) {
    let (go_on, gate) = mpsc::channel();
    let gate = Mutex::new(gate);
    let hook = move |step| {
        if step == at {
            let _ = gate.lock().unwrap().recv();
        }
        Ok(())
    };
    (open_with(config, hooked(hook)), go_on)
}
