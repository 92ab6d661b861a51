//! `s3://HOST[:PORT]/BUCKET[/PREFIX]`, or `s3+http://` without TLS: chunks and manifests as objects of an S3 bucket.
//!
//! A chunk lies under `PREFIX/c/<hash in hex>`, the record of a manifest under `PREFIX/r/<name>`, escaped by [`key`], so that the two never meet. An
//! object appears whole or not at all. The keys are the secrets `access-key-id`, `secret-access-key` and `session-token`
//! (`S3_ACCESS_KEY_ID` and so on). Options: `region` (default `us-east-1`), `style` (`path` or `virtual`), `storage-class`.
//!
//! A put asks first what is there, and a condition on the put itself only saves work: some servers ignore it and overwrite, some answer
//! 409 to those who race. That a chunk existed is said when its length was seen, and never because of a 412.
//!
//! What a server answers is held against what was asked and put: [`object`]. Manifests are changed by conditions, so that a request which
//! comes late changes nothing: [`manifests`]. Chunks are not.

mod answer;
mod bucket;
mod conditions;
mod described;
mod key;
mod large;
mod listing;
mod maintenance;
mod manifests;
mod object;
mod record;
mod removal;
mod sign;
mod time;
mod uri;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use kv_store_sdk::{
    Backend, Chunk, CommitOutcome, DeleteOutcome, Error, Features, GetOutcome, Hashes, Manifest, Options, Payload,
    Presence, Properties, PutOutcome, Result, absent, changes, export, get_outcomes, system,
};

use answer::Answer;
use bucket::{Bucket, Call, SIDE_BY_SIDE, checksum};
use conditions::Conditions;
use described::{Described, LENGTH, described, head, put_tag};
use large::WHOLE_BYTES;
use manifests::Remembered;
use object::Objects;
use removal::{MAX_DELETED, remove};
use uri::Style;

/// Items of a batch: all of them side by side.
const BATCH_ITEMS: u32 = SIDE_BY_SIDE as u32;
const BATCH_BYTES: u64 = 256 << 20;
/// What the host takes for one value; S3 takes far more.
const MAX_VALUE_BYTES: u64 = 1 << 30;
/// Chunks of which this instance knows how long it has put them, until a commit names them.
const MAX_PUT: usize = 16_384;

struct S3 {
    bucket: Bucket,
    storage_class: Option<String>,
    conditions: Conditions,
    remembered: RefCell<Remembered>,
    /// The lengths of chunks that were put, for servers that do not keep [`LENGTH`].
    put: RefCell<HashMap<Vec<u8>, u64>>,
    /// Whether the last chunk, or manifest, was too long for one request.
    large: [Cell<bool>; 2],
}

impl S3 {
    fn chunk_key(&self, hash: &[u8]) -> String {
        key::chunk(self.bucket.prefix(), hash)
    }

    fn chunks(&self) -> Objects<'_> {
        let [expects_large, _] = &self.large;
        Objects { bucket: &self.bucket, expects_large }
    }

    fn manifests(&self) -> Objects<'_> {
        let [_, expects_large] = &self.large;
        Objects { bucket: &self.bucket, expects_large }
    }

    fn heads<'a>(&self, hashes: impl Iterator<Item = &'a [u8]>) -> Vec<Result<Option<Described>>> {
        let calls = hashes.map(|hash| head(self.chunk_key(hash))).collect();
        self.bucket.ask_all(calls).into_iter().map(|answer| described(&answer?)).collect()
    }

    /// The headers of each object that is put.
    fn put_headers(&self) -> Vec<(&'static str, String)> {
        self.storage_class.iter().map(|class| ("x-amz-storage-class", class.clone())).collect()
    }

    /// The same, and the length, where nothing within the object says it.
    fn object_headers(&self, len: u64) -> Vec<(&'static str, String)> {
        let mut headers = self.put_headers();
        headers.push((LENGTH, len.to_string()));
        headers
    }

    /// The call that puts a chunk of one request, and the checksum that goes with it.
    fn put_call(&self, chunk: &Chunk, only_new: bool) -> Result<(Call<'static>, String)> {
        let call = self
            .object_headers(chunk.len)
            .into_iter()
            .fold(Call::new("PUT", self.chunk_key(chunk.hash)), |call, (name, value)| call.header(name, value));
        let call = if only_new { call.header("if-none-match", "*") } else { call };
        let sum = checksum(&[chunk.part()])?;
        let call = call.header("x-amz-checksum-crc32c", sum.clone());
        Ok((self.bucket.with_body(call, vec![chunk.part()])?, sum))
    }

    /// Put chunks, whatever is there or, with `only_new`, where the server says that nothing is. None: it said that something is.
    fn put(&self, chunks: &[&Chunk], only_new: bool) -> Vec<Result<Option<()>>> {
        let (mut outcomes, mut calls, mut sums) = (Vec::with_capacity(chunks.len()), Vec::new(), Vec::new());
        for chunk in chunks {
            if chunk.len > WHOLE_BYTES {
                let (key, headers) = (self.chunk_key(chunk.hash), self.object_headers(chunk.len));
                let put = large::put(&self.bucket, &key, chunk.len, &headers, |offset, len| chunk.range(offset, len));
                outcomes.push(Some(put.map(Some)));
                continue;
            }
            match self.put_call(chunk, only_new) {
                Ok((call, sum)) => {
                    outcomes.push(None);
                    calls.push(call);
                    sums.push(sum);
                }
                Err(error) => outcomes.push(Some(Err(error))),
            }
        }
        let mut answers = self.bucket.ask_all(calls).into_iter().zip(sums);
        let answered = |outcome: Option<Result<Option<()>>>| {
            let outcome = outcome.or_else(|| answers.next().map(|(answer, sum)| written(answer, &sum)));
            outcome.unwrap_or_else(|| Err(Error::other("a put was not answered")))
        };
        outcomes.into_iter().map(answered).collect()
    }

    /// Before chunks are changed, by their items. They are not changed on conditions, so that a change which ended unknown may undo this
    /// one: until its deadline this one waits, as the host has it wait where a store does not settle.
    fn begin(&self, items: &[u32]) -> Result<()> {
        // The time of day, for another instance has another monotonic clock.
        let now = system::now();
        let end = now.saturating_add(system::remaining());
        let tokens = changes::begin(items, &end.to_le_bytes());
        let ends = tokens.into_iter().filter_map(|token| Some(u64::from_le_bytes(token.try_into().ok()?)));
        let wait = ends.max().unwrap_or(0).saturating_sub(now);
        if self.conditions.writes && wait > 0 {
            system::sleep(wait).map_err(|_| {
                changes::not_done(items);
                Error::busy(
                    "a former change of the same chunk ended unknown, and may still be carried out: try again later",
                )
            })?;
        }
        Ok(())
    }

    /// Note how long a chunk was put.
    fn has_put(&self, chunk: &Chunk) {
        let mut put = self.put.borrow_mut();
        if put.len() < MAX_PUT || put.contains_key(chunk.hash) {
            put.insert(chunk.hash.to_vec(), chunk.len);
        }
    }
}

/// None: the condition that nothing is there did not hold.
fn written(answer: Result<Answer>, sum: &str) -> Result<Option<()>> {
    let answer = answer?;
    match answer.status {
        200..300 => put_tag(&answer, sum).map(|_| Some(())),
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
        let mut answers = bucket.ask_all(vec![list, conditions::call(&bucket)]).into_iter();
        let mut answer = || answers.next().unwrap_or_else(|| Err(Error::other("no request was made")));
        match answer()?.status {
            200 => {}
            404 => return Err(Error::invalid(format!("{}: there is no such bucket", bucket.describe()))),
            status => return Err(Error::other(format!("{}: a listing answers status {status}", bucket.describe()))),
        }
        let conditions = conditions::learn(&bucket, answer())?;
        let fenced =
            if conditions.writes { "" } else { ", late changes of manifests are not fenced (no conditional writes)" };
        let features = Features {
            label: format!("S3 at {}{fenced}", bucket.describe()),
            properties: Properties::DURABLE
                | Properties::SHARED
                | Properties::CHEAP_REPEAT
                | Properties::SETTLES.when(conditions.writes),
            batch_items: Some(BATCH_ITEMS),
            batch_bytes: Some(BATCH_BYTES),
            max_value_bytes: Some(MAX_VALUE_BYTES),
            ..Default::default()
        };
        let (remembered, put, large) = Default::default();
        Ok((S3 { bucket, storage_class, conditions, remembered, put, large }, features))
    }

    fn exists(&mut self, hashes: Hashes) -> Result<Vec<Presence>> {
        let found: Result<Vec<Option<Described>>> = self.heads(hashes.iter()).into_iter().collect();
        let whole =
            |found: Option<Described>| found.filter(|found| found.is_whole != Some(false)).map(|found| found.len);
        Ok(found?.into_iter().map(|found| Presence::from(whole(found))).collect())
    }

    fn put_chunks(&mut self, chunks: &[Chunk], replace: bool) -> Result<Vec<PutOutcome>> {
        let mut outcomes: Vec<Option<PutOutcome>> = chunks.iter().map(|_| None).collect();
        // Which are to be put, and whether only where there is nothing.
        let mut waiting: Vec<(usize, bool)> = (0..chunks.len()).map(|at| (at, false)).collect();
        // What another writer puts meanwhile is looked at once more.
        for is_first in [true, false] {
            if !replace {
                // That a chunk is there says nothing as long as a former change of it may be carried out.
                let items = waiting.iter().filter_map(|(at, _)| Some(chunks.get(*at)?.item));
                self.begin(&items.collect::<Vec<u32>>())?;
                let wanted = waiting.iter().filter_map(|(at, _)| chunks.get(*at));
                let heads = self.heads(wanted.map(|chunk| chunk.hash));
                let mut left = Vec::new();
                for ((at, _), head) in waiting.into_iter().zip(heads) {
                    let (Some(chunk), Some(outcome)) = (chunks.get(at), outcomes.get_mut(at)) else { continue };
                    match head {
                        Ok(Some(found)) if found.len == chunk.len && found.is_whole != Some(false) => {
                            *outcome = Some(PutOutcome::Existed);
                        }
                        // What is as long as it must not be is written over.
                        Ok(found) => left.push((at, found.is_none())),
                        Err(error) => {
                            if is_first {
                                changes::not_done(&[chunk.item]);
                            }
                            *outcome = Some(PutOutcome::Failed(error));
                        }
                    }
                }
                waiting = left;
            }
            let items = waiting.iter().filter_map(|(at, _)| Some(chunks.get(*at)?.item));
            self.begin(&items.collect::<Vec<u32>>())?;
            let mut left = Vec::new();
            for only_new in [true, false] {
                let of_kind: Vec<usize> =
                    waiting.iter().filter(|(_, new)| *new == only_new).map(|(at, _)| *at).collect();
                let wanted: Vec<&Chunk> = of_kind.iter().filter_map(|at| chunks.get(*at)).collect();
                for (at, put) in of_kind.iter().zip(self.put(&wanted, only_new)) {
                    let Some(outcome) = outcomes.get_mut(*at) else { continue };
                    match put {
                        Ok(Some(())) => {
                            chunks.get(*at).into_iter().for_each(|chunk| self.has_put(chunk));
                            *outcome = Some(PutOutcome::Stored);
                        }
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
        let keys: Vec<String> = hashes.first(SIDE_BY_SIDE).iter().map(|hash| self.chunk_key(hash)).collect();
        let objects = self.chunks().fetch(&keys, true);
        Ok(get_outcomes(objects.into_iter().map(|object| Ok(object?.map(|object| object.body)))))
    }

    fn delete_chunks(&mut self, hashes: Hashes) -> Result<Vec<DeleteOutcome>> {
        let keys: Vec<String> = hashes.first(MAX_DELETED).iter().map(|hash| self.chunk_key(hash)).collect();
        self.begin(&(0..keys.len() as u32).collect::<Vec<u32>>())?;
        let outcome = |deleted: Result<()>| deleted.map_or_else(DeleteOutcome::Failed, |()| DeleteOutcome::Gone);
        Ok(remove(&self.bucket, &keys)?.into_iter().map(outcome).collect())
    }

    fn commit(&mut self, fresh: &[Hashes], manifest: Option<Manifest>) -> Result<CommitOutcome> {
        // What was answered as stored is durable; what is left to see is that nobody has removed it.
        let mut gone: Vec<&[u8]> = Vec::new();
        for batch in fresh.iter().flat_map(|hashes| hashes.batches(SIDE_BY_SIDE)) {
            for (hash, head) in batch.iter().zip(self.heads(batch.iter())) {
                let put = self.put.borrow_mut().remove(hash);
                // Half of a chunk is none. Whether it is half is noted with it, or was in this instance.
                let is_whole = |found: &Described| match found.is_whole {
                    Some(is_whole) => is_whole,
                    None => put.is_none_or(|len| len == found.len),
                };
                if !head?.as_ref().is_some_and(is_whole) {
                    gone.push(hash);
                }
            }
        }
        if let Some(gone) = absent(gone) {
            return Ok(gone);
        }
        manifest.map_or(Ok(()), |manifest| self.publish(manifest))?;
        Ok(CommitOutcome::Published)
    }

    fn get_manifest(&mut self, name: &str) -> Result<Option<Payload>> {
        self.published(name)
    }

    fn delete_manifest(&mut self, name: &str) -> Result<()> {
        self.unpublish(name)
    }
}

export!(S3, maintenance, schemes: ["s3", "s3+http:80"], port: 443, endpoint: "https://s3.{region}.amazonaws.com",
    wishes: ["the server in the URI", "the secrets access-key-id, secret-access-key and session-token"],
    options: ["region", "style", "storage-class"], secrets: ["access-key-id", "secret-access-key", "session-token"]);
