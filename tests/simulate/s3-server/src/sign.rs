//! Signature version 4 as a server checks it (AWS, "Authenticating Requests: Using the Authorization Header"), and what the signature
//! holds the body against.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hmac::{Hmac, Mac};
use md5::Md5;
use sha2::{Digest, Sha256};

use crate::dates;
use crate::message::{Request, Response};

pub const ACCESS_KEY_ID: &str = "of-the-history";
pub const SECRET_ACCESS_KEY: &str = "a secret of/the history";
/// How far apart the clocks may be, in seconds.
const MAX_SKEW: u64 = 15 * 60;

pub fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

/// A CRC-32C as S3 writes it.
pub fn crc32c(bytes: &[u8]) -> String {
    base64(&crc32c::crc32c(bytes).to_be_bytes())
}

fn hmac(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.update(bytes);
    mac.finalize().into_bytes().to_vec()
}

/// What a server knows of those who may use it, and the key that it derived last: of which day and region.
pub struct Keys {
    secret: String,
    derived: Option<(String, Vec<u8>)>,
    /// Bodies are held against what the signature says of them, and against their checksums.
    pub checks_hashes: bool,
    pub checks_sums: bool,
}

impl Keys {
    pub fn new(secret: &str) -> Self {
        Keys { secret: secret.to_owned(), derived: None, checks_hashes: true, checks_sums: true }
    }

    fn key(&mut self, scope: &str) -> Vec<u8> {
        if let Some((_, key)) = self.derived.as_ref().filter(|(of, _)| of == scope) {
            return key.clone();
        }
        let first = format!("AWS4{}", self.secret).into_bytes();
        let key = scope.split('/').fold(first, |key, part| hmac(&key, part.as_bytes()));
        self.derived = Some((scope.to_owned(), key.clone()));
        key
    }

    /// Why a request is refused. `now`: seconds since 1970.
    pub fn refuses(&mut self, request: &Request, now: u64) -> Option<Response> {
        let refused = |status, code| Some(Response::error(status, code, &request.path));
        let (Some(signed), Some(stamp)) = (Signed::of(request), request.header("x-amz-date")) else {
            return refused(403, "AccessDenied");
        };
        if signed.id != ACCESS_KEY_ID {
            return refused(403, "InvalidAccessKeyId");
        }
        if dates::of_stamp(stamp).is_none_or(|then| then.abs_diff(now) > MAX_SKEW) {
            return refused(403, "RequestTimeTooSkewed");
        }
        let signature = self.signature(request, signed.scope, signed.names);
        if signature != signed.signature || !stamp.starts_with(&signed.scope[..8]) {
            return refused(403, "SignatureDoesNotMatch");
        }
        let hash = request.header("x-amz-content-sha256").unwrap_or_default();
        self.body_refused(request, hash).and_then(|code| refused(400, code))
    }

    /// Why a body is none that its sender has sent.
    fn body_refused(&self, request: &Request, hash: &str) -> Option<&'static str> {
        let body = &request.body;
        if self.checks_hashes && hash != "UNSIGNED-PAYLOAD" && hash != hex::encode(Sha256::digest(body)) {
            return Some("XAmzContentSHA256Mismatch");
        }
        let differs = |name: &str, own: &dyn Fn() -> String| request.header(name).is_some_and(|told| told != own());
        let is_wrong = differs("content-md5", &|| base64(&Md5::digest(body)))
            || differs("x-amz-checksum-crc32c", &|| crc32c(body));
        (self.checks_sums && is_wrong).then_some("BadDigest")
    }

    /// Of these headers of a request.
    fn signature(&mut self, request: &Request, scope: &str, names: &str) -> String {
        let of = |name: &str| request.header(name).unwrap_or_default();
        let (hash, stamp) = (of("x-amz-content-sha256"), of("x-amz-date"));
        let mut canonical = Sha256::new();
        let mut take = |pieces: &[&str]| pieces.iter().for_each(|piece| canonical.update(piece));
        take(&[&request.method, "\n", &request.path, "\n", &request.raw_query, "\n"]);
        names.split(';').for_each(|name| take(&[name, ":", of(name), "\n"]));
        take(&["\n", names, "\n", hash]);
        let digest = hex::encode(canonical.finalize());
        let text = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}");
        hex::encode(hmac(&self.key(scope), text.as_bytes()))
    }

    /// Sign a request of a test, which has a date.
    pub fn sign(&mut self, request: &mut Request) {
        let hash = hex::encode(Sha256::digest(&request.body));
        request.headers.insert("x-amz-content-sha256".to_owned(), hash);
        let names = request.headers.keys().cloned().collect::<Vec<_>>().join(";");
        let scope = format!("{}/us-east-1/s3/aws4_request", &request.headers["x-amz-date"][..8]);
        let signature = self.signature(request, &scope, &names);
        let value = format!(
            "AWS4-HMAC-SHA256 Credential={ACCESS_KEY_ID}/{scope}, SignedHeaders={names}, Signature={signature}"
        );
        request.headers.insert("authorization".to_owned(), value);
    }
}

/// What the header Authorization says.
struct Signed<'a> {
    id: &'a str,
    /// `20130524/us-east-1/s3/aws4_request`
    scope: &'a str,
    names: &'a str,
    signature: &'a str,
}

impl<'a> Signed<'a> {
    fn of(request: &'a Request) -> Option<Self> {
        let mut parts = request.header("authorization")?.strip_prefix("AWS4-HMAC-SHA256 ")?.split(", ");
        let (id, scope) = parts.next()?.strip_prefix("Credential=")?.split_once('/')?;
        let names = parts.next()?.strip_prefix("SignedHeaders=")?;
        let signature = parts.next()?.strip_prefix("Signature=")?;
        let has = |name: &str| names.split(';').any(|signed| signed == name);
        let all_signed = request.headers.keys().filter(|name| name.starts_with("x-amz-")).all(|name| has(name));
        (all_signed && has("host") && scope.len() > 8 && scope.is_ascii()).then_some(Signed {
            id,
            scope,
            names,
            signature,
        })
    }
}
