//! One store through several handles, threads and processes.

use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::super::io::faults;
use super::*;
use crate::limits::Limits;
use crate::payload::{Destination, Filling};

pub(in crate::segments) const SETTINGS: SegmentSettings =
    SegmentSettings { segment_bytes: Some(1 << 20), max_bytes: Some(1000 << 20), max_values: Some(100_000) };

pub(in crate::segments) fn open_with(
    folder: &Path,
    read_only: bool,
    settings: &SegmentSettings,
) -> Result<SegmentStore, Error> {
    let folder = fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let store = SegmentStore::open(folder, read_only, settings, (&Clock::default(), &Random::default()), &until())?;
    store.follow(&until()).map(|()| store)
}

pub(in crate::segments) fn open(folder: &tempfile::TempDir) -> SegmentStore {
    open_with(folder.path(), false, &SETTINGS).unwrap()
}

pub(in crate::segments) fn until() -> Until {
    Until::new(&Limits::default())
}

pub(in crate::segments) fn value(n: u32) -> Vec<u8> {
    (0..n % 70_000).map(|at| (at ^ n) as u8).collect()
}

pub(in crate::segments) fn key(bytes: &[u8]) -> Key<'_> {
    Key { space: 0, bytes }
}

/// The value of a key, as a host gets it.
fn get_of(store: &SegmentStore, key: Key<'_>) -> Result<Option<Vec<u8>>, Error> {
    store.follow(&until())?;
    let mut tried = None;
    while let Some(place) = store.find(key).filter(|place| tried != Some(*place)) {
        let destination = Destination::Buffer(Filling::new(place.len.into())?);
        if let (true, destination) = store.read(&place, key, destination)? {
            return Ok(Some(destination.filled().pieces().collect::<Vec<_>>().concat()));
        }
        tried = Some(place);
        store.follow(&until())?;
    }
    Ok(None)
}

pub(in crate::segments) fn get(store: &SegmentStore, bytes: &[u8]) -> Option<Vec<u8>> {
    get_of(store, key(bytes)).unwrap()
}

pub(in crate::segments) fn put(store: &SegmentStore, bytes: &[u8], value: &[u8], replace: bool) -> ValuePut {
    store.put(&[(key(bytes), &[value])], replace, &until()).unwrap().pop().unwrap().unwrap()
}

pub(in crate::segments) fn exists(store: &SegmentStore, keys: &[&[u8]]) -> Vec<Option<u32>> {
    store.exists(&keys.iter().map(|bytes| key(bytes)).collect::<Vec<_>>(), &until()).unwrap()
}

pub(in crate::segments) fn delete(store: &SegmentStore, keys: &[&[u8]]) {
    store.delete(&keys.iter().map(|bytes| key(bytes)).collect::<Vec<_>>(), false, &until()).unwrap();
}

pub(in crate::segments) fn files(folder: &Path) -> usize {
    // But for the marker.
    std::fs::read_dir(folder).unwrap().filter(|entry| entry.as_ref().unwrap().file_name() != ".segments").count()
}

#[test]
fn what_one_stores_all_find_and_nobody_stores_it_twice() {
    let folder = tempfile::tempdir().unwrap();
    let stores = [open(&folder), open(&folder)];
    for n in 0..200_u32 {
        let (bytes, value) = (n.to_le_bytes(), value(n * 997));
        let (half, rest) = value.split_at(value.len() / 2);
        let put = |store: &SegmentStore| {
            store.put(&[(key(&bytes), &[half, rest])], false, &until()).unwrap().remove(0).unwrap()
        };
        assert_eq!(put(&stores[n as usize % 2]), ValuePut::New);
        assert_eq!(put(&stores[(n as usize + 1) % 2]), ValuePut::Existed);
    }
    let third = open(&folder);
    for store in stores.iter().chain([&third]) {
        for n in 0..200_u32 {
            assert_eq!(get(store, &n.to_le_bytes()), Some(value(n * 997)), "{n}");
        }
        assert_eq!(get(store, b"absent"), None);
    }
    assert_eq!(exists(&third, &[&7_u32.to_le_bytes(), b"absent"]), [Some(7 * 997), None]);
    let elsewhere = Key { space: 1, bytes: &7_u32.to_le_bytes() };
    assert_eq!(get_of(&third, elsewhere).unwrap(), None, "a space holds keys of its own");
}

#[test]
fn a_batch_has_an_outcome_for_each_value() {
    let folder = tempfile::tempdir().unwrap();
    let (store, long) = (open(&folder), vec![1; 1 << 20]);
    let values: Vec<Vec<u8>> = (0..100).map(|n| value(30_000 + n * 77)).collect();
    let keys: Vec<[u8; 4]> = (0..100_u32).map(u32::to_le_bytes).collect();
    let pieces: Vec<[&[u8]; 1]> = values.iter().map(|value| [&value[..]]).collect();
    let mut batch: Vec<NewValue<'_>> =
        keys.iter().zip(&pieces).map(|(bytes, pieces)| (key(bytes), &pieces[..])).collect();
    let (too_long, twice, of_nobody) = ([&long[..]], [&b"again"[..]], Key { space: 4, bytes: b"k" });
    batch.extend([(key(b"long"), &too_long[..]), (key(b""), &twice), (of_nobody, &twice), (key(&keys[5]), &twice)]);
    let outcomes = store.put(&batch, false, &until()).unwrap();
    assert!(outcomes[..100].iter().all(|outcome| matches!(outcome, Ok(ValuePut::New))));
    for refused in &outcomes[100..103] {
        assert_eq!(refused.as_ref().unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert!(matches!(outcomes[103], Ok(ValuePut::Existed)));
    for (bytes, value) in keys.iter().zip(&values) {
        assert_eq!(get(&open(&folder), bytes).as_deref(), Some(&value[..]));
    }
    let most = &long[..store.max_value_bytes() as usize];
    assert_eq!(put(&store, &[7; 255], most, false), ValuePut::New);
    assert_eq!(put(&store, b"empty", b"", false), ValuePut::New);
    assert_eq!((get(&store, &[7; 255]).as_deref(), get(&store, b"empty").as_deref()), (Some(most), Some(&b""[..])));
}

#[test]
fn deletes_and_replacements_are_seen_by_others() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    one.put(&[(key(b"a"), &[b"first"]), (key(b"b"), &[b"x"])], false, &until()).unwrap();
    assert_eq!(get(&other, b"a").as_deref(), Some(&b"first"[..]));
    put(&other, b"a", b"second", true);
    delete(&one, &[b"b", b"absent"]);
    assert_eq!(
        (exists(&other, &[b"a", b"b"]), exists(&one, &[b"a", b"b"])),
        (vec![Some(6), None], vec![Some(6), None])
    );
    assert_eq!(get(&one, b"a").as_deref(), Some(&b"second"[..]));
    assert_eq!(put(&other, b"b", b"new", false), ValuePut::New);
    assert_eq!(get(&one, b"b").as_deref(), Some(&b"new"[..]));
}

#[test]
fn a_commit_names_what_is_gone_and_stores_its_own_value_or_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    put(&one, b"a", b"of one", false);
    put(&other, b"b", b"of the other", false);
    let (named, pieces) = (Key { space: 1, bytes: b"a" }, [&b"the manifest"[..]]);
    let commit = |keys: &[Key<'static>]| one.commit(keys, Some((named, &pieces)), &until()).unwrap();
    assert_eq!(commit(&[key(b"a"), key(b"gone"), key(b"b")]), [key(b"gone")]);
    assert_eq!(get_of(&other, named).unwrap(), None);
    assert_eq!(commit(&[key(b"a"), key(b"b")]), []);
    assert_eq!(get_of(&other, named).unwrap().as_deref(), Some(pieces[0]));
    assert_eq!(one.commit(&[key(b"a"), key(b"x")], None, &until()).unwrap(), [key(b"x")]);
    assert_eq!(one.commit(&[key(b"a")], None, &until()).unwrap(), []);
}

#[test]
fn what_a_failed_sync_may_have_lost_is_gone_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    put(&one, b"before", b"x", false);
    assert!(one.commit(&[key(b"before")], None, &until()).unwrap().is_empty());
    put(&one, b"after", b"y", false);
    assert_eq!(exists(&other, &[b"before", b"after"]), [Some(1), Some(1)]);
    let own = one.writing().clone().unwrap();
    let mut fails = true;
    faults::before_syncs(move |_| if std::mem::take(&mut fails) { Err(Errno::IO) } else { Ok(()) });
    assert!(one.commit(&[key(b"after")], None, &until()).is_err());
    for store in [&one, &other, &open(&folder)] {
        assert_eq!(exists(store, &[b"before", b"after"]), [Some(1), None]);
    }
    // Who was about to write there goes elsewhere.
    *one.writing() = Some(own);
    assert_eq!(put(&one, b"after", b"z", false), ValuePut::New);
    assert!(one.commit(&[key(b"after")], None, &until()).unwrap().is_empty());
    assert_eq!(get(&other, b"after").as_deref(), Some(&b"z"[..]));
}

#[test]
fn what_is_damaged_or_lost_is_a_miss_and_the_rest_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let values: Vec<Vec<u8>> = (0..100).map(|n| value(40_000 + n)).collect();
    for (n, value) in values.iter().enumerate() {
        put(&store, &n.to_le_bytes(), value, false);
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
        match get(&store, &n.to_le_bytes()) {
            Some(found) => assert!(found == *value, "{n}"),
            None => missed += 1,
        }
    }
    assert!((20..60).contains(&missed), "{missed}");
}

#[test]
fn what_a_power_loss_has_left_without_its_record_is_put_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name_of(1));
    let damage = || {
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[..300].fill(0);
        std::fs::write(&path, bytes).unwrap();
    };
    put(&open(&folder), b"a", b"first", false);
    damage();
    // By each way to ask, in a process that has not seen it put.
    assert_eq!(exists(&open(&folder), &[b"a"]), [None]);
    assert_eq!(open(&folder).commit(&[key(b"a")], None, &until()).unwrap(), [key(b"a")]);
    let store = open(&folder);
    assert_eq!(put(&store, b"a", b"first", false), ValuePut::New);
    assert_eq!(
        (get(&store, b"a").as_deref(), put(&store, b"a", b"first", false)),
        (Some(&b"first"[..]), ValuePut::Existed)
    );
    assert_eq!(put(&open(&folder), b"a", b"first", false), ValuePut::Existed);
}

/// A sync of what was put after a power loss says nothing of what that has taken.
#[test]
fn what_a_power_loss_has_taken_does_not_count_as_synced_later() {
    let folder = tempfile::tempdir().unwrap();
    put(&open(&folder), b"a", b"first", false);
    let path = folder.path().join(name_of(1));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..300].fill(0);
    std::fs::write(&path, bytes).unwrap();
    let store = open(&folder);
    put(&store, b"b", b"second", false);
    assert!(store.commit(&[key(b"b")], None, &until()).unwrap().is_empty());
    assert_eq!(files(folder.path()), 1 + 1, "it goes on in the segment");
    for other in [&store, &open(&folder)] {
        assert_eq!(exists(other, &[b"a", b"b"]), [None, Some(6)]);
    }
    assert_eq!(put(&open(&folder), b"a", b"first", false), ValuePut::New);
}

#[test]
fn a_listing_has_each_value_of_its_space_once() {
    let folder = tempfile::tempdir().unwrap();
    let (store, other) = (open(&folder), open(&folder));
    for n in 0..500_u32 {
        put(&store, &n.to_le_bytes(), &value(n), false);
        let named = (Key { space: 1, bytes: &n.to_le_bytes() }, &[&b"m"[..]][..]);
        store.put(&[named], true, &until()).unwrap();
    }
    delete(&store, &[&7_u32.to_le_bytes()]);
    put(&store, &8_u32.to_le_bytes(), b"again", true);
    for (space, most, expected) in [(0, 7, 499), (0, 10_000, 499), (1, 64, 500), (2, 5, 0)] {
        let (mut seen, mut after) = (HashMap::new(), None::<String>);
        loop {
            let (page, next) = other.list(space, after.as_deref(), most, &until()).unwrap();
            assert!(page.len() <= most);
            for listed in page {
                assert!(listed.used > 0 && seen.insert(listed.key, listed.len).is_none());
            }
            after = next;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(seen.len(), expected);
        assert!(space != 0 || seen[&8_u32.to_le_bytes()[..]] == 5);
    }
    for wrong in ["", "1.2.3", "x.1.1.1", "1.1.1.100000000", "1.1.1.1.1"] {
        assert_eq!(other.list(0, Some(wrong), 5, &until()).unwrap_err().kind(), ErrorKind::Invalid);
    }
    // A place that is none leads nowhere.
    let inode = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(folder.path().join("index")).unwrap());
    assert_eq!(other.list(0, Some(&format!("{inode:x}.30.0.0")), 5, &until()).unwrap(), (Vec::new(), None));
}

#[test]
fn a_store_that_may_only_be_read_is_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = open_with(folder.path(), true, &SETTINGS).unwrap();
    assert_eq!((get(&nothing, b"a"), files(folder.path())), (None, 0));
    let writer = open(&folder);
    put(&writer, b"a", b"x", false);
    for store in [&nothing, &open_with(folder.path(), true, &SETTINGS).unwrap()] {
        assert_eq!(get(store, b"a").as_deref(), Some(&b"x"[..]));
        let refused = [
            store.put(&[(key(b"b"), &[b"y"])], false, &until()).err(),
            store.delete(&[key(b"a")], false, &until()).err(),
            store.commit(&[], None, &until()).err(),
            store.evict(1, None, 0, &until()).err(),
        ];
        assert!(refused.into_iter().all(|refused| refused.unwrap().kind() == ErrorKind::Denied));
    }
}

#[test]
fn a_store_whose_files_somebody_removed_begins_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    put(&one, b"a", b"x", false);
    put(&other, b"b", b"x", false);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    assert_eq!((get(&one, b"a"), exists(&other, &[b"a", b"b"])), (None, vec![None, None]));
    // What it writes to a segment that is gone it writes to another one.
    assert_eq!(put(&one, b"a", b"y", false), ValuePut::New);
    assert_eq!(get(&other, b"a").as_deref(), Some(&b"y"[..]));
    let path = folder.path().to_owned();
    drop(folder);
    assert!(!path.exists());
    assert_eq!(get(&one, b"a"), None);
    assert!(one.put(&[(key(b"c"), &[b"y"])], false, &until()).is_err());
}

#[test]
fn what_another_backend_has_marked_is_left_alone() {
    for marker in [".local-fs", ".token-cache"] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(marker), b"").unwrap();
        assert_eq!(open_with(folder.path(), false, &SETTINGS).err().unwrap().kind(), ErrorKind::Invalid);
        assert_eq!(files(folder.path()), 1);
    }
}

#[test]
fn threads_and_handles_at_once_store_each_value_once() {
    let folder = tempfile::tempdir().unwrap();
    let stores = [open(&folder), open(&folder)];
    let new: usize = std::thread::scope(|scope| {
        let work = |store| {
            scope.spawn(move || {
                (0..300_u32).filter(|n| put(store, &n.to_le_bytes(), &value(n * 31), false) == ValuePut::New).count()
            })
        };
        let threads: Vec<_> = stores.iter().cycle().take(6).map(work).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(new, 300);
    (0..300_u32).for_each(|n| assert_eq!(get(&stores[0], &n.to_le_bytes()), Some(value(n * 31))));
}

#[test]
fn a_long_log_is_read_while_others_are_answered() {
    let folder = tempfile::tempdir().unwrap();
    put(&open(&folder), b"a", b"x", false);
    let root = fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    let store = SegmentStore::open(root, false, &SETTINGS, (&Clock::default(), &Random::default()), &until()).unwrap();
    assert!(store.behind() > 0);
    let tail = store.log.tail();
    store.replaying.store(true, SeqCst);
    assert_eq!(get(&store, b"a"), None, "nobody waits for the one who reads");
    drop(tail);
    store.replay(&until()).unwrap();
    assert_eq!((get(&store, b"a").is_some(), store.behind()), (true, 0));
}

/// Puts values until it is killed, if it was started for that.
#[test]
fn a_writer_that_is_to_be_killed() {
    use std::io::Write;
    let Some(path) = std::env::var_os("KV_STORE_TEST_KILLED_WRITER") else { return };
    let store = open_with(Path::new(&path), false, &SETTINGS).unwrap();
    let own = std::process::id();
    for n in 0_u32.. {
        let (bytes, value) = ([own, n].map(u32::to_le_bytes).concat(), value(n * 13 + own % 100));
        put(&store, &bytes, &value, false);
        if n % 7 == 3 {
            delete(&store, &[&bytes]);
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
                    let bytes = [*id, n].map(u32::to_le_bytes).concat();
                    let expected = (n % 7 != 3).then(|| value(n * 13 + *id % 100));
                    assert!(get(store, &bytes) == expected, "round {round}: value {n} of {id}");
                }
            }
        }
    }
}

/// Another thread begins to read a log that was written anew, and its time runs out: what it has not come to is no miss.
#[test]
fn what_is_there_is_found_while_half_of_a_log_written_anew_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let (other, value) = (open(&folder), [&b"x"[..]]);
    let names: Vec<String> = (0..8000).map(|n| format!("{n:04}")).collect();
    let values: Vec<_> = names.iter().map(|name| (key(name.as_bytes()), &value[..])).collect();
    for some in values.chunks(1000) {
        assert!(other.put(some, false, &until()).unwrap().iter().all(Result::is_ok));
    }
    let store = Arc::new(open(&folder));
    let mut both = Some((store.clone(), other));
    // What was there before is read before somebody goes by it.
    faults::before_reads(move |_| {
        let Some((same, other)) = both.take() else { return };
        let half = move || {
            let (mut locked, mut known) = other.locked(&until()).unwrap();
            other.write_anew(&mut locked, &mut known, &until()).unwrap();
            let late = Until::new(&Limits { deadline_ms: 0, ..Limits::default() });
            same.log.tail().follow(&mut *same.learning(), &late).unwrap_err();
        };
        std::thread::spawn(half).join().unwrap();
    });
    let found = exists(&store, &[b"0000", b"7999"]);
    faults::none();
    assert_eq!(found, [Some(1), Some(1)]);
}
