//! A backend in the host's memory that can be listed and bounded, sound but for the one bug that its scheme names. Its times are exact, so
//! that the order of an eviction shows.

mod maintenance;
#[path = "../../named.rs"]
mod named;

use std::collections::BTreeMap;

use kv_store_sdk::uri::without_query;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Features, GetOutcome, Hashes, Manifest, Options, Payload, Presence,
    Properties, PutOutcome, Result, absent, export, system,
};

use named::Memory as Bug;

/// Times are nanoseconds since 1970-01-01 UTC.
struct Entry {
    data: Payload,
    stored: u64,
    used: u64,
    /// Of a manifest: what it was published with.
    chunks: Vec<Vec<u8>>,
}

struct Memory {
    bug: Bug,
    chunks: BTreeMap<Vec<u8>, Entry>,
    manifests: BTreeMap<String, Entry>,
    removed: BTreeMap<Vec<u8>, u64>,
}

impl Memory {
    fn is(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    fn used(&mut self, hash: &[u8]) -> Option<&Entry> {
        let now = system::now();
        let entry = self.chunks.get_mut(hash)?;
        entry.used = now;
        Some(entry)
    }
}

impl Backend for Memory {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        let bug = Bug::named(uri)?;
        options.finish()?;
        without_query(uri);
        let (chunks, manifests, removed) = Default::default();
        let properties = Properties::HOLDS_DATA.when(bug != Bug::ManyInstances)
            | Properties::WRITE_THROUGH
            | Properties::EVICTS
            | Properties::WANTS_FRESH.when(bug != Bug::EvictsAlone);
        let features = Features { label: "host memory".into(), properties, ..Default::default() };
        Ok((Memory { bug, chunks, manifests, removed }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        Ok(hashes.iter().map(|hash| self.used(hash).map(|entry| entry.data.len()).into()).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let put = |chunk: &Chunk| {
            if !replace && self.used(chunk.hash).is_some() {
                return Ok(PutOutcome::Existed);
            }
            let now = system::now();
            let entry = Entry { data: chunk.keep()?, stored: now, used: now, chunks: Vec::new() };
            self.chunks.insert(chunk.hash.to_vec(), entry);
            Ok(PutOutcome::Stored)
        };
        chunks.iter().map(put).collect()
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let get = |hash| match self.used(hash) {
            None => Ok(GetOutcome::Missing),
            Some(entry) => entry.data.share().map(GetOutcome::Found),
        };
        hashes.iter().map(get).collect()
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        for hash in hashes.iter() {
            if let Some(entry) = self.chunks.remove(hash) {
                self.removed.insert(hash.to_vec(), entry.data.len());
            }
        }
        Ok(hashes.iter().map(|_| DeleteOutcome::Gone).collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        // The manifest's time is that of its chunks, so that it leaves before them.
        let now = system::now();
        let hashes = || fresh.iter().flat_map(|hashes| hashes.iter());
        if !self.is(Bug::EvictsAlone)
            && let Some(gone) = absent(hashes().filter(|hash| !self.chunks.contains_key(*hash)))
        {
            return Ok(gone);
        }
        if !self.is(Bug::RenewsNothing) {
            for hash in hashes() {
                if let Some(chunk) = self.chunks.get_mut(hash) {
                    chunk.used = now;
                }
            }
        }
        if let Some(manifest) = manifest {
            let chunks = hashes().map(<[u8]>::to_vec).collect();
            let entry = Entry { data: manifest.keep()?, stored: now, used: now, chunks };
            self.manifests.insert(manifest.name.into(), entry);
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        let Some(manifest) = self.manifests.get_mut(name) else { return Ok(None) };
        manifest.used = system::now();
        let (data, chunks, now) = (manifest.data.share()?, manifest.chunks.clone(), manifest.used);
        // They are used after it, so that they leave after it.
        for hash in chunks {
            if let Some(chunk) = self.chunks.get_mut(&hash) {
                chunk.used = now;
            }
        }
        Ok(Some(data))
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.manifests.remove(name);
        Ok(())
    }
}

export!(Memory, maintenance);
