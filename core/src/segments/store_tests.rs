//! One store through several handles, threads and processes.

use rustix::fs::Mode;

use super::*;
use crate::limits::Limits;

const SETTINGS: Settings = Settings { segment_bytes: 1 << 20, segments: 1000 };

fn open(folder: &tempfile::TempDir) -> Store {
    let folder = fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    Store::open(folder, &SETTINGS, &until()).unwrap()
}

fn until() -> Until {
    Until::new(&Limits::default())
}

fn value(n: u32) -> Vec<u8> {
    (0..n % 70_000).map(|at| (at ^ n) as u8).collect()
}

#[test]
fn what_one_stores_all_find_and_nobody_stores_it_twice() {
    let folder = tempfile::tempdir().unwrap();
    let stores = [open(&folder), open(&folder)];
    for n in 0..200_u32 {
        let (key, value) = (n.to_le_bytes(), value(n * 997));
        let (half, rest) = value.split_at(value.len() / 2);
        let put = |store: &Store| store.put(&[(&key, &[half, rest])], false, &until()).unwrap();
        assert_eq!(put(&stores[n as usize % 2]), [Stored::New]);
        assert_eq!(put(&stores[(n as usize + 1) % 2]), [Stored::Existed]);
    }
    let third = open(&folder);
    for store in stores.iter().chain([&third]) {
        for n in 0..200_u32 {
            assert_eq!(store.get(&n.to_le_bytes()).unwrap(), Some(value(n * 997)), "{n}");
        }
        assert_eq!(store.get(b"absent").unwrap(), None);
    }
    assert_eq!(third.exists(&[&7_u32.to_le_bytes(), b"absent"]).unwrap(), [Some(7 * 997), None]);
}

#[test]
fn deletes_and_replacements_are_seen_by_others() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    one.put(&[(b"a", &[b"first"]), (b"b", &[b"x"]), (b"a", &[b"again"])], false, &until()).unwrap();
    assert_eq!(other.get(b"a").unwrap().as_deref(), Some(&b"first"[..]));
    other.put(&[(b"a", &[b"second"])], true, &until()).unwrap();
    one.delete(&[b"b", b"absent"], &until()).unwrap();
    assert_eq!(
        (other.exists(&[b"a", b"b"]).unwrap(), one.exists(&[b"a", b"b"]).unwrap()),
        (vec![Some(6), None], vec![Some(6), None])
    );
    assert_eq!(one.get(b"a").unwrap().as_deref(), Some(&b"second"[..]));
    assert_eq!(other.put(&[(b"b", &[b"new"])], false, &until()).unwrap(), [Stored::New]);
    assert_eq!(one.get(b"b").unwrap().as_deref(), Some(&b"new"[..]));
    assert_eq!(one.sync(&[b"a", b"b"], &until()).unwrap(), Vec::<&[u8]>::new());
    assert_eq!(one.sync(&[b"a", b"gone"], &until()).unwrap(), [b"gone"]);
}

#[test]
fn what_is_damaged_or_lost_is_a_miss_and_the_rest_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let values: Vec<Vec<u8>> = (0..100).map(|n| value(40_000 + n)).collect();
    for (n, value) in values.iter().enumerate() {
        store.put(&[(&n.to_le_bytes(), &[value])], false, &until()).unwrap();
    }
    drop(store);
    let path = folder.path().join(name_of(2));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.chunks_mut(200_000).for_each(|chunk| chunk[17] ^= 1);
    std::fs::write(&path, bytes).unwrap();
    std::fs::remove_file(folder.path().join(name_of(3))).unwrap();
    let store = open(&folder);
    let mut missed = 0;
    for (n, value) in values.iter().enumerate() {
        match store.get(&n.to_le_bytes()).unwrap() {
            Some(found) => assert!(found == *value, "{n}"),
            None => missed += 1,
        }
    }
    assert!((20..60).contains(&missed), "{missed}");
}

#[test]
fn a_value_that_no_segment_takes_is_refused_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let long = vec![1; 1 << 20];
    assert_eq!(store.put(&[(b"k", &[&long])], false, &until()).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(store.put(&[(b"", &[b"x"])], false, &until()).unwrap_err().kind(), ErrorKind::Invalid);
    let most = &long[..(1 << 20) - RECORD_HEADER_BYTES - MAX_HASH_BYTES];
    store.put(&[(&[7; 64], &[most]), (b"empty", &[])], false, &until()).unwrap();
    assert_eq!(store.get(&[7; 64]).unwrap().as_deref(), Some(most));
    assert_eq!(store.get(b"empty").unwrap().as_deref(), Some(&b""[..]));
}

#[test]
fn at_the_bound_puts_go_on_and_what_is_used_stays() {
    let folder = tempfile::tempdir().unwrap();
    let handle = || fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let settings = Settings { segments: 4, ..SETTINGS };
    let store = Store::open(handle(), &settings, &until()).unwrap();
    let other = Store::open(handle(), &settings, &until()).unwrap();
    store.put(&[(b"used", &[&value(60_000)])], false, &until()).unwrap();
    for n in 0..400_u32 {
        store.put(&[(&n.to_le_bytes(), &[&value(60_000 + n)])], false, &until()).unwrap();
        assert_eq!(store.get(b"used").unwrap(), Some(value(60_000)), "{n}");
        assert_eq!(other.get(&n.to_le_bytes()).unwrap(), Some(value(60_000 + n)));
    }
    let files = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(files, 1 + 4, "the log and four segments");
    let left = (0..400_u32).filter(|n| other.get(&n.to_le_bytes()).unwrap().is_some()).count();
    assert!((30..70).contains(&left), "{left}");
    // Who is told that a value is there finds it.
    assert_eq!(other.exists(&[b"used", &20_u32.to_le_bytes()]).unwrap(), [Some(60_000), None]);
}

#[test]
fn a_segment_whose_writer_is_gone_is_filled_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    for n in 0..50_u32 {
        let store = open(&folder);
        store.put(&[(&n.to_le_bytes(), &[&value(9_000 + n)])], false, &until()).unwrap();
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    let store = open(&folder);
    (0..50_u32).for_each(|n| assert_eq!(store.get(&n.to_le_bytes()).unwrap(), Some(value(9_000 + n))));
}

#[test]
fn a_log_that_says_little_any_more_is_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    for n in 0..5_000_u32 {
        one.put(&[(&(n % 50).to_le_bytes(), &[&n.to_le_bytes()])], true, &until()).unwrap();
    }
    one.delete(&[&7_u32.to_le_bytes()], &until()).unwrap();
    let len = || std::fs::metadata(folder.path().join("index")).unwrap().len();
    let before = len();
    assert!(other.compact(&until()).unwrap() && !one.compact(&until()).unwrap());
    assert!(len() < before / 20, "{} of {before}", len());
    for store in [&one, &other, &open(&folder)] {
        for n in 0..50_u32 {
            let expected = (n != 7).then(|| (4_950 + n).to_le_bytes().to_vec());
            assert_eq!(store.get(&n.to_le_bytes()).unwrap(), expected, "{n}");
        }
    }
    one.put(&[(b"after", &[b"it"])], false, &until()).unwrap();
    assert_eq!(other.get(b"after").unwrap().as_deref(), Some(&b"it"[..]));
}

#[test]
fn threads_and_handles_at_once_store_each_value_once() {
    let folder = tempfile::tempdir().unwrap();
    let stores = [open(&folder), open(&folder)];
    let new: usize = std::thread::scope(|scope| {
        let work = |store| {
            scope.spawn(move || {
                let put =
                    |n: u32| Store::put(store, &[(&n.to_le_bytes(), &[&value(n * 31)])], false, &until()).unwrap();
                (0..300).filter(|n| put(*n) == [Stored::New]).count()
            })
        };
        let threads: Vec<_> = stores.iter().cycle().take(6).map(work).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(new, 300);
    (0..300_u32).for_each(|n| assert_eq!(stores[0].get(&n.to_le_bytes()).unwrap(), Some(value(n * 31))));
}

/// Puts values until it is killed, if it was started for that.
#[test]
fn a_writer_that_is_to_be_killed() {
    use std::io::Write;
    let Some(path) = std::env::var_os("KV_STORE_TEST_KILLED_WRITER") else { return };
    let folder = fs::open(&path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let store = Store::open(folder, &SETTINGS, &until()).unwrap();
    let own = std::process::id();
    for n in 0_u32.. {
        let (key, value) = ([own, n].map(u32::to_le_bytes).concat(), value(n * 13 + own % 100));
        store.put(&[(&key, &[&value])], false, &until()).unwrap();
        if n % 7 == 3 {
            store.delete(&[&key], &until()).unwrap();
        }
        println!("stored {n}");
        std::io::stdout().flush().unwrap();
        if n % 100 == 99 {
            let _ = store.compact(&until()).unwrap();
        }
    }
}

#[test]
fn what_a_killed_process_was_told_is_stored_is_there() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let folder = tempfile::tempdir().unwrap();
    let watcher = open(&folder);
    let mut stored = Vec::new();
    for round in 0..6 {
        let start = || {
            let mut child = Command::new(std::env::current_exe().unwrap());
            child.args(["--exact", "segments::store::tests::a_writer_that_is_to_be_killed", "--nocapture"]);
            child.env("KV_STORE_TEST_KILLED_WRITER", folder.path()).stdout(Stdio::piped()).stderr(Stdio::null());
            child.spawn().unwrap()
        };
        let mut children = [start(), start()];
        for child in &mut children {
            let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
            let told = lines.by_ref().map_while(Result::ok).filter_map(|line| {
                line.rsplit_once("stored ").and_then(|(_, number)| number.trim().parse::<u32>().ok())
            });
            let last = told.take_while(|n| *n < 100 + 60 * round).last().unwrap();
            child.kill().unwrap();
            stored.push((child.id(), last));
        }
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for store in [&watcher, &open(&folder)] {
            for (id, last) in &stored {
                for n in 0..=*last {
                    let key = [*id, n].map(u32::to_le_bytes).concat();
                    let expected = (n % 7 != 3).then(|| value(n * 13 + *id % 100));
                    assert!(store.get(&key).unwrap() == expected, "round {round}: value {n} of {id}");
                }
            }
        }
    }
}
