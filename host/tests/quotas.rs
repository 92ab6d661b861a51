//! The quotas of a tenant hold for every way in: single calls, batches, queues, saves and fused calls.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::time::Duration;

use kv_store_wasm::{
    BatchOptions, ErrorKind, Fetch, Fetched, Host, Memory, NewChunk, Outcomes, Request, RequestQueue, Store,
};

/// A store of a tenant with a quota.
fn open(folder: &std::path::Path, quota: &str) -> Store {
    let uri = format!("local-fs://{}", folder.display());
    let config = format!("[[tenant]]\nuri = '{uri}'\nquota = {{ {quota} }}\n");
    common::prepare();
    Host::builder().config_text(config).build().unwrap().open(&uri).unwrap()
}

fn put(store: &Store, key: &[u8], len: usize) -> Result<(), kv_store_wasm::Error> {
    let (value, options) = (vec![7; len], BatchOptions::default());
    let outcomes = store.put_many(&[NewChunk::new(key, &[&value])], &options, None)?;
    outcomes.into_iter().try_for_each(|outcome| outcome.map(drop))
}

fn get(store: &Store, key: &[u8]) -> Option<Fetched> {
    let mut items = [Fetch::new(key, Memory::Allocate)];
    store.get_many(&mut items, &BatchOptions::default()).unwrap().pop().unwrap().unwrap()
}

#[track_caller]
fn is_refused<T: std::fmt::Debug>(outcome: Result<T, kv_store_wasm::Error>, quota: &str) {
    let error = outcome.expect_err("it is over the quota");
    assert!(error.kind() == ErrorKind::Exhausted && error.to_string().contains(quota), "{error}");
}

#[test]
fn bytes_in_are_counted_for_batches_saves_and_queues() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), "bytes_in_per_s = 1000");
    // Ten thousand seconds' worth: what follows is over the quota for longer than this test runs.
    put(&store, b"one", 10_000_000).unwrap();
    is_refused(put(&store, b"two", 1), "bytes_in_per_s = 1000");
    is_refused(store.put_chunk(b"two", b"x"), "bytes_in_per_s = 1000");
    is_refused(store.begin_save().unwrap().commit(Some(("manifest", b"x"))), "bytes_in_per_s = 1000");

    let queue = RequestQueue::open(&store, 4).unwrap();
    let request = Request::put(vec![(b"two".to_vec(), vec![1])], None);
    queue.submit(1, request, &BatchOptions::default()).map_err(|(_, error)| error).unwrap();
    let done = loop {
        if let Some(done) = queue.drain(1).unwrap().pop() {
            break done;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    is_refused(done.outcome, "bytes_in_per_s = 1000");
    assert!(matches!(done.request.outcomes(), Outcomes::None));

    assert!(get(&store, b"one").is_some(), "gets have a quota of their own");
}

#[test]
fn bytes_out_are_counted_for_batches_and_what_is_over_is_a_miss() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), "bytes_out_per_s = 1000");
    put(&store, b"one", 10_000_000).unwrap();
    assert!(get(&store, b"one").is_some());
    assert!(get(&store, b"one").is_none() && store.get_chunk(b"one").unwrap().is_none());
    put(&store, b"two", 1).expect("puts have a quota of their own");
}

#[test]
fn operations_are_counted_for_batches() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), "operations_per_s = 0");
    is_refused(put(&store, b"one", 1), "operations_per_s = 0");
    is_refused(store.exists_many(&[b"one"], &BatchOptions::default()), "operations_per_s = 0");
    is_refused(store.delete_many(&[b"one"]), "operations_per_s = 0");
    assert!(get(&store, b"one").is_none());
}
