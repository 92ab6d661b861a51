//! Guests whose `maintenance` never comes to an end, and one that only says that it has made room.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use kv_store_wasm::ErrorKind::Component;
use kv_store_wasm::Eviction;

use super::{Case, case, event, fails, goes_on, open, place};

/// All chunks are listed.
fn listing(guest: &'static str, said: &'static str) -> Case {
    case(guest, move || {
        let store = open(&format!("{guest}://x"));
        fails(Component, said, || store.chunk_pages(1000).try_for_each(|page| page.map(drop)));
        goes_on(&store);
    })
}

pub fn cases() -> Vec<Case> {
    vec![
        listing("lists-in-circles", "broke the contract: it answered the `next` of an earlier page"),
        listing("lists-nothing", "broke the contract: it listed nothing on 262144 pages in a row"),
        case("evicts-nothing", || {
            let store = open("evicts-nothing://x");
            fails(Component, "broke the contract: it evicted nothing in 64 calls in a row", || {
                store.evict_all(&Eviction::new(1, Some(1), u64::MAX))
            });
            goes_on(&store);
        }),
        case("frees-nothing", || {
            static NEXT: AtomicU64 = AtomicU64::new(0);
            let directory = place("bounded");
            std::fs::create_dir_all(&directory).unwrap();
            let store = open(&format!("frees-nothing://{}", directory.display()));
            let put = || store.put_chunk(&NEXT.fetch_add(1, SeqCst).to_le_bytes(), &[0; 1000]);
            // About 4,000 bytes fit: while the first are put, the files are counted.
            let mut in_a_row = 0;
            for _ in 0..50 {
                in_a_row = if put().is_err() { in_a_row + 1 } else { 0 };
                if in_a_row == 3 {
                    break;
                }
            }
            let calls = || event("frees-nothing", "guest_calls");
            let before = calls();
            let refused: Vec<String> = (0..5).filter_map(|_| put().err()).map(|error| error.to_string()).collect();
            let full = "the store is full: max_bytes = 4000";
            assert!(refused.iter().any(|refused| refused.contains(full)), "it is not bounded: {refused:?}");
            // The puts, and an eviction a second.
            let more = calls() - before;
            assert!(more < 40, "{more} calls: it was asked to evict again and again");
            goes_on(&store);
        }),
    ]
}
