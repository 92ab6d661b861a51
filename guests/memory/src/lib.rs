//! `memory://NAME`: a store in the host's memory, and the example of a backend.
//!
//! The instance is the store, so it asks for one instance only. It holds handles; the bytes are the host's, and count
//! towards the host's limit for this component.

use std::collections::HashMap;

use kv_store_sdk::{
    Backend, Chunk, DeleteOutcome, Error, Features, GetOutcome, Hash, Options, Payload, PutOutcome, Result, export,
};

#[derive(Default)]
struct Memory {
    chunks: HashMap<Hash, Payload>,
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

    fn exists(&mut self, hashes: &[Hash]) -> Result<Vec<bool>> {
        Ok(hashes.iter().map(|hash| self.chunks.contains_key(hash)).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let put = |chunk: &Chunk| {
            if !replace && self.chunks.contains_key(&chunk.hash) {
                return PutOutcome::Existed;
            }
            match chunk.data.share() {
                Ok(data) => {
                    self.chunks.insert(chunk.hash.clone(), data);
                    PutOutcome::Stored
                }
                Err(error) => PutOutcome::Failed(error),
            }
        };
        Ok(chunks.iter().map(put).collect())
    }

    fn get_chunks(&mut self, hashes: &[Hash]) -> Result<Vec<GetOutcome>> {
        let get = |hash| match self.chunks.get(hash).map(Payload::share) {
            None => GetOutcome::Missing,
            Some(Ok(data)) => GetOutcome::Found(data),
            Some(Err(error)) => GetOutcome::Failed(error),
        };
        Ok(hashes.iter().map(get).collect())
    }

    fn delete_chunks(&mut self, hashes: &[Hash]) -> Result<Vec<DeleteOutcome>> {
        let delete = |hash| {
            self.chunks.remove(hash);
            DeleteOutcome::Gone
        };
        Ok(hashes.iter().map(delete).collect())
    }

    fn put_manifest(&mut self, name: &str, data: &Payload, _fresh: &[Hash]) -> Result<()> {
        self.manifests.insert(name.into(), data.share()?);
        Ok(())
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
