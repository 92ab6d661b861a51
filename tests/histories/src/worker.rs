//! A process of a history. It loads the library as an engine does, calls it from several threads, and records each call. A line `finish` on its
//! standard input ends the work; then it waits until nothing can come late any more, and reads every key.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_store_abi::batch::{KV_STORE_ALLOCATE, KV_STORE_REPLACE, kv_store_batch_vtable_t};
use kv_store_abi::status::{KV_STORE_MISSING, KV_STORE_OTHER};
use kv_store_tests::batch::{batches, one};
use kv_store_tests::{Handle, Library};

use crate::record::{Begun, Kind, Outcome, Recorder};
use crate::values::{CONTENTS, GOLDEN, Key, MANIFESTS, OTHERS, Random, content, digest, filler, value};

#[derive(Clone, clap::Args)]
pub struct Options {
    #[arg(long)]
    uri: String,
    #[arg(long)]
    library: PathBuf,
    #[arg(long)]
    seed: u64,
    /// Which process of the history it is: no two have the same number.
    #[arg(long)]
    process: u32,
    #[arg(long, default_value_t = 2)]
    threads: u32,
    /// Where to record.
    #[arg(long)]
    record: PathBuf,
    /// How long after the end of the work nothing comes late any more.
    #[arg(long, value_name = "MS")]
    settle: u64,
    /// Most milliseconds between two calls of a thread.
    #[arg(long, value_name = "MS", default_value_t = 8)]
    pause: u64,
    /// Chunks that saves name are not removed: the backend has no manifest while one of its chunks is gone, and has it again after that.
    #[arg(long)]
    apart: bool,
    /// Have the store evict: store much that nobody reads, and read no manifest.
    #[arg(long)]
    press: bool,
}

#[derive(Clone, clap::Args)]
pub struct Open {
    #[arg(long)]
    uri: String,
    #[arg(long)]
    library: PathBuf,
}

/// Open a store and use it once, so that its component is compiled.
pub fn open(options: &Open) -> bool {
    let library = Library::load(&options.library);
    let store = library.as_ref().ok().and_then(|library| library.open(&options.uri));
    store.is_some_and(|store| store.get_manifest("none").is_ok())
}

struct Worker {
    options: Options,
    library: Library,
    batch: Option<&'static kv_store_batch_vtable_t>,
    recorder: Recorder,
    handles: AtomicU32,
    values: AtomicU64,
    finished: AtomicBool,
}

/// An open store, and its number in the records.
struct NumberedStore<'a> {
    handle: Handle<'a>,
    number: u32,
}

/// For so long keys are read at the end that cannot be read at first.
const READS: Duration = Duration::from_secs(20);
/// Bytes of what only has the store evict.
const PRESSES: u64 = 200_000;
/// The thread that reads everything at the end.
const LAST: u32 = 99;

pub fn run(options: Options) -> bool {
    let library = match Library::load(&options.library) {
        Ok(library) => library,
        Err(error) => {
            eprintln!("{error}");
            return false;
        }
    };
    let recorder = match Recorder::create(&options.record) {
        Ok(recorder) => recorder,
        Err(error) => {
            eprintln!("cannot record: {error}");
            return false;
        }
    };
    // A former library has no batches.
    let batch = batches(&library);
    let (handles, values, finished) = Default::default();
    let worker = Worker { options, library, batch, recorder, handles, values, finished };
    std::thread::scope(|scope| {
        for thread in 0..worker.options.threads {
            let worker = &worker;
            scope.spawn(move || worker.work(thread));
        }
        say("ready");
        // The end of the runner ends it too.
        let told = std::io::stdin().lock().read_line(&mut String::new());
        worker.finished.store(true, Relaxed);
        drop(told);
    });
    worker.read_all();
    say("end");
    true
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn outcome(status: i32) -> Outcome {
    match status {
        0 | 1 => Outcome::Done(None),
        KV_STORE_MISSING => Outcome::Missing,
        status => Outcome::Failed(status),
    }
}

fn called(answer: Result<i32, String>) -> Outcome {
    outcome(answer.unwrap_or(KV_STORE_OTHER))
}

fn fetched(status: i32, bytes: &[u8]) -> Outcome {
    if status == 0 { Outcome::Done(Some(digest(bytes))) } else { outcome(status) }
}

impl Worker {
    fn open(&self) -> Option<NumberedStore<'_>> {
        let handle = self.library.open(&self.options.uri);
        if handle.is_none() {
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(NumberedStore { handle: handle?, number: self.handles.fetch_add(1, Relaxed) })
    }

    /// Make a call by this thread and handle, and record it.
    fn call(
        &self,
        by: (u32, u32),
        kind: Kind,
        key: Key,
        value: Option<u64>,
        call: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let (name, (thread, handle)) = (key.name(), by);
        let number = self.recorder.begin(&Begun { thread, handle, kind, key: &name, value });
        let outcome = call();
        self.recorder.end(number, outcome);
        outcome
    }

    /// One thread: a store that it changes, and another one, so that it reads what is stored and not what a handle keeps.
    fn work(&self, thread: u32) {
        let own = u64::from(self.options.process) << 8 | u64::from(thread);
        let mut random = Random(self.options.seed ^ own.wrapping_mul(GOLDEN));
        let (mut writes, mut reads) = (None, None);
        while !self.finished.load(Relaxed) {
            if writes.is_none() || random.below(80) == 0 {
                drop(writes.take());
                writes = self.open();
            }
            if reads.is_none() || random.below(200) == 0 {
                drop(reads.take());
                reads = self.open();
            }
            if let (Some(writes), Some(reads)) = (&writes, &reads) {
                self.step(thread, writes, reads, &mut random);
            }
            std::thread::sleep(Duration::from_micros(random.below(self.options.pause * 1000)));
        }
    }

    fn step(&self, thread: u32, writes: &NumberedStore<'_>, reads: &NumberedStore<'_>, random: &mut Random) {
        let name = Key::Manifest(random.below(MANIFESTS));
        if self.options.press && random.below(2) == 0 {
            return self.press(writes);
        }
        match random.below(100) {
            0..=14 => self.save(thread, writes, name, random),
            15..=24 => self.save_buffered(thread, writes, name, random),
            25..=29 => drop(self.call((thread, writes.number), Kind::Remove, name, None, || {
                called(writes.handle.delete_manifest(&name.name()))
            })),
            30..=59 if self.options.press => {}
            30..=59 => drop(self.read(thread, reads, name)),
            60..=65 => self.put(thread, writes, Key::Content(random.below(CONTENTS))),
            66..=70 => self.remove(thread, writes, self.removed(random)),
            71..=82 => drop(self.read(thread, reads, Key::Content(random.below(CONTENTS)))),
            83..=89 => self.replace(thread, writes, Key::Other(random.below(OTHERS)), random),
            90..=91 => self.remove(thread, writes, Key::Other(random.below(OTHERS))),
            _ => drop(self.read(thread, reads, Key::Other(random.below(OTHERS)))),
        }
    }

    /// A chunk that a save names.
    fn saved(&self, random: &mut Random) -> Key {
        Key::Content(random.below(if self.options.apart { CONTENTS / 2 } else { CONTENTS }))
    }

    /// A chunk that is removed.
    fn removed(&self, random: &mut Random) -> Key {
        let first = if self.options.apart { CONTENTS / 2 } else { 0 };
        Key::Content(first + random.below(CONTENTS - first))
    }

    fn value(&self, random: &mut Random) -> Vec<u8> {
        value(self.options.process, self.values.fetch_add(1, Relaxed), random)
    }

    /// `save_begin`, `put_many`, `save_commit`.
    fn save(&self, thread: u32, store: &NumberedStore<'_>, name: Key, random: &mut Random) {
        let Some(batches) = store.handle.batches() else { return self.save_buffered(thread, store, name, random) };
        let Some(save) = batches.save() else { return };
        // Its commit publishes nothing that the handle keeps.
        let by = (thread, self.handles.fetch_add(1, Relaxed));
        for _ in 0..random.below(3) {
            let key = self.saved(random);
            let bytes = content(number(key));
            let put =
                self.call(by, Kind::Put, key, Some(digest(&bytes)), || match save.put_many(&[(&key.hash(), &bytes)]) {
                    Ok(statuses) => outcome(statuses.first().copied().unwrap_or(KV_STORE_OTHER)),
                    Err(_) => Outcome::Failed(KV_STORE_OTHER),
                });
            if !matches!(put, Outcome::Done(_)) {
                return;
            }
        }
        let bytes = self.value(random);
        self.call(by, Kind::Set, name, Some(digest(&bytes)), || called(save.commit(&name.name(), &bytes)));
    }

    /// `put_chunk`, `put_manifest`.
    fn save_buffered(&self, thread: u32, store: &NumberedStore<'_>, name: Key, random: &mut Random) {
        for _ in 0..random.below(3) {
            let key = self.saved(random);
            let bytes = content(number(key));
            self.call((thread, store.number), Kind::Buffer, key, Some(digest(&bytes)), || {
                called(store.handle.put_chunk(&key.hash(), &bytes))
            });
        }
        let bytes = self.value(random);
        self.call((thread, store.number), Kind::Set, name, Some(digest(&bytes)), || {
            called(store.handle.put_manifest(&name.name(), &bytes))
        });
    }

    fn put(&self, thread: u32, store: &NumberedStore<'_>, key: Key) {
        let Some(batch) = self.batch else { return };
        let mut bytes = content(number(key));
        self.call((thread, store.number), Kind::Put, key, Some(digest(&bytes)), || {
            outcome(one(&store.handle, batch.put_many, &key.hash(), 0, &mut bytes).0)
        });
    }

    /// Put what is in no record, under a key that nobody else has.
    fn press(&self, store: &NumberedStore<'_>) {
        let Some(batch) = self.batch else { return };
        let number = self.values.fetch_add(1, Relaxed);
        let key = format!("press {:>4} {number:>10}", self.options.process);
        one(&store.handle, batch.put_many, key.as_bytes(), 0, &mut filler(number, PRESSES));
    }

    fn replace(&self, thread: u32, store: &NumberedStore<'_>, key: Key, random: &mut Random) {
        let Some(batch) = self.batch else { return };
        let mut bytes = self.value(random);
        self.call((thread, store.number), Kind::Set, key, Some(digest(&bytes)), || {
            outcome(one(&store.handle, batch.put_many, &key.hash(), KV_STORE_REPLACE, &mut bytes).0)
        });
    }

    fn remove(&self, thread: u32, store: &NumberedStore<'_>, key: Key) {
        let Some(batch) = self.batch else { return };
        self.call((thread, store.number), Kind::Remove, key, None, || {
            outcome(one(&store.handle, batch.delete_many, &key.hash(), 0, &mut []).0)
        });
    }

    fn read(&self, thread: u32, store: &NumberedStore<'_>, key: Key) -> Outcome {
        self.call((thread, store.number), Kind::Get, key, None, || match (key, self.batch) {
            (Key::Manifest(_), _) => match store.handle.get_manifest(&key.name()) {
                Ok(Ok(bytes)) => fetched(0, &bytes),
                Ok(Err(status)) => outcome(status),
                Err(_) => Outcome::Failed(KV_STORE_OTHER),
            },
            (_, Some(batch)) => {
                let (status, bytes) = one(&store.handle, batch.get_many, &key.hash(), KV_STORE_ALLOCATE, &mut []);
                fetched(status, &bytes)
            }
            // A miss of `get_chunk` may be an error.
            (_, None) => match store.handle.get_chunk(&key.hash()) {
                Ok(Ok(bytes)) => fetched(0, &bytes),
                _ => Outcome::Failed(KV_STORE_OTHER),
            },
        })
    }

    /// What is there when nothing comes late any more.
    fn read_all(&self) {
        std::thread::sleep(Duration::from_millis(self.options.settle));
        let mut left: Vec<Key> = Key::all().collect();
        let end = Instant::now() + READS;
        while !left.is_empty() && Instant::now() < end {
            let Some(store) = self.open() else { continue };
            left.retain(|key| Instant::now() > end || matches!(self.read(LAST, &store, *key), Outcome::Failed(_)));
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

fn number(key: Key) -> u64 {
    match key {
        Key::Manifest(number) | Key::Content(number) | Key::Other(number) => number,
    }
}
