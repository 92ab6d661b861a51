//! The head of a request: what its author may say, and what is added.

use std::fmt;

use crate::{MAX_HEAD_BYTES, MAX_HEADERS, is_token};

/// A request that is not written. The message says what is wrong with it, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRequest(pub String);

impl fmt::Display for BadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadRequest {}

/// What is to be sent before the body.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// A token; CONNECT is refused.
    pub method: &'a str,
    /// The value of `Host`; see [`host_value`].
    pub host: &'a str,
    /// Path and query, percent-encoded.
    pub path: &'a str,
    pub headers: &'a [(String, String)],
    pub body_len: u64,
}

/// Headers that frame a message or rule the connection. Whoever sends the message sets them.
const RESERVED: &[&str] = &[
    "connection",
    "content-length",
    "expect",
    "host",
    "http2-settings",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The value of `Host` for a server: without the port where it is the scheme's own.
///
/// ```
/// use kv_http_wire::host_value;
/// assert_eq!(host_value("store.svc", 80, false), "store.svc");
/// assert_eq!(host_value("store.svc", 443, false), "store.svc:443");
/// assert_eq!(host_value("[::1]", 443, true), "[::1]");
/// ```
pub fn host_value(host: &str, port: u16, tls: bool) -> String {
    if port == if tls { 443 } else { 80 } { host.to_owned() } else { format!("{host}:{port}") }
}

/// Whether a request may be sent again where nobody knows if it was carried out.
pub fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS")
}

impl Request<'_> {
    /// The bytes up to and including the empty line.
    ///
    /// # Errors
    /// Anything that a server could read as the end of a line or of the head, a header that only the sender of the message may
    /// set, more than [`MAX_HEADERS`] headers or [`MAX_HEAD_BYTES`] bytes.
    pub fn head(&self) -> Result<Vec<u8>, BadRequest> {
        let Request { method, host, path, headers, body_len } = *self;
        if !is_token(method) || method.len() > 32 || method == "CONNECT" {
            return bad("the method must be 1 to 32 letters, and not CONNECT");
        }
        // `#` begins what is never sent; spaces end the path.
        if !path.starts_with('/') || !path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return bad("the path must begin with '/' and be percent-encoded");
        }
        if headers.len() > MAX_HEADERS {
            return bad(format!("{} headers; a request may have {MAX_HEADERS}", headers.len()));
        }
        let room: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
        let mut head = Vec::with_capacity((method.len() + path.len() + host.len() + room + 64).min(MAX_HEAD_BYTES));
        let mut line = |parts: &[&str]| {
            let len: usize = parts.iter().map(|part| part.len()).sum();
            // What follows at least is the empty line.
            if head.len() + len + 4 > MAX_HEAD_BYTES {
                return bad(format!("the head of a request may have {MAX_HEAD_BYTES} bytes"));
            }
            parts.iter().for_each(|part| head.extend_from_slice(part.as_bytes()));
            head.extend_from_slice(b"\r\n");
            Ok(())
        };
        line(&[method, " ", path, " HTTP/1.1"])?;
        line(&["host: ", host])?;
        for (index, (name, value)) in headers.iter().enumerate() {
            check_header(name, value).map_err(|why| BadRequest(format!("header {}: {why}", index + 1)))?;
            line(&[name, ": ", value])?;
        }
        // Without it a server takes a PUT or POST for one whose length is unknown.
        if body_len > 0 || !matches!(method, "GET" | "HEAD" | "DELETE" | "OPTIONS") {
            line(&["content-length: ", &body_len.to_string()])?;
        }
        head.extend_from_slice(b"\r\n");
        Ok(head)
    }
}

fn bad<T>(what: impl Into<String>) -> Result<T, BadRequest> {
    Err(BadRequest(what.into()))
}

fn check_header(name: &str, value: &str) -> Result<(), String> {
    if !is_token(name) {
        return Err("its name holds something else than letters, digits and -".to_owned());
    }
    if RESERVED.iter().any(|reserved| name.eq_ignore_ascii_case(reserved)) {
        return Err(format!("{} is set by the host", name.to_ascii_lowercase()));
    }
    if !value.bytes().all(|byte| byte == b'\t' || byte == b' ' || byte.is_ascii_graphic()) {
        return Err("its value holds a line end, NUL, another control character or one that is not ASCII".to_owned());
    }
    if value.trim_ascii() != value {
        return Err("its value begins or ends with a space".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(method: &str, path: &str, headers: &[(&str, &str)], body_len: u64) -> Result<String, String> {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let request = Request { method, host: "h:1", path, headers: &headers, body_len };
        request.head().map(|head| String::from_utf8(head).unwrap()).map_err(|bad| bad.to_string())
    }

    #[test]
    fn a_head_is_what_was_asked_for_and_what_frames_it() {
        assert_eq!(
            head("PUT", "/b/k?x=1", &[("X-A", "b c"), ("etag", "")], 5).unwrap(),
            "PUT /b/k?x=1 HTTP/1.1\r\nhost: h:1\r\nX-A: b c\r\netag: \r\ncontent-length: 5\r\n\r\n"
        );
        assert_eq!(head("GET", "/", &[], 0).unwrap(), "GET / HTTP/1.1\r\nhost: h:1\r\n\r\n");
        assert!(head("POST", "/", &[], 0).unwrap().contains("content-length: 0\r\n"));
        assert!(head("DELETE", "/", &[], 7).unwrap().contains("content-length: 7\r\n"));
    }

    #[test]
    fn what_could_be_read_as_another_request_is_refused() {
        for path in ["", "x", "/a b", "/a\r\nx: y", "/\0", "/a\n", "/#f", "/\u{e4}", "http://h/"] {
            assert!(head("GET", path, &[], 0).unwrap_err().contains("path"), "{path:?}");
        }
        for method in ["", "GET ", "G\r\nET", "CONNECT", &"A".repeat(33), "G\0"] {
            assert!(head(method, "/", &[], 0).unwrap_err().contains("method"), "{method:?}");
        }
        assert!(head(&"A".repeat(32), "/", &[], 0).is_ok());
        for (name, value) in [
            ("", "x"),
            ("a b", "x"),
            ("a:", "x"),
            ("a\r\nb", "x"),
            ("a", "x\r\nb: c"),
            ("a", "x\ny"),
            ("a", "x\0"),
            ("a", "\u{e4}"),
            ("a", " x"),
            ("a", "x\t"),
            ("\u{e4}", "x"),
        ] {
            assert!(head("GET", "/", &[(name, value)], 0).unwrap_err().starts_with("header 1:"), "{name:?} {value:?}");
        }
    }

    #[test]
    fn what_frames_a_message_is_the_hosts() {
        for name in RESERVED {
            let refused = head("GET", "/", &[("x", "y"), (&name.to_uppercase(), "1")], 0).unwrap_err();
            assert_eq!(refused, format!("header 2: {name} is set by the host"));
        }
    }

    #[test]
    fn too_many_and_too_long_headers_are_refused() {
        let many = vec![("a", "b"); MAX_HEADERS + 1];
        assert!(head("GET", "/", &many, 0).unwrap_err().contains("129 headers"));
        assert!(head("GET", "/", &many[1..], 0).is_ok());
        let long = "x".repeat(MAX_HEAD_BYTES);
        assert!(head("GET", "/", &[("a", &long)], 0).unwrap_err().contains("65536 bytes"));
        assert!(head("GET", &format!("/{long}"), &[], 0).unwrap_err().contains("65536 bytes"));
        let fits = "x".repeat(MAX_HEAD_BYTES - "GET / HTTP/1.1\r\nhost: h:1\r\na: \r\n\r\n".len());
        assert_eq!(head("GET", "/", &[("a", &fits)], 0).unwrap().len(), MAX_HEAD_BYTES);
    }
}
