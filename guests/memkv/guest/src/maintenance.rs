//! Listing, counting and evicting: one question each, which the server answers from its table.

use kv_store_sdk::key::{hex, unhex};
use kv_store_sdk::{
    ChunkEntry, ChunkPage, Error, Evicted, Eviction, Maintenance, ManifestEntry, ManifestPage, Result, Totals,
};
use memkv_wire::fields::{self, Evict, Kind, List, Listed, Listing, Usage};
use memkv_wire::{Op, Status};

use crate::session::{Answer, Session};
use crate::{Memkv, manifest_name};

impl Maintenance for Memkv {
    fn list_chunks(&mut self, after: Option<&str>, limit: u32) -> Result<ChunkPage> {
        let (listed, next) = self.list(Kind::Chunk, after, limit)?;
        let entries = listed.into_iter().filter(|listed| listed.key.len() <= 64).map(|listed| {
            let Listed { key, size, stored, used } = listed;
            ChunkEntry { hash: key, size: Some(size), stored: Some(stored), used: Some(used) }
        });
        Ok(ChunkPage { entries: entries.collect(), next })
    }

    fn list_manifests(&mut self, after: Option<&str>, limit: u32) -> Result<ManifestPage> {
        let (listed, next) = self.list(Kind::Manifest, after, limit)?;
        let entries = listed.into_iter().filter_map(|Listed { key, size, stored, used }| {
            let name = manifest_name(&key)?;
            Some(ManifestEntry { name, size: Some(size), stored: Some(stored), used: Some(used) })
        });
        Ok(ManifestPage { entries: entries.collect(), next })
    }

    fn usage(&mut self) -> Result<Totals> {
        self.server.with_session(|session| {
            let answer = ask(session, Op::Usage, Vec::new())?;
            let Usage { bytes, chunks, manifests, capacity } =
                Usage::decode(&answer.fields).map_err(|fault| session.corrupt(&fault.to_string()))?;
            let [bytes, chunks, manifests, capacity] = [bytes, chunks, manifests, capacity].map(Some);
            Ok(Totals { bytes, chunks, manifests, capacity })
        })
    }

    fn evict(&mut self, what: Eviction) -> Result<Evicted> {
        let Eviction { bytes, unused_since, keep_since } = what;
        let what = Evict { bytes, unused_since: unused_since.unwrap_or(0), keep_since };
        self.server.with_session(|session| {
            let answer = ask(session, Op::Evict, what.encode())?;
            let fields::Evicted { bytes, chunks, manifests, more } =
                fields::Evicted::decode(&answer.fields).map_err(|fault| session.corrupt(&fault.to_string()))?;
            Ok(Evicted { bytes, chunks, manifests, more })
        })
    }
}

/// A question and its answer.
fn ask(session: &mut Session, op: Op, fields: Vec<u8>) -> Result<Answer> {
    let answer = session.ask_one(op, fields, None)?;
    match answer.status {
        Status::Ok => Ok(answer),
        _ => Err(answer.error()),
    }
}

impl Memkv {
    /// Some entries of a kind, and what leads to the next.
    fn list(&self, kind: Kind, after: Option<&str>, limit: u32) -> Result<(Vec<Listed>, Option<String>)> {
        let after = unhex(after.unwrap_or_default().as_bytes());
        let after = after.ok_or_else(|| Error::invalid("no place in a listing of this backend"))?;
        self.server.with_session(|session| {
            let asked = List { kind, after: &after, limit: limit.max(1) };
            let value = ask(session, Op::List, asked.encode())?.payload()?;
            let bytes = value.read(0, u32::try_from(value.len()).unwrap_or(u32::MAX))?;
            let Listing(listed) = Listing::decode(&bytes).map_err(|fault| session.corrupt(&fault.to_string()))?;
            let next = listed.last().map(|last| hex(&last.key));
            Ok((listed, next))
        })
    }
}
