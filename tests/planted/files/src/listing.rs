//! Listing, counting and evicting.

use kv_store_sdk::eviction::{Candidate, Candidates, lag};
use kv_store_sdk::files::{Entry, EvictOutcome};
use kv_store_sdk::key::{listed, unhex};
use kv_store_sdk::{
    ChunkEntry, ChunkPage, Evicted, Eviction, Maintenance, ManifestEntry, ManifestPage, Result, Totals, system,
};

use crate::Files;
use crate::named::Files as Bug;

impl Files {
    /// A page of a directory, and the place of the next.
    fn page(&self, folder: &str, after: Option<&str>, limit: u32) -> Result<(Vec<Entry>, Option<String>)> {
        let limit = if self.is(Bug::ListsOverLimit) { limit.saturating_add(1) } else { limit };
        let mut page = if self.is(Bug::ListsByPosition) {
            let skipped = after.and_then(|after| after.parse().ok()).unwrap_or(0_usize);
            let all = self.directory.entries(folder, None, u32::MAX)?;
            let page: Vec<Entry> = all.into_iter().skip(skipped).take(limit as usize).collect();
            let next = (!page.is_empty()).then(|| (skipped + page.len()).to_string());
            return Ok((page, next));
        } else {
            self.directory.entries(folder, after, limit)?
        };
        let next = page.last().map(|last| last.name.clone());
        match self.bug {
            Bug::ListsShort => drop(page.pop()),
            Bug::ListsInCircles if page.is_empty() => return self.whole_again(folder, limit),
            _ => {}
        }
        page.retain(|entry| !entry.directory);
        Ok((page, next))
    }

    fn whole_again(&self, folder: &str, limit: u32) -> Result<(Vec<Entry>, Option<String>)> {
        let page = self.directory.entries(folder, None, limit)?;
        let next = page.last().map_or_else(|| "0".to_owned(), |last| last.name.clone());
        Ok((page, Some(next)))
    }

    fn size_listed(&self, entry: &Entry) -> Option<u64> {
        Some(if self.is(Bug::ListsWrongSizes) { entry.size + 1 } else { entry.size })
    }

    fn time(&self, nanoseconds: u64) -> Option<u64> {
        Some(if self.is(Bug::ListsSeconds) { nanoseconds / 1_000_000_000 } else { nanoseconds })
    }

    fn each(&self, folder: &str, see: &mut dyn FnMut(Entry)) -> Result<()> {
        let mut after: Option<String> = None;
        loop {
            let page = self.directory.entries(folder, after.as_deref(), 4096)?;
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.name.clone());
            page.into_iter().filter(|entry| !entry.directory).for_each(&mut *see);
        }
    }

    fn evict_unused(&self, paths: Vec<String>, unused_since: u64, bytes: &mut u64) -> Result<u64> {
        let mut removed = 0;
        for outcome in paths.chunks(256).map(|paths| self.directory.remove_unused(paths, unused_since)) {
            for outcome in outcome? {
                if let EvictOutcome::Removed(size) = outcome {
                    removed += 1;
                    *bytes += size;
                }
            }
        }
        Ok(removed)
    }
}

impl Maintenance for Files {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        let (page, next) = self.page("chunks", after, limit)?;
        let entries = page.iter().filter_map(|entry| {
            let hash = unhex(entry.name.as_bytes())?;
            let shown = !self.is(Bug::ListsEightOnly) || hash.len() == 8;
            let entry = ChunkEntry {
                hash,
                size: self.size_listed(entry),
                stored: self.time(entry.modified),
                used: self.time(entry.used),
            };
            shown.then_some(entry)
        });
        Ok(ChunkPage { entries: entries.collect(), next })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        let (page, next) = self.page("manifests", after, limit)?;
        let entries = page.iter().filter_map(|entry| {
            let name = match self.bug {
                Bug::ListsKeys => entry.name.clone(),
                Bug::ListsLostDigests => listed(&entry.name)?.replacen('\0', "\0digest-", 1),
                _ => listed(&entry.name)?,
            };
            Some(ManifestEntry {
                name,
                size: self.size_listed(entry),
                stored: self.time(entry.modified),
                used: self.time(entry.used),
            })
        });
        Ok(ManifestPage { entries: entries.collect(), next })
    }

    fn usage(&mut self) -> Result<Totals> {
        if let Some(usage) = &self.memory.usage {
            return Ok(*usage);
        }
        let (mut bytes, mut chunks, mut manifests) = (0, 0, 0);
        self.each("chunks", &mut |entry| {
            bytes += entry.size;
            chunks += 1;
        })?;
        if !self.is(Bug::CountsNoManifests) {
            self.each("manifests", &mut |entry| {
                bytes += entry.size;
                manifests += 1;
            })?;
        }
        if self.is(Bug::CountsNothing) {
            (bytes, chunks, manifests) = (0, 0, 0);
        }
        let usage = Totals { bytes: Some(bytes), chunks: Some(chunks), manifests: Some(manifests), capacity: None };
        if self.is(Bug::CountsOnce) {
            self.memory.usage = Some(usage);
        }
        Ok(usage)
    }

    fn evict(&mut self, what: Eviction) -> Result<Evicted> {
        let lag = lag(&what, system::now());
        let mut candidates = Candidates::new(what);
        self.each("chunks", &mut |entry| {
            candidates.add(Candidate { key: format!("chunks/{}", entry.name), size: entry.size, used: entry.used });
        })?;
        candidates.end_page();
        let victims = candidates.victims(lag);
        let mut evicted = Evicted { bytes: 0, chunks: 0, manifests: 0, more: false };
        let mut manifests = Vec::new();
        self.each("manifests", &mut |entry| {
            if entry.used < victims.manifests_before {
                manifests.push(format!("manifests/{}", entry.name));
            }
        })?;
        if let Some(before) = victims.manifests_before.checked_sub(1) {
            evicted.manifests = self.evict_unused(manifests, before, &mut evicted.bytes)?;
        }
        let newest = victims.chunks.last().map_or(0, |victim| victim.used);
        let paths = victims.chunks.into_iter().map(|victim| victim.key).collect();
        evicted.chunks = self.evict_unused(paths, newest, &mut evicted.bytes)?;
        Ok(evicted)
    }
}
