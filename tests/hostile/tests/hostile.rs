//! One case for each way to misbehave. Each is done once to warm up, then again and again beside a healthy store: it fails as it
//! should and says why, the healthy store goes on, and memory, descriptors, payloads and connections return to their level.
//!
//! One case runs at a time, because they measure the process. What each took is written to standard output.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

#[path = "hostile/endless.rs"]
mod endless;
#[path = "hostile/files.rs"]
mod files;
#[path = "hostile/handles.rs"]
mod handles;
#[path = "hostile/http.rs"]
mod http;
#[path = "hostile/loading.rs"]
mod loading;
#[path = "hostile/maintenance.rs"]
mod maintenance;
#[path = "hostile/memory.rs"]
mod memory;
#[path = "hostile/net.rs"]
mod net;
#[path = "hostile/records.rs"]
mod records;
#[path = "hostile/shares.rs"]
mod shares;
#[path = "hostile/words.rs"]
mod words;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kv_store_hostile::{ENDLESS, LIMITS, Level, Neighbour, Times, bombs, bytes, component, peak_of, prepare, table};
use kv_store_tests::{dist, test_components};
use kv_store_wasm::{Buffer, Error, ErrorKind, Store, metrics};
use libtest_mimic::{Arguments, Failed, Trial};
use wasm_encoder::Module;

/// Against hanging only: above every deadline here, and a call's grace.
const PATIENCE: Duration = Duration::from_secs(30);
const LATE: &str = "did not answer by its deadline and was stopped";
/// How often each case is done beside a healthy store.
pub static ROUNDS: AtomicUsize = AtomicUsize::new(3);
/// What the process may have more of after all rounds than after the first: less than one attack holds.
const RESIDENT_MORE: u64 = 16 << 20;
/// What the process may have more of while a case runs than the case's budgets and what it had before.
const RESIDENT_MOST: u64 = 64 << 20;

/// For what costs much before it has run.
const SMALL: &str = "limits.memory_bytes = 16777216";

type Attack = Box<dyn Fn() + Send + Sync>;

struct Case {
    name: String,
    attack: Attack,
    resident_more: u64,
    /// What its guests may have together, by the config: `memory_bytes` and `payload_bytes` of each instance.
    budget: u64,
}

fn case(name: &str, attack: impl Fn() + Send + Sync + 'static) -> Case {
    Case { name: name.into(), attack: Box::new(attack), resident_more: RESIDENT_MORE, budget: (32 << 20) + (64 << 20) }
}

fn open(uri: &str) -> Store {
    Store::open(uri).unwrap_or_else(|error| panic!("{uri}: {error}"))
}

/// It fails in time, for the reason that it should.
#[track_caller]
fn fails<T>(kind: ErrorKind, said: &str, attack: impl FnOnce() -> Result<T, Error>) {
    let begun = Instant::now();
    let error = attack().err().unwrap_or_else(|| panic!("it succeeds; expected: {said}"));
    assert!(begun.elapsed() < PATIENCE, "it took {:?}", begun.elapsed());
    let text = error.to_string();
    assert!(error.kind() == kind && text.contains(said), "{:?}: {error}; expected: {said}", error.kind());
    if said == LATE {
        let after = text.split_once("stopped ").and_then(|(_, rest)| rest.split_once(" ms after it"));
        let after = after.and_then(|(number, _)| number.parse().ok()).unwrap_or_else(|| panic!("not how late: {text}"));
        LATEST.fetch_max(after, SeqCst);
    }
}

/// How many milliseconds after its deadline a guest of the case at hand was stopped, at most; -1: none was.
static LATEST: AtomicI64 = AtomicI64::new(-1);

/// The store is served again after what it was done.
fn goes_on(store: &Store) {
    store.delete_manifest("after").expect("the next call is served");
}

/// A guest that cannot be opened.
fn opening(guest: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    case(guest, move || fails(kind, said, || Store::open(&format!("{guest}://x"))))
}

/// A call that misbehaves.
fn misbehaving(
    name: &str,
    scheme: &'static str,
    kind: ErrorKind,
    said: &'static str,
    call: impl Fn(&Store) -> Result<Option<Buffer>, Error> + Send + Sync + 'static,
) -> Case {
    case(name, move || {
        let store = open(&format!("{scheme}://x"));
        fails(kind, said, || call(&store));
        goes_on(&store);
    })
}

/// A guest whose get-manifest misbehaves.
fn calling(guest: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    misbehaving(guest, guest, kind, said, |store| store.get_manifest("m"))
}

/// A guest whose get-chunks misbehaves.
fn fetching(guest: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    misbehaving(guest, guest, kind, said, |store| store.get_chunk(b"key"))
}

/// A guest in Rust that the name of a manifest makes misbehave.
fn probing_in(scheme: &'static str, how: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    misbehaving(&format!("probe {how}"), scheme, kind, said, move |store| store.get_manifest(&format!("do:{how}")))
}

fn probing(how: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    probing_in("hostile-probe", how, kind, said)
}

fn probing_late(how: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    probing_in("endless-probe", how, kind, said)
}

/// A directory of the whole run: the library keeps a few stores open for the next open, each with its directory.
fn folder() -> &'static Path {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| tempfile::tempdir().expect("a temporary directory")).path()
}

/// A place for the files of a case, of the whole run too.
fn place(name: &str) -> PathBuf {
    PLACES.get().expect("the run has begun").join(name)
}

static PLACES: OnceLock<PathBuf> = OnceLock::new();

fn text(found: Option<Buffer>) -> String {
    String::from_utf8_lossy(&found.expect("it answers")).into_owned()
}

fn asked(store: &Store, what: &str) -> String {
    text(store.get_manifest(what).unwrap_or_else(|error| panic!("{what}: {error}")))
}

/// What was counted of a backend.
fn event(backend: &str, name: &str) -> u64 {
    let metrics = metrics().unwrap();
    let series = metrics.series.iter().find(|series| series.backend == backend);
    series.and_then(|series| series.events.get(name).copied()).unwrap_or_default()
}

fn run(case: &Case, neighbour: &Neighbour) -> Result<(), Failed> {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let Case { name, attack, resident_more, budget } = case;
        LATEST.store(-1, SeqCst);
        // What was free before it is not what it took.
        drop(Level::now());
        let mut peak = peak_of(attack);
        let before = Level::now();
        let begun = Instant::now();
        let rounds = ROUNDS.load(SeqCst);
        let mut times = Times::default();
        let beside = || times = neighbour.beside(|| (0..rounds).for_each(|_| attack())).1;
        peak = peak.max(peak_of(beside));
        let took = begun.elapsed() / rounds as u32;
        let left = before.left(*resident_more).or_else(|| {
            let over = peak > budget + RESIDENT_MOST;
            over.then(|| format!("it took {peak} bytes of memory, and its budgets are {budget}"))
        });
        let stopped = match LATEST.load(SeqCst) {
            ..0 => String::new(),
            late => format!("; stopped {late} ms after its deadline at the latest"),
        };
        println!(
            "{name}: {took:.1?} each{stopped}, {} MiB of {}; beside it p99 {:.2?} of {} saves and restores",
            peak >> 20,
            budget >> 20,
            times.p99(),
            times.count()
        );
        left
    }));
    match caught {
        Ok(None) => Ok(()),
        Ok(Some(left)) => Err(format!("it leaves something behind, or took too much\n{left}").into()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default().into())
        }
    }
}

fn main() {
    run_all();
}

pub fn run_all() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let (made, places) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    PLACES.set(places.path().to_owned()).expect("it runs once");
    prepare(&config(made.path()));
    let neighbour: &'static Neighbour = Box::leak(Box::new(Neighbour::open()));
    if !arguments.list {
        let alone = neighbour.alone();
        println!("alone: p99 {:.2?} of {} saves and restores", alone.p99(), alone.count());
    }
    let cases = [
        endless::cases(),
        memory::cases(),
        maintenance::cases(),
        handles::cases(),
        net::cases(),
        http::cases(),
        files::cases(),
        records::cases(),
        words::cases(),
        loading::cases(),
        shares::cases(),
    ];
    let trials = cases.into_iter().flatten().map(|case| Trial::test(case.name.clone(), move || run(&case, neighbour)));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    drop((made, places));
    conclusion.exit();
}

/// The config of the run: a table for each scheme. `made` is the folder of the components that are made here.
fn config(made: &Path) -> String {
    [components(made), compiled_in_turn(made), guests()].concat()
}

/// Writes a component, and gives it a scheme.
fn make(made: &Path, name: &str, bytes: Vec<u8>, rest: &str) -> String {
    let path = made.join(format!("{name}.wasm"));
    std::fs::write(&path, bytes).unwrap();
    table(name, &path, rest)
}

/// Components of bytes that no toolchain writes.
fn components(made: &Path) -> String {
    let make = |name: &str, bytes: Vec<u8>, rest: &str| make(made, name, bytes, rest);
    let sound = std::fs::read(component("forged-answer")).unwrap();
    // Another for each round, because a failure is remembered.
    let rounds = |name: &str, bytes: &dyn Fn(usize) -> Vec<u8>, rest: &str| {
        (0..=ROUNDS.load(SeqCst)).map(|n| make(&format!("{name}-{n}"), bytes(n), rest)).collect::<String>()
    };
    [
        make("many-memories", bytes::instantiated(&sound, &bytes::with_memory(), 20), LIMITS),
        make("many-globals", bytes::instantiated(&sound, &bytes::with_globals(10_000), 90), SMALL),
        make("many-instances", bytes::instantiated(&sound, &Module::new(), 100), LIMITS),
        rounds("slow", &|n| bombs::long(400, 5000 + n), "limits.compile_ms = 50"),
        rounds("large", &|n| bombs::branches(800, 3900 + n as u32), "limits.compile_bytes = 104857600"),
        make("large-file", bombs::long(110, 116_000), "limits.compile_ms = 50"),
        make("no-backend", bytes::with_functions(400, 5000), "limits.compile_ms = 50"),
        make("nested-deep", bombs::nested(28, 2), LIMITS),
        make("nested-wide", bombs::nested(3, 900), LIMITS),
        make("branches", bombs::branches(10_000, 20_000), LIMITS),
        make("loops", bombs::loops(340_000), LIMITS),
        make("elements", bombs::elements(1_000_000), LIMITS),
        make("types", bombs::types(60_000), LIMITS),
        make("oversized-function", bytes::with_functions(1, 200_000), LIMITS),
        make("truncated", sound[..sound.len() / 2].to_vec(), LIMITS),
    ]
    .concat()
}

/// For each round: what compiles slowly, what compiles quickly beside it, and what is killed while it is compiled.
fn compiled_in_turn(made: &Path) -> String {
    let quick = std::fs::read(component("bound-in-words")).unwrap();
    let memory = std::fs::read(dist().join("components/memory.wasm")).unwrap();
    (0..=ROUNDS.load(SeqCst))
        .map(|n| {
            let slow = [0, 1].map(|of| {
                // One function, which is compiled by one thread.
                let bytes = bombs::loops(9_900 + 2 * n + of);
                make(made, &format!("slow-{of}-of-{n}"), bytes, "limits.compile_ms = 1500")
            });
            let same = |name: String, bytes: &[u8]| table(&name, &shares::another(&name, bytes, made), LIMITS);
            let killed = [format!("killed-{n}"), format!("killed-twice-{n}")].map(|name| same(name, &memory));
            [slow.concat(), killed.concat(), same(format!("quick-{n}"), &quick)].concat()
        })
        .collect()
}

/// The guests of tests/guests, each with the limits under which it misbehaves.
fn guests() -> String {
    let probe =
        |scheme: &str, guest: &str, rest: &str| table(scheme, &test_components().join(format!("{guest}.wasm")), rest);
    let read_only = format!("fs.ro = {{ path = '{}' }}", files::read_only().display());
    [
        probe("hostile-probe", "probe", LIMITS),
        probe("endless-probe", "probe", ENDLESS),
        probe(
            "slow-reads",
            "probe",
            "options = { answers = '1', slow-reads = '100', cheap-repeat = '1' }\nlimits = { deadline_ms = 300, breaker_failures = 0 }",
        ),
        probe(
            "slow-queue",
            "probe",
            "options = { answers = '1', slow-reads = '1000', cheap-repeat = '1' }\nlimits = { deadline_ms = 2000, breaker_failures = 0 }",
        ),
        probe("short-manifests", "probe", "limits = { max_manifest_bytes = 1048576, breaker_failures = 0 }"),
        probe("circling", "probe", "limits = { deadline_ms = 300, call_ms = 1000, breaker_failures = 0 }"),
        probe("metered-probe", "probe", "quota.cpu_ms_per_s = 20\nlimits.breaker_failures = 0"),
        probe("evicts-slowly", "broken-maintenance", "limits = { maintenance_ms = 20000, breaker_failures = 0 }"),
        probe("bounded-maintenance", "broken-maintenance", LIMITS),
        probe("hostile-wasi", "wasi-probe", LIMITS),
        probe("endless-wasi", "wasi-probe", ENDLESS),
        probe("hostile-wasi-ro", "wasi-probe", &format!("{LIMITS}\n{read_only}")),
        probe("idle-probe", "probe", "limits = { idle_ms = 200, breaker_failures = 0 }"),
        table("filling", &component("fills-memory"), "limits.breaker_failures = 0"),
        ["lists-in-circles", "lists-nothing", "evicts-nothing", "frees-nothing"]
            .map(|fault| probe(fault, "broken-maintenance", LIMITS))
            .concat(),
        probe("leaks", "broken", "limits = { payload_bytes = 1048576, breaker_failures = 0 }"),
        probe("forgets", "broken", "limits = { memory_bytes = 8388608, breaker_failures = 0 }"),
        probe("granted-proc", "probe", &format!("{LIMITS}\nfs.all = {{ path = '/proc/self' }}")),
        table("rebound", &component("connects-anywhere"), &format!("{LIMITS}\nconnect = ['localhost:*']")),
        table("lying", &component("wrong-bytes"), &format!("{LIMITS}\nverify = 'xxh3'")),
        table("lying-twice", &component("removes-too-many"), &format!("{}\nverify = 'xxh3'", LIMITS.replacen('{', "{ damaged_ms = 0,", 1))),
    ]
    .concat()
}
