//! Guests that never end: loops, waits, recursion.

use std::time::Instant;

use kv_store_wasm::ErrorKind::{Component, Unavailable};
use kv_store_wasm::Store;

use super::{Case, LATE, PATIENCE, calling, case, fails, goes_on, open, opening, probing, probing_late};

pub fn cases() -> Vec<Case> {
    vec![
        calling("loop-in-call", Unavailable, LATE),
        opening("loop-at-start", Unavailable, LATE),
        case("opens in a line", || {
            let begun = Instant::now();
            std::thread::scope(|scope| {
                for _ in 0..32 {
                    scope.spawn(|| fails(Unavailable, "deadline", || Store::open("loop-at-start://line")));
                }
            });
            // One after another they would take more than 20 s.
            assert!(begun.elapsed() < PATIENCE / 3, "they wait for each other: {:?}", begun.elapsed());
        }),
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
