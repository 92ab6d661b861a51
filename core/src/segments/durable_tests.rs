//! What a commit answers for where syncs fail, where others go on meanwhile, and where somebody removes files of the store.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use rustix::fs::{self, FlockOperation, Mode};
use rustix::io::Errno;

use super::*;
use crate::directory::Directory;
use crate::limits::Limits;
use crate::process::{Random, Spawn};
use crate::segments::SegmentStores;
use crate::segments::io::faults;
use crate::segments::store::ValuePut;
use crate::segments::store::tests::{SETTINGS, delete, exists, get, key, open, put, until};

/// Have the syncs of this thread end so, in order, and those behind them as they do; and note of which file each is.
fn syncs(outcomes: Vec<Result<(), Errno>>) -> Arc<Mutex<Vec<u64>>> {
    let inodes = Arc::new(Mutex::new(Vec::new()));
    let (noted, mut outcomes) = (inodes.clone(), outcomes.into_iter());
    faults::before_syncs(move |file| {
        noted.lock().unwrap().push(fs::fstat(file).unwrap().st_ino);
        outcomes.next().unwrap_or(Ok(()))
    });
    inodes
}

fn inode(folder: &Path, name: &str) -> u64 {
    std::fs::metadata(folder.join(name)).unwrap().ino()
}

/// Opens the store of a folder again and again, in one process.
fn opener(folder: &tempfile::TempDir) -> impl Fn() -> Arc<SegmentStore> {
    let process = SegmentStores::new(Spawn::of(|_, _| false), Clock::default(), Random::default());
    let directory = Directory::open(folder.path(), &Arc::default()).unwrap();
    move || process.open(&directory, &SETTINGS, &Limits::default(), &until()).unwrap()
}

type Committed = Result<Vec<Key<'static>>, Error>;

fn commit(store: &SegmentStore, bytes: &'static [u8]) -> Committed {
    store.commit(&[key(bytes)], None, &until())
}

/// Have a commit of `bytes` wait in its first sync until the other end says how that ends.
fn held_commit<'s>(
    scope: &'s std::thread::Scope<'s, '_>,
    store: &'s SegmentStore,
    bytes: &'static [u8],
) -> (ScopedJoinHandle<'s, Committed>, Receiver<()>, Sender<Result<(), Errno>>) {
    let ((begun, syncing), (end, ends)) = (channel(), channel());
    let commits = scope.spawn(move || {
        let mut first = Some((begun, ends));
        faults::before_syncs(move |_| {
            let Some((begun, ends)) = first.take() else { return Ok(()) };
            begun.send(()).unwrap();
            ends.recv().unwrap()
        });
        commit(store, bytes)
    });
    (commits, syncing, end)
}

#[test]
fn what_is_put_during_a_sync_is_synced_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let pieces = [&b"x"[..]];
    // Its place is before the other one's, and it is written after.
    let low = store.place(key(b"low"), &pieces, &until()).unwrap();
    put(&store, b"high", b"x", false);
    std::thread::scope(|scope| {
        let (commits, syncing, end) = held_commit(scope, &store, b"high");
        syncing.recv().unwrap();
        store.write_one(&low).unwrap();
        let (mut locked, mut known) = store.locked(&until()).unwrap();
        locked.append(&[low.entry()], &mut *known).unwrap();
        drop((locked, known));
        end.send(Ok(())).unwrap();
        assert_eq!(commits.join().unwrap().unwrap(), []);
    });
    let synced = syncs(vec![]);
    assert_eq!(commit(&store, b"low").unwrap(), []);
    assert_eq!(*synced.lock().unwrap(), ["s-00000001", "index"].map(|name| inode(folder.path(), name)));
}

#[test]
fn what_is_put_anew_during_a_commit_is_synced_too() {
    let folder = tempfile::tempdir().unwrap();
    let (store, other) = (open(&folder), open(&folder));
    put(&store, b"a", b"x", false);
    std::thread::scope(|scope| {
        let (commits, syncing, end) = held_commit(scope, &store, b"a");
        syncing.recv().unwrap();
        delete(&other, &[b"a"]);
        assert_eq!(put(&other, b"a", b"x", false), ValuePut::New);
        end.send(Ok(())).unwrap();
        assert_eq!(commits.join().unwrap().unwrap(), []);
    });
    let known = store.known();
    let place = known.index.find(key(b"a")).unwrap();
    assert!(place.segment == 2 && place.unit < known.index.segment(2).unwrap().synced);
}

#[test]
fn a_failed_sync_of_which_the_log_could_not_be_told_is_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let open = opener(&folder);
    for opens_again in [false, true] {
        let mut store = open();
        put(&store, b"a", b"x", false);
        // Another process holds the log meanwhile.
        let root = fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
        let mut outcomes = vec![Err(Errno::IO)].into_iter();
        let held = root.try_clone().unwrap();
        faults::before_syncs(move |_| {
            fs::flock(&held, FlockOperation::LockExclusive).unwrap();
            outcomes.next().unwrap_or(Ok(()))
        });
        let short = Until::new(&Limits { deadline_ms: 50, ..Limits::default() });
        assert!(store.commit(&[key(b"a")], None, &short).is_err());
        faults::none();
        fs::flock(&root, FlockOperation::Unlock).unwrap();
        if opens_again {
            drop(store);
            store = open();
        }
        assert_eq!(commit(&store, b"a").unwrap(), [key(b"a")], "opened again: {opens_again}");
        assert_eq!(put(&store, b"a", b"x", false), ValuePut::New);
        assert_eq!(commit(&store, b"a").unwrap(), []);
        delete(&store, &[b"a"]);
    }
}

#[test]
fn a_log_that_could_not_be_synced_is_not_believed_the_next_time() {
    let folder = tempfile::tempdir().unwrap();
    let open = opener(&folder);
    for opens_again in [false, true] {
        let mut store = open();
        put(&store, b"a", b"x", true);
        let former = inode(folder.path(), "index");
        // The segment is synced; neither the log nor another one in its place can be.
        syncs(vec![Ok(()), Err(Errno::IO), Err(Errno::IO)]);
        assert!(commit(&store, b"a").is_err());
        faults::none();
        assert_eq!(inode(folder.path(), "index"), former);
        if opens_again {
            drop(store);
            store = open();
        }
        assert_eq!(commit(&store, b"a").unwrap(), []);
        assert_ne!(inode(folder.path(), "index"), former, "opened again: {opens_again}");
    }
}

#[test]
fn a_sync_that_succeeds_waits_for_one_that_was_told_of_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    put(&store, b"a", b"x", false);
    std::thread::scope(|scope| {
        let (fails, syncing, end) = held_commit(scope, &store, b"a");
        syncing.recv().unwrap();
        let (succeeds, syncing, other_end) = held_commit(scope, &store, b"a");
        syncing.recv().unwrap();
        other_end.send(Ok(())).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        end.send(Err(Errno::IO)).unwrap();
        assert!(fails.join().unwrap().is_err());
        assert_eq!(succeeds.join().unwrap().unwrap(), [key(b"a")]);
    });
    assert_eq!(exists(&open(&folder), &[b"a"]), [None]);
}

#[test]
fn where_somebody_removed_the_files_no_file_of_before_is_synced_or_filled() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    put(&one, b"a", b"x", false);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    put(&other, b"a", b"x", false);
    let synced = syncs(vec![]);
    assert_eq!(commit(&one, b"a").unwrap(), []);
    assert!(synced.lock().unwrap().contains(&inode(folder.path(), "s-00000001")));
    faults::none();
    // What it fills has the number of another file now.
    let one = open(&folder);
    put(&one, b"b", b"x", false);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    let number = one.writing().as_ref().unwrap().segment;
    let fresh: Vec<SegmentStore> = (0..number).map(|_| open(&folder)).collect();
    fresh
        .iter()
        .zip(0_u32..)
        .for_each(|(store, n)| assert_eq!(put(store, &n.to_le_bytes(), b"x", false), ValuePut::New));
    assert!(fresh.iter().any(|store| store.writing().as_ref().unwrap().segment == number));
    let stored = (0..2).find_map(|_| one.put(&[(key(b"d"), &[b"x"])], false, &until()).ok()).unwrap();
    assert!(matches!(stored[..], [Ok(ValuePut::New)]));
    assert_eq!(get(&open(&folder), b"d").as_deref(), Some(&b"x"[..]));
}

#[test]
fn a_segment_whose_file_somebody_removed_is_neither_filled_nor_believed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    put(&store, b"a", b"x", false);
    std::fs::remove_file(folder.path().join("s-00000001")).unwrap();
    assert_eq!(commit(&store, b"a").unwrap(), [key(b"a")]);
    assert_eq!(put(&store, b"a", b"x", false), ValuePut::New);
    assert_eq!(commit(&store, b"a").unwrap(), []);
    assert_eq!(get(&open(&folder), b"a").as_deref(), Some(&b"x"[..]));
    // A manifest that is published goes elsewhere at once.
    std::fs::remove_file(folder.path().join("s-00000002")).unwrap();
    assert_eq!(store.commit(&[], Some((key(b"m"), &[b"y"])), &until()).unwrap(), []);
    assert_eq!(get(&open(&folder), b"m").as_deref(), Some(&b"y"[..]));
    // So does what is put after a value was found to be lost.
    put(&store, b"b", b"x", false);
    std::fs::remove_file(folder.path().join("s-00000003")).unwrap();
    let place = store.find(key(b"b")).unwrap();
    store.note_damage(key(b"b"), &place);
    assert_eq!(put(&store, b"b", b"x", false), ValuePut::New);
    assert_eq!(get(&open(&folder), b"b").as_deref(), Some(&b"x"[..]));
}

#[test]
fn a_commit_names_what_was_synced_and_is_gone_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let (store, other) = (open(&folder), open(&folder));
    put(&store, b"a", b"x", false);
    assert_eq!(commit(&store, b"a").unwrap(), []);
    std::fs::remove_file(folder.path().join("s-00000001")).unwrap();
    let last = Some((key(b"m"), &[&b"y"[..]][..]));
    assert_eq!(other.commit(&[key(b"a")], last, &until()).unwrap(), [key(b"a")]);
    assert_eq!((get(&store, b"m"), exists(&store, &[b"a"])), (None, vec![None]));
}

#[test]
fn a_value_that_does_not_hold_is_stored_again_or_removed_for_all() {
    let folder = tempfile::tempdir().unwrap();
    let (store, other) = (open(&folder), open(&folder));
    for again in [true, false] {
        put(&store, b"a", b"value", false);
        let place = store.find(key(b"a")).unwrap();
        let path = folder.path().join(name_of(place.segment));
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[place.offset() as usize + 45] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(get(&store, b"a"), None);
        store.note_damage(key(b"a"), &place);
        if again {
            assert_eq!(put(&store, b"a", b"value", false), ValuePut::New);
            assert_eq!(get(&other, b"a").as_deref(), Some(&b"value"[..]));
            delete(&store, &[b"a"]);
        } else {
            delete(&store, &[b"a"]);
            assert_eq!(exists(&other, &[b"a"]), [None]);
        }
    }
}

#[test]
fn what_was_found_damaged_is_stored_again_though_the_log_was_written_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (store, other) = (open(&folder), open(&folder));
    put(&store, b"a", b"value", false);
    put(&store, b"b", b"whole", false);
    assert!(store.commit(&[key(b"a"), key(b"b")], None, &until()).unwrap().is_empty());
    let place = store.find(key(b"a")).unwrap();
    let path = folder.path().join(name_of(place.segment));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[place.offset() as usize + 45] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    store.note_damage(key(b"a"), &place);
    let (mut locked, mut known) = other.locked(&until()).unwrap();
    other.write_anew(&mut locked, &mut known, &until()).unwrap();
    drop((locked, known));
    assert_eq!(exists(&store, &[b"a", b"b"]), [None, Some(5)]);
    assert_eq!(put(&store, b"a", b"value", false), ValuePut::New);
    assert_eq!(put(&store, b"a", b"value", false), ValuePut::Existed);
    assert_eq!(get(&other, b"a").as_deref(), Some(&b"value"[..]));
}

#[test]
fn nobody_waits_beyond_the_call_for_a_thread_that_takes_a_segment() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder);
    let root = fs::open(folder.path(), OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap();
    fs::flock(&root, FlockOperation::LockExclusive).unwrap();
    std::thread::scope(|scope| {
        let long = Until::new(&Limits { deadline_ms: 3000, ..Limits::default() });
        let waits = scope.spawn({
            let store = &store;
            move || store.put(&[(key(b"a"), &[b"x"])], false, &long)
        });
        std::thread::sleep(Duration::from_millis(50));
        let short = Until::new(&Limits { deadline_ms: 50, ..Limits::default() });
        let late = store.put(&[(key(b"b"), &[b"x"])], false, &short);
        assert!(late.map_or(true, |outcomes| outcomes.iter().all(Result::is_err)));
        assert!(!waits.is_finished(), "it waited as long as the other call");
        fs::flock(&root, FlockOperation::Unlock).unwrap();
        assert!(matches!(waits.join().unwrap().unwrap()[..], [Ok(ValuePut::New)]));
    });
}

/// Another thread has begun to read a log that was written anew, and its time was over, or it met an error.
#[test]
fn what_a_log_that_is_half_read_does_not_say_yet_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (open(&folder), open(&folder));
    for n in 0..8_000_u32 {
        put(&other, &(n % 50).to_le_bytes(), &n.to_le_bytes(), true);
    }
    assert!(other.compact(&until()).unwrap());
    put(&other, b"later", b"x", false);
    put(&other, b"last", b"x", false);
    let over = Until::with(&Clock::default(), &Limits::default(), Some(std::time::Instant::now()), None);
    assert!(one.follow(&over).is_err());
    assert!(one.find(key(b"last")).is_none(), "it has read all");
    let published = one.try_commit(&[key(b"later"), key(b"last")], None, &until()).unwrap();
    assert!(matches!(published, Published::Moved));
    assert!(one.commit(&[key(b"later"), key(b"last")], None, &until()).unwrap().is_empty());
    let absent = one.try_commit(&[key(b"last"), key(b"never")], None, &until()).unwrap();
    assert!(matches!(absent, Published::Absent(absent) if absent == [key(b"never")]));
}
