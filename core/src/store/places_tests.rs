//! The places of stores, over fakes.

use super::*;
use crate::limits::{IDLE_STORE_BYTES, IDLE_STORE_FOR, Limits, MAX_IDLE_STORES};
use crate::threads::Threads;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

struct FakeStore {
    bytes: u64,
    torn_down: Option<Sender<thread::ThreadId>>,
}

/// Of so many bytes on, it is one that keeps a directory open.
const OF_A_DIRECTORY: u64 = 1 << 40;

impl SharedStore for FakeStore {
    fn is_current(&self) -> bool {
        true
    }

    fn bytes(&self) -> u64 {
        self.bytes % OF_A_DIRECTORY
    }

    fn kept_for(&self) -> Duration {
        if self.bytes < OF_A_DIRECTORY { IDLE_STORE_FOR } else { limits::IDLE_DIRECTORY_FOR }
    }
}

impl Drop for FakeStore {
    fn drop(&mut self) {
        if let Some(torn_down) = &self.torn_down {
            let _ = torn_down.send(thread::current().id());
        }
    }
}

type FakeStores = StoreTable<u32, FakeStore>;

fn fakes() -> FakeStores {
    let (clock, spawn) = Default::default();
    let threads = Threads::new(&clock, &spawn);
    StoreTable::new(IDLE_STORE_BYTES, clock, threads.helpers)
}

fn open(fakes: &FakeStores, key: u32, fake: FakeStore) -> Arc<FakeStore> {
    let place = fakes.place(&key, || Breaker::new("x", &Limits::default(), &Clock::default()));
    match place.turn(Instant::now()).unwrap() {
        OpenTurn::Open(there) => there,
        OpenTurn::Mine(opener) => {
            let opened = Arc::new(fake);
            opener.opened(opened.clone());
            opened
        }
    }
}

fn small() -> FakeStore {
    FakeStore { bytes: 1, torn_down: None }
}

#[test]
fn what_is_idle_for_longest_goes_first_and_no_more_than_must() {
    let now = Instant::now() + 2 * IDLE_STORE_FOR;
    let idle = |ages: &[(u64, u64)]| -> Vec<IdleStore<u64>> {
        let store = |(age, bytes): &(u64, u64)| {
            let (since, kept_for) = (now - Duration::from_secs(*age), IDLE_STORE_FOR);
            IdleStore { key: *age, since, kept_for, bytes: *bytes }
        };
        ages.iter().map(store).collect()
    };
    let long = IDLE_STORE_FOR.as_secs();
    assert!(over(idle(&[(1, 5), (2, 5)]), 0, IDLE_STORE_BYTES, now).is_empty());
    assert_eq!(over(idle(&[(1, 5), (3, 5), (2, 5)]), 2, IDLE_STORE_BYTES, now), [3, 2]);
    assert_eq!(over(idle(&[(1, 5), (long, 5), (long + 1, 5)]), 0, IDLE_STORE_BYTES, now), [long + 1, long]);
    let half = IDLE_STORE_BYTES / 2;
    assert_eq!(over(idle(&[(1, half), (2, half), (3, half)]), 0, IDLE_STORE_BYTES, now), [3]);
    assert_eq!(over(idle(&[(1, IDLE_STORE_BYTES + 1)]), 0, IDLE_STORE_BYTES, now), [1]);
}

#[test]
fn an_idle_store_stays_within_the_bounds_and_is_torn_down_elsewhere() {
    let fakes = Arc::new(fakes());
    let (torn_down, waits) = channel();
    let large = |torn_down| FakeStore { bytes: IDLE_STORE_BYTES, torn_down };
    let kept = open(&fakes, 0, large(Some(torn_down.clone())));
    drop(open(&fakes, 1, small()));
    // It has a handle, and what has none is small.
    assert_eq!(fakes.sweep(), Some(IDLE_STORE_FOR));
    drop(kept);
    drop(open(&fakes, 2, large(Some(torn_down))));
    fakes.closed(3 * IDLE_STORE_BYTES);
    let by = waits.recv_timeout(Duration::from_secs(60)).expect("nothing is torn down");
    assert_ne!(by, thread::current().id());
    // What comes to an open place is what was there.
    let (none, _) = channel();
    assert!(open(&fakes, 3, FakeStore { bytes: 7, torn_down: Some(none) }).bytes == 7);
    assert!(open(&fakes, 3, small()).bytes == 7);
}

#[test]
fn a_store_that_keeps_a_directory_open_is_closed_soon_and_others_stay() {
    let fakes = Arc::new(fakes());
    let (torn_down, waits) = channel();
    drop(open(&fakes, 0, small()));
    fakes.closed(0);
    let fake = || FakeStore { bytes: OF_A_DIRECTORY, torn_down: Some(torn_down.clone()) };
    drop(open(&fakes, 1, fake()));
    let used = open(&fakes, 2, fake());
    fakes.closed(0);
    // No other open or close comes.
    waits.recv_timeout(limits::IDLE_STORE_FOR / 4).expect("nothing is torn down");
    assert!(fakes.entries.lock().contains_key(&0) && fakes.entries.lock().contains_key(&2));
    drop(used);
    fakes.closed(0);
    waits.recv_timeout(limits::IDLE_STORE_FOR / 4).expect("the next is not torn down");
}

#[test]
fn room_is_made_by_idle_stores_and_by_no_others() {
    let fakes = Arc::new(fakes());
    let (torn_down, waits) = channel();
    let fake = || FakeStore { bytes: 5, torn_down: Some(torn_down.clone()) };
    let used = open(&fakes, 0, fake());
    (1..4).for_each(|key| drop(open(&fakes, key, fake())));
    let soon = || Instant::now() + Duration::from_secs(60);
    assert!(!fakes.make_room(|key| *key == 0, soon()), "it has a handle");
    assert!(fakes.make_room(|key| *key < 3, soon()));
    // Here, and before it returns.
    let by: Vec<_> = waits.try_iter().collect();
    assert_eq!(by, [thread::current().id(); 2]);
    assert!(!fakes.make_room(|key| *key < 3, soon()));
    // What another thread is about to tear down is waited for.
    let place = Arc::into_inner(fakes.entries.lock().remove(&3).unwrap().place).unwrap();
    fakes.tear_down(vec![Arc::new(place)]);
    let waited = fakes.make_room(|_| false, soon());
    assert!(waits.try_recv().is_ok() && (waited || *fakes.leaving.groups.lock() == 0));
    drop(used);
}

#[test]
fn stores_without_a_handle_are_bounded_in_number() {
    let fakes = fakes();
    for key in 0..3 * MAX_IDLE_STORES as u32 {
        drop(open(&fakes, key, small()));
    }
    assert_eq!(fakes.entries.lock().len(), MAX_IDLE_STORES);
    let held: Vec<_> = (1000..1000 + 2 * MAX_IDLE_STORES as u32).map(|key| open(&fakes, key, small())).collect();
    assert_eq!(fakes.entries.lock().len(), held.len());
}

#[test]
fn who_waits_for_another_open_waits_no_longer_than_its_deadline() {
    let fakes = fakes();
    let place = fakes.place(&1, || Breaker::new("x", &Limits::default(), &Clock::default()));
    let Ok(OpenTurn::Mine(opener)) = place.turn(Instant::now()) else { panic!("nobody else opens it") };
    let late =
        |turn: Result<OpenTurn<'_, FakeStore>, Error>| turn.err().map(|error| error.to_string()).unwrap_or_default();
    thread::scope(|scope| {
        let waiting: Vec<_> =
            (0..4).map(|_| scope.spawn(|| late(place.turn(Instant::now() + Duration::from_millis(20))))).collect();
        for waits in waiting {
            assert!(waits.join().unwrap().contains("until the deadline"));
        }
        // One that failed is the next one's, and one that is open is everybody's.
        let next =
            scope.spawn(|| matches!(place.turn(Instant::now() + Duration::from_secs(60)), Ok(OpenTurn::Mine(_))));
        drop(opener);
        assert!(next.join().unwrap());
    });
    drop(open(&fakes, 1, small()));
    assert!(matches!(place.turn(Instant::now()), Ok(OpenTurn::Open(_))) && place.current().is_some());
}
