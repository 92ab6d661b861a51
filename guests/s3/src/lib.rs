//! `s3://HOST[:PORT]/BUCKET[/PREFIX]`, or `s3+http://` without TLS: chunks and manifests as objects of an S3 bucket.
//!
//! A chunk lies under `PREFIX/c/<hash in hex>`, a manifest under `PREFIX/m/<name>`, escaped by [`key`], so that the two never meet. An
//! object appears whole or not at all. The keys are the secrets `access-key-id`, `secret-access-key` and `session-token`
//! (`S3_ACCESS_KEY_ID` and so on). Options: `region` (default `us-east-1`), `style` (`path` or `virtual`), `storage-class`.
//!
//! A put asks first what is there, and a condition on the put itself only saves work: some servers ignore it and overwrite, some answer
//! 409 to those who race. That a chunk existed is said when its length was seen, and never because of a 412.
//!
//! Manifests are put and deleted without conditions: `tests/models/src/s3.rs` shows what "an acknowledged change is not undone" and "a refused
//! change is not there" need.

mod answer;
mod bucket;
mod key;
mod large;
mod listing;
mod maintenance;
mod sign;
mod time;
mod uri;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kv_store_sdk::payloads::Part;
use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, absent, export, get_outcomes,
};
use md5::{Digest, Md5};

use answer::{Answer, not_deleted};
use bucket::{Bucket, Call, SIDE_BY_SIDE};
use large::{WHOLE_BYTES, range};
use uri::Style;

/// Items of a batch: all of them side by side.
const BATCH_ITEMS: u32 = SIDE_BY_SIDE as u32;
const BATCH_BYTES: u64 = 256 << 20;
/// What the host takes for one value; S3 takes far more.
const MAX_VALUE_BYTES: u64 = 1 << 30;
/// Keys of one multi-object delete.
const MAX_DELETED: usize = 1000;

struct S3 {
    bucket: Bucket,
    storage_class: Option<String>,
}

impl S3 {
    fn chunk_key(&self, hash: &[u8]) -> String {
        key::chunk(self.bucket.prefix(), hash)
    }

    fn manifest_key(&self, name: &str) -> String {
        key::manifest(self.bucket.prefix(), name)
    }

    fn heads<'a>(&self, hashes: impl Iterator<Item = &'a [u8]>) -> Vec<Result<Option<u64>>> {
        let calls = hashes.map(|hash| Call::new("HEAD", self.chunk_key(hash))).collect();
        self.bucket.ask_all(calls).into_iter().map(|answer| presence(answer?)).collect()
    }

    fn object_headers(&self) -> Vec<(&'static str, String)> {
        self.storage_class.iter().map(|class| ("x-amz-storage-class", class.clone())).collect()
    }

    /// The call that puts an object of one request.
    fn put_call<'a>(&self, key: String, body: Part<'a>, only_new: bool) -> Result<Call<'a>> {
        let call = self
            .object_headers()
            .into_iter()
            .fold(Call::new("PUT", key), |call, (name, value)| call.header(name, value));
        let call = if only_new { call.header("if-none-match", "*") } else { call };
        self.bucket.with_checked_body(call, vec![body])
    }

    /// Remove objects, [`MAX_DELETED`] at most. That there is none is success.
    fn delete(&self, keys: &[String]) -> Result<Vec<Result<()>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut list = "<Delete><Quiet>true</Quiet>".to_owned();
        for key in keys {
            let key = key.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            list += &format!("<Object><Key>{key}</Key></Object>");
        }
        list += "</Delete>";
        // Servers want one or the other.
        let md5 = BASE64_STANDARD.encode(Md5::digest(list.as_bytes()));
        let call = Call::new("POST", "").query("delete", "").header("content-md5", md5);
        let call = self.bucket.with_checked_body(call, vec![Part::Bytes(list.into_bytes())])?;
        let answer = self.bucket.ask(call)?;
        if answer.status != 200 {
            return Err(Error::other(format!(
                "the server answered a multi-object delete with status {}",
                answer.status
            )));
        }
        let failed = not_deleted(&answer.text()?)?;
        let outcome = |key: &String| match failed.iter().find(|(failed, _)| failed == key) {
            Some((_, error)) => Err(error.clone()),
            None => Ok(()),
        };
        Ok(keys.iter().map(outcome).collect())
    }

    /// Put chunks, whatever is there or, with `only_new`, where the server says that nothing is. None: it said that something is.
    fn put(&self, chunks: &[&Chunk], only_new: bool) -> Vec<Result<Option<()>>> {
        let (mut outcomes, mut calls) = (Vec::with_capacity(chunks.len()), Vec::new());
        for chunk in chunks {
            let key = self.chunk_key(chunk.hash);
            if chunk.len > WHOLE_BYTES {
                let put = large::put(&self.bucket, &key, chunk.len, &self.object_headers(), |offset, len| {
                    chunk.range(offset, len)
                });
                outcomes.push(Some(put.map(Some)));
                continue;
            }
            match self.put_call(key, chunk.part(), only_new) {
                Ok(call) => {
                    outcomes.push(None);
                    calls.push(call);
                }
                Err(error) => outcomes.push(Some(Err(error))),
            }
        }
        let mut answers = self.bucket.ask_all(calls).into_iter();
        let answered = |outcome: Option<Result<Option<()>>>| {
            let outcome = outcome.or_else(|| Some(written(answers.next()?)));
            outcome.unwrap_or_else(|| Err(Error::other("a put was not answered")))
        };
        outcomes.into_iter().map(answered).collect()
    }
}

/// Whether an object is there, and how long it is.
fn presence(answer: Answer) -> Result<Option<u64>> {
    match answer.status {
        200 => Ok(Some(answer.length().ok_or_else(|| Error::corrupt("an object of no length"))?)),
        404 => Ok(None),
        status => Err(Error::other(format!("the server answered HEAD with status {status}"))),
    }
}

/// None: the condition that nothing is there did not hold.
fn written(answer: Result<Answer>) -> Result<Option<()>> {
    match answer?.status {
        200..300 => Ok(Some(())),
        412 => Ok(None),
        status => Err(Error::other(format!("the server answered a put with status {status}"))),
    }
}

impl Backend for S3 {
    fn open(uri: &str, mut options: Options) -> Result<(Self, Features)> {
        let region = options.take("region").unwrap_or_else(|| "us-east-1".into());
        let style = match options.take_choice("style", &["path", "virtual"])? {
            "virtual" => Style::Virtual,
            _ => Style::Path,
        };
        let storage_class = options.take("storage-class");
        options.finish()?;
        let bucket = Bucket::new(uri::parse(uri)?, style, region);
        // Without the right to list, S3 answers 403 for an object that is not there, and nobody could tell that it is not.
        let list = Call::new("GET", "").query("list-type", "2").query("max-keys", "1").query("prefix", bucket.prefix());
        match bucket.ask(list)?.status {
            200 => {}
            404 => return Err(Error::invalid(format!("{}: there is no such bucket", bucket.describe()))),
            status => return Err(Error::other(format!("{}: a listing answers status {status}", bucket.describe()))),
        }
        let features = Features {
            label: format!("S3 at {}", bucket.describe()),
            properties: Properties::DURABLE | Properties::SHARED | Properties::CHEAP_REPEAT,
            batch_items: Some(BATCH_ITEMS),
            batch_bytes: Some(BATCH_BYTES),
            max_value_bytes: Some(MAX_VALUE_BYTES),
            ..Default::default()
        };
        Ok((S3 { bucket, storage_class }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        let found: Result<Vec<Option<u64>>> = self.heads(hashes.iter()).into_iter().collect();
        Ok(found?.into_iter().map(Presence::from).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let mut outcomes: Vec<Option<PutOutcome>> = chunks.iter().map(|_| None).collect();
        // Which are to be put, and whether only where there is nothing.
        let mut waiting: Vec<(usize, bool)> = (0..chunks.len()).map(|at| (at, false)).collect();
        // What another writer puts meanwhile is looked at once more.
        for _ in 0..2 {
            if !replace {
                let wanted = waiting.iter().filter_map(|(at, _)| chunks.get(*at));
                let heads = self.heads(wanted.map(|chunk| chunk.hash));
                let mut left = Vec::new();
                for ((at, _), head) in waiting.into_iter().zip(heads) {
                    let (Some(chunk), Some(outcome)) = (chunks.get(at), outcomes.get_mut(at)) else { continue };
                    match head {
                        Ok(Some(len)) if len == chunk.len => *outcome = Some(PutOutcome::Existed),
                        // What is as long as it must not be is written over.
                        Ok(found) => left.push((at, found.is_none())),
                        Err(error) => *outcome = Some(PutOutcome::Failed(error)),
                    }
                }
                waiting = left;
            }
            let mut left = Vec::new();
            for only_new in [true, false] {
                let of_kind: Vec<usize> =
                    waiting.iter().filter(|(_, new)| *new == only_new).map(|(at, _)| *at).collect();
                let wanted: Vec<&Chunk> = of_kind.iter().filter_map(|at| chunks.get(*at)).collect();
                for (at, put) in of_kind.iter().zip(self.put(&wanted, only_new)) {
                    let Some(outcome) = outcomes.get_mut(*at) else { continue };
                    match put {
                        Ok(Some(())) => *outcome = Some(PutOutcome::Stored),
                        Ok(None) => left.push((*at, false)),
                        Err(error) => *outcome = Some(PutOutcome::Failed(error)),
                    }
                }
            }
            waiting = left;
            if waiting.is_empty() {
                break;
            }
        }
        let unsure = || PutOutcome::Failed(Error::unavailable("the server says that it is there, and that it is not"));
        Ok(outcomes.into_iter().map(|outcome| outcome.unwrap_or_else(unsure)).collect())
    }

    fn get_chunks(&mut self, hashes: Hashes) -> Result<Vec<GetOutcome>> {
        let asked = hashes.first(SIDE_BY_SIDE);
        let keys: Vec<String> = asked.iter().map(|hash| self.chunk_key(hash)).collect();
        let call = |(item, key): (u32, &String)| get_call(key).item(item);
        let answers = self.bucket.ask_all((0..).zip(&keys).map(call).collect());
        Ok(get_outcomes(keys.iter().zip(answers).map(|(key, answer)| self.whole(key, answer?))))
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let keys: Vec<String> = hashes.first(MAX_DELETED).iter().map(|hash| self.chunk_key(hash)).collect();
        let outcome = |deleted: Result<()>| deleted.map_or_else(DeleteOutcome::Failed, |()| DeleteOutcome::Gone);
        Ok(self.delete(&keys)?.into_iter().map(outcome).collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        // What was answered as stored is durable; what is left to see is that nobody has removed it.
        let mut gone: Vec<&[u8]> = Vec::new();
        for batch in fresh.iter().flat_map(|hashes| hashes.batches(SIDE_BY_SIDE)) {
            for (hash, head) in batch.iter().zip(self.heads(batch.iter())) {
                if head?.is_none() {
                    gone.push(hash);
                }
            }
        }
        if !gone.is_empty() {
            return Ok(absent(gone));
        }
        let Some(manifest) = manifest else { return Ok(CommitOutcome::Published) };
        let key = self.manifest_key(manifest.name);
        if manifest.len > WHOLE_BYTES {
            let headers = self.object_headers();
            large::put(&self.bucket, &key, manifest.len, &headers, |offset, len| manifest.range(offset, len))?;
        } else {
            written(self.bucket.ask(self.put_call(key, manifest.part(), false)?))?;
        }
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        let key = self.manifest_key(name);
        self.whole(&key, self.bucket.ask(get_call(&key))?)
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        match self.bucket.ask(Call::new("DELETE", self.manifest_key(name)))?.status {
            200..300 | 404 => Ok(()),
            status => Err(Error::other(format!("the server answered DELETE with status {status}"))),
        }
    }
}

/// The call that fetches an object, or the first bytes of a large one.
fn get_call<'a>(key: &str) -> Call<'a> {
    Call::new("GET", key).header("range", range(0, WHOLE_BYTES))
}

impl S3 {
    /// All of an object whose first bytes were asked for; none: there is no such object.
    fn whole(&self, key: &str, answer: Answer) -> Result<Option<Payload>> {
        match answer.status {
            200 => Ok(Some(answer.body)),
            206 => match answer.length() {
                Some(total) if total == answer.body.len() => Ok(Some(answer.body)),
                Some(total) if total > answer.body.len() && total <= MAX_VALUE_BYTES => {
                    large::rest(&self.bucket, key, answer, total).map(Some)
                }
                _ => Err(Error::corrupt("the server answered a part of an object and does not say of how much")),
            },
            404 => Ok(None),
            // An empty object has no first byte.
            416 => Payload::from_bytes(&[]).map(Some),
            status => Err(Error::other(format!("the server answered GET with status {status}"))),
        }
    }
}

export!(S3, maintenance, schemes: ["s3", "s3+http:80"], port: 443,
    wishes: ["the server in the URI", "the secrets access-key-id, secret-access-key and session-token"],
    options: ["region", "style", "storage-class"], secrets: ["access-key-id", "secret-access-key", "session-token"]);
