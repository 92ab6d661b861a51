//! Whatever functions of the contract a guest calls, in whatever order and with whatever arguments: the call of the host ends, the next is
//! served, and the process takes no more memory than the guest's budgets. The guest `probe` does what the content of the manifest `any`
//! says (`tests/guests/probe/src/any.rs`).
//!
//! `PROPTEST_CASES=100000` looks for longer.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::io::Write;
use std::net::TcpListener;
use std::sync::LazyLock;

use kv_store_hostile::{Level, peak_of, prepare, table};
use kv_store_tests::test_components;
use kv_store_wasm::Store;
use proptest::prelude::*;

/// `memory_bytes` and `payload_bytes` of the one instance.
const MEMORY: u64 = 32 << 20;
const PAYLOADS: u64 = 64 << 20;
/// What the process may take beyond them, and what may stay.
const RESIDENT_MOST: u64 = 64 << 20;
const RESIDENT_MORE: u64 = 32 << 20;

/// The store, and the server that its URI names.
struct Place {
    store: Store,
    server: String,
    _folder: tempfile::TempDir,
}

static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let limits = format!(
        "limits = {{ memory_bytes = {MEMORY}, payload_bytes = {PAYLOADS}, instances = 1, idle_ms = 200, deadline_ms = 500, call_ms = 1000, breaker_failures = 0 }}"
    );
    let grant = format!("fs.any = {{ path = '{}', access = 'rw' }}", folder.path().display());
    prepare(&table("any", &test_components().join("probe.wasm"), &format!("{limits}\n{grant}")));
    // Responses over HTTP, or lines, one after another and for as long as somebody reads.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                // What the server takes is of this process too: it holds nothing for a connection.
                static BODY: [u8; 1 << 20] = [b'x'; 1 << 20];
                let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", BODY.len());
                while stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&BODY)).is_ok() {}
            });
        }
    });
    let store = Store::open(&format!("any://{server}")).expect("it opens");
    Place { store, server, _folder: folder }
});

fn carry_out(program: &[u8]) -> Result<(), TestCaseError> {
    let Place { store, server, .. } = &*PLACE;
    let text = [server.as_bytes(), b"\n", program].concat();
    let mut outcome = Ok(());
    let peak = peak_of(|| outcome = store.put_manifest("any", &text));
    if let Err(error) = outcome {
        prop_assert!(!error.to_string().contains("panic"), "{error}");
    }
    prop_assert!(peak <= MEMORY + PAYLOADS + RESIDENT_MOST, "it took {peak} bytes");
    prop_assert!(store.delete_manifest("after").is_ok(), "the next call is not served");
    Ok(())
}

#[test]
fn no_calls_of_the_contract_take_more_than_the_budgets() {
    // It does what it is told: a payload of a MiB, which counts for each handle to it, or once.
    let held = || kv_store_wasm::metrics().unwrap().payload_bytes;
    carry_out(&[0, 7, 3, 0, 3, 0]).unwrap();
    assert!(held() >= 1 << 20, "it holds {} bytes", held());
    // Each call once, with arguments of the middle, so that what is only large the first time is not what is measured.
    (0..42).for_each(|call| carry_out(&[call, 5, 5, 5, 5, 5, 5, 5]).unwrap());
    let before = Level::now();
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let programs = prop::collection::vec(any::<u8>(), 1..80);
    runner.run(&programs, |program| carry_out(&program)).unwrap();
    // What it holds goes with its instance.
    let _ = PLACE.store.get_manifest("do:trap");
    PLACE.store.delete_manifest("after").expect("the next instance serves");
    let left = before.left(RESIDENT_MORE);
    assert!(left.is_none(), "{}", left.unwrap_or_default());
}
