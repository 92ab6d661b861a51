//! Records: where their bytes end up, what instances share, and what a grant does not allow.

use super::item_tests::{Space, begin};
use super::tests::{access, budgets, in_directory};
use super::*;
use crate::contract::bindings::kv_store::backend::payloads::Part;
use crate::contract::bindings::kv_store::backend::records::{Host as _, HostRecordOptions, HostRecordStore, NewRecord};
use crate::contract::bindings::kv_store::backend::store_types::{
    CommitOutcome, GetOutcome, Hashes, Presence, PutOutcome,
};
use crate::payload::counts;

fn state(folder: &std::path::Path) -> State {
    State::new(in_directory(access(Limits::default(), &budgets(1 << 30, 10)), folder), 0).unwrap()
}

fn open(state: &mut State) -> Resource<RecordStore> {
    let options = HostRecordOptions::new(state).unwrap();
    state.set_max_bytes(Resource::new_borrow(options.rep()), 8 << 20).unwrap();
    state.open_records(String::new(), Some(options)).unwrap().unwrap()
}

fn again(handle: &Resource<RecordStore>) -> Resource<RecordStore> {
    Resource::new_borrow(handle.rep())
}

fn keys(keys: &[&[u8; 3]]) -> Hashes {
    Hashes { width: 3, bytes: keys.iter().copied().flatten().copied().collect() }
}

fn put(state: &mut State, store: &Resource<RecordStore>, key: &[u8; 3], value: &[u8]) {
    let values = vec![vec![Part::Bytes(value.to_vec())]];
    let outcomes = HostRecordStore::put(state, again(store), 0, keys(&[key]), values, false).unwrap().unwrap();
    assert!(matches!(outcomes[..], [PutOutcome::Stored]), "{outcomes:?}");
}

#[test]
fn records_are_read_where_they_belong_without_a_copy() {
    let folder = tempfile::tempdir().unwrap();
    let (mut one, mut other) = (state(folder.path()), state(folder.path()));
    let (store, of_other) = (open(&mut one), open(&mut other));
    let long: Vec<u8> = (0..200_000).map(|n| (n % 251) as u8).collect();
    put(&mut one, &store, b"abc", b"0123456789");
    put(&mut other, &of_other, b"def", &long);
    let shares = |state: &State, handle: &Resource<RecordStore>| state.records(handle).unwrap().0;
    assert!(Arc::ptr_eq(&shares(&one, &store), &shares(&other, &of_other)), "a directory has one index in a process");

    // More pieces than one read takes; one too short; none.
    let mut spaces = [Some(Space::new(&[16])), Some(Space::new(&[1000; 250])), Some(Space::new(&[5])), None];
    begin(&mut one, &mut spaces);
    let wanted = keys(&[b"abc", b"def", b"abc", b"abc", b"ghi"]);
    let outcomes = HostRecordStore::get(&mut one, again(&store), 0, wanted, Some(0)).unwrap().unwrap();
    assert_eq!(counts::take(), counts::of_files(folder.path(), 10 + long.len() + 10 + 10));
    let answers = outcomes.into_iter().map(|outcome| match outcome {
        GetOutcome::Found(payload) => Ok(Some(payload)),
        GetOutcome::Missing => Ok(None),
        GetOutcome::Failed(error) => panic!("{error:?}"),
    });
    let got = one.place_answers(answers).unwrap();
    assert!(matches!(got[0], Ok(Some(Got::Placed(10)))) && matches!(got[1], Ok(Some(Got::Placed(200_000)))));
    assert!(matches!(got[2], Ok(Some(Got::TooLong(10)))));
    assert!(matches!(&got[3], Ok(Some(Got::Buffer(data))) if &data[..] == b"0123456789"));
    assert!(matches!(got[4], Ok(None)));
    one.items().end();
    let [Some(short), Some(all), ..] = &spaces else { panic!("there are two") };
    assert!(short.bytes().starts_with(b"0123456789\xee") && all.bytes().starts_with(&long));
}

#[test]
fn what_does_not_hold_is_missing_and_leaves_the_memory_of_its_item_free() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = state(folder.path());
    let store = open(&mut state);
    put(&mut state, &store, b"abc", b"0123456789");
    put(&mut state, &store, b"def", b"abcdefghij");
    let file = folder.path().join("s-00000001");
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.windows(10).position(|window| window == b"0123456789").unwrap();
    bytes[at + 3] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let mut spaces = [Some(Space::new(&[16]))];
    begin(&mut state, &mut spaces);
    let get = |state: &mut State, key| {
        HostRecordStore::get(state, again(&store), 0, keys(&[key]), Some(0)).unwrap().unwrap().pop()
    };
    assert!(matches!(get(&mut state, b"abc"), Some(GetOutcome::Missing)));
    counts::take();
    assert!(matches!(get(&mut state, b"def"), Some(GetOutcome::Found(_))));
    assert_eq!(counts::take(), counts::of_files(folder.path(), 10));
    state.items().end();
    assert_eq!(state.access.reach.shares.payload_bytes.used(), 0);
}

/// What was told of the records of the test below, by the bytes of their keys.
static TOLD: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

#[test]
fn who_watches_files_is_told_what_a_commit_has_synced() {
    // Others in this process have other keys.
    super::files::watch(|event| {
        let (path, what) = match event {
            super::files::FileEvent::Written { path, len, durable } => (path, format!("{len} {durable}")),
            super::files::FileEvent::Synced { path } => (path, "synced".to_owned()),
        };
        if ["records 0/777463", "records 1/777464"].contains(&path) {
            TOLD.lock().unwrap().push(format!("{path}: {what}"));
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let mut state = state(folder.path());
    let store = open(&mut state);
    put(&mut state, &store, b"wtc", b"0123456789");
    let value = || vec![Part::Bytes(b"manifest".to_vec())];
    let last = || Some(NewRecord { space: 1, key: b"wtd".to_vec(), value: value() });
    state.commit(again(&store), 0, vec![keys(&[b"wtc", b"gon"])], last()).unwrap().unwrap();
    state.commit(again(&store), 0, vec![keys(&[b"wtc"])], last()).unwrap().unwrap();
    let told = ["records 0/777463: 10 false", "records 0/777463: synced", "records 1/777464: 8 true"];
    assert_eq!(*TOLD.lock().unwrap(), told);
}

#[test]
fn a_commit_stores_its_record_or_names_what_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = state(folder.path());
    let store = open(&mut state);
    put(&mut state, &store, b"abc", b"x");
    let mut commit = |fresh: Vec<Hashes>| {
        let value = vec![Part::Bytes(b"manifest".to_vec())];
        let last = NewRecord { space: 1, key: b"name".to_vec(), value };
        let committed = state.commit(again(&store), 0, fresh, Some(last)).unwrap().unwrap();
        let name = Hashes { width: 4, bytes: b"name".to_vec() };
        (committed, HostRecordStore::exists(&mut state, again(&store), 1, name).unwrap().unwrap().pop())
    };
    let two = || vec![keys(&[b"abc", b"gon"]), Hashes { width: 1, bytes: b"z".to_vec() }];
    let (committed, there) = commit(two());
    let CommitOutcome::Absent(gone) = committed else { panic!("it was published") };
    let gone: Vec<(u32, &[u8])> = gone.iter().map(|hashes| (hashes.width, &hashes.bytes[..])).collect();
    assert_eq!(gone, [(3, &b"gon"[..]), (1, &b"z"[..])]);
    assert!(matches!(there, Some(Presence::Absent)));
    let (committed, there) = commit(vec![keys(&[b"abc"])]);
    assert!(matches!((committed, there), (CommitOutcome::Published, Some(Presence::Present(Some(8))))));
}
