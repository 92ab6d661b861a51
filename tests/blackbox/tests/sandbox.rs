//! A guest that misbehaves is one failed call: the store goes on with a new instance, and its neighbours notice nothing.
//! Each way to misbehave has its case in `tests/hostile`; here is what shows through the C ABI.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::time::{Duration, Instant};

use kv_store_tests::consumer::{consumer, finish};
use kv_store_tests::{Handle, library};

/// Far above the probe's deadline of 400 ms and its grace, far below a hang.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(uri: &str) -> Handle<'static> {
    library().open(uri).expect("the probe opens")
}

/// What the ABI answers for a kind of error. Consumers must not tell them apart; a test of why something failed must.
const COMPONENT: i32 = -7;

/// Make the guest misbehave, see that it fails for the reason that it should, and that the store and a neighbour go on.
fn survives(how: &str, reason: i32) {
    let neighbour = open(&format!("memory://beside-{how}"));
    assert_eq!(neighbour.put_manifest("m", b"neighbour").unwrap(), 0);
    let store = open(&format!("probe://{how}"));

    let begun = Instant::now();
    assert_eq!(store.put_manifest(&format!("do:{how}"), b"").unwrap(), reason, "{how}");
    assert!(begun.elapsed() < PATIENCE, "{how} took {:?}", begun.elapsed());

    assert_eq!(store.put_chunk(b"after", b"x").unwrap(), 0, "{how}");
    assert_eq!(store.put_manifest("after", b"y").unwrap(), 0, "{how}");
    assert_eq!(store.get_chunk(b"after").unwrap(), Ok(b"x".to_vec()), "{how}");
    assert_eq!(store.get_manifest("after").unwrap(), Ok(b"y".to_vec()), "{how}");
    assert_eq!(neighbour.get_manifest("m").unwrap(), Ok(b"neighbour".to_vec()), "{how}");
}

#[test]
fn a_trap_is_one_failed_call() {
    survives("trap", COMPONENT);
}

/// What the library says in a process that does one thing with the probe.
fn said(arguments: &[&str]) -> String {
    let finished = finish(consumer("calls").args(arguments).env("PROBE_TOKEN", "s3cret"));
    assert!(finished.status.success(), "{finished:?}");
    finished.stderr
}

#[test]
fn a_granted_secret_reaches_the_guest_and_no_log() {
    let said = said(&["probe://x", "read", "do:secret"]);
    assert!(said.contains("the secret has 6 bytes") && !said.contains("s3cret"), "{said}");
}

#[test]
fn a_flood_of_lines_is_cut() {
    let begun = Instant::now();
    let said = said(&["probe://x", "publish", "do:log", "x"]);
    let seconds = begun.elapsed().as_secs() as usize;
    let lines = said.lines().filter(|line| line.ends_with("probe: a flood of lines")).count();
    // 50 in each second of the clock, of which the process has seen the first and the last in part.
    assert!((50..=50 * (seconds + 2)).contains(&lines), "{lines} lines within {seconds} s");
}

#[test]
fn what_close_discards_is_said() {
    let said = said(&["probe-buffered://x", "put", "00", "x"]);
    assert!(said.contains("probe-buffered://x: closed with 1 chunks") && said.contains("discarded"), "{said}");
}

#[test]
fn a_flood_of_lines_stalls_nothing() {
    let store = open("probe://flood");
    assert_eq!(store.put_manifest("do:log", b"").unwrap(), 0);
    assert_eq!(store.put_manifest("after", b"y").unwrap(), 0);
}

#[test]
fn a_trap_in_the_middle_of_many_threads_fails_only_its_own_call() {
    let store = open("probe://threads");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..20u8 {
                    if thread == 0 {
                        assert!(store.get_manifest("do:trap").unwrap().is_err());
                    } else {
                        assert_eq!(store.put_manifest(&format!("{thread}"), &[round]).unwrap(), 0);
                    }
                }
            });
        }
    });
    assert_eq!(store.put_manifest("after", b"y").unwrap(), 0);
}

#[test]
fn a_manifest_does_not_count_on_chunks_that_went_with_their_instance() {
    let store = open("probe://went");
    assert_eq!(store.put_chunk(b"a", b"x").unwrap(), 0);
    assert!(store.get_manifest("do:trap").unwrap().is_err());
    assert!(store.put_manifest("m", b"x").unwrap() < 0, "published without its chunk");
    assert_eq!(store.put_chunk(b"a", b"x").unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!(store.get_chunk(b"a").unwrap(), Ok(b"x".to_vec()));
}

#[test]
fn a_store_in_memory_holds_more_chunks_than_wasmtime_has_handles_by_default() {
    let store = open("memory://many");
    for n in 0..150_000u32 {
        assert_eq!(store.put_chunk(&n.to_le_bytes(), b"x").unwrap(), 0, "{n}");
    }
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!(store.get_chunk(&7u32.to_le_bytes()).unwrap(), Ok(b"x".to_vec()));
}

#[test]
fn a_full_store_in_memory_can_be_read() {
    // The probe may hold 64 MiB.
    let store = open("probe://full");
    let data = vec![7; 1 << 20];
    let stored = (0..100u8).take_while(|n| store.put_chunk(&[*n], &data).unwrap() == 0).count() as u8;
    assert!((60..=64).contains(&stored), "{stored}");
    for n in 0..stored {
        assert_eq!(store.get_chunk(&[n]).unwrap().as_ref(), Ok(&data), "{n} of {stored}");
    }
}

#[test]
fn a_backend_that_cannot_be_opened_is_null_in_time() {
    for scheme in ["probe-open-trap", "probe-open-loop", "probe-option"] {
        let begun = Instant::now();
        assert!(library().open(&format!("{scheme}://x")).is_none(), "{scheme}");
        assert!(begun.elapsed() < PATIENCE, "{scheme} took {:?}", begun.elapsed());
    }
}

#[test]
fn a_value_over_the_backends_limit_is_refused_and_forgotten() {
    let store = open("probe-small://x");
    // Of 1,000 bytes, 64 are the envelope's.
    assert!(store.put_chunk(b"large", &[0; 937]).unwrap() < 0);
    assert_eq!(store.put_chunk(b"small", &[0; 936]).unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert!(store.put_manifest("m", &[0; 937]).unwrap() < 0);
    assert_eq!(store.get_manifest("m").unwrap(), Ok(b"x".to_vec()));
}

#[test]
fn a_guest_can_ask_what_its_host_is() {
    let store = open("probe://facts");
    let fact = |name: &str| {
        store.get_manifest(&format!("fact:{name}")).unwrap().ok().map(|value| String::from_utf8(value).unwrap())
    };
    assert_eq!(fact("contract").as_deref(), Some("1.1.0-rc"));
    assert!(fact("host").unwrap().starts_with("kv-store-wasm "));
    for name in ["memory-bytes", "payload-bytes", "connections", "patience-ms", "batch-items"] {
        assert!(fact(name).unwrap().parse::<u64>().unwrap() > 0, "{name}");
    }
    assert_eq!(fact("of-tomorrow"), None);
}
