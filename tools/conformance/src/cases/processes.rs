//! What two processes do with one store at the same time, and what is left by one that is killed.

use std::time::{Duration, Instant};

use super::{bytes, expect};
use crate::{Handle, Killed, Pair, Subject, Verdict};

pub const PAIRS: &[Pair] = &[Pair {
    name: "two-processes",
    asks: "what one process publishes, replaces and deletes is seen by another that has the same URI open",
    first,
    second,
}];

pub const KILLED: &[Killed] = &[Killed {
    name: "killed",
    asks: "a process that is killed while it saves leaves a manifest that was published, whole, with all of its chunks",
    during: save_on,
    after: saved,
}];

/// How long one process waits for what the other does.
const PATIENCE: Duration = Duration::from_secs(20);

/// Wait until the manifest `turn` is this one; without one, until there is none.
fn await_turn(subject: &Subject, store: &Handle, wanted: Option<&[u8]>) -> Verdict {
    let begun = Instant::now();
    loop {
        let found = store.get_manifest(&subject.name("turn"))?;
        if found.as_deref().ok() == wanted {
            return Ok(());
        }
        if begun.elapsed() > PATIENCE {
            let (wanted, found) = (wanted.map(String::from_utf8_lossy), found.as_deref().map(String::from_utf8_lossy));
            let seconds = PATIENCE.as_secs();
            return Err(format!(
                "for {seconds} s the manifest here is {found:?}, and the other process made it {wanted:?} (None: it deleted it)"
            ));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn publish(subject: &Subject, store: &Handle, number: u64) -> Verdict {
    expect("put_chunk", store.put_chunk(&subject.hash(number), &bytes(number, 5000))?, 0)?;
    expect("put_manifest", store.put_manifest(&subject.name("turn"), number.to_string().as_bytes())?, 0)
}

fn fetch(subject: &Subject, store: &Handle, number: u64) -> Verdict {
    let found = store.get_chunk(&subject.hash(number))?;
    expect("get_chunk of what the other process published", found, Ok(bytes(number, 5000)))
}

fn first(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    publish(subject, &store, 1)?;
    await_turn(subject, &store, Some(b"2"))?;
    fetch(subject, &store, 2)?;
    expect("delete_manifest", store.delete_manifest(&subject.name("turn"))?, 0)?;
    await_turn(subject, &store, Some(b"3"))?;
    fetch(subject, &store, 3)
}

fn second(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    await_turn(subject, &store, Some(b"1"))?;
    fetch(subject, &store, 1)?;
    publish(subject, &store, 2)?;
    await_turn(subject, &store, None)?;
    publish(subject, &store, 3)
}

/// Chunks that a manifest of `save_on` names, and the length of each.
const CHUNKS: u64 = 4;
const CHUNK: usize = 8 << 10;
/// Saves that it makes at most.
const SAVES: u64 = 20_000;

/// Chunks after which the same are put again, so that a store which others use too is left with half a megabyte at most.
fn distinct(subject: &Subject) -> u64 {
    if subject.is_given() { 64 } else { CHUNKS * SAVES }
}

/// The chunks of a save, by their numbers.
fn chunks_of(subject: &Subject, save: u64) -> impl Iterator<Item = u64> {
    let distinct = distinct(subject);
    (save * CHUNKS..(save + 1) * CHUNKS).map(move |number| number % distinct)
}

/// Save again and again, and say so after the first time.
fn save_on(subject: &Subject, ready: &dyn Fn()) -> Verdict {
    let store = subject.fresh()?;
    // What the round before has left goes on.
    let former = store.get_manifest(&subject.name("saved"))?.ok().and_then(|found| number_of(&found));
    let begin = former.map_or(0, |save| save + 1);
    for save in begin..begin + SAVES {
        for number in chunks_of(subject, save) {
            let put = store.put_chunk(&subject.hash(number), &bytes(number, CHUNK))?;
            if put != 0 && put != 1 {
                return Err(format!("put_chunk answered {put}"));
            }
        }
        expect("put_manifest", store.put_manifest(&subject.name("saved"), &save.to_be_bytes())?, 0)?;
        if save == begin {
            ready();
        }
    }
    Ok(())
}

fn number_of(manifest: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(manifest.try_into().ok()?))
}

fn saved(subject: &Subject) -> Verdict {
    let store = subject.fresh()?;
    let found = store.get_manifest(&subject.name("saved"))?;
    let found = found
        .map_err(|answer| format!("get_manifest answered {answer}: the manifest of the killed process is gone"))?;
    let save = number_of(&found).ok_or_else(|| format!("the manifest was torn: it has {} of 8 bytes", found.len()))?;
    for number in chunks_of(subject, save) {
        let found = store.get_chunk(&subject.hash(number))?;
        expect("get_chunk of what the manifest of the killed process names", found, Ok(bytes(number, CHUNK)))?;
    }
    Ok(())
}
