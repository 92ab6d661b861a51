//! `memory://NAME`: a store in the host's memory, and the example of a backend.
//!
//! The instance is the store, so it asks for one instance only. It holds handles; the bytes are the host's, and count
//! towards the host's limit for this component.

use std::collections::HashMap;

use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, PutOutcome, Result, absent, export,
};

#[derive(Default)]
struct Memory {
    chunks: HashMap<Vec<u8>, Payload>,
    manifests: HashMap<String, Payload>,
}

impl Backend for Memory {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        options.finish()?;
        if !uri.starts_with("memory://") {
            return Err(Error::invalid(format!("{uri}: expected memory:// or memory://NAME")));
        }
        let features =
            Features { label: "host memory".into(), max_instances: Some(1), write_through: true, ..Default::default() };
        Ok((Memory::default(), features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        Ok(hashes.iter().map(|hash| self.chunks.get(hash).map(Payload::len).into()).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let put = |chunk: &Chunk| {
            if !replace && self.chunks.contains_key(chunk.hash) {
                return PutOutcome::Existed;
            }
            match chunk.keep() {
                Ok(data) => {
                    self.chunks.insert(chunk.hash.to_vec(), data);
                    PutOutcome::Stored
                }
                Err(error) => PutOutcome::Failed(error),
            }
        };
        Ok(chunks.iter().map(put).collect())
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let get = |hash| match self.chunks.get(hash).map(Payload::share) {
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
        let gone =
            absent(fresh.iter().flat_map(|hashes| hashes.iter()).filter(|hash| !self.chunks.contains_key(*hash)));
        if let (CommitOutcome::Published, Some(manifest)) = (&gone, manifest) {
            self.manifests.insert(manifest.name.into(), manifest.keep()?);
        }
        Ok(gone)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        self.manifests.get(name).map(Payload::share).transpose()
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.manifests.remove(name);
        Ok(())
    }
}

export!(Memory);
