//! What is evicted at the bound, and for whom room is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;

use rustix::fs::{Timespec, Timestamps};

use super::*;
use crate::segments::index::Total;
use crate::segments::io::faults;
use crate::segments::store::SegmentSettings;
use crate::segments::store::tests::{SETTINGS, delete, exists, files, get, key, open, open_with, put, until, value};

#[test]
fn at_the_bound_puts_go_on_and_what_is_used_stays() {
    let folder = tempfile::tempdir().unwrap();
    let settings = SegmentSettings { max_bytes: Some(5 << 20), ..SETTINGS };
    let [store, other] = [(), ()].map(|()| open_with(folder.path(), false, &settings).unwrap());
    put(&store, b"used", &value(60_000), false);
    for n in 0..400_u32 {
        put(&store, &n.to_le_bytes(), &value(60_000 + n), false);
        assert_eq!(get(&store, b"used"), Some(value(60_000)), "{n}");
        assert_eq!(get(&other, &n.to_le_bytes()), Some(value(60_000 + n)));
    }
    assert!(files(folder.path()) <= 1 + 5, "the log and five segments");
    let left = exists(
        &other,
        &(0..400_u32).map(u32::to_le_bytes).collect::<Vec<_>>().iter().map(|n| &n[..]).collect::<Vec<_>>(),
    );
    let left = left.into_iter().flatten().count();
    assert!((45..80).contains(&left), "{left}");
    // Who is told that a value is there finds it.
    assert_eq!(exists(&other, &[b"used", &20_u32.to_le_bytes()]), [Some(60_000), None]);
    assert_eq!(get(&other, b"used"), Some(value(60_000)));
}

/// A trace in which few values are used often: what it costs in writes, and how much is found.
#[test]
fn a_value_is_written_about_once() {
    let folder = tempfile::tempdir().unwrap();
    let settings = SegmentSettings { max_bytes: Some(16 << 20), ..SETTINGS };
    let store = open_with(folder.path(), false, &settings).unwrap();
    let (mut state, mut stored, mut hits, mut asked) = (7_u64, 0, 0, 0);
    while stored < 100 << 20 {
        // By a power of two: each octave of 4,096 values is asked for as often as the others.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let n = ((state >> 33) as u32) & ((1 << (1 + (state >> 20) % 12)) - 1);
        asked += 1;
        match get(&store, &n.to_le_bytes()) {
            Some(found) => {
                assert!(found == value(20_000 + n));
                hits += 1;
            }
            None => {
                put(&store, &n.to_le_bytes(), &value(20_000 + n), false);
                stored += 20_000 + u64::from(n);
            }
        }
    }
    let taken = u64::from(store.known().index.next_segment().unwrap() - 1) << 20;
    assert!(taken * 10 < stored * 13, "{taken} bytes were written for {stored}");
    assert!(hits * 2 > asked, "{hits} of {asked}");
}

#[test]
fn no_more_values_are_kept_than_the_bound() {
    let folder = tempfile::tempdir().unwrap();
    let store = open_with(folder.path(), false, &SegmentSettings { max_values: Some(1000), ..SETTINGS }).unwrap();
    for n in 0..3000_u32 {
        put(&store, &n.to_le_bytes(), &[7; 3000], false);
        assert!(store.total(0).values <= 1000);
    }
    assert!(store.total(0).values > 400 && get(&store, &2999_u32.to_le_bytes()).is_some());
}

#[test]
fn whole_segments_are_evicted_the_least_recently_used_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    for n in 0..100_u32 {
        put(&store, &n.to_le_bytes(), &[1; 100_000], false);
    }
    let old = |segment: u32, second: i64| {
        let time = Timespec { tv_sec: second, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        fs::utimensat(fs::CWD, folder.path().join(name_of(segment)), &times, AtFlags::empty()).unwrap();
    };
    (1..=5).for_each(|segment| old(segment, 100 + i64::from(segment)));
    let second = |seconds: u64| seconds * 1_000_000_000;
    assert_eq!(store.evict(0, None, u64::MAX, &until()).unwrap(), EvictedValues::default());
    assert_eq!(store.evict(u64::MAX, None, second(100), &until()).unwrap().bytes, 0, "all were used since");
    let evicted = store.evict(0, Some(second(103)), u64::MAX, &until()).unwrap();
    assert_eq!((evicted.bytes, evicted.values), (2_000_000, [20, 0, 0, 0]));
    assert_eq!((get(&store, &0_u32.to_le_bytes()), get(&store, &20_u32.to_le_bytes()).is_some()), (None, true));
    old(3, 103);
    assert_eq!(store.evict(1, None, second(200), &until()).unwrap().values, [10, 0, 0, 0]);
    assert_eq!(exists(&open(&folder), &[&29_u32.to_le_bytes(), &30_u32.to_le_bytes()]), [None, Some(100_000)]);
    let all = store.evict(u64::MAX, None, u64::MAX, &until()).unwrap();
    assert_eq!((all.values[0], store.total(0), files(folder.path())), (70, Total::default(), 1));
    put(&store, b"next", b"x", false);
    assert!(get(&store, b"next").is_some());
}

#[test]
fn a_segment_whose_writer_is_gone_is_filled_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..50_u32 {
        put(&open(&folder), &n.to_le_bytes(), &value(9_000 + n), false);
    }
    assert_eq!(files(folder.path()), 2);
    let store = open(&folder);
    (0..50_u32).for_each(|n| assert_eq!(get(&store, &n.to_le_bytes()), Some(value(9_000 + n))));
}

/// Each of the least segments is filled by somebody, or is the one that somebody copies what is used out of.
#[test]
fn who_needs_room_does_not_wait_for_what_another_one_copies() {
    let folder = tempfile::tempdir().unwrap();
    let settings = SegmentSettings { max_bytes: Some(3 << 20), ..SETTINGS };
    let [one, other, third] = [(); 3].map(|()| Arc::new(open_with(folder.path(), false, &settings).unwrap()));
    put(&one, b"one", &value(60_000), false);
    for n in 0..17_u32 {
        put(&other, &n.to_le_bytes(), &value(60_000 + n), false);
    }
    // Used, and further back than the log is long.
    assert!(get(&other, &3_u32.to_le_bytes()).is_some());
    let stored = Arc::new(AtomicBool::new(false));
    let tells = stored.clone();
    faults::before_reads(move |at| {
        if at > 100_000 {
            let third = third.clone();
            let puts = move || third.put(&[(key(b"third"), &[b"x"])], false, &until()).map(|put| put[0].is_ok());
            tells.store(thread::spawn(puts).join().unwrap().unwrap(), SeqCst);
        }
    });
    put(&other, b"next", &value(60_000), false);
    faults::none();
    assert!(stored.load(SeqCst), "nothing was copied");
    for (store, key) in [(&one, &b"one"[..]), (&other, b"next"), (&other, b"third")] {
        assert!(get(store, key).is_some(), "{key:?}");
    }
    assert_eq!(files(folder.path()), 1 + 3, "the log and as many segments as may be");
}

/// Somebody removes the store while what is used is copied out of a segment, and another process begins it anew.
#[test]
fn a_segment_of_another_log_is_not_evicted_for_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let settings = SegmentSettings { max_bytes: Some(3 << 20), ..SETTINGS };
    let store = open_with(folder.path(), false, &settings).unwrap();
    for n in 0..34_u32 {
        put(&store, &n.to_le_bytes(), &value(60_000 + n), false);
    }
    // Used, and then damaged: it is read, and not copied.
    assert!(get(&store, &3_u32.to_le_bytes()).is_some());
    let place = store.find(key(&3_u32.to_le_bytes())).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(folder.path().join(name_of(place.segment))).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"damaged", place.offset() + 1000).unwrap();
    let begun = Arc::new(AtomicBool::new(false));
    let (begins, path) = (begun.clone(), folder.path().to_owned());
    faults::before_reads(move |at| {
        if at > 100_000 && !begins.swap(true, SeqCst) {
            let path = path.clone();
            let anew = move || {
                std::fs::read_dir(&path)
                    .unwrap()
                    .for_each(|entry| std::fs::remove_file(entry.unwrap().path()).unwrap());
                let store = open_with(&path, false, &settings).unwrap();
                put(&store, b"anew", b"x", false);
            };
            thread::spawn(anew).join().unwrap();
        }
    });
    let _ = store.put(&[(key(b"next"), &[&value(60_000)])], false, &until());
    faults::none();
    assert!(begun.load(SeqCst), "nothing was copied");
    assert!(get(&open_with(folder.path(), false, &settings).unwrap(), b"anew").is_some());
}

#[test]
fn a_log_that_says_little_any_more_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    for n in 0..8_000_u32 {
        put(&one, &(n % 50).to_le_bytes(), &n.to_le_bytes(), true);
    }
    delete(&one, &[&7_u32.to_le_bytes()]);
    let len = || std::fs::metadata(folder.path().join("index")).unwrap().len();
    let before = len();
    assert!(other.compact(&until()).unwrap() && !one.compact(&until()).unwrap());
    assert!(len() < before / 20, "{} of {before}", len());
    for store in [&one, &other, &open(&folder)] {
        for n in 0..50_u32 {
            let expected = (n != 7).then(|| (7_950 + n).to_le_bytes().to_vec());
            assert_eq!(get(store, &n.to_le_bytes()), expected, "{n}");
        }
    }
    put(&one, b"after", b"it", false);
    assert_eq!(get(&other, b"after").as_deref(), Some(&b"it"[..]));
}

#[test]
fn bounds_are_kept_with_the_store_and_are_the_openers_to_change() {
    let folder = tempfile::tempdir().unwrap();
    let settings = SegmentSettings { max_bytes: Some(64 << 20), ..SegmentSettings::default() };
    assert_eq!(open_with(folder.path(), false, &settings).unwrap().capacity(), 64 << 20);
    let store = open_with(folder.path(), false, &SegmentSettings::default()).unwrap();
    assert_eq!((store.capacity(), store.known().header.segment_bytes), (64 << 20, 8 << 20));
    let more = SegmentSettings { max_bytes: Some(80 << 20), ..settings };
    assert_eq!(open_with(folder.path(), false, &more).unwrap().capacity(), 80 << 20);
    for wrong in [
        SegmentSettings { segment_bytes: Some(100), ..settings },
        SegmentSettings { segment_bytes: Some(0), ..settings },
        SegmentSettings { max_bytes: Some(100), ..settings },
        SegmentSettings { segment_bytes: Some(32 << 20), ..settings },
    ] {
        let other = tempfile::tempdir().unwrap();
        assert_eq!(open_with(other.path(), false, &wrong).err().unwrap().kind(), ErrorKind::Invalid, "{wrong:?}");
    }
    // Four fifths of what is free.
    let whole = tempfile::tempdir().unwrap();
    let capacity = open_with(whole.path(), false, &SegmentSettings::default()).unwrap().capacity();
    let space = fs::statvfs(whole.path()).unwrap();
    let free = space.f_bavail * space.f_frsize;
    assert!(capacity < free / 10 * 9, "{capacity} of {free}");
}
