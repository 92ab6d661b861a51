//! Backends over HTTP with one fault each, which `kv-store check` must find. The URI's scheme says which, as in `broken`. But for that it
//! keeps objects as `objects` does.

use kv_store_sdk::http::{self, Request, RequestOptions, Response};
use kv_store_sdk::key::{escape, hex};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, export,
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// When a request has failed, it never makes another.
    GivesUp,
    /// What did not come is missing.
    MissesFailures,
    /// What was refused is stored.
    BelievesRefusals,
}

struct Objects {
    fault: Fault,
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
        format!("{}/m/{}", self.prefix, escape(name).replace('%', "~"))
    }

    /// One request. `Ok(None)`: there is no such object.
    fn request(&mut self, method: &str, path: String, body: Vec<Part>, item: Option<u32>) -> Result<Option<Response>> {
        if self.given_up {
            return Err(Error::unavailable("it has failed before"));
        }
        let (method, authority) = (method.to_owned(), self.authority.clone());
        let request =
            Request { method, authority, path, headers: Vec::new(), body, item, options: Some(&self.options) };
        let answered = http::send(&[request]).pop().unwrap_or_else(|| Err(Error::other("no answer")));
        let answered = answered.and_then(|response| match response.status {
            200..300 => Ok(Some(response)),
            404 => Ok(None),
            _ if self.fault == Fault::BelievesRefusals => Ok(Some(response)),
            401 | 403 => Err(Error::denied(format!("the server answered status {}", response.status))),
            status => Err(Error::unavailable(format!("the server answered status {status}"))),
        });
        match answered {
            Err(_) if self.fault == Fault::MissesFailures => Ok(None),
            Err(error) => {
                self.given_up = self.fault == Fault::GivesUp;
                Err(error)
            }
            answered => answered,
        }
    }

    fn put(&mut self, path: String, body: Part) -> Result<()> {
        match self.request("PUT", path, vec![body], None)? {
            Some(_) => Ok(()),
            None => Err(Error::unavailable("the server did not take it")),
        }
    }
}

impl Backend for Objects {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        options.finish()?;
        let (scheme, rest) = uri.split_once("://").unwrap_or_default();
        let fault = match scheme {
            "sound-http" => Fault::None,
            "gives-up" => Fault::GivesUp,
            "misses-failures" => Fault::MissesFailures,
            "believes-refusals" => Fault::BelievesRefusals,
            _ => return Err(Error::invalid(format!("{scheme} is none of the faults"))),
        };
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (authority, prefix) = (authority.to_owned(), format!("/{prefix}"));
        let objects = Objects { fault, given_up: false, authority, prefix, options: RequestOptions::new() };
        let features = Features {
            label: format!("a backend with a fault: {scheme}"),
            properties: Properties::SHARED | Properties::WRITE_THROUGH,
            // What one instance knows they all know.
            max_instances: Some(1),
            ..Default::default()
        };
        Ok((objects, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        let has = |hash: &[u8]| Ok(self.request("HEAD", self.chunk(hash), Vec::new(), None)?.is_some().into());
        hashes.iter().map(has).collect()
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let put = |chunk: &Chunk| {
            let path = self.chunk(chunk.hash);
            if !replace && self.request("HEAD", path.clone(), Vec::new(), None)?.is_some() {
                return Ok(PutOutcome::Existed);
            }
            self.put(path, chunk.part()).map(|()| PutOutcome::Stored)
        };
        chunks.iter().map(put).collect()
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let get = |(item, hash)| {
            let found = self.request("GET", self.chunk(hash), Vec::new(), Some(item))?;
            Ok(found.map_or(GetOutcome::Missing, |response| GetOutcome::Found(response.body)))
        };
        (0..).zip(hashes).map(get).collect()
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let delete = |hash| self.request("DELETE", self.chunk(hash), Vec::new(), None).map(|_| DeleteOutcome::Gone);
        hashes.iter().map(delete).collect()
    }

    fn commit(&mut self, _fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        if let Some(manifest) = manifest {
            self.put(self.manifest(manifest.name), manifest.part())?;
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        Ok(self.request("GET", self.manifest(name), Vec::new(), None)?.map(|response| response.body))
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.request("DELETE", self.manifest(name), Vec::new(), None).map(drop)
    }
}

export!(Objects, wishes: ["the server in the URI"]);
