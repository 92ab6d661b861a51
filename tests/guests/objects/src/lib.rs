//! `objects://HOST:PORT/PREFIX`: chunks and manifests as objects of a server that takes PUT, GET, HEAD and DELETE over HTTP.

use kv_store_sdk::http::{self, Request, RequestOptions, Response};
use kv_store_sdk::key::{escape, hex};
use kv_store_sdk::payloads::Part;
use kv_store_sdk::uri::without_query;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, export,
};

struct Objects {
    authority: String,
    prefix: String,
    options: RequestOptions,
}

impl Objects {
    fn chunk(&self, hash: &[u8]) -> String {
        format!("{}/c/{}", self.prefix, hex(hash))
    }

    fn manifest(&self, name: &str) -> String {
        // What `escape` makes of a name is a path, but for the `%`.
        format!("{}/m/{}", self.prefix, escape(name).replace('%', "~"))
    }

    fn request<'a>(&'a self, method: &str, path: String, body: Vec<Part<'a>>, item: Option<u32>) -> Request<'a> {
        let (method, authority) = (method.to_owned(), self.authority.clone());
        Request { method, authority, path, headers: Vec::new(), body, item, options: Some(&self.options) }
    }

    /// One request of each, all side by side.
    fn all<'a>(&'a self, method: &str, hashes: Hashes) -> Vec<Result<Response>> {
        let request = |(item, hash)| self.request(method, self.chunk(hash), Vec::new(), Some(item));
        http::send(&(0..).zip(hashes).map(request).collect::<Vec<_>>())
    }

    fn one(&self, method: &str, path: String, body: Vec<Part>) -> Result<Response> {
        let answers = http::send(&[self.request(method, path, body, None)]);
        answers.into_iter().next().unwrap_or_else(|| Err(Error::other("no answer")))
    }
}

/// True: it went well. False: there is no such object.
fn succeeded(response: &Response) -> Result<bool> {
    match response.status {
        200..300 => Ok(true),
        404 => Ok(false),
        429 | 500.. => Err(Error::unavailable(format!("the server answered status {}", response.status))),
        401 | 403 => Err(Error::denied(format!("the server answered status {}", response.status))),
        status => Err(Error::other(format!("the server answered status {status}"))),
    }
}

impl Backend for Objects {
    fn open(uri: &str, options: Options) -> Result<(Self, Features)> {
        options.finish()?;
        let rest = without_query(uri).strip_prefix("objects://").unwrap_or_default();
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() {
            return Err(Error::invalid("expected objects://HOST:PORT/PREFIX"));
        }
        let (authority, prefix) = (authority.to_owned(), format!("/{prefix}"));
        let objects = Objects { authority, prefix, options: RequestOptions::new() };
        // A mistake in the URI shows here.
        succeeded(&objects.one("HEAD", objects.manifest("probe"), Vec::new())?)?;
        let label = format!("objects at {}{}", objects.authority, objects.prefix);
        Ok((objects, Features { label, properties: Properties::SHARED, batch_items: Some(64), ..Default::default() }))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        self.all("HEAD", hashes).into_iter().map(|response| Ok(succeeded(&response?)?.into())).collect()
    }

    fn put_chunks(&mut self, chunks: &[Chunk], _replace: bool) -> Result<Vec<PutOutcome>> {
        let request = |chunk: &Chunk| self.request("PUT", self.chunk(chunk.hash), vec![chunk.part()], None);
        let responses = http::send(&chunks.iter().map(request).collect::<Vec<_>>());
        let stored = |response: Result<Response>| match response.and_then(|response| succeeded(&response)) {
            Ok(true) => PutOutcome::Stored,
            Ok(false) => PutOutcome::Failed(Error::invalid("the server has no such place")),
            Err(error) => PutOutcome::Failed(error),
        };
        Ok(responses.into_iter().map(stored).collect())
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        // The body of response i lies in the memory of item i: nothing is copied.
        let found =
            |response: Result<Response>| match response.and_then(|response| Ok((succeeded(&response)?, response))) {
                Ok((true, response)) => GetOutcome::Found(response.body),
                Ok((false, _)) => GetOutcome::Missing,
                Err(error) => GetOutcome::Failed(error),
            };
        Ok(self.all("GET", hashes.first(64)).into_iter().map(found).collect())
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let gone = |response: Result<Response>| match response.and_then(|response| succeeded(&response)) {
            Ok(_) => DeleteOutcome::Gone,
            Err(error) => DeleteOutcome::Failed(error),
        };
        Ok(self.all("DELETE", hashes).into_iter().map(gone).collect())
    }

    fn commit(&mut self, _fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        if let Some(manifest) = manifest {
            succeeded(&self.one("PUT", self.manifest(manifest.name), vec![manifest.part()])?)?;
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        let response = self.one("GET", self.manifest(name), Vec::new())?;
        Ok(succeeded(&response)?.then_some(response.body))
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        succeeded(&self.one("DELETE", self.manifest(name), Vec::new())?).map(drop)
    }
}

export!(Objects, schemes: ["objects"], wishes: ["the server in the URI"]);
