//! Guests that use a payload, an item or a directory as they must not.

use kv_store_wasm::ErrorKind::{Component, Invalid};
use kv_store_wasm::metrics;

use super::{Case, calling, case, fails, fetching, folder, goes_on, open, probing, text};

pub fn cases() -> Vec<Case> {
    vec![
        probing("item", Invalid, "there is no item 7: this call puts nothing"),
        probing("item-past-the-end", Invalid, "there is no item 0: this call puts nothing"),
        case("probe items of a commit", || {
            let store = open("hostile-probe://x");
            let commit = |how: &str| store.put_manifest(&format!("do:{how}"), b"bytes");
            fails(Invalid, "there is no item 7: the call has 1", || commit("item"));
            fails(Invalid, "18446744073709551615 bytes at 1 reach past the end, 69", || commit("item-past-the-end"));
            goes_on(&store);
        }),
        calling("stale-handle", Component, "trapped: unknown handle index"),
        calling("forged-handle", Component, "trapped: unknown handle index 77"),
        calling("forged-connection", Component, "trapped: unknown handle index 77"),
        calling("forged-message", Component, "trapped: unknown handle index 77"),
        calling("options-flood", Component, "memory_bytes = 33554432"),
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
            fails(Component, "trapped: unknown handle index 1", || b.get_manifest("m"));
            goes_on(&b);
            assert_eq!(text(a.get_manifest("m").unwrap()), "of a");
        }),
        fetching("forged-answer", Component, "trapped: unknown handle index 4242"),
        case("answered-twice", || {
            let store = open("answered-twice://x");
            fails(Component, "trapped: unknown handle index", || store.prefetch_chunks(b"ab", 1));
            goes_on(&store);
        }),
        calling("range-overflow", Invalid, "18446744073709551606 bytes at 50 reach past the end, 100"),
        probing("past-the-end", Invalid, "reach past the end"),
        case("trap-while-holding", || {
            let store = open("trap-while-holding://x");
            let before = metrics().unwrap().payload_bytes;
            fails(Component, "trapped: wasm trap: wasm `unreachable` instruction executed", || store.get_manifest("m"));
            // It held 20 MiB; the healthy store beside it has a few small payloads, or none.
            let after = metrics().unwrap().payload_bytes;
            assert!(after < before + (1 << 20), "payloads outlive their instance: {before} bytes, then {after}");
            goes_on(&store);
        }),
    ]
}
