//! The stores of `--soak`, what strikes each, and how.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_store_tests::clock::Clock;
use kv_store_tests::disk::Disk;
use kv_store_tests::link::{Link, Mode};
use kv_store_tests::memkv::MemkvServer;
use kv_store_tests::redis::RedisServer;
use kv_store_tests::servers::Server;

use crate::workload::Random;

/// A store: of which backend, and whether it has a bound.
pub struct StoreKind {
    pub name: &'static str,
    scheme: &'static str,
    /// What was acknowledged is there; without: it has a bound, at which it evicts.
    pub keeps: bool,
    faults: &'static [Fault],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// The wall clock of a writer jumps, and that of the server goes on.
    Clock,
    /// The disk has no bytes, or no inodes left.
    Bytes,
    Inodes,
    /// What a writer sends arrives late, or its connections are cut.
    Late,
    Cut,
    /// The server is killed, and started again.
    Restart,
}

const DISK: &[Fault] = &[Fault::Clock, Fault::Clock, Fault::Bytes, Fault::Inodes];
const SERVER: &[Fault] = &[Fault::Clock, Fault::Late, Fault::Late, Fault::Cut];
const KEPT: &[Fault] = &[Fault::Clock, Fault::Late, Fault::Cut, Fault::Restart];

pub const KINDS: [StoreKind; 6] = [
    StoreKind { name: "local-fs", scheme: "local-fs", keeps: false, faults: DISK },
    StoreKind { name: "segments", scheme: "segments", keeps: false, faults: DISK },
    StoreKind { name: "memkv", scheme: "memkv", keeps: false, faults: SERVER },
    StoreKind { name: "kept-local-fs", scheme: "local-fs", keeps: true, faults: DISK },
    StoreKind { name: "kept-redis", scheme: "redis", keeps: true, faults: KEPT },
    StoreKind { name: "kept-memkv", scheme: "memkv", keeps: true, faults: KEPT },
];

/// What a bounded store may hold.
pub const BOUND: u64 = 32 << 20;
/// Processes that write to a store.
pub const WRITERS: usize = 2;
/// Of a call: short, so that what is held up is late.
pub const DEADLINE: Duration = Duration::from_millis(2000);
/// For a call that compiles a component on a busy machine.
const COMPILES: Duration = Duration::from_secs(120);
/// What clocks pass in a run, beside their jumps: a year.
const YEAR_MS: f64 = 365.0 * 86_400_000.0;
/// How far a clock jumps either way, in milliseconds.
const JUMP_MS: u64 = 3_600_000;
/// Bytes and inodes of a disk of its own: more than a store needs, and few enough to be used up soon.
const MOUNTED: &str = "size=160m,nr_inodes=4000";

enum Storage {
    Files { disk: Option<Disk>, path: PathBuf },
    Redis(RedisServer),
    Memkv(MemkvServer),
}

/// A store that is set up.
pub struct Field {
    pub kind: &'static StoreKind,
    place: Storage,
    /// Between each writer and its server.
    links: Vec<Link>,
    clocks: Vec<Clock>,
    server_clock: Clock,
    /// By how much the server's clock is ahead.
    ahead: i64,
    further: String,
    pub seen: std::sync::Arc<Seen>,
}

/// What others may look at while it is struck.
#[derive(Default)]
pub struct Seen {
    /// Of memkv-server. 0: there is none now, or it is another program.
    pub server: AtomicU32,
    pub strikes: AtomicU64,
    pub restarts: AtomicU64,
    /// Bytes that memkv-server has said.
    pub said: AtomicU64,
}

impl Field {
    /// Set it up in a folder. What cannot be done here is said.
    pub fn start(kind: &'static StoreKind, folder: &Path, further: &str) -> Self {
        let data = folder.join("data");
        std::fs::create_dir_all(&data).expect("a temporary directory can be written to");
        let server_clock = Clock::create(&folder.join("server-clock"));
        let words = server_clock.words();
        let under: Vec<&str> = words.iter().map(String::as_str).collect();
        let path = data.display().to_string();
        let place = match kind.scheme {
            "redis" => {
                Storage::Redis(RedisServer::start_under(&under, &["--appendonly", "yes", "--appendfsync", "always"]))
            }
            "memkv" if kind.keeps => Storage::Memkv(MemkvServer::start_under(&under, &["--data", &path])),
            "memkv" => Storage::Memkv(MemkvServer::start_under(&under, &["--memory", &BOUND.to_string()])),
            _ => Storage::Files { disk: Disk::mount(&data, MOUNTED), path: data.join("store") },
        };
        let port = match &place {
            Storage::Files { .. } => None,
            Storage::Redis(server) => Some(server.port),
            Storage::Memkv(server) => Some(server.port),
        };
        let links = port.into_iter().flat_map(|port| (0..WRITERS).map(move |_| Link::start(port))).collect();
        let clocks = (0..WRITERS).map(|writer| Clock::create(&folder.join(format!("clock-{writer}")))).collect();
        let further = further.to_owned();
        let mut field = Field { kind, place, links, clocks, server_clock, ahead: 0, further, seen: Default::default() };
        field.note();
        field
    }

    pub fn uri(&self, writer: usize) -> String {
        let port = self.links.get(writer).map_or(0, |link| link.port);
        match &self.place {
            Storage::Files { path, .. } => format!("{}://{}", self.kind.scheme, path.display()),
            Storage::Redis(_) => format!("redis://127.0.0.1:{port}/0"),
            Storage::Memkv(_) => format!("memkv://127.0.0.1:{port}/soak"),
        }
    }

    /// The config of its writers; `patient`: of one that compiles.
    pub fn config(&self, patient: bool) -> String {
        let options = match (self.kind.scheme, self.kind.keeps) {
            ("local-fs", false) => {
                format!("options = {{ max_bytes = '{BOUND}', save_grace_s = '1', keep_free = '0' }}\n")
            }
            ("local-fs", true) => "options = { keep_free = '0' }\n".to_owned(),
            ("segments", _) => format!("options = {{ max_bytes = '{BOUND}', segment_bytes = '2 MiB' }}\n"),
            _ => String::new(),
        };
        let deadline = if patient { COMPILES } else { DEADLINE }.as_millis();
        format!(
            "[backend.{}]\n{}{options}limits.breaker_failures = 0\nlimits.idle_ms = 500\n\
             limits.deadline_ms = {deadline}\nlimits.patience_ms = {}\n",
            self.kind.scheme,
            self.further,
            deadline / 2
        )
    }

    /// What runs a writer where it can reach the store.
    pub fn words(&self) -> Vec<String> {
        match &self.place {
            Storage::Files { disk: Some(disk), .. } => disk.words(),
            _ => Vec::new(),
        }
    }

    pub fn clock(&self, writer: usize) -> [(&'static str, PathBuf); 2] {
        self.clocks[writer].environment()
    }

    /// The folder of a directory's store, as this process reaches it.
    pub fn folder(&self) -> Option<PathBuf> {
        match &self.place {
            Storage::Files { disk: Some(disk), path } => Some(disk.folder().join(path.file_name()?)),
            Storage::Files { path, .. } => Some(path.clone()),
            _ => None,
        }
    }

    /// Strike until it is over: some time without, and some with a fault.
    pub fn strike_until(&mut self, over: &AtomicBool, begun: Instant, total: Duration, seed: u64) {
        let mut random = Random(seed);
        let wait = |ms: u64| {
            let end = Instant::now() + Duration::from_millis(ms);
            while Instant::now() < end && !over.load(Relaxed) {
                std::thread::sleep(Duration::from_millis(20));
            }
        };
        while !over.load(Relaxed) {
            wait(300 + random.below(1500));
            if over.load(Relaxed) {
                return;
            }
            // As often shorter than a deadline as longer.
            let deadline = DEADLINE.as_millis() as u64;
            let time = if random.below(2) == 0 { random.below(deadline) } else { deadline + random.below(deadline) };
            let fault = self.kind.faults[random.below(self.kind.faults.len() as u64) as usize];
            self.seen.strikes.fetch_add(1, Relaxed);
            match (fault, &mut self.place) {
                (Fault::Clock, _) => {
                    let passed = (begun.elapsed().as_secs_f64() / total.as_secs_f64()).min(1.0) * YEAR_MS;
                    self.set_clocks(passed as i64, &mut random);
                }
                (Fault::Bytes | Fault::Inodes, Storage::Files { disk: Some(disk), .. }) => {
                    if fault == Fault::Bytes {
                        disk.fill();
                    } else {
                        disk.fill_inodes();
                    }
                    wait(time);
                    disk.free();
                }
                (Fault::Late | Fault::Cut, _) => {
                    let mode = if fault == Fault::Late { Mode::Holds } else { Mode::Cut };
                    let all = random.below(3) == 0;
                    let link = random.below(WRITERS as u64) as usize;
                    let struck = self.links.iter().enumerate().filter(|(number, _)| all || *number == link);
                    struck.for_each(|(_, link)| link.set(mode));
                    wait(time);
                    self.links.iter().for_each(|link| link.set(Mode::Passes));
                }
                (Fault::Restart, Storage::Redis(server)) => restart(server, random.below(300)),
                (Fault::Restart, Storage::Memkv(server)) => restart(server, random.below(300)),
                // Without a disk of its own, which was said.
                _ => wait(100),
            }
            if fault == Fault::Restart {
                self.seen.restarts.fetch_add(1, Relaxed);
            }
            self.note();
        }
    }

    /// The clocks of a writer and of the server; the server's is not set back, of which nothing is promised.
    fn set_clocks(&mut self, passed: i64, random: &mut Random) {
        let jump = random.below(2 * JUMP_MS) as i64 - JUMP_MS as i64;
        self.clocks[random.below(WRITERS as u64) as usize].set(passed + jump);
        if random.below(2) == 0 {
            self.ahead = self.ahead.max(passed);
            self.server_clock.set(self.ahead);
        }
    }

    /// Note what others look at.
    fn note(&mut self) {
        if let Storage::Memkv(server) = &mut self.place {
            self.seen.said.store(server.said_bytes() as u64, Relaxed);
            let pid = server.process().as_ref().map_or(0, |process| process.0.id());
            self.seen.server.store(pid, Relaxed);
        }
    }
}

fn restart(server: &mut dyn Server, pause: u64) {
    server.stop();
    std::thread::sleep(Duration::from_millis(pause));
    server.restart();
}
