//! A process of `--soak`: it saves and reads again until it is told to finish, and says what it found. Each name has one thread that
//! writes it, so what a name may be is known without anybody else.
//!
//! Lines on standard output: `ready`; `counts N ...`, in the order of [`COUNTS`], twice a second; `wrong TEXT`; `end`.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_store_abi::batch::{KV_STORE_ALLOCATE, kv_store_batch_vtable_t};
use kv_store_abi::status::KV_STORE_MISSING;
use kv_store_tests::batch::{batches, one};
use kv_store_tests::{Handle, Library};

use super::Plant;
use crate::oracle::Name;
use crate::worker::say;
use crate::workload::{self, CHUNKS, GOLDEN, Manifest, Random, hash};

/// What a writer counts. `whole`: a manifest was there with all its chunks; `gone`: none was there; `partial`: a chunk of it was gone; `unread`:
/// it could not be read, for something struck.
pub const COUNTS: [&str; 8] = ["calls", "saved", "refused", "whole", "gone", "partial", "unread", "longest_ms"];
const CALLS: usize = 0;
const SAVED: usize = 1;
const REFUSED: usize = 2;
const WHOLE: usize = 3;
const GONE: usize = 4;
const PARTIAL: usize = 5;
const UNREAD: usize = 6;
const LONGEST: usize = 7;

#[derive(Clone, clap::Args)]
pub struct WriterOptions {
    #[arg(long)]
    pub uri: String,
    #[arg(long)]
    pub library: PathBuf,
    #[arg(long)]
    pub seed: u64,
    /// No two writers of a store have the same number.
    #[arg(long)]
    pub process: u64,
    /// The store evicts nothing: what was acknowledged is there.
    #[arg(long)]
    pub keeps: bool,
    /// Open the store, use it once, and end: its component is compiled then.
    #[arg(long)]
    pub warm_up: bool,
    /// How long after the end of the work nothing comes late any more.
    #[arg(long, value_name = "MS", default_value_t = 0)]
    pub settle: u64,
    #[arg(long)]
    pub plant: Option<Plant>,
}

const THREADS: u64 = 2;
/// Names of one thread, in a store that keeps them and in one that evicts.
const KEPT: u64 = 6;
const EVICTED: u64 = 200;
/// Chunks of a save in a store that evicts; nobody else saves them.
const UNIQUE: u64 = 8;
/// Most milliseconds between two steps of a thread.
const PAUSE: u64 = 8;
/// Between two looks at what is wanted and what was done.
const TICK: Duration = Duration::from_millis(100);
/// Names that cannot be read at the end are read again until none of them could be read for so long: a busy machine takes long for each.
const READS: Duration = Duration::from_secs(120);

struct Writer {
    options: WriterOptions,
    library: Library,
    batch: &'static kv_store_batch_vtable_t,
    counts: [AtomicU64; COUNTS.len()],
    saves: AtomicU64,
    finished: AtomicBool,
    wrong: AtomicBool,
}

pub fn write(options: WriterOptions) -> bool {
    let loaded = Library::load(&options.library).and_then(|library| {
        let batch = batches(&library).ok_or("the library has no batches")?;
        Ok((library, batch))
    });
    let (library, batch) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            say(format_args!("wrong {error}"));
            return false;
        }
    };
    if options.warm_up {
        return library.open(&options.uri).is_some_and(|store| store.get_manifest("none").is_ok());
    }
    let (counts, saves, finished, wrong) = Default::default();
    let writer = Writer { options, library, batch, counts, saves, finished, wrong };
    writer.run();
    !writer.wrong.load(Relaxed)
}

impl Writer {
    fn run(&self) {
        let mut names = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || self.work(thread))).collect();
            // The end of the runner ends it too.
            scope.spawn(|| {
                let _ = std::io::stdin().lock().read_line(&mut String::new());
                self.finished.store(true, Relaxed);
            });
            say("ready");
            let mut leaked = Vec::new();
            for tick in 0_u64.. {
                if self.finished.load(Relaxed) {
                    break;
                }
                std::thread::sleep(TICK);
                self.leak(&mut leaked);
                if tick % 5 == 4 {
                    self.tell();
                }
            }
            names.extend(threads.into_iter().map(|thread| thread.join().expect("no thread panics")));
        });
        self.read_all(&names);
        self.tell();
        say("end");
    }

    /// Leaks that were planted.
    fn leak(&self, leaked: &mut Vec<(Vec<u8>, Option<std::fs::File>)>) {
        match self.options.plant {
            Some(Plant::Memory) => leaked.push((vec![1; 4 << 20], None)),
            Some(Plant::Files) => {
                leaked.extend((0..4).map(|_| (Vec::new(), std::fs::File::open("/dev/null").ok())));
            }
            Some(Plant::Log) => eprintln!("{:>2000}", "planted"),
            _ => {}
        }
    }

    fn tell(&self) {
        let numbers: Vec<String> = self.counts.iter().map(|count| count.load(Relaxed).to_string()).collect();
        say(format_args!("counts {}", numbers.join(" ")));
    }

    fn wrong(&self, what: impl std::fmt::Display) {
        self.wrong.store(true, Relaxed);
        say(format_args!("wrong {what}"));
    }

    fn count(&self, what: usize) {
        self.counts[what].fetch_add(1, Relaxed);
    }

    /// A call, counted and timed.
    fn call<T>(&self, call: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let answer = call();
        self.count(CALLS);
        self.counts[LONGEST].fetch_max(begun.elapsed().as_millis() as u64, Relaxed);
        answer
    }

    /// The same, where an answer that the ABI forbids is wrong.
    fn called<T>(&self, call: impl FnOnce() -> Result<T, String>) -> Option<T> {
        self.call(call).map_err(|breach| self.wrong(breach)).ok()
    }

    fn slots(&self) -> u64 {
        if self.options.keeps { KEPT } else { EVICTED }
    }

    fn name(&self, thread: u64, slot: u64) -> String {
        format!("{}/{thread}/{slot}", self.options.process)
    }

    /// The bytes of a chunk: few chunks that meet again, or such as nobody has saved before.
    fn content(&self, chunk: u64) -> Vec<u8> {
        if self.options.keeps {
            return workload::content(chunk);
        }
        let mut random = Random(chunk.wrapping_mul(GOLDEN));
        let length = (16 << 10) + random.below(240 << 10) as usize;
        let mut bytes: Vec<u8> = Vec::with_capacity(length + 8);
        while bytes.len() < length {
            bytes.extend(random.next().to_le_bytes());
        }
        bytes.truncate(length);
        bytes
    }

    fn open(&self) -> Option<Handle<'_>> {
        let handle = self.call(|| self.library.open(&self.options.uri));
        if handle.is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        handle
    }

    /// One thread: a handle that it writes by, and another one, so that it reads what is stored and not what a handle keeps. Answers what each
    /// of its names may be.
    fn work(&self, thread: u64) -> Vec<Name> {
        let mut random = Random(self.options.seed ^ (self.options.process << 8 | thread).wrapping_mul(GOLDEN));
        let mut names = vec![Name::default(); self.slots() as usize];
        let (mut writes, mut reads) = (None, None);
        while !self.finished.load(Relaxed) {
            if random.below(400) == 0 {
                (writes, reads) = (None, None);
            }
            if writes.is_none() {
                writes = self.open();
            }
            if reads.is_none() {
                reads = self.open();
            }
            if let (Some(by), Some(from)) = (&writes, &reads) {
                let slot = random.below(self.slots());
                let name = &mut names[slot as usize];
                let went = match random.below(20) {
                    0..=9 => self.save(by, (thread, slot), name, &mut random),
                    10 if self.options.keeps => self.remove(by, (thread, slot), name),
                    _ => {
                        self.read(from, (thread, slot), name);
                        true
                    }
                };
                // A handle that has lost a chunk fails manifests for a while.
                if !went {
                    writes = None;
                }
            }
            std::thread::sleep(Duration::from_micros(random.below(PAUSE * 1000)));
        }
        names
    }

    /// Save under a name. False: it failed.
    fn save(&self, store: &Handle<'_>, (thread, slot): (u64, u64), name: &mut Name, random: &mut Random) -> bool {
        let save = self.options.process << 40 | self.saves.fetch_add(1, Relaxed);
        let chunks: Vec<u64> = match self.options.keeps {
            true => (0..1 + random.below(6)).map(|_| random.below(CHUNKS)).collect(),
            false => (0..UNIQUE).map(|chunk| save * UNIQUE + chunk).collect(),
        };
        for chunk in &chunks {
            let bytes = self.content(*chunk);
            if self.called(|| store.put_chunk(&hash(&bytes), &bytes)).is_none_or(|answer| answer < 0) {
                self.count(REFUSED);
                return false;
            }
        }
        let manifest = Manifest { name: (thread * self.slots() + slot) as usize, save, chunks }.to_bytes();
        name.tries(Some(save));
        let done = self.called(|| store.put_manifest(&self.name(thread, slot), &manifest)) == Some(0);
        if done {
            *name = Name::new(Some(save));
        }
        self.count(if done { SAVED } else { REFUSED });
        if self.options.plant == Some(Plant::Lost) && slot == 0 {
            let _ = store.delete_manifest(&self.name(thread, slot));
        }
        done
    }

    fn remove(&self, store: &Handle<'_>, (thread, slot): (u64, u64), name: &mut Name) -> bool {
        name.tries(None);
        let answer = self.called(|| store.delete_manifest(&self.name(thread, slot)));
        let done = matches!(answer, Some(0 | KV_STORE_MISSING));
        if done {
            *name = Name::new(None);
        }
        done
    }

    /// Look at a name. False: it could not be read.
    fn read(&self, store: &Handle<'_>, (thread, slot): (u64, u64), name: &Name) -> bool {
        let (title, number) = (self.name(thread, slot), (thread * self.slots() + slot) as usize);
        let bytes = match self.called(|| store.get_manifest(&title)) {
            Some(Ok(bytes)) => bytes,
            Some(Err(KV_STORE_MISSING)) => {
                self.count(GONE);
                if self.options.keeps && !name.allows(name.begin(), None) {
                    self.wrong(format_args!("lost: {title} is gone; it may be {}", name.describe()));
                }
                return true;
            }
            _ => {
                self.count(UNREAD);
                return false;
            }
        };
        let manifest = match Manifest::parse(&bytes) {
            Ok(manifest) if manifest.name == number => manifest,
            Ok(other) => {
                self.wrong(format_args!("wrong bytes: under {title} lies the manifest of name {}", other.name));
                return true;
            }
            Err(torn) => {
                self.wrong(format_args!("wrong bytes: {title}: {torn}"));
                return true;
            }
        };
        if !name.allows(name.begin(), Some(manifest.save)) {
            self.wrong(format_args!("lost: {title} is of save {}; it may be {}", manifest.save, name.describe()));
        }
        let (mut missing, mut unread) = (false, false);
        for chunk in &manifest.chunks {
            match self.chunk(store, *chunk) {
                Some(true) => {}
                Some(false) if self.options.keeps => {
                    self.wrong(format_args!("lost: chunk {chunk} of {title} is gone"));
                    missing = true;
                }
                Some(false) => missing = true,
                None => unread = true,
            }
        }
        self.count(if unread {
            UNREAD
        } else if missing {
            PARTIAL
        } else {
            WHOLE
        });
        !unread
    }

    /// Whether a chunk is there. None: it could not be read.
    fn chunk(&self, store: &Handle<'_>, chunk: u64) -> Option<bool> {
        let right = self.content(chunk);
        let (status, found) = self.call(|| one(store, self.batch.get_many, &hash(&right), KV_STORE_ALLOCATE, &mut []));
        match status {
            0 if found != right => {
                self.wrong(format_args!("wrong bytes: chunk {chunk}, {} of {} bytes", found.len(), right.len()));
                Some(true)
            }
            0 => Some(true),
            KV_STORE_MISSING => Some(false),
            _ => None,
        }
    }

    /// What is there when nothing strikes and nothing comes late any more.
    fn read_all(&self, names: &[Vec<Name>]) {
        std::thread::sleep(Duration::from_millis(self.options.settle));
        let places = names.iter().enumerate().flat_map(|(thread, names)| {
            names.iter().enumerate().map(move |(slot, name)| ((thread as u64, slot as u64), name))
        });
        let mut left: HashMap<(u64, u64), &Name> = places.collect();
        let mut progress = Instant::now();
        while !left.is_empty() && progress.elapsed() < READS {
            self.tell();
            let Some(store) = self.open() else { continue };
            left.retain(|place, name| {
                let was_read = progress.elapsed() < READS && self.read(&store, *place, name);
                if was_read {
                    progress = Instant::now();
                }
                self.tell();
                !was_read
            });
        }
        if !left.is_empty() {
            self.wrong(format_args!("{} names cannot be read, and nothing strikes any more", left.len()));
        }
    }
}
