//! `memkv://HOST[:PORT]/NAMESPACE`: chunks and manifests on a memkv-server, over the frames of `docs/memkv-wire.md`.
//!
//! One connection for each instance. Puts are pipelined, chunks that are there are not sent again, and chunks are fetched as
//! a batch. Each frame is signed with the secret `auth-key` (`MEMKV_AUTH_KEY`, 64 hex digits), both ways.

mod change;
mod fence;
mod maintenance;
mod session;
mod uri;

use kv_store_sdk::key::{hex, unhex};
use kv_store_sdk::payloads::{self, Part};
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, ErrorKind, Features, GetOutcome, Hashes, Manifest, Options,
    Payload, Presence, Properties, PutOutcome, Result, absent, export,
};
use memkv_wire::fields::{BatchGet, Commit, Delete, Exists, Kind, Lookup, Put};
use memkv_wire::{GENERATION_BYTES, MAX_BATCH_KEYS, MAX_KEY_BYTES, Op, Status, Version};

use change::Change;
use session::{Answer, Server, Session, Wanted};

/// Puts that are sent before their answers are read, and chunks of one batch get. The answers to as many fit any buffer.
const PIPELINE: u32 = 256;
/// Bytes of chunks in one batch, either way.
const PIPELINE_BYTES: u64 = 32 << 20;
/// The length of a key that is the hash of its chunk's content: such a chunk is the same whenever it comes.
const CONTENT_KEY_BYTES: usize = 8;

struct Memkv {
    server: Server,
}

impl Backend for Memkv {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        options.finish()?;
        let server = Server::new(uri::parse(uri)?)?;
        let terms = server.with_session(|session| Ok(session.terms().clone()))?;
        // The server evicts, and a manifest must leave before its chunks.
        let properties = Properties::SHARED
            | Properties::WANTS_FRESH
            | Properties::EVICTS
            | Properties::DURABLE.when(terms.durable)
            | Properties::SETTLES.when(terms.version == Version::Two);
        let unfenced = match terms.version {
            Version::One => ", frames of version 1: changes that come late are not refused",
            Version::Two => "",
        };
        let features = Features {
            label: format!("{} at {}{unfenced}", terms.server, server.describe()),
            batch_items: Some(PIPELINE),
            batch_bytes: Some(PIPELINE_BYTES),
            max_value_bytes: Some(terms.max_value),
            properties,
            ..Default::default()
        };
        Ok((Memkv { server }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        let asked = hashes.first(MAX_BATCH_KEYS);
        self.server.with_session(|session| {
            let there = are_there(session, asked)?;
            Ok(there.map(Presence::from).collect())
        })
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let asked = chunks.get(..PIPELINE as usize).unwrap_or(chunks);
        let is_change = |chunk: &Chunk| replace || chunk.hash.len() != CONTENT_KEY_BYTES;
        let put = |session: &mut Session, end: u64, change: Change| {
            let (limit, version) = (session.terms().max_value, session.version());
            let fits = |chunk: &Chunk| chunk.len <= limit;
            for chunk in asked.iter().filter(|chunk| fits(chunk)) {
                let end = if is_change(chunk) { end } else { 0 };
                let fields =
                    Put { kind: Kind::Chunk, replace, generation: false, end, key: chunk.hash, chunks: Vec::new() };
                session.ask(Op::Put, fields.encode(version), Some((chunk.part(), chunk.len)))?;
            }
            session.send()?;
            let outcome = |(item, chunk): (u32, &Chunk)| match fits(chunk) {
                true => put_outcome(session, change, item),
                false => {
                    change.not_done(item);
                    Ok(PutOutcome::Failed(too_large(chunk.len, limit)))
                }
            };
            (0..).zip(asked).map(outcome).collect()
        };
        let items: Vec<u32> = (0..).zip(asked).filter(|(_, chunk)| is_change(chunk)).map(|(item, _)| item).collect();
        match items.is_empty() {
            // What is keyed by its content may come when it likes.
            true => self.server.with_session(|session| put(session, 0, Change::default())),
            false => self.change(&items, put),
        }
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let asked = hashes.first(PIPELINE as usize);
        self.server.with_session(|session| {
            let keys = asked.iter().collect();
            session.ask(Op::BatchGet, BatchGet { max_bytes: PIPELINE_BYTES, keys }.encode(), None)?;
            session.send()?;
            read_values(session, asked.len())
        })
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let asked = hashes.first(PIPELINE as usize);
        let items: Vec<u32> = (0..asked.len() as u32).collect();
        self.change(&items, |session, end, change| {
            let version = session.version();
            for key in asked {
                session.ask(Op::Delete, Delete { kind: Kind::Chunk, end, key }.encode(version), None)?;
            }
            session.send()?;
            items.iter().map(|item| delete_outcome(session, change, *item)).collect()
        })
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        let Some(manifest) = manifest else { return self.commit_chunks(fresh) };
        let key = manifest_key(manifest.name)?;
        let generation = has_place(&manifest)?;
        self.change(&[0], |session, end, change| {
            let (limit, version) = (session.terms().max_value, session.version());
            if manifest.len > limit {
                change.not_done(0);
                return Err(too_large(manifest.len, limit));
            }
            let chunks = fresh.iter().flat_map(|hashes| hashes.iter()).collect();
            let fields = Put { kind: Kind::Manifest, replace: true, generation, end, key: &key, chunks };
            let answer = session.ask_one(Op::Put, fields.encode(version), Some((manifest.part(), manifest.len)))?;
            change.answered(0, answer.status);
            committed(session, fresh, &answer)
        })
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        let key = manifest_key(name)?;
        self.server.with_session(|session| {
            let answer = session.ask_one(Op::Get, Lookup { kind: Kind::Manifest, key: &key }.encode(), None)?;
            match answer.status {
                Status::Ok => answer.payload().map(Some),
                Status::Missing => Ok(None),
                _ => Err(answer.error()),
            }
        })
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        let key = manifest_key(name)?;
        self.change(&[0], |session, end, change| {
            let fields = Delete { kind: Kind::Manifest, end, key: &key }.encode(session.version());
            let answer = session.ask_one(Op::Delete, fields, None)?;
            change.answered(0, answer.status);
            match answer.status {
                Status::Ok | Status::Missing => Ok(()),
                _ => Err(answer.error()),
            }
        })
    }
}

impl Memkv {
    /// Make chunks durable without a manifest.
    fn commit_chunks(&self, fresh: &[Hashes]) -> Result<CommitOutcome> {
        self.server.with_session(|session| match session.version() {
            Version::Two => {
                let chunks = fresh.iter().flat_map(|hashes| hashes.iter()).collect();
                let answer = session.ask_one(Op::Commit, Commit { chunks }.encode(), None)?;
                committed(session, fresh, &answer)
            }
            Version::One if session.terms().durable => Err(Error::unsupported(
                "a server of version 1 of the frames makes chunks durable with a manifest only: install memkv-server 0.3",
            )),
            Version::One => Ok(find_absent(session, fresh)?.unwrap_or(CommitOutcome::Published)),
        })
    }
}

/// Whether a manifest ends in the place of a generation, as the contract has it: the server may write one there.
fn has_place(manifest: &Manifest) -> Result<bool> {
    let Some(offset) = manifest.len.checked_sub(GENERATION_BYTES as u64) else { return Ok(false) };
    let len = GENERATION_BYTES as u64;
    let place = Payload::from_parts(&[manifest.range(offset, len)])?;
    Ok(place.read(0, len as u32)?.iter().all(|byte| *byte == 0))
}

/// The outcome of a commit whose answer this is.
fn committed(session: &mut Session, fresh: &[Hashes], answer: &Answer) -> Result<CommitOutcome> {
    match answer.status {
        Status::Ok => Ok(CommitOutcome::Published),
        // Without one what was gone is back.
        Status::Gone => find_absent(session, fresh)?.ok_or_else(|| answer.error()),
        _ => Err(answer.error()),
    }
}

/// Which of a batch of chunks the server has.
fn are_there(session: &mut Session, hashes: Hashes) -> Result<impl Iterator<Item = bool> + use<>> {
    let keys = hashes.iter().collect();
    let answer = session.ask_one(Op::Exists, Exists { keys }.encode(), None)?;
    if answer.status != Status::Ok {
        return Err(answer.error());
    }
    if answer.fields.len() != hashes.len() {
        return Err(session.corrupt("EXISTS was answered for another number of chunks"));
    }
    Ok(answer.fields.into_iter().map(|there| there == 1))
}

/// The outcome of a commit, where the server does not have all chunks.
fn find_absent(session: &mut Session, chunks: &[Hashes]) -> Result<Option<CommitOutcome>> {
    let mut gone = Vec::new();
    for batch in chunks.iter().flat_map(|hashes| hashes.batches(MAX_BATCH_KEYS)) {
        let there = are_there(session, batch)?;
        gone.extend(batch.iter().zip(there).filter(|(_, there)| !there).map(|(hash, _)| hash));
    }
    Ok(absent(gone))
}

fn too_large(len: u64, limit: u64) -> Error {
    Error::invalid(format!("{len} bytes: the server takes values of at most {limit}"))
}

/// Begins the name by which a listing has a manifest whose own name is too long for a key. A name of the C ABI has no NUL.
const BY_KEY: char = '\0';
const DIGEST_BYTES: usize = 32;

/// The name of the manifest under a key.
fn manifest_name(key: &[u8]) -> Option<String> {
    match key.split_first()? {
        (b'n', name) => String::from_utf8(name.to_vec()).ok().filter(|name| !name.is_empty()),
        (b'd', digest) => Some(format!("{BY_KEY}{}", hex(digest))),
        _ => None,
    }
}

/// `n` and the name, or `d` and its SHA-256 where that would be longer than a key.
fn manifest_key(name: &str) -> Result<Vec<u8>> {
    let digest = name.strip_prefix(BY_KEY).and_then(|digest| unhex(digest.as_bytes()));
    if let Some(digest) = digest.filter(|digest| digest.len() == DIGEST_BYTES) {
        return Ok([b"d", digest.as_slice()].concat());
    }
    if name.len() < MAX_KEY_BYTES {
        return Ok([b"n", name.as_bytes()].concat());
    }
    let digest = payloads::sha256(&[Part::Bytes(name.as_bytes().to_vec())])?;
    Ok([b"d", digest.as_slice()].concat())
}

fn put_outcome(session: &mut Session, change: Change, item: u32) -> Result<PutOutcome> {
    let answer = session.answer(Op::Put, Wanted::Value(None))?;
    change.answered(item, answer.status);
    Ok(match answer.status {
        Status::Ok => PutOutcome::Stored,
        Status::Existed => PutOutcome::Existed,
        _ => PutOutcome::Failed(answer.error()),
    })
}

fn delete_outcome(session: &mut Session, change: Change, item: u32) -> Result<DeleteOutcome> {
    let answer = session.answer(Op::Delete, Wanted::Value(None))?;
    change.answered(item, answer.status);
    Ok(match answer.status {
        Status::Ok | Status::Missing => DeleteOutcome::Gone,
        _ => DeleteOutcome::Failed(answer.error()),
    })
}

/// The answers to a batch get of `asked` chunks. Where the host has no room for one, what was read so far is the answer; it asks
/// again for the rest, which is read here and forgotten.
fn read_values(session: &mut Session, asked: usize) -> Result<Vec<GetOutcome>> {
    let mut outcomes = Vec::new();
    let mut full = false;
    let mut expected = None;
    loop {
        // While nothing is full each answer is an item's.
        let wanted = if full { Wanted::Nothing } else { Wanted::Value(Some(outcomes.len() as u32)) };
        let answer = session.answer(Op::BatchGet, wanted)?;
        let left = answer.left as usize;
        if left >= expected.unwrap_or(asked) || expected.is_some_and(|expected| left + 1 != expected) {
            return Err(session.corrupt("a batch was answered with another number of values"));
        }
        let outcome = match answer.status {
            Status::Ok => match answer.payload() {
                Ok(data) => GetOutcome::Found(data),
                Err(error) if error.kind == ErrorKind::Exhausted => {
                    full = true;
                    GetOutcome::Failed(error)
                }
                Err(error) => return Err(error),
            },
            Status::Missing => GetOutcome::Missing,
            _ => return Err(session.corrupt("a batch get was answered by something else")),
        };
        // What did not fit ends the answer, unless it is all of it.
        if !full || outcomes.is_empty() {
            outcomes.push(outcome);
        }
        if left == 0 {
            return Ok(outcomes);
        }
        expected = Some(left);
    }
}

export!(Memkv, maintenance, schemes: ["memkv"], port: 9900,
    wishes: ["the server in the URI", "the secret auth-key"], options: [], secrets: ["auth-key"]);
