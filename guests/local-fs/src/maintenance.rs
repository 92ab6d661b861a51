//! Listing, counting and evicting. A page is one listing of one directory; nothing is remembered between calls.

use kv_store_sdk::eviction::{Candidate, Candidates, Victims};
use kv_store_sdk::files::{Entry, EvictOutcome};
use kv_store_sdk::{
    ChunkEntry, ChunkPage, Error, Evicted, Eviction, Maintenance, ManifestEntry, ManifestPage, Result, Totals, system,
};

use crate::{LocalFs, layout};

/// Files of one listing.
const PAGE: u32 = 4096;
/// Files that are removed in one call of the host.
const REMOVED_TOGETHER: usize = 256;

/// A place among the chunks: a directory, and the file after which to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    shard: usize,
    after: Option<String>,
}

impl Place {
    fn parse(text: Option<&str>) -> Result<Self> {
        let Some(text) = text else { return Ok(Place { shard: 0, after: None }) };
        let parsed = text.split_once('/').and_then(|(shard, file)| {
            let shard = usize::from_str_radix(shard, 16).ok().filter(|shard| *shard < layout::SHARDS)?;
            Some(Place { shard, after: (!file.is_empty()).then(|| file.to_owned()) })
        });
        parsed.ok_or_else(|| Error::invalid("no place in a listing of this backend"))
    }

    /// What follows a page that was listed from here.
    fn next(&self, page: &[Entry]) -> Option<Self> {
        match page.last() {
            Some(last) => Some(Place { shard: self.shard, after: Some(last.name.clone()) }),
            None => Some(Place { shard: self.shard + 1, after: None }).filter(|next| next.shard < layout::SHARDS),
        }
    }
}

impl Maintenance for LocalFs {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        let place = Place::parse(after)?;
        let page = self.directory.entries(&layout::shard(place.shard), place.after.as_deref(), limit)?;
        let next = place.next(&page).map(|next| format!("{:x}/{}", next.shard, next.after.unwrap_or_default()));
        let entries = page.iter().filter(|entry| !entry.directory).filter_map(|entry| {
            let hash = layout::chunk_hash(&entry.name)?;
            Some(ChunkEntry { hash, size: Some(entry.size), stored: Some(entry.modified), used: Some(entry.used) })
        });
        Ok(ChunkPage { entries: entries.collect(), next })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        let page = self.directory.entries("", after, limit)?;
        let next = page.last().map(|last| last.name.clone());
        let entries = page.iter().filter(|entry| !entry.directory).filter_map(|entry| {
            let name = layout::manifest_name(&entry.name)?;
            Some(ManifestEntry { name, size: Some(entry.size), stored: Some(entry.modified), used: Some(entry.used) })
        });
        Ok(ManifestPage { entries: entries.collect(), next })
    }

    fn usage(&mut self) -> Result<Totals> {
        let (mut bytes, mut chunks, mut manifests) = (0, 0, 0);
        let mut place = Some(Place { shard: 0, after: None });
        while let Some(here) = place {
            in_time()?;
            let page = self.directory.entries(&layout::shard(here.shard), here.after.as_deref(), PAGE)?;
            for entry in page.iter().filter(|entry| is_chunk(entry)) {
                bytes += entry.size;
                chunks += 1;
            }
            place = here.next(&page);
        }
        self.each_manifest(&mut |entry| {
            bytes += entry.size;
            manifests += 1;
        })?;
        let capacity = Some(self.directory.space()?.total);
        Ok(Totals { bytes: Some(bytes), chunks: Some(chunks), manifests: Some(manifests), capacity })
    }

    fn evict(&mut self, what: Eviction) -> Result<Evicted> {
        let (candidates, cut_short) = self.candidates(what)?;
        let Victims { chunks, manifests_before } = candidates.victims(self.lag);
        let mut evicted = Evicted { bytes: 0, chunks: 0, manifests: 0, more: cut_short && !chunks.is_empty() };
        if let Some(unused_since) = manifests_before.checked_sub(1) {
            let mut unused = Vec::new();
            self.each_manifest(&mut |entry| {
                if entry.used < manifests_before {
                    unused.push(entry.name);
                }
            })?;
            evicted.manifests = self.remove(unused, unused_since, &mut evicted.bytes)?;
        }
        if chunks.is_empty() && what.bytes > evicted.bytes {
            // There are no chunks that may go, and manifests take room too.
            let mut candidates = Candidates::new(what);
            self.each_manifest(&mut |Entry { name: key, size, used, .. }| {
                candidates.add(Candidate { key, size, used })
            })?;
            candidates.end_page();
            for Candidate { key, used, .. } in candidates.victims(0).chunks {
                evicted.manifests += self.remove(vec![key], used, &mut evicted.bytes)?;
            }
        }
        for group in chunks.chunks(REMOVED_TOGETHER) {
            if system::remaining() < ENOUGH_TO_ANSWER {
                evicted.more = true;
                break;
            }
            let newest = group.last().map_or(0, |newest| newest.used);
            let paths = group.iter().map(|victim| victim.key.clone()).collect();
            evicted.chunks += self.remove(paths, newest, &mut evicted.bytes)?;
        }
        // What was used meanwhile stayed; something else may go for it.
        evicted.more |= evicted.chunks > 0 && evicted.bytes < what.bytes;
        Ok(evicted)
    }
}

/// What others put among the chunks is none: it is not counted, and stays.
fn is_chunk(entry: &Entry) -> bool {
    !entry.directory && layout::chunk_hash(&entry.name).is_some()
}

/// Time that is left for the last steps of a call, in nanoseconds.
const ENOUGH_TO_ANSWER: u64 = 500_000_000;

fn in_time() -> Result<()> {
    match system::remaining() {
        0..ENOUGH_TO_ANSWER => Err(Error::unavailable(
            "the directory holds more files than can be counted in maintenance_ms of the config",
        )),
        _ => Ok(()),
    }
}

impl LocalFs {
    /// Chunks that may go, from a random place on, and whether that is not all of them.
    fn candidates(&self, what: Eviction) -> Result<(Candidates<String>, bool)> {
        let mut candidates = Candidates::new(what);
        if what.bytes == 0 && what.unused_since.is_none() {
            return Ok((candidates, false));
        }
        let (begun, random) = (system::remaining(), system::random());
        let first = random as usize % layout::SHARDS;
        // Names of chunks of this directory begin with its digit.
        let begin = Some(format!("{first:x}{:07x}", random >> 36));
        let mut behind = (1..layout::SHARDS).map(|n| ((first + n) % layout::SHARDS, None, None));
        let mut part = Some((first, begin.clone(), None));
        let mut last = Some((first, None, begin));
        while let Some((number, mut after, end)) = part {
            let shard = layout::shard(number);
            loop {
                // Half of the time is for the removal.
                if system::remaining() < begun / 2 {
                    return Ok((candidates, true));
                }
                let page = self.directory.entries(&shard, after.as_deref(), PAGE)?;
                let Some(newest) = page.last() else { break };
                after = Some(newest.name.clone());
                let within = |entry: &&Entry| end.as_ref().is_none_or(|end| entry.name <= *end);
                for entry in page.iter().take_while(within).filter(|entry| is_chunk(entry)) {
                    let key = [&shard, "/", &entry.name].concat();
                    candidates.add(Candidate { key, size: entry.size, used: entry.used });
                }
                if candidates.end_page() {
                    return Ok((candidates, true));
                }
                if page.last().is_some_and(|last| !within(&last)) {
                    break;
                }
            }
            part = behind.next().or_else(|| last.take());
        }
        Ok((candidates, false))
    }

    fn each_manifest(&self, see: &mut dyn FnMut(Entry)) -> Result<()> {
        let mut after: Option<String> = None;
        loop {
            in_time()?;
            let page = self.directory.entries("", after.as_deref(), PAGE)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.name.clone());
            // The marker of the directory, and what others put there, is no manifest, and stays.
            let is_manifest = |entry: &Entry| !entry.directory && layout::manifest_name(&entry.name).is_some();
            page.into_iter().filter(is_manifest).for_each(&mut *see);
        }
    }

    /// Remove files that nobody used since. Answers how many; `bytes` grows by what they had.
    fn remove(&self, paths: Vec<String>, unused_since: u64, bytes: &mut u64) -> Result<u64> {
        let (mut removed, mut rest) = (0, paths.as_slice());
        while !rest.is_empty() {
            let outcomes = self.directory.remove_unused(rest, unused_since)?;
            if outcomes.is_empty() {
                return Err(Error::other("the host answered nothing for files to remove"));
            }
            for outcome in &outcomes {
                match outcome {
                    EvictOutcome::Removed(size) => {
                        removed += 1;
                        *bytes += size;
                    }
                    EvictOutcome::Kept | EvictOutcome::Missing => {}
                    EvictOutcome::Failed(error) => return Err(error.clone()),
                }
            }
            rest = rest.get(outcomes.len()..).unwrap_or_default();
        }
        Ok(removed)
    }
}
