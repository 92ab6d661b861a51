//! The ledger beside a simple oracle, and its rules one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::error::ErrorKind;

fn hash(n: u8) -> ChunkHash {
    ChunkHash::new(&[n]).unwrap()
}

fn hashes(numbers: &[u8]) -> Vec<ChunkHash> {
    numbers.iter().map(|n| hash(*n)).collect()
}

fn gone() -> Error {
    Error::new(ErrorKind::Unavailable, "gone")
}

#[test]
fn a_loss_is_told_to_everybody_until_its_window_ends() {
    let (mut ledger, start) = (Ledger::<()>::default(), Instant::now());
    ledger.stored(hash(1), 10, start, 0);
    ledger.lose(hash(1), gone());
    let told = start + Duration::from_secs(3600);
    assert!(ledger.loss_error(told).is_some(), "a loss that nobody was told of does not pass");
    assert!(ledger.loss_error(told + LOSS_TOLD_FOR - Duration::from_millis(1)).is_some());
    assert!(ledger.loss_error(told + LOSS_TOLD_FOR).is_none());
}

#[test]
fn a_chunk_that_is_put_again_is_not_lost() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    ledger.lose(hash(1), gone());
    ledger.lose(hash(2), gone());
    assert!(ledger.loss_error(now).unwrap().to_string().contains("2 chunks are lost"));
    ledger.wait(hash(1), (), 10, false);
    assert!(ledger.loss_error(now).is_some());
    ledger.stored(hash(2), 10, now, 0);
    assert!(ledger.loss_error(now).is_none());
}

#[test]
fn a_chunk_that_was_refused_for_good_is_refused_again_for_the_window() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    ledger.wait(hash(1), (), 10, false);
    assert_eq!(ledger.refused(hash(1), Error::invalid("too large")), cost(10));
    assert!(ledger.admit(&hash(1), false, now).is_err());
    assert!(ledger.loss_error(now).is_some(), "another thread may have put it, and publish");
    assert!(ledger.admit(&hash(1), false, now).is_err());
    assert!(ledger.loss_error(now).is_none(), "who put it again knows that it is not there");
    assert!(ledger.admit(&hash(1), false, now + LOSS_TOLD_FOR / 2).is_err());
    assert!(matches!(ledger.admit(&hash(1), false, now + LOSS_TOLD_FOR), Ok(Admission::New)));
    assert!(ledger.loss_error(now + LOSS_TOLD_FOR).is_none());
}

#[test]
fn what_is_stored_during_a_commit_stays_for_the_next() {
    let (mut ledger, now) = (Ledger::<()>::default(), Instant::now());
    ledger.stored(hash(1), 10, now, 0);
    ledger.stored(hash(2), 10, now, 0);
    let unnamed = ledger.unnamed();
    assert_eq!((unnamed.hashes, unnamed.bytes), (hashes(&[1, 2]), 2 * LEAST_BYTES));
    ledger.stored(hash(2), 10, now, 0);
    ledger.stored(hash(3), 1 << 20, now, 0);
    // Whoever puts a chunk that is held counts on the next manifest: this one may have been published before the put.
    assert!(matches!(ledger.admit(&hash(1), false, now), Ok(Admission::Held)));
    ledger.named(unnamed.mark);
    assert!(ledger.unnamed().hashes == hashes(&[2, 3, 1]));
}

/// Two threads put a chunk: the one that asked first waits for the answer, the other one was told that it exists. A manifest that is being
/// published then counts on the chunk, and has flushed what waits already.
#[test]
fn a_chunk_that_another_thread_stored_since_it_was_admitted_is_named() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    assert!(matches!(ledger.admit(&hash(1), false, now), Ok(Admission::New)));
    ledger.stored(hash(1), 10, now, 0);
    assert_eq!(ledger.wait(hash(1), (), 10, false), cost(10));
    assert!(ledger.unnamed().hashes == hashes(&[1]) && ledger.waiting().is_empty());
    // It was put after what is published now.
    let unnamed = ledger.unnamed();
    ledger.stored(hash(2), 10, now, 0);
    ledger.wait(hash(1), (), 10, false);
    ledger.named(unnamed.mark);
    assert!(ledger.unnamed().hashes == hashes(&[2, 1]));
    // The bytes of one that is damaged are needed.
    assert_eq!(ledger.wait(hash(1), (), 10, true), 0);
    assert!(ledger.unnamed().hashes == hashes(&[2]) && ledger.waiting().len() == 1);
}

#[test]
fn what_was_stored_or_lost_before_it_waits_is_owed() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    ledger.wait(hash(1), (), 10, false);
    ledger.wait(hash(1), (), 10, false);
    assert!(!ledger.owes_what_waits());
    ledger.lose(hash(2), gone());
    ledger.wait(hash(2), (), 10, false);
    assert!(ledger.owes_what_waits());
    ledger.wait(hash(2), (), 10, true);
    assert!(ledger.owes_what_waits(), "put once more");
    ledger.stored(hash(2), 10, now, 0);
    assert!(!ledger.owes_what_waits());
    ledger.wait(hash(2), (), 10, true);
    assert!(ledger.owes_what_waits(), "it is damaged");
}

#[test]
fn data_of_a_lost_instance_is_lost_and_what_waits_is_not() {
    let (mut ledger, now) = (Ledger::default(), Instant::now());
    ledger.stored(hash(1), 10, now, 0);
    ledger.stored(hash(2), 10, now, 1);
    ledger.wait(hash(3), (), 10, false);
    ledger.lose_other_generations(1, &gone());
    assert!(ledger.lost().eq([&hash(1)]));
    assert_eq!(ledger.waiting().len(), 1);
}

#[test]
fn a_full_ledger_lets_go_of_its_oldest_half() {
    let (mut ledger, now) = (Ledger::<()>::default(), Instant::now());
    let nth = |n: u32| ChunkHash::new(&n.to_le_bytes()).unwrap();
    for n in 0..MAX_FRESH_CHUNKS as u32 {
        assert!(matches!(ledger.admit(&nth(n), false, now), Ok(Admission::New)));
        ledger.stored(nth(n), 1, now, 0);
    }
    let next = nth(MAX_FRESH_CHUNKS as u32);
    assert!(matches!(ledger.admit(&next, false, now), Ok(Admission::Full)));
    let oldest = ledger.oldest_half();
    assert_eq!((oldest.hashes.len(), oldest.hashes[0] == nth(0)), (MAX_FRESH_CHUNKS / 2, true));
    ledger.named(oldest.mark);
    assert!(matches!(ledger.admit(&next, false, now), Ok(Admission::New)));
}

#[derive(Clone, Copy, Debug)]
enum LedgerStep {
    Put(u8),
    Store(u8),
    Refuse(u8),
    Lose(u8),
    Tell,
    Commit,
    Sleep(u64),
}

fn step() -> impl Strategy<Value = LedgerStep> {
    let chunk = 0..6_u8;
    prop_oneof![
        3 => chunk.clone().prop_map(LedgerStep::Put),
        3 => chunk.clone().prop_map(LedgerStep::Store),
        1 => chunk.clone().prop_map(LedgerStep::Refuse),
        1 => chunk.prop_map(LedgerStep::Lose),
        2 => Just(LedgerStep::Tell),
        2 => Just(LedgerStep::Commit),
        1 => (0..3000_u64).prop_map(LedgerStep::Sleep),
    ]
}

struct Lost {
    told: Option<u64>,
    refused: bool,
    put_again: bool,
}

/// The rules, told as plainly as can be.
#[derive(Default)]
struct Oracle {
    waiting: BTreeSet<u8>,
    stored: Vec<u8>,
    lost: BTreeMap<u8, Lost>,
    now: u64,
}

impl Oracle {
    fn is_over(&self, lost: &Lost) -> bool {
        lost.told.is_some_and(|told| self.now - told >= LOSS_TOLD_FOR.as_millis() as u64)
    }

    /// Whether a put is refused.
    fn put(&mut self, chunk: u8) -> bool {
        if self.lost.get(&chunk).is_some_and(|lost| self.is_over(lost)) {
            self.lost.remove(&chunk);
        }
        let now = self.now;
        let Some(lost) = self.lost.get_mut(&chunk).filter(|lost| lost.refused) else { return false };
        (lost.told, lost.put_again) = (lost.told.or(Some(now)), lost.put_again || lost.told.is_some());
        true
    }

    fn lose(&mut self, chunk: u8, refused: bool) {
        self.waiting.remove(&chunk);
        self.stored.retain(|stored| *stored != chunk);
        self.lost.insert(chunk, Lost { told: None, refused, put_again: false });
    }

    fn loses(&mut self) -> bool {
        let now = self.now;
        let over: Vec<u8> = self.lost.iter().filter(|(_, lost)| self.is_over(lost)).map(|(n, _)| *n).collect();
        self.lost.retain(|n, _| !over.contains(n));
        let failing = self.lost.values().any(|lost| !lost.put_again);
        self.lost.values_mut().filter(|lost| !lost.put_again).for_each(|lost| lost.told = lost.told.or(Some(now)));
        failing
    }
}

proptest! {
    #[test]
    fn it_agrees_with_the_rules(steps in prop::collection::vec(step(), 0..200)) {
        let (mut ledger, mut oracle, start) = (Ledger::default(), Oracle::default(), Instant::now());
        for step in steps {
            let now = start + Duration::from_millis(oracle.now);
            match step {
                LedgerStep::Put(n) => {
                    let admitted = ledger.admit(&hash(n), false, now);
                    let refused = oracle.put(n);
                    prop_assert_eq!(admitted.is_err(), refused);
                    if refused {
                        continue;
                    }
                    let held = oracle.waiting.contains(&n) || oracle.stored.contains(&n);
                    prop_assert_eq!(matches!(admitted, Ok(Admission::Held)), held);
                    if oracle.stored.contains(&n) {
                        oracle.stored.retain(|stored| *stored != n);
                        oracle.stored.push(n);
                    }
                    if !held {
                        ledger.wait(hash(n), n, 10, false);
                        oracle.waiting.insert(n);
                        oracle.lost.remove(&n);
                    }
                }
                LedgerStep::Store(n) => {
                    let freed = ledger.stored(hash(n), 10, now, 0);
                    prop_assert_eq!(freed > 0, oracle.waiting.remove(&n));
                    oracle.stored.retain(|stored| *stored != n);
                    oracle.stored.push(n);
                    oracle.lost.remove(&n);
                }
                LedgerStep::Refuse(n) => {
                    ledger.refused(hash(n), gone());
                    oracle.lose(n, true);
                }
                LedgerStep::Lose(n) => {
                    ledger.lose(hash(n), gone());
                    oracle.lose(n, false);
                }
                LedgerStep::Tell => prop_assert_eq!(ledger.loss_error(now).is_some(), oracle.loses()),
                LedgerStep::Commit => {
                    let unnamed = ledger.unnamed();
                    prop_assert!(unnamed.hashes == hashes(&oracle.stored));
                    ledger.named(unnamed.mark);
                    oracle.stored.clear();
                }
                LedgerStep::Sleep(millis) => oracle.now += millis,
            }
            let waiting: BTreeSet<u8> = ledger.waiting().iter().map(|(_, n)| *n).collect();
            prop_assert_eq!(&waiting, &oracle.waiting);
            prop_assert_eq!(ledger.waiting_bytes(), waiting.len() * cost(10));
        }
    }
}

/// As a save does it: threads put, one flushes, one commits, each under the lock for as long as it asks or tells.
#[test]
fn a_ledger_that_threads_share_names_each_chunk_once() {
    const EACH: u32 = 300;
    let ledger: &Mutex<Ledger<Vec<u8>>> = &Mutex::default();
    let hash = |thread: u32, n: u32| ChunkHash::new(&(thread * EACH + n).to_be_bytes()).unwrap();
    let mut named = Vec::new();
    thread::scope(|scope| {
        for number in 0..3 {
            scope.spawn(move || {
                for n in 0..EACH {
                    ledger.lock().unwrap().wait(hash(number, n), vec![1; 8], 8, false);
                }
            });
        }
        while named.len() < 3 * EACH as usize {
            let waiting = ledger.lock().unwrap().waiting();
            for (hash, data) in waiting {
                assert_eq!(data, [1; 8]);
                ledger.lock().unwrap().stored(hash, data.len(), Instant::now(), 0);
            }
            let unnamed = ledger.lock().unwrap().unnamed();
            named.extend(unnamed.hashes);
            ledger.lock().unwrap().named(unnamed.mark);
            thread::yield_now();
        }
    });
    named.sort_by(|one, other| one.as_slice().cmp(other.as_slice()));
    named.dedup();
    assert_eq!(named.len(), 3 * EACH as usize);
}
