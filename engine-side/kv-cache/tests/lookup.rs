//! Lookups: exact, resume, longest prefix, and the wait for a parent's save.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use common::*;
use kv_cache::{HitKind, Identity, Options, Query, Reason, Save, Saved, Step};

fn query(tokens: &[u32]) -> Query<'_> {
    Query::new(&IDENTITY, tokens)
}

#[test]
fn exact_before_resume_before_longest_prefix() {
    let cache = open(&ram(1 << 20));
    let prompt = tokens(0, 30);
    save(&cache, &prompt[..16], b"16").unwrap();
    save(&cache, &prompt[..11], b"11").unwrap();
    let parent = IDENTITY.key(&prompt[..11]);
    let hit = |query: &Query| cache.lookup(query).unwrap().map(|hit| (hit.kind(), hit.tokens()));
    assert_eq!(hit(&query(&prompt)), Some((HitKind::LongestPrefix, 16)));
    assert_eq!(hit(&query(&prompt).parent(parent)), Some((HitKind::LongestPrefix, 16)), "it saves more of the prefill");
    assert_eq!(hit(&query(&prompt[..15]).parent(parent)), Some((HitKind::Resume, 11)));
    assert_eq!(hit(&query(&prompt[..16]).parent(parent)), Some((HitKind::Exact, 16)));
    // 11 is at no boundary, so only its key or its parent's finds it.
    assert_eq!(hit(&query(&prompt[..15])), None);
    assert_eq!(hit(&query(&prompt[..11])), Some((HitKind::Exact, 11)));
    // Not strictly longer.
    assert_eq!(hit(&query(&prompt[..11]).parent(parent)), Some((HitKind::Exact, 11)));
    assert_eq!(hit(&query(&prompt[..10]).parent(parent)), None);
    let stats = cache.stats();
    assert_eq!((stats.hits_exact, stats.hits_resume, stats.hits_longest_prefix, stats.misses), (3, 1, 2, 2));
}

#[test]
fn a_parent_is_answered_unless_a_longer_row_is_at_a_boundary() {
    let cache = open(&ram(1 << 20));
    let prompt = tokens(0, 40);
    let parent = IDENTITY.key(&prompt[..16]);
    let hit = |cache: &kv_cache::Cache| {
        let hit = cache.lookup(&query(&prompt).parent(parent)).unwrap().unwrap();
        (hit.kind(), hit.tokens())
    };
    for n in [8, 16] {
        save(&cache, &prompt[..n], b"x").unwrap();
    }
    // The parent is at a boundary itself.
    assert_eq!(hit(&cache), (HitKind::Resume, 16));
    // Longer, but at no boundary.
    save(&cache, &prompt[..33], b"x").unwrap();
    assert_eq!(hit(&cache), (HitKind::Resume, 16));
    save(&cache, &prompt[..24], b"x").unwrap();
    assert_eq!(hit(&cache), (HitKind::LongestPrefix, 24));
    save(&cache, &prompt[..32], b"x").unwrap();
    assert_eq!(hit(&cache), (HitKind::LongestPrefix, 32), "of those the longest");
    for n in [24, 32] {
        cache.evict(&IDENTITY.key(&prompt[..n]));
    }
    assert_eq!(hit(&cache), (HitKind::Resume, 16));
    cache.evict(&parent);
    assert_eq!(hit(&cache), (HitKind::LongestPrefix, 8));
}

#[test]
fn no_lookup_waits_for_a_parent_where_a_longer_row_is_at_a_boundary() {
    let (cache, go_on) = stopped(&ram(1 << 20), Step::Reserved);
    let prompt = tokens(0, 30);
    go_on.send(()).unwrap();
    save(&cache, &prompt[..24], b"24").unwrap();
    cache.save(Save::new(&IDENTITY, &prompt[..21], b"21").reason(Reason::Finish)).unwrap();
    let hit = cache.lookup(&query(&prompt).parent(IDENTITY.key(&prompt[..21]))).unwrap().unwrap();
    assert_eq!((hit.kind(), hit.tokens(), cache.stats().resume_waits), (HitKind::LongestPrefix, 24, 0));
    drop(go_on);
}

#[test]
fn a_parent_is_a_hint_and_no_capability() {
    let cache = open(&ram(1 << 20));
    let secret = tokens(7, 20);
    save(&cache, &secret, b"the state of somebody else's prompt").unwrap();
    let mine = tokens(0, 30);
    let stolen = query(&mine).parent(IDENTITY.key(&secret));
    assert!(cache.lookup(&stolen).unwrap().is_none(), "the key alone gives nothing");
    // The same tokens under another model are another state.
    let other = Identity { quant: 8, ..IDENTITY };
    let parent = Query::new(&other, &secret).parent(IDENTITY.key(&secret[..20]));
    assert!(cache.lookup(&parent).unwrap().is_none());
}

#[test]
fn one_token_decides() {
    let cache = open(&ram(1 << 20));
    let prompt = tokens(0, 24);
    save(&cache, &prompt[..8], b"8").unwrap();
    save(&cache, &prompt[..16], b"16").unwrap();
    for changed in 0..24 {
        let mut other = prompt.clone();
        other[changed] ^= 1 << 31;
        let expected = match changed {
            0..8 => None,
            8..16 => Some(8),
            _ => Some(16),
        };
        assert_eq!(lookup(&cache, &other).map(|hit| hit.tokens()), expected, "token {changed} changed");
    }
}

#[test]
fn the_walk_takes_the_longest_and_looks_no_further() {
    let cache = open(&ram(1 << 20));
    let prompt = tokens(0, 35);
    for n in [8, 24] {
        save(&cache, &prompt[..n], b"x").unwrap();
    }
    assert_eq!(lookup(&cache, &prompt).unwrap().tokens(), 24);
    let stats = cache.stats();
    assert_eq!((stats.prefix_walks, stats.prefix_probes), (1, 2), "32, then 24");
    assert!(lookup(&cache, &tokens(1, 35)).is_none());
    assert_eq!(cache.stats().prefix_probes, 2 + 4, "32, 24, 16, 8");
    assert!(lookup(&cache, &[]).is_none());
    assert_eq!(
        cache.lookup(&query(&vec![0; (1 << 24) + 1])).err().unwrap().kind(),
        kv_cache::ErrorKind::InvalidArgument
    );
}

#[test]
fn a_lookup_waits_for_its_parents_save() {
    let (cache, go_on) = stopped(&ram(1 << 20), Step::Reserved);
    let prompt = tokens(0, 30);
    let finish = Save::new(&IDENTITY, &prompt[..21], b"21").reason(Reason::Finish);
    assert_eq!(cache.save(finish).unwrap(), Saved::Queued);
    // Others do not wait for it.
    assert!(lookup(&cache, &prompt).is_none());
    assert!(cache.lookup(&query(&tokens(1, 30)).parent(IDENTITY.key(&prompt[..21]))).unwrap().is_none());
    // Nor does one that does not go on from it.
    assert!(cache.lookup(&query(&prompt[..21]).parent(IDENTITY.key(&prompt[..21]))).unwrap().is_none());
    assert_eq!(cache.stats().resume_waits, 0);
    let waiting = {
        let (cache, prompt) = (cache.clone(), prompt.clone());
        std::thread::spawn(move || {
            let hit = cache.lookup(&query(&prompt).parent(IDENTITY.key(&prompt[..21]))).unwrap();
            hit.map(|hit| (hit.kind(), load(&hit).unwrap()))
        })
    };
    while cache.stats().resume_waits == 0 {
        std::thread::yield_now();
    }
    assert!(!waiting.is_finished());
    go_on.send(()).unwrap();
    assert_eq!(waiting.join().unwrap(), Some((HitKind::Resume, b"21".to_vec())));
}

#[test]
fn the_wait_is_bounded_and_then_the_walk_serves() {
    let config = ram(1 << 20).replace("session_resume_wait_ms = 5000", "session_resume_wait_ms = 20");
    let (cache, go_on) = stopped(&config, Step::Reserved);
    let prompt = tokens(0, 30);
    go_on.send(()).unwrap();
    save(&cache, &prompt[..8], b"8").unwrap();
    cache.save(Save::new(&IDENTITY, &prompt[..21], b"21").reason(Reason::Finish)).unwrap();
    let hit = cache.lookup(&query(&prompt).parent(IDENTITY.key(&prompt[..21]))).unwrap().unwrap();
    assert_eq!((hit.kind(), hit.tokens()), (HitKind::LongestPrefix, 8));
    assert_eq!(cache.stats().resume_waits, 1);
    go_on.send(()).unwrap();
}

#[test]
fn lookups_and_loads_go_on_while_the_writer_rests_in_the_middle_of_a_save() {
    // The hook runs under the writer's lock after the check, and stops there.
    let (go_on, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let armed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (reached, at_gate) = mpsc::channel();
    let hook = {
        let armed = armed.clone();
        move |step| {
            if step == Step::Checked && armed.load(std::sync::atomic::Ordering::SeqCst) {
                reached.send(()).unwrap();
                let _ = gate.lock().unwrap().recv();
            }
            Ok(())
        }
    };
    let (_folder, path) = folder();
    let cache = open_with(&disk(&path, 1 << 20), Options { ..hooked(hook) });
    save(&cache, &tokens(0, 16), &payload(0, 1000)).unwrap();
    armed.store(true, std::sync::atomic::Ordering::SeqCst);
    let saving = {
        let cache = cache.clone();
        std::thread::spawn(move || save(&cache, &tokens(1, 16), &payload(1, 1000)).unwrap())
    };
    at_gate.recv_timeout(Duration::from_secs(20)).unwrap();
    // Each of these would hang if it took the writer's lock.
    for _ in 0..100 {
        assert_eq!(get(&cache, &tokens(0, 16)).unwrap(), payload(0, 1000));
        assert!(lookup(&cache, &tokens(1, 16)).is_none());
    }
    go_on.send(()).unwrap();
    assert_eq!(saving.join().unwrap(), Saved::Stored);
    assert_eq!(get(&cache, &tokens(1, 16)).unwrap(), payload(1, 1000));
}
