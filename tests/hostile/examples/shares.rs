//! `shares [FILTER]`: how slow each call of a tenant becomes beside another's store that takes what the process shares. One JSON object a
//! line, as `cargo xtask bench` reads them.
//!
//! `hostile/CLASS/CALL` is the 99th percentile of the call beside such a store, and its peer the same beside as many threads that only
//! spin. `hostile/CLASS/CALL/idle` is the same figure, and its peer a process that does nothing else. The three take turns.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_store_hostile::{ENDLESS, LIMITS, Times, bombs, prepare, table};
use kv_store_tests::test_components;
use kv_store_wasm::{BatchOptions, Request, RequestQueue, Store};

/// Turns of each of the three, and how long one is.
const TURNS: usize = 10;
const TURN: Duration = Duration::from_millis(500);
/// At most so many times as slow as beside threads that spin, and as alone.
const GOAL: f64 = 1.5;
const GOAL_IDLE: f64 = 3.0;

const CALLS: [&str; 5] = ["get", "put", "queued-get", "open", "evict"];
/// Stores that are evicted slowly: more than there are threads for eviction.
const SLOW_STORES: usize = 12;
/// Requests of the store whose gets are late.
const LATE: usize = 16;
/// Loops of a component that takes about a second to compile.
const LOOPS: usize = 3_000;

/// What another tenant does, on so many threads, and how many processors' worth of spinning that is set beside.
struct Class<'a> {
    name: &'static str,
    spinning: usize,
    work: Vec<Box<dyn Fn() + Send + Sync + 'a>>,
}

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    if Path::new("/dev/shm").is_dir() {
        // What is measured is who gets threads and processors, and not how fast a disk is.
        // SAFETY: nothing else runs yet.
        unsafe { std::env::set_var("TMPDIR", "/dev/shm") };
    }
    let folder = tempfile::tempdir().unwrap();
    let bomb = folder.path().join("bomb.wasm");
    let place = |name: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    };
    prepare(&config(&bomb));
    let neighbour = Neighbour::open(folder.path());
    let (http, net) = (serve(true), serve(false));
    let next = AtomicU64::new(0);
    let compile = || {
        let fresh = folder.path().join(format!("bomb-{}", next.load(Relaxed) % 2));
        let loops = LOOPS + next.fetch_add(1, Relaxed) as usize % 4000;
        std::fs::write(&fresh, bombs::loops(loops)).and_then(|()| std::fs::rename(&fresh, &bomb)).unwrap();
        // Compiled, it is no backend after all.
        assert!(Store::open("bomb://x").is_err());
    };
    let started = || drop(Store::open("loop-at-start://x"));
    let called = open("loop-in-call://x");
    let run = || drop(called.get_manifest("m"));
    let bounded = |n: usize| format!("evicts-slowly://{}", place(&format!("slow-{n}")).display());
    let upkept: std::sync::OnceLock<Vec<Store>> = std::sync::OnceLock::new();
    let upkeep = || {
        upkept.get_or_init(|| (0..SLOW_STORES).map(|n| open(&bounded(n))).collect());
        std::thread::sleep(Duration::from_millis(1));
    };
    let late = open("slow-queue://x");
    late.put_chunk(b"late", b"content").unwrap();
    late.put_manifest("m", b"").unwrap();
    let queue = RequestQueue::open(&late, LATE).unwrap();
    let queued = || {
        let request = Request::get(vec![(b"late".to_vec(), vec![0; 16])]);
        if queue.submit(1, request, &BatchOptions::default()).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(queue.drain(LATE));
    };
    let over_http = open(&format!("endless-probe://{http}"));
    let ask = || drop(over_http.get_manifest(&format!("do:get:{http}")));
    let over_net = open(&format!("circling://{net}"));
    let circle = || drop(over_net.get_chunk(format!("do:circle:{net}").as_bytes()));

    // A server of the last two is a thread of this process, and works as much as the guest.
    let classes = [
        Class { name: "compile", spinning: 2, work: vec![Box::new(compile)] },
        Class { name: "open", spinning: 2, work: vec![Box::new(started), Box::new(started)] },
        Class { name: "run", spinning: 2, work: vec![Box::new(run), Box::new(run)] },
        Class { name: "upkeep", spinning: 1, work: vec![Box::new(upkeep)] },
        Class { name: "queue", spinning: 1, work: vec![Box::new(queued)] },
        Class { name: "http", spinning: 2, work: vec![Box::new(ask)] },
        Class { name: "net", spinning: 2, work: vec![Box::new(circle)] },
    ];
    for class in &classes {
        let names = CALLS.map(|call| format!("hostile/{}/{call}", class.name));
        if names.iter().any(|name| name.contains(&filter) || format!("{name}/idle").contains(&filter)) {
            measure(class, &names, &neighbour);
        }
    }
    queue.cancel(1).unwrap();
}

/// The schemes of all stores here; `bomb` is the component that takes long to compile.
fn config(bomb: &Path) -> String {
    let guest =
        |scheme: &str, guest: &str, rest: &str| table(scheme, &test_components().join(format!("{guest}.wasm")), rest);
    let slow = "options = { answers = '1', slow-reads = '1000', cheap-repeat = '1' }";
    [
        table("bomb", bomb, "limits = { compile_ms = 30000, breaker_failures = 0 }"),
        guest("slow-queue", "probe", &format!("{slow}\nlimits = {{ deadline_ms = 2000, breaker_failures = 0 }}")),
        guest("endless-probe", "probe", ENDLESS),
        guest("circling", "probe", "limits = { deadline_ms = 300, call_ms = 1000, breaker_failures = 0 }"),
        guest("evicts-slowly", "broken-maintenance", "limits = { maintenance_ms = 3000, breaker_failures = 0 }"),
        guest("bounded-maintenance", "broken-maintenance", LIMITS),
    ]
    .concat()
}

fn open(uri: &str) -> Store {
    Store::open(uri).unwrap_or_else(|error| panic!("{uri}: {error}"))
}

/// A server that sends without end, whatever it is asked, as one body of HTTP or as bytes.
fn serve(http: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let send = move |mut stream: TcpStream| -> std::io::Result<()> {
        let mut bytes = vec![7; 1 << 16];
        if http {
            stream.read_exact(&mut [0])?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            bytes = [&b"10000\r\n"[..], &bytes, b"\r\n"].concat();
        }
        loop {
            stream.write_all(&bytes)?;
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || send(stream));
        }
    });
    address
}

/// The stores of a tenant that does nothing wrong.
struct Neighbour {
    files: Store,
    queue: RequestQueue,
    bounded: Store,
    other: PathBuf,
    data: Vec<u8>,
    next: AtomicU64,
}

impl Neighbour {
    fn open(folder: &Path) -> Self {
        let of = |scheme: &str, name: &str| open(&format!("{scheme}://{}", folder.join(name).display()));
        let (files, bounded) = (of("local-fs", "neighbour"), of("bounded-maintenance", "bounded"));
        let data = vec![7; 16 << 10];
        files.put_chunk(b"a key", &data).unwrap();
        files.put_manifest("m", b"").unwrap();
        let queue = RequestQueue::open(&files, 1).unwrap();
        Neighbour { files, queue, bounded, other: folder.join("other"), data, next: AtomicU64::new(0) }
    }

    /// One of [`CALLS`].
    fn call(&self, number: usize) {
        let n = self.next.fetch_add(1, Relaxed).to_le_bytes();
        match number {
            0 => assert!(self.files.get_chunk(b"a key").unwrap().is_some()),
            // By its first byte a chunk goes into one of many directories; the same again and again, so that no disk is filled.
            1 => drop(self.files.put_chunk(&[&n[..1], b"of many"].concat(), &self.data).unwrap()),
            2 => {
                let request = Request::get(vec![(b"a key".to_vec(), vec![0; 16 << 10])]);
                assert!(self.queue.submit(0, request, &BatchOptions::default()).is_ok());
                let mut done = libc::pollfd { fd: self.queue.event().unwrap(), events: libc::POLLIN, revents: 0 };
                while self.queue.drain(1).unwrap().is_empty() {
                    // SAFETY: one structure of ours.
                    unsafe { libc::poll(&mut done, 1, -1) };
                }
            }
            3 => drop(open(&format!("local-fs://{}", self.other.display()))),
            // Every fourth is over the bound of 4,000 bytes, and waits until something was evicted, or is refused.
            _ => drop(self.bounded.put_chunk(&n, &[0; 1000])),
        }
    }

    /// How long each call takes meanwhile.
    fn work(&self, times: &mut [Times; CALLS.len()]) {
        let begun = Instant::now();
        while begun.elapsed() < TURN {
            for (number, times) in times.iter_mut().enumerate() {
                let at = Instant::now();
                self.call(number);
                times.add(at.elapsed());
            }
        }
    }
}

fn measure(class: &Class<'_>, names: &[String; CALLS.len()], neighbour: &Neighbour) {
    let spin = || (0..1000).for_each(|_| std::hint::spin_loop());
    let spinning: Vec<Box<dyn Fn() + Send + Sync>> = (0..class.spinning).map(|_| Box::new(spin) as _).collect();
    let none = Vec::new();
    let mut sides: [[Times; CALLS.len()]; 3] = Default::default();
    // What is only slow the first time is not what is measured.
    beside(&class.work, neighbour, &mut Default::default());
    for turn in 0..3 * TURNS {
        // Each before each other as often as after it.
        let side = if turn / 3 % 2 == 0 { turn % 3 } else { 2 - turn % 3 };
        beside([&class.work, &spinning, &none][side], neighbour, &mut sides[side]);
    }
    let micros = |times: &Times| (times.p99().as_secs_f64() * 1e7).round() / 10.0;
    for (number, name) in names.iter().enumerate() {
        let [ours, spun, idle] = sides.each_ref().map(|times| micros(&times[number]));
        for (name, peer, goal) in [(name.clone(), spun, GOAL), (format!("{name}/idle"), idle, GOAL_IDLE)] {
            let (ratio, goal) = ((peer / ours * 1000.0).round() / 1000.0, (100.0 / goal).round() / 100.0);
            println!(
                "{{\"name\":\"{name}\",\"ours\":{ours},\"peer\":{peer},\"ratio\":{ratio},\"unit\":\"us\",\"better\":\"lower\",\"goal\":{goal}}}"
            );
        }
    }
}

/// The neighbour's calls while each of these is done again and again, on a thread of its own.
fn beside(work: &[Box<dyn Fn() + Send + Sync + '_>], neighbour: &Neighbour, times: &mut [Times; CALLS.len()]) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for work in work {
            let stop = &stop;
            scope.spawn(move || {
                while !stop.load(Relaxed) {
                    work();
                }
            });
        }
        neighbour.work(times);
        stop.store(true, Relaxed);
    });
}
