//! What a bucket of an S3 server has, and what it does with the requests that the shipped backend sends: those and no others.
//!
//! A request is one step. Time is what the caller says it is.

use std::collections::BTreeMap;
use std::sync::Arc;

use counted::Counted;
use md5::{Digest, Md5};

use crate::Value;
use crate::dates;
use crate::listing;
use crate::message::{Request, Response, escaped};
use crate::record;
use crate::sign::crc32c;

/// Of one multi-object delete, and of one listing.
const MOST_KEYS: usize = 1000;

#[derive(Clone)]
pub struct Object {
    pub bytes: Value,
    pub tag: String,
    /// The headers that were sent with it and are told of it.
    noted: Vec<(&'static str, String)>,
    /// Microseconds since 1970, by the server's clock.
    pub put: u64,
    /// What the rules compare: of a record the manifest. None: there is none.
    pub shown: Option<Value>,
}

/// An upload in parts that was neither completed nor aborted.
#[derive(Clone)]
pub struct Upload {
    pub key: String,
    noted: Vec<(&'static str, String)>,
    parts: BTreeMap<u32, (Vec<u8>, String)>,
    pub begun: u64,
}

#[derive(Clone)]
pub struct Bucket {
    pub name: &'static str,
    pub objects: Counted<BTreeMap<String, Object>>,
    pub uploads: BTreeMap<String, Upload>,
    numbered: u64,
    /// Whose conditions hold.
    pub of_puts: bool,
    pub of_deletes: bool,
    pub keeps_sums: bool,
    pub keeps_notes: bool,
    /// What is answered to a change of what must be there and is not: AWS says 404, SeaweedFS 412.
    pub missing: u16,
}

const LENGTH: &str = "x-amz-meta-kv-length";
const CLASS: &str = "x-amz-storage-class";
const SUM: &str = "x-amz-checksum-crc32c";

fn missing(key: &str) -> Response {
    Response::error(404, "NoSuchKey", key)
}

impl Bucket {
    /// With servers that do all that S3 does.
    pub fn new(name: &'static str) -> Self {
        Bucket {
            name,
            objects: Counted::default(),
            uploads: BTreeMap::new(),
            numbered: 0,
            of_puts: true,
            of_deletes: true,
            keeps_sums: true,
            keeps_notes: true,
            missing: 404,
        }
    }

    /// A backend has noted whether conditions of changes and of removals hold.
    pub fn has_noted(&mut self, key: &str, (writes, deletes): (bool, bool), now: u64) {
        let word = |holds| if holds { "yes" } else { "no" };
        let note = format!("kv-store-wasm conditions 1\nwrites {}\ndeletes {}\n", word(writes), word(deletes));
        let tag = format!("\"{}\"", hex::encode(Md5::digest(&note)));
        self.insert(key, note.into_bytes(), tag, Vec::new(), now);
    }

    /// Carry out a request, at a time of the server's clock in microseconds.
    pub fn answer(&mut self, request: &Request, now: u64) -> Response {
        let key = request.key();
        if request.bucket() != self.name {
            return Response::error(404, "NoSuchBucket", &request.bucket())
                .with("date", dates::header(now / 1_000_000));
        }
        let (method, upload) = (request.method.as_str(), request.query.get("uploadId").cloned());
        let has = |name: &str| request.query.contains_key(name);
        let answer = match (method, key.is_empty()) {
            ("GET", true) if has("list-type") => listing::objects(self, request),
            ("GET", true) if has("uploads") => listing::uploads(self, request),
            ("POST", true) if has("delete") => self.delete_many(request),
            ("GET" | "HEAD", false) => self.get(request, &key),
            ("PUT", false) => match upload {
                Some(upload) => self.put_part(&upload, request),
                None => self.put(&key, request, now),
            },
            ("DELETE", false) => match upload {
                Some(upload) => match self.uploads.remove(&upload) {
                    Some(_) => Response::of(204),
                    None => Response::error(404, "NoSuchUpload", &key),
                },
                None => self.delete(&key, request),
            },
            ("POST", false) if has("uploads") => self.begin_upload(&key, request, now),
            ("POST", false) if upload.is_some() => self.complete(&key, &upload.unwrap_or_default(), request, now),
            _ => panic!("the simulated S3 server does not know {method} {} ?{}", request.path, request.raw_query),
        };
        answer.with("date", dates::header(now / 1_000_000))
    }

    /// Why a change is not made; none: its condition holds, or it has none.
    pub fn condition_fails(&self, request: &Request) -> Option<Response> {
        let key = request.key();
        let found = self.objects.get(&key);
        let honours = if request.method == "DELETE" { self.of_deletes } else { self.of_puts };
        if !honours {
            return None;
        }
        let refused = Response::error(412, "PreconditionFailed", &key);
        if request.header("if-none-match").is_some() && found.is_some() {
            return Some(refused);
        }
        match (request.header("if-match"), found) {
            (None, _) => None,
            (Some(_), None) if self.missing == 404 => Some(missing(&key)),
            (Some(_), None) => Some(refused),
            (Some(tag), Some(object)) => (object.tag != tag).then_some(refused),
        }
    }

    /// The headers of a request that are told of the object that it puts.
    fn noted(&self, request: &Request) -> Vec<(&'static str, String)> {
        let kept = [LENGTH, CLASS].into_iter().filter(|_| self.keeps_notes);
        let kept = kept.chain([SUM].into_iter().filter(|_| self.keeps_sums));
        kept.filter_map(|name| Some((name, request.header(name)?.to_owned()))).collect()
    }

    fn put(&mut self, key: &str, request: &Request, now: u64) -> Response {
        if let Some(refused) = self.condition_fails(request) {
            return refused;
        }
        let tag = format!("\"{}\"", hex::encode(Md5::digest(&request.body)));
        let noted = self.noted(request);
        self.insert(key, request.body.clone(), tag, noted, now)
    }

    fn insert(
        &mut self,
        key: &str,
        bytes: Vec<u8>,
        tag: String,
        noted: Vec<(&'static str, String)>,
        now: u64,
    ) -> Response {
        let sum = noted.iter().find(|(name, _)| *name == SUM).cloned();
        let bytes = Arc::new(bytes);
        let shown = record::shown(key, &bytes);
        self.objects.insert(key.to_owned(), Object { bytes, tag: tag.clone(), noted, put: now, shown });
        let answer = Response::of(200).with("etag", tag);
        sum.into_iter().fold(answer, |answer, (name, sum)| answer.with(name, sum))
    }

    fn get(&self, request: &Request, key: &str) -> Response {
        let Some(object) = self.objects.get(key) else { return missing(key) };
        if request.header("if-match").is_some_and(|tag| tag != object.tag) {
            return Response::error(412, "PreconditionFailed", key);
        }
        let total = object.bytes.len();
        let range = match request.header("range").map(|range| span(range, total)) {
            None => None,
            Some(Some(range)) => Some(range),
            Some(None) => {
                return Response::error(416, "InvalidRange", key).with("content-range", format!("bytes */{total}"));
            }
        };
        let (from, to) = range.unwrap_or((0, total));
        let answer = Response::of(if range.is_some() { 206 } else { 200 });
        let wants_sum = range.is_none() && request.header("x-amz-checksum-mode") == Some("ENABLED");
        let told = object.noted.iter().filter(|(name, _)| *name != SUM || wants_sum);
        let answer = told.fold(answer, |answer, (name, value)| answer.with(name, value.clone()));
        let answer = match range {
            Some((from, to)) => answer.with("content-range", format!("bytes {from}-{}/{total}", to - 1)),
            None => answer,
        };
        let answer = answer
            .with("etag", object.tag.clone())
            .with("last-modified", dates::header(object.put / 1_000_000))
            .with("accept-ranges", "bytes");
        Response { body: object.bytes[from..to].to_vec(), ..answer }
    }

    fn delete(&mut self, key: &str, request: &Request) -> Response {
        if let Some(refused) = self.condition_fails(request) {
            return refused;
        }
        self.objects.remove(key);
        Response::of(204)
    }

    fn delete_many(&mut self, request: &Request) -> Response {
        let text = String::from_utf8_lossy(&request.body).into_owned();
        let Ok(document) = roxmltree::Document::parse(&text) else {
            return Response::error(400, "MalformedXML", "");
        };
        let keys: Vec<String> = listing::texts(&document, "Key").collect();
        assert!(keys.len() <= MOST_KEYS, "a multi-object delete of {} keys", keys.len());
        let mut named = String::new();
        for key in keys {
            self.objects.remove(&key);
            named += &format!("<Deleted><Key>{}</Key></Deleted>", escaped(&key));
        }
        Response::xml(200, &format!("<DeleteResult xmlns=\"{}\">{named}</DeleteResult>", listing::SPACE))
    }

    fn begin_upload(&mut self, key: &str, request: &Request, now: u64) -> Response {
        self.numbered += 1;
        let id = format!("upload-{}", self.numbered);
        let noted = self.noted(request);
        self.uploads.insert(id.clone(), Upload { key: key.to_owned(), noted, parts: BTreeMap::new(), begun: now });
        let (bucket, key) = (self.name, escaped(key));
        Response::xml(
            200,
            &format!(
                "<InitiateMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{key}</Key><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
            ),
        )
    }

    fn put_part(&mut self, upload: &str, request: &Request) -> Response {
        let number = request.query.get("partNumber").and_then(|number| number.parse().ok());
        let Some(upload) = self.uploads.get_mut(upload) else { return Response::error(404, "NoSuchUpload", upload) };
        let Some(number) = number else { return Response::error(400, "InvalidArgument", "partNumber") };
        let tag = format!("\"{}\"", hex::encode(Md5::digest(&request.body)));
        upload.parts.insert(number, (request.body.clone(), tag.clone()));
        let answer = Response::of(200).with("etag", tag);
        match request.header(SUM).filter(|_| self.keeps_sums) {
            Some(sum) => answer.with(SUM, sum),
            None => answer,
        }
    }

    fn complete(&mut self, key: &str, id: &str, request: &Request, now: u64) -> Response {
        let Some(upload) = self.uploads.get(id).cloned() else { return Response::error(404, "NoSuchUpload", key) };
        let text = String::from_utf8_lossy(&request.body).into_owned();
        let Ok(document) = roxmltree::Document::parse(&text) else {
            return Response::error(400, "MalformedXML", "");
        };
        let numbers = listing::texts(&document, "PartNumber").filter_map(|number| number.parse::<u32>().ok());
        let (mut bytes, mut tags, mut sums, mut count) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (number, tag) in numbers.zip(listing::texts(&document, "ETag")) {
            let Some((part, _)) = upload.parts.get(&number).filter(|(_, own)| *own == tag) else {
                return Response::error(400, "InvalidPart", key);
            };
            bytes.extend_from_slice(part);
            tags.extend(Md5::digest(part));
            sums.extend(crc32c::crc32c(part).to_be_bytes());
            count += 1;
        }
        self.uploads.remove(id);
        let tag = format!("\"{}-{count}\"", hex::encode(Md5::digest(&tags)));
        let mut noted = upload.noted;
        if self.keeps_sums {
            noted.push((SUM, format!("{}-{count}", crc32c(&sums))));
        }
        self.insert(key, bytes, tag.clone(), noted, now);
        let (bucket, key, tag) = (self.name, escaped(key), escaped(&tag));
        Response::xml(
            200,
            &format!(
                "<CompleteMultipartUploadResult><Bucket>{bucket}</Bucket><Key>{key}</Key><ETag>{tag}</ETag></CompleteMultipartUploadResult>"
            ),
        )
    }

    /// Bytes of an object change by themselves; what is noted with it stays. False: there is none.
    pub fn spoil(&mut self, key: &str, change: impl FnOnce(&[u8]) -> Vec<u8>) -> bool {
        let Some(object) = self.objects.get_mut(key).filter(|object| object.shown.is_some()) else { return false };
        object.bytes = Arc::new(change(&object.bytes));
        object.shown = Some(object.bytes.clone());
        true
    }
}

/// From where to where a range goes, of so many bytes. None: there is nothing.
fn span(range: &str, total: usize) -> Option<(usize, usize)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
    (first < total && first <= last).then(|| (first, total.min(last + 1)))
}
