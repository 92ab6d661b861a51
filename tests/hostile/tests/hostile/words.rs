//! Guests that say what makes no sense: text, features, answers.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use kv_store_wasm::ErrorKind::Component;

use super::{Case, asked, calling, case, event, fails, fetching, goes_on, open, probing};

pub fn cases() -> Vec<Case> {
    vec![
        case("changes-its-features", || {
            // Another each time: a store that is not used any more is kept for a while.
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            let store = open(&format!("changes-its-features://{}", NEXT.fetch_add(1, SeqCst)));
            fails(Component, "`unreachable`", || store.get_manifest("m"));
            fails(Component, "other features than the first instance", || store.get_manifest("m"));
        }),
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
            assert_eq!(info.max_value_bytes, (1 << 30) - 64);
        }),
        calling("no-such-case", Component, "trapped: invalid expected discriminant"),
        calling("answer-out-of-memory", Component, "trapped: pointer out of bounds of memory"),
        fetching("answers-too-few", Component, "broke the contract: it answered nothing to a batch"),
        case("absent-of-others", || {
            let store = open("absent-of-others://x");
            fails(Component, "broke the contract: it named chunk 616263, which it was not given", || {
                store.put_manifest("m", b"content")
            });
            fails(Component, "broke the contract: it answered `absent` and named no chunk", || {
                store.put_manifest("m", b"")
            });
            goes_on(&store);
        }),
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
            let removed = event("lying", "removed_chunks");
            assert!(store.get_chunk(b"8 bytes.").unwrap().is_none(), "wrong bytes are a miss");
            assert_eq!((wrong(), event("lying", "removed_chunks")), (before + 1, removed));
            fails(Component, "answered `existed` to a chunk that it was to replace", || {
                store.put_chunk(b"8 bytes.", b"data")
            });
            goes_on(&store);
        }),
        case("removes-too-many", || {
            let store = open("lying-twice://x");
            let breaches = || event("lying-twice", "contract_breaches");
            let before = breaches();
            for _ in 0..2 {
                assert!(store.get_chunk(b"8 bytes.").unwrap().is_none(), "wrong bytes are a miss");
            }
            assert!(breaches() > before && event("lying-twice", "removed_chunks") == 0);
            goes_on(&store);
        }),
    ]
}
