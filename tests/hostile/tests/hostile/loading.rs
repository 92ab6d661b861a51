//! Components that are refused before a guest runs.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use kv_store_wasm::ErrorKind::{Exhausted, Invalid, Unavailable, Unsupported};
use kv_store_wasm::Store;

use super::{Case, PATIENCE, case, fails, opening};

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

pub fn cases() -> Vec<Case> {
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
