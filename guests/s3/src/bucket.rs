//! Requests to the bucket: signed, many side by side, and made again where that helps.
//!
//! Invariant: a call that meets servers that hang ends within twice the host's patience and a second, however many requests it
//! makes. The first wait that runs out shows how long that is; all that follows in the call shares as much again.

use std::cell::{Cell, RefCell};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use kv_store_sdk::http::{self, Request, RequestOptions};
use kv_store_sdk::key::hex;
use kv_store_sdk::payloads::{self, Part};
use kv_store_sdk::{Error, ErrorKind, Result, system};

use crate::answer::{Answer, Verdict, judge};
use crate::sign::{Credentials, DayKey, EMPTY_SHA256, Host, ToSign, UNSIGNED, query_string};
use crate::time::stamp;
use crate::uri::{Style, Target, host_header};

/// Requests that are made side by side: as many connections as an instance has unless the operator says otherwise.
pub const SIDE_BY_SIDE: usize = 64;
/// How often a request is made at most.
const ATTEMPTS: u32 = 5;
/// The first pause before another attempt, in nanoseconds, which doubles with each.
const PAUSE: u64 = 40_000_000;
/// The least patience worth a try, in nanoseconds.
const LEAST_PATIENCE: u64 = 50_000_000;

pub struct Bucket {
    target: Target,
    style: Style,
    region: String,
    /// Which of the gateways is asked.
    gateway: Cell<usize>,
    keys: RefCell<Option<Keys>>,
}

struct Keys {
    credentials: Credentials,
    day: Option<DayKey>,
}

/// A request for a key, or for the bucket itself where that is empty.
pub struct Call<'a> {
    method: &'static str,
    key: String,
    query: Vec<(&'static str, String)>,
    headers: Vec<(&'static str, String)>,
    body: Vec<Part<'a>>,
    item: Option<u32>,
    max_body: Option<u64>,
    /// How many gateways after the one that is asked now.
    gateway: usize,
    payload_hash: String,
}

impl<'a> Call<'a> {
    pub fn new(method: &'static str, key: impl Into<String>) -> Self {
        Call {
            method,
            key: key.into(),
            query: Vec::new(),
            headers: Vec::new(),
            body: Vec::new(),
            item: None,
            max_body: None,
            gateway: 0,
            payload_hash: EMPTY_SHA256.to_owned(),
        }
    }

    pub fn query(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    /// `name` is in lower case.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// Which item of the call a successful response answers.
    pub fn item(mut self, item: u32) -> Self {
        self.item = Some(item);
        self
    }

    /// How long the body of the response may be: a longer one ends in `exhausted` before it is received.
    pub fn max_body(mut self, bytes: u64) -> Self {
        self.max_body = Some(bytes);
        self
    }

    /// Ask the gateway that comes so many after the one that is asked now.
    pub fn by_gateway(mut self, further: usize) -> Self {
        self.gateway = further;
        self
    }
}

/// The checksum of parts as S3 writes it.
pub fn checksum(parts: &[Part]) -> Result<String> {
    Ok(BASE64_STANDARD.encode(payloads::crc32c(parts)?.to_be_bytes()))
}

/// How long waits may take in one call, once one has run out.
#[derive(Default)]
struct Waits {
    /// None: none has.
    left: Option<u64>,
}

impl Waits {
    /// The patience of the next of so many groups of requests. `Some(None)`: the host's own. None: there is none left.
    fn next(&self, groups: usize) -> Option<Option<u64>> {
        match self.left {
            None => Some(None),
            Some(left) => Some(left / groups.max(1) as u64).filter(|share| *share >= LEAST_PATIENCE).map(Some),
        }
    }

    /// A group took so long, and a wait in it ran out.
    fn ran_out(&mut self, took: u64) {
        self.left = Some(self.left.map_or(took, |left| left.saturating_sub(took)));
    }
}

impl Bucket {
    pub fn new(target: Target, style: Style, region: String) -> Self {
        Bucket { target, style, region, gateway: Cell::new(0), keys: RefCell::new(None) }
    }

    /// Give a call a body, and what the signature holds it against.
    pub fn with_body<'a>(&self, call: Call<'a>, body: Vec<Part<'a>>) -> Result<Call<'a>> {
        // TLS keeps a body whole, and hashing it again costs more than sending it.
        let payload_hash = if self.target.tls { UNSIGNED.to_owned() } else { hex(&payloads::sha256(&body)?) };
        Ok(Call { body, payload_hash, ..call })
    }

    /// The same, and the checksum of the body, which the server holds it against. Where a multipart upload is completed the header
    /// would be that of the object.
    pub fn with_checked_body<'a>(&self, call: Call<'a>, body: Vec<Part<'a>>) -> Result<Call<'a>> {
        let sum = checksum(&body)?;
        self.with_body(call.header("x-amz-checksum-crc32c", sum), body)
    }

    pub fn describe(&self) -> String {
        let Target { bucket, prefix, .. } = &self.target;
        format!("{}/{bucket}/{prefix}", self.authority(0)).trim_end_matches('/').to_owned()
    }

    /// What is before each key.
    pub fn prefix(&self) -> &str {
        &self.target.prefix
    }

    /// The gateways, in an order that does not depend on that of the URI.
    pub fn gateways(&self) -> Vec<&str> {
        let mut gateways: Vec<&str> = self.target.gateways.iter().map(String::as_str).collect();
        gateways.sort_unstable();
        gateways.dedup();
        gateways
    }

    fn authority(&self, further: usize) -> String {
        let gateways = &self.target.gateways;
        let gateway = self.gateway.get().wrapping_add(further) % gateways.len().max(1);
        let gateway = gateways.get(gateway).map(String::as_str).unwrap_or_default();
        self.target.authority(gateway, self.style)
    }

    /// Make one request.
    pub fn ask(&self, call: Call) -> Result<Answer> {
        self.ask_all(vec![call]).pop().unwrap_or_else(|| Err(Error::other("no request was made")))
    }

    /// Make requests, each until it is answered or it is known why not. The answers are in the order of the calls.
    pub fn ask_all(&self, calls: Vec<Call>) -> Vec<Result<Answer>> {
        let mut answers: Vec<Result<Answer>> = calls.iter().map(|_| Err(Error::unavailable("not tried"))).collect();
        let mut waits = Waits::default();
        let options: Vec<RequestOptions> = calls.iter().map(|call| self.options(call)).collect();
        let mut requests: Vec<(usize, Call, Request)> = Vec::with_capacity(calls.len());
        for ((at, mut call), options) in calls.into_iter().enumerate().zip(&options) {
            let (body, item) = (std::mem::take(&mut call.body), call.item);
            let (method, authority, path) = (call.method.to_owned(), String::new(), String::new());
            let options = Some(options);
            requests.push((at, call, Request { method, authority, path, headers: Vec::new(), body, item, options }));
        }
        for attempt in 0..ATTEMPTS {
            requests = self.attempt(requests, &mut answers, &mut waits);
            if requests.is_empty() || attempt + 1 == ATTEMPTS {
                break;
            }
            // Between half and one and a half of the pause, so that those who failed together do not come back together.
            let pause = PAUSE << attempt;
            if system::sleep(pause / 2 + system::random() % pause).is_err() {
                break;
            }
        }
        answers
    }

    fn options(&self, call: &Call) -> RequestOptions {
        let options = RequestOptions::new();
        options.set_tls(self.target.tls);
        call.max_body.into_iter().for_each(|bytes| options.set_max_body(bytes));
        options
    }

    /// Make each once. What is left may go well at another attempt.
    fn attempt<'a>(
        &self,
        mut requests: Vec<(usize, Call<'a>, Request<'a>)>,
        answers: &mut [Result<Answer>],
        waits: &mut Waits,
    ) -> Vec<(usize, Call<'a>, Request<'a>)> {
        let mut again = Vec::new();
        let mut lost = false;
        while !requests.is_empty() {
            let groups = requests.len().div_ceil(SIDE_BY_SIDE);
            let rest = requests.split_off(requests.len().min(SIDE_BY_SIDE));
            let group = std::mem::replace(&mut requests, rest);
            let mut answer = |at: usize, outcome| {
                if let Some(answer) = answers.get_mut(at) {
                    *answer = outcome;
                }
            };
            match waits.next(groups) {
                None => {
                    let error = || Error::unavailable("not tried: the server did not answer those before in time");
                    group.iter().for_each(|(at, ..)| answer(*at, Err(error())));
                    continue;
                }
                Some(None) => {}
                Some(Some(patience)) => {
                    group.iter().filter_map(|(.., request)| request.options).for_each(|of| of.set_patience(patience));
                }
            }
            let (mut places, mut sent) = (Vec::new(), Vec::new());
            for (at, call, request) in group {
                match self.signed(&call, request) {
                    Ok(request) => {
                        places.push((at, call));
                        sent.push(request);
                    }
                    Err(error) => answer(at, Err(error)),
                }
            }
            let begun = system::monotonic();
            let responses = http::send(&sent);
            let took = system::monotonic().saturating_sub(begun);
            let (mut ran_out, mut keys_changed) = (false, None);
            for (((at, call), request), response) in places.into_iter().zip(sent).zip(responses) {
                let verdict = match response {
                    Ok(response) => judge(response, system::now()),
                    // Refused, reset or closed: that is known at once.
                    Err(error) if error.kind == ErrorKind::Unavailable && !error.has_run_out() => {
                        lost = true;
                        Verdict::Again(error)
                    }
                    Err(error) => {
                        ran_out |= error.has_run_out();
                        Verdict::Failed(error)
                    }
                };
                match verdict {
                    Verdict::Done(done) => answer(at, Ok(done)),
                    Verdict::Again(error) => {
                        answer(at, Err(error));
                        again.push((at, call, request));
                    }
                    Verdict::Keys(error) => {
                        answer(at, Err(error));
                        if *keys_changed.get_or_insert_with(|| self.read_keys_again()) {
                            again.push((at, call, request));
                        }
                    }
                    Verdict::Failed(error) => answer(at, Err(error)),
                }
            }
            if ran_out {
                waits.ran_out(took);
            }
            lost |= ran_out;
        }
        if lost {
            // Another gateway may serve.
            self.gateway.set(self.gateway.get().wrapping_add(1));
        }
        again
    }

    /// The request with its headers, as of now and for the gateway that is asked now.
    fn signed<'a>(&self, call: &Call, request: Request<'a>) -> Result<Request<'a>> {
        let (authority, path) = (self.authority(call.gateway), self.target.path(&call.key, self.style));
        let (query, stamp) = (query_string(&call.query), stamp(system::now()));
        let mut keys = self.keys.borrow_mut();
        let keys = match keys.as_mut() {
            Some(keys) => keys,
            None => keys.insert(Keys { credentials: read_credentials()?, day: None }),
        };
        let mut headers: Vec<(String, String)> =
            call.headers.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        headers.push(("x-amz-content-sha256".to_owned(), call.payload_hash.clone()));
        headers.push(("x-amz-date".to_owned(), stamp.clone()));
        if let Some(token) = &keys.credentials.token {
            headers.push(("x-amz-security-token".to_owned(), token.clone()));
        }
        // It is signed, and sent by the host.
        headers.push(("host".to_owned(), host_header(&authority, self.target.tls).to_owned()));
        let day = match keys.day.take().filter(|day| day.is_for(&stamp, &keys.credentials.id)) {
            Some(day) => day,
            None => DayKey::derive(&Host, &keys.credentials, &stamp, &self.region)?,
        };
        let to_sign = ToSign {
            method: call.method,
            path: &path,
            query: &query,
            headers: &headers,
            payload_hash: &call.payload_hash,
            stamp: &stamp,
        };
        let authorization = day.authorize(&Host, &to_sign)?;
        keys.day = Some(day);
        headers.pop();
        headers.push(("authorization".to_owned(), authorization));
        let path = if query.is_empty() { path } else { format!("{path}?{query}") };
        Ok(Request { authority, path, headers, ..request })
    }

    /// Whether the keys have been changed since they were read.
    fn read_keys_again(&self) -> bool {
        let Ok(credentials) = read_credentials() else { return false };
        let mut keys = self.keys.borrow_mut();
        if keys.as_ref().is_some_and(|keys| keys.credentials == credentials) {
            return false;
        }
        *keys = Some(Keys { credentials, day: None });
        true
    }
}

fn read_credentials() -> Result<Credentials> {
    let secret = |name: &str, variable: &str| {
        let missing =
            || Error::denied(format!("no key: set {variable}, or name a file of it in secrets of the config"));
        system::secret(name)?.filter(|secret| !secret.is_empty()).ok_or_else(missing)
    };
    Ok(Credentials {
        id: secret("access-key-id", "S3_ACCESS_KEY_ID")?,
        secret: secret("secret-access-key", "S3_SECRET_ACCESS_KEY")?,
        token: system::secret("session-token")?.filter(|token| !token.is_empty()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_that_run_out_share_as_much_again() {
        const SECOND: u64 = 1_000_000_000;
        let mut waits = Waits::default();
        assert_eq!(waits.next(4), Some(None));
        waits.ran_out(5 * SECOND);
        let mut spent = 5 * SECOND;
        for groups in (1..=64).rev() {
            if let Some(Some(patience)) = waits.next(groups) {
                waits.ran_out(patience);
                spent += patience;
            }
        }
        assert!(spent <= 10 * SECOND, "{spent}");
        assert_eq!(waits.next(1), None);
    }
}
