//! Batches, saves and queues of the Rust API, against the components as they are installed.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::collections::HashMap;

use kv_store_wasm::{
    BatchOptions, ErrorKind, Fetch, Fetched, Memory, NewChunk, Outcomes, Presence, Put, Request, RequestQueue,
    SaveOutcome, Store,
};

fn open(uri: &str) -> Store {
    common::prepare();
    Store::open(uri).expect("the store opens")
}

/// A value that its key tells.
fn value(key: u64) -> Vec<u8> {
    let len = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize * 7;
    (0..len).map(|n| (key.wrapping_mul(31).wrapping_add(n as u64 * 17) >> 3) as u8).collect()
}

#[test]
fn a_batch_is_put_found_fetched_and_deleted() {
    let store = open("memory://rust-batch");
    let values: Vec<(Vec<u8>, Vec<u8>)> = (0..50_u64).map(|n| (n.to_le_bytes().to_vec(), value(n))).collect();
    let pieces: Vec<[&[u8]; 1]> = values.iter().map(|(_, value)| [value.as_slice()]).collect();
    let chunks: Vec<NewChunk<'_>> =
        values.iter().zip(&pieces).map(|((hash, _), pieces)| NewChunk::new(hash, pieces)).collect();
    let save = store.begin_save().unwrap();
    let sealed = BatchOptions::default().with_sealed();
    let put = store.put_many(&chunks, &sealed, Some(&save)).unwrap();
    assert!(put.iter().all(|put| matches!(put, Ok(Put::New))), "{put:?}");
    assert_eq!(save.commit(Some(("batch", b"fifty"))).unwrap(), SaveOutcome::Published);
    assert_eq!(&*store.get_manifest("batch").unwrap().unwrap(), b"fifty");

    let hashes: Vec<&[u8]> = values.iter().map(|(hash, _)| hash.as_slice()).chain([&b"absent"[..]]).collect();
    let found = store.exists_many(&hashes, &sealed).unwrap();
    for (found, (_, value)) in found.iter().zip(&values) {
        assert_eq!(*found.as_ref().unwrap(), Presence::Present(Some(value.len() as u64)));
    }
    assert_eq!(*found[50].as_ref().unwrap(), Presence::Absent);
    let mut fetches: Vec<Fetch<'_>> = hashes.iter().map(|hash| Fetch::new(hash, Memory::Allocate)).collect();
    let fetched = store.get_many(&mut fetches, &sealed).unwrap();
    for (fetched, (_, value)) in fetched.iter().zip(&values) {
        assert!(matches!(fetched, Ok(Some(Fetched::Buffer(found))) if found[..] == value[..]), "{fetched:?}");
    }
    assert!(matches!(fetched[50], Ok(None)));
    assert!(store.delete_many(&hashes).unwrap().iter().all(Result::is_ok));
    let found = store.exists_many(&hashes, &sealed).unwrap();
    assert!(found.iter().all(|found| matches!(found, Ok(Presence::Absent))));
}

/// Large enough that several threads seal and check.
#[test]
fn of_a_large_sealed_batch_only_what_was_changed_is_a_miss() {
    let scratch = tempfile::tempdir().unwrap();
    let store = open(&format!("local-fs://{}", scratch.path().display()));
    let values: Vec<(Vec<u8>, Vec<u8>)> =
        (0..24_u8).map(|n| (vec![n; 16], (0..200_000_u32).map(|at| (at * 7 + u32::from(n)) as u8).collect())).collect();
    let pieces: Vec<[&[u8]; 2]> = values.iter().map(|(_, value)| value.split_at(70_001).into()).collect();
    let chunks: Vec<NewChunk<'_>> =
        values.iter().zip(&pieces).map(|((hash, _), pieces)| NewChunk::new(hash, pieces)).collect();
    let sealed = BatchOptions::default().with_sealed();
    assert!(store.put_many(&chunks, &sealed, None).unwrap().iter().all(|put| matches!(put, Ok(Put::New))));
    let changed = scratch.path().join("chunks/0").join("05".repeat(16) + "026b7632");
    let mut content = std::fs::read(&changed).unwrap();
    content[123_456] ^= 4;
    std::fs::write(&changed, content).unwrap();
    let mut memory: Vec<Vec<u8>> = values.iter().map(|(_, value)| vec![0; value.len()]).collect();
    let mut halves: Vec<Vec<&mut [u8]>> = memory
        .iter_mut()
        .map(|memory| {
            let (head, tail) = memory.split_at_mut(1000);
            vec![head, tail]
        })
        .collect();
    let mut fetches: Vec<Fetch<'_>> =
        values.iter().zip(&mut halves).map(|((hash, _), pieces)| Fetch::new(hash, Memory::Pieces(pieces))).collect();
    let fetched = store.get_many(&mut fetches, &sealed).unwrap();
    for (n, (fetched, (_, value))) in fetched.iter().zip(&values).enumerate() {
        match n {
            5 => assert!(matches!(fetched, Ok(None)), "{fetched:?}"),
            _ => {
                assert!(matches!(fetched, Ok(Some(Fetched::Placed(len))) if *len == value.len()), "{n}: {fetched:?}");
                assert!(memory[n] == *value, "{n}");
            }
        }
    }
    assert!(changed.exists(), "a read removes nothing");
    let put = store.put_many(&chunks[5..6], &sealed, None).unwrap();
    assert!(matches!(put[..], [Ok(Put::New)]), "what is damaged is not there: {put:?}");
    assert!(std::fs::read(&changed).unwrap().starts_with(&values[5].1), "it is replaced");
}

#[test]
fn a_save_of_another_store_is_refused() {
    let (store, other) = (open("memory://one"), open("memory://another"));
    let save = other.begin_save().unwrap();
    let refused = store.put_many(&[NewChunk::new(b"a", &[b"x"])], &BatchOptions::default(), Some(&save));
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid);
}

/// Four threads submit random requests, cancel some, and drain what comes, whoever submitted it: each request completes once,
/// and no byte is wrong.
#[test]
fn every_request_of_a_busy_queue_completes_once_with_right_bytes() {
    const THREADS: u64 = 4;
    const REQUESTS: u64 = 150;
    let store = open("memory://busy-queue");
    let queue = RequestQueue::open(&store, 32).unwrap();
    let submit = |thread: u64| {
        for n in 0..REQUESTS {
            let (cookie, random) = (thread << 32 | n, (thread * 7919 + n).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 20);
            let keys: Vec<u64> = (0..1 + random % 8).map(|k| (random + k * 13) % 64).collect();
            let hashes = || keys.iter().map(|key| key.to_le_bytes().to_vec());
            let request = || match random % 5 {
                0 | 1 => Request::put(hashes().zip(keys.iter().map(|key| value(*key))).collect(), None),
                2 | 3 => Request::get(hashes().map(|hash| (hash, vec![0xee; 1 << 15])).collect()),
                _ => Request::exists(hashes().collect()),
            };
            while let Err((_, error)) = queue.submit(cookie, request(), &BatchOptions::default()) {
                assert_eq!(error.kind(), ErrorKind::Exhausted);
                std::thread::yield_now();
            }
            if random % 11 == 0 {
                queue.cancel(cookie).unwrap();
            }
        }
    };
    let drain = || {
        let mut seen: HashMap<u64, u32> = HashMap::new();
        while seen.len() < (THREADS * REQUESTS) as usize {
            for done in queue.drain(5).unwrap() {
                *seen.entry(done.cookie).or_default() += 1;
                if let Err(error) = &done.outcome {
                    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
                    continue;
                }
                let found: Vec<Option<usize>> = match done.request.outcomes() {
                    Outcomes::Get(outcomes) => outcomes
                        .iter()
                        .map(|outcome| match outcome {
                            Ok(Some(Fetched::Placed(len))) => Some(*len),
                            Ok(None) => None,
                            Err(error) if error.kind() == ErrorKind::Cancelled => None,
                            other => panic!("{other:?}"),
                        })
                        .collect(),
                    _ => continue,
                };
                for ((hash, memory), len) in done.request.into_memory().into_iter().zip(found) {
                    let key = u64::from_le_bytes(hash.try_into().unwrap());
                    if let Some(len) = len {
                        assert!(memory[..len] == value(key)[..], "wrong bytes under {key}");
                    }
                }
            }
        }
        seen
    };
    let seen = std::thread::scope(|scope| {
        let drained = scope.spawn(drain);
        let submitting: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || submit(thread))).collect();
        for thread in submitting {
            thread.join().unwrap();
        }
        drained.join().unwrap()
    });
    assert!(seen.values().all(|times| *times == 1));
    assert!(queue.drain(5).unwrap().is_empty());
}

#[test]
fn a_late_request_completes_as_late() {
    let store = open("memory://late");
    let queue = RequestQueue::open(&store, 4).unwrap();
    let options = BatchOptions::default().with_timeout(std::time::Duration::from_nanos(1));
    assert!(queue.submit(1, Request::exists(vec![vec![1]]), &options).is_ok());
    let done = std::iter::repeat_with(|| {
        std::thread::yield_now();
        queue.drain(1).unwrap().pop()
    })
    .flatten()
    .next()
    .unwrap();
    let Outcomes::Exists(outcomes) = done.request.outcomes() else { panic!("it was carried out") };
    assert_eq!(outcomes[0].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
}
