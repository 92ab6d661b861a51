//! Guests that never end: loops, waits, recursion.

use std::time::Instant;

use kv_store_wasm::ErrorKind::{Component, Unavailable};
use kv_store_wasm::{BatchOptions, Error, Fetch, Memory, Presence, Request, RequestQueue, Store};

use super::{Case, LATE, PATIENCE, calling, case, event, fails, goes_on, open, opening, probing, probing_late};

pub fn cases() -> Vec<Case> {
    vec![
        calling("loop-in-call", Unavailable, LATE),
        opening("loop-at-start", Unavailable, LATE),
        case("opens in a line", opens_in_a_line),
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
        case("slow-reads", slow_reads),
        case("slow-queue", slow_queue),
        calling("recursion", Component, "trapped: wasm trap: call stack exhausted"),
        probing("recurse", Component, "trapped: wasm trap: out of bounds memory access"),
    ]
}

fn opens_in_a_line() {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..32 {
            scope.spawn(|| fails(Unavailable, "deadline", || Store::open("loop-at-start://line")));
        }
    });
    // One after another they would take more than 20 s.
    assert!(begun.elapsed() < PATIENCE / 3, "they wait for each other: {:?}", begun.elapsed());
}

fn slow_reads() {
    // Each call is answered in time, with one item of 8 after 100 ms, and 300 ms are all that the consumer's call has.
    let store = open("slow-reads://x");
    let hashes: Vec<[u8; 8]> = (0..8_u64).map(u64::to_be_bytes).collect();
    for hash in &hashes {
        store.put_chunk(hash, b"content").unwrap();
    }
    store.put_manifest("m", b"").unwrap();
    let hashes: Vec<&[u8]> = hashes.iter().map(<[u8; 8]>::as_slice).collect();
    let in_time = |what: &str, call: &dyn Fn() -> usize| {
        let before = event("slow-reads", "guest_calls");
        let answered = call();
        let calls = event("slow-reads", "guest_calls") - before;
        assert!(answered < 8 && calls < 8, "{what}: {answered} of 8 answered in {calls} calls");
    };
    let options = BatchOptions::default();
    let is_well = |presence: &Result<Presence, Error>| presence.is_ok();
    in_time("exists", &|| store.exists_many(&hashes, &options).unwrap().iter().filter(|it| is_well(it)).count());
    in_time("get", &|| {
        let mut items: Vec<Fetch> = hashes.iter().map(|hash| Fetch::new(hash, Memory::Allocate)).collect();
        store.get_many(&mut items, &options).unwrap().iter().filter(|found| found.is_ok()).count()
    });
    in_time("prefetch", &|| {
        // What did not come is asked for when it is wanted.
        let _ = store.prefetch_chunks(&hashes.concat(), 8);
        0
    });
    goes_on(&store);
}

fn slow_queue() {
    // Each get takes a second, one after another, and there are 160 of them on all threads of the queues.
    let (slow, options) = (open("slow-queue://x"), BatchOptions::default());
    slow.put_chunk(b"late", b"content").unwrap();
    slow.put_manifest("m", b"").unwrap();
    let queues: Vec<RequestQueue> = (0..10).map(|_| RequestQueue::open(&slow, 16).unwrap()).collect();
    for queue in queues.iter().flat_map(|queue| std::iter::repeat_n(queue, 16)) {
        let late = Request::get(vec![(b"late".to_vec(), vec![0; 16])]);
        assert!(queue.submit(1, late, &options).is_ok());
    }
    let healthy = RequestQueue::open(&open("memory://queued"), 1).unwrap();
    assert!(healthy.submit(0, Request::exists(vec![b"key".to_vec()]), &options).is_ok());
    while healthy.drain(1).unwrap().is_empty() {
        std::thread::yield_now();
    }
    // It did not wait for what was asked for before.
    let done: usize = queues.iter().map(|queue| queue.drain(16).unwrap().len()).sum();
    assert!(done <= 32, "{done} of another store's late requests were done first");
    queues.iter().for_each(|queue| assert!(queue.cancel(1).is_ok()));
}
