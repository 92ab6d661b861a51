//! `records`, in a directory that holds nothing else.

use kv_store_sdk::payloads::Part;
use kv_store_sdk::records::{Evicted, Hashes as Keys, NewRecord, RecordOptions, RecordStore, open_records};
use kv_store_sdk::{Chunk, CommitOutcome, DeleteOutcome, GetOutcome, Presence, PutOutcome, Result, system};

use crate::{content, done, kind, row, text};

const BOUND: u64 = 8 << 20;
const HOUR: u64 = 3_600_000_000_000;

fn keys(width: u32, bytes: &[u8]) -> Keys {
    Keys { width, bytes: bytes.to_vec() }
}

/// A key of as many bytes as it has.
fn key(key: &str) -> Keys {
    keys(key.len() as u32, key.as_bytes())
}

fn value(text: &str) -> Vec<Part<'static>> {
    vec![Part::Bytes(text.as_bytes().to_vec())]
}

fn join<T>(outcomes: Result<Vec<T>>, shown: impl Fn(T) -> String) -> Result<String> {
    outcomes.map(|outcomes| outcomes.into_iter().map(shown).collect::<Vec<_>>().join(", "))
}

fn put(store: &RecordStore, space: u8, keys: &Keys, values: &[Vec<Part>], replace: bool) -> Result<String> {
    join(store.put(space, keys, values, replace), |outcome| match outcome {
        PutOutcome::Stored => "stored".into(),
        PutOutcome::Existed => "existed".into(),
        PutOutcome::Failed(error) => format!("failed: {}", kind(&error)),
    })
}

fn get(store: &RecordStore, space: u8, keys: &Keys, item: Option<u32>) -> Result<String> {
    join(store.get(space, keys, item), |outcome| match outcome {
        GetOutcome::Found(payload) => content(&payload).unwrap_or_else(|error| kind(&error)),
        GetOutcome::Missing => "missing".into(),
        GetOutcome::Failed(error) => format!("failed: {}", kind(&error)),
    })
}

fn exists(store: &RecordStore, space: u8, keys: &Keys) -> Result<String> {
    join(store.exists(space, keys), |presence| match presence {
        Presence::Absent => "absent".into(),
        Presence::Present(len) => len.map_or_else(|| "present".into(), |len| len.to_string()),
    })
}

fn delete(store: &RecordStore, space: u8, keys: &Keys, durable: bool) -> Result<String> {
    join(store.delete(space, keys, durable), |outcome| match outcome {
        DeleteOutcome::Gone => "gone".into(),
        DeleteOutcome::Failed(error) => format!("failed: {}", kind(&error)),
    })
}

fn commit(store: &RecordStore, space: u8, fresh: &[Keys], last: Option<&NewRecord>) -> Result<String> {
    Ok(match store.commit(space, fresh, last)? {
        CommitOutcome::Published => "published".into(),
        CommitOutcome::Absent(gone) => {
            let shown = gone.iter().map(|keys| format!("{} by {}", text(&keys.bytes), keys.width));
            format!("absent: {}", shown.collect::<Vec<_>>().join(", "))
        }
    })
}

fn usage(store: &RecordStore, space: u8) -> Result<String> {
    store.usage(space).map(|totals| format!("{} of {} bytes", totals.records, totals.bytes))
}

/// All entries of a space, in pages of so many, by their keys.
fn entries(store: &RecordStore, space: u8, limit: u32) -> Result<String> {
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = store.entries(space, after.as_deref(), limit)?;
        if page.entries.len() > limit as usize {
            return Ok(format!("a page of {} with a limit of {limit}", page.entries.len()));
        }
        listed.extend(page.entries.into_iter().map(|entry| format!("{} {}", text(&entry.key), entry.size)));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    listed.sort();
    Ok(listed.join(", "))
}

fn evict(store: &RecordStore, bytes: u64, unused_since: Option<u64>, keep_since: u64) -> Result<String> {
    store
        .evict(bytes, unused_since, keep_since)
        .map(|Evicted { bytes, records, more }| format!("{records:?} of {bytes} bytes, more: {more}"))
}

pub fn ask(chunks: &[Chunk]) {
    row("open-records: not granted", done(open_records("no-such-grant", None)));
    let options = RecordOptions::new();
    options.set_max_bytes(BOUND);
    options.set_file_bytes(100);
    row("open-records: files of 100 bytes", done(open_records("", Some(&options))));
    options.set_file_bytes(BOUND / 2);
    row("open-records: files of half the bound", done(open_records("", Some(&options))));
    options.set_file_bytes(1 << 20);
    options.set_max_records(1000);
    let store = match open_records("", Some(&options)) {
        Ok(store) => store,
        Err(error) => return row("open-records", Err::<&str, _>(error)),
    };
    let s = &store;
    let most = s.bounds().max_value_bytes;
    row("bounds: the capacity", Ok(s.bounds().capacity == BOUND));
    row("bounds: the longest value is shorter than a file", Ok(most > 1 << 19 && most < 1 << 20));
    puts(s, chunks, most);
    reads(s);
    commits(s);
    removals(s);
    options.set_max_bytes(2 * BOUND);
    options.set_file_bytes(1 << 21);
    row("open-records: again, with another bound", done(open_records("", Some(&options))));
    row("bounds: the other bound holds for all of the process", Ok(s.bounds().capacity == 2 * BOUND));
    row("bounds: the length of files stays", Ok(s.bounds().max_value_bytes == most));
    let again = open_records("", None);
    row("get: in a store that was opened again", again.and_then(|again| get(&again, 0, &key("kept"), None)));
    evictions(s);
}

fn puts(s: &RecordStore, chunks: &[Chunk], most: u64) {
    row("put: new records", put(s, 0, &keys(1, b"ab"), &[value("first"), value("")], false));
    row("put: what exists", put(s, 0, &keys(1, b"ac"), &[value("other"), value("third")], false));
    row("put: what exists, with replace", put(s, 0, &key("c"), &[value("third again")], true));
    row("put: the same key in another space", put(s, 3, &key("a"), &[value("space 3")], false));
    row("put: a part of the call's items", put(s, 0, &key("item"), &[vec![chunks[0].part()]], false));
    row("put: an item that is not there", put(s, 0, &key("none"), &[vec![Part::Item(9)]], false));
    row("put: keys of 255 bytes", put(s, 0, &key(&"k".repeat(255)), &[value("long")], false));
    row("put: keys of 256 bytes", put(s, 0, &key(&"k".repeat(256)), &[value("long")], false));
    row("put: keys of nothing", put(s, 0, &keys(0, b""), &[], false));
    row("put: bytes that are no whole keys", put(s, 0, &keys(2, b"abc"), &[value("x")], false));
    row("put: fewer values than keys", put(s, 0, &keys(1, b"xy"), &[value("x")], false));
    row("put: space 4", put(s, 4, &key("a"), &[value("x")], false));
    row("put: no keys", put(s, 0, &keys(1, b""), &[], false));
    let long = |bytes: u64| vec![Part::Bytes(vec![b'l'; bytes as usize])];
    row("put: the longest value", put(s, 2, &key("long"), &[long(most)], false));
    row("put: a longer value, beside another", put(s, 2, &keys(1, b"lm"), &[long(most + 1), value("m")], false));
    row("delete: the longest value", delete(s, 2, &keys(4, b"long"), false));
}

fn reads(s: &RecordStore) {
    row("get: records", get(s, 0, &keys(1, b"abcd"), None));
    row("get: of another space", get(s, 3, &keys(1, b"ab"), None));
    row("get: what was an item", get(s, 0, &key("item"), None));
    row("get: keys of 256 bytes", get(s, 0, &key(&"k".repeat(256)), None));
    row("get: space 4", get(s, 4, &key("a"), None));
    row("exists: records", exists(s, 0, &keys(1, b"abcd")));
    row("exists: space 255", exists(s, 255, &key("a")));
    row("usage: of space 0", usage(s, 0));
    row("usage: of an empty space", usage(s, 1));
    row("usage: of space 4", usage(s, 4));
    row("entries: of a space", entries(s, 2, 100));
    row("entries: one by one", entries(s, 3, 1));
    row("entries: of an empty space", entries(s, 1, 1));
    row("entries: a limit of 0", entries(s, 0, 0));
    row("entries: space 4", entries(s, 4, 1));
    row("entries: after what no page gave", s.entries(0, Some("no page"), 1).map(|page| page.entries.len()));
    let recent =
        s.entries(0, None, 100).map(|page| page.entries.iter().all(|entry| system::now().abs_diff(entry.used) < HOUR));
    row("entries: times of what was just put", recent);
}

fn commits(s: &RecordStore) {
    let last = |space, key: &str, text: &str| NewRecord { space, key: key.as_bytes().to_vec(), value: value(text) };
    row("commit: nothing", commit(s, 0, &[], None));
    row("commit: records that are there", commit(s, 0, &[keys(1, b"ab"), key("item")], None));
    let manifest = last(1, "name", "a manifest");
    row("commit: records that are there, and one more", commit(s, 0, &[keys(1, b"ac")], Some(&manifest)));
    row("get: the one more", get(s, 1, &key("name"), None));
    let other = last(1, "name", "another");
    row("commit: one more in place of the former", commit(s, 0, &[], Some(&other)));
    row("get: in place of the former", get(s, 1, &key("name"), None));
    let never = last(1, "name", "never");
    row("commit: records that are gone", commit(s, 0, &[keys(1, b"axby"), key("gone")], Some(&never)));
    row("commit: of another space", commit(s, 2, &[key("b")], Some(&never)));
    row("get: not in place of it", get(s, 1, &key("name"), None));
    row("commit: keys of 256 bytes", commit(s, 0, &[key(&"k".repeat(256))], None));
    row("commit: space 4", commit(s, 4, &[key("a")], None));
    row("commit: one more in space 4", commit(s, 0, &[], Some(&last(4, "a", "x"))));
    row("commit: one more under a key of nothing", commit(s, 0, &[], Some(&last(1, "", "x"))));
}

fn removals(s: &RecordStore) {
    row("put: kept", put(s, 0, &key("kept"), &[value("kept")], false));
    row("delete: what is there, and what is not", delete(s, 0, &keys(1, b"ax"), true));
    row("delete: of another space", delete(s, 2, &key("b"), false));
    row("exists: after that", exists(s, 0, &keys(1, b"ab")));
    row("put: again", put(s, 0, &key("a"), &[value("again")], false));
    row("delete: space 4", delete(s, 4, &key("a"), false));
    row("delete: keys of 256 bytes", delete(s, 0, &key(&"k".repeat(256)), false));
}

fn evictions(s: &RecordStore) {
    row("evict: nothing", evict(s, 0, None, u64::MAX));
    row("evict: nothing that was used after keep-since", evict(s, u64::MAX, Some(u64::MAX), 0));
    row("evict: what was unused for an hour", evict(s, 0, Some(system::now() - HOUR), u64::MAX));
    // How many lie in one file is the host's affair.
    let removed = s.evict(1, None, u64::MAX).map(|evicted| {
        let records: u64 = evicted.records.iter().sum();
        evicted.records.len() == 4 && evicted.bytes > 0 && records > 0 && !evicted.more
    });
    row("evict: a byte", removed);
}

/// Records for items of a get.
pub fn read_items(count: u32) {
    let Ok(store) = open_records("", None) else { return };
    drop(put(&store, 0, &keys(1, b"12"), &[value("one"), value("two")], true));
    for (what, item) in
        [("of the call", Some(0)), ("none", None), ("beyond the call", Some(count)), ("far off", Some(u32::MAX))]
    {
        row(&format!("get-chunks: records with items {what}"), get(&store, 0, &keys(1, b"12"), item));
    }
}
