//! What happens between put_chunk and put_manifest where the backend is not write-through, counted in the guest's calls.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use std::collections::HashMap;
use std::time::Duration;

use kv_store_tests::{Handle, library, timed};
use xxhash_rust::xxh3::xxh3_64;

/// How long a backend's word is taken for what it stored.
const BELIEVED: Duration = Duration::from_secs(2);

fn open(uri: &str) -> Handle<'static> {
    library().open(uri).expect("the probe opens")
}

/// How often the guest was called, by name; `fresh` is what the last manifest named.
fn calls(store: &Handle) -> HashMap<String, u64> {
    let text = String::from_utf8(store.get_manifest("calls").unwrap().unwrap()).unwrap();
    text.split(' ').map(|call| call.split_once('=').unwrap()).map(|(k, v)| (k.to_owned(), v.parse().unwrap())).collect()
}

fn count(store: &Handle, call: &str) -> u64 {
    calls(store).get(call).copied().unwrap_or(0)
}

#[test]
fn chunks_wait_for_the_manifest_and_are_asked_for_first() {
    let store = open("probe-buffered://waits");
    for n in 0..10u8 {
        assert_eq!(store.put_chunk(&[n], &[n; 100]).unwrap(), 0);
    }
    assert_eq!((count(&store, "put"), count(&store, "exists")), (0, 0));
    assert_eq!(store.get_chunk(&[3]).unwrap(), Ok(vec![3; 100]), "a chunk that waits is readable on its handle");
    assert_eq!(count(&store, "get"), 0);

    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!((count(&store, "exists-items"), count(&store, "put-items"), count(&store, "fresh")), (10, 10, 10));

    // The second save writes only what is new, and says of the rest that it is known.
    for n in 0..12u8 {
        assert_eq!(store.put_chunk(&[n], &[n; 100]).unwrap(), i32::from(n < 10));
    }
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!((count(&store, "exists-items"), count(&store, "put-items")), (22, 12));
}

#[test]
fn a_backend_to_which_repeats_are_cheap_is_not_asked() {
    let store = open("probe-cheap://x");
    assert_eq!(store.put_chunk(b"a", b"x").unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!((count(&store, "exists"), count(&store, "put-items")), (0, 1));
}

#[test]
fn batches_are_as_the_backend_likes_them_and_short_answers_are_asked_on() {
    let store = open("probe-batches://x");
    for n in 0..10u8 {
        assert_eq!(store.put_chunk(&[n], &[n; 100]).unwrap(), 0);
    }
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    // Batches of 4, answers of 3: each item is answered once, whatever is asked again.
    assert!(count(&store, "put") >= 4);
    assert_eq!(count(&store, "fresh"), 10);
    let hashes: Vec<u8> = (0..10).collect();
    assert_eq!(store.prefetch_chunks(&hashes, 1), Some(0));
    let asked = count(&store, "get");
    for n in 0..10u8 {
        assert_eq!(store.get_chunk(&[n]).unwrap(), Ok(vec![n; 100]));
    }
    assert_eq!(count(&store, "get"), asked, "what was prefetched is not asked for again");
    assert_eq!(store.get_chunk(&[0]).unwrap(), Ok(vec![0; 100]));
    assert_eq!(count(&store, "get"), asked + 1, "and is handed over once");
}

#[test]
fn short_answers_do_not_renew_the_time_of_a_call() {
    let store = open("probe-slow://x");
    for n in 0..6u8 {
        assert_eq!(store.put_chunk(&[n], &[n; 1000]).unwrap(), 0);
    }
    // Six calls of 200 ms, each with one answer, in a call that may take 500 ms.
    assert!(store.put_manifest("m", b"x").unwrap() < 0, "each answer began the time anew");
    let stored = count(&store, "put-items");
    assert!(stored > 0, "the first answers were in time");
    // What was stored stays stored: the consumer's next tries come to an end.
    assert!((0..6).any(|_| store.put_manifest("m", b"x").unwrap() == 0));
}

#[test]
fn what_failed_for_a_passing_reason_is_stored_by_the_next_manifest() {
    let store = open("probe-failing://x");
    assert_eq!(store.put_chunk(b"a", b"x").unwrap(), 0);
    assert!(store.put_manifest("m", b"first").unwrap() < 0);
    assert!(store.get_manifest("m").unwrap().is_err(), "a manifest whose chunks are not stored is not published");
    assert_eq!(store.put_manifest("m", b"second").unwrap(), 0);
    assert_eq!(count(&store, "put-items"), 2);
    assert_eq!(store.get_chunk(b"a").unwrap(), Ok(b"x".to_vec()));
}

#[test]
fn what_failed_for_good_fails_manifests_until_it_is_put_again() {
    let store = open("probe-buffered://denied");
    assert_eq!(store.put_chunk(b"denied-1", b"x").unwrap(), 0);
    assert_eq!(store.put_chunk(b"good", b"y").unwrap(), 0);
    assert!(store.put_manifest("m", b"first").unwrap() < 0);
    assert!(store.put_manifest("m", b"first").unwrap() < 0, "who shares the handle hears of it too");
    assert!(store.put_chunk(b"denied-1", b"x").unwrap() < 0, "not accepted is not lost");
    assert_eq!(store.put_manifest("m", b"second").unwrap(), 0);
    assert_eq!(store.get_chunk(b"good").unwrap(), Ok(b"y".to_vec()));
    assert!(store.get_chunk(b"denied-1").unwrap().is_err());
}

#[test]
fn past_its_bound_the_buffer_flushes_early() {
    let store = open("probe-buffered://bound");
    let data = vec![7; 10 << 20];
    for n in 0..7u8 {
        assert_eq!(store.put_chunk(&[n], &data).unwrap(), 0);
    }
    assert_eq!(count(&store, "put-items"), 6, "the seventh of 10 MiB did not fit 64 MiB");
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!((count(&store, "put-items"), count(&store, "fresh")), (7, 7));
}

#[test]
fn a_chunk_on_which_the_guest_traps_takes_no_other_with_it() {
    let store = open("probe-buffered://trap");
    assert_eq!(store.put_chunk(b"trap-1", b"x").unwrap(), 0);
    assert_eq!(store.put_chunk(b"good", b"y").unwrap(), 0);
    assert!(store.put_manifest("m", b"first").unwrap() < 0);
    assert!(store.put_chunk(b"trap-1", b"x").unwrap() < 0);
    assert_eq!(store.put_chunk(b"good", b"y").unwrap() & !1, 0);
    assert_eq!(store.put_manifest("m", b"second").unwrap(), 0);
    assert_eq!(store.get_chunk(b"good").unwrap(), Ok(b"y".to_vec()));
}

#[test]
fn a_chunk_lost_in_an_early_flush_fails_the_manifest_that_counts_on_it() {
    let store = open("probe-buffered://lost");
    let data = vec![7; 40 << 20];
    assert_eq!(store.put_chunk(b"denied-1", &data).unwrap(), 0);
    // Does not fit beside the first, so that one is flushed, which fails for good.
    assert_eq!(store.put_chunk(b"good", &data).unwrap(), 0);
    assert!(store.put_manifest("m", b"first").unwrap() < 0);
    assert!(store.get_manifest("m").unwrap().is_err());
    assert!(store.put_chunk(b"denied-1", &data).unwrap() < 0);
    assert_eq!(store.put_manifest("m", b"second").unwrap(), 0);
}

/// Seven chunks, of which the bound of the buffer has the first six stored before any manifest.
fn put_more_than_waits(store: &Handle) {
    for n in 0..7u8 {
        assert_eq!(store.put_chunk(&[n], &vec![n; 10 << 20]).unwrap(), 0);
    }
    assert_eq!(count(store, "put-items"), 6);
}

#[test]
fn a_chunk_that_the_backend_lost_after_an_early_flush_fails_the_manifest() {
    let timed = timed();
    let open = || timed.library.open("probe-volatile://early").expect("the probe opens");
    let (store, other) = (open(), open());
    put_more_than_waits(&store);
    assert_eq!(other.put_manifest("lose", &[3]).unwrap(), 0);
    timed.pass(BELIEVED);
    assert!(store.put_manifest("m", b"first").unwrap() < 0, "it names a chunk that is gone");
    assert!(store.get_manifest("m").unwrap().is_err());
    for n in 0..7u8 {
        assert_eq!(store.put_chunk(&[n], &vec![n; 10 << 20]).unwrap(), i32::from(n != 3), "chunk {n}");
    }
    assert_eq!(store.put_manifest("m", b"second").unwrap(), 0);
    assert!(store.get_chunk(&[3]).unwrap().is_ok());
    assert_eq!(count(&store, "put-items"), 8, "what was there was stored again");
}

#[test]
fn what_was_flushed_early_is_believed_for_a_while() {
    let timed = timed();
    let store = timed.library.open("probe-volatile://believed").expect("the probe opens");
    put_more_than_waits(&store);
    let asked = count(&store, "exists-items");
    timed.pass(BELIEVED - Duration::from_millis(1));
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!(count(&store, "exists-items"), asked + 1, "of the seventh it was not known");
}

#[test]
fn a_chunk_found_damaged_after_an_early_flush_is_healed_by_the_next_put() {
    let (store, other) = (open("probe-volatile://heals"), open("probe-volatile://heals"));
    put_more_than_waits(&store);
    assert_eq!(other.put_manifest("rot", &[3]).unwrap(), 0);
    assert!(store.get_chunk(&[3]).unwrap().is_err());
    assert!(store.put_chunk(&[3], &vec![3; 10 << 20]).unwrap() >= 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert!(store.get_chunk(&[3]).unwrap() == Ok(vec![3; 10 << 20]), "the put did not heal it");
}

#[test]
fn a_lost_chunk_fails_the_manifest_of_each_thread_that_was_saving() {
    let store = open("probe-buffered://threads");
    assert_eq!(store.put_chunk(b"denied-1", b"x").unwrap(), 0);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            assert_eq!(store.put_chunk(b"good", b"y").unwrap(), 0);
            assert!(store.put_manifest("other", b"x").unwrap() < 0, "a manifest before which a chunk was lost");
            assert!(store.put_manifest("other", b"x").unwrap() < 0, "nobody has put it again");
        });
        other.join().unwrap();
    });
    assert!(store.put_manifest("mine", b"x").unwrap() < 0, "the other thread's manifest took the news");
    assert!(store.put_chunk(b"denied-1", b"x").unwrap() < 0);
    assert_eq!(store.put_manifest("mine", b"x").unwrap(), 0);
}

#[test]
fn a_chunk_larger_than_the_buffer_goes_at_once() {
    let store = open("probe-buffered://large");
    assert_eq!(store.put_chunk(b"large", &vec![7; 65 << 20]).unwrap(), 0);
    assert_eq!(count(&store, "put-items"), 1);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!(count(&store, "fresh"), 1);
}

#[test]
fn no_more_is_prefetched_at_once_than_the_cache_may_hold() {
    let store = open("probe-buffered://prefetch");
    let data = vec![7; 100 << 20];
    for n in 0..3u8 {
        assert_eq!(store.put_chunk(&[n], &data).unwrap(), 0);
    }
    assert_eq!(store.prefetch_chunks(&[0, 1, 2], 1), Some(0));
    assert_eq!((count(&store, "get"), count(&store, "get-items")), (2, 3), "two fit 256 MiB");
}

#[test]
fn close_discards_what_no_manifest_followed() {
    let kept = open("probe-buffered://discard");
    let store = open("probe-buffered://discard");
    assert_eq!(store.put_chunk(b"a", b"x").unwrap(), 0);
    assert!(kept.get_chunk(b"a").unwrap().is_err(), "buffers of handles are apart");
    assert_eq!(kept.put_chunk(b"a", b"x").unwrap(), 0, "and so is what is known");
    drop(store);
    assert_eq!(count(&kept, "put"), 0);
}

fn content_key(data: &[u8]) -> [u8; 8] {
    xxh3_64(data).to_be_bytes()
}

#[test]
fn a_damaged_chunk_is_a_miss_until_the_next_put_heals_it() {
    for scheme in ["probe-buffered", "probe"] {
        let store = open(&format!("{scheme}://heals"));
        let (data, key) = (b"content".to_vec(), content_key(b"content"));
        assert_eq!(store.put_chunk(&key, &data).unwrap(), 0);
        assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
        assert_eq!(store.put_manifest("damage:it", &key).unwrap(), 0);
        assert!(store.get_chunk(&key).unwrap().is_err(), "{scheme}: damaged bytes were answered");
        assert_eq!(store.prefetch_chunks(&key, 8), Some(0));
        assert!(store.get_chunk(&key).unwrap().is_err(), "{scheme}: damaged bytes were prefetched");
        assert_eq!(store.put_chunk(&key, &data).unwrap(), 0, "{scheme}: what is damaged is not there");
        assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
        assert_eq!(store.get_chunk(&key).unwrap(), Ok(data), "{scheme}: the put did not heal it");
    }
}

/// Chunks of a store whose keys are digests of the content, the one under the answered key damaged.
fn with_damage(uri: &str) -> (Handle<'static>, [u8; 8]) {
    let (store, key) = (open(uri), content_key(b"content"));
    assert_eq!(store.put_chunk(&key, b"content").unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!(store.put_manifest("damage:it", &key).unwrap(), 0);
    (store, key)
}

#[test]
fn a_damaged_chunk_is_read_again_and_left_where_it_is() {
    let (store, key) = with_damage("probe-buffered://stays");
    let read = count(&store, "get-items");
    assert!(store.get_chunk(&key).unwrap().is_err());
    assert_eq!(count(&store, "get-items") - read, 2, "once, and once more");
    // For as long as it may be the way there that is at fault, it is read and not removed.
    assert!(store.get_chunk(&key).unwrap().is_err());
    assert_eq!(store.prefetch_chunks(&key, 8), Some(0));
    assert_eq!((count(&store, "get-items") - read, count(&store, "delete")), (4, 0));
}

#[test]
fn a_damaged_chunk_that_is_found_so_again_is_removed() {
    for prefetches in [false, true] {
        let (store, key) = with_damage(&format!("probe-soon://removes-{prefetches}"));
        let look = || {
            if prefetches {
                assert_eq!(store.prefetch_chunks(&key, 8), Some(0));
            }
            assert!(store.get_chunk(&key).unwrap().is_err());
        };
        look();
        look();
        assert_eq!((count(&store, "delete"), count(&store, "delete-items")), (1, 1));
        // It is not there any more, and nobody asks for its removal again.
        look();
        assert_eq!(count(&store, "delete"), 1);
    }
}

#[test]
fn what_was_foreseen_and_is_damaged_since_is_stored_again() {
    let (store, other) = (open("probe-volatile://foreseen"), open("probe-volatile://foreseen"));
    let chunks: [&[u8]; 2] = [b"first", b"second"];
    for data in chunks {
        assert_eq!(store.put_chunk(&content_key(data), data).unwrap(), 0);
    }
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    // The backend is asked for both, because the second came after the first.
    assert_eq!(store.put_chunk(&content_key(b"first"), b"first").unwrap(), 1);
    assert_eq!(other.put_manifest("damage:it", &content_key(b"second")).unwrap(), 0);
    assert!(other.get_chunk(&content_key(b"second")).unwrap().is_err());
    assert_eq!(store.put_chunk(&content_key(b"second"), b"second").unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!(store.get_chunk(&content_key(b"second")).unwrap(), Ok(b"second".to_vec()));
}

#[test]
fn where_chunks_cannot_be_removed_the_next_put_of_the_process_replaces_them() {
    // What fails may work the next time; what is not supported is not asked for again.
    // The first time it is only read again.
    for (scheme, asked) in [("probe-stuck", 2), ("probe-keeps", 1)] {
        let (store, key) = with_damage(&format!("{scheme}://x"));
        for _ in 0..3 {
            assert!(store.get_chunk(&key).unwrap().is_err(), "{scheme}");
        }
        assert_eq!(count(&store, "delete"), asked, "{scheme}");
        assert_eq!(store.put_chunk(&key, b"content").unwrap(), 0, "{scheme}");
        assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
        assert_eq!(store.get_chunk(&key).unwrap(), Ok(b"content".to_vec()), "{scheme}");
    }
}

#[test]
fn a_chunk_that_the_guest_finds_corrupt_is_healed_by_the_next_put() {
    let store = open("probe-buffered://rot");
    assert_eq!(store.put_chunk(b"a", b"x").unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!(store.put_manifest("rot", b"a").unwrap(), 0);
    assert!(store.get_chunk(b"a").unwrap().is_err());
    assert_eq!(store.put_chunk(b"a", b"x").unwrap(), 0);
    assert_eq!(store.put_manifest("m", b"x").unwrap(), 0);
    assert_eq!(store.get_chunk(b"a").unwrap(), Ok(b"x".to_vec()));
}

#[test]
fn the_operator_decides_whether_chunks_are_verified() {
    let key = content_key(b"content");
    for (scheme, answered) in [("probe-unverified", true), ("probe-strict", false)] {
        let store = open(&format!("{scheme}://x"));
        assert_eq!(store.put_chunk(&key, b"content").unwrap(), 0);
        assert_eq!(store.put_manifest("damage:it", &key).unwrap(), 0);
        assert_eq!(store.get_chunk(&key).unwrap().is_ok(), answered, "{scheme}");
    }
}

#[test]
fn concurrent_manifests_on_one_handle_each_wait_for_the_chunks() {
    let store = open("probe-buffered://manifests");
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..10u8 {
                    assert_eq!(store.put_chunk(&[thread, round], &[round; 100]).unwrap(), 0);
                    assert_eq!(store.put_manifest(&format!("{thread}"), &[round]).unwrap(), 0);
                    assert_eq!(store.get_chunk(&[thread, round]).unwrap(), Ok(vec![round; 100]));
                }
            });
        }
    });
    assert_eq!(count(&store, "put-items"), 40, "each chunk is stored once");
}

/// Batches of one prefetch are judged apart, and the first to come may tell what the keys are.
#[test]
fn a_damaged_chunk_that_was_prefetched_before_the_keys_were_known_is_not_answered() {
    use kv_store_tests::consumer::{consumer, succeed};

    let folder = tempfile::tempdir().unwrap();
    let uri = format!("local-fs://{}/kv", folder.path().display());
    let texts: Vec<String> = (0..9).map(|n| format!("chunk {n}")).collect();
    let keys: Vec<String> = texts.iter().map(|text| hex::encode(xxh3_64(text.as_bytes()).to_be_bytes())).collect();
    let mut save = consumer("calls");
    save.arg(&uri);
    for (key, text) in keys.iter().zip(&texts) {
        save.args(["put", key, text]);
    }
    succeed(save.args(["publish", "m", "x"]));
    // All of the first batch, so that nothing in it tells.
    for key in &keys[..4] {
        std::fs::write(folder.path().join(format!("kv/chunks/{}/{key}", &key[..1])), "damaged").unwrap();
    }
    let restored =
        succeed(consumer("calls").args([&uri, "prefetch", "8", &keys.concat(), "get", &keys[8], "get", &keys[0]]));
    let sound = hex::encode(texts[8].as_bytes());
    assert!(
        restored.stdout.contains(&sound) && !restored.stdout.contains(&hex::encode(b"damaged")),
        "{}",
        restored.stdout
    );
}
