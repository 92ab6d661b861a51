//! A backend that asks each function of the contract for its edges. The manifest `rows` tells what came: `NAME: OUTCOME`, one line for each
//! question. `tests/second-host/edges-*.txt` have what must come, on every host.
//!
//! `edges:///DIRECTORY` asks `payloads`, `files`, `system` and `changes`; `edges:///DIRECTORY/records` asks `records`; `edges://ECHO,OBJECTS`
//! asks `net` on a server that answers each line with itself, and `http` on one that keeps objects.

mod directory;
mod items;
mod network;
mod plain;
mod records;

use std::cell::RefCell;
use std::collections::HashMap;

use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, export,
};

thread_local! {
    static ROWS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Note what a question came to.
fn row(name: &str, outcome: Result<impl std::fmt::Display>) {
    let said = match outcome {
        Ok(value) => value.to_string(),
        Err(error) => kind(&error),
    };
    ROWS.with_borrow_mut(|rows| rows.push(format!("{name}: {said}\n")));
}

/// The kind of an error, as the text names it.
fn kind(error: &Error) -> String {
    let kind = format!("{:?}", error.kind).to_lowercase();
    kind.rsplit("::").next().unwrap_or_default().to_owned()
}

/// `ok`, for an outcome that has nothing more to say.
fn done<T>(outcome: Result<T>) -> Result<&'static str> {
    outcome.map(|_| "ok")
}

/// Bytes as text, where they are short.
fn text(bytes: &[u8]) -> String {
    if bytes.len() > 40 { format!("{} bytes", bytes.len()) } else { bytes.escape_ascii().to_string() }
}

/// The bytes of a payload.
fn content(payload: &Payload) -> Result<String> {
    Ok(text(&payload.read(0, u32::try_from(payload.len()).unwrap_or(u32::MAX))?))
}

/// What is asked.
enum Asked {
    /// What a directory is granted for.
    Files,
    Records,
    /// The authorities of the echo, and of the objects.
    Network(String, String),
}

struct Edges {
    asked: Asked,
    chunks: HashMap<Vec<u8>, Payload>,
    manifests: HashMap<String, Payload>,
}

impl Backend for Edges {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        options.finish()?;
        let rest = uri.split_once("://").map_or("", |(_, rest)| rest);
        let asked = match rest.split('/').next().and_then(|servers| servers.split_once(',')) {
            Some((echo, objects)) => Asked::Network(echo.to_owned(), objects.to_owned()),
            None if rest.ends_with("/records") => Asked::Records,
            None => Asked::Files,
        };
        let properties = Properties::HOLDS_DATA | Properties::WANTS_FRESH | Properties::CHEAP_REPEAT;
        let features = Features { label: "edges".into(), properties, ..Default::default() };
        Ok((Edges { asked, chunks: HashMap::new(), manifests: HashMap::new() }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        items::outside("exists");
        Ok(hashes.iter().map(|hash| self.chunks.get(hash).map(Payload::len).into()).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], _replace: bool) -> Result<Vec<PutOutcome>> {
        match &self.asked {
            Asked::Files => {
                plain::ask();
                items::of_a_put(chunks);
                directory::ask();
            }
            Asked::Records => records::ask(chunks),
            Asked::Network(echo, objects) => network::ask(echo, objects, chunks),
        }
        for chunk in chunks {
            self.chunks.insert(chunk.hash.to_vec(), chunk.keep()?);
        }
        Ok(chunks.iter().map(|_| PutOutcome::Stored).collect())
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        items::outside("get-chunks");
        match &self.asked {
            Asked::Files => directory::read_items(hashes.len() as u32),
            Asked::Records => records::read_items(hashes.len() as u32),
            Asked::Network(echo, objects) => network::receive_items(echo, objects),
        }
        let get = |hash: &[u8]| match self.chunks.get(hash) {
            Some(data) => data.share().map_or_else(GetOutcome::Failed, GetOutcome::Found),
            None => GetOutcome::Missing,
        };
        Ok(hashes.iter().map(get).collect())
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        for hash in hashes {
            self.chunks.remove(hash);
        }
        Ok(hashes.iter().map(|_| DeleteOutcome::Gone).collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        let Some(manifest) = manifest else { return Ok(CommitOutcome::Published) };
        items::of_a_commit(&manifest, fresh);
        self.manifests.insert(manifest.name.to_owned(), manifest.keep()?);
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        if name == "rows" {
            return ROWS.with_borrow(|rows| Payload::from_bytes(rows.concat().as_bytes())).map(Some);
        }
        self.manifests.get(name).map(Payload::share).transpose()
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.manifests.remove(name);
        Ok(())
    }
}

export!(Edges);
