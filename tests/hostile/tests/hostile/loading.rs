//! Components that are refused before a guest runs.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use kv_store_wasm::ErrorKind::{self, Component, Exhausted, Invalid, Unavailable, Unsupported};
use kv_store_wasm::Store;

use super::{Case, case, fails, opening, peak_of};

/// What the engine may take more of, while it refuses a component.
const RESIDENT_MOST: u64 = 64 << 20;

/// An open that fails, and costs the engine little.
fn refused(kind: ErrorKind, said: &str, uri: &str) {
    let peak = peak_of(|| fails(kind, said, || Store::open(uri)));
    assert!(peak <= RESIDENT_MOST, "{uri}: it took {peak} bytes");
}

fn bomb(name: &str, guest: &'static str, said: &'static str) -> Case {
    case(name, move || refused(Exhausted, said, &format!("{guest}://x")))
}

/// A component whose compilation is ended. It is not tried again for a while.
fn ended(name: &str, guest: &'static str, kind: ErrorKind, said: &'static str) -> Case {
    let next = AtomicUsize::new(0);
    case(name, move || {
        let uri = format!("{guest}-{}://x", next.fetch_add(1, SeqCst));
        refused(kind, said, &uri);
        refused(kind, " s ago; it is tried again after 600 s", &uri);
    })
}

pub fn cases() -> Vec<Case> {
    vec![
        opening("unknown-import", Unsupported, "imports acme:tape/drive@1.0.0, which this host does not offer"),
        opening(
            "newer-interface",
            Unsupported,
            "imports kv-store:backend/tape@1.4.0, an interface that this host does not have",
        ),
        opening("newer-function", Unsupported, "teleport"),
        opening("newer-method", Unsupported, "[method]payload.teleport"),
        case("newer-fact", || super::goes_on(&super::open("newer-fact://x"))),
        opening("bound-in-words", Component, "answered max-bytes = \"a lot\" among its features"),
        opening(
            "older-draft",
            Unsupported,
            "rebuild the component with wit/backend.wit, or the SDK, of kv-store:backend 1.1",
        ),
        opening("another-major", Unsupported, "exports another version of kv-store:backend/store than 1.x"),
        opening("asks-for-http", Unsupported, "this host makes no HTTP requests"),
        opening("memory64", Invalid, "does not compile"),
        opening("multi-memory", Invalid, "has a module with 2 memories, and a module may have one"),
        opening("threads", Invalid, "does not compile"),
        opening("gc", Invalid, "does not compile"),
        opening("async", Invalid, "does not compile"),
        opening("exceptions", Invalid, "does not compile"),
        opening("composed", Unsupported, "was built against a version of the contract"),
        ended(
            "compile bomb slow",
            "slow",
            Unavailable,
            "compiling takes longer than 50 ms (compile_ms), and was ended",
        ),
        ended(
            "compile bomb large",
            "large",
            Exhausted,
            "compiling needs more than 104857600 bytes of memory (compile_bytes), and was ended",
        ),
        case("large file", || {
            refused(Unavailable, "compiling takes longer than 50 ms (compile_ms), and was ended", "large-file://x");
        }),
        case("no backend", || refused(Invalid, "exports no kv-store:backend/store", "no-backend://x")),
        bomb("nested deep", "nested-deep", "has more than 1000 instances of components within it"),
        bomb("nested wide", "nested-wide", "has more than 1000 instances of components within it"),
        bomb("branches", "branches", "a function whose locals times its branches are"),
        bomb("loops", "loops", "a function with 340000 loops"),
        bomb("elements", "elements", "has more than 100000 elements in segments"),
        bomb("types", "types", "has more than 20000 types"),
        case("oversized function", || {
            fails(Exhausted, "which would take too long to compile", || Store::open("oversized-function://x"));
        }),
        case("truncated", || fails(Invalid, "is not a valid component", || Store::open("truncated://x"))),
    ]
}
