//! A small object store over HTTP, which a test tells to misbehave: it can ignore conditions as some servers do, answer 503 or 409,
//! cut answers short, hang, close without a word, or say what is not so. It takes every signature.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use kv_platform::sync::Mutex;

use sha2::{Digest, Sha256};

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A status and the code of an error.
    Refused(u16, &'static str),
    /// A response that ends after half of its body, and the connection with it.
    Cut,
    /// The connection ends without a response.
    Closed,
    /// No response ever.
    Hangs,
    /// The object changes under the request: another writer puts these bytes first.
    Raced(&'static [u8]),
    /// The clock of the server is so many seconds ahead.
    Clock(u64),
    /// It is carried out, and answered otherwise.
    Lies(fn(&mut Answer)),
    /// Only the first half of the body is stored, and all else as if it were whole.
    Halved,
    /// It is carried out, and the connection ends without a response.
    Lost,
    /// It is not carried out, and answered with a status and a body.
    Answers(u16, &'static str),
    /// It is carried out when [`ObjectServer::release`] lets it, and its connection is then gone.
    Held,
}

#[derive(Clone, Default)]
struct Object {
    bytes: Vec<u8>,
    tag: String,
    /// What was noted with it, and the checksum that was sent with it.
    headers: Vec<(&'static str, String)>,
    /// When it was put, as listings tell it: the first one at the beginning of 2020, each further one a second later.
    put: u64,
}

/// An upload that was neither completed nor aborted.
struct Upload {
    key: String,
    headers: Vec<(&'static str, String)>,
    parts: BTreeMap<u32, Vec<u8>>,
}

#[derive(Default)]
struct ObjectState {
    objects: BTreeMap<String, Object>,
    uploads: BTreeMap<String, Upload>,
    /// Conditions are ignored.
    careless: bool,
    /// DELETE of what is not there is answered with 404.
    misses_deletes: bool,
    /// Held requests are carried out.
    released: bool,
    /// How many of them were.
    carried_out: usize,
    /// The next requests whose first line, or a header, holds a text, how many of them, and what happens to them.
    faults: Vec<(String, usize, Fault)>,
    /// First lines and headers of what was asked.
    asked: Vec<(String, BTreeMap<String, String>)>,
}

/// A running server; its threads end with the process.
pub struct ObjectServer {
    pub port: u16,
    state: Arc<Mutex<ObjectState>>,
}

impl ObjectState {
    fn insert(&mut self, key: &str, bytes: Vec<u8>, headers: Vec<(&'static str, String)>, parts: usize) -> String {
        let put = self.objects.values().map(|object| object.put).max().map_or(0, |last| last + 1);
        let digest = hex::encode(Sha256::digest(&bytes).get(..16).unwrap_or_default());
        let mut tag = format!("\"{digest}\"");
        if parts > 0 {
            tag.insert_str(tag.len() - 1, &format!("-{parts}"));
        }
        self.objects.insert(key.to_owned(), Object { bytes, tag: tag.clone(), headers, put });
        tag
    }

    /// Whether a condition of a request does not hold.
    fn refuses(&self, request: &ObjectRequest, key: &str) -> bool {
        let found = self.objects.get(key);
        let differs = |tag: &String| found.is_none_or(|object| object.tag != *tag);
        let holds_none = request.headers.contains_key("if-none-match") && found.is_some();
        !self.careless && (holds_none || request.headers.get("if-match").is_some_and(differs))
    }
}

impl ObjectServer {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let state: Arc<Mutex<ObjectState>> = Arc::default();
        let server = ObjectServer { port, state: state.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = state.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        server
    }

    /// From now on a DELETE of what is not there is answered with 404, as by servers that are no S3.
    pub fn misses_deletes(&self) {
        self.state.lock().misses_deletes = true;
    }

    /// A server that ignores conditions, and overwrites.
    pub fn careless() -> Self {
        let server = Self::start();
        server.state.lock().careless = true;
        server
    }

    /// Let the held requests be carried out; comes back when these many were.
    pub fn release(&self, count: usize) {
        self.state.lock().released = true;
        while self.state.lock().carried_out < count {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Spoil the next requests whose first line, or a header as `name: value`, holds this text.
    pub fn spoil(&self, asked: &str, times: usize, fault: Fault) {
        self.state.lock().faults.push((asked.to_owned(), times, fault));
    }

    /// How many requests that were to be spoiled have not come.
    pub fn to_spoil(&self) -> usize {
        self.state.lock().faults.iter().map(|(_, times, _)| times).sum()
    }

    /// As a former version does, which notes nothing with an object.
    pub fn put(&self, key: &str, bytes: &[u8]) {
        self.state.lock().insert(key, bytes.to_vec(), Vec::new(), 0);
    }

    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        self.state.lock().objects.get(key).map(|object| object.bytes.clone())
    }

    /// But for what is noted about the server itself.
    pub fn keys(&self) -> Vec<String> {
        self.state.lock().objects.keys().filter(|key| !key.contains("/x/")).cloned().collect()
    }

    /// Whether a manifest was deleted there: see `guests/s3/src/record.rs`.
    pub fn is_tombstone(&self, key: &str) -> bool {
        self.get(key).is_some_and(|bytes| bytes.starts_with(b"kvs3man1") && bytes.get(8) == Some(&3))
    }

    pub fn uploads(&self) -> usize {
        self.state.lock().uploads.len()
    }

    /// What was asked since this was last called: first lines, and headers by their names in lower case.
    pub fn asked(&self) -> Vec<(String, BTreeMap<String, String>)> {
        std::mem::take(&mut self.state.lock().asked)
    }
}

/// What is asked.
pub struct ObjectRequest {
    line: String,
    method: String,
    /// Without the query.
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

fn receive(stream: &mut BufReader<TcpStream>) -> Option<ObjectRequest> {
    let mut line = String::new();
    stream.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let line = line.trim_end().to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).ok().filter(|count| *count > 0)?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let len = headers.get("content-length").and_then(|len| len.parse().ok()).unwrap_or(0);
    let mut body = vec![0; len];
    stream.read_exact(&mut body).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (name.to_owned(), decoded(value)));
    let query = query.split('&').filter_map(pair).collect();
    Some(ObjectRequest { method, path: path.to_owned(), query, headers, body, line })
}

/// A value of a query without percent-encoding.
fn decoded(value: &str) -> String {
    let mut pieces = value.split('%');
    let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2).unwrap_or(("", piece));
        bytes.extend(u8::from_str_radix(digits, 16).ok());
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What is answered.
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// What HEAD says of a body that it does not send.
    pub len: Option<usize>,
}

impl Answer {
    /// Say this of a header, and nothing else.
    pub fn set(&mut self, name: &'static str, value: &str) {
        self.remove(name);
        self.headers.push((name, value.to_owned()));
    }

    pub fn remove(&mut self, name: &str) {
        self.headers.retain(|(own, _)| *own != name);
    }

    fn of(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Answer { status, headers: Vec::new(), body: body.into(), len: None }
    }

    fn error(status: u16, code: &str) -> Self {
        Answer::of(status, format!("<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>"))
    }

    fn bytes(&self) -> Vec<u8> {
        let mut head = format!("HTTP/1.1 {} x\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        head += &format!("content-length: {}\r\n\r\n", self.len.unwrap_or(self.body.len()));
        [head.into_bytes(), self.body.clone()].concat()
    }
}

fn serve(stream: TcpStream, state: &Mutex<ObjectState>) {
    let Ok(mut writing) = stream.try_clone() else { return };
    let mut reading = BufReader::new(stream);
    while let Some(mut request) = receive(&mut reading) {
        let fault = {
            let mut state = state.lock();
            state.asked.push((request.line.clone(), request.headers.clone()));
            let found = state.faults.iter_mut().find(|(asked, times, _)| {
                let header = |(name, value): (&String, &String)| format!("{name}: {value}").contains(asked.as_str());
                *times > 0 && (request.line.contains(asked.as_str()) || request.headers.iter().any(header))
            });
            found.map(|(_, times, fault)| {
                *times -= 1;
                fault.clone()
            })
        };
        let mut answer = match &fault {
            Some(Fault::Refused(status, code)) => {
                let mut refused = Answer::error(*status, code);
                if request.method == "HEAD" {
                    refused.body.clear();
                }
                refused
            }
            Some(Fault::Closed) => return,
            Some(Fault::Hangs) => {
                // Until the client gives up.
                let _ = reading.get_ref().set_read_timeout(Some(Duration::from_secs(60)));
                let _ = reading.read(&mut [0]);
                return;
            }
            Some(Fault::Raced(bytes)) => {
                state.lock().insert(request.path.trim_start_matches('/'), bytes.to_vec(), Vec::new(), 0);
                take(&request, &mut state.lock())
            }
            Some(Fault::Clock(ahead)) => {
                let mut refused = Answer::error(403, "RequestTimeTooSkewed");
                refused.headers.push(("date", format!("Fri, 01 Jan {} 00:00:00 GMT", 2100 + ahead % 2)));
                refused
            }
            Some(Fault::Halved) => {
                let half = request.body.len() / 2;
                request.body.truncate(half);
                take(&request, &mut state.lock())
            }
            Some(Fault::Answers(status, body)) => Answer::of(*status, *body),
            Some(Fault::Held) => {
                while !state.lock().released {
                    std::thread::sleep(Duration::from_millis(1));
                }
                let mut state = state.lock();
                take(&request, &mut state);
                state.carried_out += 1;
                return;
            }
            Some(Fault::Lost) => {
                take(&request, &mut state.lock());
                return;
            }
            Some(Fault::Cut | Fault::Lies(_)) | None => take(&request, &mut state.lock()),
        };
        if let Some(Fault::Lies(lie)) = &fault {
            lie(&mut answer);
        }
        if request.method == "HEAD" {
            answer.len = Some(answer.len.unwrap_or(answer.body.len()));
            answer.body.clear();
        }
        let bytes = answer.bytes();
        let end =
            if matches!(fault, Some(Fault::Cut)) { bytes.len() - answer.body.len().div_ceil(2) } else { bytes.len() };
        if writing.write_all(&bytes[..end]).is_err() || end < bytes.len() {
            return;
        }
    }
}

/// Carry a request out.
fn take(request: &ObjectRequest, state: &mut ObjectState) -> Answer {
    let ObjectRequest { method, path, query, headers, body, .. } = request;
    let key = path.trim_start_matches('/').to_owned();
    let upload = query.get("uploadId").cloned();
    match (method.as_str(), upload) {
        ("POST", _) if query.contains_key("delete") => {
            let text = String::from_utf8_lossy(body);
            let bucket = key.split('/').next().unwrap_or_default();
            let mut named = String::new();
            for gone in text.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
                state.objects.remove(&format!("{bucket}/{gone}"));
                named += &format!("<Deleted><Key>{gone}</Key></Deleted>");
            }
            let named = if text.contains("<Quiet>true") { "" } else { &named };
            Answer::of(200, format!("<DeleteResult>{named}</DeleteResult>"))
        }
        ("POST", None) if query.contains_key("uploads") => {
            let id = format!("upload-{}", state.asked.len());
            state.uploads.insert(id.clone(), Upload { key, headers: noted(headers), parts: BTreeMap::new() });
            Answer::of(
                200,
                format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"),
            )
        }
        // As some do: conditions of uploads in parts are ignored.
        ("POST", Some(id)) => match state.uploads.remove(&id) {
            Some(Upload { key, headers, parts }) => {
                let (count, bytes) = (parts.len(), parts.into_values().collect::<Vec<_>>().concat());
                state.insert(&key, bytes, headers, count);
                Answer::of(200, "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")
            }
            None => Answer::error(404, "NoSuchUpload"),
        },
        ("PUT", Some(id)) => {
            let number = query.get("partNumber").and_then(|number| number.parse().ok()).unwrap_or(0);
            let Some(upload) = state.uploads.get_mut(&id) else { return Answer::error(404, "NoSuchUpload") };
            upload.parts.insert(number, body.clone());
            Answer { headers: vec![("etag", format!("\"{number}\""))], ..Answer::of(200, "") }
        }
        ("DELETE", Some(id)) => {
            state.uploads.remove(&id);
            Answer::of(204, "")
        }
        ("PUT" | "DELETE", None) if state.refuses(request, &key) => Answer::error(412, "PreconditionFailed"),
        ("PUT", None) => {
            let tag = state.insert(&key, body.clone(), noted(headers), 0);
            Answer { headers: vec![("etag", tag)], ..Answer::of(200, "") }
        }
        ("DELETE", None) => match state.objects.remove(&key) {
            None if state.misses_deletes => Answer::error(404, "NoSuchKey"),
            _ => Answer::of(204, ""),
        },
        ("GET", None) if query.contains_key("list-type") => listed(state, &key, query),
        ("GET", None) if query.contains_key("uploads") => {
            let of = |(id, upload): (&String, &Upload)| {
                let key = upload.key.split_once('/').map_or("", |(_bucket, key)| key);
                format!(
                    "<Upload><Key>{key}</Key><UploadId>{id}</UploadId><Initiated>2020-01-01T00:00:00.000Z</Initiated></Upload>"
                )
            };
            let uploads: String = state.uploads.iter().map(of).collect();
            Answer::of(
                200,
                format!(
                    "<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>{uploads}</ListMultipartUploadsResult>"
                ),
            )
        }
        ("GET" | "HEAD", None) => match state.objects.get(&key) {
            None => Answer::error(404, "NoSuchKey"),
            Some(object) if !state.careless && headers.get("if-match").is_some_and(|tag| *tag != object.tag) => {
                Answer::error(412, "PreconditionFailed")
            }
            Some(object) => object.answer(headers),
        },
        _ => Answer::error(405, "MethodNotAllowed"),
    }
}

/// A part of the objects of a bucket. Its continuation token is one that no query takes as it is.
fn listed(state: &ObjectState, bucket: &str, query: &BTreeMap<String, String>) -> Answer {
    const TOKEN: &str = "after +=&";
    let most = query.get("max-keys").and_then(|most| most.parse().ok()).unwrap_or(1000);
    let begin = format!("{bucket}/{}", query.get("prefix").map_or("", String::as_str));
    let after = query.get("continuation-token").and_then(|token| token.strip_prefix(TOKEN)).unwrap_or_default();
    let mut found = state.objects.iter().filter(|(key, _)| key.starts_with(&begin) && key.as_str() > after);
    let (mut contents, mut last) = (String::new(), "");
    for (key, object) in found.by_ref().take(most) {
        let (put, name) = (object.put, key.split_once('/').map_or("", |(_, key)| key));
        let time = format!("2020-01-01T{:02}:{:02}:{:02}.000Z", put / 3600, put / 60 % 60, put % 60);
        let (size, tag) = (object.bytes.len(), &object.tag);
        contents += &format!(
            "<Contents><Key>{name}</Key><LastModified>{time}</LastModified><ETag>{tag}</ETag><Size>{size}</Size></Contents>"
        );
        last = key;
    }
    let next = match found.next() {
        Some(_) => format!("<NextContinuationToken>{}{last}</NextContinuationToken>", TOKEN.replace('&', "&amp;")),
        None => String::new(),
    };
    let more = !next.is_empty();
    Answer::of(200, format!("<ListBucketResult><IsTruncated>{more}</IsTruncated>{next}{contents}</ListBucketResult>"))
}

/// What is kept of the headers of a put, to be told again.
fn noted(headers: &BTreeMap<String, String>) -> Vec<(&'static str, String)> {
    let kept = ["x-amz-meta-kv-length", "x-amz-checksum-crc32c"];
    kept.into_iter().filter_map(|name| Some((name, headers.get(name)?.clone()))).collect()
}

impl Object {
    fn answer(&self, asked: &BTreeMap<String, String>) -> Answer {
        let parse = |range: &String| {
            let (begin, end) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((begin.parse::<usize>().ok()?, end.parse::<usize>().ok()?))
        };
        let wants_sum = asked.get("x-amz-checksum-mode").is_some_and(|mode| mode == "ENABLED");
        let range = asked.get("range").and_then(parse);
        let told = |(name, _): &&(&str, String)| *name != "x-amz-checksum-crc32c" || (wants_sum && range.is_none());
        let mut headers: Vec<(&'static str, String)> = self.headers.iter().filter(told).cloned().collect();
        let now = "Wed, 01 Jan 2020 00:00:00 GMT".to_owned();
        headers.extend([("etag", self.tag.clone()), ("date", now.clone()), ("last-modified", now)]);
        let Some((begin, end)) = range else { return Answer { headers, ..Answer::of(200, self.bytes.as_slice()) } };
        if begin >= self.bytes.len() {
            let none = vec![("content-range", format!("bytes */{}", self.bytes.len()))];
            return Answer { headers: none, ..Answer::error(416, "InvalidRange") };
        }
        let end = (end + 1).min(self.bytes.len());
        headers.push(("content-range", format!("bytes {begin}-{}/{}", end - 1, self.bytes.len())));
        Answer { headers, ..Answer::of(206, &self.bytes[begin..end]) }
    }
}
