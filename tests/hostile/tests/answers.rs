//! Whatever bytes a guest answers: the call is answered or fails, and the next one is served. The guest `parrot` answers, as the
//! result of every function but one, what that one was given.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, reason = "a test that fails panics")]

use kv_store_hostile::prepare;
use kv_store_wasm::ErrorKind::{Component, Corrupt, Denied, Exhausted, Invalid, Other, Unavailable, Unsupported};
use kv_store_wasm::{Error, Store};
use proptest::prelude::*;

/// Where the answer lies, and how much of it the test writes.
const AT: u32 = 1024;
const LEN: usize = 512;

/// A word of an answer: a case, a handle, a length, a place.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        6 => 0..4_u32,
        4 => 0..12_u32,
        3 => (0..LEN as u32 / 4).prop_map(|n| AT + n * 4),
        1 => prop::sample::select(vec![255, 256, 4096, 65_535, 65_536, 131_071, 131_072, 0x7fff_ffff, u32::MAX]),
        1 => any::<u32>(),
    ]
}

/// A list of two to four items of 28 bytes behind the answer's head, which may say another number.
fn list() -> impl Strategy<Value = Vec<u32>> {
    (prop::sample::select(vec![1, 2, 3, 100]), prop::collection::vec(word(), 14..=28)).prop_map(|(count, items)| {
        let mut words = vec![0, AT + 16, count, 0];
        words.extend(items);
        words
    })
}

fn answer() -> impl Strategy<Value = Vec<u8>> {
    let words = prop_oneof![2 => list(), 1 => prop::collection::vec(word(), 1..=LEN / 4)];
    words.prop_map(|words| words.into_iter().flat_map(u32::to_le_bytes).collect())
}

fn may<T>(what: &str, outcome: Result<T, Error>) -> Result<(), TestCaseError> {
    if let Err(error) = outcome {
        let kinds = [Component, Corrupt, Denied, Exhausted, Invalid, Other, Unavailable, Unsupported];
        prop_assert!(kinds.contains(&error.kind()) && !error.to_string().is_empty(), "{what}: {error:?}");
        prop_assert!(!error.to_string().contains("panic"), "{what}: {error}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_answer_is_too_strange(bytes in answer()) {
        prepare("");
        let store = Store::open("parrot://x").expect("it opens");
        for operation in 0..5 {
            // Again each time: what went before may have ended the instance, and with it what it was told.
            store.put_manifest("answer", &bytes).expect("it is told what to answer");
            match operation {
                0 => may("get_manifest", store.get_manifest("\0m"))?,
                1 => may("get_chunk", store.get_chunk(b"8 bytes!").map(|found| {
                    // What is found is one of its payloads.
                    assert!(found.is_none_or(|found| found.len() == 10));
                }))?,
                2 => may("put_chunk", store.put_chunk(b"key", b"data"))?,
                3 => may("delete_manifest", store.delete_manifest("m"))?,
                _ => may("prefetch_chunks", store.prefetch_chunks(b"abc", 1))?,
            }
        }
    }
}

#[test]
fn the_parrot_answers_what_it_is_told() {
    prepare("");
    let store = Store::open("parrot://told").expect("it opens");
    let tell = |words: &[u32]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        store.put_manifest("answer", &bytes).expect("it is told what to answer");
    };
    tell(&[0, 1, 2]);
    // Of a name that begins with NUL no envelope is expected, nor of a key of 8 bytes.
    let found = store.get_manifest("\0m").expect("a sound answer").map(|found| found.len());
    assert_eq!(found, Some(10), "its second payload");
    let said = |words: &[u32]| {
        tell(words);
        store.get_chunk(b"8 bytes!").map(|found| found.is_some()).map_err(|error| (error.kind(), error.to_string()))
    };
    assert_eq!(said(&[0, AT + 16, 1, 0, 0, 3]), Ok(true));
    assert_eq!(said(&[0, AT + 16, 1, 0, 1]), Ok(false));
    let (kind, text) = said(&[0, AT + 16, 2, 0, 1, 0, 0, 0, 0, 0, 0, 1]).unwrap_err();
    assert!(kind == Component && text.contains("2 items"), "{text}");
    // It fails, and says nothing.
    let (_, text) = said(&[1]).unwrap_err();
    assert!(text.contains("did not say why"), "{text}");
}
