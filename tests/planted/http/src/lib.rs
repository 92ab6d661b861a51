//! A backend of objects on a server that takes PUT, GET, HEAD and DELETE, sound but for the one bug that its scheme names.

#[path = "../../named.rs"]
mod named;

use kv_store_sdk::http::{self, Request, RequestOptions, Response};
use kv_store_sdk::key::{escape, hex};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::uri::without_query;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, export, system,
};

use named::Http as Bug;

struct Objects {
    bug: Bug,
    given_up: bool,
    authority: String,
    prefix: String,
    options: RequestOptions,
}

impl Objects {
    fn chunk(&self, hash: &[u8]) -> String {
        format!("{}/c/{}", self.prefix, hex(hash))
    }

    fn manifest(&self, name: &str) -> String {
        let key = match self.bug {
            // Only what the host takes as a path.
            Bug::HttpKeepsDecoded if name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') => {
                name.trim_end_matches('/').to_owned()
            }
            _ => escape(name).replace('%', "~"),
        };
        format!("{}/m/{key}", self.prefix)
    }

    fn send(&mut self, method: &str, path: String, body: Vec<Part>, item: Option<u32>) -> Result<Response> {
        if self.given_up {
            return Err(Error::unavailable("it has failed before"));
        }
        loop {
            let (method, authority) = (method.to_owned(), self.authority.clone());
            let (path, body, options) = (path.clone(), body.clone(), Some(&self.options));
            let request = Request { method, authority, path, headers: Vec::new(), body, item, options };
            let answered = http::send(&[request]).pop().unwrap_or_else(|| Err(Error::other("no answer")));
            let failed = answered.as_ref().map_or(true, |response| response.status >= 500);
            match self.bug {
                Bug::HttpRetries if failed && system::remaining() > 100_000_000 => drop(system::sleep(10_000_000)),
                Bug::HttpGivesUp if failed => {
                    self.given_up = true;
                    return answered;
                }
                _ => return answered,
            }
        }
    }

    fn put(&mut self, path: String, body: Part, refused: Bug) -> Result<()> {
        let response = self.send("PUT", path, vec![body], None)?;
        if self.bug == refused || succeeded(&response)? {
            return Ok(());
        }
        Err(Error::invalid("the server has no such place"))
    }

    fn get(&mut self, path: String, item: Option<u32>) -> Result<Option<Payload>> {
        let response = self.send("GET", path, Vec::new(), item)?;
        match (self.bug, response.status) {
            (Bug::HttpMissesRefused, 403) | (Bug::HttpMissesUnavailable, 503) => Ok(None),
            _ => Ok(succeeded(&response)?.then_some(response.body)),
        }
    }

    fn remove(&mut self, path: String) -> Result<()> {
        let response = self.send("DELETE", path, Vec::new(), None)?;
        match succeeded(&response) {
            Err(_) if self.bug == Bug::HttpRemovesRefused => Ok(()),
            Ok(false) if self.bug == Bug::HttpRefusesAbsent => Err(Error::invalid("there is no such object")),
            answered => answered.map(drop),
        }
    }
}

/// True: it went well. False: there is no such object.
fn succeeded(response: &Response) -> Result<bool> {
    let said = format!("the server answered status {}", response.status);
    match response.status {
        200..300 => Ok(true),
        404 => Ok(false),
        429 | 503 => Err(Error::busy(said)),
        401 | 403 => Err(Error::denied(said)),
        500.. => Err(Error::unavailable(said)),
        _ => Err(Error::other(said)),
    }
}

impl Backend for Objects {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        let bug = Bug::named(uri)?;
        options.finish()?;
        let rest = without_query(uri).split_once("://").map_or("", |(_, rest)| rest);
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (authority, prefix) = (authority.to_owned(), format!("/{prefix}"));
        let mut objects = Objects { bug, given_up: false, authority, prefix, options: RequestOptions::new() };
        let probe = objects.manifest("probe");
        succeeded(&objects.send("HEAD", probe, Vec::new(), None)?)?;
        let label = format!("objects at {}{}", objects.authority, objects.prefix);
        let properties = Properties::SHARED | Properties::WRITE_THROUGH;
        // What one instance knows they all know.
        let max_instances = (bug == Bug::HttpGivesUp).then_some(1);
        Ok((objects, Features { label, properties, max_instances, ..Default::default() }))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        let has = |hash| {
            let response = self.send("HEAD", self.chunk(hash), Vec::new(), None)?;
            Ok(succeeded(&response)?.into())
        };
        hashes.iter().map(has).collect()
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let put = |chunk: &Chunk| {
            let path = self.chunk(chunk.hash);
            if !replace && succeeded(&self.send("HEAD", path.clone(), Vec::new(), None)?)? {
                return Ok(PutOutcome::Existed);
            }
            self.put(path, chunk.part(), Bug::HttpPutsRefused).map(|()| PutOutcome::Stored)
        };
        Ok(chunks.iter().map(put).map(|outcome| outcome.unwrap_or_else(PutOutcome::Failed)).collect())
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let get = |(item, hash)| match self.get(self.chunk(hash), Some(item)) {
            Ok(Some(data)) => GetOutcome::Found(data),
            Ok(None) => GetOutcome::Missing,
            Err(error) => GetOutcome::Failed(error),
        };
        Ok((0..).zip(hashes).map(get).collect())
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let remove = |hash| self.remove(self.chunk(hash)).map_or_else(DeleteOutcome::Failed, |()| DeleteOutcome::Gone);
        Ok(hashes.iter().map(remove).collect())
    }

    fn commit(&mut self, _fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        if let Some(manifest) = manifest {
            self.put(self.manifest(manifest.name), manifest.part(), Bug::HttpCommitsRefused)?;
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        self.get(self.manifest(name), None)
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.remove(self.manifest(name))
    }
}

export!(Objects, wishes: ["the server in the URI"]);
