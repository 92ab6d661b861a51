//! Changes that may still be carried out, on a clock that the test turns.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use super::super::fake::{Fake, hashes};
use super::*;
use crate::backend::Bytes;
use crate::counters;
use crate::error::ErrorKind;
use crate::limits::{self, Limits};
use crate::process::{Clock, Time};

/// A time that passes when it is told to, and 50 milliseconds whenever somebody looks where `runs`.
struct Turned {
    passed: Mutex<Duration>,
    zero: Instant,
    runs: AtomicBool,
}

impl Time for Turned {
    fn now(&self) -> Instant {
        let mut passed = self.passed.lock().unwrap();
        if self.runs.load(Relaxed) {
            *passed += Duration::from_millis(50);
        }
        self.zero + *passed
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

struct HoldingStore {
    fake: Arc<Fake>,
    time: Arc<Turned>,
    clock: Clock,
    changes: Arc<Changes>,
    holding: Holding,
}

fn store(settles: bool) -> HoldingStore {
    let time = Arc::new(Turned { passed: Mutex::default(), zero: Instant::now(), runs: AtomicBool::new(false) });
    let clock = Clock::of(time.clone());
    let (fake, changes) = (Arc::new(Fake::default()), Arc::new(Changes::new(clock.clone())));
    let counters = counters::ProcessCounters::default().of("holding-test", None);
    let holding = Holding::new(fake.clone(), changes.clone(), settles, counters);
    HoldingStore { fake, time, clock, changes, holding }
}

impl HoldingStore {
    /// A call of so many milliseconds that begins now.
    fn until(&self, ms: u64) -> Until {
        Until::with(&self.clock, &Limits { deadline_ms: ms, ..Limits::default() }, None, None)
    }

    fn passes(&self, ms: u64) {
        *self.time.passed.lock().unwrap() += Duration::from_millis(ms);
    }

    /// Each change of the component from now on sends item 0 under a token, and fails so. Answers what it was told of former ones.
    fn loses(&self, token: &'static [u8], failure: Option<Error>) -> Arc<Mutex<Vec<Vec<u8>>>> {
        let told = Arc::new(Mutex::new(Vec::new()));
        let tokens = told.clone();
        self.fake.during_changes(move |until| *tokens.lock().unwrap() = until.change().unwrap().begin(&[0], token));
        self.fake.fail_calls(failure);
        told
    }

    fn manifest(&self, name: &str, until: &Until) -> Result<Committed, Error> {
        self.holding.commit(Some((name, b"m")), &[], 0, until)
    }
}

fn away() -> Option<Error> {
    Some(Error::new(ErrorKind::Unavailable, "the connection was lost"))
}

/// "An acknowledged change is not undone": the next one of the key is not made before the end of one whose end is unknown.
#[test]
fn the_next_change_of_a_key_waits_for_the_end_of_one_that_ended_unknown() {
    let store = store(false);
    store.loses(b"", away());
    assert!(store.manifest("m", &store.until(1000)).is_err());
    store.loses(b"", None);
    let calls = store.fake.calls();
    // Other keys, and reads of this one, go on.
    store.manifest("n", &store.until(100)).unwrap();
    store.holding.get_manifest("m", &store.until(100)).unwrap();
    assert_eq!(store.fake.calls(), calls + 2);
    // One whose own time is over before that is not made.
    store.time.runs.store(true, Relaxed);
    let refused = store.manifest("m", &store.until(100)).unwrap_err();
    assert!(refused.is_busy() && refused.message().starts_with("not done: a former change"), "{refused}");
    assert!(store.holding.delete_manifest("m", &store.until(100)).is_err());
    assert_eq!(store.fake.calls(), calls + 2, "nothing was asked");
    // One that has the time waits.
    let begun = store.clock.now();
    store.manifest("m", &store.until(5000)).unwrap();
    assert!(store.clock.since(begun) >= Duration::from_millis(500), "it was carried out before the end of the former");
    store.manifest("m", &store.until(100)).unwrap();
    assert!(!store.changes.holds());
}

#[test]
fn a_component_that_settles_is_told_of_former_changes_and_does_not_wait() {
    let store = store(true);
    store.loses(b"first", away());
    assert!(store.manifest("m", &store.until(1000)).is_err());
    let told = store.loses(b"second", away());
    assert!(store.manifest("m", &store.until(1000)).is_err());
    assert_eq!(*told.lock().unwrap(), [b"first".to_vec()]);
    let told = store.loses(b"third", None);
    store.manifest("other", &store.until(1000)).unwrap();
    assert!(told.lock().unwrap().is_empty(), "those are of another name");
    store.manifest("m", &store.until(1000)).unwrap();
    assert_eq!(*told.lock().unwrap(), [b"first".to_vec(), b"second".to_vec()]);
    // It was done, and so the former are settled.
    store.manifest("m", &store.until(1000)).unwrap();
    assert!(told.lock().unwrap().is_empty() && !store.changes.holds());
    // After their deadline nobody is told.
    store.loses(b"fourth", away());
    assert!(store.manifest("m", &store.until(1000)).is_err());
    store.passes(1000);
    let told = store.loses(b"fifth", None);
    store.manifest("m", &store.until(1000)).unwrap();
    assert!(told.lock().unwrap().is_empty());
}

#[test]
fn an_end_is_unknown_only_of_what_may_have_been_sent() {
    let refused = || Some(Error::new(ErrorKind::Denied, "read only"));
    let sending = |until: &Until| until.change().unwrap().sending();
    let held = |prepare: &dyn Fn(&HoldingStore)| {
        let store = store(false);
        prepare(&store);
        assert!(store.manifest("m", &store.until(1000)).is_err());
        store.changes.holds()
    };
    assert!(!held(&|store| store.fake.fail_calls(away())), "nothing was sent");
    // A component that does not say what it sends may have sent it, unless the storage system refused.
    let silent = |failure: fn() -> Option<Error>| {
        move |store: &HoldingStore| {
            store.fake.during_changes(sending);
            store.fake.fail_calls(failure());
        }
    };
    assert!(held(&silent(away)));
    assert!(!held(&silent(refused)) && !held(&silent(|| Some(Error::busy("later")))));
    // One that says it is believed.
    assert!(held(&|store| drop(store.loses(b"", refused()))));
    assert!(!held(&|store| {
        store.fake.during_changes(|until| {
            let change = until.change().unwrap();
            change.sending();
            change.begin(&[0, 7], b"");
            change.not_done(&[0, 9]);
        });
        store.fake.fail_calls(away());
    }));
    assert!(!held(&|store| {
        store.loses(b"", None);
        store.manifest("another", &store.until(1000)).unwrap();
        store.fake.during_changes(sending);
        store.fake.fail_calls(away());
    }));
    // A panic on the way says nothing, and what was absent published nothing.
    let store = store(false);
    store.fake.during_changes(|until| {
        until.change().unwrap().begin(&[0], b"");
        panic!("on purpose");
    });
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.manifest("m", &store.until(1000))));
    assert!(panicked.is_err() && store.changes.holds());
    store.fake.during_changes(|until| drop(until.change().unwrap().begin(&[0], b"")));
    let absent = store.holding.commit(Some(("n", b"m")), &hashes(1), 0, &store.until(1000));
    assert!(matches!(absent, Ok(Committed::Absent(_))));
    store.passes(1000);
    assert!(!store.changes.holds());
}

/// Of a batch each item is its own: what was answered is done, and what was not is asked again.
#[test]
fn a_batch_holds_what_failed_and_goes_as_far_as_nothing_holds_it() {
    let store = store(false);
    let key = |n: u8| ChunkHash::new(&[n; 9]).unwrap();
    let put = |keys: &[u8], until: &Until| {
        let chunks: Vec<ChunkToPut<'_>> = keys.iter().map(|n| (key(*n), Bytes::Borrowed(b"x"))).collect();
        store.holding.put(&chunks, false, until).map(|answers| answers.len())
    };
    store.fake.during_changes(|until| drop(until.change().unwrap().begin(&[1], b"")));
    store.fake.fail_calls(away());
    assert!(put(&[1, 2, 3], &store.until(1000)).is_err());
    store.fake.fail_calls(None);
    assert_eq!(put(&[1, 3, 2, 4], &store.until(1000)).unwrap(), 2, "as far as chunk 2, which was sent");
    assert_eq!(store.holding.delete(&[key(1), key(2)], &store.until(1000)).unwrap().len(), 1);
    store.passes(1000);
    // An answer that is short says that the rest was not sent.
    store.fake.most_answered.store(1, Relaxed);
    store.fake.during_changes(|until| drop(until.change().unwrap().begin(&[0], b"")));
    assert_eq!(put(&[1, 2, 3], &store.until(1000)).unwrap(), 1);
    assert!(!store.changes.holds());
}

/// A second change of a manifest waits for the first, as long as it may; that of another one does not.
#[test]
fn a_manifest_is_changed_by_one_call_at_a_time() {
    for settles in [false, true] {
        let store = store(settles);
        let take =
            |name: &str, until: &Until| store.changes.take(vec![ChangeKey::Manifest(name.into())], settles, until);
        let first = take("m", &store.until(1000)).unwrap();
        drop(take("other", &store.until(1000)).unwrap());
        store.time.runs.store(true, Relaxed);
        let refused = take("m", &store.until(200)).err().unwrap();
        assert!(refused.is_busy() && refused.to_string().contains("another call"), "{refused}");
        store.time.runs.store(false, Relaxed);
        std::thread::scope(|scope| {
            let second = scope.spawn(|| take("m", &store.until(1000)).is_ok());
            first.end(|_| End::Done, &store.until(1000));
            assert!(second.join().unwrap());
        });
    }
}

/// A put whose key is the hash of its content is no change, and waits for a removal of the same chunk.
#[test]
fn what_is_keyed_by_its_content_takes_no_place_and_waits_for_a_removal() {
    let store = store(true);
    let chunks = hashes(3);
    let put = |until: &Until, replace: bool| {
        let new: Vec<ChunkToPut<'_>> = chunks.iter().map(|hash| (*hash, Bytes::Borrowed(b"x"))).collect();
        store.holding.put(&new, replace, until).map(|answers| answers.len())
    };
    store.fake.during_changes(|until| assert!(until.change().is_none()));
    assert_eq!(put(&store.until(1000), false).unwrap(), 3);
    store.fake.during_changes(|until| drop(until.change().unwrap().begin(&[1], b"")));
    store.fake.fail_calls(away());
    assert!(store.holding.delete(&chunks, &store.until(1000)).is_err());
    store.fake.fail_calls(None);
    store.fake.during_changes(|until| assert!(until.change().is_none()));
    assert_eq!(put(&store.until(1000), false).unwrap(), 1, "what follows is asked for by another call");
    store.fake.during_changes(|_| ());
    store.time.runs.store(true, Relaxed);
    let begun = store.clock.now();
    let rest: Vec<ChunkToPut<'_>> = chunks[1..].iter().map(|hash| (*hash, Bytes::Borrowed(b"x"))).collect();
    assert_eq!(store.holding.put(&rest, false, &store.until(5000)).unwrap().len(), 2);
    assert!(store.clock.since(begun) >= Duration::from_millis(500));
    assert_eq!(put(&store.until(1000), true).unwrap(), 3, "a replacement is a change");
}

/// While no place is free nothing is changed, and everything is read.
#[test]
fn a_full_table_holds_up_changes_and_no_reads() {
    let store = store(true);
    let keys: Vec<ChunkHash> =
        (0..limits::MAX_CHANGES as u32).map(|n| ChunkHash::new(&n.to_le_bytes()).unwrap()).collect();
    let all: Vec<u32> = (0..limits::MAX_CHANGES_OF_A_CALL as u32).collect();
    store.fake.during_changes(move |until| drop(until.change().unwrap().begin(&all, &[7; 64])));
    store.fake.fail_calls(away());
    for keys in keys.chunks(limits::MAX_CHANGES_OF_A_CALL) {
        assert!(store.holding.delete(keys, &store.until(1000)).is_err());
    }
    store.fake.fail_calls(None);
    let calls = store.fake.calls();
    let refused = store.manifest("m", &store.until(500)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Exhausted, "{refused}");
    assert!(store.holding.put(&[(keys[0], Bytes::Borrowed(b"x"))], true, &store.until(500)).is_err());
    assert_eq!(store.fake.calls(), calls);
    store.holding.get_manifest("m", &store.until(500)).unwrap();
    store.holding.get(&keys[..1], &mut [], &store.until(500)).unwrap();
    store.fake.during_changes(|_| ());
    store.holding.put(&[(hashes(1)[0], Bytes::Borrowed(b"x"))], false, &store.until(500)).unwrap();
    store.passes(1000);
    store.manifest("m", &store.until(500)).unwrap();
    assert!(!store.changes.holds());
    // A call has no more places than its share, and answers for as many.
    store.fake.during_changes(|until| assert_eq!(until.change().unwrap().len(), limits::MAX_CHANGES_OF_A_CALL));
    assert!(store.holding.delete(&keys, &store.until(1000)).is_ok());
}

/// A deadline that was told holds, also if the call ended earlier because a server hung.
#[test]
fn a_change_is_held_until_the_latest_deadline_that_was_told() {
    let store = store(false);
    let limits = Limits { deadline_ms: 10_000, patience_ms: 100, ..Limits::default() };
    let until = Until::with(&store.clock, &limits, None, None);
    store.fake.during_changes(|until| {
        until.change().unwrap().begin(&[0], b"");
        until.note_timeout(Duration::from_millis(100));
    });
    store.fake.fail_calls(away());
    assert!(store.manifest("m", &until).is_err());
    store.passes(9999);
    assert!(store.changes.holds());
    store.passes(1);
    assert!(!store.changes.holds());
}
