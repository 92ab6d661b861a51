//! A far level over calls that block: a panic, a slow call, and a queue that is full or given up end single requests.

#![allow(clippy::expect_used, clippy::unwrap_used, clippy::indexing_slicing)]

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use common::*;
use kv_blocks::{Blocking, Cache, ErrorKind, GetItem, Outcome, PutItem, Workers};

#[derive(Default)]
struct Backend {
    values: Mutex<std::collections::HashMap<Vec<u8>, Vec<u8>>>,
    /// While it is true, calls wait.
    stuck: Mutex<bool>,
    freed: Condvar,
    panics: AtomicUsize,
    calls: AtomicUsize,
}

impl Backend {
    fn call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut stuck = self.stuck.lock().unwrap();
        while *stuck {
            stuck = self.freed.wait(stuck).unwrap();
        }
        drop(stuck);
        let panics = self.panics.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok();
        assert!(!panics, "a panic of the test");
    }

    fn stick(&self, stuck: bool) {
        *self.stuck.lock().unwrap() = stuck;
        self.freed.notify_all();
    }
}

struct Handle(Arc<Backend>);

impl Blocking for Handle {
    fn put_many(&self, items: &[PutItem], _: Duration) -> Vec<Outcome> {
        self.0.call();
        let mut values = self.0.values.lock().unwrap();
        let put = |item: &PutItem| {
            values.insert(item.key().to_vec(), item.pieces().concat());
            Outcome::Done
        };
        items.iter().map(put).collect()
    }

    fn get_many(&self, items: &mut [GetItem], _: Duration) -> Vec<Outcome> {
        self.0.call();
        let values = self.0.values.lock().unwrap();
        let get = |item: &mut GetItem| {
            let (key, [room, tail]) = item.parts();
            let Some(value) = values.get(key) else { return Outcome::Missing };
            let (own, behind) = value.split_at(room.len());
            room.copy_from_slice(own);
            tail.copy_from_slice(behind);
            Outcome::Found(value.len())
        };
        items.iter_mut().map(get).collect()
    }

    fn exists_many(&self, keys: &[Vec<u8>], _: Duration) -> Vec<Outcome> {
        self.0.call();
        let values = self.0.values.lock().unwrap();
        keys.iter().map(|key| if values.contains_key(key) { Outcome::Done } else { Outcome::Missing }).collect()
    }

    fn delete_many(&self, keys: &[Vec<u8>], _: Duration) -> Vec<Outcome> {
        self.0.call();
        let mut values = self.0.values.lock().unwrap();
        keys.iter().for_each(|key| drop(values.remove(key)));
        vec![Outcome::Done; keys.len()]
    }
}

fn open(backend: &Arc<Backend>, threads: usize, timeout_ms: u64) -> Cache {
    let text = format!("[l2]\ningestion_type = 'ALL'\nper_token_timeout_ms = {timeout_ms}");
    let far = Workers::start(Handle(backend.clone()), threads).unwrap();
    Cache::open(config(16, &text), spec(), Some(Arc::new(far))).unwrap()
}

#[test]
fn calls_that_block_are_a_far_level() {
    let backend = Arc::new(Backend::default());
    let tokens = prompt(1, 8);
    let cache = open(&backend, 3, 60_000);
    assert_eq!(put(&cache, &tokens), 8);
    let other = open(&backend, 1, 60_000);
    assert_eq!(other.exists(&[], &tokens).unwrap(), 8 * BLOCK);
    assert_eq!(get(&other, &tokens), 8);
    assert_eq!(other.delete(&[], &tokens).unwrap(), 8 * BLOCK);
    assert_eq!(open(&backend, 1, 60_000).exists(&[], &tokens).unwrap(), 0);
}

#[test]
fn a_panic_fails_one_request_and_the_thread_goes_on() {
    let backend = Arc::new(Backend::default());
    let tokens = prompt(1, 4);
    put(&open(&backend, 1, 60_000), &tokens);
    let cache = open(&backend, 1, 60_000);
    backend.panics.store(1, Ordering::SeqCst);
    assert_eq!(get(&cache, &tokens), 0);
    assert_eq!(get(&cache, &tokens), 4);
}

/// One thread hangs in a call. What waits behind it is not begun when its time is over, and all of it comes back when the cache has
/// gone before.
#[test]
fn what_is_late_in_the_queue_is_not_begun() {
    let backend = Arc::new(Backend::default());
    let cache = open(&backend, 1, 1);
    backend.stick(true);
    assert_eq!(get(&cache, &prompt(1, 4)), 0);
    assert_eq!(get(&cache, &prompt(2, 4)), 0);
    assert_eq!(cache.exists(&[], &prompt(3, 4)).unwrap(), 0);
    while backend.calls.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    backend.stick(false);
    while cache.metrics().used.fetching_blocks > 0 {
        std::thread::yield_now();
    }
    // The first was begun; the others had no time left.
    assert_eq!(backend.calls.load(Ordering::SeqCst), 1);
    backend.stick(true);
    assert_eq!(put(&cache, &prompt(4, 4)), 4);
    assert_eq!(cache.close().unwrap_err().kind(), ErrorKind::Timeout);
    drop(cache);
    backend.stick(false);
    // The threads end, and with them the last holders of the backend.
    while Arc::strong_count(&backend) > 1 {
        std::thread::yield_now();
    }
}
