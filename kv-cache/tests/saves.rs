//! Saves: the gates of each reason, the bounded queue, what sync saves promise, and the end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use common::*;
use kv_cache::row::SaveReason;
use kv_cache::{Cache, ErrorKind, Gate, Options, Reason, Save, Saved, Step};

fn save_for(cache: &Cache, reason: Reason, n: u32, length: usize) -> kv_cache::Result<Saved> {
    cache.save(Save::new(&IDENTITY, &tokens(n, length), b"state").reason(reason))
}

#[test]
fn gates_at_their_edges() {
    let cache = open(&ram(1 << 20));
    let cold = |prompt_tokens, length| save_for(&cache, Reason::Cold { prompt_tokens }, 0, length);
    assert_eq!(cold(9, 8).unwrap(), Saved::Gated(Gate::TooShort), "9 less 2 is no 8");
    assert_eq!(cold(10, 8).unwrap(), Saved::Queued);
    assert_eq!(cold(100, 96).unwrap(), Saved::Queued);
    assert_eq!(cold(101, 96).unwrap(), Saved::Gated(Gate::TooLong));
    let error = cold(26, 16).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("keeps 24 of them, not 16"), "{error}");
    let continued = |last_saved, length| save_for(&cache, Reason::Continued { last_saved }, 1, length).unwrap();
    assert_eq!(continued(0, 3), Saved::Gated(Gate::TooShort));
    assert_eq!(continued(0, 7), Saved::Gated(Gate::TooSoon));
    assert_eq!(continued(0, 8), Saved::Queued);
    assert_eq!(continued(9, 16), Saved::Gated(Gate::TooSoon));
    assert_eq!(save_for(&cache, Reason::Finish, 2, 3).unwrap(), Saved::Gated(Gate::TooShort));
    assert_eq!(save_for(&cache, Reason::Finish, 2, 4).unwrap(), Saved::Queued);
    // Those whose holder goes away ask no gate.
    assert_eq!(save_for(&cache, Reason::Evict, 3, 1).unwrap(), Saved::Stored);
    assert_eq!(save_for(&cache, Reason::Shutdown, 4, 1).unwrap(), Saved::Stored);
    assert!(cache.flush(Duration::from_secs(20)));
    let stats = cache.stats();
    assert_eq!(stats.saves_gated, 6);
    let saves = SaveReason::ALL.map(|reason| stats.saves(reason));
    assert_eq!(saves, [0, 2, 1, 1, 1, 1], "unknown, cold, continued, evict, shutdown, finish");
}

#[test]
fn what_cannot_be_a_row_is_refused() {
    let cache = open(&ram(1 << 20));
    let refused = |tokens: &[u32], payload: &[u8]| {
        let error = cache.save(Save::new(&IDENTITY, tokens, payload)).unwrap_err();
        (error.kind() == ErrorKind::InvalidArgument).then(|| error.to_string()).unwrap()
    };
    assert!(refused(&[], b"x").contains("1 to 16777216 tokens"));
    assert!(refused(&[1], b"").contains("empty"));
    assert!(refused(&vec![0; (1 << 24) + 1], b"x").contains("not 16777217"));
    let error = save_to(&cache, kv_cache::TierKind::Disk, &[1], b"x").unwrap_err();
    assert!(error.to_string().contains("no tier"), "{error}");
}

#[test]
fn a_row_that_is_there_or_on_its_way_is_known() {
    let (cache, go_on) = stopped(&ram(1 << 20), Step::Reserved);
    assert_eq!(save_for(&cache, Reason::Finish, 0, 8).unwrap(), Saved::Queued);
    assert_eq!(save_for(&cache, Reason::Finish, 0, 8).unwrap(), Saved::Known, "on its way");
    go_on.send(()).unwrap();
    assert!(cache.flush(Duration::from_secs(20)));
    for reason in [Reason::Finish, Reason::Evict, Reason::Shutdown] {
        assert_eq!(save_for(&cache, reason, 0, 8).unwrap(), Saved::Known, "{reason:?}");
    }
}

fn until_one_runs(cache: &Cache) {
    while cache.stats().tiers[0].reserved == 0 {
        std::thread::yield_now();
    }
}

#[test]
fn the_queue_is_bounded_and_what_it_drops_is_counted() {
    let (cache, go_on) = stopped(&(ram(1 << 20) + "[queue]\nsaves = 2\n"), Step::Reserved);
    assert_eq!(save_for(&cache, Reason::Finish, 0, 8).unwrap(), Saved::Queued);
    until_one_runs(&cache);
    let next: Vec<Saved> = (1..5).map(|n| save_for(&cache, Reason::Finish, n, 8).unwrap()).collect();
    assert_eq!(next, [Saved::Queued, Saved::Queued, Saved::Dropped, Saved::Dropped]);
    assert_eq!((cache.stats().saves_dropped, cache.stats().tiers[0].queued), (2, 3));
    drop(go_on);
    assert!(cache.flush(Duration::from_secs(20)));
    let there: Vec<bool> = (0..5).map(|n| lookup(&cache, &tokens(n, 8)).is_some()).collect();
    assert_eq!(there, [true, true, true, false, false]);
    // What was dropped is not on its way for ever.
    assert_eq!(save_for(&cache, Reason::Finish, 4, 8).unwrap(), Saved::Queued);
}

#[test]
fn the_queue_is_bounded_by_bytes_too() {
    let (cache, go_on) = stopped(&(ram(1 << 20) + "[queue]\nbytes = 2100\n"), Step::Reserved);
    let save = |n| cache.save(Save::new(&IDENTITY, &tokens(n, 4), payload(n, 1000)).reason(Reason::Finish)).unwrap();
    assert_eq!(save(0), Saved::Queued);
    until_one_runs(&cache);
    assert_eq!([save(1), save(2), save(3)], [Saved::Queued, Saved::Queued, Saved::Dropped]);
    drop(go_on);
}

#[test]
fn a_full_lane_is_no_other_lanes_trouble() {
    let (_folder, path) = folder();
    let config = format!("{}[ram]\nbudget = 100000\n", disk(&path, 1 << 20));
    let (cache, go_on) = stopped(&config, Step::Created);
    let finish =
        |n, tier| cache.save(Save::new(&IDENTITY, &tokens(n, 8), b"x").reason(Reason::Finish).tier(tier)).unwrap();
    assert_eq!(finish(0, kv_cache::TierKind::Disk), Saved::Queued);
    assert_eq!(finish(1, kv_cache::TierKind::Ram), Saved::Queued);
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while lookup(&cache, &tokens(1, 8)).is_none() {
        assert!(std::time::Instant::now() < deadline, "memory waits for the disk");
        std::thread::yield_now();
    }
    assert!(lookup(&cache, &tokens(0, 8)).is_none());
    drop(go_on);
}

#[test]
fn a_shutdown_save_comes_first_and_takes_no_longer_than_it_may() {
    let config = ram(1 << 20).replace("[policy]\n", "[policy]\nevict_save_timeout_ms = 50\n");
    let (cache, go_on) = stopped(&config, Step::Reserved);
    assert_eq!(save_for(&cache, Reason::Finish, 0, 8).unwrap(), Saved::Queued);
    until_one_runs(&cache);
    assert_eq!(save_for(&cache, Reason::Finish, 1, 8).unwrap(), Saved::Queued);
    let error = save_for(&cache, Reason::Shutdown, 2, 8).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.to_string().contains("not stored after 50 ms; it may still be"), "{error}");
    go_on.send(()).unwrap();
    go_on.send(()).unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while lookup(&cache, &tokens(2, 8)).is_none() {
        assert!(std::time::Instant::now() < deadline, "it was stored before the others");
        std::thread::yield_now();
    }
    assert!(lookup(&cache, &tokens(1, 8)).is_none());
    drop(go_on);
}

#[test]
fn closing_waits_for_the_queue_and_drops_what_takes_too_long() {
    let (_folder, path) = folder();
    {
        let cache = open(&disk(&path, 1 << 20));
        for n in 0..20 {
            assert_eq!(save_for(&cache, Reason::Finish, n, 8).unwrap(), Saved::Queued);
        }
    }
    let cache = open(&disk(&path, 1 << 20));
    assert_eq!(cache.stats().tiers[0].rows, 20, "the drop waited for all of them");
    let (cache, go_on) = stopped(&ram(1 << 20), Step::Reserved);
    for n in 0..3 {
        save_for(&cache, Reason::Finish, n, 8).unwrap();
    }
    until_one_runs(&cache);
    assert_eq!(cache.shutdown(Duration::from_millis(20)), 2, "one is being written, two are dropped");
    assert_eq!(cache.stats().saves_dropped, 2);
    drop(go_on);
}

#[test]
fn two_sync_saves_of_one_row_end_with_one_stored() {
    let (_folder, path) = folder();
    let cache = open(&disk(&path, 1 << 24));
    for round in 0..20 {
        let results: Vec<Saved> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| scope.spawn(|| save(&cache, &tokens(round, 8), &payload(round, 50_000)).unwrap()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let stored = results.iter().filter(|saved| **saved == Saved::Stored).count();
        let known = results.iter().filter(|saved| **saved == Saved::Known).count();
        assert_eq!((stored, known), (1, 3), "{results:?}");
        assert_eq!(get(&cache, &tokens(round, 8)).unwrap(), payload(round, 50_000));
    }
    assert_eq!(names(&path).len(), 20, "and no temporary file");
}

/// A cache of a reservation of a second, whose first `slow` writes take that long.
fn slow(slow: usize) -> Cache {
    let (clock, left) = (Arc::new(ManualClock::default()), AtomicUsize::new(slow));
    let hook = {
        let clock = clock.clone();
        move |step| {
            if step == Step::Reserved && left.try_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                clock.advance(Duration::from_millis(1000));
            }
            Ok(())
        }
    };
    let config = ram(1 << 20).replace("[policy]\n", "[policy]\nreservation_ms = 1000\n");
    open_with(&config, Options { clock: Some(clock), ..hooked(hook) })
}

#[test]
fn a_save_that_takes_longer_than_its_reservation_is_tried_once_more_and_never_said_to_be_there() {
    for reason in [Reason::Evict, Reason::Shutdown] {
        let cache = slow(1);
        assert_eq!(save_for(&cache, reason, 0, 8).unwrap(), Saved::Stored, "{reason:?}");
        assert_eq!(get(&cache, &tokens(0, 8)).unwrap(), b"state");
        let cache = slow(usize::MAX);
        let error = save_for(&cache, reason, 0, 8).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Timeout, "{reason:?}");
        assert!(error.to_string().contains("longer than reservation_ms, twice"), "{error}");
        assert!(lookup(&cache, &tokens(0, 8)).is_none());
        let stats = cache.stats();
        assert_eq!((stats.saves_abandoned, stats.saves_failed, stats.saves_known), (2, 1, 0), "{reason:?}");
    }
}
