//! Guests that want more than they may have: memory, tables, instances, handles, bytes.

use kv_store_wasm::ErrorKind::{Component, Exhausted, Unavailable};
use kv_store_wasm::Store;

use super::{Case, LATE, asked, calling, case, fails, fetching, folder, goes_on, open, opening, probing};

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
        case("many instances", || {
            fails(Exhausted, "has more than 100 core instances", || Store::open("many-instances://x"));
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
