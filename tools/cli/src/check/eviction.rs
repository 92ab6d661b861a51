//! What the contract asks of the order of a listing and of an eviction. What a component says of its entries is held against what it does
//! with them: how exact its times are is its own affair.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use kv_store_wasm::{ChunkEntry, Eviction, Store};

use super::CaseResult;
use super::maintenance::{MaintenanceCase, MaintenanceSubject};

pub const CASES: &[MaintenanceCase] = &[
    MaintenanceCase {
        name: "maintenance-pages",
        asks: "while entries are removed page by page, the others are still listed, and their times are nanoseconds",
        alone: false,
        run: pages,
    },
    MaintenanceCase {
        name: "maintenance-order",
        asks: "evict removes the least recently used first, a manifest before its chunks, and counts what it removed",
        alone: true,
        run: order,
    },
    MaintenanceCase {
        name: "maintenance-unused",
        asks: "evict removes all that was last used before unused-since, and with no bytes to remove nothing else",
        alone: true,
        run: unused,
    },
];

const SECOND: u64 = 1_000_000_000;
/// Clocks of servers may be off by so much.
const HOUR: u64 = 3600 * SECOND;
/// Entries of a page.
const PAGE: usize = 7;

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn refused(error: kv_store_wasm::Error) -> String {
    error.to_string()
}

/// All chunks that are listed, by their hash.
fn listed(store: &Store) -> Result<BTreeMap<Vec<u8>, ChunkEntry>, String> {
    let mut found = BTreeMap::new();
    for page in store.chunk_pages(PAGE) {
        let page = page.map_err(|error| format!("list-chunks: {error}"))?;
        found.extend(page.into_iter().map(|entry| (entry.hash.clone(), entry)));
    }
    Ok(found)
}

fn pages(subject: &MaintenanceSubject) -> CaseResult {
    let MaintenanceSubject { store, .. } = subject;
    subject.fill()?;
    let ours: BTreeSet<Vec<u8>> = subject.hashes().map(|hash| ChunkEntry::listed_hash(&hash)).collect();
    let (mut seen, mut after, now) = (BTreeSet::new(), None::<String>, now());
    // An end that never comes is what `maintenance-list` finds.
    for _ in 0..10_000 {
        let page = store.list_chunks(after.as_deref(), PAGE).map_err(|error| format!("list-chunks: {error}"))?;
        if page.entries.len() > PAGE {
            return Err(format!("a page of at most {PAGE} chunks has {}", page.entries.len()));
        }
        let here: Vec<&ChunkEntry> = page.entries.iter().filter(|entry| ours.contains(&entry.hash)).collect();
        for time in here.iter().flat_map(|entry| [entry.stored, entry.used]).flatten() {
            if time.abs_diff(now) > HOUR {
                return Err(format!(
                    "a chunk that was just put is listed with the time {time}: nanoseconds since 1970, {now}"
                ));
            }
        }
        let hashes: Vec<&[u8]> = here.iter().map(|entry| entry.hash.as_slice()).collect();
        seen.extend(here.iter().map(|entry| entry.hash.clone()));
        if !hashes.is_empty() {
            let removed = store.delete_many(&hashes).map_err(refused)?;
            if removed.iter().any(Result::is_err) {
                return Ok(());
            }
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    match ours.difference(&seen).count() {
        0 => Ok(()),
        lost => Err(format!("{lost} of {} chunks were not listed, because others were removed meanwhile", ours.len())),
    }
}

/// Chunks of a save, and saves.
const CHUNKS: u64 = 4;
const SAVES: u64 = 6;
const LEN: usize = 1000;

fn hash(subject: &MaintenanceSubject, save: u64, number: u64) -> Vec<u8> {
    [&subject.salt.to_be_bytes()[..], &save.to_be_bytes(), &number.to_be_bytes()].concat()
}

fn name(subject: &MaintenanceSubject, save: u64) -> String {
    subject.name(&format!("evicted-{save}"))
}

/// Saves, a few milliseconds apart, of which the first is read again after the others.
fn fill(subject: &MaintenanceSubject) -> CaseResult {
    let MaintenanceSubject { store, .. } = subject;
    for save in 0..SAVES {
        for number in 0..CHUNKS {
            store.put_chunk(&hash(subject, save, number), &vec![save as u8; LEN]).map_err(refused)?;
        }
        store.put_manifest(&name(subject, save), &[save as u8; 50]).map_err(refused)?;
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Through the component: a near level would answer in its place.
    store.get_manifest(&name(subject, 0)).map_err(refused)?;
    for number in 0..CHUNKS {
        store.get_chunk(&hash(subject, 0, number)).map_err(refused)?;
    }
    Ok(())
}

fn order(subject: &MaintenanceSubject) -> CaseResult {
    let MaintenanceSubject { store, .. } = subject;
    fill(subject)?;
    let mut before = listed(store)?;
    for _ in 0..10_000 {
        let names_before = subject.manifests()?;
        let evicted = store.evict(&Eviction::new(LEN as u64, None, u64::MAX));
        let evicted = evicted.map_err(|error| format!("evict: {error}"))?;
        let after = listed(store)?;
        let names = subject.manifests()?;
        let gone: Vec<&ChunkEntry> = before.values().filter(|entry| !after.contains_key(&entry.hash)).collect();
        let (newest, oldest) = (
            gone.iter().filter_map(|entry| entry.used).max(),
            after.values().filter_map(|entry| before.get(&entry.hash)?.used).min(),
        );
        // A sample may take one for another; in a store as small as this nothing has to be sampled.
        if newest.zip(oldest).is_some_and(|(newest, oldest)| newest > oldest) {
            return Err("evict removed a chunk that was used later than one that it left, by its own listing".into());
        }
        if store.info().wants_fresh {
            let torn = (0..SAVES).find(|save| {
                let there = |number| after.contains_key(&ChunkEntry::listed_hash(&hash(subject, *save, number)));
                names.contains(&name(subject, *save)) && !(0..CHUNKS).all(there)
            });
            if let Some(save) = torn {
                return Err(format!("evict removed chunks of save {save}, and left the manifest that names them"));
            }
        }
        let sizes: Option<u64> = gone.iter().map(|entry| entry.bytes).sum();
        // Listed without envelopes, and without what a manifest takes; counted as the component likes.
        let manifests = names_before.difference(&names).count() as u64;
        if let Some(sizes) = sizes.filter(|_| !gone.is_empty()) {
            let most = sizes + (gone.len() as u64 + manifests) * (64 + 256);
            if evicted.bytes > most + most / 2 {
                return Err(format!(
                    "evict says that it removed {} bytes; {} chunks of {sizes} bytes and {manifests} manifests are gone",
                    evicted.bytes,
                    gone.len()
                ));
            }
        }
        if after.is_empty() {
            return Ok(());
        }
        if gone.is_empty() && manifests == 0 {
            return Err(format!("{} chunks stay, though all of them may go", after.len()));
        }
        before = after;
    }
    Err("evict goes on for ever".into())
}

fn unused(subject: &MaintenanceSubject) -> CaseResult {
    let MaintenanceSubject { store, .. } = subject;
    fill(subject)?;
    let before = listed(store)?;
    let times: Vec<u64> = before.values().filter_map(|entry| entry.used).collect();
    let (Some(oldest), Some(newest)) = (times.iter().min(), times.iter().max()) else {
        return Ok(());
    };
    let evict = |since: u64| -> Result<BTreeMap<Vec<u8>, ChunkEntry>, String> {
        for _ in 0..1000 {
            if !store.evict(&Eviction::new(0, Some(since), u64::MAX)).map_err(|error| format!("evict: {error}"))?.more {
                break;
            }
        }
        listed(store)
    };
    // Times may lag by a minute.
    let lag = 120 * SECOND;
    let left = evict(oldest.saturating_sub(lag))?;
    if left.len() < before.len() {
        return Err(format!("evict removed {} chunks, and none of them was unused since", before.len() - left.len()));
    }
    // Where two listings agree on each time, the times are exact, and one in between tells.
    let again = listed(store)?;
    let exact = again.values().all(|entry| before.get(&entry.hash).is_some_and(|former| former.used == entry.used));
    let middle = oldest + (newest - oldest) / 2;
    if exact && newest > oldest && newest - oldest < lag {
        let left = evict(middle)?;
        let used = |entry: &ChunkEntry| entry.used.unwrap_or(u64::MAX);
        if let Some(kept) = left.values().find(|entry| used(entry) < middle) {
            return Err(format!(
                "evict left a chunk that was last used {} ns before unused-since",
                middle - used(kept)
            ));
        }
        if before.values().any(|entry| used(entry) > middle && !left.contains_key(&entry.hash)) {
            return Err("evict removed a chunk that was used after unused-since".into());
        }
    }
    match evict(newest.saturating_add(lag))?.len() {
        0 => Ok(()),
        left => Err(format!("evict left {left} chunks, and all of them were last used before unused-since")),
    }
}
