//! The simulated S3 server beside a real one, SeaweedFS: all that the shipped backend sends goes to both, and what the backend looks at in
//! the answers is the same. So does what it might send: requests with any conditions and ranges, for keys that have anything.
//!
//! Dates are compared to within some seconds, the XML of listings and of removals by what it says, and that of refusals by their codes.

mod alone;
mod real;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kv_http_wire::host_value;
use kv_store_sdk::native::http::{Message, Reply};
use kv_store_sdk::native::system::Level;
use kv_store_sdk::native::{Host, Opened, Stream, over};
use kv_store_sdk::{Error, Eviction, Hashes, Manifest, PutOutcome, Result};
use s3_server::bucket::Bucket;
use s3_server::message::{self, Request, Response};
use s3_server::sign::{self, Keys};
use s3_server::{dates, listing};

use self::real::{Connection, Real};
use super::{ACCESS_KEY_ID, BUCKET, SECRET_ACCESS_KEY};
use chance::Dice;

const SECOND: u64 = 1_000_000_000;

/// The two servers.
struct Both {
    real: Real,
    connection: RefCell<Connection>,
    bucket: RefCell<Bucket>,
    keys: RefCell<Keys>,
    dice: RefCell<Dice>,
    compared: RefCell<BTreeMap<String, u64>>,
    /// Continuation tokens and uploads of the real server, and what the simulated one calls them.
    names: RefCell<BTreeMap<String, String>>,
}

fn micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later").as_micros() as u64
}

impl Both {
    fn start(seed: u64) -> Option<Rc<Self>> {
        let real = Real::start(BUCKET)?;
        let connection = RefCell::new(real.connect());
        let (mut bucket, mut keys) = (Bucket::new(BUCKET), Keys::new(SECRET_ACCESS_KEY));
        // What SeaweedFS has otherwise than AWS.
        (bucket.missing, keys.checks_hashes) = (412, false);
        let (bucket, keys) = (bucket.into(), keys.into());
        let dice = RefCell::new(Dice::of(seed, &[1]));
        let (compared, names) = Default::default();
        Some(Rc::new(Both { real, connection, bucket, keys, dice, compared, names }))
    }

    fn dice<T>(&self, throw: impl FnOnce(&mut Dice) -> T) -> T {
        throw(&mut self.dice.borrow_mut())
    }

    fn authority(&self) -> String {
        format!("127.0.0.1:{}", self.real.port)
    }

    /// The same to both.
    fn ask(&self, bytes: &[u8]) -> Reply {
        let request = message::take(&mut bytes.to_vec()).expect("it is HTTP").expect("it is whole");
        let to_head = request.method == "HEAD";
        let answered = self.connection.borrow_mut().ask(bytes, to_head);
        let reply = answered.unwrap_or_else(|| {
            // An idle connection was closed.
            *self.connection.borrow_mut() = self.real.connect();
            self.connection.borrow_mut().ask(bytes, to_head).expect("the server answers")
        });
        let now = micros();
        let simulated = self.simulated(&request, now);
        let kind = kind(&request);
        alike(&request, &simulated, &reply, now);
        self.name(&simulated, &reply);
        *self.compared.borrow_mut().entry(kind).or_default() += 1;
        reply
    }

    fn simulated(&self, request: &Request, now: u64) -> Response {
        if let Some(refused) = self.keys.borrow_mut().refuses(request, now / 1_000_000) {
            return refused;
        }
        let mut request = request.clone();
        for name in ["continuation-token", "uploadId"] {
            if let Some(value) = request.query.get_mut(name) {
                *value = self.names.borrow().get(value).cloned().unwrap_or_default();
            }
        }
        self.bucket.borrow_mut().answer(&request, now)
    }

    /// Note what each server calls a place in a listing, or an upload.
    fn name(&self, simulated: &Response, reply: &Reply) {
        let [own, others] = [&simulated.body, &reply.body].map(|body| String::from_utf8_lossy(body).into_owned());
        for name in ["NextContinuationToken", "UploadId"] {
            for (own, others) in elements(&own, name).into_iter().zip(elements(&others, name)) {
                self.names.borrow_mut().insert(others, own);
            }
        }
    }
}

/// What the coverage calls a request.
fn kind(request: &Request) -> String {
    let condition = ["if-match", "if-none-match", "range"].into_iter().filter(|name| request.header(name).is_some());
    let query = ["list-type", "uploads", "delete", "partNumber", "uploadId"];
    let query = query.into_iter().filter(|name| request.query.contains_key(*name));
    [request.method.as_str()].into_iter().chain(query).chain(condition).collect::<Vec<_>>().join(" ")
}

fn elements(text: &str, name: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(text);
    document.map(|document| listing::texts(&document, name).collect()).unwrap_or_default()
}

/// The headers that the backend looks at.
const TOLD: &[&str] = &["etag", "content-range", "x-amz-checksum-crc32c", "x-amz-meta-kv-length"];

/// What the backend looks at in two answers is the same.
fn alike(request: &Request, simulated: &Response, reply: &Reply, now: u64) {
    let asked = || format!("{} {}?{} {:?}", request.method, request.path, request.raw_query, request.headers);
    let body = |body: &[u8]| String::from_utf8_lossy(&body[..body.len().min(300)]).into_owned();
    let both = || {
        format!(
            "{}\nsimulated: {simulated:?} {}\nreal: {reply:?} {}",
            asked(),
            body(&simulated.body),
            body(&reply.body)
        )
    };
    assert_eq!(simulated.status, reply.status, "{}", both());
    let of_real = |name: &str| reply.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.clone());
    let of_simulated =
        |name: &str| simulated.headers.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone());
    for name in TOLD {
        assert_eq!(of_simulated(name), of_real(name), "{name}: {}", both());
    }
    let seconds = |date: Option<String>| date.map(|date| http_date(&date));
    let modified = [of_simulated("last-modified"), of_real("last-modified")].map(seconds);
    let near = |one: u64, other: u64| one.abs_diff(other) <= 5;
    let alike = match modified {
        [Some(one), Some(other)] => near(one, other),
        [one, other] => one == other || simulated.status >= 300,
    };
    assert!(alike, "last-modified: {}", both());
    assert!(seconds(of_real("date")).is_none_or(|date| near(date, now / 1_000_000)), "date: {}", both());
    if request.method == "HEAD" {
        if simulated.status == 200 {
            assert_eq!(Some(simulated.body.len().to_string()), of_real("content-length"), "{}", both());
        }
        return;
    }
    let texts = [&simulated.body, &reply.body].map(|body| String::from_utf8_lossy(body).into_owned());
    if simulated.status >= 300 {
        let [own, others] = texts.map(|text| elements(&text, "Code"));
        assert_eq!(own, others, "{}", both());
        return;
    }
    let of_object = request.method == "GET" && !request.key().is_empty();
    if of_object {
        assert!(simulated.body == reply.body, "{}", both());
        return;
    }
    for name in ["Key", "Size", "IsTruncated", "ETag"] {
        let sorted = |text: &String| {
            let mut found = elements(text, name);
            if name == "ETag" {
                found.iter_mut().for_each(|tag| *tag = tag.trim_matches('"').to_owned());
            }
            found.sort();
            found
        };
        assert_eq!(sorted(&texts[0]), sorted(&texts[1]), "{name}: {}", both());
    }
}

/// Seconds since 1970, within a month that is known.
fn http_date(text: &str) -> u64 {
    let near = micros() / 1_000_000;
    let of = |seconds: u64| dates::header(seconds);
    (0..7200)
        .find_map(|apart| [near.saturating_sub(apart), near + apart].into_iter().find(|seconds| of(*seconds) == text))
        .unwrap_or_else(|| panic!("{text:?} is no date of today"))
}

/// What a call of the backend runs over.
struct Call {
    both: Rc<Both>,
    items: Vec<Rc<[u8]>>,
    begun: Instant,
}

impl Host for Call {
    fn item(&self, item: u32) -> Option<Rc<[u8]>> {
        self.items.get(item as usize).cloned()
    }

    fn connect(&self, _: &str, _: Option<&str>) -> Result<(Box<dyn Stream>, bool)> {
        Err(Error::unsupported("it makes requests over HTTP"))
    }

    fn park(&self, _: &str, _: Option<&str>, _: Box<dyn Stream>) {}

    fn exchange(&self, requests: Vec<Message>) -> Vec<Result<Reply>> {
        requests.iter().map(|message| Ok(self.both.ask(&written(message)))).collect()
    }

    fn secret(&self, name: &str) -> Result<Option<String>> {
        Ok(match name {
            "access-key-id" => Some(ACCESS_KEY_ID.to_owned()),
            "secret-access-key" => Some(SECRET_ACCESS_KEY.to_owned()),
            _ => None,
        })
    }

    fn fact(&self, _: &str) -> Option<String> {
        None
    }

    fn wall(&self) -> u64 {
        1000 * micros()
    }

    fn monotonic(&self) -> u64 {
        1000 * micros()
    }

    fn remaining(&self) -> u64 {
        (60 * SECOND).saturating_sub(self.begun.elapsed().as_nanos() as u64)
    }

    fn sleep(&self, nanoseconds: u64) -> Result<()> {
        std::thread::sleep(Duration::from_nanos(nanoseconds));
        Ok(())
    }

    fn random(&self) -> u64 {
        self.both.dice(|dice| dice.next())
    }

    fn log(&self, _: Level, message: &str) {
        panic!("the backend complains: {message}");
    }

    fn begin(&self, _: &[u32], _: &[u8]) -> Vec<Vec<u8>> {
        Vec::new()
    }

    fn not_done(&self, _: &[u32]) {}
}

fn written(message: &Message) -> Vec<u8> {
    let (host, port) = message.authority.rsplit_once(':').expect("a port");
    let head = kv_http_wire::Request {
        method: &message.method,
        host: &host_value(host, port.parse().expect("a port"), message.how.tls),
        path: &message.path,
        headers: &message.headers,
        body_len: message.body.len() as u64,
    };
    [head.head().expect("a request"), message.body.clone()].concat()
}

/// The shipped backend over both servers.
struct Backend {
    both: Rc<Both>,
    opened: Box<dyn Opened>,
}

impl Backend {
    fn open(both: &Rc<Both>) -> Self {
        let host = Rc::new(Call { both: both.clone(), items: Vec::new(), begun: Instant::now() });
        let uri = format!("s3+http://{}/{BUCKET}/kv", both.authority());
        let (opened, features) = over(host, || ::s3::open(&uri, Vec::new())).expect("it opens");
        let label = features.label;
        assert!(!label.contains("not fenced"), "{label}");
        Backend { both: both.clone(), opened }
    }

    fn run<T>(&mut self, items: &[Vec<u8>], what: impl FnOnce(&mut dyn Opened) -> T) -> T {
        let items = items.iter().map(|item| Rc::from(item.as_slice())).collect();
        let host = Rc::new(Call { both: self.both.clone(), items, begun: Instant::now() });
        over(host, || what(&mut *self.opened))
    }

    /// Something of all that it does.
    fn act(&mut self) {
        let both = self.both.clone();
        let count = both.dice(|dice| [1, 2, 5][dice.index(3)]);
        let width = both.dice(|dice| [8, 12][dice.index(2)]);
        let bytes: Vec<u8> =
            (0..count).flat_map(|_| [both.dice(|dice| dice.below(5) as u8); 16][..width].to_vec()).collect();
        let hashes = Hashes::new(width, &bytes);
        let values: Vec<Vec<u8>> = (0..count).map(|_| both.dice(value)).collect();
        let lens: Vec<u64> = values.iter().map(|value| value.len() as u64).collect();
        let name = format!("manifest {}\u{2}", both.dice(|dice| dice.below(3)));
        match both.dice(|dice| dice.below(12)) {
            0 => drop(self.run(&[], |of| of.exists(hashes)).unwrap()),
            1 | 2 => {
                let replaces = both.dice(|dice| dice.met(400));
                let put = self.run(&values, |of| of.put_chunks(hashes, &lens, replaces)).unwrap();
                assert!(!put.iter().any(|outcome| matches!(outcome, PutOutcome::Failed(_))), "{put:?}");
            }
            3 => drop(self.run(&[], |of| of.get_chunks(hashes)).unwrap()),
            4 => drop(self.run(&[], |of| of.delete_chunks(hashes)).unwrap()),
            5 | 6 => {
                let manifest = both.dice(|dice| dice.met(800));
                let manifest = manifest.then(|| Manifest { name: &name, len: lens[0] });
                drop(self.run(&values, |of| of.commit(&[hashes], manifest)).unwrap());
            }
            7 | 8 => drop(self.run(&[], |of| of.get_manifest(&name)).unwrap()),
            9 => self.list(),
            10 => {
                let of =
                    Eviction { bytes: both.dice(|dice| dice.below(4000)), unused_since: None, keep_since: u64::MAX };
                self.run(&[], |guest| guest.maintained().expect("it has some").evict(of)).map(drop).unwrap();
            }
            _ => self.run(&[], |of| of.delete_manifest(&name)).unwrap(),
        }
    }

    /// All of it, in pages.
    fn list(&mut self) {
        let limit = self.both.dice(|dice| dice.within(1, 4)) as u32;
        let (mut chunks, mut manifests) = (None::<String>, None::<String>);
        loop {
            let after = chunks.take();
            let page =
                self.run(&[], |guest| guest.maintained().expect("it has some").list_chunks(after.as_deref(), limit));
            chunks = page.unwrap().next;
            if chunks.is_none() {
                break;
            }
        }
        loop {
            let after = manifests.take();
            let page =
                self.run(&[], |guest| guest.maintained().expect("it has some").list_manifests(after.as_deref(), limit));
            manifests = page.unwrap().next;
            if manifests.is_none() {
                break;
            }
        }
        self.run(&[], |guest| guest.maintained().expect("it has some").usage()).map(drop).unwrap();
    }
}

/// Many end in the room for a generation.
fn value(dice: &mut Dice) -> Vec<u8> {
    let len = [0, 1, 16, 17, 300, 4096, 70_000][dice.index(7)];
    let mut value = vec![b'a' + dice.below(3) as u8; len];
    value[len.saturating_sub(16)..].fill(0);
    value
}

#[test]
fn all_that_the_backend_sends_is_answered_as_by_a_real_server() {
    let Some(both) = Both::start(1) else { return };
    let mut backend = Backend::open(&both);
    (0..400).for_each(|_| backend.act());
    let compared = both.compared.borrow();
    for kind in
        ["HEAD", "GET", "PUT", "PUT if-match", "PUT if-none-match", "POST delete", "GET list-type", "GET uploads"]
    {
        let times = compared.get(kind).copied().unwrap_or(0);
        assert!(times >= 10, "{kind} was compared {times} times: {compared:?}");
    }
}

/// A request as it goes over the wire, signed.
fn signed(both: &Both, method: &str, key: &str, query: &str, headers: &[(&str, String)], body: &[u8]) -> Vec<u8> {
    let stamp = dates::stamp(micros() / 1_000_000);
    let mut request = Request {
        method: method.to_owned(),
        path: if key.is_empty() { format!("/{BUCKET}") } else { format!("/{BUCKET}/{key}") },
        raw_query: query.to_owned(),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        body: body.to_vec(),
        ..Request::default()
    };
    request.headers.insert("host".to_owned(), both.authority());
    request.headers.insert("x-amz-date".to_owned(), stamp);
    Keys::new(SECRET_ACCESS_KEY).sign(&mut request);
    let query = if query.is_empty() { String::new() } else { format!("?{query}") };
    let mut head = format!("{method} {}{query} HTTP/1.1\r\n", request.path);
    request.headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    head += &format!("content-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// A request that the backend has, with any condition and range.
fn any_request(both: &Both, tags: &mut Vec<String>) {
    let (key, tag, body) = both.dice(|dice| {
        let key = format!("kv/x/any-{}", dice.below(4));
        (key, dice.pick(tags).cloned().unwrap_or_else(|| "\"0\"".to_owned()), value(dice))
    });
    let mut headers = Vec::new();
    let condition = both.dice(|dice| dice.below(4));
    let method = both.dice(|dice| ["GET", "HEAD", "PUT", "PUT", "PUT", "DELETE"][dice.index(6)]);
    match (method, condition) {
        ("PUT" | "DELETE" | "GET", 0) => headers.push(("if-match", tag)),
        ("PUT", 1) => headers.push(("if-none-match", "*".to_owned())),
        _ => {}
    }
    if method == "GET" && both.dice(|dice| dice.met(500)) {
        let (from, len) = both.dice(|dice| ([0, 1, 16, 5000][dice.index(4)], [1, 88, 8000][dice.index(3)]));
        headers.push(("range", format!("bytes={from}-{}", from + len - 1)));
    }
    if matches!(method, "GET" | "HEAD") && both.dice(|dice| dice.met(700)) {
        headers.push(("x-amz-checksum-mode", "ENABLED".to_owned()));
    }
    let body = if method == "PUT" { body } else { Vec::new() };
    if method == "PUT" {
        headers.push(("x-amz-checksum-crc32c", sign::crc32c(&body)));
        headers.push(("x-amz-meta-kv-length", body.len().to_string()));
    }
    let reply = both.ask(&signed(both, method, &key, "", &headers, &body));
    tags.extend(reply.headers.iter().filter(|(name, _)| name == "etag").map(|(_, tag)| tag.clone()));
}

#[test]
fn what_the_backend_might_send_is_answered_as_by_a_real_server() {
    let Some(both) = Both::start(2) else { return };
    let mut tags = Vec::new();
    (0..1500).for_each(|_| any_request(&both, &mut tags));
    let compared = both.compared.borrow();
    for kind in ["GET if-match", "GET range", "GET if-match range", "PUT if-none-match", "DELETE if-match", "DELETE"] {
        assert!(compared.get(kind).is_some_and(|times| *times >= 10), "{kind}: {compared:?}");
    }
}

#[test]
fn what_is_put_in_parts_is_answered_as_by_a_real_server() {
    let Some(both) = Both::start(3) else { return };
    let ask = |method: &str, query: &str, headers: &[(&str, String)], body: &[u8]| {
        both.ask(&signed(&both, method, "kv/l/long", query, headers, body))
    };
    let begin = |both: &Both| {
        let headers =
            [("x-amz-checksum-algorithm", "CRC32C".to_owned()), ("x-amz-meta-kv-length", "6000000".to_owned())];
        let begun = both.ask(&signed(both, "POST", "kv/l/long", "uploads=", &headers, b""));
        elements(&String::from_utf8_lossy(&begun.body), "UploadId").pop().expect("an upload")
    };
    let id = begin(&both);
    let parts = [vec![1_u8; 5 << 20], vec![2; 1000]];
    let mut list = "<CompleteMultipartUpload>".to_owned();
    for (number, part) in (1..).zip(&parts) {
        let sum = sign::crc32c(part);
        let headers = [("x-amz-checksum-crc32c", sum.clone())];
        let reply = ask("PUT", &format!("partNumber={number}&uploadId={id}"), &headers, part);
        let tag = reply.headers.iter().find(|(name, _)| name == "etag").map(|(_, tag)| tag.clone()).unwrap();
        list += &format!(
            "<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag><ChecksumCRC32C>{sum}</ChecksumCRC32C></Part>"
        );
    }
    list += "</CompleteMultipartUpload>";
    ask("POST", &format!("uploadId={id}"), &[], list.as_bytes());
    ask("HEAD", "", &[], b"");
    ask("GET", "", &[("range", "bytes=5242870-5242889".to_owned())], b"");
    let left = begin(&both);
    both.ask(&signed(&both, "GET", "", "prefix=kv%2F&uploads=", &[], b""));
    ask("DELETE", &format!("uploadId={left}"), &[], b"");
    both.ask(&signed(&both, "GET", "", "prefix=kv%2F&uploads=", &[], b""));
}

#[test]
fn refusals_are_those_of_a_real_server() {
    let Some(both) = Both::start(4) else { return };
    let put = signed(&both, "PUT", "kv/x/a", "", &[], b"abc");
    let text = String::from_utf8(put).unwrap();
    both.ask(text.as_bytes());
    for (old, new) in [("Signature=", "Signature=0"), (ACCESS_KEY_ID, "another"), ("\r\n\r\nabc", "\r\n\r\nabd")] {
        both.ask(text.replace(old, new).as_bytes());
    }
    let wrong = [("x-amz-checksum-crc32c", sign::crc32c(b"other"))];
    both.ask(&signed(&both, "PUT", "kv/x/b", "", &wrong, b"abc"));
}
