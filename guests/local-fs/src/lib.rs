//! `local-fs:///DIR`: chunks and manifests as files below a directory.
//!
//! Manifests lie at `DIR/<name>`, chunks at `DIR/chunks/<first hex digit>/<hex>`; names are escaped, so that a manifest
//! named `chunks` or `../x` is a file of `DIR` like any other. `.local-fs` says whose the directory is, see [`marker`]. A chunk whose file has the length of the chunk is whole,
//! because the host's files appear whole; another length is what a power cut left, and is written again.
//!
//! Option `durability`: `full` (default) makes the fresh chunks and the manifest survive power loss before a manifest is
//! published; `rename` leaves that to the kernel, and promises only that no reader sees a part.
//!
//! Options `max_bytes`, `max_entries`, `ttl_s`, `evict`, `keep_free`, `save_grace_s`: see [`bound`]. Without them nothing is ever removed.
//!
//! `tests/models/src/local_fs.rs`: "an acknowledged change is not undone": the host renames and removes in turn, by the deadline of the call or
//! not at all (`core/src/directory/order.rs`).

mod bound;
mod layout;
mod maintenance;
mod marker;

use bound::Bound;
use kv_store_sdk::files::{
    Directory, ReadOutcome, ReadRequest, RemoveOutcome, SizeOutcome, WriteOutcome, WriteRequest, open_directory,
};
use kv_store_sdk::uri::without_query;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, ErrorKind, Features, GetOutcome, Hashes, Manifest, Options,
    Payload, Presence, Properties, PutOutcome, Result, absent, export,
};

/// Paths per call to `sync`, so that a long list of fresh chunks needs little memory here.
const SYNC_BATCH: usize = 1024;

struct LocalFs {
    directory: Directory,
    durable: bool,
    evicts: bool,
    /// Of a manifest behind its chunks, see [`bound`].
    lag: u64,
}

impl Backend for LocalFs {
    fn open(uri: &str, mut options: Options) -> Result<(Self, Features)> {
        let durable = options.take_choice("durability", &["full", "rename"])? == "full";
        let Some(path) = uri.strip_prefix("local-fs://") else {
            return Err(Error::invalid(format!("{uri}: expected local-fs:///DIRECTORY")));
        };
        // Until the contract is frozen it is a part of the directory's name.
        without_query(uri);
        let directory = open_directory("")?;
        marker::claim(&directory)?;
        let bound = Bound::take(&mut options, &directory)?;
        options.finish()?;
        let (evicts, lag) = (bound.evicts, bound.lag);
        let properties = Properties::SHARED
            | Properties::CHEAP_REPEAT
            | Properties::WRITE_THROUGH
            | Properties::DURABLE.when(durable)
            | (Properties::EVICTS | Properties::WANTS_FRESH).when(evicts);
        let label = format!("directory {path}");
        let features = Features { label, properties, more: bound.facts, ..Default::default() };
        Ok((LocalFs { directory, durable, evicts, lag }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        let sizes = self.directory.sizes(&chunk_paths(hashes))?;
        // What cannot be looked at is absent: the put of it says why.
        Ok(sizes.into_iter().map(|size| Presence::from(known(&size))).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let paths: Vec<String> = chunks.iter().map(|chunk| layout::chunk_path(chunk.hash)).collect();
        let sizes = if replace { vec![SizeOutcome::Missing; paths.len()] } else { self.directory.sizes(&paths)? };
        let items = || chunks.iter().zip(&paths).zip(&sizes);
        // What the size alone says. What cannot be looked at may be there, and be of another length.
        let told = |chunk: &Chunk, size: &SizeOutcome| match size {
            SizeOutcome::Size(len) if *len == chunk.len => Some(PutOutcome::Existed),
            SizeOutcome::Failed(error) => Some(PutOutcome::Failed(error.clone())),
            SizeOutcome::Size(_) | SizeOutcome::Missing => None,
        };

        let requests: Vec<WriteRequest> = items()
            .filter(|((chunk, _), size)| told(chunk, size).is_none())
            .map(|((chunk, path), size)| WriteRequest {
                path: path.clone(),
                content: vec![chunk.part()],
                replace: replace || known(size).is_some(),
            })
            .collect();
        let mut written = if requests.is_empty() {
            Vec::new().into_iter()
        } else {
            self.directory.write(&requests, false)?.into_iter()
        };
        // A short answer of the host makes a short answer of ours.
        Ok(items()
            .map_while(|((chunk, _), size)| {
                if let Some(outcome) = told(chunk, size) {
                    return Some(outcome);
                }
                Some(match written.next()? {
                    WriteOutcome::Written => PutOutcome::Stored,
                    WriteOutcome::Existed => PutOutcome::Existed,
                    WriteOutcome::Failed(error) => PutOutcome::Failed(error),
                })
            })
            .collect())
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let paths = (0..).zip(chunk_paths(hashes));
        let requests: Vec<ReadRequest> = paths.map(|(item, path)| whole_file(path, Some(item))).collect();
        let outcomes = self.directory.read(&requests)?;
        Ok(outcomes
            .into_iter()
            .map(|outcome| match outcome {
                ReadOutcome::Found(data) => GetOutcome::Found(data),
                ReadOutcome::Missing => GetOutcome::Missing,
                ReadOutcome::Failed(error) => GetOutcome::Failed(error),
            })
            .collect())
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        // Not durable: a damaged file that is back after a power cut is found damaged again.
        let outcomes = self.directory.remove(&chunk_paths(hashes), false)?;
        Ok(outcomes
            .into_iter()
            .map(|outcome| match outcome {
                RemoveOutcome::Removed | RemoveOutcome::Missing => DeleteOutcome::Gone,
                RemoveOutcome::Failed(error) => DeleteOutcome::Failed(error),
            })
            .collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        // To ask for the sizes renews the times of use.
        if self.evicts
            && let Some(gone) = self.absent(fresh)?
        {
            return Ok(gone);
        }
        if self.durable
            && let Err(error) = self.sync(fresh)
        {
            // `invalid`: a chunk is not there. If it is back meanwhile, the host asks again.
            if error.kind == ErrorKind::Invalid
                && let Some(gone) = self.absent(fresh)?
            {
                return Ok(gone);
            }
            return Err(error);
        }
        let Some(manifest) = manifest else { return Ok(CommitOutcome::Published) };
        let path = layout::manifest_path(manifest.name);
        let request = WriteRequest { path, content: vec![manifest.part()], replace: true };
        match self.directory.write(&[request], self.durable)?.pop() {
            Some(WriteOutcome::Written | WriteOutcome::Existed) => Ok(CommitOutcome::Published),
            Some(WriteOutcome::Failed(error)) => Err(error),
            None => Err(Error::other("the host answered nothing for the manifest")),
        }
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        match self.directory.read(&[whole_file(layout::manifest_path(name), None)])?.pop() {
            Some(ReadOutcome::Found(data)) => Ok(Some(data)),
            Some(ReadOutcome::Failed(error)) => Err(error),
            Some(ReadOutcome::Missing) | None => Ok(None),
        }
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        match self.directory.remove(&[layout::manifest_path(name)], self.durable)?.pop() {
            Some(RemoveOutcome::Failed(error)) => Err(error),
            Some(RemoveOutcome::Removed | RemoveOutcome::Missing) | None => Ok(()),
        }
    }
}

impl LocalFs {
    /// Make chunks durable. `invalid`: one of them is not there.
    fn sync(&self, chunks: &[Hashes]) -> Result<()> {
        let mut batches = chunks.iter().flat_map(|hashes| hashes.batches(SYNC_BATCH));
        batches.try_for_each(|batch| self.directory.sync(&chunk_paths(batch)))
    }

    /// Which chunks are not there. Those that are count as used.
    fn absent(&self, chunks: &[Hashes]) -> Result<Option<CommitOutcome>> {
        let mut gone = Vec::new();
        for batch in chunks.iter().flat_map(|hashes| hashes.batches(SYNC_BATCH)) {
            let (paths, mut hashes) = (chunk_paths(batch), batch.iter());
            let mut rest = paths.as_slice();
            while !rest.is_empty() {
                let sizes = self.directory.sizes(rest)?;
                rest = rest.get(sizes.len().max(1)..).unwrap_or_default();
                // Nobody knows whether that one is there.
                if let Some(error) = sizes.iter().find_map(unseen) {
                    return Err(error.clone());
                }
                let missing = |size: &SizeOutcome| matches!(size, SizeOutcome::Missing);
                gone.extend(sizes.iter().zip(&mut hashes).filter(|(size, _)| missing(size)).map(|(_, hash)| hash));
            }
        }
        Ok(absent(gone))
    }
}

fn known(size: &SizeOutcome) -> Option<u64> {
    match size {
        SizeOutcome::Size(size) => Some(*size),
        SizeOutcome::Missing | SizeOutcome::Failed(_) => None,
    }
}

fn unseen(size: &SizeOutcome) -> Option<&Error> {
    match size {
        SizeOutcome::Failed(error) => Some(error),
        SizeOutcome::Size(_) | SizeOutcome::Missing => None,
    }
}

fn chunk_paths(hashes: Hashes) -> Vec<String> {
    hashes.iter().map(layout::chunk_path).collect()
}

/// `item`: which chunk of the running call it is.
fn whole_file(path: String, item: Option<u32>) -> ReadRequest {
    ReadRequest { path, offset: 0, len: None, item }
}

export!(LocalFs, maintenance, schemes: ["local-fs"], wishes: ["the directory in the URI"],
    options: ["durability", "max_bytes", "max_entries", "ttl_s", "evict", "keep_free", "save_grace_s"], secrets: []);
