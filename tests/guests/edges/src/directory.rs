//! `files`, in the directory that the URI names.

use kv_store_sdk::files::{
    Directory, EvictOutcome, ReadOutcome, ReadRequest, RemoveOutcome, SizeOutcome, WriteOutcome, WriteRequest,
    open_directory,
};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Result, system};

use crate::{content, done, kind, row};

fn read(directory: &Directory, path: &str, offset: u64, len: Option<u64>) -> Result<String> {
    let outcome = directory.read(&[ReadRequest { path: path.into(), offset, len, item: None }])?.pop();
    match outcome {
        Some(ReadOutcome::Found(payload)) => content(&payload),
        Some(ReadOutcome::Missing) => Ok("missing".into()),
        Some(ReadOutcome::Failed(error)) => Ok(format!("failed: {}", kind(&error))),
        None => Ok("nothing".into()),
    }
}

fn write(directory: &Directory, path: &str, text: &str, replace: bool, durable: bool) -> Result<String> {
    let content = vec![Part::Bytes(text.as_bytes().to_vec())];
    let outcome = directory.write(&[WriteRequest { path: path.into(), content, replace }], durable)?.pop();
    Ok(match outcome {
        Some(WriteOutcome::Written) => "written".into(),
        Some(WriteOutcome::Existed) => "existed".into(),
        Some(WriteOutcome::Failed(error)) => format!("failed: {}", kind(&error)),
        None => "nothing".into(),
    })
}

fn remove(directory: &Directory, path: &str) -> Result<String> {
    Ok(match directory.remove(&[path.to_owned()], false)?.pop() {
        Some(RemoveOutcome::Removed) => "removed".into(),
        Some(RemoveOutcome::Missing) => "missing".into(),
        Some(RemoveOutcome::Failed(error)) => format!("failed: {}", kind(&error)),
        None => "nothing".into(),
    })
}

fn size(directory: &Directory, path: &str) -> Result<String> {
    Ok(match directory.sizes(&[path.to_owned()])?.pop() {
        Some(SizeOutcome::Size(size)) => size.to_string(),
        Some(SizeOutcome::Missing) => "missing".into(),
        Some(SizeOutcome::Failed(error)) => format!("failed: {}", kind(&error)),
        None => "nothing".into(),
    })
}

fn unused(directory: &Directory, path: &str, since: u64) -> Result<String> {
    Ok(match directory.remove_unused(&[path.to_owned()], since)?.pop() {
        Some(EvictOutcome::Removed(bytes)) => format!("removed {bytes}"),
        Some(EvictOutcome::Kept) => "kept".into(),
        Some(EvictOutcome::Missing) => "missing".into(),
        Some(EvictOutcome::Failed(error)) => format!("failed: {}", kind(&error)),
        None => "nothing".into(),
    })
}

fn entries(directory: &Directory, path: &str, after: Option<&str>, limit: u32) -> Result<String> {
    let listed = directory.entries(path, after, limit)?;
    let shown = |entry: &kv_store_sdk::files::Entry| {
        format!("{}{} {}", entry.name, if entry.directory { "/" } else { "" }, entry.size)
    };
    Ok(listed.iter().map(shown).collect::<Vec<_>>().join(", "))
}

pub fn ask() {
    row("open-directory: not granted", done(open_directory("no-such-grant")));
    let directory = match open_directory("") {
        Ok(directory) => directory,
        Err(error) => return row("open-directory", Err::<&str, _>(error)),
    };
    let d = &directory;
    row("write: a new file", write(d, "a", "hello", false, false));
    row("write: what exists, without replace", write(d, "a", "other", false, false));
    row("write: what exists, with replace", write(d, "a", "hello again", true, true));
    row("write: in directories that are not there", write(d, "deep/er/b", "b", false, true));
    row("write: nothing", write(d, "empty", "", false, false));
    row("write: over a directory", write(d, "deep", "x", true, false));
    row("write: below a file", write(d, "a/b", "x", false, false));
    let item = WriteRequest { path: "item".into(), content: vec![Part::Item(0), Part::Item(1)], replace: true };
    row("write: items of the call", d.write(&[item], false).map(|outcomes| outcomes.len()));
    row("read: what was an item", read(d, "item", 0, None));
    row("read: a whole file", read(d, "a", 0, None));
    row("read: from an offset", read(d, "a", 6, None));
    row("read: a part", read(d, "a", 0, Some(5)));
    row("read: nothing at the end", read(d, "a", 11, Some(0)));
    row("read: to past the end", read(d, "a", 6, Some(6)));
    row("read: from past the end", read(d, "a", 12, None));
    row("read: an empty file", read(d, "empty", 0, None));
    row("read: what is not there", read(d, "none", 0, None));
    row("read: below what is not there", read(d, "no/ne", 0, None));
    row("read: a directory", read(d, "deep", 0, None));
    for path in ["", "/a", "a/", "a//b", ".", "..", "deep/../a", ".kv-x", "deep/.kv-x", "a\\b", "c:d", "nul\0"] {
        row(&format!("read: the path {path:?}"), read(d, path, 0, None));
    }
    row("read: a segment of 256 bytes", read(d, &"x".repeat(256), 0, None));
    row("read: a segment of 255 bytes", read(d, &"x".repeat(255), 0, None));
    row("sizes: a file", size(d, "a"));
    row("sizes: a directory", size(d, "deep"));
    row("sizes: what is not there", size(d, "none"));
    row("sizes: a path out of it", size(d, "../a"));
    row("sizes: none", d.sizes(&[]).map(|sizes| sizes.len()));
    row("sync: a file", done(d.sync(&["a".into()])));
    row("sync: what is not there", done(d.sync(&["a".into(), "none".into()])));
    row("sync: nothing", done(d.sync(&[])));
    row("entries: all", entries(d, "", None, 100));
    row("entries: after one", entries(d, "", Some("deep"), 100));
    row("entries: at most one", entries(d, "", None, 1));
    row("entries: below", entries(d, "deep/er", None, 100));
    row("entries: no such directory", entries(d, "none", None, 100));
    row("entries: of a file", entries(d, "a", None, 100));
    row("entries: a limit of 0", entries(d, "", None, 0));
    row("entries: a path out of it", entries(d, "..", None, 1));
    let recent = d.entries("", None, 1).map(|entries| {
        entries.iter().all(|entry| {
            system::now().abs_diff(entry.modified) < 120_000_000_000 && entry.used >= entry.modified - 60_000_000_000
        })
    });
    row("entries: times of what was just written", recent);
    row("space: some", d.space().map(|space| space.total >= space.available && space.total > 0));
    row("remove: a directory with files", remove(d, "deep"));
    row("remove: a file", remove(d, "deep/er/b"));
    row("remove: an empty directory", remove(d, "deep/er"));
    row("remove: what is not there", remove(d, "none"));
    row("remove: a path out of it", remove(d, "deep/../a"));
    row("remove-unused: what was used since", unused(d, "a", 1_000_000_000));
    row("remove-unused: what was not", unused(d, "a", u64::MAX));
    row("remove-unused: what is not there", unused(d, "none", u64::MAX));
    for path in ["item", "empty", "deep"] {
        row(&format!("remove: {path}"), remove(d, path));
    }
}

/// Files for items of a get.
pub fn read_items(count: u32) {
    let Ok(directory) = open_directory("") else { return };
    drop(write(&directory, "got", "first", true, false));
    let request = |item| ReadRequest { path: "got".into(), offset: 0, len: None, item };
    let requests = [request(Some(0)), request(None), request(Some(count)), request(Some(u32::MAX))];
    let Ok(outcomes) = directory.read(&requests) else { return };
    for (what, outcome) in ["of the call", "none", "that is not there", "far off"].iter().zip(&outcomes) {
        let said = match outcome {
            ReadOutcome::Found(payload) => content(payload),
            ReadOutcome::Missing => Ok("missing".into()),
            ReadOutcome::Failed(error) => Ok(kind(error)),
        };
        row(&format!("get-chunks: read with an item {what}"), said);
    }
    drop(remove(&directory, "got"));
}
