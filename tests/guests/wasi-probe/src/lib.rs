//! A backend that does through WASI what the name of a manifest tells it to, and answers what came of it as that manifest.
//! It stores nothing.

mod act;

use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, PutOutcome, Result, export,
};

struct WasiProbe;

impl Backend for WasiProbe {
    fn open(_uri: &str, options: Options) -> Result<(Self, Features)> {
        options.finish()?;
        Ok((WasiProbe, Features { label: "a probe of WASI".into(), ..Default::default() }))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        Ok(hashes.iter().map(|_| Presence::Absent).collect())
    }

    fn put_chunks(&mut self, _chunks: &[Chunk], _replace: bool) -> Result<Vec<PutOutcome>> {
        Err(Error::unsupported("stores nothing"))
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        Ok(hashes.iter().map(|_| GetOutcome::Missing).collect())
    }

    fn delete_chunks(&mut self, _hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        Err(Error::unsupported("stores nothing"))
    }

    fn commit(&mut self, _fresh: &[Hashes], _manifest: Option<Manifest>) -> Result<CommitOutcome> {
        Err(Error::unsupported("stores nothing"))
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        // Asked for by the name that an envelope has, and then by its own.
        if name.ends_with('\u{2}') {
            return Ok(None);
        }
        let (what, with) = name.split_once(' ').unwrap_or((name, ""));
        Payload::from_bytes(act::act(what, with).as_bytes()).map(Some)
    }

    fn delete_manifest(&mut self, _name: &str) -> Result<()> {
        Ok(())
    }
}

export!(WasiProbe, wishes: ["nothing"]);
