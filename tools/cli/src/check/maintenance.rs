//! What the contract asks of a component that exports `maintenance`. The C ABI has no call for it, so these cases go through the
//! library's own interface, and run against components only.

use std::collections::{BTreeMap, BTreeSet};

use super::CaseResult;

use kv_store_wasm::{BatchOptions, ChunkEntry, ErrorKind, Eviction, Presence, Store, Usage};

pub struct MaintenanceCase {
    pub name: &'static str,
    /// What the contract asks for, in a sentence.
    pub asks: &'static str,
    /// It removes what others may have stored.
    pub alone: bool,
    pub run: fn(&MaintenanceSubject) -> CaseResult,
}

/// A store, and numbers that nobody else uses in it.
pub struct MaintenanceSubject<'a> {
    pub store: &'a Store,
    pub salt: u64,
    /// Nobody else has stored anything.
    alone: bool,
}

pub const CASES: &[MaintenanceCase] = &[
    MaintenanceCase {
        name: "maintenance-list",
        asks: "what is stored is listed at least once, page by page, with its size, and nothing else is",
        alone: false,
        run: list,
    },
    MaintenanceCase {
        name: "maintenance-delete",
        asks: "what was removed is not listed any more, and a listed name can be removed",
        alone: false,
        run: delete,
    },
    MaintenanceCase {
        name: "maintenance-usage",
        asks: "what usage knows is what was stored",
        alone: false,
        run: usage,
    },
    MaintenanceCase {
        name: "maintenance-evict",
        asks: "evict leaves what was stored after keep-since, removes the rest, and a manifest no later than its chunks",
        alone: true,
        run: evict,
    },
    MaintenanceCase {
        name: "maintenance-long-name",
        asks: "a long name is listed as it is, or as a text that begins with NUL, under which the manifest is found and removed",
        alone: false,
        run: long_name,
    },
    MaintenanceCase {
        name: "maintenance-commit",
        asks: "commit publishes nothing over chunks of its `fresh` that were evicted, and answers `absent` with those",
        alone: true,
        run: commit_evicted,
    },
];

/// Run a case. The outer `Err`: why it makes no sense here.
pub fn run(case: &MaintenanceCase, store: &Store, salt: u64, alone: bool) -> Result<CaseResult, String> {
    if !store.is_maintained().map_err(|error| error.to_string())? {
        return Err("the component does not export kv-store:backend/maintenance".into());
    }
    if case.alone && !alone {
        return Err("it would remove what others have put into the store that was given".into());
    }
    if case.alone {
        let nothing = Eviction::new(0, None, 0);
        if let Err(error) = store.evict(&nothing)
            && error.kind() == ErrorKind::Unsupported
        {
            return Err(format!("the backend evicts nothing: {error}"));
        }
    }
    if case.name == "maintenance-commit" && !store.info().wants_fresh {
        return Err(
            "it is not `durable`, `evicts` or `wants-fresh`, so commit is not told which chunks are fresh".into()
        );
    }
    let subject = MaintenanceSubject { store, salt, alone };
    let verdict = (case.run)(&subject);
    subject.clean();
    Ok(verdict)
}

const CHUNKS: u64 = 40;
/// The length of a chunk.
fn len_of(number: u64) -> u64 {
    100 + number * 10
}

/// Names that a storage system might take for something else.
const NAMES: [&str; 8] = ["plain", "with/slash", "MaintenanceCase", ".hidden", "..", "chunks", "é \n*?[a]", "m:c:%2f"];

impl MaintenanceSubject<'_> {
    /// Hashes of all widths that consumers use, and of bytes that mean something to storage systems.
    fn hash(&self, number: u64) -> Vec<u8> {
        let width = 8_usize << (number % 4);
        let mut hash = Vec::new();
        let mut state = self.salt ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        while hash.len() < width {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            hash.extend_from_slice(&state.to_be_bytes());
        }
        hash
    }

    /// The hashes of the chunks that [`MaintenanceSubject::fill`] puts.
    pub fn hashes(&self) -> impl Iterator<Item = Vec<u8>> {
        (0..CHUNKS).map(|number| self.hash(number))
    }

    pub fn name(&self, name: &str) -> String {
        if self.alone { name.to_owned() } else { format!("{name}~{:016x}", self.salt) }
    }

    pub fn fill(&self) -> CaseResult {
        for number in 0..CHUNKS {
            self.store
                .put_chunk(&self.hash(number), &vec![number as u8; len_of(number) as usize])
                .map_err(|error| error.to_string())?;
        }
        for name in NAMES {
            self.store.put_manifest(&self.name(name), name.as_bytes()).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn chunks(&self) -> Result<BTreeMap<Vec<u8>, Option<u64>>, String> {
        let mut found = BTreeMap::new();
        for page in self.store.chunk_pages(7) {
            let page = page.map_err(|error| format!("list-chunks: {error}"))?;
            found.extend(page.into_iter().map(|entry| (entry.hash, entry.bytes)));
        }
        Ok(found)
    }

    pub fn manifests(&self) -> Result<BTreeSet<String>, String> {
        let mut found = BTreeSet::new();
        for page in self.store.manifest_pages(3) {
            let page = page.map_err(|error| format!("list-manifests: {error}"))?;
            found.extend(page.into_iter().map(|entry| entry.name));
        }
        Ok(found)
    }

    fn clean(&self) {
        let hashes: Vec<Vec<u8>> = (0..CHUNKS).map(|number| self.hash(number)).collect();
        let _ = self.store.delete_many(&hashes.iter().map(Vec::as_slice).collect::<Vec<_>>());
        for name in NAMES {
            let _ = self.store.delete_manifest(&self.name(name));
        }
    }
}

fn list(subject: &MaintenanceSubject) -> CaseResult {
    subject.fill()?;
    let listed = subject.chunks()?;
    for number in 0..CHUNKS {
        let len = len_of(number);
        match listed.get(&ChunkEntry::listed_hash(&subject.hash(number))) {
            None => return Err(format!("a chunk whose hash has {} bytes is not listed", subject.hash(number).len())),
            // What it takes may be more than its length.
            Some(Some(size)) if *size < len => return Err(format!("a chunk of {len} bytes is listed with {size}")),
            Some(_) => {}
        }
    }
    let names = subject.manifests()?;
    if let Some(missing) = NAMES.iter().find(|name| !names.contains(&subject.name(name))) {
        return Err(format!("the manifest {missing:?} is not listed"));
    }
    if subject.alone && (listed.len() as u64 != CHUNKS || names.len() != NAMES.len()) {
        let (chunks, manifests) = (listed.len(), names.len());
        return Err(format!(
            "{CHUNKS} chunks and {} manifests were stored, and {chunks} and {manifests} are listed",
            NAMES.len()
        ));
    }
    Ok(())
}

fn delete(subject: &MaintenanceSubject) -> CaseResult {
    subject.fill()?;
    let gone: Vec<Vec<u8>> = (0..CHUNKS / 2).map(|number| subject.hash(number)).collect();
    let hashes: Vec<&[u8]> = gone.iter().map(Vec::as_slice).collect();
    for outcome in subject.store.delete_many(&hashes).map_err(|error| error.to_string())? {
        match outcome {
            Err(error) if error.kind() == ErrorKind::Unsupported => {}
            outcome => outcome.map_err(|error| format!("delete-chunks: {error}"))?,
        }
    }
    let there = subject.store.exists_many(&hashes, &BatchOptions::default()).map_err(|error| error.to_string())?;
    let listed = subject.chunks()?;
    for (hash, there) in gone.iter().zip(there) {
        let there = matches!(there, Ok(Presence::Present(_)));
        if there != listed.contains_key(&ChunkEntry::listed_hash(hash)) {
            return Err("exists and list-chunks disagree about a chunk that was removed".into());
        }
    }
    for name in NAMES {
        subject.store.delete_manifest(&subject.name(name)).map_err(|error| error.to_string())?;
    }
    let names = subject.manifests()?;
    match NAMES.iter().find(|name| names.contains(&subject.name(name))) {
        Some(name) => Err(format!("the manifest {name:?} was removed and is listed")),
        None => Ok(()),
    }
}

fn usage(subject: &MaintenanceSubject) -> CaseResult {
    let ask = || subject.store.usage().map_err(|error| format!("usage: {error}"));
    let before = ask()?;
    subject.fill()?;
    let Usage { bytes, chunks, manifests, .. } = ask()?;
    let grown = |now: Option<u64>, before: Option<u64>| now.zip(before).map(|(now, before)| now.saturating_sub(before));
    let stored: u64 = (0..CHUNKS).map(len_of).sum();
    let (chunks, manifests) = (grown(chunks, before.chunks), grown(manifests, before.manifests));
    let expected = [("chunks", chunks, CHUNKS), ("manifests", manifests, NAMES.len() as u64)];
    if let Some((what, grown, stored)) =
        expected.into_iter().find(|(_, grown, stored)| subject.alone && grown.is_some_and(|grown| grown != *stored))
    {
        return Err(format!("{stored} {what} were stored, and usage grew by {}", grown.unwrap_or(0)));
    }
    match grown(bytes, before.bytes).filter(|grown| *grown < stored && subject.alone) {
        Some(grown) => Err(format!("{stored} bytes were stored, and usage grew by {grown}")),
        None => Ok(()),
    }
}

fn evict(subject: &MaintenanceSubject) -> CaseResult {
    subject.fill()?;
    let refused = |error: kv_store_wasm::Error| format!("evict: {error}");
    let all = u64::MAX / 4;
    let kept = subject.store.evict(&Eviction::new(all, None, 0)).map_err(refused)?;
    if kept.chunks > 0 || subject.chunks()?.len() as u64 != CHUNKS {
        return Err("chunks were removed that were stored after keep-since".into());
    }
    subject.fill()?;
    let some = subject.store.evict(&Eviction::new(1000, None, u64::MAX)).map_err(refused)?;
    let left = subject.chunks()?.len() as u64;
    if some.chunks != CHUNKS - left || some.bytes < 1000 {
        let Some(removed) = CHUNKS.checked_sub(left) else {
            return Err("there are more chunks than were stored".into());
        };
        return Err(format!(
            "asked for 1000 bytes, evict says {} chunks and {} bytes; {removed} are gone",
            some.chunks, some.bytes
        ));
    }
    for _ in 0..1000 {
        let evicted = subject.store.evict(&Eviction::new(all, None, u64::MAX)).map_err(refused)?;
        let (chunks, manifests) = (subject.chunks()?.len(), subject.manifests()?.len());
        if (chunks as u64) < CHUNKS && manifests > 0 {
            return Err(format!(
                "{chunks} chunks are left, and {manifests} manifests that may name those that are gone"
            ));
        }
        if !evicted.more && chunks == 0 {
            return Ok(());
        }
        if evicted.chunks + evicted.manifests == 0 {
            return Err(format!("{chunks} chunks stay, though all of them were to go"));
        }
    }
    Err("evict goes on for ever".into())
}

fn long_name(subject: &MaintenanceSubject) -> CaseResult {
    let MaintenanceSubject { store, .. } = subject;
    let refused = |error: kv_store_wasm::Error| error.to_string();
    let name = subject.name(&"a long name/".repeat(300));
    store.put_manifest(&name, name.as_bytes()).map_err(refused)?;
    let listed = subject.manifests()?;
    let is_it = |listed: &&String| {
        let found = if listed.starts_with('\0') { store.get_manifest(listed).ok().flatten() } else { None };
        // Under a component's own word for a name it comes with its envelope.
        *listed == &name || found.is_some_and(|found| found.starts_with(name.as_bytes()))
    };
    let Some(listed) = listed.iter().find(is_it) else {
        let digests = listed.iter().filter(|name| name.starts_with('\0')).count();
        let _ = store.delete_manifest(&name);
        return Err(format!(
            "a manifest whose name has {} bytes is not listed, or as a digest and nothing is found under it ({digests} digests are listed)",
            name.len()
        ));
    };
    store.delete_manifest(listed).map_err(|error| format!("delete-manifest under a listed name: {error}"))?;
    match store.get_manifest(&name).map_err(refused)? {
        Some(_) => Err("a manifest was removed under its listed name, and is still there".into()),
        None => Ok(()),
    }
}

fn commit_evicted(subject: &MaintenanceSubject) -> CaseResult {
    let MaintenanceSubject { store, .. } = subject;
    let refused = |error: kv_store_wasm::Error| error.to_string();
    let (hash, name) = (subject.hash(1), subject.name("over-evicted"));
    store.put_manifest(&name, b"before").map_err(refused)?;
    store.put_chunk(&hash, &[7; 100]).map_err(refused)?;
    store.flush().map_err(refused)?;
    for _ in 0..1000 {
        let evicted =
            store.evict(&Eviction::new(u64::MAX / 4, None, u64::MAX)).map_err(|error| format!("evict: {error}"))?;
        if !evicted.more {
            break;
        }
    }
    if subject.chunks()?.contains_key(&ChunkEntry::listed_hash(&hash)) {
        return Err("evict left a chunk, though all of them were to go".into());
    }
    match store.put_manifest(&name, b"after") {
        Err(_) if store.get_manifest(&name).map_err(refused)?.as_deref() == Some(b"after") => {
            Err("commit failed, and the manifest was published all the same".into())
        }
        Err(_) => Ok(()),
        Ok(()) => {
            Err("commit published a manifest, and a chunk of `fresh` was gone: answer `absent` with that chunk".into())
        }
    }
}
