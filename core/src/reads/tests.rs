//! Who waits for whom, and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use kv_platform::sync::Mutex;

use super::range::cut;
use super::*;
use crate::config::Direct;
use crate::error::{Error, ErrorKind};
use crate::limits::Limits;
use crate::until::Until;

const LONG: Duration = Duration::from_secs(60);

fn readers(spawn: Spawn) -> Arc<Readers> {
    let clock = Clock::default();
    let helpers = Arc::new(Helpers::new(1, 0, clock.clone(), Spawn::default()));
    Readers::new(&clock, &spawn, &helpers)
}

fn within(deadline_ms: u64) -> Until {
    Until::new(&Limits { deadline_ms, ..Limits::default() })
}

/// A read that a disk answers when `held` is dropped.
fn stuck(
    begun: &Sender<()>,
    held: &Arc<Mutex<Receiver<()>>>,
) -> impl FnOnce(&Buffers) -> Result<usize, Error> + Send + 'static {
    let (begun, held) = (begun.clone(), held.clone());
    move |buffers| {
        let _buffer = buffers.take(1)?;
        begun.send(()).unwrap();
        let _ = held.lock().recv();
        Ok(0)
    }
}

#[test]
fn all_that_is_begun_comes_once() {
    let (readers, whose) = (readers(Spawn::default()), Whose::default());
    let mut flight = Flight::new(&readers, &whose);
    assert!(flight.next(None).unwrap().is_none());
    (0..300).for_each(|index| flight.start((index, 7), move |_| Ok(index * 2)));
    let mut came = Vec::new();
    while let Some(Arrived { tag: (index, number), outcome, permit: _permit }) =
        flight.next(Some(&within(60_000))).unwrap()
    {
        assert_eq!((outcome.unwrap(), number), (index * 2, 7));
        came.push(index);
    }
    came.sort_unstable();
    assert_eq!(came, (0..300).collect::<Vec<_>>());
    assert!(readers.places().may_start(&Whose::default()));
}

#[test]
fn a_read_that_panics_has_failed_and_the_others_come() {
    let (readers, whose) = (readers(Spawn::default()), Whose::default());
    let mut flight = Flight::new(&readers, &whose);
    (0..4).for_each(|index| {
        flight.start((index, 0), move |_| if index == 2 { panic!("on purpose") } else { Ok(()) });
    });
    let mut failed = Vec::new();
    while let Some(arrived) = flight.next(Some(&within(60_000))).unwrap() {
        failed.extend(arrived.outcome.err().map(|_| arrived.tag.0));
    }
    assert_eq!(failed, [2]);
}

#[test]
fn a_disk_that_never_answers_holds_no_caller_past_its_deadline() {
    let (readers, whose) = (readers(Spawn::default()), Whose::default());
    let (begun, begins) = channel();
    let (go, held) = channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let mut flight = Flight::new(&readers, &whose);
    (0..3).for_each(|index| flight.start((index, 0), stuck(&begun, &held)));
    flight.start((3, 0), |_| Ok(3));
    let until = within(300);
    let first = flight.next(Some(&until)).unwrap().unwrap();
    assert_eq!(first.outcome.unwrap(), 3, "what answers is there");
    let late = flight.next(Some(&until)).map(drop).unwrap_err();
    assert!(late.kind() == ErrorKind::Unavailable && late.to_string().contains("deadline_ms"), "{late}");
    assert!(until.deadline() <= Instant::now() && until.deadline().elapsed() < LONG / 2);
    (0..3).for_each(|_| begins.recv_timeout(LONG).unwrap());
    drop((first.permit, flight));
    // The kernel still has the buffers, and gives them back when it answers.
    assert!(readers.buffers.bytes() > 0 && readers.places().running() == 3);
    drop(go);
    let waited = Instant::now();
    while readers.places().running() > 0 {
        assert!(waited.elapsed() < LONG, "the places are not given back");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_call_that_was_cancelled_ends_soon() {
    let (readers, whose) = (readers(Spawn::default()), Whose::default());
    let ((begun, _begins), (_go, held)) = (channel(), channel::<()>());
    let mut flight = Flight::new(&readers, &whose);
    flight.start((0, 0), stuck(&begun, &Arc::new(Mutex::new(held))));
    let flag = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let until = Until::with(&Clock::default(), &Limits::default(), None, Some(flag.clone()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(30));
            flag.store(true, SeqCst);
        });
        let ended = flight.next(Some(&until)).map(drop).unwrap_err();
        assert_eq!(ended.kind(), ErrorKind::Cancelled);
    });
}

#[test]
fn an_owner_whose_disk_hangs_leaves_depth_to_others() {
    let readers = readers(Spawn::default());
    let (offender, neighbour) = (Whose::default(), Whose::default());
    let ((begun, begins), (go, held)) = (channel(), channel::<()>());
    let held = Arc::new(Mutex::new(held));
    let mut stuck_flight = Flight::new(&readers, &offender);
    (0..200).for_each(|index| stuck_flight.start((index, 0), stuck(&begun, &held)));
    (0..limits::MAX_OWNER_READERS).for_each(|_| begins.recv_timeout(LONG).unwrap());
    assert_eq!(readers.places().running(), MAX_OWNER_READS, "no more of its reads have a place");
    // As many at once as there are threads left for it.
    let at_once = limits::MAX_READERS - limits::MAX_OWNER_READERS;
    let barrier = Arc::new(std::sync::Barrier::new(at_once));
    let mut flight = Flight::new(&readers, &neighbour);
    (0..at_once).for_each(|index| {
        let barrier = barrier.clone();
        flight.start((index, 0), move |_| {
            barrier.wait();
            Ok(())
        });
    });
    let until = within(60_000);
    (0..at_once).for_each(|_| flight.next(Some(&until)).unwrap().unwrap().outcome.unwrap());
    drop(go);
}

#[test]
fn what_nobody_waits_for_any_more_is_not_read() {
    // One thread at a time, which the first read holds.
    let readers = readers(Spawn::default());
    let whose = Whose::default();
    let ((begun, begins), (go, held)) = (channel(), channel::<()>());
    let held = Arc::new(Mutex::new(held));
    let made = Arc::new(AtomicUsize::new(0));
    let mut flight = Flight::new(&readers, &whose);
    (0..limits::MAX_OWNER_READERS).for_each(|index| flight.start((index, 0), stuck(&begun, &held)));
    (0..limits::MAX_OWNER_READERS).for_each(|_| begins.recv_timeout(LONG).unwrap());
    (0..5).for_each(|index| {
        let made = made.clone();
        flight.start((index, 1), move |_| Ok(made.fetch_add(1, SeqCst)));
    });
    drop(flight);
    drop(go);
    let waited = Instant::now();
    while readers.places().running() > 0 {
        assert!(waited.elapsed() < LONG, "the places are not given back");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(made.load(SeqCst), 0);
}

#[test]
fn where_no_thread_can_be_had_the_caller_reads() {
    let (readers, whose) = (readers(Spawn::of(|_, _| false)), Whose::default());
    let mut flight = Flight::new(&readers, &whose);
    let own = std::thread::current().id();
    (0..3).for_each(|index| flight.start((index, 0), move |_| Ok(std::thread::current().id())));
    (0..3).for_each(|_| assert_eq!(flight.next(None).unwrap().unwrap().outcome.unwrap(), own));
}

#[test]
fn what_was_read_around_the_cache_of_late_goes_into_it() {
    let large = limits::DIRECT_BYTES;
    let auto = Around::new(Direct::Auto, "a directory");
    assert!(!auto.wants(large - 1, 1) && auto.wants(large, 1) && !auto.wants(large, 1));
    assert!(auto.wants(large, 2), "another value");
    for which in 3..100_000 {
        auto.wants(large, which);
    }
    assert!(auto.wants(large, 1), "that was long ago");
    let (on, off) = (auto.with(Direct::On), auto.with(Direct::Off));
    assert!((0..3).all(|_| on.wants(large, 1) && !off.wants(large, 1)) && !on.wants(large - 1, 1));
}

#[test]
fn what_a_file_system_refuses_to_read_around_the_cache_is_asked_for_once() {
    let file = Arc::new(std::fs::File::open("/proc/self/exe").unwrap());
    let around = Arc::new(Around::new(Direct::On, "a directory"));
    let readers = readers(Spawn::default());
    // No file has this place: the kernel answers EINVAL, as some file systems do to any such read.
    let range = Range { file: file.clone(), at: i64::MAX as u64 - 4095, len: 100, around: Some(around.clone()) };
    assert!(range.read(&readers.buffers).unwrap().bytes().is_empty(), "and through the cache the file has ended");
    assert!(!around.wants(limits::DIRECT_BYTES, 1));
    let range = Range { at: 5, len: 100, around: None, file };
    let expected = std::fs::read("/proc/self/exe").unwrap();
    assert_eq!(range.read(&readers.buffers).unwrap().bytes(), &expected[5..105]);
}

#[test]
fn a_range_is_read_around_the_cache_wherever_it_lies() {
    let scratch = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n * 7 + n / 251) as u8).collect();
    std::fs::write(scratch.path().join("f"), &bytes).unwrap();
    let file = Arc::new(std::fs::File::open(scratch.path().join("f")).unwrap());
    let around = Arc::new(Around::new(Direct::On, "a directory"));
    if !around.turn(&*file) {
        eprintln!("skipped: the file system of {} reads nothing around the page cache", scratch.path().display());
        return;
    }
    let readers = readers(Spawn::default());
    for (at, len) in
        [(0, 1), (0, 4096), (1, 4096), (4095, 2), (100, 200_000), (299_999, 1), (299_000, 5000), (300_000, 9)]
    {
        let range = Range { file: file.clone(), at, len, around: Some(around.clone()) };
        let end = (at as usize + len).min(bytes.len());
        assert_eq!(range.read(&readers.buffers).unwrap().bytes(), &bytes[at as usize..end], "{len} at {at}");
    }
}

#[test]
fn memory_is_cut_to_its_first_bytes() {
    let piece = |len| libc::iovec { iov_base: std::ptr::null_mut(), iov_len: len };
    for (most, expected) in [(0, vec![]), (2, vec![2]), (3, vec![3]), (5, vec![3, 2]), (100, vec![3, 4])] {
        let mut pieces = [piece(3), piece(4)];
        let count = cut(&mut pieces, most);
        assert_eq!(pieces[..count].iter().map(|piece| piece.iov_len).collect::<Vec<_>>(), expected);
    }
}
