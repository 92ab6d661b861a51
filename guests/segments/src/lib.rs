//! `segments:///DIR`: chunks and manifests as records in a few large files of a directory.
//!
//! What is done here is little: the host's `records` lays the values out, finds them, syncs and evicts them. Chunks lie in one space of
//! keys, under their hashes, and manifests in another one, under their names as local-fs has them as names of files. A manifest is
//! stored together with the sync of what it names, so a save costs one sync of each file in which some of it lies, and one of the index.
//!
//! Options `max_bytes`, `max_entries`, `segment_bytes`: the bounds of the store, which always has some.

use kv_store_sdk::key::{escape_listed, listed};
use kv_store_sdk::records::{NewRecord, RecordOptions, RecordStore, open_records};
use kv_store_sdk::uri::without_query;
use kv_store_sdk::{
    Backend, Chunk, ChunkEntry, ChunkPage, CommitOutcome, DeleteOutcome, Error, Evicted, Eviction, Features,
    GetOutcome, Hashes, Maintenance, Manifest, ManifestEntry, ManifestPage, Options, Payload, Presence, Properties,
    PutOutcome, Result, Totals, export,
};

/// The spaces of keys.
const CHUNKS: u8 = 0;
const MANIFESTS: u8 = 1;

/// Numbers of bytes, and of chunks and manifests, that make sense.
const BYTES: std::ops::RangeInclusive<u64> = 1..=1 << 60;
const ENTRIES: std::ops::RangeInclusive<u64> = 100..=1 << 40;

struct Segments {
    records: RecordStore,
}

impl Backend for Segments {
    fn open(uri: &str, mut options: Options) -> Result<(Self, Features)> {
        let Some(path) = uri.strip_prefix("segments://") else {
            return Err(Error::invalid(format!("{uri}: expected segments:///DIRECTORY")));
        };
        // Until the contract is frozen it is a part of the directory's name.
        without_query(uri);
        let bounds = RecordOptions::new();
        options.take_bytes("max_bytes", BYTES)?.into_iter().for_each(|bytes| bounds.set_max_bytes(bytes));
        options.take_number("max_entries", ENTRIES)?.into_iter().for_each(|most| bounds.set_max_records(most));
        options.take_bytes("segment_bytes", BYTES)?.into_iter().for_each(|bytes| bounds.set_file_bytes(bytes));
        options.finish()?;
        let records = open_records("", Some(&bounds))?;
        let properties = Properties::SHARED
            | Properties::CHEAP_REPEAT
            | Properties::WRITE_THROUGH
            | Properties::DURABLE
            | Properties::EVICTS;
        let features = Features {
            label: format!("segments in {path}"),
            properties,
            max_value_bytes: Some(records.bounds().max_value_bytes),
            ..Default::default()
        };
        Ok((Segments { records }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        self.records.exists(CHUNKS, &hashes.keys())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let values: Vec<_> = chunks.iter().map(|chunk| vec![chunk.part()]).collect();
        self.records.put(CHUNKS, &Chunk::keys(chunks), &values, replace)
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        self.records.get(CHUNKS, &hashes.keys(), Some(0))
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        // Not durable: a damaged chunk that is back after a power cut is found damaged again.
        self.records.delete(CHUNKS, &hashes.keys(), false)
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        let fresh: Vec<_> = fresh.iter().map(|hashes| hashes.keys()).collect();
        let last = manifest.map(|manifest| NewRecord {
            space: MANIFESTS,
            key: escape_listed(manifest.name).into_bytes(),
            value: vec![manifest.part()],
        });
        self.records.commit(CHUNKS, &fresh, last.as_ref())
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        let key = escape_listed(name);
        match self.records.get(MANIFESTS, &Hashes::one(key.as_bytes()).keys(), None)?.pop() {
            Some(GetOutcome::Found(data)) => Ok(Some(data)),
            Some(GetOutcome::Failed(error)) => Err(error),
            Some(GetOutcome::Missing) | None => Ok(None),
        }
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        let key = escape_listed(name);
        match self.records.delete(MANIFESTS, &Hashes::one(key.as_bytes()).keys(), true)?.pop() {
            Some(DeleteOutcome::Failed(error)) => Err(error),
            Some(DeleteOutcome::Gone) | None => Ok(()),
        }
    }
}

impl Maintenance for Segments {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        let page = self.records.entries(CHUNKS, after, limit)?;
        let entries = page.entries.into_iter().map(|entry| ChunkEntry {
            hash: entry.key,
            size: Some(entry.size),
            stored: None,
            used: Some(entry.used),
        });
        Ok(ChunkPage { entries: entries.collect(), next: page.next })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        let page = self.records.entries(MANIFESTS, after, limit)?;
        let entries = page.entries.into_iter().filter_map(|entry| {
            let name = listed(&String::from_utf8(entry.key).ok()?)?;
            Some(ManifestEntry { name, size: Some(entry.size), stored: None, used: Some(entry.used) })
        });
        Ok(ManifestPage { entries: entries.collect(), next: page.next })
    }

    fn usage(&mut self) -> Result<Totals> {
        let (chunks, manifests) = (self.records.usage(CHUNKS)?, self.records.usage(MANIFESTS)?);
        Ok(Totals {
            bytes: Some(chunks.bytes.saturating_add(manifests.bytes)),
            chunks: Some(chunks.records),
            manifests: Some(manifests.records),
            capacity: Some(self.records.bounds().capacity),
        })
    }

    fn evict(&mut self, what: Eviction) -> Result<Evicted> {
        let evicted = self.records.evict(what.bytes, what.unused_since, what.keep_since)?;
        let of = |space: u8| evicted.records.get(usize::from(space)).copied().unwrap_or(0);
        Ok(Evicted { bytes: evicted.bytes, chunks: of(CHUNKS), manifests: of(MANIFESTS), more: evicted.more })
    }
}

export!(Segments, maintenance, schemes: ["segments"], wishes: ["the directory in the URI"],
    options: ["max_bytes", "max_entries", "segment_bytes"], secrets: []);

#[cfg(test)]
mod tests {
    use super::*;

    /// Where other versions find chunks and manifests.
    #[test]
    fn golden_keys_of_segments() {
        assert_eq!((CHUNKS, MANIFESTS), (0, 1));
        assert_eq!(escape_listed("../Etc"), "%2e.%2f%45tc");
    }
}
