//! A consumer that saves and restores without end, and says on standard output what it does: it is killed in the midst of
//! it. What it finds wrong by itself it says too.
//!
//! Lines: `saw NAME SAVE`, `ready`, then `try NAME SAVE`, `done NAME SAVE`, `failed NAME SAVE`, where SAVE is a number or
//! `-` for a removal; `wrong TEXT`; `did COUNT`, since it last said so; and `end`.

use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_store_tests::{Handle, Library, faulty_library_path};

use crate::held::{Held, open_files};
use crate::oracle::{Name, State};
use crate::workload::{CHUNKS, Manifest, NAMES, Random, content, hash, name};

#[derive(Clone, clap::Args)]
pub struct WorkerOptions {
    #[arg(long)]
    pub uri: String,
    #[arg(long)]
    pub seed: u64,
    /// Which process on the store it is, from 1.
    #[arg(long, default_value_t = 1)]
    pub process: u64,
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=NAMES as i64))]
    pub threads: u8,
    /// Operations, all threads together; without: until it is killed.
    #[arg(long)]
    pub operations: Option<u64>,
    /// Failures are not expected: what is in a manifest is there.
    #[arg(long)]
    pub strict: bool,
    /// Do not look first what is there: it may fail.
    #[arg(long)]
    pub unsure: bool,
    /// The backend makes answers up.
    #[arg(long)]
    pub lying: bool,
    /// What is fetched may be damaged.
    #[arg(long)]
    pub damaging: bool,
    /// The storage system may lose what it has acknowledged, and answers nothing older for it.
    #[arg(long)]
    pub losing: bool,
    /// No call may take longer than so many milliseconds.
    #[arg(long, value_name = "MS")]
    pub within: Option<u64>,
    /// Leave so many file descriptors while at work.
    #[arg(long)]
    pub files: Option<u64>,
    /// Let no file grow over so many bytes.
    #[arg(long)]
    pub file_bytes: Option<u64>,
}

#[derive(Clone, clap::Args)]
pub struct Watch {
    #[arg(long)]
    uri: String,
    /// The hash of a chunk
    #[arg(long)]
    key: String,
}

/// What is watched.
pub const WATCHED: &[u8] = b"watched";

/// Store a chunk, and fetch it without end: `found` is said when it comes back, and `lost` when it does not any more.
pub fn watch(options: &Watch) -> bool {
    let library = Library::load(&faulty_library_path());
    let store = library.as_ref().ok().and_then(|library| library.open(&options.uri));
    let Some(store) = store else {
        say("wrong the store does not open");
        return false;
    };
    let put = store.put_chunk(options.key.as_bytes(), WATCHED);
    if (put, store.put_manifest("watched", WATCHED)) != (Ok(0), Ok(0)) {
        say("wrong the chunk was not stored");
        return false;
    }
    let mut was_found = false;
    loop {
        let is_found = match store.get_chunk(options.key.as_bytes()) {
            Ok(Ok(bytes)) if bytes != WATCHED => {
                say("wrong other bytes");
                return false;
            }
            answer => answer.is_ok_and(|found| found.is_ok()),
        };
        if is_found != was_found {
            say(if is_found { "found" } else { "lost" });
            was_found = is_found;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

struct Worker {
    options: WorkerOptions,
    library: Library,
    names: Vec<Mutex<Name>>,
    saves: AtomicU64,
    done: AtomicU64,
    /// The store was opened once.
    opened: AtomicBool,
    wrong: AtomicBool,
}

/// One line, whole, at once: it must be out before what follows it is done.
pub fn say(line: impl std::fmt::Display) {
    let mut line = line.to_string();
    line.push('\n');
    // Who does not listen any more is dead too.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

fn shown(state: State) -> String {
    state.map_or("-".to_owned(), |save| save.to_string())
}

pub fn run(options: WorkerOptions) -> bool {
    if let Some(bytes) = options.file_bytes {
        limit_to(libc::RLIMIT_FSIZE, bytes);
    }
    let library = match Library::load(&faulty_library_path()) {
        Ok(library) => library,
        Err(error) => {
            say(format_args!("wrong {error}"));
            return false;
        }
    };
    let worker = Worker {
        names: (0..NAMES).map(|_| Mutex::default()).collect(),
        saves: AtomicU64::new(options.process << 32),
        done: AtomicU64::new(0),
        opened: AtomicBool::new(false),
        wrong: AtomicBool::new(false),
        library,
        options,
    };
    if !worker.options.unsure && !worker.look() {
        return false;
    }
    say("ready");
    if worker.options.operations == Some(0) {
        say("end");
        return !worker.wrong.load(Relaxed);
    }
    let before = worker.options.operations.and_then(|_| worker.warm_up());
    worker.work();
    if let Some(Err(leak)) = before.map(|before| before.is_back()) {
        worker.wrong(leak);
    }
    say("end");
    !worker.wrong.load(Relaxed)
}

impl Worker {
    fn wrong(&self, what: impl std::fmt::Display) {
        self.wrong.store(true, Relaxed);
        say(format_args!("wrong {what}"));
    }

    /// Open the store; where it may fail, again and again.
    fn open(&self) -> Option<Handle<'_>> {
        for _ in 0..200 {
            let open = || self.library.open(&self.options.uri);
            // The first one may compile the component.
            let opened = if self.opened.load(Relaxed) { self.in_time("open", open) } else { open() };
            if let Some(handle) = opened {
                self.opened.store(true, Relaxed);
                return Some(handle);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    /// Make a call that must not take longer than `--within`.
    fn in_time<T>(&self, what: &str, call: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let answer = call();
        let took = begun.elapsed().as_millis();
        if self.options.within.is_some_and(|most| took > u128::from(most)) {
            self.wrong(format_args!(
                "{what} took {took} ms, and each call must end within {:?} ms",
                self.options.within
            ));
        }
        answer
    }

    /// What is there, before anything is done: each manifest whole, and all that it names.
    fn look(&self) -> bool {
        let Some(store) = self.open() else {
            self.wrong("the store does not open");
            return false;
        };
        for (number, known) in self.names.iter().enumerate() {
            let Some(manifest) = self.find(&store, number) else {
                say(format_args!("saw {number} -"));
                continue;
            };
            say(format_args!("saw {number} {}", manifest.save));
            *known.lock().expect("no thread panics") = Name::new(Some(manifest.save));
            if manifest.save % 2 == 0 {
                self.prefetch(&store, &manifest);
            }
            for chunk in manifest.chunks {
                let WorkerOptions { lying, damaging, losing, .. } = self.options;
                self.check_chunk(&store, chunk, !lying && !damaging && !losing);
            }
        }
        true
    }

    /// The manifest under a name, if it can be had.
    fn find(&self, store: &Handle<'_>, number: usize) -> Option<Manifest> {
        let answer = self.called(self.in_time("get_manifest", || store.get_manifest(&name(number))))?;
        let bytes = answer.ok()?;
        match Manifest::parse(&bytes) {
            Ok(manifest) if manifest.name == number => Some(manifest),
            Ok(other) => {
                self.wrong(format_args!("under {} lies the manifest of {}", name(number), name(other.name)));
                None
            }
            // The consumer's own checksum is all there is for a manifest.
            Err(_) if self.options.damaging => None,
            Err(torn) => {
                self.wrong(format_args!("{}: {torn}", name(number)));
                None
            }
        }
    }

    /// What the ABI forbids whatever happens.
    fn called<T>(&self, answer: Result<T, String>) -> Option<T> {
        answer.map_err(|breach| self.wrong(breach)).ok()
    }

    fn prefetch(&self, store: &Handle<'_>, manifest: &Manifest) {
        let hashes: Vec<u8> = manifest.chunks.iter().flat_map(|chunk| hash(&content(*chunk))).collect();
        self.in_time("prefetch_chunks", || store.prefetch_chunks(&hashes, 8));
    }

    fn check_chunk(&self, store: &Handle<'_>, chunk: u64, must_be_there: bool) {
        let right = content(chunk);
        match self.called(self.in_time("get_chunk", || store.get_chunk(&hash(&right)))) {
            Some(Ok(found)) if found != right => {
                self.wrong(format_args!("chunk {chunk}: wrong bytes, {} of {}", found.len(), right.len()));
            }
            Some(Err(_)) if must_be_there => self.wrong(format_args!("chunk {chunk} of a manifest is not there")),
            _ => {}
        }
    }

    /// What is held once a store was used and closed. None: it could not be used. A backend that lies may answer that a
    /// manifest was published and not have written anything, and a store's first write opens a directory that it keeps; so
    /// the store was used only when what was published has come back.
    fn warm_up(&self) -> Option<Held> {
        const CONTENT: &[u8] = b"written, and not only said to be";
        for _ in 0..100 {
            let publish = |store: &Handle<'_>| {
                store.put_manifest("warm-up", CONTENT) == Ok(0)
                    && store.get_manifest("warm-up").is_ok_and(|found| found.is_ok_and(|found| found == CONTENT))
            };
            let used = self.open().is_some_and(|store| publish(&store));
            if used {
                return Held::at_rest().map_err(|why| self.wrong(why)).ok();
            }
        }
        None
    }

    fn work(&self) {
        let former = self.options.files.map(|more| limit_to(libc::RLIMIT_NOFILE, open_files() + more));
        let shared = self.open();
        std::thread::scope(|scope| {
            for thread in 0..usize::from(self.options.threads) {
                let shared = shared.as_ref();
                scope.spawn(move || self.thread(thread, shared));
            }
        });
        drop(shared);
        if let Some(former) = former {
            limit_to(libc::RLIMIT_NOFILE, former);
        }
    }

    /// The first two threads share a handle, the others have their own and open it anew now and then.
    fn thread(&self, thread: usize, shared: Option<&Handle<'_>>) {
        let mut random = Random(self.options.seed ^ (self.options.process << 40) ^ ((thread as u64) << 56));
        let mut own = None;
        loop {
            let done = self.done.fetch_add(1, Relaxed);
            if self.options.operations.is_some_and(|most| done >= most) {
                return;
            }
            if (done + 1).is_multiple_of(20) {
                say("did 20");
            }
            if thread > 1 && (own.is_none() || random.below(40) == 0) {
                drop(own.take());
                own = self.open();
            }
            let Some(store) = own.as_ref().or(shared) else { continue };
            let number = random.below(NAMES as u64) as usize;
            match random.below(10) {
                0..=3 => {
                    // A name has one writer.
                    let own = number - number % usize::from(self.options.threads) + thread;
                    self.save(store, if own < NAMES { own } else { thread }, &mut random);
                }
                4..=6 => self.restore(store, number, &mut random),
                7 => self.check_chunk(store, random.below(CHUNKS), false),
                8 => {
                    self.put(store, random.below(CHUNKS));
                }
                _ if random.below(4) == 0 => {
                    self.change(thread, None, || store.delete_manifest(&name(thread)).map(|answer| answer == 0));
                }
                _ => {}
            }
        }
    }

    fn put(&self, store: &Handle<'_>, chunk: u64) -> bool {
        let content = content(chunk);
        let answer = self.called(self.in_time("put_chunk", || store.put_chunk(&hash(&content), &content)));
        answer.is_some_and(|answer| answer >= 0)
    }

    fn save(&self, store: &Handle<'_>, number: usize, random: &mut Random) {
        let chunks: Vec<u64> = (0..1 + random.below(10)).map(|_| random.below(CHUNKS)).collect();
        if !chunks.iter().all(|chunk| self.put(store, *chunk)) {
            return;
        }
        let save = self.saves.fetch_add(1, Relaxed);
        let manifest = Manifest { name: number, save, chunks: chunks.clone() }.to_bytes();
        let publish = |store: &Handle<'_>| store.put_manifest(&name(number), &manifest).map(|answer| answer == 0);
        if self.change(number, Some(save), || publish(store)) {
            return;
        }
        // On this handle a lost chunk, which may be another save's, fails manifests for a while.
        if let Some(own) = self.open()
            && chunks.iter().all(|chunk| self.put(&own, *chunk))
        {
            self.change(number, Some(save), || publish(&own));
        }
    }

    fn change(&self, number: usize, state: State, change: impl FnOnce() -> Result<bool, String>) -> bool {
        let known = || self.names[number].lock().expect("no thread panics");
        known().tries(state);
        say(format_args!("try {number} {}", shown(state)));
        let what = if state.is_some() { "put_manifest" } else { "delete_manifest" };
        let done = self.called(self.in_time(what, change)).unwrap_or(false);
        if done {
            known().acknowledge(!self.options.lying);
        }
        if !done {
            // What fails fast is not tried as fast: the server may be about to come back.
            std::thread::sleep(Duration::from_millis(2));
        }
        say(format_args!("{} {number} {}", if done { "done" } else { "failed" }, shown(state)));
        done
    }

    fn restore(&self, store: &Handle<'_>, number: usize, random: &mut Random) {
        let begun = self.names[number].lock().expect("no thread panics").begin();
        let found = self.find(store, number);
        let known = self.names[number].lock().expect("no thread panics");
        let Some(manifest) = found else {
            if self.options.strict && !known.allows(begun, None) {
                self.wrong(format_args!("{} is gone; it may be {}", name(number), known.describe()));
            }
            return;
        };
        // What another process was about to write when it was killed may come late, until it is written over.
        let late = manifest.save >> 32 < self.options.process && known.begin() == 0;
        if !late && !known.allows(begun, Some(manifest.save)) {
            let may = known.describe();
            self.wrong(format_args!("{} is of save {}; it may be {may}", name(number), manifest.save));
        }
        drop(known);
        if random.below(3) == 0 {
            self.prefetch(store, &manifest);
        }
        for chunk in manifest.chunks {
            self.check_chunk(store, chunk, self.options.strict);
        }
    }
}

/// Set a soft limit; answers the former one.
fn limit_to(what: libc::__rlimit_resource_t, limit: u64) -> u64 {
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limits` is filled before it is read.
    unsafe {
        libc::getrlimit(what, &mut limits);
        let former = limits.rlim_cur;
        limits.rlim_cur = limit.min(limits.rlim_max);
        libc::setrlimit(what, &limits);
        former
    }
}
