//! One case for each way to misbehave. Each is done once to warm up, then again and again beside a healthy store: it fails as it
//! should and says why, the healthy store goes on, and memory, descriptors, payloads and connections return to their level.
//!
//! One case runs at a time, because they measure the process. What each took is written to standard output.

use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kv_store_hostile::{ENDLESS, LIMITS, Level, Neighbour, bytes, component, prepare, table};
use kv_store_tests::test_components;
use kv_store_wasm::ErrorKind::{self, Component, Denied, Exhausted, Invalid, Unavailable, Unsupported};
use kv_store_wasm::{Buffer, Error, Store, metrics};
use libtest_mimic::{Arguments, Failed, Trial};

/// Against hanging only: above every deadline here, and a call's grace.
const PATIENCE: Duration = Duration::from_secs(30);
const ROUNDS: usize = 3;
/// What the process may have more of after all rounds than after the first: less than one attack holds.
const RESIDENT_MORE: u64 = 16 << 20;

type Attack = Box<dyn Fn() + Send + Sync>;

struct Case {
    name: String,
    attack: Attack,
    resident_more: u64,
}

fn case(name: &str, attack: impl Fn() + Send + Sync + 'static) -> Case {
    Case { name: name.into(), attack: Box::new(attack), resident_more: RESIDENT_MORE }
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
    assert!(error.kind() == kind && error.to_string().contains(said), "{:?}: {error}; expected: {said}", error.kind());
}

/// The store is served again after what it was done.
fn goes_on(store: &Store) {
    store.delete_manifest("after").expect("the next call is served");
}

/// A guest that cannot be opened.
fn opening(guest: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    case(guest, move || fails(kind, said, || Store::open(&format!("{guest}://x"))))
}

/// A guest whose get-manifest misbehaves.
fn calling(guest: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    case(guest, move || {
        let store = open(&format!("{guest}://x"));
        fails(kind, said, || store.get_manifest("m"));
        goes_on(&store);
    })
}

/// A guest whose get-chunks misbehaves.
fn fetching(guest: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    case(guest, move || {
        let store = open(&format!("{guest}://x"));
        fails(kind, said, || store.get_chunk(b"key"));
        goes_on(&store);
    })
}

/// A guest in Rust that the name of a manifest makes misbehave.
fn probing_in(scheme: &'static str, how: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    case(&format!("probe {how}"), move || {
        let store = open(&format!("{scheme}://x"));
        fails(kind, said, || store.get_manifest(&format!("do:{how}")));
        goes_on(&store);
    })
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

fn text(found: Option<Buffer>) -> String {
    String::from_utf8_lossy(&found.expect("it answers")).into_owned()
}

fn asked(store: &Store, what: &str) -> String {
    text(store.get_manifest(what).unwrap_or_else(|error| panic!("{what}: {error}")))
}

const LATE: &str = "did not answer by its deadline and was stopped";

fn endless() -> Vec<Case> {
    vec![
        calling("loop-in-call", Unavailable, LATE),
        opening("loop-at-start", Unavailable, LATE),
        opening("loop-in-realloc", Unavailable, LATE),
        opening("wild-realloc", Component, "trapped: realloc return: beyond end of memory"),
        calling("sleep-zero", Unavailable, LATE),
        calling("sleep-long", Unavailable, LATE),
        probing_late("sleep", Unavailable, "the deadline of the call would be reached"),
        probing_late("loop", Unavailable, LATE),
        probing_late("nap", Unavailable, LATE),
        case("wasi-probe never", || {
            let store = open("endless-wasi://x");
            for what in ["never", "sleep"] {
                fails(Unavailable, LATE, || store.get_manifest(what));
            }
            goes_on(&store);
        }),
        calling("recursion", Component, "trapped: wasm trap: call stack exhausted"),
        probing("recurse", Component, "trapped: wasm trap: out of bounds memory access"),
    ]
}

fn memory() -> Vec<Case> {
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
        case("many instances", || {
            fails(Component, "resource limit exceeded: instance count too high", || Store::open("many-instances://x"));
        }),
        calling("payload-flood", Exhausted, "a component may hold 1048576 handles"),
        case("directory-flood", || {
            let folder = folder();
            let store = open(&format!("directory-flood://{}", folder.display()));
            fails(Exhausted, "too many handles", || store.get_manifest("m"));
            goes_on(&store);
        }),
        case("wasi-probe pollables", || {
            let store = open("hostile-wasi://x");
            assert_eq!(asked(&store, "pollables 100"), "100");
            fails(Component, "it holds more handles than a component may", || store.get_manifest("pollables 1000"));
            goes_on(&store);
        }),
        case("wasi-probe random", || {
            let store = open("hostile-wasi://x");
            fails(Component, "it asked for 18446744073709551615 random bytes; one call gives 1048576", || {
                store.get_manifest("random 18446744073709551615")
            });
            goes_on(&store);
        }),
        probing("grow", Exhausted, "no more memory"),
        probing("hoard", Exhausted, "over the limit payload_bytes = 67108864"),
        probing("hash", Exhausted, "a value may have 1073741824"),
        fetching("oversized-list", Component, "trapped: list pointer/length out of bounds of memory"),
        fetching("quadratic-list", Component, "trapped: too much data is being copied between the host and the guest"),
        calling("quadratic-parts", Component, "trapped: too much data is being copied between the host and the guest"),
    ]
}

fn handles() -> Vec<Case> {
    vec![
        case("lent-too-late", || {
            let store = open("lent-too-late://x");
            store.put_manifest("m", b"lent").unwrap();
            fails(Invalid, "this payload was lent for a call that is over", || store.get_manifest("m"));
            goes_on(&store);
        }),
        calling("stale-handle", Component, "trapped: unknown handle index"),
        calling("forged-handle", Component, "trapped: unknown handle index 77"),
        calling("dropped-twice", Component, "trapped: unknown handle index"),
        case("wrong-kind-of-handle", || {
            let folder = folder();
            let store = open(&format!("wrong-kind-of-handle://{}", folder.display()));
            fails(Component, "trapped: handle index 1 used with the wrong type", || store.get_manifest("m"));
            goes_on(&store);
        }),
        case("anothers-handle", || {
            let (a, b) = (open("anothers-handle://a"), open("anothers-handle://b"));
            a.put_manifest("m", b"of a").unwrap();
            assert_eq!(text(a.get_manifest("m").unwrap()), "of a");
            fails(Component, "trapped: unknown handle index 2", || b.get_manifest("m"));
            goes_on(&b);
            assert_eq!(text(a.get_manifest("m").unwrap()), "of a");
        }),
        fetching("forged-answer", Component, "trapped: unknown handle index 4242"),
        case("answered-twice", || {
            let store = open("answered-twice://x");
            fails(Component, "trapped: unknown handle index", || store.prefetch_chunks(b"ab", 1));
            goes_on(&store);
        }),
        case("answered-lent", || {
            let store = open("answered-lent://x");
            store.put_manifest("m", b"lent").unwrap();
            fails(Component, "broke the contract: it answered a payload that was only lent", || {
                store.get_manifest("m")
            });
            goes_on(&store);
        }),
        calling("range-overflow", Invalid, "18446744073709551606 bytes at 50 reach past the end, 100"),
        probing("past-the-end", Invalid, "reach past the end"),
        case("never-drops", || {
            let store = open("never-drops://x");
            let made = || event("never-drops", "instances");
            let before = made();
            for n in 0..3000_u32 {
                store.put_chunk(&n.to_le_bytes(), b"bytes").expect("it keeps what it should drop, no more");
            }
            assert!(made() >= before + 2, "its instance was not replaced");
        }),
        case("trap-while-holding", || {
            let store = open("trap-while-holding://x");
            let before = metrics().unwrap().payload_bytes;
            fails(Component, "trapped: wasm trap: wasm `unreachable` instruction executed", || store.get_manifest("m"));
            assert_eq!(metrics().unwrap().payload_bytes, before, "payloads outlive their instance");
            goes_on(&store);
        }),
    ]
}

/// What was counted of a backend.
fn event(backend: &str, name: &str) -> u64 {
    let metrics = metrics().unwrap();
    let series = metrics.series.iter().find(|series| series.backend == backend);
    series.and_then(|series| series.events.get(name).copied()).unwrap_or_default()
}

fn net() -> Vec<Case> {
    vec![
        case("connects-anywhere", || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let port = listener.local_addr().unwrap().port();
            let nowhere = open("connects-anywhere://x");
            let elsewhere = open("connects-anywhere://127.0.0.1:1");
            for server in
                ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "[::1]", "0.0.0.0", "169.254.169.254", "10.0.0.1"]
            {
                for store in [&nowhere, &elsewhere] {
                    fails(Denied, "grant", || store.get_manifest(&format!("{server}:{port}")));
                }
            }
            for wrong in [
                "",
                ":",
                "127.0.0.1",
                "127.0.0.1:99999",
                "unix:/run/x",
                "http://127.0.0.1:1",
                "127.0.0.1:1\n",
                "\u{202e}",
            ] {
                let error = nowhere.get_manifest(&format!("{wrong} ")).expect_err(wrong);
                assert!(matches!(error.kind(), Denied | Invalid), "{wrong:?}: {error}");
            }
            // Metadata services are reached by no URI.
            let metadata = open("connects-anywhere://169.254.169.254:80");
            fails(Denied, "169.254.169.254", || metadata.get_manifest("169.254.169.254:80"));
            // In another spelling than that of the URI it is another server.
            let mapped = open(&format!("connects-anywhere://127.0.0.1:{port}"));
            fails(Denied, "grant", || mapped.get_manifest(&format!("[::ffff:127.0.0.1]:{port}")));
            assert!(listener.accept().is_err(), "somebody was reached");
            assert!(mapped.get_manifest(&format!("127.0.0.1:{port}")).unwrap().is_none(), "and what is granted is");
            assert!(listener.accept().is_ok());
        }),
        case("rebinding", || {
            // A name that is granted, and leads to an address that is not.
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            listener.set_nonblocking(true).unwrap();
            let port = listener.local_addr().unwrap().port();
            let store = open("rebound://elsewhere:1");
            fails(Denied, "private", || store.get_manifest(&format!("localhost:{port}")));
            assert!(listener.accept().is_err(), "somebody was reached");
        }),
    ]
}

/// A directory with a file in it, one beside it, and whatever might lead from the one to the other.
fn planted(scratch: &Path) -> String {
    let granted = scratch.join("granted");
    if granted.exists() {
        std::fs::remove_dir_all(&granted).unwrap();
    }
    std::fs::create_dir_all(granted.join("sub")).unwrap();
    std::fs::write(scratch.join("secret"), "out of reach").unwrap();
    std::fs::write(granted.join("file"), "within").unwrap();
    symlink("../secret", granted.join("leak")).unwrap();
    symlink("..", granted.join("up")).unwrap();
    symlink("file", granted.join("inner")).unwrap();
    let fifo = std::ffi::CString::new(granted.join("fifo").to_str().unwrap()).unwrap();
    // SAFETY: a path that ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
    granted.display().to_string()
}

fn untouched(scratch: &Path) {
    let mut names: Vec<_> = std::fs::read_dir(scratch).unwrap().flatten().map(|entry| entry.file_name()).collect();
    names.sort();
    assert_eq!(names, ["granted", "secret"], "something was made outside");
    assert_eq!(std::fs::read(scratch.join("secret")).unwrap(), b"out of reach");
}

fn files() -> Vec<Case> {
    vec![
        case("reads-anywhere", || {
            let scratch = folder();
            let store = open(&format!("reads-anywhere://{}", planted(scratch)));
            assert_eq!(text(store.get_manifest("file").unwrap()), "within");
            for (kind, said, paths) in [
                (
                    Invalid,
                    "is no path that a component may use",
                    &[
                        "../secret",
                        "sub/../../secret",
                        "./file",
                        "/etc/passwd",
                        "file/",
                        "sub//x",
                        "a\\b",
                        "c:d",
                        ".kv-tmp",
                    ][..],
                ),
                (Denied, "a symbolic link is in the way", &["leak", "up/secret", "inner"]),
                (Invalid, "", &["file/x", "sub"]),
            ] {
                for path in paths {
                    let error = store.get_manifest(path).expect_err(path);
                    assert!(
                        error.kind() == kind && error.to_string().contains(said),
                        "{path}: {:?} {error}",
                        error.kind()
                    );
                }
            }
            let begun = Instant::now();
            assert!(store.get_manifest("fifo").is_err(), "a FIFO is no file");
            assert!(begun.elapsed() < PATIENCE);
            untouched(scratch);
        }),
        case("wasi-probe escapes", || {
            let scratch = folder();
            let store = open(&format!("hostile-wasi://{}", planted(scratch)));
            assert_eq!(asked(&store, "read file"), "within");
            for what in [
                "read ../secret",
                "read leak",
                "read leak/",
                "read up/",
                "read file/",
                "read fifo",
                "read /proc/self/environ",
                "list up/",
                "list sub/../..",
                "write ../new",
                "write ../new/",
                "write new/",
                "write up/new",
                "write fifo",
                "make ../new/",
                "rename file ../new",
                "rename file ../new/",
                "rename ../secret mine",
                "rename up/secret mine",
                "rename sub ../sub/",
                "hard-link ../secret mine",
                "hard-link up/secret mine",
                "hard-link file ../new",
                "hard-link file up/new",
                "link ../secret mine",
                "shorten file",
                "shorten leak",
                "truncate leak",
                "truncate up/secret",
                "remove up/secret",
                "remove ../secret",
            ] {
                let answer = asked(&store, what);
                assert!(answer.starts_with("error: "), "{what}: {answer}");
            }
            untouched(scratch);
            assert_eq!(asked(&store, "read file"), "within");
        }),
        case("wasi-probe read-only", || {
            let folder = read_only();
            std::fs::write(folder.join("file"), "kept").unwrap();
            let store = open("hostile-wasi-ro://x");
            assert_eq!(asked(&store, "roots"), "/ro");
            assert_eq!(asked(&store, "read /ro/file"), "kept");
            for what in [
                "truncate /ro/file",
                "shorten /ro/file",
                "write /ro/file",
                "write /ro/new",
                "make /ro/new",
                "remove /ro/file",
                "rename /ro/file /ro/new",
                "hard-link file new",
                "link file new",
            ] {
                let answer = asked(&store, what);
                assert!(answer.starts_with("error: "), "{what}: {answer}");
            }
            assert_eq!(asked(&store, "read /ro/file"), "kept");
            let names: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().map(|entry| entry.file_name()).collect();
            assert_eq!(names, ["file"]);
        }),
        case("probe denied", || {
            let store = open("hostile-probe://x");
            for (how, said) in [
                ("directory", "the URI names no directory"),
                ("other-directory", "no directory is granted under the name"),
                ("connect", "grant"),
                ("secret-of-others", "a secret's name is 1 to 64"),
            ] {
                let error = store.get_manifest(&format!("do:{how}")).expect_err(how);
                assert!(matches!(error.kind(), Denied | Invalid) && error.to_string().contains(said), "{how}: {error}");
            }
        }),
    ]
}

/// A directory that is granted to read only.
fn read_only() -> std::path::PathBuf {
    let folder = kv_store_tests::granted_folders().join("hostile-ro");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn words() -> Vec<Case> {
    vec![
        calling("log-not-utf8", Component, "trapped: invalid utf-8"),
        calling("error-not-utf8", Component, "trapped: invalid utf-8"),
        case("wasi-probe print-bytes", || {
            let store = open("hostile-wasi://x");
            assert_eq!(asked(&store, "print-bytes"), "done");
        }),
        probing("trap", Component, "trapped: wasm trap: wasm `unreachable` instruction executed"),
        case("probe log", || {
            // How many come through is counted in sandbox.rs; here they stall nobody.
            let store = open("hostile-probe://x");
            store.put_manifest("do:log", b"").unwrap();
            goes_on(&store);
        }),
        case("boastful-features", || {
            let info = open("boastful-features://x").info();
            assert!(info.label.len() <= 1100 && !info.label.contains('\n'), "{} bytes", info.label.len());
            assert_eq!(info.max_value_bytes, 1 << 30);
        }),
        calling("no-such-case", Component, "trapped: invalid expected discriminant"),
        calling("answer-out-of-memory", Component, "trapped: pointer out of bounds of memory"),
        fetching("answers-too-few", Component, "broke the contract: it answered nothing to a batch"),
        case("answers-too-many", || {
            let store = open("answers-too-many://x");
            fails(Component, "broke the contract: it answered 2 items", || store.get_chunk(b"key"));
            fails(Component, "broke the contract: it answered 2 items", || store.put_chunk(b"key", b"data"));
            goes_on(&store);
        }),
        case("wrong-bytes", || {
            let store = open("lying://x");
            let wrong = || event("lying", "wrong_chunks");
            let before = wrong();
            assert!(store.get_chunk(b"8 bytes.").unwrap().is_none(), "wrong bytes are a miss");
            assert_eq!(wrong(), before + 1);
            fails(Component, "answered `existed` to a chunk that it was to replace", || {
                store.put_chunk(b"8 bytes.", b"data")
            });
            goes_on(&store);
        }),
    ]
}

/// A component that takes the compiler longer than it is waited for. It goes on, is found done, and is no backend.
fn compile_bomb() -> Case {
    let bomb = case("compile bomb", || {
        // Another each time, because what was compiled is kept.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let uri = format!("bomb-{}://x", NEXT.fetch_add(1, SeqCst));
        fails(Unavailable, "compiling takes longer than 20 ms (compile_ms)", || Store::open(&uri));
        let begun = Instant::now();
        while !Store::open(&uri).is_err_and(|error| error.to_string().contains("exports no")) {
            assert!(begun.elapsed() < PATIENCE * 4, "it is never done");
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    // The compiler's memory comes in small pieces on many threads, which malloc keeps for the next time.
    Case { resident_more: 256 << 20, ..bomb }
}

fn loading() -> Vec<Case> {
    vec![
        opening("unknown-import", Unsupported, "imports acme:tape/drive@1.0.0, which this host does not offer"),
        opening(
            "newer-interface",
            Unsupported,
            "imports kv-store:backend/tape@1.4.0, an interface that this host does not have",
        ),
        opening("newer-function", Unsupported, "teleport"),
        opening("another-major", Unsupported, "exports another version of kv-store:backend/store than 1.x"),
        opening("asks-for-http", Unsupported, "this host makes no HTTP requests"),
        opening("memory64", Invalid, "does not compile"),
        opening("multi-memory", Invalid, "does not compile"),
        opening("threads", Invalid, "does not compile"),
        opening("gc", Invalid, "does not compile"),
        opening("async", Invalid, "does not compile"),
        opening("exceptions", Invalid, "does not compile"),
        compile_bomb(),
        case("oversized function", || {
            fails(Exhausted, "which would take too long to compile", || Store::open("oversized-function://x"));
        }),
        case("truncated", || fails(Invalid, "is no sound component", || Store::open("truncated://x"))),
    ]
}

fn run(case: &Case, neighbour: &Neighbour) -> Result<(), Failed> {
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let Case { name, attack, resident_more } = case;
        attack();
        let before = Level::now();
        let begun = Instant::now();
        let ((), times) = neighbour.beside(|| (0..ROUNDS).for_each(|_| attack()));
        let took = begun.elapsed() / ROUNDS as u32;
        let left = before.left(*resident_more);
        println!("{name}: {took:.1?} each; beside it p99 {:.2?} of {} saves and restores", times.p99(), times.count());
        left
    }));
    match caught {
        Ok(None) => Ok(()),
        Ok(Some(left)) => Err(format!("it leaves something behind\n{left}").into()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Err(text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default().into())
        }
    }
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let made = tempfile::tempdir().unwrap();
    let make = |name: &str, bytes: Vec<u8>, rest: &str| {
        let path = made.path().join(format!("{name}.wasm"));
        std::fs::write(&path, bytes).unwrap();
        table(name, &path, rest)
    };
    let sound = std::fs::read(component("never-drops")).unwrap();
    let probe =
        |scheme: &str, guest: &str, rest: &str| table(scheme, &test_components().join(format!("{guest}.wasm")), rest);
    let bomb = |n: usize| bytes::with_functions(400, 500 + n);
    let bombs = (0..=ROUNDS).map(|n| make(&format!("bomb-{n}"), bomb(n), "limits.compile_ms = 20")).collect::<String>();
    let read_only = format!("fs.ro = {{ path = '{}' }}", read_only().display());
    prepare(
        &[
            make("many-memories", bytes::instantiated(&sound, &bytes::A_MEMORY, 20), LIMITS),
            make("many-instances", bytes::instantiated(&sound, &[], 100), LIMITS),
            bombs,
            make("oversized-function", bytes::with_functions(1, 200_000), LIMITS),
            make("truncated", sound[..sound.len() / 2].to_vec(), LIMITS),
            probe("hostile-probe", "probe", LIMITS),
            probe("endless-probe", "probe", ENDLESS),
            probe("hostile-wasi", "wasi-probe", LIMITS),
            probe("endless-wasi", "wasi-probe", ENDLESS),
            probe("hostile-wasi-ro", "wasi-probe", &format!("{LIMITS}\n{read_only}")),
            table("rebound", &component("connects-anywhere"), &format!("{LIMITS}\nconnect = ['localhost:*']")),
            table("lying", &component("wrong-bytes"), &format!("{LIMITS}\nverify = 'xxh3'")),
        ]
        .concat(),
    );
    let neighbour: &'static Neighbour = Box::leak(Box::new(Neighbour::open()));
    if !arguments.list {
        let alone = neighbour.alone();
        println!("alone: p99 {:.2?} of {} saves and restores", alone.p99(), alone.count());
    }
    let cases = [endless(), memory(), handles(), net(), files(), words(), loading()];
    let trials = cases.into_iter().flatten().map(|case| Trial::test(case.name.clone(), move || run(&case, neighbour)));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    drop(made);
    conclusion.exit();
}
