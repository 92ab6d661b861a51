//! The calls of a component as the contract has them: one batch in, one answer for each item out, with nothing of the store before them.
//!
//! The store asks `exists` before it puts, remembers what it has seen, and wraps what it stores. So some faults of a component show only
//! in its own answers.

use std::sync::Arc;

use kv_platform::sync::Mutex;
use kv_store_wasm::raw::Until;
use kv_store_wasm::raw::backend::{
    Answers, Backend, BackendLayer, Bytes, ChunkHash, Committed, Got, Opening, Wrap, stored_name,
};
use kv_store_wasm::{Error, ErrorKind, Presence, Put, Store};

/// Takes note of the instances of the store that was opened last.
#[derive(Clone, Default)]
pub struct Tap(Arc<Mutex<Option<Arc<dyn Backend>>>>);

impl BackendLayer for Tap {
    fn open(&self, _: &Opening<'_>) -> Result<Option<Wrap>, Error> {
        let Tap(slot) = self.clone();
        Ok(Some(Box::new(move |inner| {
            *slot.lock() = Some(inner.clone());
            inner
        })))
    }
}

/// Bytes at the end of a manifest where the storage system may write a generation.
const GENERATION: usize = 16;

/// A chunk by its hash and content.
pub type Chunk = (Vec<u8>, Vec<u8>);

/// The instances of a store. Names of manifests come to them as the host makes them, with the end of its layout.
pub struct Instances {
    backend: Arc<dyn Backend>,
    /// Held, because the instances end with it.
    pub store: Store,
}

impl Instances {
    /// Open a store, and take its instances.
    pub fn open(tap: &Tap, uri: &str) -> Result<Self, String> {
        let store = Store::open(uri).map_err(|error| error.to_string())?;
        let tapped = tap.0.lock().clone();
        Ok(Instances { backend: tapped.ok_or("the store was opened without its layers")?, store })
    }

    fn until(&self) -> Until {
        Until::new(&kv_store_wasm::limits::Limits::default())
    }

    pub fn put(&self, chunks: &[Chunk], replace: bool) -> Result<Vec<Put>, String> {
        let batch = chunks.iter().map(|(hash, data)| Ok((ChunkHash::new(hash)?, Bytes::Borrowed(data))));
        let batch = batch.collect::<Result<Vec<_>, Error>>().map_err(|error| error.to_string())?;
        whole("put-chunks", &batch, |rest| self.backend.put(rest, replace, &self.until()))
    }

    /// The length of each chunk that is there, as far as the answer has it.
    pub fn exists(&self, hashes: &[Vec<u8>]) -> Result<Vec<Option<Option<u64>>>, String> {
        let answers = whole("exists", &parse(hashes)?, |rest| self.backend.exists(rest, &self.until()))?;
        let present = |answer| match answer {
            Presence::Present(len) => Some(len),
            _ => None,
        };
        Ok(answers.into_iter().map(present).collect())
    }

    pub fn get(&self, hashes: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, String> {
        let answers = whole("get-chunks", &parse(hashes)?, |rest| self.backend.get(rest, &mut [], &self.until()))?;
        let found = |answer: Option<Got>| match answer {
            None => Ok(None),
            Some(Got::Buffer(data)) => Ok(Some(data.to_vec())),
            Some(_) => Err("get-chunks: answered into memory that was not given".to_owned()),
        };
        answers.into_iter().map(found).collect()
    }

    /// Remove chunks. False: this backend removes none.
    pub fn delete(&self, hashes: &[Vec<u8>]) -> Result<bool, String> {
        let mut rest = parse(hashes)?;
        while !rest.is_empty() {
            let answers = match self.backend.delete(&rest, &self.until()) {
                Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(false),
                answers => answers.map_err(|error| format!("delete-chunks: {error}"))?,
            };
            for answer in &answers {
                match answer {
                    Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(false),
                    Err(error) => return Err(format!("delete-chunks: {error}")),
                    Ok(()) => {}
                }
            }
            if answers.is_empty() {
                return Err("delete-chunks: answered nothing to a batch".into());
            }
            rest.drain(..answers.len().min(rest.len()));
        }
        Ok(true)
    }

    /// The chunks that a commit answers as gone; none: it is published. The manifest gets the place of a generation behind it.
    pub fn commit(&self, fresh: &[Vec<u8>], manifest: Option<(&str, &[u8])>) -> Result<Vec<Vec<u8>>, String> {
        let placed = manifest.map(|(name, data)| (stored_name(name), [data, &[0; GENERATION]].concat()));
        let manifest = placed.as_ref().map(|(name, data)| (name.as_str(), data.as_slice()));
        match self.backend.commit(manifest, &parse(fresh)?, 1 << 20, &self.until()) {
            Ok(Committed::Published) => Ok(Vec::new()),
            Ok(Committed::Absent(gone)) => Ok(gone.iter().map(|hash| hash.as_slice().to_vec()).collect()),
            Err(error) => Err(format!("commit: {error}")),
        }
    }

    /// Publish a manifest under the name as it is. False: the backend does not do so, as one may that tells by names what hosts of former
    /// versions wrote.
    pub fn publish_as_is(&self, name: &str, data: &[u8]) -> Result<bool, String> {
        let placed = [data, &[0; GENERATION]].concat();
        match self.backend.commit(Some((name, &placed)), &[], 1 << 20, &self.until()) {
            Ok(Committed::Published) => Ok(true),
            Ok(Committed::Absent(_)) => Err("commit: named chunks as absent, and nothing was fresh".into()),
            Err(error) if error.kind() == ErrorKind::Unsupported => Ok(false),
            Err(error) => Err(format!("commit: {error}")),
        }
    }

    /// A manifest without the place of a generation.
    pub fn manifest(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        Ok(self.manifest_as_is(&stored_name(name))?.map(|mut data| {
            data.truncate(data.len().saturating_sub(GENERATION));
            data
        }))
    }

    pub fn delete_manifest(&self, name: &str) -> Result<(), String> {
        self.delete_manifest_as_is(&stored_name(name))
    }

    /// A manifest under the name as it is. The host asks so for what earlier versions wrote, and writes none.
    pub fn manifest_as_is(&self, name: &str) -> Result<Option<Vec<u8>>, String> {
        let found = self.backend.get_manifest(name, &self.until()).map_err(|error| format!("get-manifest: {error}"))?;
        Ok(found.map(|data| data.to_vec()))
    }

    pub fn delete_manifest_as_is(&self, name: &str) -> Result<(), String> {
        self.backend.delete_manifest(name, &self.until()).map_err(|error| format!("delete-manifest: {error}"))
    }

    /// End the instances that are idle, as the host may between any two calls.
    pub fn retire(&self) {
        // As many as one thread after the other can have used.
        (0..8).for_each(|_| self.backend.retire());
    }
}

fn parse(hashes: &[Vec<u8>]) -> Result<Vec<ChunkHash>, String> {
    hashes.iter().map(|hash| ChunkHash::new(hash)).collect::<Result<_, _>>().map_err(|error| error.to_string())
}

/// Ask until each item is answered.
fn whole<I, T>(what: &str, items: &[I], ask: impl Fn(&[I]) -> Answers<T>) -> Result<Vec<T>, String> {
    let mut answered = Vec::new();
    while let Some(rest) = items.get(answered.len()..).filter(|rest| !rest.is_empty()) {
        let before = answered.len();
        for answer in ask(rest).map_err(|error| format!("{what}: {error}"))? {
            answered.push(answer.map_err(|error| format!("{what}: {error}"))?);
        }
        if answered.len() == before {
            return Err(format!("{what}: answered nothing to a batch"));
        }
    }
    Ok(answered)
}
