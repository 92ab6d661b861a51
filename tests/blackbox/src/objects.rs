//! A small object store over HTTP, which a test tells to misbehave: it can ignore `If-None-Match` as some servers do, answer 503 or 409,
//! cut answers short, hang, or close without a word. It takes every signature.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

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
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// When they were put, as listings tell it: the first one at the beginning of 2020, each further one a second later.
    put: BTreeMap<String, u64>,
    /// Parts of uploads that were neither completed nor aborted, and the key of each.
    uploads: BTreeMap<String, (String, BTreeMap<u32, Vec<u8>>)>,
    /// Conditions are ignored.
    careless: bool,
    /// The next requests whose first line holds a text, how many of them, and what happens to them.
    faults: Vec<(String, usize, Fault)>,
    /// First lines and headers of what was asked.
    asked: Vec<(String, BTreeMap<String, String>)>,
}

/// A running server; its threads end with the process.
pub struct ObjectServer {
    pub port: u16,
    state: Arc<Mutex<State>>,
}

impl State {
    fn insert(&mut self, key: &str, bytes: Vec<u8>) {
        let last = self.put.values().max().map_or(0, |last| last + 1);
        self.put.insert(key.to_owned(), last);
        self.objects.insert(key.to_owned(), bytes);
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl ObjectServer {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("it is bound").port();
        let state: Arc<Mutex<State>> = Arc::default();
        let server = ObjectServer { port, state: state.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = state.clone();
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        server
    }

    /// A server that ignores conditions, and overwrites.
    pub fn careless() -> Self {
        let server = Self::start();
        lock(&server.state).careless = true;
        server
    }

    /// Spoil the next requests whose first line holds this text.
    pub fn spoil(&self, asked: &str, times: usize, fault: Fault) {
        lock(&self.state).faults.push((asked.to_owned(), times, fault));
    }

    /// How many requests that were to be spoiled have not come.
    pub fn to_spoil(&self) -> usize {
        lock(&self.state).faults.iter().map(|(_, times, _)| times).sum()
    }

    pub fn put(&self, key: &str, bytes: &[u8]) {
        lock(&self.state).insert(key, bytes.to_vec());
    }

    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        lock(&self.state).objects.get(key).cloned()
    }

    pub fn keys(&self) -> Vec<String> {
        lock(&self.state).objects.keys().cloned().collect()
    }

    pub fn uploads(&self) -> usize {
        lock(&self.state).uploads.len()
    }

    /// What was asked since this was last called: first lines, and headers by their names in lower case.
    pub fn asked(&self) -> Vec<(String, BTreeMap<String, String>)> {
        std::mem::take(&mut lock(&self.state).asked)
    }
}

struct Request {
    line: String,
    method: String,
    /// Without the query.
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

fn receive(stream: &mut BufReader<TcpStream>) -> Option<Request> {
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
    Some(Request { method, path: path.to_owned(), query, headers, body, line })
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

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    /// What HEAD says of a body that it does not send.
    len: Option<usize>,
}

impl Answer {
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

fn serve(stream: TcpStream, state: &Mutex<State>) {
    let Ok(mut writing) = stream.try_clone() else { return };
    let mut reading = BufReader::new(stream);
    while let Some(request) = receive(&mut reading) {
        let fault = {
            let mut state = lock(state);
            state.asked.push((request.line.clone(), request.headers.clone()));
            let found =
                state.faults.iter_mut().find(|(asked, times, _)| *times > 0 && request.line.contains(asked.as_str()));
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
                lock(state).insert(request.path.trim_start_matches('/'), bytes.to_vec());
                take(&request, &mut lock(state))
            }
            Some(Fault::Clock(ahead)) => {
                let mut refused = Answer::error(403, "RequestTimeTooSkewed");
                refused.headers.push(("date", format!("Fri, 01 Jan {} 00:00:00 GMT", 2100 + ahead % 2)));
                refused
            }
            Some(Fault::Cut) | None => take(&request, &mut lock(state)),
        };
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
fn take(request: &Request, state: &mut State) -> Answer {
    let Request { method, path, query, headers, body, .. } = request;
    let key = path.trim_start_matches('/').to_owned();
    let upload = query.get("uploadId").cloned();
    match (method.as_str(), upload) {
        ("POST", _) if query.contains_key("delete") => {
            let text = String::from_utf8_lossy(body);
            let bucket = key.split('/').next().unwrap_or_default();
            for gone in text.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
                state.objects.remove(&format!("{bucket}/{gone}"));
            }
            Answer::of(200, "<DeleteResult></DeleteResult>")
        }
        ("POST", None) if query.contains_key("uploads") => {
            let id = format!("upload-{}", state.asked.len());
            state.uploads.insert(id.clone(), (key, BTreeMap::new()));
            Answer::of(
                200,
                format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"),
            )
        }
        ("POST", Some(id)) => match state.uploads.remove(&id) {
            Some((key, parts)) => {
                state.insert(&key, parts.into_values().collect::<Vec<_>>().concat());
                Answer::of(200, "<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")
            }
            None => Answer::error(404, "NoSuchUpload"),
        },
        ("PUT", Some(id)) => {
            let number = query.get("partNumber").and_then(|number| number.parse().ok()).unwrap_or(0);
            let Some((_, parts)) = state.uploads.get_mut(&id) else { return Answer::error(404, "NoSuchUpload") };
            parts.insert(number, body.clone());
            Answer { headers: vec![("etag", format!("\"{number}\""))], ..Answer::of(200, "") }
        }
        ("DELETE", Some(id)) => {
            state.uploads.remove(&id);
            Answer::of(204, "")
        }
        ("PUT", None)
            if headers.contains_key("if-none-match") && state.objects.contains_key(&key) && !state.careless =>
        {
            Answer::error(412, "PreconditionFailed")
        }
        ("PUT", None) => {
            state.insert(&key, body.clone());
            Answer { headers: vec![("etag", "\"whole\"".to_owned())], ..Answer::of(200, "") }
        }
        ("DELETE", None) => {
            state.objects.remove(&key);
            Answer::of(204, "")
        }
        ("GET", None) if query.contains_key("list-type") => listed(state, &key, query),
        ("GET", None) if query.contains_key("uploads") => {
            let of = |(id, (key, _)): (&String, &(String, _))| {
                let key = key.split_once('/').map_or("", |(_bucket, key)| key);
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
            Some(object) => part_of(object, headers.get("range").map(String::as_str)),
        },
        _ => Answer::error(405, "MethodNotAllowed"),
    }
}

/// A part of the objects of a bucket. Its continuation token is one that no query takes as it is.
fn listed(state: &State, bucket: &str, query: &BTreeMap<String, String>) -> Answer {
    const TOKEN: &str = "after +=&";
    let most = query.get("max-keys").and_then(|most| most.parse().ok()).unwrap_or(1000);
    let begin = format!("{bucket}/{}", query.get("prefix").map_or("", String::as_str));
    let after = query.get("continuation-token").and_then(|token| token.strip_prefix(TOKEN)).unwrap_or_default();
    let mut found = state.objects.iter().filter(|(key, _)| key.starts_with(&begin) && key.as_str() > after);
    let (mut contents, mut last) = (String::new(), "");
    for (key, object) in found.by_ref().take(most) {
        let (put, name) =
            (state.put.get(key).copied().unwrap_or_default(), key.split_once('/').map_or("", |(_, key)| key));
        let time = format!("2020-01-01T{:02}:{:02}:{:02}.000Z", put / 3600, put / 60 % 60, put % 60);
        let size = object.len();
        contents +=
            &format!("<Contents><Key>{name}</Key><LastModified>{time}</LastModified><Size>{size}</Size></Contents>");
        last = key;
    }
    let next = match found.next() {
        Some(_) => format!("<NextContinuationToken>{}{last}</NextContinuationToken>", TOKEN.replace('&', "&amp;")),
        None => String::new(),
    };
    let more = !next.is_empty();
    Answer::of(200, format!("<ListBucketResult><IsTruncated>{more}</IsTruncated>{next}{contents}</ListBucketResult>"))
}

fn part_of(object: &[u8], range: Option<&str>) -> Answer {
    let parse = |range: &str| {
        let (begin, end) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((begin.parse::<usize>().ok()?, end.parse::<usize>().ok()?))
    };
    let Some((begin, end)) = range.and_then(parse) else { return Answer::of(200, object) };
    if begin >= object.len() {
        return Answer::error(416, "InvalidRange");
    }
    let end = (end + 1).min(object.len());
    let part = format!("bytes {begin}-{}/{}", end - 1, object.len());
    let headers = vec![("content-range", part), ("etag", "\"whole\"".to_owned())];
    Answer { headers, ..Answer::of(206, &object[begin..end]) }
}
