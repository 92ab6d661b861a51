//! What S3 answers: responses, and the XML that says what went wrong.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use kv_store_sdk::http::Response;
use kv_store_sdk::{Error, ErrorKind, Payload, Result};

use crate::time;

/// The most of an XML body that is read.
const MAX_XML_BYTES: u64 = 4 << 20;
/// How far apart S3 allows its clock and ours to be, in seconds.
const MAX_SKEW: u64 = 15 * 60;

/// A response that was not refused: a success, or one whose status the caller knows how to take.
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: Payload,
}

/// What is to become of a request after a response.
pub enum Verdict {
    Done(Answer),
    /// It may go well a moment later.
    Again(Error),
    /// The keys may have been changed.
    Keys(Error),
    Failed(Error),
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// What the response says of its length: of a response to HEAD that of the object.
    pub fn length(&self) -> Option<u64> {
        digits(self.header("content-length")?)
    }

    /// Which bytes of the object these are.
    pub fn span(&self) -> Option<Span> {
        span(self.header("content-range")?)
    }

    /// What tells this content of the object from any other.
    pub fn etag(&self) -> Option<&str> {
        self.header("etag").filter(|tag| !tag.is_empty())
    }

    /// Fails where the bytes are not those of the object, but compressed or otherwise encoded on the way.
    pub fn is_plain(&self) -> Result<()> {
        let encoding =
            |(name, value): &(String, String)| name == "content-encoding" && !matches!(value.trim(), "" | "identity");
        match self.headers.iter().find(|header| encoding(header)) {
            Some((_, value)) => {
                let value: String = value.chars().take(40).collect();
                Err(Error::corrupt(format!("the server answered an object encoded as {value}, not as it was put")))
            }
            None => Ok(()),
        }
    }

    /// The body, which is text of a bounded length.
    pub fn text(&self) -> Result<String> {
        text(&self.body)
    }
}

/// Bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub begin: u64,
    pub len: u64,
    /// Of the whole object.
    pub total: u64,
}

/// The value of Content-Range of a 206, `bytes 0-9/40`; none: it names no bytes of an object of a known length.
fn span(value: &str) -> Option<Span> {
    let (range, total) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (begin, last) = range.split_once('-')?;
    let (begin, last, total) = (digits(begin)?, digits(last)?, digits(total)?);
    (begin <= last && last < total).then(|| Span { begin, len: last - begin + 1, total })
}

/// A number as HTTP has it, without a sign.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn text(body: &Payload) -> Result<String> {
    let len = body.len();
    if len > MAX_XML_BYTES {
        return Err(Error::corrupt(format!("a description of {len} bytes")));
    }
    Ok(String::from_utf8_lossy(&body.read(0, len as u32)?).into_owned())
}

/// Take a response as what it is. `now`: nanoseconds since 1970.
pub fn judge(response: Response, now: u64) -> Verdict {
    let Response { status, headers, body } = response;
    // Not there; the condition does not hold; nothing in that range.
    if (200..300).contains(&status) || matches!(status, 404 | 412 | 416) {
        let answer = Answer { status, headers, body };
        // A bucket that is not there is no missing object.
        return match status {
            404 => match text(&answer.body).map(|text| refusal(&text)) {
                Ok((code, message)) if code == "NoSuchBucket" => Verdict::Failed(explain(404, &code, &message, None)),
                _ => Verdict::Done(answer),
            },
            _ => Verdict::Done(answer),
        };
    }
    let (code, message) = text(&body).map(|text| refusal(&text)).unwrap_or_default();
    let date = headers.iter().find(|(name, _)| name == "date").and_then(|(_, value)| time::of_header(value));
    let skew = date.map(|server| server.abs_diff(now / 1_000_000_000)).filter(|skew| *skew > MAX_SKEW);
    let error = explain(status, &code, &message, skew);
    match (status, code.as_str()) {
        (409 | 429 | 500 | 502 | 503 | 504, _) | (400, "RequestTimeout") => Verdict::Again(error),
        (400, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") | (401, _) => Verdict::Keys(error),
        (403, _) if skew.is_none() && code != "RequestTimeTooSkewed" => Verdict::Keys(error),
        _ => Verdict::Failed(error),
    }
}

/// Code and message of an error's XML; empty where there are none, as in answers to HEAD.
fn refusal(text: &str) -> (String, String) {
    let Ok(document) = roxmltree::Document::parse(text) else { return Default::default() };
    let find = |name: &str| {
        let found = document.root_element().children().find(|node| node.tag_name().name() == name);
        found.and_then(|node| node.text()).unwrap_or_default().to_owned()
    };
    (find("Code"), find("Message"))
}

/// The text of the first element of a name.
pub fn element(text: &str, name: &str) -> Option<String> {
    let document = roxmltree::Document::parse(text).ok()?;
    let found = document.descendants().find(|node| node.tag_name().name() == name)?;
    Some(found.text().unwrap_or_default().to_owned())
}

/// Of the answer to a multi-object delete: each key that it names, and whether the object is gone.
pub fn deleted(text: &str) -> Result<HashMap<String, Result<()>>> {
    let document = roxmltree::Document::parse(text)
        .map_err(|_| Error::corrupt("the answer to a multi-object delete is no XML"))?;
    if document.root_element().tag_name().name() != "DeleteResult" {
        return Err(Error::corrupt("the answer to a multi-object delete is something else"));
    }
    let mut named = HashMap::new();
    for node in document.root_element().children() {
        let find = |name: &str| {
            let found = node.children().find(|node| node.tag_name().name() == name);
            found.and_then(|node| node.text()).unwrap_or_default()
        };
        let outcome = match node.tag_name().name() {
            "Deleted" => Ok(()),
            "Error" if find("Code") == "NoSuchKey" => Ok(()),
            "Error" => Err(explain(200, find("Code"), find("Message"), None)),
            _ => continue,
        };
        // An object that is said to be gone and not to be gone is not gone.
        match named.entry(find("Key").to_owned()) {
            Entry::Occupied(mut entry) if outcome.is_err() => drop(entry.insert(outcome)),
            Entry::Occupied(_) => {}
            Entry::Vacant(entry) => drop(entry.insert(outcome)),
        }
    }
    Ok(named)
}

/// What a refusal means, and what would help. `skew`: how many seconds the clocks are apart, where that is too much.
pub fn explain(status: u16, code: &str, message: &str, skew: Option<u64>) -> Error {
    use ErrorKind::{Busy, Corrupt, Denied, Exhausted, Invalid, Other, Unavailable, Unsupported};
    let clocks = skew.map(|seconds| {
        format!("this machine's clock and the server's are {} minutes apart: S3 allows 15; set the clock", seconds / 60)
    });
    let (kind, help) = match (status, code) {
        (403, _) if clocks.is_some() => (Denied, clocks.as_deref().unwrap_or_default()),
        (_, "RequestTimeTooSkewed") => (Denied, "this machine's clock is more than 15 minutes off: set it"),
        (_, "InvalidAccessKeyId") => (Denied, "the server does not know the key in S3_ACCESS_KEY_ID"),
        (_, "SignatureDoesNotMatch") => (Denied, "the server refused the signature: check S3_SECRET_ACCESS_KEY"),
        (_, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") => {
            (Denied, "the session token has expired: renew S3_ACCESS_KEY_ID, S3_SECRET_ACCESS_KEY and S3_SESSION_TOKEN")
        }
        (_, "NoSuchBucket") => (Invalid, "there is no such bucket: make it, or correct the URI"),
        (_, "AuthorizationHeaderMalformed") => (Invalid, "the bucket is in another region: set options.region"),
        (301 | 307 | 308, _) => {
            (Invalid, "the bucket is served elsewhere: correct the host, or options.region or options.style")
        }
        (_, "BadDigest" | "XAmzContentSHA256Mismatch" | "InvalidDigest") => {
            (Corrupt, "the bytes were damaged on the way")
        }
        (_, "EntityTooLarge") => (Invalid, "the object is larger than the server takes"),
        (_, "QuotaExceeded" | "XMinioStorageFull") | (507, _) => (Exhausted, "the storage is full"),
        (401 | 403, _) => {
            (Denied, "the server refused: check S3_ACCESS_KEY_ID, S3_SECRET_ACCESS_KEY and what they may do")
        }
        (405 | 501, _) => (Unsupported, "the server cannot do this"),
        (429 | 503, _) | (_, "SlowDown") => (Busy, "the server takes no more requests now"),
        (409 | 412 | 500 | 502 | 504, _) => (Unavailable, "the server is busy or failing"),
        (400, _) => (Invalid, "the server does not understand the request"),
        _ => (Other, "the server refused"),
    };
    let code = (!code.is_empty()).then(|| code.to_owned());
    let told: String = message.chars().take(200).collect();
    let named = code.as_deref().map(|code| format!(" {code}")).unwrap_or_default();
    let told = if told.is_empty() { String::new() } else { format!(": {told}") };
    Error { kind, message: format!("{help} (status {status}{named}{told})"), code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_says_what_would_help() {
        for (status, code, skew, kind, said) in [
            (403, "RequestTimeTooSkewed", None, ErrorKind::Denied, "clock"),
            (403, "AccessDenied", Some(1200), ErrorKind::Denied, "20 minutes apart"),
            (403, "SignatureDoesNotMatch", None, ErrorKind::Denied, "S3_SECRET_ACCESS_KEY"),
            (403, "InvalidAccessKeyId", None, ErrorKind::Denied, "S3_ACCESS_KEY_ID"),
            (400, "ExpiredToken", None, ErrorKind::Denied, "expired"),
            (404, "NoSuchBucket", None, ErrorKind::Invalid, "bucket"),
            (503, "SlowDown", None, ErrorKind::Busy, "no more"),
            (500, "InternalError", None, ErrorKind::Unavailable, "failing"),
            (400, "BadDigest", None, ErrorKind::Corrupt, "damaged"),
            (301, "PermanentRedirect", None, ErrorKind::Invalid, "region"),
            (507, "", None, ErrorKind::Exhausted, "full"),
            (418, "", None, ErrorKind::Other, "status 418)"),
        ] {
            let error = explain(status, code, "because", skew);
            assert!(
                error.kind == kind && error.message.contains(said) || said.contains("418"),
                "{status} {code}: {error:?}"
            );
            assert_eq!(error.code.as_deref(), Some(code).filter(|code| !code.is_empty()));
        }
    }

    #[test]
    fn what_went_wrong_is_read_off_the_xml() {
        let text = "<?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>a &lt; b</Message></Error>";
        assert_eq!(refusal(text), ("SlowDown".into(), "a < b".into()));
        for text in ["", "<html>", "<Error/>", "<!DOCTYPE x [<!ENTITY a \"b\">]><Error><Code>&a;</Code></Error>"] {
            assert_eq!(refusal(text), Default::default(), "{text}");
        }
        let deleted = "<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Deleted><Key>a</Key></Deleted>\
                       <Error><Key>b</Key><Code>AccessDenied</Code></Error><Error><Key>c</Key><Code>NoSuchKey</Code></Error>\
                       </DeleteResult>";
        let named = super::deleted(deleted).unwrap();
        let gone = |key: &str| named.get(key).map(Result::is_ok);
        assert_eq!((gone("a"), gone("b"), gone("c"), gone("d")), (Some(true), Some(false), Some(true), None));
        let both = "<DeleteResult><Error><Key>a</Key></Error><Deleted><Key>a</Key></Deleted></DeleteResult>";
        assert!(super::deleted(both).unwrap().get("a").unwrap().is_err());
        let cut = &deleted[..deleted.len() - 3];
        assert!(["<Error/>", "no", "", cut].iter().all(|text| super::deleted(text).is_err()));
        let begun =
            "<InitiateMultipartUploadResult><Bucket>b</Bucket><UploadId>x-1</UploadId></InitiateMultipartUploadResult>";
        assert_eq!(element(begun, "UploadId").as_deref(), Some("x-1"));
    }

    #[test]
    fn a_part_says_which_bytes_of_how_many_it_is() {
        assert_eq!(span("bytes 0-9/40"), Some(Span { begin: 0, len: 10, total: 40 }));
        assert_eq!(span("bytes 39-39/40"), Some(Span { begin: 39, len: 1, total: 40 }));
        for wrong in [
            "",
            "bytes */40",
            "bytes 0-9/*",
            "bytes 0-40/40",
            "bytes 9-0/40",
            "bytes +0-9/40",
            "items 0-9/40",
            "bytes -/40",
        ] {
            assert_eq!(span(wrong), None, "{wrong}");
        }
        assert_eq!(span(&format!("bytes 0-{0}/{0}", u64::MAX)), None);
    }

    proptest::proptest! {
        #[test]
        fn no_text_is_too_strange(text in "\\PC{0,60}") {
            let _ = (refusal(&text), deleted(&text), span(&text), element(&text, "a"));
        }
    }
}
