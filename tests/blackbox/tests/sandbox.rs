//! A guest that misbehaves is one failed call: the store goes on with a new instance, and its neighbours notice nothing.

use std::time::{Duration, Instant};

use kv_store_tests::{Handle, library};

/// Far above the probe's deadline of 400 ms and its grace, far below a hang.
const PATIENCE: Duration = Duration::from_secs(20);

fn open(uri: &str) -> Handle<'static> {
    library().open(uri).expect("the probe opens")
}

/// Make the guest misbehave, and see that the store and a neighbour go on.
fn survives(how: &str) {
    let neighbour = open(&format!("memory://beside-{how}"));
    assert_eq!(neighbour.put_manifest("m", b"neighbour").unwrap(), 0);
    let store = open(&format!("probe://{how}"));

    let begun = Instant::now();
    let answer = store.get_manifest(&format!("do:{how}")).unwrap();
    assert!(answer.is_err(), "{how} was answered");
    assert!(begun.elapsed() < PATIENCE, "{how} took {:?}", begun.elapsed());

    assert_eq!(store.put_chunk(b"after", b"x").unwrap(), 0, "{how}");
    assert_eq!(store.put_manifest("after", b"y").unwrap(), 0, "{how}");
    assert_eq!(store.get_chunk(b"after").unwrap(), Ok(b"x".to_vec()), "{how}");
    assert_eq!(store.get_manifest("after").unwrap(), Ok(b"y".to_vec()), "{how}");
    assert_eq!(neighbour.get_manifest("m").unwrap(), Ok(b"neighbour".to_vec()), "{how}");
}

#[test]
fn a_trap_is_one_failed_call() {
    survives("trap");
}

#[test]
fn an_endless_loop_ends_at_the_deadline() {
    survives("loop");
}

#[test]
fn a_sleep_past_the_deadline_is_refused() {
    survives("sleep");
}

#[test]
fn a_guest_that_only_ever_naps_is_stopped() {
    survives("nap");
}

#[test]
fn endless_recursion_traps() {
    survives("recurse");
}

#[test]
fn memory_is_capped() {
    survives("grow");
}

#[test]
fn payloads_are_capped() {
    survives("hoard");
}

#[test]
fn a_range_past_the_end_is_an_error() {
    survives("past-the-end");
}

#[test]
fn what_is_not_granted_is_denied() {
    for how in ["directory", "other-directory", "connect", "secret-of-others"] {
        survives(how);
    }
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
fn a_guest_cannot_have_the_host_hash_for_ever() {
    survives("hash");
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
    assert!(store.put_chunk(b"large", &[0; 1001]).unwrap() < 0);
    assert_eq!(store.put_chunk(b"small", &[0; 1000]).unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert!(store.put_manifest("m", &[0; 1001]).unwrap() < 0);
    assert_eq!(store.get_manifest("m").unwrap(), Ok(b"x".to_vec()));
}
