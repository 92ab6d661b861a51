//! What the contract asks of a `durable` store that keeps files or records: what a commit names is synced before its manifest is there. Nobody
//! cuts the power; the host tells which of them were written and synced.

use std::collections::BTreeMap;

use kv_platform::sync::{Mutex, MutexGuard};
use kv_store_wasm::raw::files::{FileEvent, watch};

use super::CaseResult;
use super::tap::{Chunk, Instances};

pub const NAME: &str = "durable-files";
pub const ASKS: &str =
    "a `durable` store that keeps files or records syncs what is fresh, then publishes, and syncs the manifest";

/// Chunks and manifests here are at least so long: a shorter file is not theirs.
const LEAST: u64 = 5000;

/// Files that are not synced, and what they were when the last file of a commit was written.
static LEDGER: Mutex<Ledger> = Mutex::new(Ledger { unsynced: BTreeMap::new(), written: 0, at_last_write: Vec::new() });

struct Ledger {
    /// With their lengths.
    unsynced: BTreeMap<String, u64>,
    written: u64,
    at_last_write: Vec<String>,
}

fn ledger() -> MutexGuard<'static, Ledger> {
    LEDGER.lock()
}

fn note(event: FileEvent) {
    let mut ledger = ledger();
    match event {
        FileEvent::Written { path, len, durable } if len >= LEAST => {
            ledger.at_last_write = ledger.unsynced.keys().cloned().collect();
            ledger.written += 1;
            if durable {
                ledger.unsynced.remove(path);
            } else {
                ledger.unsynced.insert(path.to_owned(), len);
            }
        }
        FileEvent::Written { .. } => {}
        FileEvent::Synced { path } => drop(ledger.unsynced.remove(path)),
    }
}

/// Run the case. The outer `Err`: why it makes no sense here.
pub fn run(instances: &Instances, salt: u64) -> Result<CaseResult, String> {
    if !instances.store.info().durable {
        return Err("it does not say that it is `durable`".into());
    }
    watch(note);
    let name = format!("{NAME}~{salt:016x}");
    let chunks: Vec<Chunk> =
        [16, 16, 16, 33, 33].into_iter().zip(0..).map(|(width, n)| chunk(width, n, salt)).collect();
    let hashes: Vec<Vec<u8>> = chunks.iter().map(|(hash, _)| hash.clone()).collect();
    let verdict = judge(instances, &chunks, &hashes, &name);
    let _ = (instances.delete_manifest(&name), instances.delete(&hashes));
    if ledger().written == 0 {
        return Err("it writes neither files nor records, or by WASI alone".into());
    }
    Ok(verdict)
}

/// Bytes that do not compress.
fn chunk(width: usize, number: u64, salt: u64) -> Chunk {
    let mut hash = [&number.to_be_bytes()[..], &salt.to_be_bytes()].concat();
    hash.resize(width, 0x5c);
    (hash, noise(salt ^ number, LEAST as usize + 100 * number as usize))
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn judge(instances: &Instances, chunks: &[Chunk], hashes: &[Vec<u8>], name: &str) -> CaseResult {
    let (first, rest) = chunks.split_at(1);
    instances.put(first, false)?;
    let alone: Vec<Vec<u8>> = first.iter().map(|(hash, _)| hash.clone()).collect();
    instances.commit(&alone, None)?;
    unsynced("a commit without a manifest")?;
    for chunk in rest {
        instances.put(std::slice::from_ref(chunk), false)?;
    }
    let before: Vec<String> = ledger().unsynced.keys().cloned().collect();
    instances.commit(hashes, Some((name, &noise(7, 2 * LEAST as usize))))?;
    unsynced("a commit")?;
    let late = ledger().at_last_write.iter().filter(|path| before.contains(path)).count();
    match late {
        0 => Ok(()),
        late => Err(format!(
            "commit wrote the manifest while {late} files or records of fresh chunks were not yet synced: sync them first"
        )),
    }
}

fn unsynced(after: &str) -> CaseResult {
    let ledger = ledger();
    match ledger.unsynced.first_key_value() {
        None => Ok(()),
        Some((path, len)) => Err(format!(
            "after {after} {} files or records are not synced, such as {path} of {len} bytes: use `sync`, write them `durable`, or name \
             them to `records.commit`",
            ledger.unsynced.len()
        )),
    }
}
