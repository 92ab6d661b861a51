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
    assert!(error.to_string().contains("not stored after 50 ms (evict_save_timeout_ms)"), "{error}");
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

#[test]
fn a_save_larger_than_its_budget_is_refused_at_once_whatever_its_reason() {
    let (_folder, path) = folder();
    for config in [ram(5000), disk(&path, 5000)] {
        let cache = open(&config);
        let tokens = tokens(0, 8);
        let reasons = [Reason::Finish, Reason::Continued { last_saved: 0 }, Reason::Evict, Reason::Shutdown];
        for reason in reasons {
            let error = cache.save(Save::new(&IDENTITY, &tokens, vec![1; 5000]).reason(reason)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Full, "{reason:?}: {error}");
            assert!(error.to_string().contains("larger than the budget"), "{error}");
        }
        assert_eq!((cache.stats().saves_failed, cache.stats().tiers[0].queued), (4, 0));
        // To the byte, for a file with everything in it.
        let long = "é".repeat(40_000);
        let large = Save { prompt: &long, detail: &long, ..Save::new(&IDENTITY, &tokens, b"x") };
        if config.contains("[disk]") {
            let error = cache.save(large.reason(Reason::Finish)).unwrap_err().to_string();
            let roomy = open(&disk(&path.join("roomy"), 1 << 20));
            let large = Save { prompt: &long, detail: &long, ..Save::new(&IDENTITY, &tokens, b"x") };
            roomy.save(large).unwrap();
            assert!(error.contains(&format!("a row of {} bytes", roomy.stats().tiers[0].bytes)), "{error}");
        }
    }
}

/// Let `fsync` fail in this thread, which no file system does on request.
fn let_fsync_fail() {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        // The number of the call, at the beginning of `seccomp_data`.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_fsync as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EIO as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid for the call, and binds this thread alone.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program), 0);
    }
}

#[test]
fn what_its_holder_lets_go_of_is_synchronised_name_and_all() {
    let (_folder, path) = folder();
    {
        // A row that was queued, whose name nobody synchronised.
        let cache = open(&disk(&path, 1 << 20));
        assert_eq!(save_for(&cache, Reason::Finish, 0, 8).unwrap(), Saved::Queued);
    }
    let cache = open(&disk(&path, 1 << 20));
    let failing = cache.clone();
    std::thread::spawn(move || {
        let_fsync_fail();
        for n in [0, 1] {
            let error = save_for(&failing, Reason::Evict, n, 8).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io);
            assert!(error.to_string().contains("cannot synchronise"), "{error}");
        }
        assert_eq!(save_for(&failing, Reason::Finish, 2, 8).unwrap(), Saved::Queued, "asks for no such thing");
    })
    .join()
    .unwrap();
    assert!(cache.flush(Duration::from_secs(20)));
    // Those rows are there; that they last is made sure of by the next save that asks for it.
    for n in [0, 1, 2] {
        assert_eq!(get(&cache, &tokens(n, 8)).unwrap(), b"state");
        assert_eq!(save_for(&cache, Reason::Evict, n, 8).unwrap(), Saved::Known);
    }
}

/// Or a power cut would take the directory with all of its rows.
#[test]
fn a_directory_that_is_made_is_synchronised_by_name() {
    let (_folder, path) = folder();
    let deep = path.join("a/b");
    std::thread::spawn(move || {
        let config = |path: &std::path::Path| kv_cache::Config::parse(&disk(path, 1 << 20)).unwrap();
        std::fs::create_dir_all(&path).unwrap();
        let_fsync_fail();
        let error = Cache::open(config(&deep)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.to_string().contains("cannot synchronise"), "{error}");
        Cache::open(config(&path)).unwrap();
    })
    .join()
    .unwrap();
}

#[test]
fn saves_whose_holder_goes_away_synchronise_the_directory_and_others_do_not() {
    let (_folder, path) = folder();
    let synced = Arc::new(AtomicUsize::new(0));
    let hook = {
        let synced = synced.clone();
        move |step| {
            synced.fetch_add(usize::from(step == Step::Durable), SeqCst);
            Ok(())
        }
    };
    let cache = open_with(&disk(&path, 1 << 20), hooked(hook));
    let after = |reason, n| {
        save_for(&cache, reason, n, 8).unwrap();
        assert!(cache.flush(Duration::from_secs(20)));
        synced.load(SeqCst)
    };
    assert_eq!(after(Reason::Finish, 0), 0);
    assert_eq!(after(Reason::Evict, 1), 1);
    assert_eq!(after(Reason::Shutdown, 2), 2);
    assert_eq!(after(Reason::Evict, 0), 2, "the name of this one was synchronised with the others");
    assert_eq!(after(Reason::Finish, 3), 2);
    assert_eq!(after(Reason::Shutdown, 3), 3, "it was there, but might not have lasted");
}

/// Runs a call in a thread of its own, which has to return although a save is stalled.
fn comes_back<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    told.recv_timeout(Duration::from_secs(10)).unwrap_or_else(|_| panic!("{what} waits for a stalled save"))
}

#[test]
fn neither_stats_nor_shutdown_waits_for_a_row_that_is_being_linked() {
    for at in [Step::Checked, Step::Linked] {
        let (_folder, path) = folder();
        let (reached, at_gate) = std::sync::mpsc::channel();
        let (go_on, gate) = std::sync::mpsc::channel::<()>();
        let gate = std::sync::Mutex::new(gate);
        let hook = move |step| {
            if step == at {
                let _ = reached.send(());
                let _ = gate.lock().unwrap().recv();
            }
            Ok(())
        };
        let config = disk(&path, 1 << 20).replace("[policy]\n", "[policy]\nevict_save_timeout_ms = 100\n");
        let cache = open_with(&config, hooked(hook));
        save_for(&cache, Reason::Finish, 0, 8).unwrap();
        at_gate.recv_timeout(Duration::from_secs(20)).unwrap();
        save_for(&cache, Reason::Finish, 1, 8).unwrap();
        let (one, other) = (cache.clone(), cache.clone());
        let tier = comes_back("stats", move || one.stats().tiers[0].clone());
        assert_eq!((tier.rows, tier.queued), (0, 2), "{at:?}");
        assert!(tier.reserved > 0);
        assert_eq!(comes_back("shutdown", move || other.shutdown(Duration::from_millis(30))), 1, "{at:?}");
        comes_back("the end", move || drop(cache));
        drop(go_on);
    }
}
