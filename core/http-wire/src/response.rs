//! The head of a response, and how the body behind it is framed.

use std::fmt;

use crate::{MAX_HEAD_BYTES, MAX_HEADERS};

/// Bytes that are no response, or one on whose end two readers could disagree. The connection is of no use any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadResponse(pub String);

impl fmt::Display for BadResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadResponse {}

pub(crate) fn bad<T>(what: impl Into<String>) -> Result<T, BadResponse> {
    Err(BadResponse(what.into()))
}

/// Everything before the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub status: u16,
    /// Names in lower case; bytes that are not ASCII as Latin-1.
    pub headers: Vec<(String, String)>,
    pub body: Body,
    /// Whether the server takes another request on the connection, once the body has been read.
    pub reusable: bool,
    /// Another head follows: this one was a 1xx.
    pub interim: bool,
}

/// How a body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// So many bytes; 0 also where there is none.
    Length(u64),
    /// See [`Chunks`](crate::Chunks).
    Chunked,
    /// It ends with the connection, so that nobody can tell whether it is whole.
    ToEnd,
}

/// Read the head of a response at the start of what came, and answer its length. None: it has not come whole.
/// `to_head`: it answers a HEAD request, and so has no body whatever it says.
///
/// # Errors
/// What came is no HTTP/1 response, is longer than [`MAX_HEAD_BYTES`], has more than [`MAX_HEADERS`] headers, a line end that is not
/// CR LF, or says more than one thing about its length.
pub fn parse_head(bytes: &[u8], to_head: bool) -> Result<Option<(Head, usize)>, BadResponse> {
    const START: &[u8] = b"HTTP/1.";
    if !bytes.iter().zip(START).all(|(came, expected)| came == expected) {
        return bad("what answers there does not speak HTTP/1");
    }
    let Some(len) = bytes.windows(4).take(MAX_HEAD_BYTES - 3).position(|end| end == b"\r\n\r\n").map(|at| at + 4)
    else {
        if bytes.len() >= MAX_HEAD_BYTES {
            return bad(format!("the head of the response is longer than {MAX_HEAD_BYTES} bytes"));
        }
        return Ok(None);
    };
    let head = bytes.get(..len).unwrap_or_default();
    // httparse takes either for the end of a line.
    let bare = |pair: &[u8]| {
        matches!(pair, [before, b'\n'] if *before != b'\r') || matches!(pair, [b'\r', after] if *after != b'\n')
    };
    if head.windows(2).any(bare) {
        return bad("a line of the response does not end in CR LF");
    }
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    match response.parse(head) {
        Ok(httparse::Status::Complete(parsed)) if parsed == len => {}
        Err(httparse::Error::TooManyHeaders) => {
            return bad(format!("the response has more than {MAX_HEADERS} headers"));
        }
        Err(error) => return bad(format!("the head of the response is malformed: {error}")),
        Ok(_) => return bad("the head of the response ends in its midst"),
    }
    let (Some(version), Some(status)) = (response.version, response.code) else {
        return bad("the response has no status");
    };
    if !(100..1000).contains(&status) || status == 101 {
        return bad(format!("nobody asked for status {status}"));
    }
    let interim = status < 200;
    let framing = Framing::of(response.headers)?;
    let bodyless = to_head || interim || matches!(status, 204 | 304);
    let (body, reusable) = match framing {
        // A server that sends one all the same is out of step: what it sent is found when the connection is next looked at.
        framing if bodyless => (Body::Length(0), to_head || status == 304 || framing.is_empty()),
        Framing { chunked: true, .. } if version == 0 => return bad("a chunked response of HTTP/1.0"),
        Framing { chunked: true, length: Some(_), .. } => {
            return bad("the response has both Transfer-Encoding and Content-Length");
        }
        Framing { chunked: true, .. } => (Body::Chunked, true),
        Framing { length: Some(length), .. } => (Body::Length(length), true),
        Framing { .. } => (Body::ToEnd, false),
    };
    let reusable = reusable && version == 1 && !framing.closes;
    let name = |header: &httparse::Header| header.name.to_ascii_lowercase();
    let value = |header: &httparse::Header| header.value.iter().map(|byte| char::from(*byte)).collect();
    let headers = response.headers.iter().map(|header| (name(header), value(header))).collect();
    Ok(Some((Head { status, headers, body, reusable, interim }, len)))
}

/// What the headers say about the end of the message.
#[derive(Clone, Copy, Default)]
struct Framing {
    length: Option<u64>,
    chunked: bool,
    closes: bool,
}

impl Framing {
    fn of(headers: &[httparse::Header]) -> Result<Self, BadResponse> {
        let mut framing = Framing::default();
        for header in headers {
            if header.name.eq_ignore_ascii_case("content-length") {
                let digits = header.value.len() <= 19 && header.value.iter().all(u8::is_ascii_digit);
                let length =
                    std::str::from_utf8(header.value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
                if length.is_none() || framing.length.is_some() {
                    return bad("the response has no one Content-Length");
                }
                framing.length = length;
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                if framing.chunked || !header.value.eq_ignore_ascii_case(b"chunked") {
                    return bad("the response has a Transfer-Encoding other than chunked");
                }
                framing.chunked = true;
            } else if header.name.eq_ignore_ascii_case("connection") {
                let mut options = header.value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
                framing.closes |= options.any(|option| option.eq_ignore_ascii_case(b"close"));
            }
        }
        Ok(framing)
    }

    fn is_empty(self) -> bool {
        !self.chunked && self.length.unwrap_or(0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Head, String> {
        match parse_head(text.as_bytes(), false) {
            Ok(Some((head, len))) => {
                assert_eq!(len, text.find("\r\n\r\n").unwrap() + 4);
                Ok(head)
            }
            Ok(None) => Err("it goes on".to_owned()),
            Err(bad) => Err(bad.to_string()),
        }
    }

    fn framed(rest: &str) -> Result<(Body, bool), String> {
        parsed(&format!("HTTP/1.1 200 OK\r\n{rest}\r\n")).map(|head| (head.body, head.reusable))
    }

    #[test]
    fn a_head_is_its_status_its_headers_and_its_framing() {
        let head =
            parsed("HTTP/1.1 206 Partial Content\r\nETag: \"x\"\r\nCONTENT-LENGTH: 7\r\nX-Name: \t a b \r\n\r\nbody")
                .unwrap();
        assert_eq!((head.status, head.body, head.reusable, head.interim), (206, Body::Length(7), true, false));
        let headers: Vec<_> = head.headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(headers, [("etag", "\"x\""), ("content-length", "7"), ("x-name", "a b")]);
        let latin = parse_head(b"HTTP/1.1 200 \xe4\r\na: \xfc\r\n\r\n", false).unwrap().unwrap().0;
        assert_eq!(latin.headers, [("a".to_owned(), "\u{fc}".to_owned())]);
        assert_eq!(parsed("HTTP/1.1 200\r\n\r\n").unwrap().body, Body::ToEnd);
    }

    #[test]
    fn framing_says_one_thing_or_is_refused() {
        assert_eq!(framed("content-length: 0\r\n"), Ok((Body::Length(0), true)));
        assert_eq!(framed("Transfer-Encoding: Chunked\r\n"), Ok((Body::Chunked, true)));
        assert_eq!(framed("content-length: 5\r\nconnection: keep-alive, Close\r\n"), Ok((Body::Length(5), false)));
        assert_eq!(framed(""), Ok((Body::ToEnd, false)));
        for rest in [
            "content-length: 5\r\ncontent-length: 5\r\n",
            "content-length: 5, 5\r\n",
            "content-length: +5\r\n",
            "content-length: 5 5\r\n",
            "content-length: 0x5\r\n",
            "content-length:\r\n",
            "content-length: 99999999999999999999\r\n",
            "content-length: -1\r\n",
            "content-length: 5\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            "transfer-encoding: gzip, chunked\r\n",
            "transfer-encoding: identity\r\n",
            "transfer-encoding: xchunked\r\n",
            "transfer-encoding : chunked\r\n",
            " content-length: 5\r\n",
            "a: b\r\n c\r\n",
            "a: b\nc: d\r\n",
            "a: b\rc: d\r\n",
            "a: \0\r\n",
            "a b: c\r\n",
        ] {
            assert!(framed(rest).is_err(), "{rest:?} is {:?}", framed(rest));
        }
        assert!(parsed("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert_eq!(parsed("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n").map(|head| head.reusable), Ok(false));
    }

    #[test]
    fn some_responses_have_no_body() {
        for (status, rest, reusable) in [
            (204, "", true),
            (204, "content-length: 5\r\n", false),
            (204, "transfer-encoding: chunked\r\n", false),
            (304, "content-length: 5\r\n", true),
            (100, "", true),
            (103, "link: x\r\n", true),
        ] {
            let head = parsed(&format!("HTTP/1.1 {status} x\r\n{rest}\r\n")).unwrap();
            assert_eq!(
                (head.body, head.reusable, head.interim),
                (Body::Length(0), reusable, status < 200),
                "{status} {rest}"
            );
        }
        let (head, _) = parse_head(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", true).unwrap().unwrap();
        assert_eq!((head.body, head.reusable), (Body::Length(0), true));
    }

    #[test]
    fn what_is_no_response_is_refused_as_soon_as_that_is_known() {
        for text in
            ["S", "HTTP/2", "HTTP/1.1 200 OK\r\n: x\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 099 x\r\n\r\n"]
        {
            let refused = parsed(text).unwrap_err();
            assert_ne!(refused, "it goes on", "{text:?}");
        }
        assert!(parsed("HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\n\r\n").unwrap_err().contains("101"));
        for text in ["", "HTT", "HTTP/1.1 200 OK\r\na: b\r\n"] {
            assert_eq!(parsed(text).unwrap_err(), "it goes on", "{text:?}");
        }
    }

    #[test]
    fn too_many_and_too_long_headers_are_refused() {
        let many = |count: usize| parsed(&format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(count)));
        assert_eq!(many(MAX_HEADERS).unwrap().headers.len(), MAX_HEADERS);
        assert!(many(MAX_HEADERS + 1).unwrap_err().contains("more than 128 headers"));
        let endless = format!("HTTP/1.1 200 OK\r\na: {}", "x".repeat(MAX_HEAD_BYTES));
        assert!(parsed(&endless).unwrap_err().contains("longer than 65536"));
        assert!(parsed(&(endless + "\r\n\r\n")).unwrap_err().contains("longer than 65536"));
    }
}
