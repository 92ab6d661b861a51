//! What no backend would ask of `files`. Each function fails with `invalid: refused` if the host refuses or bounds all of it, and otherwise
//! says what it did not.

use kv_store_sdk::files::{
    self, Directory, EvictOutcome, ReadOutcome, ReadRequest, RemoveOutcome, SizeOutcome, WriteOutcome, WriteRequest,
};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{Error, ErrorKind, Payload, Result};

pub fn all_refused() -> Result<()> {
    Err(Error::invalid("refused"))
}

pub fn expect(holds: bool, what: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::other(format!("not refused: {}", what()))) }
}

pub fn is_invalid(error: &Error) -> bool {
    error.kind == ErrorKind::Invalid
}

fn whole(path: &str) -> ReadRequest {
    ReadRequest { path: path.into(), offset: 0, len: None, item: None }
}

/// Names that lead elsewhere, that are the host's own, that no file system has.
pub fn names() -> Result<()> {
    let directory = files::open_directory("")?;
    let long = ["x".repeat(256), "x/".repeat(3000) + "x", "x".repeat(4 << 20)];
    let short = [
        "",
        ".",
        "..",
        "../x",
        "a/../x",
        "/etc/passwd",
        "a//b",
        "a/",
        "a\0b",
        "a\\b",
        "c:d",
        ".kv-usage",
        ".kv-tmp/x",
        "a/.kv-x",
    ];
    for name in short.into_iter().chain(long.iter().map(String::as_str)) {
        let shown = || name.chars().take(40).collect::<String>();
        let named = || [name.to_owned()];
        let read = directory.read(&[whole(name)])?.pop();
        expect(matches!(&read, Some(ReadOutcome::Failed(error)) if is_invalid(error)), || format!("read {}", shown()))?;
        let request = WriteRequest { path: name.into(), content: Vec::new(), replace: true };
        let written = directory.write(&[request], false)?.pop();
        expect(matches!(&written, Some(WriteOutcome::Failed(error)) if is_invalid(error)), || {
            format!("write {}", shown())
        })?;
        let size = directory.sizes(&named())?.pop();
        expect(matches!(&size, Some(SizeOutcome::Failed(error)) if is_invalid(error)), || format!("size {}", shown()))?;
        let removed = directory.remove(&named(), false)?.pop();
        expect(matches!(&removed, Some(RemoveOutcome::Failed(error)) if is_invalid(error)), || {
            format!("remove {}", shown())
        })?;
        let evicted = directory.remove_unused(&named(), u64::MAX)?.pop();
        expect(matches!(&evicted, Some(EvictOutcome::Failed(error)) if is_invalid(error)), || {
            format!("evict {}", shown())
        })?;
        let synced = directory.sync(&named());
        expect(synced.is_err_and(|error| is_invalid(&error)), || format!("sync {}", shown()))?;
        if !name.is_empty() {
            let listed = directory.entries(name, None, 10);
            expect(listed.is_err_and(|error| is_invalid(&error)), || format!("list {}", shown()))?;
        }
        // A place in a listing is no path: nothing is opened by it.
        directory.entries("", Some(name), 10)?;
    }
    let none = directory.entries("", None, 0);
    expect(none.is_err_and(|error| is_invalid(&error)), || "list no entries".into())?;
    all_refused()
}

/// Ranges past the end of a file of 10 bytes, and beyond all numbers.
pub fn ranges() -> Result<()> {
    let directory = files::open_directory("")?;
    let content = vec![Part::Bytes(b"0123456789".to_vec())];
    directory.write(&[WriteRequest { path: "ranged".into(), content, replace: true }], false)?;
    let read =
        |offset, len, item| Ok(directory.read(&[ReadRequest { path: "ranged".into(), offset, len, item }])?.pop());
    for (offset, len) in [
        (u64::MAX, None),
        (u64::MAX, Some(u64::MAX)),
        (u64::MAX, Some(1)),
        (1 << 63, Some(1 << 63)),
        (5, Some(u64::MAX)),
        (5, Some(6)),
        (11, None),
        (11, Some(0)),
    ] {
        let outcome = read(offset, len, None)?;
        let refused = matches!(&outcome, Some(ReadOutcome::Failed(error)) if is_invalid(error));
        expect(refused, || format!("{len:?} bytes from {offset}"))?;
    }
    // There is no such item, so it is a payload as any other.
    for item in [0, 7, u32::MAX] {
        let found =
            matches!(read(3, Some(4), Some(item))?, Some(ReadOutcome::Found(data)) if data.read(0, 4)? == b"3456");
        expect(found, || format!("item {item}"))?;
    }
    all_refused()
}

/// More in one call than the host answers.
pub fn many() -> Result<()> {
    const ASKED: usize = 100_000;
    const ANSWERED: usize = 4096;
    let directory = files::open_directory("")?;
    let names = vec!["absent".to_owned(); ASKED];
    let bounded = |what: &str, answers: usize| {
        expect((1..=ANSWERED).contains(&answers), || format!("{answers} answers to {what}"))
    };
    bounded("sizes", directory.sizes(&names)?.len())?;
    bounded("remove", directory.remove(&names, false)?.len())?;
    bounded("remove-unused", directory.remove_unused(&names, 0)?.len())?;
    bounded("read", directory.read(&(0..ASKED).map(|_| whole("absent")).collect::<Vec<_>>())?.len())?;
    bounded("entries", directory.entries("", None, u32::MAX)?.len())?;
    let refused = directory.sync(&names);
    expect(refused.is_err_and(|error| is_invalid(&error)), || "sync of files that are not there".into())?;
    directories()?;
    all_refused()
}

/// Handles to the same directory: the host says when it is enough.
fn directories() -> Result<()> {
    let mut held: Vec<Directory> = Vec::new();
    while held.len() <= 1_000_000 {
        match files::open_directory("") {
            Ok(directory) => held.push(directory),
            Err(error) => return expect(error.kind == ErrorKind::Exhausted, || error.message),
        }
    }
    Err(Error::other("not refused: a million directories"))
}

/// More bytes than the host has room for: out of a file, again and again, and into one.
pub fn large() -> Result<()> {
    let directory = files::open_directory("")?;
    let is_full = |error: &Error| error.kind == ErrorKind::Exhausted;
    // A file with a hole of a tebibyte.
    let outcome = directory.read(&[whole("sparse")])?.pop();
    expect(matches!(&outcome, Some(ReadOutcome::Failed(error)) if is_full(error)), || "a file of 1 TiB".into())?;
    let requests: Vec<ReadRequest> =
        (0..1000).map(|n| ReadRequest { path: "sparse".into(), offset: n, len: Some(1 << 20), item: None }).collect();
    let held = directory.read(&requests)?;
    expect(held.len() < 100, || format!("{} payloads of a MiB", held.len()))?;
    let more = directory.read(&requests)?.into_iter().next();
    expect(matches!(&more, Some(ReadOutcome::Failed(error)) if is_full(error)), || "another payload".into())?;
    drop(held);
    let data = Payload::from_bytes(&vec![0; 8 << 20])?;
    let content = (0..100_000).map(|_| Part::Payload(&data)).collect();
    let written = directory.write(&[WriteRequest { path: "large".into(), content, replace: true }], false);
    let outcome = written.map(|mut outcomes| outcomes.pop());
    let refused = match &outcome {
        Ok(Some(WriteOutcome::Failed(error))) | Err(error) => {
            matches!(error.kind, ErrorKind::Exhausted | ErrorKind::Invalid)
        }
        _ => false,
    };
    expect(refused, || "a file of 800 GB".into())?;
    all_refused()
}
