//! `beside [FILTER]`: how slow a healthy store becomes beside each hostile guest, beside all of them, and beside a tenant that floods its
//! own store far over its quota, against the same beside as many threads that only spin. One JSON object a line, as `cargo xtask
//! bench` reads them.
//!
//! Both sides take turns. `ours` and `peer` are the 99th percentiles of a save and restore of 16 KiB, over all turns.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use kv_store_hostile::{ENDLESS, LIMITS, Neighbour, Times, component, prepare, table};
use kv_store_tests::test_components;
use kv_store_wasm::Store;

/// Turns of each side, and how long one is.
const TURNS: usize = 12;
const TURN: Duration = Duration::from_millis(500);
/// At most so many times as slow beside a hostile guest, and beside a tenant that floods.
const GOAL: f64 = 1.5;
const FLOOD_GOAL: f64 = 1.2;
/// The scheme of the tenant that floods, its folder and its threads.
const FLOODED: &str = "local-fs";
const FOLDER_OF_FLOODED: &str = "kv-store-flooded";
const FLOODING: usize = 4;

/// What each takes: the processor, memory, handles, the log, the host's own work for it. `do:` is what a probe is told.
const GUESTS: &[(&str, &str)] = &[
    ("loop-in-call", "m"),
    ("sleep-zero", "m"),
    ("recursion", "m"),
    ("memory-growing", "m"),
    ("table-growing", "m"),
    ("payload-flood", "m"),
    ("directory-flood", "m"),
    ("oversized-list", "m"),
    ("quadratic-list", "m"),
    ("quadratic-parts", "m"),
    ("parrot", "m"),
    ("trap-while-holding", "m"),
    ("filling", "m"),
    ("endless-probe", "do:loop"),
    ("hostile-probe", "do:hash"),
    ("hostile-probe", "do:hoard"),
    ("hostile-probe", "do:log"),
    ("hostile-wasi", "random 1048576"),
];

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    if std::path::Path::new("/dev/shm").is_dir() {
        // What is measured is who gets the processor, and not how fast a disk is.
        // SAFETY: nothing else runs yet.
        unsafe { std::env::set_var("TMPDIR", "/dev/shm") };
    }
    let probe = |scheme: &str, guest: &str, limits: &str| {
        table(scheme, &test_components().join(format!("{guest}.wasm")), limits)
    };
    let quota = "operations_per_s = 1000, bytes_in_per_s = 16777216, bytes_out_per_s = 16777216";
    prepare(
        &[
            probe("hostile-probe", "probe", LIMITS),
            probe("endless-probe", "probe", ENDLESS),
            probe("hostile-wasi", "wasi-probe", LIMITS),
            table("filling", &component("fills-memory"), "limits.breaker_failures = 0"),
            format!("[[tenant]]\nuri = '{}'\nquota = {{ {quota} }}\n", uri(FLOODED)),
            "[[tenant]]\nuri = 'local-fs://'\n".to_owned(),
        ]
        .concat(),
    );
    let neighbour = Neighbour::open();
    for guest in GUESTS {
        let (scheme, what) = guest;
        let name = format!("hostile/beside/{}", [*scheme, what.strip_prefix("do:").unwrap_or("")].join("-"));
        let name = name.trim_end_matches('-');
        if name.contains(&filter) {
            measure(name, &neighbour, std::slice::from_ref(guest));
        }
    }
    if "hostile/beside/all".contains(&filter) {
        measure("hostile/beside/all", &neighbour, GUESTS);
    }
    if "hostile/beside/flooding-tenant".contains(&filter) {
        flood(&neighbour);
        std::fs::remove_dir_all(std::env::temp_dir().join(FOLDER_OF_FLOODED)).unwrap();
    }
}

fn measure(name: &str, neighbour: &Neighbour, guests: &[(&str, &str)]) {
    let stores: Vec<(Store, &str)> = guests.iter().map(|(scheme, what)| (open(scheme), *what)).collect();
    in_turns(name, neighbour, stores.len(), GOAL, &|index| {
        let (store, what) = &stores[index];
        // Whatever comes of it. A write where a read is not hostile.
        drop((store.get_manifest(what), store.get_chunk(b"key")));
    });
}

fn flood(neighbour: &Neighbour) {
    let store = open(FLOODED);
    let (data, next, refused) = (vec![7; 64 << 10], AtomicU64::new(0), AtomicU64::new(0));
    in_turns("hostile/beside/flooding-tenant", neighbour, FLOODING, FLOOD_GOAL, &|_| {
        // The same 64 MiB again and again, so that it is not a full disk that is measured.
        let key = (next.fetch_add(1, Relaxed) % 1024).to_le_bytes();
        if store.put_chunk(&key, &data).is_err() {
            refused.fetch_add(1, Relaxed);
        }
        drop(store.get_chunk(&key));
    });
    assert!(refused.load(Relaxed) > 0, "it was never over its quota");
}

/// Measure the healthy store while so many threads do `work`, in turns with as many that spin.
fn in_turns(name: &str, neighbour: &Neighbour, threads: usize, goal: f64, work: &(dyn Fn(usize) + Sync)) {
    let calls = AtomicU64::new(0);
    let attack = |index: usize| {
        work(index);
        calls.fetch_add(1, Relaxed);
    };
    let (mut ours, mut peer) = (Times::default(), Times::default());
    // What is only slow the first time is not what is measured.
    beside(neighbour, threads, TURN, &attack);
    for turn in 0..2 * TURNS {
        match (turn % 4) % 3 {
            0 => ours.extend(beside(neighbour, threads, TURN, &attack)),
            _ => peer.extend(beside(neighbour, threads, TURN, &|_| std::hint::spin_loop())),
        }
    }
    assert!(calls.load(Relaxed) > 0, "nobody was attacked");
    let micros = |times: &Times| (times.p99().as_secs_f64() * 1e7).round() / 10.0;
    let (ours, peer) = (micros(&ours), micros(&peer));
    let ratio = (peer / ours * 1000.0).round() / 1000.0;
    let goal = (100.0 / goal).round() / 100.0;
    println!(
        "{{\"name\":\"{name}\",\"ours\":{ours},\"peer\":{peer},\"ratio\":{ratio},\"unit\":\"us\",\"better\":\"lower\",\"goal\":{goal}}}"
    );
}

/// The healthy store's times while threads do something again and again.
fn beside(neighbour: &Neighbour, threads: usize, time: Duration, work: &(dyn Fn(usize) + Sync)) -> Times {
    let stop = AtomicBool::new(false);
    let run = || {
        std::thread::scope(|scope| {
            for index in 0..threads {
                let stop = &stop;
                scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        work(index);
                    }
                });
            }
            let begun = Instant::now();
            std::thread::sleep(time.saturating_sub(begun.elapsed()));
            stop.store(true, Relaxed);
        });
    };
    neighbour.beside(run).1
}

fn uri(scheme: &str) -> String {
    // No two tenants share a directory.
    let folder = if scheme == FLOODED { FOLDER_OF_FLOODED } else { "kv-store-beside" };
    format!("{scheme}://{}", std::env::temp_dir().join(folder).display())
}

fn open(scheme: &str) -> Store {
    let uri = uri(scheme);
    Store::open(&uri).unwrap_or_else(|error| panic!("{uri}: {error}"))
}
