//! Guests that want more than they may have: memory, tables, instances, handles, bytes.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kv_store_wasm::ErrorKind::{Component, Exhausted, Unavailable};
use kv_store_wasm::{Store, metrics};

use super::{Case, LATE, PATIENCE, asked, calling, case, fails, fetching, folder, goes_on, open, opening, probing};

/// What stores without a handle hold together, and what those of other cases and the neighbour hold beside them.
const MOST_IDLE_BYTES: u64 = (1 << 30) + (64 << 20);
/// What one store may have of the process's descriptors.
const SHARE: u64 = 256;

/// Many instances of a component each take descriptors, and keep them.
fn takes_descriptors(how: &'static str) {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a temporary directory")).path();
    let store = open(&format!("hostile-wasi://{}", folder.display()));
    let before = metrics().unwrap().descriptors;
    std::thread::scope(|scope| {
        for _ in 0..16 {
            // Those that hold more handles than an instance may trap.
            scope.spawn(|| (0..4).for_each(|_| drop(store.get_manifest(how))));
        }
    });
    let taken = metrics().unwrap().descriptors - before;
    assert!((100..=SHARE).contains(&taken), "it has taken {taken}");
    let open_now = std::fs::read_dir("/proc/self/fd").unwrap().count() as u64;
    assert!(open_now < SHARE + 300, "the process has {open_now} descriptors");
    std::fs::File::open("/dev/null").expect("the process opens its own files");
    let other = open("hostile-wasi://other");
    assert_eq!(asked(&other, "sockets 10"), "10", "there are none for other stores");
    // They go with their instances.
    for ending in [store, other] {
        (0..64).for_each(|_| drop(ending.get_manifest("exit")));
    }
    assert!(metrics().unwrap().descriptors <= before);
}

/// Where guests keep files.
fn keeping() -> &'static std::path::Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("a temporary directory")).path()
}

pub fn cases() -> Vec<Case> {
    vec![
        calling("memory-growing", Unavailable, LATE),
        opening("large-memory", Component, "trapped: memory minimum size of 16384 pages exceeds memory limits"),
        opening("giant-table", Component, "trapped: table minimum size of 4294967295 elements exceeds table limits"),
        case("table-growing", || {
            let store = open("table-growing://x");
            assert!(store.get_manifest("m").expect("it is refused and says nothing").is_none());
        }),
        opening("many-tables", Component, "resource limit exceeded: table count too high"),
        case("many memories", || {
            fails(Component, "resource limit exceeded: memory count too high", || Store::open("many-memories://x"));
        }),
        case("many globals", || {
            // 900,000 together, of which each instance has its own.
            fails(Exhausted, "requested > memory_bytes = 16777216", || Store::open("many-globals://x"));
        }),
        case("many instances", || {
            fails(Exhausted, "has more than 100 core instances", || Store::open("many-instances://x"));
        }),
        calling("payload-flood", Exhausted, "requested > memory_bytes = 33554432"),
        case("directory-flood", || {
            let folder = folder();
            let store = open(&format!("directory-flood://{}", folder.display()));
            fails(Exhausted, "requested > memory_bytes = 33554432", || store.get_manifest("m"));
            goes_on(&store);
        }),
        case("wasi-probe pollables", || {
            let store = open("hostile-wasi://x");
            assert_eq!(asked(&store, "pollables 100"), "100");
            fails(Component, "it holds more handles than a component may", || store.get_manifest("pollables 1000"));
            goes_on(&store);
        }),
        case("wasi-probe sockets", || takes_descriptors("sockets 100")),
        case("wasi-probe keep-files", || takes_descriptors("keep-files 100")),
        Case {
            // What stays of it varies by about one store.
            resident_more: 256 << 20,
            budget: MOST_IDLE_BYTES,
            ..case("fills-memory", fills_memory)
        },
        case("a leak of each payload", a_leak_of_each_payload),
        case("a store that is full", a_store_that_is_full),
        case("wasi-probe random", || {
            let store = open("hostile-wasi://x");
            fails(Component, "it asked for 18446744073709551615 random bytes; one call gives 1048576", || {
                store.get_manifest("random 18446744073709551615")
            });
            goes_on(&store);
        }),
        probing("grow", Exhausted, "no more memory"),
        probing("long-token", Component, "the token of a change has 65 bytes"),
        probing("hoard", Exhausted, "requested > payload_bytes = 67108864"),
        probing("hash", Exhausted, "the limit is 1073741824"),
        fetching("oversized-list", Component, "trapped: list pointer/length out of bounds of memory"),
        fetching("quadratic-list", Component, "trapped: too much data is being copied between the host and the guest"),
        calling("quadratic-parts", Component, "trapped: too much data is being copied between the host and the guest"),
    ]
}

fn fills_memory() {
    (0..24).for_each(|n| drop(open(&format!("filling://{n}"))));
    // They are torn down on another thread.
    let begun = Instant::now();
    while metrics().unwrap().memory_bytes > MOST_IDLE_BYTES {
        assert!(begun.elapsed() < PATIENCE, "closed stores keep their memory");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn a_leak_of_each_payload() {
    let store = open(&format!("leaks://{}", keeping().join("leaks").display()));
    let chunk = vec![7; 64 << 10];
    store.put_chunk(b"key", &chunk).unwrap();
    // The third that it keeps is more than 128 KiB: the next call has another instance.
    for _ in 0..66 {
        assert_eq!(store.get_chunk(b"key").expect("it is answered").as_deref(), Some(&*chunk));
    }
}

fn a_store_that_is_full() {
    let store = open(&format!("forgets://{}", keeping().join("forgets").display()));
    let key = |n: u32| n.to_le_bytes();
    let full = (0..100_000).find_map(|n| Some((n, store.put_chunk(&key(n), b"kept").err()?)));
    let (stored, error) = full.expect("it is full");
    assert!(error.kind() == Exhausted && error.to_string().contains("are kept for reads"), "{error}");
    // It is the instance that holds them.
    for n in 0..stored {
        assert_eq!(store.get_chunk(&key(n)).expect("it is answered").as_deref(), Some(&b"kept"[..]), "{n}");
    }
    fails(Exhausted, "are kept for reads", || store.put_chunk(&key(stored), b"more"));
}
