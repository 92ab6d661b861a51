//! `memory://NAME`: a store in the host's memory, and the example of a backend.
//!
//! The instance is the store, so it asks for one instance only. It holds handles; the bytes are the host's, and count
//! towards the host's limit for this component. Option `evict`: `true` removes what was not used for longest where there is no
//! room; otherwise (default) the put fails.

mod maintenance;

use std::collections::BTreeMap;

use kv_store_sdk::uri::without_query;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, ErrorKind, Features, GetOutcome, Hashes, Manifest, Options,
    Payload, Presence, Properties, PutOutcome, Result, absent, export, system,
};

/// Something that is stored. Times are nanoseconds since 1970-01-01 UTC.
struct Entry {
    data: Payload,
    stored: u64,
    used: u64,
    /// Of a chunk: a manifest has named it.
    published: bool,
    /// Of a manifest: the chunks that it was published with.
    chunks: Vec<Vec<u8>>,
}

impl Entry {
    fn new(data: Payload, now: u64) -> Self {
        Entry { data, stored: now, used: now, published: false, chunks: Vec::new() }
    }
}

/// In the order of their keys, so that a listing can go on where it ended.
#[derive(Default)]
struct Memory {
    evicts: bool,
    chunks: BTreeMap<Vec<u8>, Entry>,
    manifests: BTreeMap<String, Entry>,
}

impl Backend for Memory {
    fn open(uri: &str, mut options: Options) -> Result<(Self, Features)> {
        let evicts = options.take_choice("evict", &["false", "true"])? == "true";
        options.finish()?;
        if !without_query(uri).starts_with("memory://") {
            return Err(Error::invalid(format!("{uri}: expected memory:// or memory://NAME")));
        }
        let mut properties = Properties::HOLDS_DATA | Properties::WRITE_THROUGH;
        if evicts {
            // A manifest must leave before its chunks.
            properties = properties | Properties::EVICTS | Properties::WANTS_FRESH;
        }
        let features = Features { label: "host memory".into(), properties, ..Default::default() };
        Ok((Memory { evicts, ..Default::default() }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        let now = system::now();
        Ok(hashes.iter().map(|hash| self.used(hash, now).map(|entry| entry.data.len()).into()).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let now = system::now();
        let put = |chunk: &Chunk| {
            if !replace && self.used(chunk.hash, now).is_some() {
                return PutOutcome::Existed;
            }
            match self.keep(chunk.len, || chunk.keep()) {
                Ok(data) => {
                    self.chunks.insert(chunk.hash.to_vec(), Entry::new(data, now));
                    PutOutcome::Stored
                }
                Err(error) => PutOutcome::Failed(error),
            }
        };
        Ok(chunks.iter().map(put).collect())
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let now = system::now();
        let get = |hash| match self.used(hash, now).map(|entry| entry.data.share()) {
            None => GetOutcome::Missing,
            Some(Ok(data)) => GetOutcome::Found(data),
            Some(Err(error)) => GetOutcome::Failed(error),
        };
        Ok(hashes.iter().map(get).collect())
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let delete = |hash| {
            self.chunks.remove(hash);
            DeleteOutcome::Gone
        };
        Ok(hashes.iter().map(delete).collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        let now = system::now();
        let fresh = || fresh.iter().flat_map(|hashes| hashes.iter());
        // Room first: making it may remove a chunk that the manifest names.
        let data = manifest.map(|manifest| self.keep(manifest.len, || manifest.keep())).transpose()?;
        if let Some(gone) = absent(fresh().filter(|hash| !self.chunks.contains_key(*hash))) {
            return Ok(gone);
        }
        if let (Some(manifest), Some(data)) = (manifest, data) {
            for hash in fresh() {
                if let Some(chunk) = self.used(hash, now) {
                    chunk.published = true;
                }
            }
            let chunks = fresh().map(<[u8]>::to_vec).collect();
            self.manifests.insert(manifest.name.into(), Entry { chunks, ..Entry::new(data, now) });
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        let Some(manifest) = self.manifests.get_mut(name) else { return Ok(None) };
        manifest.used = system::now();
        // Its chunks are used after it, so that they leave after it.
        for hash in &manifest.chunks {
            if let Some(chunk) = self.chunks.get_mut(hash) {
                chunk.used = manifest.used;
            }
        }
        manifest.data.share().map(Some)
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.manifests.remove(name);
        Ok(())
    }
}

impl Memory {
    /// A chunk, which is used now.
    fn used(&mut self, hash: &[u8], now: u64) -> Option<&mut Entry> {
        let entry = self.chunks.get_mut(hash)?;
        entry.used = now;
        Some(entry)
    }

    /// Keep bytes of the running call, `len` of them. Where there is no room, and the operator wants it so, make some.
    fn keep(&mut self, len: u64, keep: impl Fn() -> Result<Payload>) -> Result<Payload> {
        loop {
            match keep() {
                Err(error) if error.kind == ErrorKind::Exhausted && self.evicts => {
                    if !self.make_room(len) {
                        return Err(error);
                    }
                }
                kept => return kept,
            }
        }
    }
}

export!(Memory, maintenance, schemes: ["memory"], options: ["evict"], secrets: []);
