//! What no backend would ask of `records`. Each function fails with `invalid: refused` if the host refuses or bounds all of it, and
//! otherwise says what it did not.

use kv_store_sdk::payloads::{Part, Range};
use kv_store_sdk::records::{NewRecord, RecordOptions, RecordStore, open_records};
use kv_store_sdk::{ErrorKind, Hashes, Payload, PutOutcome, Result};

use crate::lies::{all_refused, expect, is_invalid};

fn store() -> Result<RecordStore> {
    let options = RecordOptions::new();
    options.set_max_bytes(32 << 20);
    options.set_max_records(10_000);
    open_records("", Some(&options))
}

/// Keys, spaces, values and places that are none.
pub fn names() -> Result<()> {
    let store = store()?;
    let long = [7; 256];
    let key = |width: usize| Hashes::one(long.get(..width).unwrap_or(&long)).keys();
    let mut ragged = key(5);
    ragged.bytes.truncate(3);
    let mut endless = key(5);
    endless.width = u32::MAX;
    let mut none = key(5);
    none.width = 0;
    for (space, keys) in [(0, key(256)), (4, key(5)), (255, key(5)), (0, ragged), (0, endless), (0, none)] {
        let shown = |what: &str| format!("{what} of a key of {} in space {space}", keys.width);
        let value = [vec![Part::Bytes(b"v".to_vec())]];
        expect(store.exists(space, &keys).is_err_and(|error| is_invalid(&error)), || shown("exists"))?;
        expect(store.get(space, &keys, None).is_err_and(|error| is_invalid(&error)), || shown("get"))?;
        expect(store.put(space, &keys, &value, true).is_err_and(|error| is_invalid(&error)), || shown("put"))?;
        expect(store.delete(space, &keys, true).is_err_and(|error| is_invalid(&error)), || shown("delete"))?;
        let fresh = [keys.clone()];
        expect(store.commit(space, &fresh, None).is_err_and(|error| is_invalid(&error)), || shown("commit"))?;
    }
    for (space, key) in [(0, &long[..]), (0, &[]), (4, &long[..5])] {
        let last = NewRecord { space, key: key.to_vec(), value: Vec::new() };
        let committed = store.commit(0, &[], Some(&last));
        expect(committed.is_err_and(|error| is_invalid(&error)), || format!("a last key of {}", key.len()))?;
    }
    for place in ["", "x", "1.2.3", "ffffffffffffffffff.1.1.1", "0.0.0.0.0", "-1.1.1.1"] {
        let listed = store.entries(0, Some(place), 10);
        expect(listed.is_err_and(|error| is_invalid(&error)), || format!("a listing from {place:?}"))?;
    }
    for forged in ["1.28.0.0", "ffffffff.ffffffffffffffff.0.ffffffff"] {
        let listed = store.entries(0, Some(forged), u32::MAX);
        expect(listed.is_ok_and(|page| page.entries.len() <= 4096), || format!("a listing from {forged}"))?;
    }
    expect(store.entries(0, None, 0).is_err_and(|error| is_invalid(&error)), || "a limit of 0".into())?;
    expect(store.entries(4, None, 5).is_err_and(|error| is_invalid(&error)), || "a listing of no space".into())?;
    expect(store.usage(4).is_err_and(|error| is_invalid(&error)), || "the usage of no space".into())?;
    for values in [Vec::new(), vec![Vec::new(); 2]] {
        let put = store.put(0, &key(5), &values, false);
        expect(put.is_err_and(|error| is_invalid(&error)), || format!("{} values for a key", values.len()))?;
    }
    expect(open_records("no-such-grant", None).is_err_and(|error| error.kind == ErrorKind::Denied), || {
        "a grant".into()
    })?;
    all_refused()
}

/// Batches and bounds that are too long.
pub fn many() -> Result<()> {
    let store = store()?;
    let keys = |count: u32| {
        let mut keys = Hashes::one(&[0; 4]).keys();
        keys.bytes = (0..count).flat_map(u32::to_be_bytes).collect();
        keys
    };
    let many = keys(70_000);
    expect(store.exists(0, &many)?.len() <= 4096, || "as many answers as were asked for".into())?;
    expect(store.get(0, &many, Some(u32::MAX - 5))?.len() <= 4096, || "as many values".into())?;
    expect(store.delete(0, &many, false)?.len() <= 4096, || "as many removals".into())?;
    let empty = vec![Vec::new(); 70_000];
    expect(store.put(0, &many, &empty, false)?.len() <= 4096, || "as many puts".into())?;
    let committed = store.commit(0, &vec![keys(100_000); 3], None);
    expect(committed.is_err_and(|error| is_invalid(&error)), || "a commit of 300,000 records".into())?;
    for (max, file) in [(Some(0), None), (None, Some(7)), (None, Some(u64::MAX)), (Some(1 << 20), Some(1 << 20))] {
        let options = RecordOptions::new();
        max.into_iter().for_each(|max| options.set_max_bytes(max));
        file.into_iter().for_each(|file| options.set_file_bytes(file));
        options.set_max_records(u64::MAX);
        // The store is there: what a file is to have no longer matters.
        drop(open_records("", Some(&options))?);
    }
    all_refused()
}

/// One long value again and again, and one that reaches past its end.
pub fn large() -> Result<()> {
    let store = store()?;
    let payload = Payload::from_bytes(&vec![7; 2 << 20])?;
    let mut keys = Hashes::one(&[0; 4]).keys();
    keys.bytes = (0..4000_u32).flat_map(u32::to_be_bytes).collect();
    let values: Vec<Vec<Part>> = (0..4000).map(|_| vec![Part::Payload(&payload)]).collect();
    let put = store.put(0, &keys, &values, true)?;
    expect(!put.is_empty(), || "no answer".into())?;
    let bounds = store.bounds();
    expect(store.usage(0)?.bytes <= bounds.capacity, || "more than the store has".into())?;
    let (one, twice) =
        (Hashes::one(b"k").keys(), [vec![Part::Payload(&payload), Part::Payload(&payload), Part::Payload(&payload)]]);
    let long = store.put(0, &one, &twice, true)?.pop();
    let refused =
        |outcome: &Option<PutOutcome>| matches!(outcome, Some(PutOutcome::Failed(error)) if is_invalid(error));
    expect(refused(&long), || "a value that no file takes".into())?;
    let past = [vec![Part::Range(Range { payload: &payload, offset: 1, len: u64::MAX })]];
    expect(refused(&store.put(0, &one, &past, true)?.pop()), || "a range past the end".into())?;
    expect(store.evict(u64::MAX, Some(u64::MAX), u64::MAX)?.bytes <= bounds.capacity, || "an eviction".into())?;
    all_refused()
}

/// Handles to stores until the host refuses.
pub fn flood() -> Result<()> {
    loop {
        std::mem::forget(open_records("", None)?);
    }
}

/// Handles to options, which the host cannot refuse by an answer.
pub fn flood_of_options() -> Result<()> {
    loop {
        std::mem::forget(RecordOptions::new());
    }
}
