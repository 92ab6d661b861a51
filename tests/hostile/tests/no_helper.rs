//! Bombs for the compiler in a process that compiles in itself: the bounds on what a component has refuse them alone, before the
//! compiler has seen a byte.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use kv_store_hostile::{bombs, bytes, peak_of, table};
use kv_store_wasm::{ErrorKind, Store};

/// What the engine may take more of, while it refuses a component.
const RESIDENT_MOST: u64 = 64 << 20;

#[test]
fn bombs_are_refused_by_their_bounds_alone() {
    let made = tempfile::tempdir().unwrap();
    let bombs = [
        ("nested-deep", bombs::nested(28, 2), "has more than 1000 instances of components within it"),
        ("nested-wide", bombs::nested(3, 900), "has more than 1000 instances of components within it"),
        ("branches", bombs::branches(10_000, 20_000), "a function whose locals times its branches are"),
        ("loops", bombs::loops(340_000), "a function with 340000 loops"),
        ("elements", bombs::elements(1_000_000), "has more than 100000 elements in segments"),
        ("types", bombs::types(60_000), "has more than 20000 types"),
        ("oversized-function", bytes::with_functions(1, 200_000), "which would take too long to compile"),
    ];
    let mut config = String::from("compile = 'in-process'\n");
    for (name, bytes, _) in &bombs {
        let path = made.path().join(format!("{name}.wasm"));
        std::fs::write(&path, bytes).unwrap();
        config += &table(name, &path, "");
    }
    let path = made.path().join("config.toml");
    std::fs::write(&path, config).unwrap();
    // SAFETY: the only test of this process, and nothing was opened yet.
    unsafe {
        std::env::set_var("KV_STORE_WASM_CONFIG", path);
        std::env::set_var("KV_STORE_WASM_CACHE", made.path().join("aot"));
    }
    for (name, _, said) in bombs {
        let peak = peak_of(|| {
            let error = Store::open(&format!("{name}://x")).err().unwrap_or_else(|| panic!("{name} opens"));
            assert!(error.kind() == ErrorKind::Exhausted && error.to_string().contains(said), "{name}: {error}");
        });
        assert!(peak <= RESIDENT_MOST, "{name}: it took {peak} bytes");
    }
}
