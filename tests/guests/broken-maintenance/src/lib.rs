//! Backends whose `maintenance` has one fault each, which `kv-store check` must find. The URI's scheme says which, as in `broken`. But for
//! that it keeps everything in the host's memory, as `memory` does.

use std::collections::BTreeMap;
use std::ops::Bound;

use kv_store_sdk::key::{hex, unhex};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{
    Backend, Chunk, ChunkEntry, ChunkPage, CommitOutcome, DeleteOutcome, Error, Evicted, Eviction, Features,
    GetOutcome, Hashes, Maintenance, Manifest, ManifestEntry, ManifestPage, Options, Payload, Presence, Properties,
    PutOutcome, Result, Totals, absent, export, files, system,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// The last chunk of each page is left out.
    ListsShort,
    /// A chunk that was removed is listed on.
    ListsRemoved,
    /// Manifests are not counted.
    Miscounts,
    /// `keep-since` is not looked at.
    EvictsFresh,
    /// After the first page comes the second, after the second the first.
    ListsInCircles,
    /// There is always another page, with nothing on it.
    ListsNothing,
    /// There is always more to evict.
    EvictsNothing,
    /// Chunks are also files of a bounded directory. What is said to be evicted stays.
    FreesNothing,
    /// An eviction takes nearly all the time that it may. The host asks again and again, because what is old is to go.
    EvictsSlowly,
    /// None: chunks are also files of a bounded directory, and go when they are evicted.
    Bounded,
    /// A manifest is published whichever of its chunks are gone.
    CommitsOverGone,
    /// A long name is listed as a digest, under which nothing is found.
    ListsDigests,
}

struct Memory {
    fault: Fault,
    /// With the time when each was stored.
    chunks: BTreeMap<Vec<u8>, (Payload, u64)>,
    manifests: BTreeMap<String, Payload>,
    removed: BTreeMap<Vec<u8>, u64>,
}

impl Backend for Memory {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        options.finish()?;
        let scheme = uri.split("://").next().unwrap_or_default();
        let fault = match scheme {
            "sound-maintenance" => Fault::None,
            "lists-short" => Fault::ListsShort,
            "lists-removed" => Fault::ListsRemoved,
            "miscounts" => Fault::Miscounts,
            "evicts-fresh" => Fault::EvictsFresh,
            "lists-in-circles" => Fault::ListsInCircles,
            "lists-nothing" => Fault::ListsNothing,
            "evicts-nothing" => Fault::EvictsNothing,
            "frees-nothing" => Fault::FreesNothing,
            "evicts-slowly" => Fault::EvictsSlowly,
            "bounded-maintenance" => Fault::Bounded,
            "commits-over-gone" => Fault::CommitsOverGone,
            "lists-digests" => Fault::ListsDigests,
            _ => return Err(Error::invalid(format!("{scheme} is none of the faults"))),
        };
        let label = format!("a backend with a fault: {scheme}");
        let properties = Properties::HOLDS_DATA | Properties::WRITE_THROUGH | Properties::EVICTS;
        let (chunks, manifests, removed) = Default::default();
        let bounds: &[(&str, &str)] = match fault {
            Fault::FreesNothing | Fault::Bounded => &[("max-bytes", "4000"), ("save-grace-s", "0")],
            Fault::EvictsSlowly => &[("ttl-s", "1"), ("save-grace-s", "0")],
            _ => &[],
        };
        let more = bounds.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Ok((Memory { fault, chunks, manifests, removed }, Features { label, properties, more, ..Default::default() }))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        Ok(hashes.iter().map(|hash| self.chunks.get(hash).map(|(data, _)| data.len()).into()).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let put = |chunk: &Chunk| {
            if !replace && self.chunks.contains_key(chunk.hash) {
                return Ok(PutOutcome::Existed);
            }
            let data = chunk.keep()?;
            if matches!(self.fault, Fault::FreesNothing | Fault::Bounded) {
                let content = vec![Part::Payload(&data)];
                let request = files::WriteRequest { path: hex(chunk.hash), content, replace: true };
                for outcome in files::open_directory("")?.write(&[request], false)? {
                    if let files::WriteOutcome::Failed(error) = outcome {
                        return Err(error);
                    }
                }
            }
            self.chunks.insert(chunk.hash.to_vec(), (data, system::now()));
            Ok(PutOutcome::Stored)
        };
        chunks.iter().map(put).collect()
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let get = |hash| match self.chunks.get(hash) {
            None => Ok(GetOutcome::Missing),
            Some((data, _)) => data.share().map(GetOutcome::Found),
        };
        hashes.iter().map(get).collect()
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        for hash in hashes.iter() {
            if let Some((data, _)) = self.chunks.remove(hash) {
                self.removed.insert(hash.to_vec(), data.len());
            }
        }
        Ok(hashes.iter().map(|_| DeleteOutcome::Gone).collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        let fresh = fresh.iter().flat_map(|hashes| hashes.iter());
        if self.fault != Fault::CommitsOverGone
            && let Some(gone) = absent(fresh.filter(|hash| !self.chunks.contains_key(*hash)))
        {
            return Ok(gone);
        }
        if let Some(manifest) = manifest {
            self.manifests.insert(manifest.name.into(), manifest.keep()?);
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        self.manifests.get(name).map(Payload::share).transpose()
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.manifests.remove(name);
        Ok(())
    }
}

impl Maintenance for Memory {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        match self.fault {
            Fault::ListsInCircles => {
                let next = if after == Some("first") { "second" } else { "first" };
                return Ok(ChunkPage { entries: Vec::new(), next: Some(next.into()) });
            }
            Fault::ListsNothing => {
                let page = after.and_then(|after| after.parse::<u64>().ok()).unwrap_or(0);
                return Ok(ChunkPage { entries: Vec::new(), next: Some((page + 1).to_string()) });
            }
            _ => {}
        }
        let after = after.map(|after| unhex(after.as_bytes()).ok_or_else(|| Error::invalid("no place in a listing")));
        let after = after.transpose()?;
        let from = after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let there = self.chunks.iter().map(|(hash, (data, _))| (hash, data.len()));
        let removed = self.removed.iter().filter(|_| self.fault == Fault::ListsRemoved);
        let listed: BTreeMap<Vec<u8>, u64> =
            there.chain(removed.map(|(hash, len)| (hash, *len))).map(|(hash, len)| (hash.clone(), len)).collect();
        let page = listed.range::<[u8], _>((from, Bound::Unbounded)).take(limit as usize);
        let mut entries: Vec<ChunkEntry> = page
            .map(|(hash, len)| ChunkEntry { hash: hash.clone(), size: Some(*len), stored: None, used: None })
            .collect();
        let next = entries.last().map(|last| hex(&last.hash));
        if self.fault == Fault::ListsShort {
            entries.pop();
        }
        Ok(ChunkPage { entries, next })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = self.manifests.range::<str, _>((from, Bound::Unbounded)).take(limit as usize);
        let mut entries: Vec<ManifestEntry> = page
            .map(|(name, data)| ManifestEntry { name: name.clone(), size: Some(data.len()), stored: None, used: None })
            .collect();
        let next = entries.last().map(|last| last.name.clone());
        if self.fault == Fault::ListsDigests {
            let long = entries.iter_mut().filter(|entry| entry.name.len() > 1000);
            long.for_each(|entry| entry.name = "\0digest".into());
        }
        Ok(ManifestPage { entries, next })
    }

    fn usage(&mut self) -> Result<Totals> {
        let chunks = self.chunks.values().map(|(data, _)| data.len());
        let bytes = chunks.chain(self.manifests.values().map(Payload::len)).sum();
        let manifests = if self.fault == Fault::Miscounts { 0 } else { self.manifests.len() as u64 };
        Ok(Totals {
            bytes: Some(bytes),
            chunks: Some(self.chunks.len() as u64),
            manifests: Some(manifests),
            capacity: None,
        })
    }

    fn evict(&mut self, what: Eviction) -> Result<Evicted> {
        let mut evicted = Evicted { bytes: 0, chunks: 0, manifests: 0, more: false };
        match self.fault {
            Fault::EvictsNothing => return Ok(Evicted { more: true, ..evicted }),
            Fault::FreesNothing => return Ok(Evicted { bytes: 1, chunks: 1, more: true, ..evicted }),
            Fault::EvictsSlowly => {
                system::sleep(system::remaining() / 10 * 9)?;
                return Ok(Evicted { more: true, ..evicted });
            }
            _ => {}
        }
        while evicted.bytes < what.bytes
            && let Some((_, data)) = self.manifests.pop_first()
        {
            evicted.manifests += 1;
            evicted.bytes += data.len();
        }
        let may_go = |stored: u64| stored <= what.keep_since || self.fault == Fault::EvictsFresh;
        let going = self.chunks.iter().filter(|(_, (_, stored))| may_go(*stored)).map(|(hash, _)| hash.clone());
        for hash in going.collect::<Vec<_>>() {
            if evicted.bytes >= what.bytes {
                break;
            }
            if self.fault == Fault::Bounded {
                files::open_directory("")?.remove(&[hex(&hash)], false)?;
            }
            evicted.chunks += 1;
            evicted.bytes += self.chunks.remove(&hash).map_or(0, |(data, _)| data.len());
        }
        Ok(evicted)
    }
}

export!(Memory, maintenance);
